/* run_join.c - how the ranks of a run meet: what they must have in common, and who speaks. */
#include "train/run/run_state.h"

#include "base/library.h"
#include "store/digest.h"
#include "train/run/run_config.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20 };

static mx_status hash_program(mx_arena *a, uint32_t *hash)
{
    static const char path[] = "/proc/self/exe";
    char *buf = MX_NEW_N(a, char, READ_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return mx_fail_errno(MX_DEVICE, "%s, by which ranks know that they are the same program",
                             path);
    ssize_t n;
    mx_digest_state *d = mx_digest_start();
    while ((n = read(fd, buf, READ_BYTES)) > 0 || (n < 0 && errno == EINTR))
        mx_digest_add(d, buf, n > 0 ? (size_t)n : 0);
    *hash = (uint32_t)mx_digest_end(d).lo;
    close(fd);
    return n < 0 ? mx_fail(MX_DEVICE, "%s cannot be read to its end", path) : MX_OK;
}

/* The end of a key of config.yml: where the next line starts that is not a part of it. */
static const char *end_of_key(const char *line)
{
    do {
        const char *newline = strchr(line, '\n');
        line = newline ? newline + 1 : line + strlen(line);
    } while (*line == ' ' || *line == '-');
    return line;
}

/* The program, then every key of the configuration. */
static mx_status list_parts(mx_run *r, mx_coord_options *o)
{
    mx_arena work = {0};
    mx_str text = {0};
    mx_coord_part *part = MX_NEW_N(&r->arena, mx_coord_part, MX_COORD_PARTS);
    part[0].name = "program";
    mx_status st = hash_program(&work, &part[0].hash);
    mx_run_config_text(r->c, &text);
    o->n_parts = 1;
    for (const char *at = mx_str_text(&text), *next; *at; at = next) {
        next = end_of_key(at);
        int name = (int)strcspn(at, ":\n");
        if (at[name] != ':' || *at == '#')
            continue;
        MX_ASSERT(o->n_parts < MX_COORD_PARTS, "%d keys", o->n_parts);
        part[o->n_parts++] = (mx_coord_part){mx_arena_printf(&r->arena, "%.*s", name, at),
                                             (uint32_t)mx_digest_of(at, (size_t)(next - at)).lo};
    }
    o->parts = part;
    mx_str_fini(&text);
    mx_arena_fini(&work);
    return st;
}

static void say(void *ctx, const char *text)
{
    mx_run *r = ctx;
    if (r->ranks.leads)
        mx_progress_say(&r->report.progress, "ranks: %s", text);
    else
        fprintf(stderr, "maxc: rank %d: %s\n", r->ranks.launch.rank, text);
}

/* The run has failed and the main thread does not end: it may be stuck in the kernel, or in a
 * library. Folders are then as after kill -9, which loses nothing that was committed. */
static void end(void *ctx, const char *why)
{
    const mx_run *r = ctx;
    char line[1024];
    int n = snprintf(line, sizeof line,
                     "maxc: %s. This process, rank %d, did not end by itself and is terminated\n",
                     why, r->ranks.launch.rank);
    (void)!write(STDERR_FILENO, line, (size_t)n);
    if (r->watch.log_fd > 0)
        (void)!write(r->watch.log_fd, line, (size_t)n);
    _exit(MX_DEVICE);
}

/* On a mesh ranks that differ only in axes that do not share rows have the same ones. */
static void share_rows(mx_run *r)
{
    r->ranks.data_rank = r->ranks.launch.rank;
    r->ranks.data_ranks = r->ranks.launch.size;
    if (!r->mesh_rank)
        return;
    mx_axis_set rows = mx_mesh_rows(r->mesh_rank->mesh);
    r->ranks.data_rank = mx_mesh_index(&r->mesh_rank->mesh->mesh, r->mesh_rank->rank, rows);
    r->ranks.data_ranks = mx_mesh_size(&r->mesh_rank->mesh->mesh, rows);
}

mx_status mx_run_ranks_find(mx_run *r)
{
    if (r->mesh_rank && r->mesh_rank->world)
        r->ranks.launch =
            (mx_launch){.rank = r->mesh_rank->rank, .size = r->mesh_rank->mesh->ranks};
    else
        MX_TRY(mx_launch_find(&r->ranks.launch, getenv));
    r->ranks.leads = r->ranks.launch.rank == 0;
    share_rows(r);
    return MX_OK;
}

/* Is the requested transport available? */
static mx_status check_way(const mx_run *r)
{
    void *so;
    const char *way = mx_config_text(r->c, "collectives");
    bool nccl = strcmp(way, "nccl") == 0;
    if (r->mesh_rank && r->mesh_rank->world && strcmp(way, "auto") != 0)
        return mx_fail(MX_USAGE, "%s: collectives=%s joins processes%s, and this one has all ranks "
                       "of the mesh; start one process a rank, or leave collectives out",
                       mx_config_where(r->c, "collectives"), way, nccl ? " with a GPU each" : "");
    if (!nccl)
        return MX_OK;
    return mx_status_wrap(mx_library_open(MX_LIBRARY_NCCL, &so), "collectives=nccl");
}

static mx_status open_virtual(mx_run *r)
{
    MX_TRY(mx_local_comm_open(&r->ranks.comm, r->mesh_rank->world, r->mesh_rank->rank));
    MX_TRY(check_way(r));
    return mx_comm_share_path(r->ranks.comm, &r->arena, &r->folder);
}

/* Of its own: collectives of programs go on beside what ranks agree on. */
static mx_status open_groups(mx_run *r)
{
    const char *how = mx_config_text(r->c, "collectives");
    MX_TRY(mx_comm_groups_open(&r->ranks.groups, r->ranks.comm, &r->mesh_rank->mesh->mesh));
    if (strcmp(how, "auto") == 0 || strcmp(how, "nccl") == 0)
        mx_comm_groups_use_nccl(r->ranks.groups);
    return MX_OK;
}

static mx_process_group *find_group(void *groups, unsigned axes)
{
    mx_process_group *g = mx_comm_groups_find(groups, axes);
    return g->size > 1 ? g : NULL;
}

void mx_run_set_groups(mx_run *r)
{
    if (r->ranks.groups)
        mx_session_set_groups(r->session, find_group, r->ranks.groups);
}

mx_status mx_run_ranks_open(mx_run *r)
{
    const mx_config *c = r->c;
    if (r->mesh_rank && r->mesh_rank->world)
        return open_virtual(r);
    if (r->ranks.launch.size > 1)
        MX_TRY(mx_device_choose_gpu(r->ranks.launch.local));
    mx_coord_options o = {
        .join_timeout_s = mx_config_float(c, "distributed_initialization_timeout"),
        .heartbeat_timeout_s = mx_config_float(c, "heartbeat_timeout_seconds"),
        .call_timeout_s = mx_config_float(c, "collective_timeout_seconds"),
        .secret = mx_config_text(c, "rendezvous_secret"),
        .folder = mx_config_text(c, "base_output_directory"),
        .say = say,
        .end = end,
        .ctx = r,
        .rank0_reports = &r->ranks.rank0_reports,
    };
    if (r->ranks.launch.size > 1)
        MX_TRY(list_parts(r, &o));
    MX_TRY(mx_coord_open(&r->ranks.coord, &r->ranks.launch, &o));
    mx_comm_choice choice = {.how = mx_config_text(c, "collectives"), .arena = &r->arena};
    MX_TRY(mx_comm_open(&r->ranks.comm, r->ranks.coord, &choice));
    if (choice.note)
        mx_progress_say(&r->report.progress, "note: ranks talk over TCP, not MPI: %s", choice.note);
    MX_TRY(mx_comm_agree(r->ranks.comm, check_way(r)));
    if (r->mesh_rank)
        MX_TRY(open_groups(r));
    /* Without a run_name it has the time in it. */
    return mx_comm_share_path(r->ranks.comm, &r->arena, &r->folder);
}

/* saved_run.c - the programs of every rank of a run, compiled and kept in one file; see
 * saved_programs.h. */
#include "exec/saved_programs.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json_doc.h"
#include "exec/mesh_config.h"
#include "store/digest.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *mx_saved_model(const mx_model_spec *m, mx_arena *a)
{
    char digest[MX_DIGEST_TEXT];
    char *text = mx_json_text(m->json, 0);
    mx_digest_text(mx_digest_of(text, strlen(text)), digest);
    mx_free(text);
    return mx_arena_printf(a, "%s %s", m->family->name, digest);
}

/* Kernels are compiled into a folder of their own, so that what lies there is what these programs
 * need. */
typedef struct {
    char dir[64];
    int n;
} kernels;

static mx_status open_kernels(kernels *k, const char *arch)
{
    *k = (kernels){.dir = "/tmp/maxc-kernels-XXXXXX"};
    if (arch && !mkdtemp(k->dir))
        return mx_fail_errno(MX_DEVICE, "cannot make a folder %s for kernels", k->dir);
    return MX_OK;
}

static mx_status compile_kernels(kernels *k, mx_programs *p, const char *arch)
{
    mx_step *list[MX_PROGRAMS];
    const mx_pipeline *pipes[] = {&p->pipeline, &p->eval_pipeline};
    int n = mx_programs_list(p, list);
    for (int i = 0; i < n; i++)
        MX_TRY(mx_device_compile_kernels(&list[i]->program, arch, k->dir, &k->n));
    for (int j = 0; j < 2 && p->pipelined; j++)
        for (int i = 0; i < pipes[j]->how.repeats * MX_STAGE_PARTS; i++)
            MX_TRY(mx_device_compile_kernels(
                &pipes[j]->chunk[i / MX_STAGE_PARTS].program[i % MX_STAGE_PARTS], arch, k->dir,
                &k->n));
    return MX_OK;
}

/* Algorithms that runs on this machine have chosen, where there are any. */
static mx_status add_choices(mx_saved_programs *s)
{
    char dir[512], path[600];
    mx_device_cache_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/" MX_CHOICES_FILE, dir);
    return mx_file_exists(path) ? mx_saved_programs_add_kernel(s, dir, MX_CHOICES_FILE) : MX_OK;
}

/* Takes what was compiled and removes the folder. */
static mx_status close_kernels(kernels *k, mx_saved_programs *s, const char *arch)
{
    mx_status st = MX_OK;
    DIR *d = arch ? opendir(k->dir) : NULL;
    k->n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!mx_ends_with(e->d_name, ".cubin"))
            continue;
        if (!st && s)
            st = mx_saved_programs_add_kernel(s, k->dir, e->d_name);
        k->n++;
        unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d)
        closedir(d);
    if (arch)
        rmdir(k->dir);
    return st || !s || !arch ? st : add_choices(s);
}

/* Compiles one rank, saves its programs and frees them. With a `kind` they are saved only if that
 * kind's programs cannot stand for them. */
static mx_status add_rank(mx_saved_programs *s, const mx_saved_request *r, mx_programs_ranks by,
                          kernels *k, int *kind)
{
    bool same = false;
    mx_arena arena = {0};
    mx_programs programs = {0};
    mx_programs_request q;
    mx_status st;
    MX_TRY_OUT(st, mx_programs_configure(&q, r->config, r->model, by, &arena));
    q.options.compile.device = r->device;
    if (r->n_threads)
        q.options.compile.n_threads = r->n_threads;
    double began = mx_clock_now();
    MX_TRY_OUT(st, mx_programs_plan(&programs, r->model, &q));
    double seconds = mx_clock_now() - began;
    if (r->arch)
        MX_TRY_OUT(st, compile_kernels(k, &programs, r->arch));
    mx_saved_kind own = {&programs, &q, by.on ? by.on->rank : 0, seconds};
    if (*kind >= 0)
        MX_TRY_OUT(st, mx_saved_programs_stand_for(s, *kind, &own, &same));
    if (same)
        mx_saved_programs_share(s, own.rank, *kind);
    else
        *kind = mx_saved_programs_add(s, &own);
out:
    mx_programs_close(&programs);
    mx_arena_fini(&arena);
    return st;
}

static const mx_axis free_axes[] = {MX_AXIS_DATA, MX_AXIS_FSDP, MX_AXIS_EXPERT};
enum { FREE_AXES = sizeof free_axes / sizeof *free_axes };

/* The first rank of this one's kind. They differ on the axes data, fsdp and expert alone, and on
 * each either both are at coordinate 0 or neither is: the rank at 0 is the one that counts shared
 * values in sums over the mesh. */
static int first_alike(const mx_mesh *m, int rank)
{
    int first = rank;
    for (int i = 0; i < FREE_AXES; i++) {
        bool later = mx_mesh_coordinate(m, rank, free_axes[i]) > 0;
        first = mx_mesh_member(m, first, 1u << free_axes[i], later);
    }
    return first;
}

/* Is it compiled as a check, although another rank's programs should stand for its own? On every
 * stage that is the next rank along each axis, and the last one. */
static bool is_checked(const mx_mesh *m, int rank, int first)
{
    const mx_axis cut[] = {MX_AXIS_TENSOR, MX_AXIS_SEQUENCE, MX_AXIS_CONTEXT};
    bool last = true, corner = true;
    int away = 0;
    for (int i = 0; i < 3; i++)
        corner &= mx_mesh_coordinate(m, rank, cut[i]) == 0;
    for (int i = 0; i < FREE_AXES; i++) {
        int at = mx_mesh_coordinate(m, rank, free_axes[i]);
        last &= at == 0 || at == mx_mesh_size(m, 1u << free_axes[i]) - 1;
        away += at - mx_mesh_coordinate(m, first, free_axes[i]);
    }
    return corner && (last || away == 1);
}

/* Every kind of rank once: stages x places on the axes that cut sequences and features x being the
 * first or not on the others. Some more ranks are compiled to check that they are of their kind; if
 * one is not, all are compiled. */
static mx_status add_ranks(mx_saved_programs *s, const mx_saved_request *r, mx_mesh_plan *mesh,
                           const mx_saved_for *what)
{
    kernels k;
    mx_arena arena = {0};
    bool meshed = mesh->ranks > 1, alike = true;
    int *kind = MX_NEW_N(&arena, int, what->ranks);
    MX_TRY(open_kernels(&k, r->arch));
    mx_status st = MX_OK;
    for (int i = 0; i < what->ranks && !st; i++) {
        mx_programs_ranks by = {what->ranks, what->data_ranks, meshed ? &mesh->how : NULL};
        int first = meshed ? first_alike(&what->mesh, i) : 0;
        int like = kind[i] = first < i ? kind[first] : -1;
        mesh->how.rank = i;
        if (like >= 0 && alike && !is_checked(&what->mesh, i, first)) {
            mx_saved_programs_share(s, i, like);
            continue;
        }
        st = add_rank(s, r, by, &k, &kind[i]);
        alike &= like < 0 || kind[i] == like;
    }
    mx_arena_fini(&arena);
    mx_status kept = close_kernels(&k, st ? NULL : s, r->arch);
    return st ? st : kept;
}

mx_status mx_saved_programs_make(const mx_saved_request *r, mx_str *note)
{
    const mx_config *c = r->config;
    const char *path = mx_config_text(c, "compiled_trainstep_file");
    mx_arena arena = {0};
    mx_mesh_plan mesh = {0};
    mx_saved_programs *s = NULL;
    mx_status st;
    size_t bytes = 0;
    char a[32];
    mx_config_forget(c, MX_KEY_SHAPE); /* but for what the model was made of */
    MX_TRY_OUT(st, mx_mesh_configure(&mesh, c, r->processes));
    if (mesh.ranks > 1)
        MX_TRY_OUT(st, mx_mesh_check(&mesh, c));
    mx_saved_for what = {.device = r->device->name, .chip = r->chip ? r->chip : "",
                         .ranks = mesh.ranks, .data_ranks = 1,
                         .model = mx_saved_model(r->model, &arena)};
    if (mesh.ranks > 1)
        what.mesh = mesh.mesh;
    if (mesh.ranks > 1)
        what.data_ranks = mx_mesh_size(&mesh.mesh, mx_mesh_rows(&mesh));
    s = mx_saved_programs_new(&what);
    MX_TRY_OUT(st, add_ranks(s, r, &mesh, &what));
    MX_TRY_OUT(st, mx_saved_programs_write(s, c, path, &bytes));
    mx_str_addf(note, "saved     the programs of %d rank%s in %s, %s; ", mesh.ranks,
                mesh.ranks > 1 ? "s" : "", path, mx_format_bytes(a, sizeof a, (double)bytes));
    if (mesh.ranks > 1)
        mx_str_addf(note, "kinds of rank: %d; ", mx_saved_programs_kinds(s));
    mx_str_addf(note, "compiling one took %.2f s", mx_saved_programs_seconds(s));
out:
    mx_saved_programs_free(s);
    mx_mesh_plan_fini(&mesh);
    mx_arena_fini(&arena);
    return mx_status_wrap(st, "compiled_trainstep_file");
}

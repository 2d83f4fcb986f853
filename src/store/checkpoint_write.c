/* checkpoint_write.c - a snapshot becomes a folder.
 *
 * Order of a write (each step is durable before the next begins):
 *     room on the disk? -> files of the checkpoint, each fsynced and renamed to its name
 *     -> manifest.json likewise -> fsync(tmp folder) -> rename(tmp, STEP) -> fsync(checkpoints).
 * A crash before the rename leaves a .tmp folder nobody reads; a crash after it leaves a whole
 * checkpoint. Weights and optimizer are written by two threads at once: one hashes while the other
 * waits for the disk.
 */
#include "store/checkpoint_impl.h"

#include "base/json_doc.h"
#include "base/str.h"
#include "store/checkpoint_read.h"
#include "store/manifest.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t SLACK_BYTES = 4 << 20; /* headers, manifest, directory blocks */

/* --- ranks ---------------------------------------------------------------------------------- */
bool mx_ckpt_leads(const mx_ckpt *c)
{
    return !c->opts.comm || c->opts.comm->rank == 0;
}

mx_status mx_ckpt_agree(const mx_ckpt *c, mx_status st)
{
    return c->opts.comm ? mx_comm_agree(c->opts.comm, st) : st;
}

/* --- the write ------------------------------------------------------------------------------ */
typedef struct {
    const mx_ckpt *c;
    const char *dir;
    const mx_st_source *tensors;
    int64_t n;
    mx_hf_save_opts opts;
    mx_st_pair meta[2];
    char step[32];
    mx_arena arena;
    mx_hf_saved saved;
    mx_status st;
} tensor_set;
enum { N_SETS = 2 };

static void *write_set(void *arg)
{
    tensor_set *s = arg;
    s->st = mx_hf_save_shards(s->dir, s->tensors, s->n, &s->opts, &s->arena, &s->saved);
    return NULL;
}

static void make_set(tensor_set *s, const mx_ckpt *c, const char *dir, const char *stem)
{
    *s = (tensor_set){.c = c, .dir = dir};
    snprintf(s->step, sizeof s->step, "%" PRId64, c->snap.step);
    s->meta[0] = (mx_st_pair){"run", c->opts.run_id};
    s->meta[1] = (mx_st_pair){"step", s->step};
    s->opts = (mx_hf_save_opts){.stem = stem,
                                .max_shard_bytes = c->opts.max_shard_bytes,
                                .n_threads = c->opts.n_threads,
                                .metadata = s->meta,
                                .n_metadata = 2,
                                .writer = {.io = c->opts.io,
                                           .fetch = c->snap.from.fetch,
                                           .fetch_ctx = c->snap.from.fetch_ctx}};
    if (c->opts.comm) {
        s->opts.rank = c->opts.comm->rank;
        s->opts.n_ranks = c->opts.comm->size;
    }
}

static int make_sets(tensor_set *set, const mx_ckpt *c, const char *dir)
{
    const mx_ckpt_snapshot *s = &c->snap;
    make_set(&set[0], c, dir, "model");
    make_set(&set[1], c, dir, "optimizer");
    set[0].tensors = s->weights;
    set[0].n = s->n_weights;
    set[1].tensors = s->optimizer;
    set[1].n = s->n_optimizer;
    set[1].opts.first_rank = 1; /* small states are two files: let two ranks write them */
    return 1 + (s->n_optimizer > 0);
}

static mx_status write_tensors(const mx_ckpt *c, tensor_set *set, int n_sets)
{
    pthread_t second;
    bool two = n_sets > 1, threaded = two && c->opts.n_threads > 1 &&
                                      !pthread_create(&second, NULL, write_set, &set[1]);
    write_set(&set[0]);
    if (threaded)
        pthread_join(second, NULL);
    else if (two && !set[0].st)
        write_set(&set[1]);
    return mx_status_join(set[0].st, set[1].st);
}

static mx_status write_boxes(const mx_ckpt *c, tensor_set *set, int n_sets)
{
    mx_hf_boxes b[N_SETS];
    mx_status st = MX_OK;
    for (int k = 0; k < n_sets; k++) {
        b[k] = (mx_hf_boxes){.dir = set[k].dir, .opts = &set[k].opts, .saved = &set[k].saved};
        mx_hf_boxes_plan(&b[k], set[k].tensors, set[k].n, &set[k].arena);
    }
    for (int phase = MX_BOXES_BEGIN; phase <= MX_BOXES_END && !st; phase++) {
        for (int k = 0; k < n_sets && !st; k++)
            st = mx_hf_boxes_do(&b[k], (mx_hf_boxes_phase)phase);
        st = mx_ckpt_agree(c, st);
    }
    return st;
}

/* What the others wrote, for the manifest: each shard's record comes from its rank. */
static mx_status share_records(const mx_ckpt *c, tensor_set *set, int n_sets)
{
    for (int k = 0; k < n_sets && c->opts.comm; k++)
        for (int i = 0; i < set[k].saved.n_shards; i++) {
            mx_hf_shard *s = &set[k].saved.shards[i];
            int from = mx_hf_shard_rank(&set[k].opts, i);
            MX_TRY(mx_comm_broadcast(c->opts.comm, &s->st, sizeof s->st, from));
            MX_TRY(mx_comm_broadcast(c->opts.comm, set[k].saved.digests + s->first,
                                     sizeof(mx_digest) * (size_t)s->count, from));
        }
    return MX_OK;
}

static mx_status write_extras(const mx_ckpt *c, const char *dir, json_t *files)
{
    const mx_ckpt_snapshot *s = &c->snap;
    for (int i = 0; i < s->n_extras; i++) {
        uint64_t size;
        mx_digest digest;
        MX_TRY(mx_hf_save_extra(dir, &s->extras[i], c->opts.io, &size, &digest));
        mx_manifest_add_file(files, s->extras[i].name, size, digest);
    }
    return MX_OK;
}

/* What other ranks say they wrote must be here: a folder that machines do not share, or a file
 * system that forgets, would otherwise be a checkpoint with holes. */
static mx_status check_arrived(const char *dir, const tensor_set *set)
{
    mx_str path = {0};
    mx_status st = MX_OK;
    for (int i = 0; i < set->saved.n_shards && !st; i++) {
        const mx_hf_shard *s = &set->saved.shards[i];
        int rank = mx_hf_shard_rank(&set->opts, i);
        struct stat sb;
        mx_str_clear(&path);
        mx_str_addf(&path, "%s/%s", dir, s->name);
        if (rank != set->opts.rank &&
            (stat(path.text, &sb) || (uint64_t)sb.st_size != s->st.size_bytes))
            st = mx_fail(MX_DEVICE,
                         "%s: rank %d has written it and rank 0 does not see it whole; all ranks "
                         "must have the run's folder in common",
                         path.text, rank);
    }
    mx_str_fini(&path);
    return st;
}

/* Takes `files`. */
static mx_status write_manifest(const mx_ckpt *c, const char *dir, tensor_set *set, int n_sets,
                                json_t *files)
{
    mx_manifest_head head = {c->opts.run_id, c->snap.step, c->snap.metric};
    mx_status st = MX_OK;
    for (int k = 0; k < n_sets && !st; k++) {
        MX_TRY_OUT(st, check_arrived(dir, &set[k]));
        st = mx_hf_save_index(dir, set[k].tensors, &set[k].opts, &set[k].arena, &set[k].saved);
        if (!st)
            mx_manifest_add_shards(files, &set[k].saved, set[k].tensors);
    }
out:
    if (st) {
        json_decref(files);
        return st;
    }
    MX_TRY(mx_manifest_write(c->opts.io, dir, &head, files));
    return mx_io_sync_dir(c->opts.io, dir);
}

/* Every rank's files, then, when all are there, rank 0's manifest. */
static mx_status write_folder(const mx_ckpt *c, const char *dir)
{
    tensor_set set[N_SETS];
    int n_sets = make_sets(set, c, dir);
    json_t *files = json_object();
    mx_status st = mx_ckpt_leads(c) ? write_extras(c, dir, files) : MX_OK;
    if (c->opts.boxes)
        st = mx_ckpt_agree(c, st);
    if (!st)
        st = c->opts.boxes ? write_boxes(c, set, n_sets) : write_tensors(c, set, n_sets);
    if (!c->opts.boxes)
        st = mx_ckpt_agree(c, st);
    if (!st)
        st = share_records(c, set, n_sets);
    if (!st && mx_ckpt_leads(c))
        st = write_manifest(c, dir, set, n_sets, files);
    else
        json_decref(files);
    for (int k = 0; k < N_SETS; k++)
        mx_arena_fini(&set[k].arena);
    return st;
}

static mx_status check_room(const mx_ckpt *c)
{
    const mx_io *io = c->opts.io;
    uint64_t need = c->snap.n_bytes + SLACK_BYTES, room = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (io->free_bytes(io->ctx, c->root, &room))
            return mx_fail_errno(MX_DEVICE, "%s: cannot ask for the free space", c->root);
        if (room >= need)
            return MX_OK;
        if (pass == 0) /* what retention may take anyway is taken now */
            mx_status_free(mx_retention_apply(io, c->root, &c->opts.retention));
    }
    char a[32], b[32];
    return mx_fail(MX_DEVICE,
                   "%s: checkpoint %" PRId64 " needs %s and %s are free; make room, or "
                   "keep fewer checkpoints",
                   c->root, c->snap.step, mx_format_bytes(a, sizeof a, (double)need),
                   mx_format_bytes(b, sizeof b, (double)room));
}

/* The step's name may be taken: by a checkpoint that turned out damaged (the run fell back and has
 * come by again), which makes way; or by a whole one, which is never overwritten. */
static mx_status make_way(const mx_ckpt *c, const char *target)
{
    struct stat s;
    if (lstat(target, &s))
        return errno == ENOENT ? MX_OK : mx_fail_errno(MX_DEVICE, "%s", target);
    mx_status bad = mx_ckpt_verify(target, MX_CHECK_HASHES, c->opts.n_threads);
    if (!bad)
        return mx_fail(MX_USAGE,
                       "%s is there already and whole; a committed checkpoint is not "
                       "overwritten",
                       target);
    if (mx_status_code(bad) == MX_MEMORY) /* it may be whole */
        return bad;
    mx_status_free(bad);
    return mx_retention_remove(c->opts.io, c->root, c->snap.step);
}

/* Saving twice at one step (periodic and final) is one save: the manifests are the same. */
static bool is_there_already(const mx_ckpt *c, const char *tmp, const char *target)
{
    json_t *x = NULL, *y = NULL;
    mx_status st = mx_manifest_read(tmp, &x);
    if (!st)
        st = mx_manifest_read(target, &y);
    bool same = !st && json_equal(x, y);
    if (same)
        st = mx_manifest_check(target, y, MX_CHECK_HASHES, c->opts.n_threads);
    same = same && !st;
    mx_status_free(st);
    json_decref(x);
    json_decref(y);
    return same;
}

static mx_status commit(const mx_ckpt *c, const char *tmp, const char *target)
{
    const mx_io *io = c->opts.io;
    if (is_there_already(c, tmp, target))
        return mx_io_remove_tree(io, tmp);
    MX_TRY(make_way(c, target));
    if (io->rename(io->ctx, tmp, target))
        return mx_fail_errno(MX_DEVICE, "%s: cannot rename to %s", tmp, target);
    return mx_io_sync_dir(io, c->root);
}

static mx_status make_folder(const mx_ckpt *c, const char *tmp)
{
    const mx_io *io = c->opts.io;
    MX_TRY(check_room(c));
    MX_TRY(mx_io_remove_tree(io, tmp));
    if (io->mkdir(io->ctx, tmp, 0755))
        return mx_fail_errno(MX_DEVICE, "%s: cannot create the directory", tmp);
    return MX_OK;
}

mx_status mx_ckpt_write(const mx_ckpt *c)
{
    mx_arena a = {0};
    const char *tmp =
        mx_arena_printf(&a, "%s/.tmp-%" PRId64 "-%" PRId64, c->root, c->snap.step, c->writer_id);
    const char *target = mx_arena_printf(&a, "%s/%" PRId64, c->root, c->snap.step);
    bool made = false;
    mx_status st = mx_ckpt_leads(c) ? make_folder(c, tmp) : MX_OK;
    MX_TRY_OUT(st, mx_ckpt_agree(c, st));
    made = mx_ckpt_leads(c);
    st = write_folder(c, tmp);
    if (!st && mx_ckpt_leads(c))
        st = commit(c, tmp, target);
    st = mx_ckpt_agree(c, st); /* a rank that failed before says so again; its words are the same */
out:
    if (st && made)
        mx_status_free(mx_io_remove_tree(c->opts.io, tmp)); /* else the next start sweeps it */
    mx_arena_fini(&a);
    return st;
}

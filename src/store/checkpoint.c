/* checkpoint.c - snapshot, writer thread, commit.
 *
 * Order of a write (each step is durable before the next begins):
 *     room on the disk? -> files of the checkpoint, each fsynced and renamed to its name
 *     -> manifest.json likewise -> fsync(tmp folder) -> rename(tmp, STEP) -> fsync(checkpoints)
 *     -> retention.
 * A crash before the rename leaves a .tmp folder nobody reads; a crash after it leaves a whole
 * checkpoint. Weights and optimizer are written by two threads at once: one hashes while the other
 * waits for the disk.
 */
#include "store/checkpoint.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/json_doc.h"
#include "base/str.h"
#include "store/checkpoint_read.h"
#include "store/manifest.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { COPY_PIECE_BYTES = 4 << 20, BLOCK = 4096 };
static const uint64_t SLACK_BYTES = 4 << 20; /* headers, manifest, directory blocks */

typedef struct {
    mx_arena arena; /* names, texts, file contents */
    int64_t step;
    double metric;
    mx_st_source *weights, *optimizer;
    int64_t n_weights, n_optimizer;
    mx_hf_extra *extras; /* state.json is the last */
    int n_extras;
    uint64_t n_bytes;  /* of everything */
    mx_st_writer from; /* fetch, for tensors that could not be copied */
} snapshot;

typedef enum { IDLE, READY, WRITING } phase;

struct mx_ckpt {
    mx_arena arena;
    mx_ckpt_opts opts;
    const char *root; /* RUN/checkpoints */
    snapshot snap;
    void *memory; /* owns: the snapshot's tensors; kept between saves */
    char *buffer; /* in it, on a disk block */
    int64_t writer_id; /* in the names of folders being written: rank 0's process */
    size_t buffer_bytes;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, stopping;
    phase phase;
    double write_began;
    mx_ckpt_status status;
};

/* --- ranks ---------------------------------------------------------------------------------- */
/* Rank 0 makes the folder, writes the small files and commits. */
static bool leads(const mx_ckpt *c)
{
    return !c->opts.comm || c->opts.comm->rank == 0;
}

static mx_status agree(const mx_ckpt *c, mx_status st)
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
    const snapshot *s = &c->snap;
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
    const snapshot *s = &c->snap;
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
    mx_status st = leads(c) ? write_extras(c, dir, files) : MX_OK;
    if (!st)
        st = write_tensors(c, set, n_sets);
    st = agree(c, st);
    if (!st)
        st = share_records(c, set, n_sets);
    if (!st && leads(c))
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

static mx_status write_checkpoint(const mx_ckpt *c)
{
    mx_arena a = {0};
    const char *tmp =
        mx_arena_printf(&a, "%s/.tmp-%" PRId64 "-%" PRId64, c->root, c->snap.step, c->writer_id);
    const char *target = mx_arena_printf(&a, "%s/%" PRId64, c->root, c->snap.step);
    bool made = false;
    mx_status st = leads(c) ? make_folder(c, tmp) : MX_OK;
    MX_TRY_OUT(st, agree(c, st));
    made = leads(c);
    st = write_folder(c, tmp);
    if (!st && leads(c))
        st = commit(c, tmp, target);
    st = agree(c, st); /* a rank that failed before says so again; its words are the same */
out:
    if (st && made)
        mx_status_free(mx_io_remove_tree(c->opts.io, tmp)); /* else the next start sweeps it */
    mx_arena_fini(&a);
    return st;
}

/* Writes the snapshot, records how it went, then lets retention remove what it may. Called without
 * the lock. */
static void write_and_record(mx_ckpt *c)
{
    double began = mx_clock_now();
    mx_status st = write_checkpoint(c);
    pthread_mutex_lock(&c->lock);
    mx_ckpt_status *s = &c->status;
    s->last_write_s = mx_clock_now() - began;
    snprintf(s->error, sizeof s->error, "%s", mx_status_text(st));
    if (st) {
        s->n_failed++;
    } else {
        s->n_failed = 0;
        s->n_written++;
        s->last_step = c->snap.step;
        s->last_bytes = c->snap.n_bytes;
    }
    pthread_mutex_unlock(&c->lock);
    mx_status warning = st || !leads(c)
                            ? MX_OK
                            : mx_retention_apply(c->opts.io, c->root, &c->opts.retention);
    pthread_mutex_lock(&c->lock);
    snprintf(s->warning, sizeof s->warning, "%s", mx_status_text(warning));
    c->phase = IDLE;
    s->writing = false;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    mx_status_free(st);
    mx_status_free(warning);
}

static void *writer(void *arg)
{
    mx_ckpt *c = arg;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->phase != READY && !c->stopping)
            pthread_cond_wait(&c->changed, &c->lock);
        if (c->phase != READY)
            break;
        c->phase = WRITING;
        pthread_mutex_unlock(&c->lock);
        write_and_record(c);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Signals belong to the run's own threads: the writer is never interrupted. */
static bool start_writer(mx_ckpt *c)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    c->has_thread = !pthread_create(&c->thread, NULL, writer, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return c->has_thread;
}

/* --- the snapshot --------------------------------------------------------------------------- */
/* A copy, in the order the tensors will have in their files: widest element first. */
static mx_st_source *copy_sources(mx_arena *a, const mx_st_source *in, int64_t n)
{
    mx_st_source *out = MX_NEW_N(a, mx_st_source, n);
    int64_t k = 0;
    for (int bytes = 8; bytes; bytes /= 2)
        for (int64_t i = 0; i < n; i++)
            if (mx_st_dtype_bytes(in[i].dtype) == bytes) {
                out[k] = in[i];
                out[k++].name = mx_arena_strdup(a, in[i].name);
            }
    return out;
}

static mx_status check_names(const mx_st_source *t, int64_t n, const char *what)
{
    json_t *seen = json_object();
    mx_status st = MX_OK;
    for (int64_t i = 0; i < n && !st; i++) {
        if (json_object_get(seen, t[i].name))
            st = mx_fail(MX_USAGE, "two %s tensors are called %s", what, t[i].name);
        else if (json_object_set_new(seen, t[i].name, json_true()))
            st = mx_fail(MX_USAGE, "a %s tensor's name is not valid UTF-8: %s", what, t[i].name);
    }
    json_decref(seen);
    return st;
}

/* Names and small files; the tensors still point at the caller's data. */
static mx_status describe(mx_ckpt *c, const mx_ckpt_request *r)
{
    snapshot *s = &c->snap;
    mx_arena_fini(&s->arena);
    *s = (snapshot){.step = r->step, .metric = r->metric};
    s->from = (mx_st_writer){.fetch = r->fetch, .fetch_ctx = r->fetch_ctx};
    MX_ASSERT(r->step >= 0 && r->n_weights > 0, "step %" PRId64, r->step);
    mx_st_source *weights;
    int64_t n_weights = mx_hf_split_stacks(r->weights, r->n_weights, &s->arena, &weights);
    MX_TRY(check_names(weights, n_weights, "weight"));
    MX_TRY(check_names(r->optimizer, r->n_optimizer, "optimizer"));
    json_t *state;
    MX_TRY(mx_json_parse(r->state_json, strlen(r->state_json), "state.json", NULL, &state));
    bool is_object = json_is_object(state);
    json_decref(state);
    if (!is_object)
        return mx_fail(MX_USAGE, "the state to be saved must be a JSON object");
    s->weights = copy_sources(&s->arena, weights, n_weights);
    s->optimizer = copy_sources(&s->arena, r->optimizer, r->n_optimizer);
    s->n_weights = n_weights;
    s->n_optimizer = r->n_optimizer;
    s->extras = MX_NEW_N(&s->arena, mx_hf_extra, r->n_extras + 1);
    for (int i = 0; i < r->n_extras; i++) {
        mx_hf_extra *e = &s->extras[s->n_extras++];
        *e = r->extras[i];
        e->name = mx_arena_strdup(&s->arena, e->name);
        if (e->data)
            e->data = mx_arena_copy(&s->arena, e->data, e->n_bytes);
        else
            e->from = mx_arena_strdup(&s->arena, e->from);
        s->n_bytes += e->n_bytes;
    }
    size_t n = strlen(r->state_json);
    s->extras[s->n_extras++] = (mx_hf_extra){
        .name = "state.json", .data = mx_arena_strdup(&s->arena, r->state_json), .n_bytes = n};
    for (int64_t i = 0; i < s->n_weights + s->n_optimizer; i++)
        s->n_bytes +=
            mx_st_source_bytes(i < s->n_weights ? &s->weights[i] : &s->optimizer[i - s->n_weights]);
    return MX_OK;
}

/* Where each tensor lies in the buffer: packed as in its file, each file's first on a disk block.
 * Gives the size of the whole. */
static size_t place(mx_ckpt *c, size_t *at)
{
    snapshot *s = &c->snap;
    mx_arena a = {0};
    mx_hf_save_opts o = {.max_shard_bytes = c->opts.max_shard_bytes};
    size_t end = 0;
    for (int set = 0; set < 2; set++) {
        const mx_st_source *t = set ? s->optimizer : s->weights;
        int64_t n = set ? s->n_optimizer : s->n_weights;
        mx_hf_saved plan = {0};
        mx_hf_plan_shards(t, n, &o, &a, &plan);
        for (int k = 0; k < plan.n_shards; k++) {
            end = (end + BLOCK - 1) / BLOCK * BLOCK;
            for (int64_t i = plan.shards[k].first; i < plan.shards[k].first + plan.shards[k].count;
                 i++) {
                at[set ? s->n_weights + i : i] = end;
                end += (size_t)mx_st_source_bytes(&t[i]);
            }
        }
    }
    mx_arena_fini(&a);
    return end;
}

static mx_status make_buffer(mx_ckpt *c, size_t need)
{
    if (need <= c->buffer_bytes)
        return MX_OK;
    mx_free(c->memory);
    c->memory = NULL;
    c->buffer_bytes = 0;
    MX_TRY(mx_alloc(&c->memory, need + BLOCK, "the copy of the run's state that is saved"));
    c->buffer = (char *)(((uintptr_t)c->memory + BLOCK - 1) / BLOCK * BLOCK);
    c->buffer_bytes = need;
    return MX_OK;
}

typedef struct {
    char *to;
    const char *from;
    size_t n;
} copy_piece;

/* Copies every tensor into the buffer, in pieces over the threads, and points the sources there. */
static mx_status copy_tensors(mx_ckpt *c)
{
    snapshot *s = &c->snap;
    int64_t total = s->n_weights + s->n_optimizer, n_pieces = 0, cap = 0;
    size_t *at = MX_NEW_N(&s->arena, size_t, total);
    MX_TRY(make_buffer(c, place(c, at)));
    copy_piece *pieces = NULL;
    mx_status st = MX_OK;
    for (int64_t i = 0; i < total && !st; i++) {
        mx_st_source *t = i < s->n_weights ? &s->weights[i] : &s->optimizer[i - s->n_weights];
        size_t bytes = (size_t)mx_st_source_bytes(t);
        char *to = c->buffer + at[i];
        if (!t->data && bytes) {
            MX_ASSERT(s->from.fetch, "%s has neither data nor a fetch function", t->name);
            st = s->from.fetch(s->from.fetch_ctx, t, t->skip, to, bytes);
        }
        for (size_t k = 0; t->data && k < bytes; k += COPY_PIECE_BYTES) {
            MX_GROW(pieces, n_pieces, cap);
            size_t left = bytes - k;
            pieces[n_pieces++] = (copy_piece){to + k, (const char *)t->data + k,
                                              left < COPY_PIECE_BYTES ? left : COPY_PIECE_BYTES};
        }
        if (!st) /* else it is fetched again while writing, and fails there */
            t->data = to;
    }
#pragma omp parallel for schedule(static) num_threads(c->opts.n_threads)
    for (int64_t i = 0; i < n_pieces; i++)
        memcpy(pieces[i].to, pieces[i].from, pieces[i].n);
    mx_free(pieces);
    return st;
}

/* --- the public side ------------------------------------------------------------------------ */
static mx_status open_root(const mx_ckpt *c)
{
    MX_TRY(mx_io_make_dir(c->opts.io, c->root));
    MX_TRY(mx_io_sync_dir(c->opts.io, c->opts.run_dir));
    return mx_retention_sweep(c->opts.io, c->root);
}

mx_status mx_ckpt_new(mx_ckpt **out, const mx_ckpt_opts *opts)
{
    *out = NULL;
    mx_ckpt *c;
    MX_TRY(mx_alloc((void **)&c, sizeof *c, "a checkpoint writer"));
    c->opts = *opts;
    c->opts.run_dir = mx_arena_strdup(&c->arena, opts->run_dir);
    c->opts.run_id = mx_arena_strdup(&c->arena, opts->run_id ? opts->run_id : "");
    if (!c->opts.io)
        c->opts.io = &mx_io_system;
    if (c->opts.n_threads < 1)
        c->opts.n_threads = 2;
    c->root = mx_arena_printf(&c->arena, "%s/checkpoints", opts->run_dir);
    c->status.last_step = -1;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->writer_id = (int64_t)getpid();
    mx_status st = agree(c, leads(c) ? open_root(c) : MX_OK);
    if (!st && opts->comm)
        st = mx_comm_broadcast(opts->comm, &c->writer_id, sizeof c->writer_id, 0);
    if (st)
        mx_ckpt_free(c);
    else
        *out = c;
    return st;
}

static void wait_idle(mx_ckpt *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->phase != IDLE)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

mx_status mx_ckpt_save(mx_ckpt *c, const mx_ckpt_request *r)
{
    double began = mx_clock_now();
    wait_idle(c);
    MX_TRY(mx_status_wrap(describe(c, r), "checkpoint %" PRId64, r->step));
    bool async = !c->opts.synchronous;
    if (async) {
        mx_status st = copy_tensors(c);
        async = !st && (c->has_thread || start_writer(c));
        mx_status_free(st);
    }
    pthread_mutex_lock(&c->lock);
    c->status.writing = true;
    c->status.writing_step = r->step;
    c->write_began = mx_clock_now();
    c->phase = async ? READY : WRITING;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (!async)
        write_and_record(c);
    pthread_mutex_lock(&c->lock);
    c->status.last_stall_s = mx_clock_now() - began;
    c->status.total_stall_s += c->status.last_stall_s;
    pthread_mutex_unlock(&c->lock);
    return MX_OK;
}

mx_status mx_ckpt_reserve(mx_ckpt *c, const mx_ckpt_request *r)
{
    wait_idle(c);
    MX_TRY(mx_status_wrap(describe(c, r), "checkpoints"));
    size_t *at = MX_NEW_N(&c->snap.arena, size_t, c->snap.n_weights + c->snap.n_optimizer);
    return c->opts.synchronous ? MX_OK : make_buffer(c, place(c, at));
}

mx_status mx_ckpt_wait(mx_ckpt *c)
{
    wait_idle(c);
    if (c->status.error[0])
        return mx_fail(MX_DEVICE, "%s", c->status.error);
    return MX_OK;
}

mx_ckpt_status mx_ckpt_poll(mx_ckpt *c)
{
    pthread_mutex_lock(&c->lock);
    mx_ckpt_status s = c->status;
    s.writing_s = s.writing ? mx_clock_now() - c->write_began : 0;
    pthread_mutex_unlock(&c->lock);
    return s;
}

void mx_ckpt_free(mx_ckpt *c)
{
    if (!c)
        return;
    wait_idle(c);
    if (c->has_thread) {
        pthread_mutex_lock(&c->lock);
        c->stopping = true;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
    mx_arena_fini(&c->snap.arena);
    mx_arena_fini(&c->arena);
    mx_free(c->memory);
    mx_free(c);
}

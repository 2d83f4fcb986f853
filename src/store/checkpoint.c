/* checkpoint.c - the copy of the run's state, and the thread that writes it.
 *
 * A save copies what changes from step to step, at memory speed, and returns; the writer thread
 * puts the copy on the disk (checkpoint_write.c) and then lets retention remove what it may.
 */
#include "store/checkpoint_impl.h"

#include "base/clock.h"
#include "base/json_doc.h"
#include "ir/placement.h"
#include "store/checkpoint_read.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COPY_PIECE_BYTES = 4 << 20, BLOCK = 4096 };

/* Writes the snapshot, records how it went, then lets retention remove what it may. Called without
 * the lock. */
static void write_and_record(mx_ckpt *c)
{
    double began = mx_clock_now();
    mx_status st = mx_ckpt_write(c);
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
    mx_status warning = st || !mx_ckpt_leads(c)
                            ? MX_OK
                            : mx_retention_apply(c->opts.io, c->root, &c->opts.retention);
    pthread_mutex_lock(&c->lock);
    snprintf(s->warning, sizeof s->warning, "%s", mx_status_text(warning));
    c->phase = MX_CKPT_IDLE;
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
        while (c->phase != MX_CKPT_READY && !c->stopping)
            pthread_cond_wait(&c->changed, &c->lock);
        if (c->phase != MX_CKPT_READY)
            break;
        c->phase = MX_CKPT_WRITING;
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

static mx_st_source *tensor_of(const mx_ckpt_snapshot *s, int64_t i)
{
    return i < s->n_weights ? &s->weights[i] : &s->optimizer[i - s->n_weights];
}

/* Names and small files; the tensors still point at the caller's data. */
static mx_status describe(mx_ckpt *c, const mx_ckpt_request *r)
{
    mx_ckpt_snapshot *s = &c->snap;
    mx_arena_fini(&s->arena);
    *s = (mx_ckpt_snapshot){.step = r->step, .metric = r->metric};
    s->stem = mx_arena_strdup(&s->arena, r->stem ? r->stem : "model");
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
        s->n_bytes += mx_st_source_bytes(tensor_of(s, i));
    return MX_OK;
}

/* On a mesh the tensors of a stack are parts of one variable, which lies in the buffer once. */
static bool lies_with_the_last(const mx_ckpt_snapshot *s, int64_t i)
{
    const mx_st_source *t = tensor_of(s, i), *last = i > 0 ? tensor_of(s, i - 1) : t;
    return i > 0 && t->box && last->box == t->box && last->user == t->user;
}

/* What of it this rank writes. */
static size_t bytes_here(const mx_st_source *t)
{
    if (!t->box)
        return (size_t)mx_st_source_bytes(t);
    return t->box->first ? mx_type_bytes(t->local) : 0;
}

/* Where each tensor lies in the buffer: packed as in its file, each file's first on a disk block.
 * Gives the size of the whole. */
static size_t place(mx_ckpt *c, size_t *at)
{
    mx_ckpt_snapshot *s = &c->snap;
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
                int64_t each = set ? s->n_weights + i : i;
                bool same = lies_with_the_last(s, each);
                at[each] = same ? at[each - 1] : end;
                end += same ? 0 : bytes_here(&t[i]);
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
    mx_ckpt_snapshot *s = &c->snap;
    int64_t total = s->n_weights + s->n_optimizer, n_pieces = 0, cap = 0;
    size_t *at = MX_NEW_N(&s->arena, size_t, total);
    MX_TRY(make_buffer(c, place(c, at)));
    copy_piece *pieces = NULL;
    mx_status st = MX_OK;
    for (int64_t i = 0; i < total && !st; i++) {
        mx_st_source *t = tensor_of(s, i);
        size_t bytes = lies_with_the_last(s, i) ? 0 : bytes_here(t);
        char *to = c->buffer + at[i];
        if (!t->data && bytes) {
            MX_ASSERT(s->from.fetch, "%s has neither data nor a fetch function", t->name);
            st = s->from.fetch(s->from.fetch_ctx, t, t->box ? 0 : t->skip, to, bytes);
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
    mx_status st = mx_ckpt_agree(c, mx_ckpt_leads(c) ? open_root(c) : MX_OK);
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
    while (c->phase != MX_CKPT_IDLE)
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
    c->phase = async ? MX_CKPT_READY : MX_CKPT_WRITING;
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

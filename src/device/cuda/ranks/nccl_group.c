/* nccl_group.c - groups (group.h) of ranks that are processes with a GPU each, through NCCL.
 *
 * A communicator for each group of axes; its id goes from the first rank to the others by the
 * group's own calls, which need no GPU.
 *
 * Sums in a fixed order are made as virtual ranks make them: every rank sends each other one its
 * slice, adds up what came, in float32 and in the order of ranks, and, for all_reduce, gathers the
 * slices. As many bytes travel as in NCCL's own ring, the bits are those of virtual ranks, and
 * bfloat16 is rounded once instead of at every rank. Where sums may come in any order
 * (deterministic=false), float32 and float64 are left to NCCL, which can use what the network adds
 * up by itself.
 *
 * A rank that is gone leaves the others' kernels waiting for it. So a thread that waits for the
 * stream polls NCCL's own errors and the coordinator's verdict, and aborts: the kernels end, and so
 * does every later call.
 */
#include "device/cuda/ranks/nccl.h"

#include "device/cuda/core/layout.h"
#include "ops/gpu_work.h"
#include <string.h>

enum { LARGE_RUN = 256 << 10 }; /* bytes: runs from here on are gathered where they belong */

typedef struct {
    mx_cuda_group base;
    ncclComm_t comm; /* NULL: aborted */
    char *table;     /* pinned: who has how many rows for whom; NULL: not needed so far */
    size_t table_bytes;
} group;

#define TRY(g, call, what) MX_TRY(mx_nccl_check((g)->base.cuda->nccl, call, (g)->comm, what))

static ncclDataType_t type_of(mx_dtype d)
{
    return d == MX_F32    ? NCCL_FLOAT32
           : d == MX_BF16 ? NCCL_BFLOAT16
           : d == MX_F64  ? NCCL_FLOAT64
                          : NCCL_INT32;
}

static mx_status gone(const group *g)
{
    return g->comm ? MX_OK
                   : mx_fail(MX_DEVICE, "the ranks' connection was given up after an error");
}

/* --- pieces to all ranks --- */

/* What goes to rank k and what comes from it, in bytes. */
typedef struct {
    const char *out;
    char *in;
    int64_t out_bytes, in_bytes;
} move;

/* Every rank's moves at once; `of` says which. */
static mx_status move_all(group *g, move (*of)(const void *ctx, int k), const void *ctx)
{
    const mx_nccl *n = g->base.cuda->nccl;
    cudaStream_t stream = g->base.cuda->stream;
    mx_status st = mx_nccl_check(n, n->ncclGroupStart(), g->comm, "an exchange");
    for (int k = 0; k < g->base.of->size && !st; k++) {
        move m = of(ctx, k);
        if (m.out_bytes)
            st = mx_nccl_check(n, n->ncclSend(m.out, (size_t)m.out_bytes, NCCL_INT8, k, g->comm,
                                              stream), g->comm, "sending");
        if (m.in_bytes && !st)
            st = mx_nccl_check(n, n->ncclRecv(m.in, (size_t)m.in_bytes, NCCL_INT8, k, g->comm,
                                              stream), g->comm, "receiving");
    }
    ncclResult_t r = n->ncclGroupEnd(); /* also where a call inside has failed */
    return st ? st : mx_nccl_check(n, r, g->comm, "an exchange");
}

/* Rows [from, from + rows) of all ranks' pieces come here, one rank after the other. */
static mx_status unpack(group *g, const mx_cuda_pieces *a, int64_t from, int64_t rows)
{
    int n = g->base.of->size;
    mx_cuda_pieces some = *a;
    some.out = (char *)a->out + from * a->run * n;
    some.outer = rows;
    for (int k = 0; k < n; k++)
        MX_TRY(mx_cuda_group_put(g->base.cuda, &some, k, n, (char *)a->work + k * rows * a->run));
    return MX_OK;
}

static mx_status gather_rows(group *g, const mx_cuda_pieces *a)
{
    const mx_nccl *n = g->base.cuda->nccl;
    int64_t fit = (int64_t)MX_GPU_STAGE / (a->run * g->base.of->size);
    for (int64_t at = 0; at < a->outer; at += fit) {
        int64_t rows = a->outer - at < fit ? a->outer - at : fit;
        TRY(g, n->ncclAllGather((const char *)a->in + at * a->run, a->work,
                                (size_t)(rows * a->run), NCCL_INT8, g->comm,
                                g->base.cuda->stream), "all_gather");
        MX_TRY(unpack(g, a, at, rows));
    }
    return MX_OK;
}

static mx_status all_gather(mx_cuda_group *of, const mx_cuda_pieces *a)
{
    group *g = (group *)of;
    const mx_nccl *n = of->cuda->nccl;
    int64_t wide = a->run * of->of->size;
    MX_TRY(gone(g));
    if (a->outer > 1 && a->run < LARGE_RUN)
        return gather_rows(g, a);
    TRY(g, n->ncclGroupStart(), "all_gather");
    ncclResult_t r = NCCL_SUCCESS;
    for (int64_t i = 0; i < a->outer && !r; i++)
        r = n->ncclAllGather((const char *)a->in + i * a->run, (char *)a->out + i * wide,
                             (size_t)a->run, NCCL_INT8, g->comm, of->cuda->stream);
    ncclResult_t end = n->ncclGroupEnd();
    TRY(g, r ? r : end, "all_gather");
    return MX_OK;
}

/* Rows [at, at + rows) of the piece for each rank, and of those that come. */
typedef struct {
    const mx_cuda_pieces *a;
    int64_t at, rows;
    int ranks;
} turn;

static move to_all(const void *ctx, int k)
{
    const turn *t = ctx;
    int64_t piece = t->a->outer * t->a->run, bytes = t->rows * t->a->run;
    return (move){(const char *)t->a->in + k * piece + t->at * t->a->run,
                  (char *)t->a->work + k * bytes, bytes, bytes};
}

/* One row, to where it belongs. */
static move to_all_straight(const void *ctx, int k)
{
    const turn *t = ctx;
    int64_t run = t->a->run;
    return (move){(const char *)t->a->in + (k * t->a->outer + t->at) * run,
                  (char *)t->a->out + (t->at * t->ranks + k) * run, run, run};
}

static mx_status all_to_all(mx_cuda_group *of, const mx_cuda_pieces *a)
{
    group *g = (group *)of;
    int ranks = of->of->size;
    bool straight = a->outer == 1 || a->run >= LARGE_RUN;
    int64_t fit = straight ? 1 : (int64_t)MX_GPU_STAGE / (a->run * ranks);
    MX_TRY(gone(g));
    for (turn t = {.a = a, .ranks = ranks}; t.at < a->outer; t.at += fit) {
        t.rows = a->outer - t.at < fit ? a->outer - t.at : fit;
        MX_TRY(move_all(g, straight ? to_all_straight : to_all, &t));
        if (!straight)
            MX_TRY(unpack(g, a, t.at, t.rows));
    }
    return MX_OK;
}

static bool by_nccl(const mx_cuda_group *g, const mx_cuda_reduce *a)
{
    return g->cuda->any_order && (a->dtype == MX_F32 || a->dtype == MX_F64);
}

static ncclRedOp_t op_of(const mx_cuda_reduce *a)
{
    return a->how == MX_REDUCE_MAX ? NCCL_MAX : NCCL_SUM;
}

/* --- sums in the order of ranks --- */

/* `n` elements for each rank, `pitch` apart, are sent from `from`, come to `stage`, and are added
 * up. */
typedef struct {
    const char *from;
    char *stage;
    int64_t n, pitch, item;
    int64_t total; /* elements of all ranks' slices: the last ones may be short */
    int rank;
} slices;

static int64_t slice_of(const slices *s, int k)
{
    int64_t rest = s->total - s->n * k;
    return rest < 0 ? 0 : rest < s->n ? rest : s->n;
}

static move slice_moves(const void *ctx, int k)
{
    const slices *s = ctx;
    int64_t mine = slice_of(s, s->rank) * s->item;
    return (move){s->from + k * s->pitch * s->item, s->stage + k * s->n * s->item,
                  slice_of(s, k) * s->item, mine};
}

/* The second half of the workspace of a sum. */
static char *other_half(const mx_cuda_reduce *a, int64_t pieces)
{
    size_t in = (size_t)(a->outer * a->run * pieces) * mx_dtype_bytes(a->dtype);
    return (char *)a->work + mx_gpu_reduce_bytes(in) / 2;
}

static mx_status sum_slices(group *g, const slices *s, const mx_cuda_reduce *a, void *out)
{
    mx_cuda_buffers from;
    mx_cuda_reduce one = *a;
    MX_TRY(move_all(g, slice_moves, s));
    for (int k = 0; k < g->base.of->size; k++)
        from.at[k] = s->stage + k * s->n * s->item;
    one.out = out;
    one.outer = 1;
    one.run = slice_of(s, s->rank);
    return mx_cuda_group_sum(g->base.cuda, &one, &from, g->base.of->size, one.run);
}

/* Rows [at, at + rows) of all ranks' pieces, one rank after the other. */
static mx_status pack(group *g, const mx_cuda_reduce *a, int64_t at, int64_t rows, int64_t item)
{
    int n = g->base.of->size;
    for (int k = 0; k < n; k++) {
        mx_cuda_rows r = {.dst = (char *)a->work + k * rows * a->run * item,
                          .src = (const char *)a->in + (at * n + k) * a->run * item,
                          .dst_pitch = a->run * item, .src_pitch = n * a->run * item,
                          .width = a->run * item, .rows = rows};
        MX_TRY(mx_cuda_check(mx_cuda_copy_rows(&r, g->base.cuda->stream), "a copy"));
    }
    return MX_OK;
}

/* Rows are short: several at once are packed, sent and added up. */
static mx_status reduce_rows(group *g, const mx_cuda_reduce *a, int64_t fit, int64_t item)
{
    int n = g->base.of->size;
    char *stage = other_half(a, n);
    for (int64_t at = 0; at < a->outer; at += fit) {
        int64_t rows = a->outer - at < fit ? a->outer - at : fit;
        slices s = {.from = a->work, .stage = stage, .n = rows * a->run, .pitch = rows * a->run,
                    .item = item, .total = rows * a->run * n, .rank = g->base.of->rank};
        MX_TRY(pack(g, a, at, rows, item));
        MX_TRY(sum_slices(g, &s, a, (char *)a->out + at * a->run * item));
    }
    return MX_OK;
}

/* Parts of one row, from where they lie. */
static mx_status reduce_row(group *g, const mx_cuda_reduce *a, int64_t row, int64_t item)
{
    int n = g->base.of->size;
    int64_t fit = (int64_t)MX_GPU_STAGE / (n * item) / 16 * 16;
    for (int64_t at = 0; at < a->run; at += fit) {
        int64_t some = a->run - at < fit ? a->run - at : fit;
        slices s = {.from = (const char *)a->in + (row * n * a->run + at) * item,
                    .stage = a->work, .n = some, .pitch = a->run, .item = item,
                    .total = some * n, .rank = g->base.of->rank};
        MX_TRY(sum_slices(g, &s, a, (char *)a->out + (row * a->run + at) * item));
    }
    return MX_OK;
}

static mx_status reduce_scatter(mx_cuda_group *of, const mx_cuda_reduce *a)
{
    group *g = (group *)of;
    const mx_nccl *n = of->cuda->nccl;
    int64_t item = (int64_t)mx_dtype_bytes(a->dtype);
    int64_t fit = a->run ? (int64_t)MX_GPU_STAGE / (a->run * item * of->of->size) : 0;
    MX_TRY(gone(g));
    if (by_nccl(of, a) && a->outer == 1) {
        TRY(g, n->ncclReduceScatter(a->in, a->out, (size_t)a->run, type_of(a->dtype), op_of(a),
                                    g->comm, of->cuda->stream), "reduce_scatter");
        return MX_OK;
    }
    if (fit > 1 && a->outer > 1)
        return reduce_rows(g, a, fit, item);
    for (int64_t row = 0; row < a->outer; row++)
        MX_TRY(reduce_row(g, a, row, item));
    return MX_OK;
}

/* A slice's sum on each rank, then all ranks' slices. */
static mx_status all_reduce(mx_cuda_group *of, const mx_cuda_reduce *a)
{
    group *g = (group *)of;
    const mx_nccl *n = of->cuda->nccl;
    int64_t item = (int64_t)mx_dtype_bytes(a->dtype), ranks = of->of->size;
    int64_t fit = (int64_t)MX_GPU_STAGE / item / (16 * ranks) * (16 * ranks);
    MX_TRY(gone(g));
    if (by_nccl(of, a)) {
        TRY(g, n->ncclAllReduce(a->in, a->out, (size_t)a->run, type_of(a->dtype), op_of(a),
                                g->comm, of->cuda->stream), "all_reduce");
        return MX_OK;
    }
    for (int64_t at = 0; at < a->run; at += fit) {
        int64_t some = a->run - at < fit ? a->run - at : fit, each = (some + ranks - 1) / ranks;
        char *sums = other_half(a, 1), *out = (char *)a->out + at * item;
        slices s = {.from = (const char *)a->in + at * item, .stage = a->work, .n = each,
                    .pitch = each, .item = item, .total = some, .rank = of->of->rank};
        MX_TRY(sum_slices(g, &s, a, sums + each * of->of->rank * item));
        TRY(g, n->ncclAllGather(sums + each * of->of->rank * item, sums, (size_t)(each * item),
                                NCCL_INT8, g->comm, of->cuda->stream), "all_reduce");
        MX_TRY(mx_cuda_check(cudaMemcpyAsync(out, sums, (size_t)(some * item),
                                             cudaMemcpyDeviceToDevice, of->cuda->stream),
                             "a copy"));
    }
    return MX_OK;
}

/* --- round the ring --- */

typedef struct {
    const void *in;
    void *out;
    int64_t bytes;
    int to, from;
} ring;

static move shift_moves(const void *ctx, int k)
{
    const ring *r = ctx;
    return (move){r->in, r->out, k == r->to ? r->bytes : 0, k == r->from ? r->bytes : 0};
}

static mx_status shift(mx_cuda_group *of, const void *in, void *out, size_t bytes, int by)
{
    group *g = (group *)of;
    int n = of->of->size, rank = of->of->rank;
    ring r = {in, out, (int64_t)bytes, ((rank + by) % n + n) % n, ((rank - by) % n + n) % n};
    MX_TRY(gone(g));
    return move_all(g, shift_moves, &r);
}

/* --- rows of experts --- */

/* The table on the host, where counts of sends are needed. */
static mx_status read_table(group *g, const mx_cuda_expert_rows *s)
{
    mx_cuda *c = g->base.cuda;
    size_t bytes = sizeof *s->table * (size_t)s->ranks * (size_t)(s->experts + 1);
    if (bytes > g->table_bytes) {
        cudaFreeHost(g->table);
        g->table = NULL;
        g->table_bytes = 0;
        MX_TRY(mx_cuda_check(cudaHostAlloc((void **)&g->table, bytes, cudaHostAllocDefault),
                             "pinned memory"));
        g->table_bytes = bytes;
    }
    MX_TRY(mx_cuda_check(cudaMemcpyAsync(g->table, s->table, bytes, cudaMemcpyDeviceToHost,
                                         c->stream), "rows of experts"));
    return mx_cuda_wait(c, NULL);
}

/* Rows between x, where a rank's lie together, and `by_rank`, where those of this rank's experts
 * do. */
typedef struct {
    const mx_cuda_exchange *a;
    const int32_t *table;
    char *by_rank;
} traffic;

static const int32_t *starts_of(const traffic *t, int rank, int expert_rank)
{
    const mx_cuda_expert_rows *s = &t->a->rows;
    return t->table + (int64_t)rank * (s->experts + 1) +
           (int64_t)expert_rank * (s->experts / s->ranks);
}

/* Where the rows that came from rank k begin in by_rank. */
static int64_t before(const traffic *t, int k)
{
    int mine = t->a->rows.experts / t->a->rows.ranks;
    int64_t n = 0;
    for (int r = 0; r < k; r++) {
        const int32_t *s = starts_of(t, r, t->a->rows.index);
        n += s[mine] - s[0];
    }
    return n;
}

static move row_moves(const void *ctx, int k)
{
    const traffic *t = ctx;
    const mx_cuda_expert_rows *s = &t->a->rows;
    int mine = s->experts / s->ranks;
    const int32_t *own = starts_of(t, s->index, k), *theirs = starts_of(t, k, s->index);
    char *x = (char *)t->a->x + own[0] * s->row_bytes;
    char *y = t->by_rank + before(t, k) * s->row_bytes;
    int64_t x_bytes = (own[mine] - own[0]) * s->row_bytes;
    int64_t y_bytes = (theirs[mine] - theirs[0]) * s->row_bytes;
    return t->a->back ? (move){y, x, y_bytes, x_bytes} : (move){x, y, x_bytes, y_bytes};
}

/* by_rank to rows by expert, or back: as between peers, whose tokens are counted from the first. */
static mx_status regroup(group *g, const traffic *t)
{
    const mx_cuda_expert_rows *s = &t->a->rows;
    mx_cuda_buffers from;
    for (int k = 0; k < s->ranks; k++)
        from.at[k] = t->by_rank + (before(t, k) - starts_of(t, k, s->index)[0]) * s->row_bytes;
    return mx_cuda_check(mx_cuda_expert_move(s, t->a->y, &from, t->a->back, t->a->work,
                                             g->base.cuda->stream), "rows of experts");
}

static mx_status exchange(mx_cuda_group *of, const mx_cuda_exchange *a)
{
    group *g = (group *)of;
    traffic t = {.a = a, .by_rank = (char *)a->work +
                                    mx_gpu_aligned_bytes(a->rows.experts + 1, sizeof(int32_t))};
    MX_TRY(gone(g));
    MX_TRY(read_table(g, &a->rows));
    t.table = (const int32_t *)g->table;
    MX_TRY(mx_cuda_group_fits(&a->rows, t.table));
    if (!a->back)
        MX_TRY(move_all(g, row_moves, &t));
    else /* rows of no expert */
        MX_TRY(mx_cuda_check(cudaMemsetAsync(a->x, 0, (size_t)(a->n * a->rows.row_bytes),
                                             of->cuda->stream), "clearing"));
    MX_TRY(regroup(g, &t));
    return a->back ? move_all(g, row_moves, &t) : MX_OK;
}

/* --- errors, beginning and end --- */

static mx_status poll(mx_cuda_group *of)
{
    group *g = (group *)of;
    ncclResult_t error = NCCL_SUCCESS;
    MX_TRY(gone(g));
    if (of->of->kind->check)
        MX_TRY(of->of->kind->check(of->of));
    TRY(g, of->cuda->nccl->ncclCommGetAsyncError(g->comm, &error), "asking for errors");
    if (error == NCCL_IN_PROGRESS)
        return MX_OK;
    TRY(g, error, "between ranks");
    return MX_OK;
}

static void abort_comm(mx_cuda_group *of)
{
    group *g = (group *)of;
    if (g->comm)
        of->cuda->nccl->ncclCommAbort(g->comm);
    g->comm = NULL;
}

static void close_group(mx_cuda_group *of)
{
    group *g = (group *)of;
    if (g->comm)
        of->cuda->nccl->ncclCommDestroy(g->comm);
    if (g->table)
        cudaFreeHost(g->table);
    mx_free(g);
}

static const mx_cuda_group_kind kind = {.name = "nccl",
                                        .all_gather = all_gather,
                                        .all_to_all = all_to_all,
                                        .reduce_scatter = reduce_scatter,
                                        .all_reduce = all_reduce,
                                        .shift = shift,
                                        .exchange = exchange,
                                        .poll = poll,
                                        .abort = abort_comm,
                                        .close = close_group};

/* Every rank says whether it has NCCL, and the first one the id. */
typedef struct {
    bool ready;
    ncclUniqueId id;
} note;

static mx_status agree(mx_process_group *of, mx_status mine, ncclUniqueId *id)
{
    note own = {.ready = !mine, .id = *id}, *heard = mx_realloc(NULL, sizeof *heard *
                                                                          (size_t)of->size);
    mx_status st = of->kind->all_gather(of, &own, heard, sizeof own);
    *id = heard[0].id;
    for (int k = 0; k < of->size && !st && !mine; k++)
        if (!heard[k].ready)
            st = mx_fail(MX_DEVICE, "rank %d of the group has no NCCL", k);
    mx_free(heard);
    mx_status_free(mine ? st : NULL);
    return mine ? mine : st;
}

mx_status mx_nccl_group_open(mx_cuda_group **out, mx_cuda *c, mx_process_group *of)
{
    ncclUniqueId id = {{0}};
    *out = NULL;
    mx_status st = mx_nccl_open(c);
    if (!st && of->rank == 0)
        st = mx_nccl_check(c->nccl, c->nccl->ncclGetUniqueId(&id), NULL, "an id for ranks");
    MX_TRY(agree(of, st, &id));
    group *g = mx_realloc(NULL, sizeof *g);
    *g = (group){.base = {.kind = &kind, .cuda = c, .of = of}};
    st = mx_nccl_check(c->nccl, c->nccl->ncclCommInitRank(&g->comm, of->size, id, of->rank), NULL,
                       "joining the ranks");
    if (st)
        mx_free(g);
    else
        *out = &g->base;
    return st;
}

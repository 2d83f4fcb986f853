/* peers.c - groups (group.h) of ranks that are threads of this process and share a GPU.
 *
 * Every rank has a stream of its own and reads the others' buffers where they lie. A collective has
 * two meetings. Before the first a rank records an event after what it has made; the group's own
 * all_gather, on the host, carries the address of its buffer and the event to the others, whose
 * streams wait for it. After its copies or sums a rank records another: before a rank goes on, and
 * perhaps writes over its buffer, its stream waits for all who read it. So the GPU never stands
 * still for the host, and a wait is only ever for work that was issued before it: there is no order
 * of streams in which that locks up.
 */
#include "device/cuda/ranks/group.h"

#include "base/arena.h"
#include <string.h>

/* What a rank says in a meeting. */
typedef struct {
    void *at;
    cudaEvent_t event;
} note;

typedef struct {
    mx_cuda_group base;
    cudaEvent_t event[2]; /* in turn: the others may still have to wait for the last one */
    unsigned meetings;
    note *heard; /* by rank */
    mx_cuda_buffers buffers;
} peers;

enum { WHOLE_SUMS = 1 << 16 }; /* elements: shorter vectors are added up by every rank itself */

/* Returns when every rank has come here, its buffer in p->buffers. */
static mx_status meet(peers *p, const void *mine)
{
    mx_process_group *g = p->base.of;
    cudaStream_t stream = p->base.cuda->stream;
    note own = {(void *)mine, p->event[p->meetings++ % 2]};
    MX_TRY(mx_cuda_kernel_time_end(p->base.cuda));
    MX_TRY(mx_cuda_check(cudaEventRecord(own.event, stream), "an event"));
    MX_TRY(g->kind->all_gather(g, &own, p->heard, sizeof own));
    for (int k = 0; k < g->size; k++) {
        p->buffers.at[k] = p->heard[k].at;
        if (k != g->rank)
            MX_TRY(mx_cuda_check(cudaStreamWaitEvent(stream, p->heard[k].event, 0), "an event"));
    }
    return mx_cuda_kernel_time_begin(p->base.cuda);
}

/* All copies and sums are issued: no rank goes on before they are made. */
static mx_status part(peers *p)
{
    return meet(p, NULL);
}

static void move_on(mx_cuda_buffers *b, int n, int64_t bytes)
{
    for (int k = 0; k < n; k++)
        b->at[k] = (char *)b->at[k] + bytes;
}

/* The pieces that begin at `from` in each rank's buffer. */
static mx_status put_all(peers *p, const mx_cuda_pieces *a, int64_t from)
{
    mx_cuda_join s = {.n = p->base.of->size, .outer = a->outer, .run = a->run};
    move_on(&p->buffers, s.n, from);
    MX_TRY(mx_cuda_check(mx_cuda_join_buffers(a->out, &p->buffers, &s, p->base.cuda->stream),
                         "a copy between ranks"));
    return part(p);
}

static mx_status all_gather(mx_cuda_group *g, const mx_cuda_pieces *a)
{
    peers *p = (peers *)g;
    MX_TRY(meet(p, a->in));
    return put_all(p, a, 0);
}

static mx_status all_to_all(mx_cuda_group *g, const mx_cuda_pieces *a)
{
    peers *p = (peers *)g;
    MX_TRY(meet(p, a->in));
    return put_all(p, a, a->outer * a->run * g->of->rank);
}

static mx_status reduce_scatter(mx_cuda_group *g, const mx_cuda_reduce *a)
{
    peers *p = (peers *)g;
    int64_t item = (int64_t)mx_dtype_bytes(a->dtype);
    int n = g->of->size;
    MX_TRY(meet(p, a->in));
    move_on(&p->buffers, n, a->run * g->of->rank * item);
    MX_TRY(mx_cuda_group_sum(g->cuda, a, &p->buffers, n, a->run * n));
    return part(p);
}

/* Elements [rank * each, ...) of a vector, for each rank. */
static int64_t share_of(int64_t n, int64_t each, int rank)
{
    int64_t rest = n - each * rank;
    return rest < 0 ? 0 : rest < each ? rest : each;
}

/* Each rank makes the sum of its slice and copies the others': so the vector is read three times,
 * not as often as there are ranks. */
static mx_status reduce_slices(peers *p, const mx_cuda_reduce *a)
{
    mx_process_group *g = p->base.of;
    int64_t item = (int64_t)mx_dtype_bytes(a->dtype);
    int64_t each = ((a->run + g->size - 1) / g->size + 15) / 16 * 16;
    mx_cuda_reduce slice = *a;
    slice.out = (char *)a->out + each * g->rank * item;
    slice.run = share_of(a->run, each, g->rank);
    move_on(&p->buffers, g->size, each * g->rank * item);
    MX_TRY(mx_cuda_group_sum(p->base.cuda, &slice, &p->buffers, g->size, slice.run));
    MX_TRY(meet(p, a->out));
    for (int k = 0; k < g->size; k++) {
        int64_t at = each * k * item, bytes = share_of(a->run, each, k) * item;
        mx_cuda_pieces one = {.out = (char *)a->out + at, .outer = 1, .run = bytes};
        if (k != g->rank && bytes)
            MX_TRY(mx_cuda_group_put(p->base.cuda, &one, 0, 1, (char *)p->buffers.at[k] + at));
    }
    return part(p);
}

static mx_status all_reduce(mx_cuda_group *g, const mx_cuda_reduce *a)
{
    peers *p = (peers *)g;
    MX_TRY(meet(p, a->in));
    if (a->run > WHOLE_SUMS && g->of->size > 2)
        return reduce_slices(p, a);
    MX_TRY(mx_cuda_group_sum(g->cuda, a, &p->buffers, g->of->size, a->run));
    return part(p);
}

static mx_status shift(mx_cuda_group *g, const void *in, void *out, size_t bytes, int by)
{
    peers *p = (peers *)g;
    int n = g->of->size, from = ((g->of->rank - by) % n + n) % n;
    mx_cuda_pieces one = {.out = out, .outer = 1, .run = (int64_t)bytes};
    MX_TRY(meet(p, in));
    MX_TRY(mx_cuda_group_put(g->cuda, &one, 0, 1, p->buffers.at[from]));
    return part(p);
}

/* The table is read on the host only where rows may be too many. */
static mx_status check_room(mx_cuda_group *g, const mx_cuda_exchange *a)
{
    const mx_cuda_expert_rows *s = &a->rows;
    size_t bytes = sizeof *s->table * (size_t)s->ranks * (size_t)(s->experts + 1);
    void *table = NULL;
    if (s->room >= a->n * s->ranks)
        return MX_OK;
    MX_TRY(mx_alloc(&table, bytes, "rows of experts"));
    mx_status st = mx_cuda_check(cudaMemcpyAsync(table, s->table, bytes, cudaMemcpyDeviceToHost,
                                                 g->cuda->stream), "rows of experts");
    if (!st)
        st = mx_cuda_check(cudaStreamSynchronize(g->cuda->stream), "a step on the GPU");
    if (!st)
        st = mx_cuda_group_fits(s, table);
    mx_free(table);
    return st;
}

/* Each rank takes the rows of its experts from the tokens' ranks, and later puts them back there.
 */
static mx_status exchange(mx_cuda_group *g, const mx_cuda_exchange *a)
{
    peers *p = (peers *)g;
    MX_TRY(check_room(g, a));
    if (a->back) /* rows of no expert */
        MX_TRY(mx_cuda_check(cudaMemsetAsync(a->x, 0, (size_t)(a->n * a->rows.row_bytes),
                                             g->cuda->stream), "clearing"));
    MX_TRY(meet(p, a->x));
    MX_TRY(mx_cuda_check(mx_cuda_expert_move(&a->rows, a->y, &p->buffers, a->back, a->work,
                                             g->cuda->stream), "rows of experts"));
    return part(p);
}

/* The events stay: another rank may be about to wait for one. */
static void close_peers(mx_cuda_group *g)
{
    peers *p = (peers *)g;
    mx_free(p->heard);
    mx_free(p);
}

static const mx_cuda_group_kind kind = {.name = "peers",
                                        .all_gather = all_gather,
                                        .all_to_all = all_to_all,
                                        .reduce_scatter = reduce_scatter,
                                        .all_reduce = all_reduce,
                                        .shift = shift,
                                        .exchange = exchange,
                                        .close = close_peers};

mx_status mx_cuda_peers_open(mx_cuda_group **out, mx_cuda *c, mx_process_group *of)
{
    peers *p = mx_realloc(NULL, sizeof *p);
    *p = (peers){.base = {.kind = &kind, .cuda = c, .of = of}};
    p->heard = mx_realloc(NULL, sizeof *p->heard * (size_t)of->size);
    mx_status st = MX_OK;
    for (int i = 0; i < 2 && !st; i++)
        st = mx_cuda_check(cudaEventCreateWithFlags(&p->event[i], cudaEventDisableTiming),
                           "an event");
    if (st)
        close_peers(&p->base);
    *out = st ? NULL : &p->base;
    return st;
}

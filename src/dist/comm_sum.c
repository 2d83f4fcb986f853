/* comm_sum.c - sums of long vectors over all ranks of a communicator.
 *
 * The vector is cut into one slice a rank: slice s of each goes to rank s, which adds them up in
 * the order of ranks, ((x0 + x1) + x2) + ..., and sends the sum to all. Each rank sends and
 * receives 2 (R-1)/R of the vector, as in a ring, and the order of additions is one for every
 * element.
 */
#include "dist/comm.h"

#include <string.h>

enum { STAGE_NUMBERS = 4 << 20, MIN_SLICE = 16 << 10 };

/* Moves numbers [at, at + n) of the spans into `stage`, or back out of it. */
static void stage_spans(const mx_span *spans, int n_spans, int64_t at, int64_t n, float *stage,
                        bool back)
{
    int64_t start = 0;
    for (int i = 0; i < n_spans; start += spans[i++].n) {
        int64_t from = at > start ? at : start;
        int64_t end = at + n < start + spans[i].n ? at + n : start + spans[i].n;
        if (from >= end)
            continue;
        float *here = spans[i].data + (from - start), *there = stage + (from - at);
        memcpy(back ? here : there, back ? there : here, sizeof(float) * (size_t)(end - from));
    }
}

static int64_t slice_of(int64_t n, int64_t slice, int r)
{
    int64_t rest = n - slice * r;
    return rest < 0 ? 0 : rest < slice ? rest : slice;
}

/* The sum of one slice: the others' in `arrived`, this rank's own in `sum`. */
static void add_up(const mx_comm *c, float *sum, int64_t n)
{
    if (c->rank != 0 && n) {
        memcpy(c->arrived + c->slice * c->rank, sum, sizeof(float) * (size_t)n);
        memcpy(sum, c->arrived, sizeof(float) * (size_t)n);
    }
    for (int r = 1; r < c->size; r++) {
        const float *x = c->arrived + c->slice * r;
        for (int64_t i = 0; i < n; i++)
            sum[i] += x[i];
    }
}

/* n numbers of the stage, cut into slices. */
static mx_status sum_stage(mx_comm *c, int64_t n)
{
    int64_t slice = (n + c->size - 1) / c->size, mine = slice_of(n, slice, c->rank);
    float *sum = c->stage + slice * c->rank;
    int k = 0;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank)
            c->moves[k++] = (mx_comm_move){
                .rank = r, .out = c->stage + slice * r, .in = c->arrived + c->slice * r,
                .out_bytes = sizeof(float) * (size_t)slice_of(n, slice, r),
                .in_bytes = sizeof(float) * (size_t)mine};
    MX_TRY(mx_comm_exchange(c, "sum", c->moves, k));
    add_up(c, sum, mine);
    for (int i = 0; i < k; i++) {
        mx_comm_move *m = &c->moves[i];
        *m = (mx_comm_move){.rank = m->rank, .out = sum, .in = c->stage + slice * m->rank,
                            .out_bytes = m->in_bytes, .in_bytes = m->out_bytes};
    }
    return mx_comm_exchange(c, "share", c->moves, k);
}

/* The first time, so that nothing is allocated later. */
static mx_status reserve(mx_comm *c, int64_t total)
{
    int64_t most = STAGE_NUMBERS / c->size, need = (total + c->size - 1) / c->size;
    c->slice = need < most ? need : most;
    c->slice = c->slice > MIN_SLICE ? c->slice : MIN_SLICE;
    size_t bytes = sizeof(float) * (size_t)(c->slice * c->size);
    MX_TRY(mx_alloc((void **)&c->stage, bytes, "sums over ranks"));
    return mx_alloc((void **)&c->arrived, bytes, "sums over ranks");
}

mx_status mx_comm_sum_f32(mx_comm *c, const mx_span *spans, int n_spans)
{
    int64_t total = 0;
    if (c->size == 1)
        return MX_OK;
    if (c->kind->sum_f32)
        return c->kind->sum_f32(c, spans, n_spans);
    for (int i = 0; i < n_spans; i++)
        total += spans[i].n;
    if (!c->arrived)
        MX_TRY(reserve(c, total));
    int64_t room = c->slice * c->size;
    for (int64_t at = 0; at < total; at += room) {
        int64_t n = total - at < room ? total - at : room;
        stage_spans(spans, n_spans, at, n, c->stage, false);
        MX_TRY(sum_stage(c, n));
        stage_spans(spans, n_spans, at, n, c->stage, true);
    }
    return MX_OK;
}

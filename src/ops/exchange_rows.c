/* exchange_rows.c - rows of tokens to the ranks of their experts and back (expert parallelism).
 *
 * M rows of this rank, sorted by expert; E experts, of which each of the R ranks of the group has
 * E / R, in order; a buffer of C rows.
 *     exchange_plan  start (E + 1)             ->  table (R, E + 1), start (E / R + 1),
 *                                                  by rank (E + 1)
 *     exchange_rows  x (M, *)  table           ->  (C, *)
 *     return_rows    y (C, *)  table           ->  (M, *)
 * The table is every rank's starts. What a rank receives lies by expert, and inside an expert by
 * the rank it came from; the second output says where its experts begin, the third where those rows
 * of each of them begin that came from each rank. Rows beyond the last are 0, and so are, on the
 * way back, rows that belong to no expert. Each of the two is the other's gradient.
 *
 * Counts differ from rank to rank and from step to step. A buffer that is too small (C is less than
 * the worst case) ends the run with what to change: nothing is dropped.
 */
#include "ops.h"
#include "ops/collective.h"
#include "ops/copy.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"

#include <string.h>

enum { MX_INPUTS_EXCHANGE_ROWS };

enum { MAX_RANKS = 1024 };

/* --- the plan --- */

static void infer_plan(mx_graph *g, mx_node *n)
{
    const mx_collective_attr *a = n->attr;
    int64_t experts = n->in[0]->type.dim[0] - 1;
    if (n->in[0]->type.dtype != MX_I32 || n->in[0]->type.ndim != 1 || experts % a->size ||
        a->size > MAX_RANKS)
        mx_graph_fail_inputs(g, n, "%lld experts for %lld ranks; expected int32 starts of a "
                             "multiple, and at most %d ranks", (long long)experts,
                             (long long)a->size, MAX_RANKS);
    n->type = mx_type_of(MX_I32, MX_SHAPE(a->size, experts + 1));
    n->more[0] = mx_type_of(MX_I32, MX_SHAPE(experts / a->size + 1));
    n->more[1] = mx_type_of(MX_I32, MX_SHAPE(experts + 1));
}

static void plan_cpu(const mx_call *c)
{
    const mx_collective_attr *a = c->attr;
    int64_t width = c->in[0].type.dim[0], mine = (width - 1) / a->size;
    int32_t *table = c->out[0].data, *start = c->out[1].data, *by_rank = c->out[2].data, at = 0;
    if (c->group)
        mx_call_fail(c, c->group->kind->all_gather(c->group, c->in[0].data, table,
                                                   sizeof *table * (size_t)width));
    else
        memcpy(table, c->in[0].data, sizeof *table * (size_t)width);
    for (int64_t e = 0; e <= mine; e++) {
        start[e] = at;
        for (int64_t r = 0; r < a->size && e < mine; r++) {
            const int32_t *s = table + r * width + a->index * mine + e;
            by_rank[e * a->size + r] = at;
            at += s[1] - s[0];
        }
    }
    by_rank[width - 1] = at;
}

mx_node *mx_exchange_plan_rows(mx_graph *g, mx_node *start, mx_collective_attr a)
{
    return MX_APPLY(g, &mx_op_exchange_plan, &a, start);
}

/* Some numbers for each expert: nothing beside the rows. */
static mx_cost plan_cost(const mx_node *n)
{
    (void)n;
    return (mx_cost){0};
}

const mx_op mx_op_exchange_plan = {
    .name = "exchange_plan",
    .doc = "how many rows go to each expert from each rank",
    .dtypes = MX_INDICES,
    MX_COLLECTIVE_OP,
    .n_out = 3,
    .infer = infer_plan,
    .cost = plan_cost,
    .cpu = plan_cpu,
    .cases = (const mx_case[]){{1, {{1, {5}, MX_I32, 0, 1}}, &(mx_collective_attr){.size = 1}},
                               {0}},
};

/* --- rows --- */

/* Bytes of rows between the ranks: of this rank's own tokens, and of its experts. */
typedef struct {
    int64_t own_at[MAX_RANKS], own_bytes[MAX_RANKS];   /* by the rank of the expert */
    int64_t here_at[MAX_RANKS], here_bytes[MAX_RANKS]; /* by the rank of the token */
    int64_t rows_here;
} traffic;

static void count(const mx_call *c, const int32_t *table, int64_t width, size_t row, traffic *t)
{
    const mx_collective_attr *a = c->attr;
    int64_t mine = (width - 1) / a->size;
    t->rows_here = 0;
    for (int64_t r = 0; r < a->size; r++) {
        const int32_t *own = table + a->index * width + r * mine;
        const int32_t *theirs = table + r * width + a->index * mine;
        t->own_at[r] = own[0] * (int64_t)row;
        t->own_bytes[r] = (own[mine] - own[0]) * (int64_t)row;
        t->here_at[r] = t->rows_here * (int64_t)row;
        t->here_bytes[r] = (theirs[mine] - theirs[0]) * (int64_t)row;
        t->rows_here += theirs[mine] - theirs[0];
    }
}

/* Rows by (rank, expert) into (expert, rank), or back. */
static void regroup(const mx_call *c, const int32_t *table, int64_t width, size_t row,
                    char *by_rank, char *by_expert, bool back)
{
    const mx_collective_attr *a = c->attr;
    int64_t mine = (width - 1) / a->size, first = a->index * mine, at = 0;
    for (int64_t e = 0; e < mine; e++)
        for (int64_t r = 0, before = 0; r < a->size; r++) {
            const int32_t *s = table + r * width + first;
            int64_t n = s[e + 1] - s[e], in_rank = before + s[e] - s[0];
            char *x = by_rank + (size_t)in_rank * row, *y = by_expert + (size_t)at * row;
            memcpy(back ? x : y, back ? y : x, (size_t)n * row);
            before += s[mine] - s[0];
            at += n;
        }
}

static bool fits(const mx_call *c, const traffic *t, int64_t room)
{
    if (t->rows_here <= room)
        return true;
    const mx_collective_attr *a = c->attr;
    mx_call_fail(c, mx_fail(MX_DEVICE,
                            "the experts of rank %lld of %lld would get %lld rows, and there is "
                            "room for %lld: raise ragged_buffer_factor, or leave it at -1 for the "
                            "most there can be",
                            (long long)a->index, (long long)a->size, (long long)t->rows_here,
                            (long long)room));
    return false;
}

static void exchange_cpu(const mx_call *c)
{
    const mx_collective_attr *a = c->attr;
    const int32_t *table = c->in[EXCHANGE_TABLE].data;
    int64_t width = c->in[EXCHANGE_TABLE].type.dim[1], room = c->out[0].type.dim[0];
    size_t row = mx_dims_after_bytes(&c->in[EXCHANGE_X].type, 0);
    char *came = c->work, *out = c->out[0].data;
    traffic t;
    count(c, table, width, row, &t);
    bool enough = fits(c, &t, room);
    if (!enough)
        return;
    if (c->group)
        mx_call_fail(c, c->group->kind->exchange(
                            c->group, &(mx_exchange_args){c->in[EXCHANGE_X].data, came, t.own_at,
                                                          t.own_bytes, t.here_at, t.here_bytes}));
    else
        memcpy(came, c->in[EXCHANGE_X].data, (size_t)t.here_bytes[0]);
    regroup(c, table, width, row, came, out, false);
    memset(out + (size_t)t.rows_here * row, 0, (size_t)(room - t.rows_here) * row);
    (void)a;
}

static void return_cpu(const mx_call *c)
{
    const int32_t *table = c->in[EXCHANGE_TABLE].data;
    int64_t width = c->in[EXCHANGE_TABLE].type.dim[1], rows = c->out[0].type.dim[0];
    size_t row = mx_dims_after_bytes(&c->in[EXCHANGE_X].type, 0);
    char *sent = c->work, *out = c->out[0].data;
    traffic t;
    count(c, table, width, row, &t);
    if (!fits(c, &t, c->in[EXCHANGE_X].type.dim[0]))
        return;
    memset(out, 0, (size_t)rows * row);
    regroup(c, table, width, row, sent, c->in[EXCHANGE_X].data, true);
    if (c->group)
        mx_call_fail(c, c->group->kind->exchange(
                            c->group, &(mx_exchange_args){sent, out, t.here_at, t.here_bytes,
                                                          t.own_at, t.own_bytes}));
    else
        memcpy(out, sent, (size_t)t.here_bytes[0]);
}

static void infer_rows(mx_graph *g, mx_node *n)
{
    const mx_collective_attr *a = n->attr;
    n->type = n->in[EXCHANGE_X]->type;
    n->type.dim[0] = a->to;
    if (n->type.ndim < 1 || n->in[EXCHANGE_TABLE]->type.ndim != 2)
        mx_graph_fail_inputs(g, n, "expected rows (M, *) and a table of starts");
}

static size_t exchange_work(const mx_node *n, int n_threads)
{
    (void)n_threads;
    return mx_type_bytes(&n->type);
}

static size_t return_work(const mx_node *n, int n_threads)
{
    (void)n_threads;
    return mx_type_bytes(&n->in[EXCHANGE_X]->type);
}

static size_t gpu_work_bytes(const mx_node *n, const mx_type *rows)
{
    return mx_gpu_exchange_bytes(n->in[EXCHANGE_TABLE]->type.dim[1] - 1, mx_type_bytes(rows));
}

static size_t exchange_gpu_work(const mx_node *n, size_t most)
{
    (void)most;
    return gpu_work_bytes(n, &n->type);
}

static size_t return_gpu_work(const mx_node *n, size_t most)
{
    (void)most;
    return gpu_work_bytes(n, &n->in[EXCHANGE_X]->type);
}

/* As many rows as a rank has of its own go out when experts are even. */
static mx_cost row_cost(const mx_node *n)
{
    const mx_type *in = &n->in[EXCHANGE_X]->type;
    double rows = (double)(in->dim[0] < n->type.dim[0] ? in->dim[0] : n->type.dim[0]);
    return (mx_cost){.bytes = 4 * rows * (double)mx_dims_after_bytes(in, 0)};
}

mx_node *mx_exchange_rows(mx_graph *g, mx_node *x, mx_node *table, mx_collective_attr a)
{
    return MX_APPLY(g, &mx_op_exchange_rows, &a, x, table);
}

mx_node *mx_return_rows(mx_graph *g, mx_node *y, mx_node *table, mx_collective_attr a)
{
    return MX_APPLY(g, &mx_op_return_rows, &a, y, table);
}

static void exchange_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_collective_attr a = *(const mx_collective_attr *)n->attr;
    a.to = n->in[EXCHANGE_X]->type.dim[0];
    din[EXCHANGE_X] = mx_return_rows(g, dout[0], n->in[EXCHANGE_TABLE], a);
}

static void return_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_collective_attr a = *(const mx_collective_attr *)n->attr;
    a.to = n->in[EXCHANGE_X]->type.dim[0];
    din[EXCHANGE_X] = mx_exchange_rows(g, dout[0], n->in[EXCHANGE_TABLE], a);
}

#define ROWS_OP MX_COLLECTIVE_OP, .infer = infer_rows, .cost = row_cost
#define ROWS_CASES                                                                                 \
    (const mx_case[]){{2, {{2, {3, 4}}, {2, {1, 3}, MX_I32, 0, 1}},                                \
                       &(mx_collective_attr){.size = 1, .to = 3}}, {0}}
const mx_op mx_op_exchange_rows = {
    .name = "exchange_rows",
    .doc = "rows to the ranks of their experts",
    .dtypes = MX_ANY_DTYPE,
    ROWS_OP,
    .grad = exchange_vjp,
    .cpu = exchange_cpu,
    .work_bytes = exchange_work,
    .gpu_work_bytes = exchange_gpu_work,
    .cases = ROWS_CASES,
};

const mx_op mx_op_return_rows = {
    .name = "return_rows",
    .doc = "rows of experts back to their tokens' ranks",
    .dtypes = MX_ANY_DTYPE,
    ROWS_OP,
    .grad = return_vjp,
    .cpu = return_cpu,
    .work_bytes = return_work,
    .gpu_work_bytes = return_gpu_work,
    .cases = ROWS_CASES,
};

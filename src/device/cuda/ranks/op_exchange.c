/* op_exchange.c - rows of tokens to the ranks of their experts and back (src/ops/exchange_rows.c),
 * on the group of their step (group.h). */
#include "device/cuda/ranks/group.h"

#include "ops/collective.h"
#include "ops/copy.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"

enum { MX_INPUTS_EXCHANGE_ROWS };

static mx_cuda_expert_rows rows_of(const mx_exec_step *s, const mx_tensor *table)
{
    const mx_collective_attr *a = s->call.attr;
    return (mx_cuda_expert_rows){.table = table->data, .ranks = (int)a->size,
                                 .index = (int)a->index, .experts = (int)table->type.dim[1] - 1};
}

/* --- the plan --- */

static mx_status prepare_plan(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)work;
    return mx_cuda_group_prepare(c, s, state);
}

static mx_status plan(mx_cuda *c, const mx_exec_step *s, void *state)
{
    mx_cuda_group *g = state;
    mx_tensor *out = s->call.out;
    int64_t bytes = (int64_t)mx_type_bytes(&s->call.in[0].type);
    mx_cuda_pieces q = {.in = s->call.in[0].data, .out = out[0].data, .outer = 1, .run = bytes};
    if (g)
        MX_TRY(g->kind->all_gather(g, &q));
    else
        MX_TRY(mx_cuda_group_put(c, &q, 0, 1, q.in));
    mx_cuda_expert_rows r = rows_of(s, &out[0]);
    return mx_cuda_check(mx_cuda_expert_starts(&r, out[1].data, out[2].data, c->stream),
                         "rows of experts");
}

/* --- rows --- */

static mx_cuda_exchange exchange_of(const mx_exec_step *s, bool back)
{
    const mx_tensor *in = &s->call.in[EXCHANGE_X], *out = &s->call.out[0];
    const mx_tensor *x = back ? out : in, *y = back ? in : out;
    mx_cuda_exchange q = {.rows = rows_of(s, &s->call.in[EXCHANGE_TABLE]),
                          .x = x->data,
                          .y = y->data,
                          .n = x->type.dim[0],
                          .back = back,
                          .work = s->call.work};
    q.rows.room = y->type.dim[0];
    q.rows.row_bytes = (int64_t)mx_dims_after_bytes(&in->type, 0);
    return q;
}

static mx_status prepare_rows(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work,
                              bool back)
{
    mx_cuda_exchange q = exchange_of(s, back);
    *work = mx_gpu_exchange_bytes(q.rows.experts, (size_t)(q.rows.room * q.rows.row_bytes));
    return mx_cuda_group_prepare(c, s, state);
}

static mx_status prepare_there(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    return prepare_rows(c, s, state, work, false);
}

static mx_status prepare_back(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    return prepare_rows(c, s, state, work, true);
}

/* Alone: the rows of all experts lie as they came. */
static mx_status move_here(mx_cuda *c, const mx_cuda_exchange *q)
{
    mx_cuda_buffers own = {.at = {q->x}};
    if (q->back)
        MX_TRY(mx_cuda_check(cudaMemsetAsync(q->x, 0, (size_t)(q->n * q->rows.row_bytes),
                                             c->stream), "clearing"));
    return mx_cuda_check(mx_cuda_expert_move(&q->rows, q->y, &own, q->back, q->work, c->stream),
                         "rows of experts");
}

static mx_status move(mx_cuda *c, const mx_exec_step *s, mx_cuda_group *g, bool back)
{
    mx_cuda_exchange q = exchange_of(s, back);
    return g ? g->kind->exchange(g, &q) : move_here(c, &q);
}

static mx_status exchange_rows(mx_cuda *c, const mx_exec_step *s, void *state)
{
    return move(c, s, state, false);
}

static mx_status return_rows(mx_cuda *c, const mx_exec_step *s, void *state)
{
    return move(c, s, state, true);
}

const mx_cuda_op mx_cuda_op_exchange_plan = {"exchange_plan", prepare_plan, plan,
                                             mx_cuda_group_drop};
const mx_cuda_op mx_cuda_op_exchange_rows = {"exchange_rows", prepare_there, exchange_rows,
                                             mx_cuda_group_drop};
const mx_cuda_op mx_cuda_op_return_rows = {"return_rows", prepare_back, return_rows,
                                           mx_cuda_group_drop};

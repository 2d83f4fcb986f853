/* op_collective.c - the ops in which ranks take part together, on the group of their step
 * (group.h), and those that put a rank's part in order (shard, reorder, sum_in_order). */
#include "device/cuda/ranks/group.h"

#include "device/cuda/core/layout.h"
#include "ops/collective.h"
#include "ops/copy.h"
#include "ops/gpu_work.h"
#include "ops/reorder.h"

typedef mx_status call_on(mx_cuda_group *g, const mx_exec_step *s);

static mx_status copy_all(mx_cuda *c, const mx_exec_step *s)
{
    const mx_tensor *x = &s->call.in[0];
    return mx_cuda_check(cudaMemcpyAsync(s->call.out[0].data, x->data, mx_type_bytes(&x->type),
                                         cudaMemcpyDeviceToDevice, c->stream), "a copy");
}

/* The state of a step is its group; NULL: this rank is alone. */
static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state, call_on *call)
{
    return state ? call(state, s) : copy_all(c, s);
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work_bytes)
{
    (void)work_bytes;
    return mx_cuda_group_prepare(c, s, state);
}

static size_t bytes_in(const mx_exec_step *s)
{
    return mx_type_bytes(&s->call.in[0].type);
}

/* A piece of dim d: `outer` runs. */
static mx_cuda_pieces gather_of(const mx_exec_step *s, const mx_type *piece, int d)
{
    return (mx_cuda_pieces){.in = s->call.in[0].data, .out = s->call.out[0].data,
                            .outer = mx_dims_before(piece, d),
                            .run = piece->dim[d] * (int64_t)mx_dims_after_bytes(piece, d),
                            .work = s->call.work};
}

/* --- all_gather --- */

static mx_status prepare_gather(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    const mx_collective_attr *a = s->call.attr;
    bool packed = mx_pieces_are_packed(&s->call.in[0].type, (int)a->dim);
    *work = mx_gpu_gather_bytes(mx_type_bytes(&s->call.out[0].type), packed);
    return prepare(c, s, state, work);
}

static mx_status gather_on(mx_cuda_group *g, const mx_exec_step *s)
{
    const mx_collective_attr *a = s->call.attr;
    mx_cuda_pieces q = gather_of(s, &s->call.in[0].type, (int)a->dim);
    return g->kind->all_gather(g, &q);
}

static mx_status all_gather(mx_cuda *c, const mx_exec_step *s, void *state)
{
    return launch(c, s, state, gather_on);
}

/* --- all_to_all: a piece of dim `to` for each rank, first packed --- */

static mx_status prepare_all_to_all(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    *work = mx_gpu_all_to_all_bytes(bytes_in(s));
    return prepare(c, s, state, work);
}

static mx_status pack(mx_cuda *c, const mx_exec_step *s, const mx_type *piece, int d, int ranks)
{
    int64_t run = piece->dim[d] * (int64_t)mx_dims_after_bytes(piece, d);
    int64_t bytes = (int64_t)mx_type_bytes(piece);
    for (int k = 0; k < ranks; k++) {
        mx_cuda_rows r = {.dst = (char *)s->call.work + k * bytes,
                          .src = (const char *)s->call.in[0].data + k * run, .dst_pitch = run,
                          .src_pitch = run * ranks, .width = run, .rows = mx_dims_before(piece, d)};
        MX_TRY(mx_cuda_check(mx_cuda_copy_rows(&r, c->stream), "a copy"));
    }
    return MX_OK;
}

static mx_status all_to_all_on(mx_cuda_group *g, const mx_exec_step *s)
{
    const mx_collective_attr *a = s->call.attr;
    mx_type piece = s->call.in[0].type;
    piece.dim[a->to] /= a->size;
    mx_cuda_pieces q = gather_of(s, &piece, (int)a->dim);
    MX_TRY(pack(g->cuda, s, &piece, (int)a->to, (int)a->size));
    q.in = s->call.work;
    q.work = (char *)s->call.work + mx_gpu_aligned_bytes((int64_t)bytes_in(s), 1);
    return g->kind->all_to_all(g, &q);
}

static mx_status all_to_all(mx_cuda *c, const mx_exec_step *s, void *state)
{
    return launch(c, s, state, all_to_all_on);
}

/* --- sums --- */

static mx_status prepare_sum(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    mx_sum_type t;
    MX_CUDA_NEEDS(mx_cuda_sum_type(s->call.in[0].type.dtype, &t), "sums of this dtype");
    *work = mx_gpu_reduce_bytes(bytes_in(s));
    return prepare(c, s, state, work);
}

static mx_status reduce_scatter_on(mx_cuda_group *g, const mx_exec_step *s)
{
    const mx_collective_attr *a = s->call.attr;
    const mx_type *piece = &s->call.out[0].type;
    int64_t outer = mx_dims_before(piece, (int)a->dim);
    mx_cuda_reduce q = {.in = s->call.in[0].data, .out = s->call.out[0].data, .outer = outer,
                        .run = outer ? mx_type_count(piece) / outer : 0, .dtype = piece->dtype,
                        .work = s->call.work};
    return g->kind->reduce_scatter(g, &q);
}

static mx_status reduce_scatter(mx_cuda *c, const mx_exec_step *s, void *state)
{
    return launch(c, s, state, reduce_scatter_on);
}

static mx_status all_reduce_on(mx_cuda_group *g, const mx_exec_step *s)
{
    const mx_collective_attr *a = s->call.attr;
    const mx_type *t = &s->call.in[0].type;
    mx_cuda_reduce q = {.in = s->call.in[0].data, .out = s->call.out[0].data, .outer = 1,
                        .run = mx_type_count(t), .dtype = t->dtype, .how = (mx_reduction)a->to,
                        .work = s->call.work};
    return g->kind->all_reduce(g, &q);
}

static mx_status all_reduce(mx_cuda *c, const mx_exec_step *s, void *state)
{
    return launch(c, s, state, all_reduce_on);
}

/* --- round the ring --- */

static mx_status shift_on(mx_cuda_group *g, const mx_exec_step *s)
{
    const mx_collective_attr *a = s->call.attr;
    return g->kind->shift(g, s->call.in[0].data, s->call.out[0].data, bytes_in(s), (int)a->to);
}

static mx_status ring_shift(mx_cuda *c, const mx_exec_step *s, void *state)
{
    return launch(c, s, state, shift_on);
}

/* --- this rank's part --- */

static mx_status prepare_nothing(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)s, (void)state, (void)work;
    return MX_OK;
}

static mx_status shard(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const mx_collective_attr *a = s->call.attr;
    const mx_type *y = &s->call.out[0].type;
    int64_t run = y->dim[a->dim] * (int64_t)mx_dims_after_bytes(y, (int)a->dim);
    (void)state;
    mx_cuda_rows r = {.dst = s->call.out[0].data,
                      .src = (const char *)s->call.in[0].data + a->index * run, .dst_pitch = run,
                      .src_pitch = run * a->size, .width = run,
                      .rows = mx_dims_before(y, (int)a->dim)};
    return mx_cuda_check(mx_cuda_copy_rows(&r, c->stream), "a copy");
}

static mx_status reorder(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const mx_type *t = &s->call.in[0].type;
    int d = mx_reorder_dim(s->call.attr);
    int64_t one = (int64_t)mx_dims_after_bytes(t, d), row = t->dim[d] * one;
    (void)state;
    for (int64_t i = 0; i < mx_reorder_count(s->call.attr); i++) {
        mx_reorder_chunk m = mx_reorder_at(s->call.attr, t->dim[d], i);
        mx_cuda_rows r = {.dst = (char *)s->call.out[0].data + m.to * one,
                          .src = (const char *)s->call.in[0].data + m.from * one,
                          .dst_pitch = row, .src_pitch = row, .width = m.size * one,
                          .rows = mx_dims_before(t, d)};
        MX_TRY(mx_cuda_check(mx_cuda_copy_rows(&r, c->stream), "a copy"));
    }
    return MX_OK;
}

static mx_status prepare_in_order(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    mx_sum_type t;
    (void)c, (void)state, (void)work;
    MX_CUDA_NEEDS(mx_cuda_sum_type(s->call.in[0].type.dtype, &t) && t != MX_SUM_I32,
                  "a sum of this dtype");
    return MX_OK;
}

static mx_status sum_in_order(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const mx_tensor *x = &s->call.in[0];
    mx_sum_type t = MX_SUM_F32;
    (void)state, (void)mx_cuda_sum_type(x->type.dtype, &t);
    return mx_cuda_check(mx_cuda_sum_in_order(s->call.out[0].data, x->data, t,
                                              mx_type_count(&x->type), c->stream), "a sum");
}

const mx_cuda_op mx_cuda_op_all_gather = {"all_gather", prepare_gather, all_gather,
                                          mx_cuda_group_drop};
const mx_cuda_op mx_cuda_op_all_to_all = {"all_to_all", prepare_all_to_all, all_to_all,
                                          mx_cuda_group_drop};
const mx_cuda_op mx_cuda_op_reduce_scatter = {"reduce_scatter", prepare_sum, reduce_scatter,
                                              mx_cuda_group_drop};
const mx_cuda_op mx_cuda_op_all_reduce = {"all_reduce", prepare_sum, all_reduce,
                                          mx_cuda_group_drop};
const mx_cuda_op mx_cuda_op_ring_shift = {"ring_shift", prepare, ring_shift, mx_cuda_group_drop};
const mx_cuda_op mx_cuda_op_shard = {"shard", prepare_nothing, shard, NULL};
const mx_cuda_op mx_cuda_op_reorder = {"reorder", prepare_nothing, reorder, NULL};
const mx_cuda_op mx_cuda_op_sum_in_order = {"sum_in_order", prepare_in_order, sum_in_order, NULL};

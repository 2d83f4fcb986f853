/* op_moe.c - mixtures of experts: the graph's ops on the kernels of moe_kernels.h. */
#include "device/cuda/core/context.h"
#include "device/cuda/moe/moe_kernels.h"
#include "ops/inputs.h"

enum { MX_INPUTS_GATHER_LAST };
enum { MX_INPUTS_SCATTER_LAST };
enum { MX_INPUTS_PERMUTE };
enum { MX_INPUTS_GROUPED };
enum { MX_INPUTS_UNPERMUTE };

static mx_moe_type type_of(const mx_tensor *t)
{
    mx_dtype d = t->type.dtype;
    return d == MX_F32 ? MX_MOE_F32 : d == MX_BF16 ? MX_MOE_BF16 : MX_MOE_I32;
}

static int64_t last_of(const mx_type *t)
{
    return t->dim[t->ndim - 1];
}

static int64_t rows_of(const mx_type *t)
{
    return last_of(t) ? mx_type_count(t) / last_of(t) : 0;
}

/* --- choosing --- */

static mx_status prepare_value(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_tensor *out = &s->call.out[0];
    MX_CUDA_NEEDS(mx_is_float(out) || out->type.dtype == MX_I32, "values of this dtype");
    return MX_OK;
}

static mx_status prepare_top_k(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    MX_CUDA_NEEDS(mx_attr_int(s, "k") <= MX_TOP_K_MOST, "so many of the largest");
    return prepare_value(c, s, state, work);
}

static mx_status top_k(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *x = &s->call.in[0], *out = s->call.out;
    return mx_cuda_check(mx_cuda_top_k(out[0].data, out[1].data, x->data, type_of(x),
                                       rows_of(&x->type), last_of(&x->type), mx_attr_int(s, "k"),
                                       c->stream), "top_k");
}

static mx_status prepare_sort(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    MX_CUDA_NEEDS(mx_attr_int(s, "experts") <= MX_EXPERTS_MOST, "so many experts");
    *work = mx_cuda_sort_experts_bytes(mx_type_count(&s->call.in[0].type),
                                       mx_attr_int(s, "experts"));
    return MX_OK;
}

static mx_status sort(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *x = &s->call.in[0], *out = s->call.out;
    return mx_cuda_check(mx_cuda_sort_experts(out[0].data, out[1].data, out[2].data, x->data,
                                              mx_type_count(&x->type), mx_attr_int(s, "experts"),
                                              s->call.work, c->stream), "sort_by_expert");
}

static mx_status prepare_limit(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    MX_CUDA_NEEDS(mx_attr_int(s, "experts") <= MX_EXPERTS_MOST, "so many experts");
    return MX_OK;
}

static mx_status limit(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_type *x = &s->call.in[0].type;
    return mx_cuda_check(mx_cuda_limit_experts(s->call.out[0].data, s->call.in[0].data, x->dim[0],
                                               x->dim[1], mx_attr_int(s, "experts"),
                                               mx_attr_int(s, "capacity"), c->stream),
                         "limit_experts");
}

/* --- moving --- */

static mx_status prepare_any(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)s, (void)state, (void)work;
    return MX_OK;
}

static mx_status gather_last(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *x = &s->call.in[GATHER_X], *y = &s->call.out[0];
    return mx_cuda_check(mx_cuda_gather_last(y->data, x->data, s->call.in[GATHER_INDEX].data,
                                             mx_type_count(&y->type), last_of(&x->type),
                                             last_of(&y->type), (int)mx_dtype_bytes(x->type.dtype),
                                             c->stream), "gather_last");
}

static mx_status scatter_last(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *v = &s->call.in[SCATTER_X], *y = &s->call.out[0];
    return mx_cuda_check(mx_cuda_scatter_last(y->data, s->call.in[SCATTER_INDEX].data, v->data,
                                              type_of(v), rows_of(&y->type), last_of(&y->type),
                                              last_of(&v->type), c->stream),
                         "scatter_last");
}

static mx_status one_hot(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    return mx_cuda_check(mx_cuda_one_hot(s->call.out[0].data, s->call.in[0].data,
                                         mx_type_count(&s->call.in[0].type), mx_attr_int(s, "n"),
                                         c->stream), "one_hot");
}

static mx_status permute_rows(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_type *x = &s->call.in[PERMUTE_X].type;
    int64_t m = s->call.in[PERMUTE_ORDER].type.dim[0];
    return mx_cuda_check(mx_cuda_permute_rows(s->call.out[0].data, s->call.in[PERMUTE_X].data,
                                              s->call.in[PERMUTE_ORDER].data, m, m / x->dim[0],
                                              mx_type_bytes(x) / (size_t)x->dim[0], c->stream),
                         "permute_rows");
}

static mx_status prepare_unpermute(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[UNPERMUTE_X]), "sums of this dtype");
    return MX_OK;
}

static mx_status unpermute_rows(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *x = &s->call.in[UNPERMUTE_X], *y = &s->call.out[0];
    const void *also = s->call.n_in > UNPERMUTE_ALSO ? s->call.in[UNPERMUTE_ALSO].data : NULL;
    return mx_cuda_check(mx_cuda_unpermute_rows(y->data, x->data, also, x->type.dtype == MX_F32,
                                                s->call.in[UNPERMUTE_PLACE].data, y->type.dim[0],
                                                x->type.dim[0], y->type.dim[1], c->stream),
                         "unpermute_rows");
}

static mx_status random_uniform(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    return mx_cuda_check(mx_cuda_random_uniform(s->call.out[0].data, s->call.in[0].data,
                                                (uint64_t)mx_attr_int(s, "stream"),
                                                mx_type_count(&s->call.out[0].type), c->stream),
                         "random_uniform");
}

/* --- GEMMs --- */

static mx_status prepare_grouped(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_tensor *in = s->call.in, *y = &s->call.out[0];
    MX_CUDA_NEEDS(in[GROUPED_A].type.dtype == in[GROUPED_B].type.dtype &&
                      mx_is_float(&in[GROUPED_A]) && mx_is_float(y) &&
                      (!mx_is_f32(&in[GROUPED_A]) || mx_is_f32(y)),
                  "GEMMs of these dtypes");
    return MX_OK;
}

static mx_status grouped_matmul(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *x = &s->call.in[GROUPED_A], *w = &s->call.in[GROUPED_B], *y = &s->call.out[0];
    bool in_out = *(const bool *)mx_attr(s, "in_out");
    mx_grouped_call g = {.kind = in_out ? MX_GROUPED_NN : MX_GROUPED_NT,
                         .experts = w->type.dim[0], .rows = x->type.dim[0], .n = y->type.dim[1],
                         .k = x->type.dim[1], .in_f32 = x->type.dtype == MX_F32,
                         .out_f32 = y->type.dtype == MX_F32, .a = x->data, .b = w->data,
                         .y = y->data, .start = s->call.in[GROUPED_START].data};
    return mx_cuda_check(mx_cuda_grouped(&g, c->stream), "grouped_matmul");
}

static mx_status grouped_outer(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *a = &s->call.in[GROUPED_A], *b = &s->call.in[GROUPED_B], *y = &s->call.out[0];
    mx_grouped_call g = {.kind = MX_GROUPED_TN, .experts = y->type.dim[0],
                         .rows = a->type.dim[0], .m = b->type.dim[1], .n = a->type.dim[1],
                         .in_f32 = a->type.dtype == MX_F32, .out_f32 = y->type.dtype == MX_F32,
                         .a = b->data, .b = a->data, .y = y->data,
                         .start = s->call.in[GROUPED_START].data};
    return mx_cuda_check(mx_cuda_grouped(&g, c->stream), "grouped_outer");
}

const mx_cuda_op mx_cuda_op_top_k = {"top_k", prepare_top_k, top_k, NULL};
const mx_cuda_op mx_cuda_op_sort_by_expert = {"sort_by_expert", prepare_sort, sort, NULL};
const mx_cuda_op mx_cuda_op_limit_experts = {"limit_experts", prepare_limit, limit, NULL};
const mx_cuda_op mx_cuda_op_gather_last = {"gather_last", prepare_value, gather_last, NULL};
const mx_cuda_op mx_cuda_op_scatter_last = {"scatter_last", prepare_value, scatter_last, NULL};
const mx_cuda_op mx_cuda_op_one_hot = {"one_hot", prepare_any, one_hot, NULL};
const mx_cuda_op mx_cuda_op_permute_rows = {"permute_rows", prepare_any, permute_rows, NULL};
const mx_cuda_op mx_cuda_op_unpermute_rows = {"unpermute_rows", prepare_unpermute, unpermute_rows,
                                              NULL};
const mx_cuda_op mx_cuda_op_random_uniform = {"random_uniform", prepare_any, random_uniform, NULL};
const mx_cuda_op mx_cuda_op_grouped_matmul = {"grouped_matmul", prepare_grouped, grouped_matmul,
                                              NULL};
const mx_cuda_op mx_cuda_op_grouped_outer = {"grouped_outer", prepare_grouped, grouped_outer, NULL};

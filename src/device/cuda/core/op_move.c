/* op_move.c - concat, split, slice and pad as strided copies (layout.h). A tensor is (outer, dim,
 * inner) around the dim in question. */
#include "device/cuda/core/context.h"
#include "device/cuda/core/layout.h"

static int dim_of(const mx_exec_step *s, const mx_type *t)
{
    int64_t d = mx_attr_int(s, "dim");
    return (int)(d < 0 ? d + t->ndim : d);
}

/* Elements before and after dim d. */
static int64_t outer_of(const mx_type *t, int d)
{
    int64_t n = 1;
    for (int i = 0; i < d; i++)
        n *= t->dim[i];
    return n;
}

static size_t inner_bytes(const mx_type *t, int d)
{
    size_t n = mx_dtype_bytes(t->dtype);
    for (int i = d + 1; i < t->ndim; i++)
        n *= (size_t)t->dim[i];
    return n;
}

/* `count` entries along d from entry `from` of src to entry `to` of dst. */
static mx_status copy(mx_cuda *c, const mx_tensor *dst, int64_t to, const mx_tensor *src,
                      int64_t from, int64_t count, int d)
{
    int64_t inner = (int64_t)inner_bytes(&src->type, d);
    mx_cuda_rows r = {.dst = (char *)dst->data + inner * to,
                      .src = (const char *)src->data + inner * from,
                      .dst_pitch = inner * dst->type.dim[d], .src_pitch = inner * src->type.dim[d],
                      .width = inner * count, .rows = outer_of(&src->type, d)};
    return mx_cuda_check(mx_cuda_copy_rows(&r, c->stream), "a copy");
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work_bytes)
{
    (void)c, (void)state, (void)work_bytes;
    for (int i = 0; i < s->call.n_in; i++)
        MX_CUDA_NEEDS(s->call.in[i].type.dtype == s->call.out[0].type.dtype, "mixed dtypes");
    return MX_OK;
}

static mx_status concat(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    int d = dim_of(s, &s->call.out[0].type);
    int64_t at = 0;
    for (int i = 0; i < s->call.n_in; i++) {
        MX_TRY(copy(c, &s->call.out[0], at, &s->call.in[i], 0, s->call.in[i].type.dim[d], d));
        at += s->call.in[i].type.dim[d];
    }
    return MX_OK;
}

static mx_status split(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    int d = s->call.in[0].type.ndim - 1;
    int64_t at = 0;
    for (int k = 0; k < s->call.n_out; k++) {
        int64_t n = s->call.out[k].type.dim[d];
        MX_TRY(copy(c, &s->call.out[k], 0, &s->call.in[0], at, n, d));
        at += n;
    }
    return MX_OK;
}

static mx_status slice(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    int d = dim_of(s, &s->call.in[0].type);
    return copy(c, &s->call.out[0], 0, &s->call.in[0], mx_attr_int(s, "start"),
                s->call.out[0].type.dim[d], d);
}

static mx_status pad(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    int d = dim_of(s, &s->call.in[0].type);
    MX_TRY(mx_cuda_check(
        cudaMemsetAsync(s->call.out[0].data, 0, mx_type_bytes(&s->call.out[0].type), c->stream),
        "clearing"));
    return copy(c, &s->call.out[0], mx_attr_int(s, "before"), &s->call.in[0], 0,
                s->call.in[0].type.dim[d], d);
}

const mx_cuda_op mx_cuda_op_concat = {"concat", prepare, concat, NULL};
const mx_cuda_op mx_cuda_op_split = {"split", prepare, split, NULL};
const mx_cuda_op mx_cuda_op_slice = {"slice", prepare, slice, NULL};
const mx_cuda_op mx_cuda_op_pad = {"pad", prepare, pad, NULL};

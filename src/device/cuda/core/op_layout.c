/* op_layout.c - transpose on the kernels of layout.h. */
#include "device/cuda/core/context.h"
#include "device/cuda/core/layout.h"
#include "device/cuda/gemm/quantize.h"

#include <string.h>

_Static_assert((int)MX_MAX_DIMS <= (int)MX_CUDA_LAYOUT_DIMS, "a layout holds every dim");

/* Elements between neighbours along each dim of a packed tensor. */
static void steps_of(const mx_type *t, int64_t step[MX_MAX_DIMS])
{
    int64_t n = 1;
    for (int d = t->ndim - 1; d >= 0; n *= t->dim[d--])
        step[d] = n;
}

static mx_status prepare_transpose(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    size_t item = mx_dtype_bytes(s->call.in[0].type.dtype);
    const mx_type *x = &s->call.in[0].type;
    bool bytes = item == 1 && strcmp(mx_attr(s, "dims"), "ab->ba") == 0 && x->dim[0] % 4 == 0 &&
                 x->dim[1] % 4 == 0;
    MX_CUDA_NEEDS(item == 2 || item == 4 || bytes, "a transpose of this dtype");
    return MX_OK;
}

/* "bshd->bhsd": dim i of the output is the input's dim of the same letter. */
static mx_status transpose(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const char *dims = mx_attr(s, "dims");
    const mx_type *x = &s->call.in[0].type;
    int64_t step[MX_MAX_DIMS];
    mx_cuda_layout l = {.n = x->ndim};
    if (mx_dtype_bytes(x->dtype) == 1)
        return mx_cuda_check(mx_cuda_transpose_bytes(s->call.out[0].data, s->call.in[0].data,
                                                     x->dim[0], x->dim[1], c->stream),
                             "transpose");
    steps_of(x, step);
    for (int i = 0; i < x->ndim; i++) {
        const char *at = memchr(dims, dims[x->ndim + 2 + i], (size_t)x->ndim);
        l.size[i] = x->dim[at - dims];
        l.step[i] = step[at - dims];
    }
    return mx_cuda_check(mx_cuda_transpose(s->call.out[0].data, s->call.in[0].data, &l,
                                           (int)mx_dtype_bytes(x->dtype), c->stream),
                         "transpose");
}

const mx_cuda_op mx_cuda_op_transpose = {"transpose", prepare_transpose, transpose, NULL};

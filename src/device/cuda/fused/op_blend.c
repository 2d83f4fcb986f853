/* op_blend.c - blend and stream_dots on the kernels of blend.h. */
#include "device/cuda/fused/blend.h"
#include "device/cuda/core/context.h"

static mx_cuda_blend shape_of(const mx_exec_step *s, int64_t m)
{
    const mx_type *x = &s->call.in[0].type;
    int64_t n = x->dim[x->ndim - 2], d = x->dim[x->ndim - 1];
    return (mx_cuda_blend){.tokens = mx_type_count(x) / (n * d), .n = (int)n, .m = (int)m,
                           .d = (int)d, .f32 = x->dtype == MX_F32};
}

/* Numbers of streams that the kernels have: as many on both sides, or one on either. */
static mx_status check_sides(int64_t n, int64_t m)
{
    MX_CUDA_NEEDS(n == m || n == 1 || m == 1, "so many streams into so many");
    return MX_OK;
}

static mx_status prepare_blend(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_type *w = &s->call.in[1].type;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[0]) && mx_is_f32(&s->call.in[1]),
                  "streams of these dtypes");
    return check_sides(w->dim[w->ndim - 2], w->dim[w->ndim - 1]);
}

static mx_status prepare_dots(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_type *x = &s->call.in[0].type, *y = &s->call.in[1].type;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[0]) && x->dtype == y->dtype, "streams of these dtypes");
    return check_sides(x->dim[x->ndim - 2], y->dim[y->ndim - 2]);
}

static mx_status blend(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_type *w = &s->call.in[1].type;
    mx_cuda_blend k = shape_of(s, w->dim[w->ndim - 1]);
    return mx_cuda_check(mx_cuda_blend_streams(&k, s->call.in[0].data, s->call.in[1].data,
                                               s->call.out[0].data, c->stream), "blend");
}

static mx_status dots(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_type *y = &s->call.in[1].type;
    mx_cuda_blend k = shape_of(s, y->dim[y->ndim - 2]);
    return mx_cuda_check(mx_cuda_stream_dots(&k, s->call.in[0].data, s->call.in[1].data,
                                             s->call.out[0].data, c->stream), "stream_dots");
}

const mx_cuda_op mx_cuda_op_blend = {"blend", prepare_blend, blend, NULL};
const mx_cuda_op mx_cuda_op_stream_dots = {"stream_dots", prepare_dots, dots, NULL};

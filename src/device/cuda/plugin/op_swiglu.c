/* op_swiglu.c - products beside a SwiGLU: our own kernels where they are possible
 * (product_swiglu.h), or products through cuBLASLt and a kernel over their results.
 */
#include "device/cuda/plugin/op_ended.h"
#include "device/cuda/plugin/product_swiglu.h"

static mx_status prepare_any(mx_cuda *c, const mx_exec_step *step, void **state,
                             bool (*own)(const mx_ended_product *))
{
    const mx_call *call = &step->call;
    bool f32 = mx_is_f32(&call->in[0]);
    for (int i = 0; i < call->n_in; i++)
        MX_CUDA_NEEDS(mx_is_float(&call->in[i]) && mx_is_f32(&call->in[i]) == f32,
                      "SwiGLUs of these dtypes");
    for (int i = 0; i < call->n_out; i++)
        MX_CUDA_NEEDS(mx_is_float(&call->out[i]) && mx_is_f32(&call->out[i]) == f32,
                      "SwiGLUs of these dtypes");
    mx_ended *s = NULL;
    MX_TRY(mx_ended_prepare(c, step, own, &s));
    *state = s;
    return MX_OK;
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *step, void **state, size_t *work_bytes)
{
    (void)work_bytes;
    return prepare_any(c, step, state, mx_swiglu_product_is_possible);
}

static mx_status prepare_slope(mx_cuda *c, const mx_exec_step *step, void **state,
                               size_t *work_bytes)
{
    (void)work_bytes;
    return prepare_any(c, step, state, mx_swiglu_slope_product_is_possible);
}

static mx_status launch(mx_cuda *c, const mx_exec_step *step, void *state)
{
    const mx_ended *s = state;
    const mx_tensor *in = step->call.in, *out = step->call.out;
    mx_swiglu_forward_args a = {.a = in[0].data, .b = in[1].data, .b2 = in[2].data,
                                .h = out[0].data, .g = out[1].data, .u = out[2].data};
    if (!s->plan)
        return mx_cuda_check(mx_swiglu_product(&s->shape, &a, c->stream),
                             "products with a SwiGLU");
    MX_TRY(mx_gemm_plan_launch(s->plan, a.a, a.b, a.g, c->gemm_work, c->stream));
    MX_TRY(mx_gemm_plan_launch(s->plan, a.a, a.b2, a.u, c->gemm_work, c->stream));
    return mx_cuda_check(mx_swiglu_launch(&a, s->shape.m * s->shape.n, s->f32, c->stream),
                         "a SwiGLU");
}

static mx_status launch_slope(mx_cuda *c, const mx_exec_step *step, void *state)
{
    const mx_ended *s = state;
    const mx_tensor *in = step->call.in, *out = step->call.out;
    mx_swiglu_backward_args a = {.a = in[0].data, .b = in[1].data, .g = in[2].data,
                                 .u = in[3].data, .dg = out[0].data, .du = out[1].data};
    if (!s->plan)
        return mx_cuda_check(mx_swiglu_slope_product(&s->shape, &a, c->stream),
                             "a product with a SwiGLU's gradient");
    MX_TRY(mx_gemm_plan_launch(s->plan, a.a, a.b, a.dg, c->gemm_work, c->stream));
    return mx_cuda_check(mx_swiglu_slope_launch(&a, s->shape.m * s->shape.n, s->f32, c->stream),
                         "a SwiGLU's gradient");
}

const mx_cuda_op mx_cuda_op_matmul_swiglu = {"matmul_swiglu", prepare, launch,
                                             mx_ended_drop};
const mx_cuda_op mx_cuda_op_matmul_swiglu_slope = {"matmul_swiglu_slope", prepare_slope,
                                                   launch_slope, mx_ended_drop};

/* op_swiglu.c - GEMMs with SwiGLU or its gradient as epilogue: our own kernels where they are
 * possible (gemm_swiglu.h), or GEMMs through cuBLASLt and a kernel over their results.
 */
#include "device/cuda/gemm/gemm_swiglu.h"
#include "device/cuda/gemm/op_epilogue.h"

static bool takes(const mx_exec_step *s)
{
    return mx_cuda_has_epilogues(s, MX_EPILOGUES(MX_EPILOGUE_SWIGLU));
}

static bool takes_grad(const mx_exec_step *s)
{
    return mx_cuda_has_epilogues(s, MX_EPILOGUES(MX_EPILOGUE_SWIGLU_GRAD));
}

static mx_status prepare_any(mx_cuda *c, const mx_exec_step *step, void **state,
                             bool (*own)(const mx_epilogue_gemm *))
{
    const mx_call *call = &step->call;
    bool f32 = mx_is_f32(&call->in[MX_MATMUL_A]);
    for (int i = 0; i < call->n_in; i++)
        MX_CUDA_NEEDS(mx_is_float(&call->in[i]) && mx_is_f32(&call->in[i]) == f32,
                      "SwiGLUs of these dtypes");
    for (int i = 0; i < call->n_out; i++)
        MX_CUDA_NEEDS(mx_is_float(&call->out[i]) && mx_is_f32(&call->out[i]) == f32,
                      "SwiGLUs of these dtypes");
    mx_epilogue_plan *s = NULL;
    MX_TRY(mx_epilogue_prepare(c, step, own, &s));
    *state = s;
    return MX_OK;
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *step, void **state, size_t *work_bytes)
{
    (void)work_bytes;
    return prepare_any(c, step, state, mx_gemm_swiglu_is_possible);
}

static mx_status prepare_grad(mx_cuda *c, const mx_exec_step *step, void **state,
                              size_t *work_bytes)
{
    (void)work_bytes;
    return prepare_any(c, step, state, mx_gemm_swiglu_grad_is_possible);
}

static mx_status launch(mx_cuda *c, const mx_exec_step *step, void *state)
{
    const mx_epilogue_plan *s = state;
    const mx_tensor *in = step->call.in, *out = step->call.out;
    mx_swiglu_forward_args a = {.a = in[MX_MATMUL_A].data, .b = in[MX_MATMUL_B].data,
                                .b2 = in[MX_MATMUL_REST].data, .h = out[0].data,
                                .g = out[1].data, .u = out[2].data};
    if (!s->plan)
        return mx_cuda_check(mx_gemm_swiglu(&s->shape, &a, c->stream),
                             "GEMMs with SwiGLU");
    MX_TRY(mx_gemm_plan_launch(s->plan, a.a, a.b, a.g, c->gemm_work, c->stream));
    MX_TRY(mx_gemm_plan_launch(s->plan, a.a, a.b2, a.u, c->gemm_work, c->stream));
    return mx_cuda_check(mx_swiglu_launch(&a, s->shape.m * s->shape.n, s->f32, c->stream),
                         "a SwiGLU");
}

static mx_status launch_grad(mx_cuda *c, const mx_exec_step *step, void *state)
{
    const mx_epilogue_plan *s = state;
    const mx_tensor *in = step->call.in, *out = step->call.out;
    mx_swiglu_backward_args a = {.a = in[MX_MATMUL_A].data, .b = in[MX_MATMUL_B].data,
                                 .g = in[MX_MATMUL_REST].data, .u = in[MX_MATMUL_REST + 1].data,
                                 .dg = out[0].data, .du = out[1].data};
    if (!s->plan)
        return mx_cuda_check(mx_gemm_swiglu_grad(&s->shape, &a, c->stream),
                             "a GEMM with swiglu_grad");
    MX_TRY(mx_gemm_plan_launch(s->plan, a.a, a.b, a.dg, c->gemm_work, c->stream));
    return mx_cuda_check(mx_swiglu_grad_launch(&a, s->shape.m * s->shape.n, s->f32, c->stream),
                         "a SwiGLU's gradient");
}

const mx_cuda_op mx_cuda_op_matmul_swiglu = {"matmul", prepare, launch, mx_epilogue_drop,
                                             .takes = takes};
const mx_cuda_op mx_cuda_op_matmul_swiglu_grad = {"matmul", prepare_grad, launch_grad,
                                                  mx_epilogue_drop, .takes = takes_grad};

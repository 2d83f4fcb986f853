/* op_gelu_grad.c - GEMMs with the derivative of GELU and the gradient of the bias as epilogues: our
 * own kernel where it is possible (gemm_gelu_grad.h), or a GEMM through cuBLASLt and a kernel over
 * its result. Either leaves sums of some rows in scratch, which are then added up.
 */
#include "device/cuda/gemm/gemm_gelu_grad.h"
#include "device/cuda/gemm/op_epilogue.h"
#include "device/cuda/train/train_kernels.h"
#include "ops/gpu_work.h"

static bool takes(const mx_exec_step *s)
{
    return mx_cuda_has_epilogues(s, MX_EPILOGUES(MX_EPILOGUE_GELU_GRAD, MX_EPILOGUE_BIAS_GRAD));
}

static int64_t part_rows(const mx_epilogue_plan *s)
{
    return s->plan ? mx_gelu_grad_rows(s->shape.m) : mx_gemm_gelu_grad_rows(s->shape.m);
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *step, void **state, size_t *work_bytes)
{
    const mx_tensor *in = step->call.in, *out = step->call.out;
    bool f32 = mx_is_f32(&in[MX_MATMUL_A]);
    for (int i = 0; i < 3; i++)
        MX_CUDA_NEEDS(mx_is_float(&in[i]) && mx_is_f32(&in[i]) == f32, "gelu_grad of these dtypes");
    MX_CUDA_NEEDS(mx_is_f32(&out[0]) == f32 && mx_is_f32(&out[1]), "gelu_grad of these dtypes");
    mx_epilogue_plan *s = NULL;
    MX_TRY(mx_epilogue_prepare(c, step, mx_gemm_gelu_grad_is_possible, &s));
    *state = s;
    *work_bytes = mx_gpu_gelu_grad_bytes(s->shape.m, s->shape.n);
    return MX_OK;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *step, void *state)
{
    const mx_epilogue_plan *s = state;
    const mx_tensor *in = step->call.in, *out = step->call.out;
    mx_gemm_gelu_grad_args a = {.a = in[MX_MATMUL_A].data, .b = in[MX_MATMUL_B].data,
                                .u = in[MX_MATMUL_REST].data, .du = out[0].data,
                                .parts = step->call.work};
    if (s->plan) {
        MX_TRY(mx_gemm_plan_launch(s->plan, in[MX_MATMUL_A].data, in[MX_MATMUL_B].data, out[0].data,
                                   c->gemm_work, c->stream));
        MX_TRY(mx_cuda_check(mx_gelu_grad_launch(&s->shape, &a, s->f32, c->stream), "gelu_grad"));
    } else {
        MX_TRY(mx_cuda_check(mx_gemm_gelu_grad_launch(&s->shape, &a, c->stream),
                             "a GEMM with gelu_grad"));
    }
    mx_column_sums sums = {.n = 1, .rows = part_rows(s), .cols = s->shape.n,
                           .part = step->call.work, .out = {out[1].data}};
    return mx_cuda_check(mx_cuda_column_sums(&sums, c->stream), "column sums");
}

const mx_cuda_op mx_cuda_op_matmul_gelu_grad = {"matmul", prepare, launch, mx_epilogue_drop,
                                                .takes = takes};

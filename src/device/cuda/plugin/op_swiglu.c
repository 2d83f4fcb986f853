/* op_swiglu.c - products beside a SwiGLU: our own kernels where they are possible
 * (product_swiglu.h), or products through cuBLASLt and a kernel over their results.
 */
#include "device/cuda/plugin/context.h"
#include "device/cuda/plugin/product_swiglu.h"
#include "ops/matmul.h"

typedef struct {
    mx_cuda *cuda;
    bool f32;
    mx_product_swiglu shape;
    mx_gemm_plan *plan; /* NULL: our own */
    int n;
} swiglu;

static mx_status plan_product(void *ctx, const mx_product *p)
{
    swiglu *s = ctx;
    mx_gemm_type type = s->f32 ? MX_GEMM_F32 : MX_GEMM_BF16;
    mx_gemm_shape g = {.m = p->m, .n = p->n, .k = p->k, .trans_b = p->trans_b, .in = type,
                       .out = type, .alpha = 1};
    MX_CUDA_NEEDS(s->n++ == 0 && mx_product_is_dense(p) && p->n % 4 == 0, "this end of a product");
    s->shape.m = p->m, s->shape.n = p->n, s->shape.k = p->k, s->shape.b_outside = !p->trans_b;
    return !s->f32 && mx_product_swiglu_is_possible(&s->shape)
               ? MX_OK : mx_cuda_plan_gemm(s->cuda, &g, &s->plan);
}

static void drop(mx_cuda *c, void *state)
{
    (void)c;
    swiglu *s = state;
    if (s)
        mx_gemm_plan_free(s->plan);
    mx_free(s);
}

static mx_status prepare_any(mx_cuda *c, const mx_exec_step *step, void **state, bool backward)
{
    const mx_call *call = &step->call;
    bool f32 = mx_is_f32(&call->in[0]);
    for (int i = 0; i < call->n_in; i++)
        MX_CUDA_NEEDS(mx_is_float(&call->in[i]) && mx_is_f32(&call->in[i]) == f32,
                      "SwiGLUs of these dtypes");
    for (int i = 0; i < call->n_out; i++)
        MX_CUDA_NEEDS(mx_is_float(&call->out[i]) && mx_is_f32(&call->out[i]) == f32,
                      "SwiGLUs of these dtypes");
    swiglu *s = mx_realloc(NULL, sizeof *s);
    *s = (swiglu){.cuda = c, .f32 = f32, .shape.backward = backward};
    mx_status st = mx_matmul_products(step->node->attr, &call->in[0].type, &call->in[1].type,
                                      &call->out[0].type, plan_product, s);
    if (st)
        drop(c, s);
    else
        *state = s;
    return st;
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *step, void **state, size_t *work_bytes)
{
    (void)work_bytes;
    return prepare_any(c, step, state, false);
}

static mx_status prepare_slope(mx_cuda *c, const mx_exec_step *step, void **state,
                               size_t *work_bytes)
{
    (void)work_bytes;
    return prepare_any(c, step, state, true);
}

static mx_status launch(mx_cuda *c, const mx_exec_step *step, void *state)
{
    const swiglu *s = state;
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
    const swiglu *s = state;
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

const mx_cuda_op mx_cuda_op_matmul_swiglu = {"matmul_swiglu", prepare, launch, drop};
const mx_cuda_op mx_cuda_op_matmul_swiglu_slope = {"matmul_swiglu_slope", prepare_slope,
                                                   launch_slope, drop};

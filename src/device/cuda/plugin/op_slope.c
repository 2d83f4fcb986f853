/* op_slope.c - a product times the slope of GELU, and the sum of its rows: our own kernel where it
 * is possible (product_slope.h), or a product through cuBLASLt and a kernel over its result. Either
 * leaves sums of some rows in scratch, which are then added up.
 */
#include "device/cuda/plugin/context.h"
#include "device/cuda/plugin/product_slope.h"
#include "device/cuda/plugin/train_kernels.h"
#include "ops/matmul.h"

typedef struct {
    mx_cuda *cuda;
    bool f32;
    mx_product_slope shape;
    mx_gemm_plan *plan; /* NULL: our own */
    int n;
} slope;

static mx_status plan_product(void *ctx, const mx_product *p)
{
    slope *s = ctx;
    mx_gemm_type type = s->f32 ? MX_GEMM_F32 : MX_GEMM_BF16;
    mx_gemm_shape g = {.m = p->m, .n = p->n, .k = p->k, .trans_b = p->trans_b, .in = type,
                       .out = type, .alpha = 1};
    MX_CUDA_NEEDS(s->n++ == 0 && mx_product_is_dense(p) && p->n % 4 == 0, "this end of a product");
    s->shape = (mx_product_slope){.m = p->m, .n = p->n, .k = p->k, .b_outside = !p->trans_b};
    return !s->f32 && mx_product_slope_is_possible(&s->shape)
               ? MX_OK : mx_cuda_plan_gemm(s->cuda, &g, &s->plan);
}

static int64_t part_rows(const slope *s)
{
    return s->plan ? mx_gelu_slope_rows(s->shape.m) : mx_product_slope_rows(s->shape.m);
}

static void drop(mx_cuda *c, void *state)
{
    (void)c;
    slope *s = state;
    if (s)
        mx_gemm_plan_free(s->plan);
    mx_free(s);
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *step, void **state, size_t *work_bytes)
{
    const mx_tensor *in = step->call.in, *out = step->call.out;
    bool f32 = mx_is_f32(&in[0]);
    for (int i = 0; i < 3; i++)
        MX_CUDA_NEEDS(mx_is_float(&in[i]) && mx_is_f32(&in[i]) == f32, "slopes of these dtypes");
    MX_CUDA_NEEDS(mx_is_f32(&out[0]) == f32 && mx_is_f32(&out[1]), "slopes of these dtypes");
    slope *s = mx_realloc(NULL, sizeof *s);
    *s = (slope){.cuda = c, .f32 = f32};
    mx_status st = mx_matmul_products(step->node->attr, &in[0].type, &in[1].type, &out[0].type,
                                      plan_product, s);
    if (st)
        drop(c, s);
    else
        *state = s, *work_bytes = sizeof(float) * (size_t)(part_rows(s) * s->shape.n);
    return st;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *step, void *state)
{
    const slope *s = state;
    const mx_tensor *in = step->call.in, *out = step->call.out;
    mx_product_slope_args a = {.a = in[0].data, .b = in[1].data, .u = in[2].data,
                               .du = out[0].data, .parts = c->work};
    if (s->plan) {
        MX_TRY(mx_gemm_plan_launch(s->plan, in[0].data, in[1].data, out[0].data, c->gemm_work,
                                   c->stream));
        MX_TRY(mx_cuda_check(mx_gelu_slope_launch(&s->shape, &a, s->f32, c->stream), "a slope"));
    } else {
        MX_TRY(mx_cuda_check(mx_product_slope_launch(&s->shape, &a, c->stream),
                             "a product with a slope"));
    }
    mx_column_sums sums = {.n = 1, .rows = part_rows(s), .cols = s->shape.n, .part = c->work,
                           .out = {out[1].data}};
    return mx_cuda_check(mx_cuda_column_sums(&sums, c->stream), "column sums");
}

const mx_cuda_op mx_cuda_op_matmul_gelu_slope = {"matmul_gelu_slope", prepare, launch, drop};

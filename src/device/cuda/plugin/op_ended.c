/* op_ended.c - see op_ended.h. */
#include "device/cuda/plugin/op_ended.h"

typedef struct {
    mx_cuda *cuda;
    bool (*own)(const mx_ended_product *);
    mx_ended *state;
    int n; /* products so far */
} planning;

mx_ended_product mx_ended_product_of(const mx_product *p)
{
    return (mx_ended_product){.m = p->m, .n = p->n, .k = p->k, .b_outside = !p->trans_b};
}

static mx_status plan_product(void *ctx, const mx_product *p)
{
    planning *l = ctx;
    mx_ended *s = l->state;
    mx_gemm_type type = s->f32 ? MX_GEMM_F32 : MX_GEMM_BF16;
    mx_gemm_shape g = {.m = p->m, .n = p->n, .k = p->k, .trans_b = p->trans_b, .in = type,
                       .out = type, .alpha = 1};
    MX_CUDA_NEEDS(l->n++ == 0 && mx_product_is_dense(p) && p->n % 4 == 0, "this end of a product");
    s->shape = mx_ended_product_of(p);
    return !s->f32 && l->own(&s->shape) ? MX_OK : mx_cuda_plan_gemm(l->cuda, &g, &s->plan);
}

void mx_ended_drop(mx_cuda *c, void *state)
{
    (void)c;
    mx_ended *s = state;
    if (s)
        mx_gemm_plan_free(s->plan);
    mx_free(s);
}

mx_status mx_ended_prepare(mx_cuda *c, const mx_exec_step *step,
                           bool (*own)(const mx_ended_product *), mx_ended **out)
{
    const mx_call *call = &step->call;
    mx_ended *s = mx_realloc(NULL, sizeof *s);
    *s = (mx_ended){.f32 = mx_is_f32(&call->in[0])};
    planning l = {.cuda = c, .own = own, .state = s};
    mx_status st = mx_matmul_products(step->node->attr, &call->in[0].type, &call->in[1].type,
                                      &call->out[0].type, plan_product, &l);
    if (st)
        mx_ended_drop(c, s);
    else
        *out = s;
    return st;
}

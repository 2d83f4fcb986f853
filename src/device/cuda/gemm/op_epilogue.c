/* op_epilogue.c - see op_epilogue.h. */
#include "device/cuda/gemm/op_epilogue.h"

typedef struct {
    mx_cuda *cuda;
    bool (*own)(const mx_epilogue_gemm *);
    mx_epilogue_plan *state;
    int n; /* GEMMs so far */
} planning;

bool mx_cuda_has_epilogues(const mx_exec_step *s, mx_epilogues list)
{
    return mx_epilogues_equal(((const mx_matmul_attr *)s->call.attr)->epilogues, list);
}

mx_epilogue_gemm mx_epilogue_gemm_of(const mx_matmul_gemm *p)
{
    return (mx_epilogue_gemm){.m = p->m, .n = p->n, .k = p->k, .b_outside = !p->trans_b};
}

static mx_status plan_gemm(void *ctx, const mx_matmul_gemm *p)
{
    planning *l = ctx;
    mx_epilogue_plan *s = l->state;
    mx_gemm_type type = s->f32 ? MX_GEMM_F32 : MX_GEMM_BF16;
    mx_gemm_shape g = {.m = p->m, .n = p->n, .k = p->k, .trans_b = p->trans_b, .in = type,
                       .out = type, .alpha = 1};
    MX_CUDA_NEEDS(l->n++ == 0 && mx_matmul_gemm_is_dense(p) && p->n % 4 == 0,
                  "this epilogue of a GEMM of this shape");
    s->shape = mx_epilogue_gemm_of(p);
    return !s->f32 && l->own(&s->shape) ? MX_OK : mx_cuda_plan_gemm(l->cuda, &g, &s->plan);
}

void mx_epilogue_drop(mx_cuda *c, void *state)
{
    (void)c;
    mx_epilogue_plan *s = state;
    if (s)
        mx_gemm_plan_free(s->plan);
    mx_free(s);
}

mx_status mx_epilogue_prepare(mx_cuda *c, const mx_exec_step *step,
                              bool (*own)(const mx_epilogue_gemm *), mx_epilogue_plan **out)
{
    const mx_call *call = &step->call;
    mx_epilogue_plan *s = mx_realloc(NULL, sizeof *s);
    *s = (mx_epilogue_plan){.f32 = mx_is_f32(&call->in[MX_MATMUL_A])};
    planning l = {.cuda = c, .own = own, .state = s};
    mx_status st = mx_matmul_gemms(call->attr, &call->in[MX_MATMUL_A].type,
                                   &call->in[MX_MATMUL_B].type, &call->out[0].type, plan_gemm, &l);
    if (st)
        mx_epilogue_drop(c, s);
    else
        *out = s;
    return st;
}

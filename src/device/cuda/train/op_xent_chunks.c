/* op_xent_chunks.c - see op_xent_chunks.h. */
#include "device/cuda/train/op_xent_chunks.h"

void mx_xent_plans_free(mx_xent_plans plans[2])
{
    for (mx_xent_plans *p = plans; p < plans + 2; p++) {
        mx_gemm_plan_free(p->project);
        mx_gemm_plan_free(p->input);
        for (int add = 0; add < 2; add++) {
            mx_gemm_plan_free(p->dw[add]);
            mx_gemm_plan_free(p->dw_rest[add]);
        }
    }
}

void mx_xent_chunks_drop(mx_cuda *c, void *state)
{
    mx_xent_chunks *x = state;
    (void)c;
    if (x)
        mx_xent_plans_free(x->plans);
    mx_free(x);
}

mx_status mx_xent_chunks_plan(mx_cuda *c, mx_xent_chunks *x, mx_xent_planner *plan, void **state)
{
    mx_status st = MX_OK;
    bool any = plan && x->rows;
    if (any)
        st = plan(c, x, &x->plans[0], x->chunk);
    if (any && !st && x->rows % x->chunk)
        st = plan(c, x, &x->plans[1], x->rows % x->chunk);
    if (st)
        mx_xent_chunks_drop(c, x);
    else
        *state = x;
    return st;
}

mx_status mx_xent_plan_dw(mx_cuda *c, mx_gemm_shape dw, mx_xent_plans *p)
{
    for (int add = 0; add < 2; add++) {
        dw.beta = (float)add;
        MX_TRY(mx_cuda_plan_gemm(c, &dw, &p->dw[add]));
    }
    return MX_OK;
}

void *mx_cuda_row(const mx_tensor *t, int64_t row, int64_t width)
{
    return (char *)t->data + (size_t)(row * width) * mx_dtype_bytes(t->type.dtype);
}

mx_status mx_xent_clear(mx_cuda *c, const mx_tensor *dx, const mx_tensor *dw, int64_t vocab)
{
    int64_t d = dw->type.dim[1], rest = dw->type.dim[0] - vocab;
    if (!vocab)
        MX_TRY(mx_cuda_check(cudaMemsetAsync(dx->data, 0, mx_type_bytes(&dx->type), c->stream),
                             "clearing"));
    return mx_cuda_check(cudaMemsetAsync(mx_cuda_row(dw, vocab, d), 0,
                                         sizeof(float) * (size_t)(rest * d), c->stream),
                         "clearing");
}

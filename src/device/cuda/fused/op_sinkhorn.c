/* op_sinkhorn.c - sinkhorn and its gradient on the kernels of sinkhorn.h. */
#include "device/cuda/core/context.h"
#include "device/cuda/fused/sinkhorn.h"

static mx_cuda_sinkhorn shape_of(const mx_exec_step *s)
{
    const mx_type *t = &s->call.in[0].type;
    int n = (int)t->dim[t->ndim - 1];
    return (mx_cuda_sinkhorn){.matrices = mx_type_count(t) / (n * n), .n = n,
                              .steps = (int)mx_attr_int(s, "steps"),
                              .eps = (float)mx_attr_f64(s, "eps")};
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    for (int i = 0; i < s->call.n_in; i++)
        MX_CUDA_NEEDS(s->call.in[i].type.dtype == MX_F32, "matrices of this dtype");
    return MX_OK;
}

static mx_status forward(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    mx_cuda_sinkhorn k = shape_of(s);
    return mx_cuda_check(mx_cuda_sinkhorn_forward(&k, s->call.in[0].data, s->call.out[0].data,
                                                  c->stream), "sinkhorn");
}

static mx_status backward(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    mx_cuda_sinkhorn k = shape_of(s);
    return mx_cuda_check(mx_cuda_sinkhorn_backward(&k, s->call.in[0].data, s->call.in[1].data,
                                                   s->call.out[0].data, c->stream), "sinkhorn");
}

const mx_cuda_op mx_cuda_op_sinkhorn = {"sinkhorn", prepare, forward, NULL};
const mx_cuda_op mx_cuda_op_sinkhorn_grad = {"sinkhorn_grad", prepare, backward, NULL};

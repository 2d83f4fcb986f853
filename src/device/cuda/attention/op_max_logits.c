/* op_max_logits.c - max_logits on the kernels of max_logits.h. */
#include "device/cuda/core/context.h"
#include "ops/inputs.h"
#include "device/cuda/attention/max_logits.h"

enum { MX_INPUTS_MAX_LOGITS };

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_type *q = &s->call.in[Q].type;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[Q]), "scores of this dtype");
    MX_CUDA_NEEDS(q->dim[0] < 65536 && q->dim[2] <= 1024, "so many rows or heads");
    return MX_OK;
}

static mx_status max_logits(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *in = s->call.in;
    const mx_type *q = &in[Q].type;
    mx_cuda_max_logits k = {.batch = (int)q->dim[0], .seq = (int)q->dim[1],
                            .heads_q = (int)q->dim[2], .heads_k = (int)in[K].type.dim[2],
                            .dim = (int)q->dim[3], .window = (int)mx_attr_int(s, "window"),
                            .scale = (float)mx_attr_f64(s, "scale"), .f32 = q->dtype == MX_F32,
                            .q = in[Q].data, .k = in[K].data, .segments = in[SEG].data};
    return mx_cuda_check(mx_cuda_max_logits_of(&k, s->call.out[0].data, c->stream), "max_logits");
}

const mx_cuda_op mx_cuda_op_max_logits = {"max_logits", prepare, max_logits, NULL};

/* op_sample.c - sample_token on the kernel of sample.cu. */
#include "device/cuda/core/context.h"
#include "device/cuda/core/kernels.h"
#include "ops/inputs.h"

enum { MX_INPUTS_SAMPLE_TOKEN };

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    MX_CUDA_NEEDS(mx_is_f32(&s->call.in[SAMPLE_LOGITS]) && mx_is_f32(&s->call.in[SAMPLE_SETTINGS]),
                  "logits of this dtype");
    return MX_OK;
}

static mx_status sample_token(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const mx_type *t = &s->call.in[SAMPLE_LOGITS].type;
    (void)state;
    mx_sample_rows r = {.token = s->call.out[0].data,
                        .logits = s->call.in[SAMPLE_LOGITS].data,
                        .settings = s->call.in[SAMPLE_SETTINGS].data,
                        .rows = t->dim[0],
                        .stride = t->dim[1],
                        .vocab = mx_attr_int(s, "vocab")};
    return mx_cuda_check(mx_cuda_sample(&r, c->stream), "sample_token");
}

const mx_cuda_op mx_cuda_op_sample_token = {"sample_token", prepare, sample_token, NULL};

/* op_sample.c - sample_token and feed_sampled on the kernels of sample.cu. */
#include "device/cuda/core/context.h"
#include "device/cuda/core/kernels.h"
#include "ops/inputs.h"

enum { MX_INPUTS_SAMPLE_TOKEN };
enum { MX_INPUTS_FEED_SAMPLED };

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

static mx_status prepare_feed(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)s, (void)state, (void)work;
    return MX_OK;
}

static mx_status feed_sampled(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const mx_tensor *in = s->call.in;
    (void)state;
    mx_feed_args f = {.out = s->call.out[0].data,
                      .tokens = in[FEED_TOKENS].data,
                      .from = in[FEED_FROM].data,
                      .sampled = in[FEED_SAMPLED].data,
                      .n = mx_type_count(&s->call.out[0].type),
                      .rows = mx_type_count(&in[FEED_SAMPLED].type)};
    return mx_cuda_check(mx_cuda_feed_sampled(&f, c->stream), "feed_sampled");
}

const mx_cuda_op mx_cuda_op_feed_sampled = {"feed_sampled", prepare_feed, feed_sampled, NULL};

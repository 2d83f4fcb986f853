/* op_merge.c - merge_attention on the kernel of merge.h. */
#include "device/cuda/attention/merge.h"
#include "device/cuda/core/context.h"

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_type *out = &s->call.out[0].type;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[0]) && mx_is_f32(&s->call.in[1]),
                  "results of this dtype");
    MX_CUDA_NEEDS(s->call.n_in <= 2 * MX_MERGE_MOST && out->dim[0] < 65536 &&
                      out->dim[1] <= 65535 * 32,
                  "attention of this size");
    return MX_OK;
}

static mx_status merge(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_type *out = &s->call.out[0].type;
    mx_cuda_merge m = {.batch = (int)out->dim[0], .length = (int)out->dim[1],
                       .heads = (int)out->dim[2], .size = (int)out->dim[3],
                       .f32 = out->dtype == MX_F32, .n = s->call.n_in / 2};
    for (int i = 0; i < m.n; i++) {
        m.set[i].out = s->call.in[2 * i].data;
        m.set[i].lse = s->call.in[2 * i + 1].data;
        m.set[i].skipped = m.length - (int)s->call.in[2 * i].type.dim[1];
    }
    return mx_cuda_check(mx_cuda_merge_sets(&m, s->call.out[0].data, s->call.out[1].data,
                                            c->stream), "merge_attention");
}

const mx_cuda_op mx_cuda_op_merge_attention = {"merge_attention", prepare, merge, NULL};

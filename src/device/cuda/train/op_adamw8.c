/* op_adamw8.c - AdamW with moments of 8 bits. */
#include "device/cuda/train/adamw8.h"
#include "device/cuda/core/context.h"
#include "ops/inputs.h"

enum { MX_INPUTS_ADAMW8 };

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_tensor *in = s->call.in;
    MX_CUDA_NEEDS(mx_is_float(&in[ADAMW8_W]) && mx_is_float(&in[ADAMW8_G]),
                  "an update of this dtype");
    MX_CUDA_NEEDS(!in[ADAMW8_COPY].data || in[ADAMW8_COPY].type.dtype == MX_BF16,
                  "a copy of this dtype");
    MX_CUDA_NEEDS(mx_type_count(&in[ADAMW8_W].type) > 0, "an update of nothing");
    return MX_OK;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *in = s->call.in;
    mx_cuda_adamw8_args a = {.w = in[ADAMW8_W].data,
                             .g = in[ADAMW8_G].data,
                             .m = in[ADAMW8_M].data,
                             .v = in[ADAMW8_V].data,
                             .m_most = in[ADAMW8_M_MOST].data,
                             .v_most = in[ADAMW8_V_MOST].data,
                             .hyper = in[ADAMW8_HYPER].data,
                             .map = in[ADAMW8_MAP].data,
                             .copy = in[ADAMW8_COPY].data,
                             .n = mx_type_count(&in[ADAMW8_W].type),
                             .salt = (uint64_t)mx_attr_int(s, "salt"),
                             .b1 = mx_attr_f64(s, "b1"),
                             .b2 = mx_attr_f64(s, "b2"),
                             .eps = (float)mx_attr_f64(s, "eps"),
                             .eps_root = (float)mx_attr_f64(s, "eps_root"),
                             .decay = (float)mx_attr_f64(s, "weight_decay"),
                             .w_f32 = mx_is_f32(&in[ADAMW8_W]),
                             .g_f32 = mx_is_f32(&in[ADAMW8_G])};
    return mx_cuda_check(mx_cuda_adamw8(&a, c->stream), "adamw8");
}

const mx_cuda_op mx_cuda_op_adamw8 = {"adamw8", prepare, launch, NULL};

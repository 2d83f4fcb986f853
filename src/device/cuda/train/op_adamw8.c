/* op_adamw8.c - AdamW with moments of 8 bits. */
#include "device/cuda/train/adamw8.h"
#include "device/cuda/core/context.h"

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_tensor *in = s->call.in;
    MX_CUDA_NEEDS(mx_is_float(&in[0]) && mx_is_float(&in[1]), "an update of this dtype");
    MX_CUDA_NEEDS(!in[8].data || in[8].type.dtype == MX_BF16, "a copy of this dtype");
    MX_CUDA_NEEDS(mx_type_count(&in[0].type) > 0, "an update of nothing");
    return MX_OK;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *in = s->call.in;
    mx_cuda_adamw8_args a = {.w = in[0].data, .g = in[1].data, .m = in[2].data, .v = in[3].data,
                             .m_most = in[4].data, .v_most = in[5].data, .hyper = in[6].data,
                             .map = in[7].data, .copy = in[8].data,
                             .n = mx_type_count(&in[0].type),
                             .salt = (uint64_t)mx_attr_int(s, "salt"),
                             .b1 = mx_attr_f64(s, "b1"), .b2 = mx_attr_f64(s, "b2"),
                             .eps = (float)mx_attr_f64(s, "eps"),
                             .eps_root = (float)mx_attr_f64(s, "eps_root"),
                             .decay = (float)mx_attr_f64(s, "weight_decay"),
                             .w_f32 = mx_is_f32(&in[0]), .g_f32 = mx_is_f32(&in[1])};
    return mx_cuda_check(mx_cuda_adamw8(&a, c->stream), "adamw8");
}

const mx_cuda_op mx_cuda_op_adamw8 = {"adamw8", prepare, launch, NULL};

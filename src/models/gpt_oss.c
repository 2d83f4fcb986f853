/* gpt_oss.c - GPT-OSS 20B and 120B: every layer a mixture, biases everywhere, sinks, alternating
 * windows.
 *
 * Router: the k highest logits, softmax over these alone. An expert is a clamped SwiGLU:
 *     gate' = min(gate, limit)    up' = clamp(up, -limit, limit)
 *     down(gate' sigmoid(alpha gate') (up' + 1))
 * Experts are stored stacked and (in, out), with the columns of gate and up interleaved:
 *     gate_up_proj (E, d, 2 f)   gate_up_proj_bias (E, 2 f)
 *     down_proj (E, f, d)        down_proj_bias (E, d)
 * Even layers see a window, odd ones everything, unless layer_types says otherwise.
 */
#include "models/decoder.h"
#include "models/mixture.h"

#include "ops.h"
#include <math.h>

typedef struct {
    mx_decoder base; /* first: the shared rows of the field table address it */
    mx_moe moe;
    double alpha, limit;
} config;

/* gate_up (N k, 2 f) -> (N k, f) */
static mx_node *clamped_swiglu(mx_graph *g, const config *c, mx_node *gate_up)
{
    int64_t rows = gate_up->type.dim[0], f = c->moe.d_ff;
    mx_node *pairs = mx_split(g, mx_reshape(g, gate_up, MX_SHAPE(rows, f, 2)), 2,
                              (int64_t[]){1, 1});
    mx_node *gate = mx_reshape(g, pairs, MX_SHAPE(rows, f));
    mx_node *up = mx_reshape(g, mx_output(g, pairs, 1), MX_SHAPE(rows, f));
    gate = mx_clamp(g, gate, -INFINITY, c->limit);
    up = mx_clamp(g, up, -c->limit, c->limit);
    gate = mx_mul(g, gate, mx_sigmoid(g, mx_affine(g, gate, c->alpha, 0)));
    return mx_mul(g, gate, mx_affine(g, up, 1, 1));
}

static mx_node *mlp(mx_graph *g, const mx_decoder *base, mx_build *b, mx_node *x, int64_t l)
{
    const config *c = (const config *)base;
    (void)l;
    mx_scope(g, "mlp");
    mx_node *logits = mx_router_logits(g, b, x, "router", c->moe.experts, true);
    mx_routing r = mx_route_top(g, logits, c->moe.k);
    mx_balance(g, b, &c->moe, &r);
    mx_scope(g, "experts");
    mx_dispatch t = mx_dispatch_tokens(g, b, x, &r, c->moe.capacity);
    mx_node *h = mx_expert_linear(g, b, &t, t.rows, "gate_up_proj", 2 * c->moe.d_ff,
                                  "exp,embed_moe,mlp_moe*2", true); /* in pairs */
    h = mx_expert_bias(g, &t, mx_name(g, "moe_mlpwi_0", h), "gate_up_proj_bias", "exp,mlp_moe*2");
    h = clamped_swiglu(g, c, h);
    h = mx_expert_linear(g, b, &t, h, "down_proj", base->d, "exp,mlp_moe,embed_moe", true);
    h = mx_expert_bias(g, &t, mx_name(g, "moe_mlpwo", h), "down_proj_bias",
                       "exp,embed_moe");
    mx_scope_end(g, h);
    return mx_scope_end(g, mx_combine(g, b, &t, mx_weigh(g, &t, h)));
}

static mx_head build(mx_graph *g, const void *c, mx_build *b)
{
    return mx_decoder_build_with(g, c, b, mlp);
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    mx_layer_types *t = &c->base.layer_types;
    c->base.sinks = true;
    c->base.out_bias = c->base.qkv_bias;
    c->moe.d_ff = c->base.d_ff;
    for (int64_t l = 0; !t->n && l < c->base.layers && l < MX_MAX_LAYERS; l++)
        t->type[l] = l % 2 ? 2 : 1;
    if (!t->n)
        t->n = (int)(c->base.layers < MX_MAX_LAYERS ? c->base.layers : MX_MAX_LAYERS);
    MX_TRY(mx_check_moe(&c->moe));
    return mx_decoder_finish(config_, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_SIZES_BY(mx_decoder, "base_moe_mlp_dim"),
    MX_CFG_DECODER_REST(mx_decoder, 150000),
    MX_CFG(mx_decoder, qkv_bias, "attention_bias", MX_CFG_BOOL, .fallback = 1),
    MX_CFG(mx_decoder, window, "sliding_window", MX_IS_LENGTH_OR_0, .fallback = 128,
           .maxtext = "sliding_window_size"),
    MX_CFG(mx_decoder, layer_types, "layer_types", MX_CFG_LAYER_TYPES,
           .text = "sliding_attention,full_attention"),
    MX_CFG_MOE(config, "num_local_experts|num_experts", 4, 0.001),
    MX_CFG(config, alpha, "swiglu_alpha", MX_IS_SIGNED_FACTOR, .fallback = 1.702),
    MX_CFG(config, limit, "swiglu_limit", MX_IS_FACTOR, .fallback = 7,
           .maxtext = "mlp_activations_limit"),
    {0},
};

const mx_model mx_model_gpt_oss = {
    .name = "gpt_oss",
    .doc = "GPT-OSS 20B, 120B",
    .model_types = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .fields = fields,
    .config_size = sizeof(config),
    .finish = finish,
    .summary = mx_decoder_summary,
    .build = build,
    .no_decay = "*norm*,*.bias,*_bias,*.sinks",
    .decoder_block = "gpt_oss",
    .fixed_keys = "attention_sink=true,base_mlp_dim=*,mlp_bias=true,rope_interleave=false,"
                  "routed_bias=true",
};

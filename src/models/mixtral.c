/* mixtral.c - Mixtral 8x7B and 8x22B: Mistral's decoder with a mixture of experts for the MLP.
 *
 * Router: softmax over all experts, the best k, their shares. Every layer has experts.
 */
#include "models/decoder.h"
#include "models/mixture.h"

#include "ops.h"
#include <stdio.h>
#include <string.h>

typedef struct {
    mx_decoder base; /* first: the shared rows of the field table address it */
    mx_moe moe;
} config;

static mx_node *experts(mx_graph *g, const mx_decoder *base, mx_build *b, mx_node *x, int64_t l)
{
    const mx_moe *m = &((const config *)base)->moe;
    (void)l;
    mx_scope(g, "block_sparse_moe");
    mx_node *logits = mx_router_logits(g, b, x, "gate", m->experts, false);
    mx_gating choice = {.k = m->k, .renormalise = true};
    mx_routing r = mx_route(g, logits, mx_softmax(g, logits), choice);
    mx_balance(g, b, m, &r);
    mx_expert_names names = {"w1", "w3", "w2"};
    return mx_scope_end(g, mx_expert_mlp(g, b, x, &r, m, names, base->act));
}

static mx_head build(mx_graph *g, const void *c, mx_build *b)
{
    return mx_decoder_build_with(g, c, b, experts);
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    c->base.use_window = c->base.window > 0;
    c->moe.d_ff = c->base.d_ff;
    MX_TRY(mx_check_moe(&c->moe));
    return mx_decoder_finish(config_, json);
}

/* transformers 5's own name for the block. */
static const char *other_name(const char *name, char *buf, size_t cap)
{
    static const char block[] = ".block_sparse_moe.";
    const char *at = strstr(name, block);
    if (!at)
        return NULL;
    snprintf(buf, cap, "%.*s.mlp.%s", (int)(at - name), name, at + sizeof block - 1);
    return buf;
}

static const mx_cfg_field fields[] = {
    MX_CFG_SIZES_BY(mx_decoder, "base_moe_mlp_dim"),
    MX_CFG_DECODER_REST(mx_decoder, 1000000),
    MX_CFG(mx_decoder, window, "sliding_window", MX_IS_LENGTH_OR_0,
           .maxtext = "sliding_window_size"),
    MX_CFG_MOE(config, "num_local_experts|num_experts", 2, 0.001),
    {0},
};

const mx_model mx_model_mixtral = {
    .name = "mixtral",
    .doc = "Mixtral 8x7B, 8x22B",
    .model_types = "mixtral",
    .architecture = "MixtralForCausalLM",
    .fields = fields,
    .config_size = sizeof(config),
    .finish = finish,
    .summary = mx_decoder_summary,
    .build = build,
    .other_name = other_name,
    .other_parts = mx_fused_experts,
    .no_decay = "*norm*",
    .decoder_block = "mixtral",
    .fixed_keys = "base_mlp_dim=*,norm_topk_prob=true",
};

/* qwen3_vl_moe.c - Qwen3-VL with experts (30B-A3B, 235B-A22B): the tower and the positions of
 * qwen3_vl.c, the experts of Qwen3.
 *
 * Router: softmax over all experts, the best k, their shares. A layer is dense when mlp_only_layers
 * names it, or when it is not the decoder_sparse_step-th. Experts are stored stacked, gate and up
 * fused:
 *     mlp.experts.gate_up_proj (E, 2 f, d), gate above up      mlp.experts.down_proj (E, d, f)
 * as transformers 5 writes them; the released checkpoints have both with the last two dims
 * exchanged and are read as well.
 */
#include "models/mixture.h"
#include "models/qwen3_vl.h"

#include "ops.h"
#include <stdio.h>

typedef struct {
    mx_decoder text; /* first, and the two after it: the language part's */
    mx_moe moe;
    mx_sparse_layers sparse;
    mx_qwen3_tower tower;
} config;

static mx_node *mlp(mx_graph *g, const mx_decoder *text, mx_build *b, mx_node *x, int64_t l)
{
    const config *c = (const config *)text;
    const mx_moe *m = &c->moe;
    if (mx_is_dense(m, &c->sparse, l))
        return mx_decoder_mlp(g, text, b, x, l);
    mx_scope(g, "mlp");
    mx_node *logits = mx_router_logits(g, b, x, "gate", m->experts, false);
    mx_gating choice = {.k = m->k, .renormalise = true};
    mx_routing r = mx_route(g, logits, mx_softmax(g, logits), choice);
    mx_balance(g, b, m, &r);
    mx_dispatch t = mx_dispatch_tokens(g, b, x, &r, m->capacity);
    mx_scope(g, "experts");
    mx_node *h = mx_expert_linear(g, b, &t, t.rows, "gate_up_proj", 2 * m->d_ff,
                                  mx_gate_up_axes(g, m->d_ff, false), false);
    mx_node *both = mx_split(g, mx_name(g, "moe_mlpwi_0", h), 2, (int64_t[]){m->d_ff, m->d_ff});
    h = mx_weigh(g, &t, mx_mul(g, mx_activation(g, both, text->act), mx_output(g, both, 1)));
    h = mx_expert_linear(g, b, &t, h, "down_proj", text->d, "exp,embed_moe,mlp_moe", false);
    mx_scope_end(g, h);
    return mx_scope_end(g, mx_combine(g, b, &t, mx_name(g, "moe_mlpwo", h)));
}

static mx_head build(mx_graph *g, const void *config_, mx_build *b)
{
    const config *c = config_;
    return mx_qwen3_vl_build(g, &c->text, &c->tower, b, mlp);
}

static void images(const void *config_, mx_image_spec *s)
{
    mx_qwen3_vl_images(&((const config *)config_)->tower, s);
}

static mx_status finish_text(void *config_, const json_t *json)
{
    config *c = config_;
    c->text.qk_norm = true;
    c->text.out_bias = c->text.qkv_bias;
    MX_TRY(mx_check_moe(&c->moe));
    return mx_decoder_finish(config_, json);
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    return mx_qwen3_vl_finish(&c->text, &c->tower, json);
}

/* The same tensor with its last two dims exchanged. */
static int other_parts(const char *name, const mx_type *type, mx_weight_part *out)
{
    if (type->ndim != 3 || !(mx_ends_with(name, "gate_up_proj") || mx_ends_with(name, "down_proj")))
        return 0;
    *out = (mx_weight_part){.transposed = true, .cut = 2, .of = type->dim[2],
                            .count = type->dim[2]};
    snprintf(out->name, sizeof out->name, "%s", name);
    return 1;
}

static const mx_cfg_field text_fields[] = {
    MX_CFG_SIZES_OR(mx_decoder, 151936, 2048, 5632, 24, 16),
    MX_CFG_DECODER_REST(mx_decoder, 500000),
    MX_CFG(mx_decoder, qkv_bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG_QWEN_MOE(config, 4, 1408, 1),
    {0},
};

static const mx_model language = {
    .name = "qwen3_vl_moe", .fields = text_fields, .config_size = sizeof(config),
    .finish = finish_text, .summary = mx_decoder_summary,
};

static const mx_cfg_field fields[] = {MX_CFG_QWEN3_TOWER(config), {0}};

const mx_model mx_model_qwen3_vl_moe = {
    .name = "qwen3_vl_moe",
    .doc = "Qwen3-VL with experts: 30B-A3B, 235B-A22B",
    .model_types = "qwen3_vl_moe",
    .architecture = "Qwen3VLMoeForConditionalGeneration",
    .config_size = sizeof(config),
    .text = &language,
    .fields = fields,
    .finish = finish,
    .images = images,
    .build = build,
    .other_parts = other_parts,
    .unused = "model.visual.*",
    .no_decay = "*norm*,*.bias",
    .tower = MX_QWEN3_TOWER,
    .vision = "vision transformer over pictures of any proportions, merger, deep features",
    .decoder_block = "qwen3_moe",
    .decoder_keys = "use_multimodal=true,vision_encoder_block=qwen3_vl",
    .fixed_keys = "use_qk_norm=true",
};

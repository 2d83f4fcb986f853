/* llama4_vision.c - Llama 4 with images: its vision transformer, pixel shuffle, adapter, Llama 4.
 *
 *     pixels (N, 3, size, size), one tile each -> patches and after them a class token, positions
 *     both learned and rotary by row and column -> blocks -> without the class token, side x side
 *     neighbours merged (pixel shuffle) -> two layers of GELU -> projection (N T, d)
 * take the place of the embeddings of image tokens, T for each tile. Without images: Llama 4.
 */
#include "models/llama4.h"
#include "nn/vision.h"

#include "ops.h"
#include <math.h>

typedef struct {
    mx_llama4 text; /* first: its fields are llama4's */
    mx_vit vit;
    double theta, shuffle;
    int64_t adapter_in, adapter_out; /* widths of the adapter's two layers */
    int64_t out; /* the second again, for programs that read it there */
    int64_t image_token;
} llama4_vision;

static int64_t shuffle_side(const llama4_vision *c)
{
    return (int64_t)lround(1 / c->shuffle);
}

static int64_t grid(const llama4_vision *c)
{
    return c->vit.image_size / c->vit.patch;
}

static mx_node *embeddings(mx_graph *g, const llama4_vision *c, const mx_build *b)
{
    const mx_vit *v = &c->vit;
    mx_node *x = mx_patches(g, b->pixels, v->patch);
    x = mx_linear(g, b, x, "patch_embedding.linear", v->d, "embed,", false);
    int64_t N = x->type.dim[0], P = x->type.dim[1];
    mx_init init = MX_NORMAL(1 / sqrt((double)v->d));
    mx_node *class = mx_param(g, "class_embedding", MX_SHAPE(v->d), "embed", init);
    class = mx_broadcast_to(g, class, MX_SHAPE(N, 1, v->d));
    x = mx_concat(g, 2, (mx_node *[]){x, class}, 1);
    return mx_add(g, x, mx_param(g, "positional_embedding_vlm", MX_SHAPE(P + 1, v->d), ",embed",
                                 init));
}

static mx_node *tower(mx_graph *g, const llama4_vision *c, const mx_build *b)
{
    const mx_vit *v = &c->vit;
    mx_scope(g, "vision_model");
    mx_node *x = mx_layer_norm(g, embeddings(g, c, b), "layernorm_pre", v->eps);
    mx_rope_table t = mx_rope_tables_2d(g, grid(c), v->d / v->heads, c->theta);
    for (int64_t l = 0; l < v->layers; l++) {
        mx_scope(g, "model.layers.%lld", (long long)l);
        x = mx_scope_end(g, mx_vit_block(g, b, v, x, &t));
    }
    x = mx_layer_norm(g, x, "layernorm_post", v->eps);
    x = mx_merge_patches(g, mx_slice(g, x, 1, 0, grid(c) * grid(c)), shuffle_side(c));
    mx_scope(g, "vision_adapter.mlp");
    x = mx_gelu_erf(g, mx_linear(g, b, x, "fc1", c->adapter_in, "mlp,embed", false));
    x = mx_gelu_erf(g, mx_linear(g, b, x, "fc2", c->adapter_out, "embed,mlp", false));
    mx_scope_end(g, x);
    return mx_scope_end(g, x);
}

static mx_node *tower_features(mx_graph *g, const llama4_vision *c, const mx_build *b)
{
    mx_node *x = tower(g, c, b);
    x = mx_linear(g, b, x, "multi_modal_projector.linear_1", c->text.d, "embed,mlp", false);
    return mx_reshape(g, x, MX_SHAPE(x->type.dim[0] * x->type.dim[1], c->text.d));
}

static mx_head build(mx_graph *g, const void *config, mx_build *b)
{
    const llama4_vision *c = config;
    mx_node *tokens = b->tokens, *image = NULL, *features = NULL;
    if (b->pixels || b->image) {
        mx_token_kinds kinds = mx_split_tokens(g, b, c->image_token, 0);
        features = b->pixels ? tower_features(g, c, b) : NULL;
        mx_image_embed(g, b, &kinds, &features, 1, &image);
        b->tokens = kinds.text;
    }
    mx_scope(g, "language_model");
    mx_scope(g, "model");
    mx_node *x = mx_embedding(g, b, "embed_tokens", c->text.vocab, c->text.d);
    b->tokens = tokens;
    x = mx_llama4_layers(g, &c->text, b, image ? mx_add(g, x, image) : x);
    mx_scope_end(g, x);
    mx_head head = {.hidden = x,
                    .weight = mx_head_weight(g, b, c->text.vocab, c->text.d, c->text.tied)};
    mx_scope_end(g, x);
    return head;
}

static void images(const void *config, mx_image_spec *s)
{
    const llama4_vision *c = config;
    int64_t side = grid(c) / shuffle_side(c);
    *s = (mx_image_spec){.channels = c->vit.channels, .size = c->vit.image_size,
                         .token = c->image_token, .tokens = side * side, .max_tiles = 16,
                         .in_bf16 = true, .mark = "<|image|>", .begin = "<|image_start|>",
                         .piece = "<|patch|>", .between = "<|tile_x_separator|>",
                         .row_end = "<|tile_y_separator|>", .whole = "<|image|>",
                         .end = "<|image_end|>"};
}

static mx_status finish(void *config, const json_t *json)
{
    llama4_vision *c = config;
    (void)json;
    c->vit.norm_1 = "input_layernorm";
    c->vit.norm_2 = "post_attention_layernorm";
    c->vit.out_proj = "o_proj";
    c->vit.act = MX_ACT_GELU_ERF;
    c->vit.eps = 1e-5; /* the reference's, whatever norm_eps says */
    MX_TRY(mx_check_vit(&c->vit));
    if (c->vit.d / c->vit.heads % 4)
        return mx_fail(MX_INPUT,
                       "vision_config: heads of %lld are rotated by row and column, so their "
                       "size must be a multiple of 4",
                       (long long)(c->vit.d / c->vit.heads));
    if (grid(c) % shuffle_side(c) ||
        fabs(c->shuffle * (double)shuffle_side(c) - 1) > 1e-6)
        return mx_fail(MX_INPUT, "vision_config: \"pixel_shuffle_ratio\" is %g, expected 1 over a "
                       "number that divides the %lld patches along an image", c->shuffle,
                       (long long)grid(c));
    return MX_OK;
}

static const mx_cfg_field fields[] = {
    MX_CFG_VIT(llama4_vision, 768, 5632, 34, 16, 448, 14),
    MX_CFG(llama4_vision, theta,
           "vision_config.rope_parameters.rope_theta|vision_config.rope_theta", MX_IS_THETA,
           .fallback = 10000,
           .maxtext = "rope_theta_for_vit"),
    MX_CFG(llama4_vision, shuffle, "vision_config.pixel_shuffle_ratio", MX_CFG_F64(0.01, 1),
           .fallback = 0.5,
           .maxtext = "pixel_shuffle_ratio_for_vit"),
    MX_CFG(llama4_vision, adapter_in, "vision_config.projector_input_dim", MX_IS_WIDTH,
           .fallback = 4096,
           .maxtext = "projector_input_dim_for_vit"),
    MX_CFG(llama4_vision, adapter_out, "vision_config.projector_output_dim", MX_IS_WIDTH,
           .fallback = 4096,
           .maxtext = "projector_output_dim_for_vit"),
    MX_CFG(llama4_vision, out, "vision_config.vision_output_dim", MX_IS_WIDTH, .fallback = 7680),
    MX_CFG(llama4_vision, image_token, "image_token_index|image_token_id", MX_IS_TOKEN,
           .fallback = 200092),
    {0},
};

const mx_model mx_model_llama4_vision = {
    .name = "llama4_vision",
    .doc = "Llama 4 Scout and Maverick with images",
    .model_types = "llama4",
    .architecture = "Llama4ForConditionalGeneration",
    .config_size = sizeof(llama4_vision),
    .text = &mx_model_llama4,
    .fields = fields,
    .finish = finish,
    .images = images,
    .build = build,
    .other_parts = mx_separate_experts_transposed,
    .unused = "vision_model.*,multi_modal_projector.*",
    .no_decay = "*norm*,*.bias",
    .tower = "vision_model.*",
    .vision = "vision transformer over tiles, pixel shuffle, adapter",
    .decoder_block = "llama4",
    .decoder_keys = "use_multimodal=true,vision_encoder_block=llama4",
};

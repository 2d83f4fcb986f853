/* gemma3_vision.c - Gemma 3 with images: SigLIP, averaged patches, a projection, Gemma 3.
 *
 *     pixels (N, 3, size, size) -> patches -> SigLIP's blocks -> (N, P, v) -> means of neighbours
 *     (N, T, v) -> RMS norm -> projection (N T, d)
 * take the place of the embeddings of image tokens, T for each image; these are not scaled by
 * sqrt(d). The tokens of one image see each other both ways. SigLIP's own pooling head is in the
 * checkpoint and has no use here. Without images this is Gemma 3.
 */
#include "models/gemma.h"
#include "nn/vision.h"

#include "ops.h"
#include <math.h>

typedef struct {
    mx_gemma text; /* first: its fields are gemma3's */
    mx_vit vit;
    int64_t image_token, tokens_per_image;
    bool use_head; /* the checkpoint has SigLIP's pooling head, which has no use here */
} gemma3_vision;

static mx_node *tower(mx_graph *g, const mx_vit *v, const mx_build *b)
{
    int64_t p = v->patch, in = v->channels * p * p;
    mx_scope(g, "vision_tower");
    mx_scope(g, "embeddings");
    mx_node *x = mx_patches(g, b->pixels, p);
    mx_scope(g, "patch_embedding");
    mx_node *w = mx_param(g, "weight", MX_SHAPE(v->d, v->channels, p, p), "embed,,,",
                          MX_NORMAL(b->init_scale));
    x = mx_matmul(g, "*d,fd->*f", x, mx_reshape(g, w, MX_SHAPE(v->d, in)));
    x = mx_add(g, x, mx_param(g, "bias", MX_SHAPE(v->d), "embed", MX_ZEROS));
    mx_scope_end(g, x);
    x = mx_add(g, x, mx_param(g, "position_embedding.weight", MX_SHAPE(x->type.dim[1], v->d),
                              ",embed", MX_NORMAL(b->init_scale)));
    mx_scope_end(g, x);
    for (int64_t l = 0; l < v->layers; l++) {
        mx_scope(g, "encoder.layers.%lld", (long long)l);
        x = mx_scope_end(g, mx_vit_block(g, b, v, x, NULL));
    }
    return mx_scope_end(g, mx_layer_norm(g, x, "post_layernorm", v->eps));
}

/* How many patches lie along one side of what becomes a token. */
static int64_t pool_side(const gemma3_vision *c)
{
    return c->vit.image_size / c->vit.patch / (int64_t)lround(sqrt((double)c->tokens_per_image));
}

static mx_node *tower_features(mx_graph *g, const gemma3_vision *c, const mx_build *b)
{
    mx_node *x = mx_pool_patches(g, tower(g, &c->vit, b), pool_side(c));
    mx_scope(g, "multi_modal_projector");
    x = mx_rms_norm(g, x, "mm_soft_emb_norm", c->vit.eps, true);
    mx_node *w = mx_param(g, "mm_input_projection_weight", MX_SHAPE(c->vit.d, c->text.d),
                          "mlp,embed", MX_NORMAL(b->init_scale));
    x = mx_matmul(g, "*d,df->*f", x, w);
    x = mx_reshape(g, x, MX_SHAPE(x->type.dim[0] * x->type.dim[1], c->text.d));
    return mx_scope_end(g, x);
}

static mx_head build(mx_graph *g, const void *config, mx_build *b)
{
    const gemma3_vision *c = config;
    mx_node *tokens = b->tokens, *image = NULL, *features = NULL;
    if (b->pixels || b->image) {
        mx_token_kinds kinds = mx_split_tokens(g, b, c->image_token, 0);
        b->spans = mx_image_spans(g, b, c->image_token);
        features = b->pixels ? tower_features(g, c, b) : NULL;
        mx_image_embed(g, b, &kinds, &features, 1, &image);
        b->tokens = kinds.text;
    }
    mx_scope(g, "language_model");
    mx_scope(g, "model");
    mx_node *x = mx_gemma_embed(g, &c->text, b);
    b->tokens = tokens;
    x = mx_gemma_layers(g, &c->text, b, image ? mx_add(g, x, image) : x);
    mx_scope_end(g, x);
    mx_head head = {.hidden = x, .softcap = c->text.logit_cap,
                    .weight = mx_head_weight(g, b, c->text.vocab, c->text.d, c->text.tied)};
    mx_scope_end(g, x);
    return head;
}

static void images(const void *config, mx_image_spec *s)
{
    const gemma3_vision *c = config;
    *s = (mx_image_spec){.channels = c->vit.channels, .size = c->vit.image_size,
                         .token = c->image_token, .tokens = c->tokens_per_image, .max_tiles = 1,
                         .both_ways = true,
                         .mark = "<start_of_image>", .begin = "\n\n<start_of_image>",
                         .piece = "<image_soft_token>", .end = "<end_of_image>\n\n",
                         .crop_texts = {"Here is the original image ",
                                        " and here are some crops to help you see better ",
                                        " "}};
}

static mx_status finish(void *config, const json_t *json)
{
    gemma3_vision *c = config;
    (void)json;
    c->vit.norm_1 = "layer_norm1";
    c->vit.norm_2 = "layer_norm2";
    c->vit.out_proj = "out_proj";
    MX_TRY(mx_check_vit(&c->vit));
    int64_t side = (int64_t)lround(sqrt((double)c->tokens_per_image));
    if (side * side != c->tokens_per_image ||
        c->vit.image_size / c->vit.patch % side)
        return mx_fail(MX_INPUT, "\"mm_tokens_per_image\" is %lld, expected a square whose side "
                       "divides the %lld patches along an image", (long long)c->tokens_per_image,
                       (long long)(c->vit.image_size / c->vit.patch));
    return MX_OK;
}

/* Checkpoints written by older programs name SigLIP's model as a part of the tower. */
static const char *other_name(const char *name, char *buf, size_t cap)
{
    static const char tower_name[] = "vision_tower.";
    if (!mx_starts_with(name, tower_name))
        return NULL;
    snprintf(buf, cap, "%svision_model.%s", tower_name, name + sizeof tower_name - 1);
    return buf;
}

static const mx_cfg_field fields[] = {
    MX_CFG_VIT(gemma3_vision, 1152, 4304, 27, 16, 896, 14),
    MX_CFG(gemma3_vision, vit.act, "vision_config.hidden_act", MX_CFG_ACT,
           .fallback = MX_ACT_GELU_TANH,
           .own = true),
    MX_CFG(gemma3_vision, vit.eps, "vision_config.layer_norm_eps", MX_IS_EPSILON, .fallback = 1e-6),
    MX_CFG(gemma3_vision, use_head, "vision_config.vision_use_head", MX_CFG_BOOL, .fallback = 1),
    MX_CFG(gemma3_vision, image_token, "image_token_index|image_token_id", MX_IS_TOKEN,
           .fallback = 262144),
    MX_CFG(gemma3_vision, tokens_per_image, "mm_tokens_per_image", MX_IS_COUNT, .fallback = 256,
           .maxtext = "vision_output_length"),
    {0},
};

const mx_model mx_model_gemma3_vision = {
    .name = "gemma3_vision",
    .doc = "Gemma 3 with images",
    .model_types = "gemma3",
    .architecture = "Gemma3ForConditionalGeneration",
    .config_size = sizeof(gemma3_vision),
    .text = &mx_model_gemma3,
    .fields = fields,
    .finish = finish,
    .images = images,
    .build = build,
    .other_name = other_name,
    .unused = "vision_tower.*,multi_modal_projector.*",
    .no_decay = "*norm*,vision_tower.*.bias",
    .tower = "vision_tower.*",
    .vision = "SigLIP, averaged patches; the tokens of an image see each other both ways",
    .decoder_block = "gemma3",
    .decoder_keys = "use_multimodal=true,vision_encoder_block=gemma3",
};

/* gemma4_vision.c - Gemma 4 with images: its vision transformer, averaged patches, a projection,
 * Gemma 4.
 *
 *     a picture keeps its proportions: as many patches of p x p as max_soft_tokens allow, in pieces
 *     of side x side (nn/vision.h) -> patches (B, P, 3 p p) times a matrix, plus an embedding of
 *     their column and one of their row -> blocks -> means of pieces times sqrt(v), standardised if
 *     the configuration says so -> RMS norm without weight -> projection (B n, d)
 * take the place of the embeddings of image tokens, one for each piece; these are not scaled by
 * sqrt(d), and their per-layer inputs are those of the padding token. Blocks are as the decoder's:
 * norms before and after, q, k and v normed, no scale, and half a head rotated by the column, half
 * by the row. Linear maps may limit what goes in and what comes out. With
 * use_bidirectional_attention = "vision" the tokens of an image see each other both ways in sliding
 * layers. Sound (audio_tower, embed_audio) is carried along and not used. Without images: Gemma 4.
 */
#include "models/gemma4.h"
#include "nn/vision.h"

#include "ops.h"
#include <math.h>
#include <string.h>

typedef struct {
    mx_gemma4 text; /* first: its fields are gemma4's */
    int64_t d, d_ff, layers, heads, kv_heads, head_dim, patch, side, positions;
    mx_act act;
    double eps, theta;
    bool clipped, standardise;
    int64_t image_token, video_token, audio_token, max_tokens;
} gemma4_vision;

/* --- the tower --- */

static mx_node *limit(mx_graph *g, mx_node *x, const char *low, const char *high)
{
    x = mx_maximum(g, x, mx_buffer(g, low, MX_SCALAR, MX_VALUE(-INFINITY)));
    return mx_minimum(g, x, mx_buffer(g, high, MX_SCALAR, MX_VALUE(INFINITY)));
}

static mx_node *linear(mx_graph *g, const gemma4_vision *c, const mx_build *b, mx_node *x,
                       const char *name, int64_t out, const char *axes)
{
    mx_scope(g, "%s", name);
    if (c->clipped)
        x = limit(g, x, "input_min", "input_max");
    x = mx_linear(g, b, x, "linear", out, axes, false);
    if (c->clipped)
        x = limit(g, x, "output_min", "output_max");
    return mx_scope_end(g, x);
}

static mx_node *norm(mx_graph *g, const gemma4_vision *c, mx_node *x, const char *name)
{
    return mx_rms_norm(g, x, name, c->eps, false);
}

/* Each half of a head turns within itself. */
static mx_node *rotate(mx_graph *g, mx_node *x, const mx_rope_table *t)
{
    const int64_t *s = x->type.dim; /* (B, P, heads, D) */
    mx_node *halves = mx_reshape(g, x, MX_SHAPE(s[0], s[1], 2 * s[2], s[3] / 2));
    mx_node *rotated = mx_rotate_half(g, halves, s[3] / 2, false);
    rotated = mx_reshape(g, rotated, mx_shape_of(&x->type));
    return mx_add(g, mx_mul(g, x, t->cos), mx_mul(g, rotated, t->sin));
}

static mx_node *attention(mx_graph *g, const gemma4_vision *c, const mx_build *b,
                          const mx_pieces *p, mx_node *x, const mx_rope_table *t)
{
    int64_t B = x->type.dim[0], P = x->type.dim[1], H = c->heads, K = c->kv_heads, D = c->head_dim;
    mx_scope(g, "self_attn");
    mx_head_axes axes = mx_attention_axes(g, D);
    mx_node *q = linear(g, c, b, x, "q_proj", H * D, axes.q);
    mx_node *k = linear(g, c, b, x, "k_proj", K * D, axes.kv);
    mx_node *v = linear(g, c, b, x, "v_proj", K * D, axes.kv);
    q = norm(g, c, mx_reshape(g, q, MX_SHAPE(B, P, H, D)), "q_norm");
    k = norm(g, c, mx_reshape(g, k, MX_SHAPE(B, P, K, D)), "k_norm");
    v = mx_rms_scale(g, mx_reshape(g, v, MX_SHAPE(B, P, K, D)), c->eps);
    mx_node *o = mx_piece_attention(g, p, rotate(g, q, t), rotate(g, k, t), v, 1);
    return mx_scope_end(g, linear(g, c, b, o, "o_proj", c->d, axes.out));
}

static mx_node *block(mx_graph *g, const gemma4_vision *c, const mx_build *b, const mx_pieces *p,
                      mx_node *x, const mx_rope_table *t)
{
    mx_node *h = attention(g, c, b, p, norm(g, c, x, "input_layernorm"), t);
    x = mx_add(g, x, norm(g, c, h, "post_attention_layernorm"));
    h = norm(g, c, x, "pre_feedforward_layernorm");
    mx_scope(g, "mlp");
    mx_node *gate = mx_activation(g, linear(g, c, b, h, "gate_proj", c->d_ff, "mlp,embed"), c->act);
    h = mx_mul(g, gate, linear(g, c, b, h, "up_proj", c->d_ff, "mlp,embed"));
    h = mx_scope_end(g, linear(g, c, b, h, "down_proj", c->d, "embed,mlp"));
    return mx_add(g, x, norm(g, c, h, "post_feedforward_layernorm"));
}

static mx_node *place_of(mx_graph *g, mx_node *table, mx_node *place, int64_t first)
{
    const int64_t *s = place->type.dim;
    mx_node *id = mx_reshape(g, mx_affine(g, place, 1, (double)first), MX_SHAPE(s[0], s[1]));
    return mx_embed(g, table, mx_cast(g, id, MX_I32));
}

static mx_node *embeddings(mx_graph *g, const gemma4_vision *c, const mx_build *b,
                           const mx_pieces *p)
{
    mx_scope(g, "patch_embedder");
    mx_node *x = mx_affine(g, p->patches, 2, -1);
    x = mx_linear(g, b, x, "input_proj", c->d, "embed,", false);
    mx_node *table = mx_param(g, "position_embedding_table", MX_SHAPE(2, c->positions, c->d),
                              ",,embed", MX_ONES);
    table = mx_reshape(g, table, MX_SHAPE(2 * c->positions, c->d));
    x = mx_add(g, x, place_of(g, table, p->column, 0));
    return mx_scope_end(g, mx_add(g, x, place_of(g, table, p->row, c->positions)));
}

static mx_rope_table rope(mx_graph *g, const gemma4_vision *c, const mx_pieces *p)
{
    int64_t D = c->head_dim, quarter = D / 4;
    double *by_column = MX_NEW_N(&g->arena, double, D), *by_row = MX_NEW_N(&g->arena, double, D);
    for (int64_t i = 0; i < D; i++) {
        float f = (float)pow(c->theta, -4.0 * (double)(i % quarter) / (double)D);
        *(i < D / 2 ? &by_column[i] : &by_row[i]) = f;
    }
    return mx_rope_tables_pieces(g, p, by_column, by_row, D);
}

/* Means of the patches of each piece, (B n, d). */
static mx_node *pool(mx_graph *g, const gemma4_vision *c, const mx_pieces *p, mx_node *x)
{
    int64_t rows = x->type.dim[0] * p->n, area = p->side * p->side;
    x = mx_transpose(g, mx_reshape(g, x, MX_SHAPE(rows, area, c->d)), "nad->nda");
    x = mx_reshape(g, mx_row_mean(g, x), MX_SHAPE(rows, c->d));
    return mx_affine(g, x, sqrt((double)c->d), 0);
}

static mx_node *tower_features(mx_graph *g, const gemma4_vision *c, const mx_build *b)
{
    mx_pieces p = mx_open_pieces(g, b, c->side);
    mx_rope_table t = rope(g, c, &p);
    mx_scope(g, "vision_tower");
    mx_node *x = embeddings(g, c, b, &p);
    for (int64_t l = 0; l < c->layers; l++) {
        mx_scope(g, "encoder.layers.%lld", (long long)l);
        x = mx_scope_end(g, block(g, c, b, &p, x, &t));
    }
    x = pool(g, c, &p, x);
    if (c->standardise) {
        x = mx_sub(g, x, mx_buffer(g, "std_bias", MX_SHAPE(c->d), MX_ZEROS));
        x = mx_mul(g, x, mx_buffer(g, "std_scale", MX_SHAPE(c->d), MX_ONES));
    }
    mx_scope_end(g, x);
    x = mx_rms_scale(g, x, c->eps);
    return mx_linear(g, b, x, "embed_vision.embedding_projection", c->text.d, "embed,mlp", false);
}

/* Tokens of what is not there count as padding: a film's, a sound's, and an image's in a program
 * without images, where a model may write one. */
static mx_node *pad_tokens(mx_graph *g, const gemma4_vision *c, const mx_build *b)
{
    const int64_t id[3] = {c->video_token, c->audio_token, c->image_token};
    mx_node *t = mx_cast(g, b->tokens, MX_F32);
    for (int i = 0; i < (b->pixels ? 2 : 3); i++) {
        mx_node *is = mx_equal(g, b->tokens, mx_constant(g, MX_SCALAR, MX_I32, (double)id[i]));
        t = mx_add(g, t, mx_mul(g, is, mx_affine(g, t, -1, (double)c->text.pad)));
    }
    return mx_cast(g, t, MX_I32);
}

static mx_head build(mx_graph *g, const void *config, mx_build *b)
{
    const gemma4_vision *c = config;
    mx_node *tokens = b->tokens, *image = NULL, *features = NULL;
    mx_scope(g, "model");
    b->tokens = pad_tokens(g, c, b);
    if (b->pixels || b->image) {
        mx_token_kinds kinds = mx_split_tokens(g, b, c->image_token, mx_pieces_per_row(b));
        if (strcmp(c->text.bidirectional, "vision") == 0)
            b->spans = mx_image_spans(g, b, c->image_token);
        features = b->pixels ? tower_features(g, c, b) : NULL;
        mx_image_embed(g, b, &kinds, &features, 1, &image);
        b->tokens = kinds.text;
    }
    mx_scope(g, "language_model");
    mx_node *x = mx_scope_end(g, mx_gemma4_layers(g, &c->text, b, image));
    b->tokens = tokens;
    mx_scope_end(g, x);
    const mx_gemma4 *t = &c->text;
    return (mx_head){.hidden = x, .softcap = t->logit_cap,
                     .weight = mx_head_weight_of_part(g, b, t->vocab, t->d, t->tied)};
}

/* --- configuration --- */

static void images(const void *config, mx_image_spec *s)
{
    const gemma4_vision *c = config;
    int64_t piece = c->side * c->patch;
    *s = (mx_image_spec){.channels = 3, .patch = c->patch, .side = c->side, .frames = 1,
                         .channels_last = true, .max_grid = c->positions, .token = c->image_token,
                         .tokens = 1, .max_tiles = 1, .bicubic = true, .plain = true,
                         .max_pixels = c->max_tokens * piece * piece, .mark = "<|image|>",
                         .begin = "<|image>", .piece = "<|image|>", .end = "<image|>",
                         .both_ways = strcmp(c->text.bidirectional, "vision") == 0};
}

static mx_status finish(void *config, const json_t *json)
{
    gemma4_vision *c = config;
    (void)json;
    mx_vit v = {.d = c->heads * c->head_dim, .d_ff = c->d_ff, .layers = c->layers,
                .heads = c->heads, .channels = 3, .image_size = c->patch, .patch = c->patch};
    MX_TRY(mx_check_vit(&v));
    if (c->heads % c->kv_heads || c->head_dim % 4)
        return mx_fail(MX_INPUT,
                       "vision_config: %lld heads of %lld share %lld keys and are rotated by "
                       "column and row: the first must be a multiple of the third, the second of "
                       "4",
                       (long long)c->heads, (long long)c->head_dim, (long long)c->kv_heads);
    if (c->positions < c->side)
        return mx_fail(MX_INPUT, "vision_config: \"position_embedding_size\" is %lld, expected at "
                       "least \"pooling_kernel_size\", %lld", (long long)c->positions,
                       (long long)c->side);
    return MX_OK;
}

#define VISION "vision_config."
static const mx_cfg_field fields[] = {
    MX_CFG(gemma4_vision, d, VISION "hidden_size", MX_IS_WIDTH, .fallback = 768,
           .maxtext = "hidden_size_for_vit"),
    MX_CFG(gemma4_vision, d_ff, VISION "intermediate_size", MX_IS_WIDTH, .fallback = 3072,
           .maxtext = "intermediate_size_for_vit"),
    MX_CFG(gemma4_vision, layers, VISION "num_hidden_layers", MX_IS_LAYERS, .fallback = 16,
           .maxtext = "num_hidden_layers_for_vit"),
    MX_CFG(gemma4_vision, heads, VISION "num_attention_heads", MX_IS_HEADS, .fallback = 12,
           .maxtext = "num_attention_heads_for_vit"),
    MX_CFG(gemma4_vision, kv_heads, VISION "num_key_value_heads", MX_IS_HEADS, .fallback = 12,
           .maxtext = "num_attention_heads_for_vit"),
    MX_CFG(gemma4_vision, head_dim, VISION "head_dim", MX_IS_HEAD_DIM, .fallback = 64),
    MX_CFG(gemma4_vision, act, VISION "hidden_activation", MX_CFG_ACT,
           .fallback = MX_ACT_GELU_TANH,
           .own = true),
    MX_CFG(gemma4_vision, eps, VISION "rms_norm_eps", MX_IS_EPSILON, .fallback = 1e-6),
    MX_CFG(gemma4_vision, theta, VISION "rope_parameters.rope_theta", MX_IS_THETA, .fallback = 100,
           .maxtext = "rope_theta_for_vit"),
    MX_CFG(gemma4_vision, side, VISION "pooling_kernel_size", MX_IS_SIDE, .fallback = 3),
    MX_CFG(gemma4_vision, patch, VISION "patch_size", MX_IS_PATCH, .fallback = 16,
           .maxtext = "patch_size_for_vit"),
    MX_CFG(gemma4_vision, positions, VISION "position_embedding_size", MX_IS_PLACES,
           .fallback = 10240,
           .maxtext = "num_position_embeddings_for_vit"),
    MX_CFG(gemma4_vision, clipped, VISION "use_clipped_linears", MX_CFG_BOOL),
    MX_CFG(gemma4_vision, standardise, VISION "standardize", MX_CFG_BOOL),
    MX_CFG(gemma4_vision, image_token, "image_token_id", MX_IS_TOKEN, .fallback = 258880),
    MX_CFG(gemma4_vision, video_token, "video_token_id", MX_IS_TOKEN, .fallback = 258884),
    MX_CFG(gemma4_vision, audio_token, "audio_token_id", MX_IS_TOKEN, .fallback = 258881),
    MX_CFG(gemma4_vision, max_tokens, "vision_soft_tokens_per_image", MX_IS_COUNT, .fallback = 280,
           .maxtext = "vision_output_length"),
    {0},
};

const mx_model mx_model_gemma4_vision = {
    .name = "gemma4_vision",
    .doc = "Gemma 4 with images",
    .model_types = "gemma4",
    .architecture = "Gemma4ForConditionalGeneration",
    .config_size = sizeof(gemma4_vision),
    .text = &mx_model_gemma4,
    .fields = fields,
    .finish = finish,
    .images = images,
    .build = build,
    .other_parts = mx_separate_experts,
    .unused = "model.vision_tower.*,model.embed_vision.*,"
              "*.self_attn.k_proj.*,*.self_attn.v_proj.*,*.self_attn.k_norm.*,*.self_attn.v_norm.*",
    .not_built = "model.audio_tower.*,model.embed_audio.*",
    .limits = "*.input_min,*.input_max,*.output_min,*.output_max",
    .no_decay = "*norm*,*.router.scale,*.per_expert_scale,*.bias",
    .tower = "model.vision_tower.*",
    .vision = "vision transformer over pictures of any proportions, averaged patches",
    .decoder_block = "gemma4,gemma4_small",
    .decoder_keys = "use_multimodal=true,vision_encoder_block=gemma4",
};

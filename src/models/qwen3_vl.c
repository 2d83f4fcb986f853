/* qwen3_vl.c - Qwen3-VL: a vision transformer over pictures of any proportions, a merger, Qwen3.
 *
 *     a picture keeps its proportions, each side a multiple of side p; its pieces (nn/vision.h) are
 *     side x side patches of p x p, every patch twice, as a film of two frames has it -> patches
 *     times a matrix, plus a learned table of G x G places, bilinear between them -> blocks; half
 *     of the pairs of a head turn by the row, half by the column -> merger: norm, a piece's patches
 *     joined, two layers of GELU -> (B n, d)
 * take the place of the embeddings of image tokens, one for each piece. After the layers of the
 * tower that deepstack_visual_indexes names, mergers of their own (which join before the norm) give
 * what is added to the same tokens after the first layers of the decoder.
 *
 * The decoder is Qwen3 with three rotary positions for each token, in time, height and width. Text
 * counts all three on; the tokens of an image stand still in time, and have row and column besides;
 * what follows begins after the larger of them. Without images this is Qwen3.
 */
#include "models/qwen3_vl.h"
#include "nn/vision.h"

#include "ops.h"
#include <math.h>
#include <string.h>

enum { MAX_DEEP = 16 };
static const double EPS = 1e-6;

/* --- the tower --- */

/* How many whole numbers from 1 to limit there are up to x: x (B, P, 1). */
static mx_node *whole(mx_graph *g, mx_node *x, int64_t limit)
{
    double *numbers = MX_NEW_N(&g->arena, double, limit);
    for (int64_t i = 0; i < limit; i++)
        numbers[i] = (double)(i + 1);
    mx_node *beyond = mx_greater(g, mx_table(g, MX_SHAPE(limit), x->type.dtype, numbers), x);
    return mx_row_sum(g, mx_affine(g, beyond, -1, 1));
}

/* A patch's place in the table along one side: its lower neighbour and its distance from it. */
typedef struct {
    mx_node *low, *high, *far; /* (B, P, 1) */
} between;

static between find_between(mx_graph *g, mx_node *place, mx_node *size, int64_t grid)
{
    mx_dtype t = place->type.dtype;
    mx_node *one = mx_constant(g, MX_SCALAR, t, 1);
    mx_node *last = mx_maximum(g, mx_affine(g, size, 1, -1), one);
    mx_node *at = mx_div(g, mx_affine(g, place, (double)(grid - 1), 0), last);
    mx_node *low = grid > 1 ? whole(g, at, grid - 1) : mx_affine(g, at, 0, 0);
    mx_node *high = mx_minimum(g, mx_affine(g, low, 1, 1),
                               mx_constant(g, MX_SCALAR, t, (double)(grid - 1)));
    return (between){low, high, mx_sub(g, at, low)};
}

static mx_node *place_embedding(mx_graph *g, const mx_qwen3_tower *v, const mx_build *b,
                                const mx_pieces *p)
{
    int64_t grid = (int64_t)lround(sqrt((double)v->positions));
    mx_shape ids = MX_SHAPE(p->row->type.dim[0], p->row->type.dim[1]);
    mx_node *table = mx_param(g, "pos_embed.weight", MX_SHAPE(v->positions, v->d), ",embed",
                              MX_NORMAL(b->init_scale));
    between y = find_between(g, p->row, p->height, grid);
    between x = find_between(g, p->column, p->width, grid);
    mx_node *sum = NULL;
    for (int corner = 0; corner < 4; corner++) {
        mx_node *row = corner / 2 ? y.high : y.low, *column = corner % 2 ? x.high : x.low;
        mx_node *down = corner / 2 ? y.far : mx_affine(g, y.far, -1, 1);
        mx_node *across = corner % 2 ? x.far : mx_affine(g, x.far, -1, 1);
        mx_node *id = mx_add(g, mx_affine(g, row, (double)grid, 0), column);
        mx_node *e = mx_embed(g, table, mx_cast(g, mx_reshape(g, id, ids), MX_I32));
        e = mx_mul(g, e, mx_mul(g, down, across));
        sum = sum ? mx_add(g, sum, e) : e;
    }
    return sum;
}

static mx_node *embeddings(mx_graph *g, const mx_qwen3_tower *v, const mx_build *b,
                           const mx_pieces *p)
{
    int64_t s = v->patch, floats = v->channels * v->frames * s * s;
    mx_scope(g, "patch_embed.proj");
    mx_node *w = mx_param(g, "weight", MX_SHAPE(v->d, v->channels, v->frames, s, s), "embed,,,,",
                          MX_NORMAL(b->init_scale));
    mx_node *x = mx_matmul(g, "*d,fd->*f", p->patches, mx_reshape(g, w, MX_SHAPE(v->d, floats)));
    x = mx_scope_end(g, mx_add(g, x, mx_param(g, "bias", MX_SHAPE(v->d), "embed", MX_ZEROS)));
    return mx_add(g, x, place_embedding(g, v, b, p));
}

static mx_node *block(mx_graph *g, const mx_qwen3_tower *v, const mx_build *b, const mx_pieces *p,
                      mx_node *x, const mx_rope_table *t)
{
    int64_t H = v->heads, D = v->d / H;
    mx_shape heads = MX_SHAPE(x->type.dim[0], x->type.dim[1], H, D);
    mx_node *h = mx_layer_norm(g, x, "norm1", EPS);
    long long d = v->d, each = D;
    const char *qkv = mx_axes_text(g, "q_heads(%lld*%lld+%lld*%lld+%lld*%lld),embed", d, each, d,
                                   each, d, each);
    h = mx_linear(g, b, h, "attn.qkv", 3 * v->d, qkv, true);
    mx_node *q = mx_split(g, h, 3, (int64_t[]){v->d, v->d, v->d});
    mx_node *k = mx_reshape(g, mx_output(g, q, 1), heads);
    mx_node *value = mx_reshape(g, mx_output(g, q, 2), heads);
    q = mx_rope_apply(g, mx_reshape(g, q, heads), t);
    h = mx_piece_attention(g, p, q, mx_rope_apply(g, k, t), value, 1 / sqrt((double)D));
    x = mx_add(g, x, mx_linear(g, b, h, "attn.proj", v->d, mx_attention_axes(g, D).out, true));
    h = mx_layer_norm(g, x, "norm2", EPS);
    h = mx_linear(g, b, h, "mlp.linear_fc1", v->d_ff, "mlp,embed", true);
    h = mx_linear(g, b, mx_activation(g, h, v->act), "mlp.linear_fc2", v->d, "embed,mlp", true);
    return mx_add(g, x, h);
}

/* Half of the pairs (i, i + D / 2) by the row, half by the column. */
static mx_rope_table rope(mx_graph *g, const mx_qwen3_tower *v, const mx_pieces *p)
{
    int64_t D = v->d / v->heads, quarter = D / 4;
    double *by_column = MX_NEW_N(&g->arena, double, D), *by_row = MX_NEW_N(&g->arena, double, D);
    for (int64_t i = 0; i < D; i++) {
        float f = (float)pow(v->theta, -4.0 * (double)(i % quarter) / (double)D);
        *(i % (D / 2) < quarter ? &by_row[i] : &by_column[i]) = f;
    }
    return mx_rope_tables_pieces(g, p, by_column, by_row, D);
}

/* x (B, P, d) -> (B n, out); joined: the patches of a piece are joined before the norm. */
static mx_node *merge(mx_graph *g, const mx_qwen3_tower *v, const mx_build *b, const mx_pieces *p,
                      mx_node *x, bool joined)
{
    int64_t width = p->side * p->side * v->d;
    mx_shape pieces = MX_SHAPE(x->type.dim[0] * p->n, width);
    x = mx_layer_norm(g, joined ? mx_reshape(g, x, pieces) : x, "norm", EPS);
    x = mx_linear(g, b, mx_reshape(g, x, pieces), "linear_fc1", width, "mlp,embed", true);
    return mx_linear(g, b, mx_gelu_erf(g, x), "linear_fc2", v->out, "embed,mlp", true);
}

/* Features, and in deep[] those that go deeper. */
static mx_node *tower(mx_graph *g, const mx_qwen3_tower *v, const mx_build *b, mx_node **deep)
{
    mx_pieces p = mx_open_pieces(g, b, v->side);
    mx_rope_table t = rope(g, v, &p);
    mx_scope(g, "visual");
    mx_node *x = embeddings(g, v, b, &p);
    for (int64_t l = 0; l < v->layers; l++) {
        mx_scope(g, "blocks.%lld", (long long)l);
        x = mx_scope_end(g, block(g, v, b, &p, x, &t));
        for (int i = 0; i < v->deep.n; i++)
            if (v->deep.v[i] == l) {
                mx_scope(g, "deepstack_merger_list.%d", i);
                deep[i] = mx_scope_end(g, merge(g, v, b, &p, x, true));
            }
    }
    mx_scope(g, "merger");
    x = mx_scope_end(g, merge(g, v, b, &p, x, false));
    return mx_scope_end(g, x);
}

mx_head mx_qwen3_vl_build(mx_graph *g, const mx_decoder *c, const mx_qwen3_tower *v, mx_build *b,
                          mx_decoder_block *mlp)
{
    /* what the first layer gets, and what goes deeper */
    mx_node *tokens = b->tokens, *features[1 + MAX_DEEP], *embedded[1 + MAX_DEEP];
    bool has = b->pixels || b->image;
    mx_scope(g, "model");
    if (has) {
        mx_token_kinds kinds = mx_split_tokens(g, b, v->image_token, mx_pieces_per_row(b));
        if (b->pixels)
            features[0] = tower(g, v, b, features + 1);
        mx_image_embed(g, b, &kinds, features, 1 + v->deep.n, embedded);
        b->tokens = kinds.text;
    }
    mx_decoder_images images = {
        .embedded = has ? embedded[0] : NULL, .deep = embedded + 1, .n_deep = v->deep.n};
    mx_scope(g, "language_model");
    mx_node *x = mx_decoder_layers(g, c, b, mlp, has ? &images : NULL);
    mx_scope_end(g, mx_scope_end(g, x));
    b->tokens = tokens;
    return (mx_head){.hidden = x,
                     .weight = mx_head_weight_of_part(g, b, c->vocab, c->d, c->tied)};
}

/* --- configuration --- */

void mx_qwen3_vl_images(const mx_qwen3_tower *v, mx_image_spec *s)
{
    int64_t area = v->side * v->patch * v->side * v->patch;
    *s = (mx_image_spec){.channels = v->channels, .patch = v->patch, .side = v->side,
                         .frames = v->frames, .token = v->image_token, .tokens = 1, .max_tiles = 1,
                         .bicubic = true, .min_pixels = 64 * area, .max_pixels = 16384 * area,
                         .places = true, .mark = "<|image_pad|>", .begin = "",
                         .piece = "<|image_pad|>", .end = "",
                         .alone = "<|vision_start|><|image_pad|><|vision_end|>"};
}

static mx_status check_deep(const mx_decoder *c, const mx_qwen3_tower *v)
{
    if (v->deep.n > MAX_DEEP || v->deep.n > c->layers)
        return mx_fail(MX_INPUT, "vision_config: \"deepstack_visual_indexes\" names %d layers, "
                       "expected at most %d, and no more than the decoder's %lld", v->deep.n,
                       MAX_DEEP, (long long)c->layers);
    for (int i = 0; i < v->deep.n; i++) {
        bool twice = i > 0 && v->deep.v[i] <= v->deep.v[i - 1];
        if (v->deep.v[i] >= v->layers || twice)
            return mx_fail(MX_INPUT, "vision_config: \"deepstack_visual_indexes\"[%d] is %lld, "
                           "expected rising numbers below the tower's %lld layers", i,
                           (long long)v->deep.v[i], (long long)v->layers);
    }
    return MX_OK;
}

mx_status mx_qwen3_vl_finish(mx_decoder *c, mx_qwen3_tower *v, const json_t *json)
{
    if (!json_object_get(json_object_get(json, "vision_config"), "deepstack_visual_indexes"))
        v->deep = (mx_int_list){3, {8, 16, 24}};
    const json_t *tied = json_object_get(json, "tie_word_embeddings");
    if (json_is_boolean(tied)) /* what text_config says does not count then */
        c->tied = json_is_true(tied);

    mx_vit vit = {.d = v->d, .d_ff = v->d_ff, .layers = v->layers, .heads = v->heads,
                  .channels = v->channels, .image_size = v->patch, .patch = v->patch};
    int64_t grid = (int64_t)lround(sqrt((double)v->positions)), pairs = 0;
    MX_TRY(mx_check_vit(&vit));
    if (v->d / v->heads % 4 || v->out != c->d)
        return mx_fail(MX_INPUT,
                       "vision_config: heads of %lld are rotated by row and column, so their "
                       "size must be a multiple of 4, and \"out_hidden_size\" %lld must be the "
                       "decoder's %lld",
                       (long long)(v->d / v->heads), (long long)v->out, (long long)c->d);
    if (grid * grid != v->positions)
        return mx_fail(MX_INPUT, "vision_config: \"num_position_embeddings\" is %lld, expected a "
                       "square", (long long)v->positions);
    MX_TRY(check_deep(c, v));
    static const int64_t usual[3] = {24, 20, 20};
    for (int i = 0; i < 3; i++) {
        c->rope.sections[i] = v->sections.n == 3 ? v->sections.v[i] : usual[i];
        pairs += c->rope.sections[i];
    }
    if ((v->sections.n && v->sections.n != 3) || pairs != c->head_dim / 2 ||
        c->rope.sections[0] < 1)
        return mx_fail(MX_INPUT, "\"mrope_section\" must be three numbers of %lld pairs in all "
                       "(head_dim / 2); found %lld", (long long)c->head_dim / 2, (long long)pairs);
    return MX_OK;
}

/* --- the dense family --- */

typedef struct {
    mx_decoder text; /* first: its fields are the language part's */
    mx_qwen3_tower tower;
} qwen3_vl;

static const mx_cfg_field text_fields[] = {
    MX_CFG_SIZES_OR(mx_decoder, 151936, 4096, 22016, 32, 32),
    MX_CFG_DECODER_REST(mx_decoder, 500000),
    MX_CFG(mx_decoder, qkv_bias, "attention_bias", MX_CFG_BOOL),
    {0},
};

static const mx_model language = {
    .name = "qwen3_vl", .fields = text_fields, .config_size = sizeof(mx_decoder),
    .finish = mx_qwen3_finish, .summary = mx_decoder_summary,
};

static mx_head build(mx_graph *g, const void *config, mx_build *b)
{
    const qwen3_vl *c = config;
    return mx_qwen3_vl_build(g, &c->text, &c->tower, b, mx_decoder_mlp);
}

static void images(const void *config, mx_image_spec *s)
{
    mx_qwen3_vl_images(&((const qwen3_vl *)config)->tower, s);
}

static mx_status finish(void *config, const json_t *json)
{
    qwen3_vl *c = config;
    return mx_qwen3_vl_finish(&c->text, &c->tower, json);
}

static const mx_cfg_field fields[] = {MX_CFG_QWEN3_TOWER(qwen3_vl), {0}};

const mx_model mx_model_qwen3_vl = {
    .name = "qwen3_vl",
    .doc = "Qwen3-VL 2B, 4B, 8B, 32B: with images",
    .model_types = "qwen3_vl",
    .architecture = "Qwen3VLForConditionalGeneration",
    .config_size = sizeof(qwen3_vl),
    .text = &language,
    .fields = fields,
    .finish = finish,
    .images = images,
    .build = build,
    .unused = "model.visual.*",
    .no_decay = "*norm*,*.bias",
    .tower = MX_QWEN3_TOWER,
    .vision = "vision transformer over pictures of any proportions, merger, deep features",
    .decoder_block = "qwen3",
    .decoder_keys = "use_multimodal=true,vision_encoder_block=qwen3_vl",
    .fixed_keys = "use_qk_norm=true",
};

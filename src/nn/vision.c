/* vision.c - patches, blocks and token kinds: see vision.h.
 *
 * A convolution whose stride is its kernel is a matmul over unfolded patches, and unfolding
 * is a transposition: (N, C, h p, w p) -> (N, h, w, C, p, p). Merging and averaging neighbours are
 * the same movement on the grid of patches.
 *
 * Image features take the place of the embeddings of image tokens. Two lookups that give zeros for
 * an id of -1 are added up: the vocabulary's by the text ids, the features' by row number. Their
 * gradients then need nothing of their own, an image token's embedding gets none, and a token
 * without a feature is a row of zeros. Counts run in float32, exact below 2^24 tokens.
 */
#include "nn/vision.h"

#include "ops.h"
#include <math.h>

mx_node *mx_patches(mx_graph *g, mx_node *pixels, int64_t patch)
{
    const int64_t *s = pixels->type.dim;
    if (pixels->type.ndim != 4 || patch < 1 || s[2] % patch || s[3] % patch) {
        mx_graph_fail(g, "patches: %lld x %lld pixels in patches of %lld",
                      (long long)s[2], (long long)s[3], (long long)patch);
        return pixels;
    }
    int64_t n = s[0], c = s[1], h = s[2] / patch, w = s[3] / patch;
    mx_node *x = mx_reshape(g, pixels, MX_SHAPE(n, c, h, patch, w, patch));
    x = mx_transpose(g, x, "nchiwj->nhwcij");
    return mx_reshape(g, x, MX_SHAPE(n, h * w, c * patch * patch));
}

/* (N, h w, d) as (N, h / side, side, w / side, side, d). */
static mx_node *blocks_of(mx_graph *g, mx_node *x, int64_t side)
{
    const int64_t *s = x->type.dim;
    int64_t h = (int64_t)lround(sqrt((double)s[1]));
    if (x->type.ndim != 3 || h * h != s[1] || side < 1 || h % side) {
        mx_graph_fail(g, "%lld patches make no square of blocks of %lld x %lld", (long long)s[1],
                      (long long)side, (long long)side);
        return x;
    }
    return mx_reshape(g, x, MX_SHAPE(s[0], h / side, side, h / side, side, s[2]));
}

mx_node *mx_merge_patches(mx_graph *g, mx_node *x, int64_t side)
{
    int64_t n = x->type.dim[0], p = x->type.dim[1], d = x->type.dim[2], area = side * side;
    x = blocks_of(g, x, side);
    if (g->error)
        return x;
    x = mx_transpose(g, x, "nhiwjd->nhwijd");
    return mx_reshape(g, x, MX_SHAPE(n, p / area, area * d));
}

mx_node *mx_pool_patches(mx_graph *g, mx_node *x, int64_t side)
{
    int64_t n = x->type.dim[0], p = x->type.dim[1], d = x->type.dim[2], area = side * side;
    x = blocks_of(g, x, side);
    if (g->error)
        return x;
    x = mx_transpose(g, x, "nhiwjd->nhwdij");
    x = mx_row_mean(g, mx_reshape(g, x, MX_SHAPE(n, p / area, d, area)));
    return mx_reshape(g, x, MX_SHAPE(n, p / area, d));
}

static mx_node *attention(mx_graph *g, const mx_build *b, const mx_vit *c, mx_node *x,
                          const mx_rope_table *rope)
{
    int64_t N = x->type.dim[0], P = x->type.dim[1], H = c->heads, D = c->d / c->heads;
    mx_scope(g, "self_attn");
    mx_head_axes axes = mx_attention_axes(g, D);
    mx_node *q = mx_linear(g, b, x, "q_proj", c->d, axes.q, true);
    mx_node *k = mx_linear(g, b, x, "k_proj", c->d, axes.kv, true);
    mx_node *v = mx_linear(g, b, x, "v_proj", c->d, axes.kv, true);
    q = mx_reshape(g, q, MX_SHAPE(N, P, H, D));
    k = mx_reshape(g, k, MX_SHAPE(N, P, H, D));
    v = mx_reshape(g, v, MX_SHAPE(N, P, H, D));
    if (rope) {
        q = mx_rope_apply(g, q, rope);
        k = mx_rope_apply(g, k, rope);
    }
    mx_attention_attr a = {.scale = 1 / sqrt((double)D)};
    mx_node *o = mx_attention(g, q, k, v, a, (mx_attention_extra){0});
    o = mx_reshape(g, o, MX_SHAPE(N, P, c->d));
    return mx_scope_end(g, mx_linear(g, b, o, c->out_proj, c->d, axes.out, true));
}

mx_node *mx_vit_block(mx_graph *g, const mx_build *b, const mx_vit *c, mx_node *x,
                      const mx_rope_table *rope)
{
    mx_node *h = mx_layer_norm(g, x, c->norm_1, c->eps);
    x = mx_add(g, x, attention(g, b, c, h, rope));
    h = mx_layer_norm(g, x, c->norm_2, c->eps);
    mx_scope(g, "mlp");
    h = mx_activation(g, mx_linear(g, b, h, "fc1", c->d_ff, "mlp,embed", true), c->act);
    h = mx_scope_end(g, mx_linear(g, b, h, "fc2", c->d, "embed,mlp", true));
    return mx_add(g, x, h);
}

mx_rope_table mx_rope_tables_2d(mx_graph *g, int64_t side, int64_t head_dim, double theta)
{
    int64_t P = side * side + 1, D = head_dim, quarter = D / 4;
    double *cosines = MX_NEW_N(&g->arena, double, P * D);
    double *sines = MX_NEW_N(&g->arena, double, P * D);
    for (int64_t p = 0; p < P; p++)
        for (int64_t i = 0; i < D; i++) {
            int64_t pair = i / 2, place = pair < quarter ? p % side + 1 : p / side + 1;
            double f = pow(theta, -4.0 * (double)(pair % quarter) / (double)D);
            /* the reference's angles are float32 */
            float angle = p == P - 1 ? 0 : (float)place * (float)f;
            cosines[p * D + i] = cos(angle);
            sines[p * D + i] = sin(angle);
        }
    mx_shape s = MX_SHAPE(1, P, 1, D);
    return (mx_rope_table){mx_table(g, s, g->param_dtype, cosines),
                           mx_table(g, s, g->param_dtype, sines), D, true};
}

static mx_node *is_image(mx_graph *g, const mx_build *b, int64_t image_token)
{
    return mx_equal(g, b->tokens, mx_constant(g, MX_SCALAR, MX_I32, (double)image_token));
}

/* How many image tokens there are up to each: in its row, in the whole batch, or from per_row x its
 * row on. */
static mx_node *count_images(mx_graph *g, const mx_build *b, mx_node *image, int64_t per_row)
{
    mx_shape rows = MX_SHAPE(b->batch, b->seq);
    if (b->image_room)
        return mx_cumsum(g, image, false);
    if (!per_row) {
        image = mx_reshape(g, image, MX_SHAPE(b->batch * b->seq));
        return mx_reshape(g, mx_cumsum(g, image, false), rows);
    }
    double *first = MX_NEW_N(&g->arena, double, b->batch);
    for (int64_t i = 0; i < b->batch; i++)
        first[i] = (double)(i * per_row);
    mx_node *from = mx_table(g, MX_SHAPE(b->batch, 1), image->type.dtype, first);
    return mx_add(g, mx_cumsum(g, image, false), mx_broadcast_to(g, from, rows));
}

mx_token_kinds mx_split_tokens(mx_graph *g, const mx_build *b, int64_t image_token,
                               int64_t per_row)
{
    if (b->image)
        return (mx_token_kinds){.text = b->tokens};
    mx_node *image = is_image(g, b, image_token);
    mx_node *place = mx_mul(g, count_images(g, b, image, per_row), image);
    place = mx_affine(g, place, 1, -1);
    mx_node *text = mx_affine(g, mx_cast(g, b->tokens, MX_F32), 1, 1);
    text = mx_affine(g, mx_mul(g, text, mx_affine(g, image, -1, 1)), 1, -1);
    return (mx_token_kinds){mx_cast(g, text, MX_I32), mx_cast(g, place, MX_I32)};
}

/* features (rows, d) -> (B, S, d) */
static mx_node *features_of_tokens(mx_graph *g, const mx_build *b, mx_node *features, mx_node *ids)
{
    if (!b->image_room)
        return mx_embed(g, features, ids);
    mx_shape by_row = MX_SHAPE(b->batch, b->image_room, features->type.dim[1]);
    return mx_embed_by_row(g, mx_reshape(g, features, by_row), ids);
}

void mx_image_embed(mx_graph *g, mx_build *b, const mx_token_kinds *kinds,
                    mx_node *const *features, int n, mx_node **out)
{
    if (!b->image) {
        b->features = n == 1 ? features[0] : mx_concat(g, n, features, 1);
        for (int i = 0; i < n; i++)
            out[i] = features_of_tokens(g, b, features[i], kinds->image);
        return;
    }
    int64_t d = b->image->type.dim[2] / n;
    mx_node *all = mx_cast(g, b->image, b->cache_dtype);
    for (int i = 0; i < n; i++)
        out[i] = mx_slice(g, all, 2, i * d, d);
}

mx_node *mx_image_spans(mx_graph *g, const mx_build *b, int64_t image_token)
{
    if (b->image)
        return mx_input(g, "image_until", MX_SHAPE(b->batch, b->seq), MX_I32);
    mx_node *image = is_image(g, b, image_token);
    mx_node *before = mx_pad(g, mx_slice(g, image, 1, 0, b->seq - 1), 1, 1, 0);
    mx_node *first = mx_mul(g, image, mx_affine(g, before, -1, 1));
    return mx_cast(g, mx_mul(g, mx_cumsum(g, first, false), image), MX_I32);
}

enum { MAX_GRID = 256 }; /* patches along an image: tables have a row for each of its square */

mx_status mx_check_vit(const mx_vit *c)
{
    if (c->d % c->heads || c->d / c->heads > MX_MAX_HEAD_DIM)
        return mx_fail(MX_INPUT, "vision_config: \"hidden_size\" %lld does not divide into "
                       "\"num_attention_heads\" %lld of at most %d", (long long)c->d,
                       (long long)c->heads, MX_MAX_HEAD_DIM);
    if (c->image_size % c->patch || c->image_size / c->patch > MAX_GRID)
        return mx_fail(MX_INPUT, "vision_config: \"image_size\" %lld is not 1 to %d times "
                       "\"patch_size\" %lld", (long long)c->image_size, MAX_GRID,
                       (long long)c->patch);
    return MX_OK;
}

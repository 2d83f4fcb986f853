/* rope.c - rotary position embeddings as tables of cosines and sines.
 *
 * Pair i of a head turns by the angle p f_i at position p; f_i = theta^(-2i/dims) by default. The
 * scaling types bend these frequencies so that a model reaches beyond the length it was trained on:
 *   linear        f / factor
 *   dynamic       as they are up to max_position_embeddings; beyond, where they would change with
 *                 the length of the text, is refused
 *   llama3        long wavelengths / factor, short ones as they are, a ramp in between
 *   yarn          the same idea with a ramp over dims, and attention scaled by 0.1 ln(factor) + 1
 *   proportional  angles of the full head on its first `partial` share (Gemma 4)
 * A token may have three positions (M-RoPE, Qwen3-VL): pairs 0, 3, 6, ... turn by the first,
 * pairs 1, 4, 7, ... by the second and 2, 5, 8, ... by the third, as far as these two have pairs
 * left; what is beyond turns by the first.
 * Tables are (B, S, 1, D) with each frequency standing at both places of its pair, 1 and 0 beyond
 * the rotated dims, so rope(x) = x cos + rotate_half(x) sin for every variant.
 */
#include "nn/nn.h"

#include "ops.h"
#include <math.h>
#include <string.h>

static double yarn_mscale(double scale, double mscale)
{
    return scale <= 1 ? 1 : 0.1 * mscale * log(scale) + 1;
}

/* Factor that a scaling type multiplies into attention (yarn), already part of the tables. */
static double rope_attention_factor(const mx_rope *r)
{
    if (r->attention_factor > 0)
        return r->attention_factor;
    if (strcmp(r->type, "yarn") != 0)
        return 1;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    return yarn_mscale(r->factor, 1);
}

double mx_rope_score_factor(const mx_rope *r)
{
    if (strcmp(r->type, "default") == 0 || r->mscale_all_dim == 0)
        return 1;
    double m = yarn_mscale(r->factor, r->mscale_all_dim);
    return m * m;
}

static double llama3(const mx_rope *r, double f)
{
    double wavelength = 2 * M_PI / f;
    double low = r->original_length / r->low_freq_factor;
    double high = r->original_length / r->high_freq_factor;
    if (wavelength > low)
        return f / r->factor;
    if (wavelength < high)
        return f;
    double smooth = (r->original_length / wavelength - r->low_freq_factor) /
                    (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / r->factor + smooth * f;
}

/* The dim whose wavelength makes `turns` turns within the original length. */
static double yarn_dim(const mx_rope *r, int64_t dims, double turns)
{
    return (double)dims * log(r->original_length / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static double yarn(const mx_rope *r, int64_t dims, int64_t i, double f)
{
    double low = yarn_dim(r, dims, r->beta_fast), high = yarn_dim(r, dims, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)dims - 1);
    if (low == high)
        high += 0.001;
    double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return f / r->factor * ramp + f * (1 - ramp);
}

static double frequency(const mx_rope *r, int64_t dims, int64_t head_dim, int64_t i)
{
    bool proportional = strcmp(r->type, "proportional") == 0;
    double f = pow(r->theta, -2.0 * (double)i / (double)(proportional ? head_dim : dims));
    if (strcmp(r->type, "linear") == 0 || (proportional && r->factor > 0))
        return f / r->factor;
    if (strcmp(r->type, "llama3") == 0)
        return llama3(r, f);
    if (strcmp(r->type, "yarn") == 0)
        return yarn(r, dims, i, f);
    return f;
}

/* Positions as (B, S, 1, 1) float32. */
static mx_node *position_column(mx_graph *g, const mx_build *b)
{
    if (b->positions) {
        mx_node *p = mx_reshape(g, b->positions, MX_SHAPE(b->batch, b->seq, 1, 1));
        return mx_cast(g, p, g->param_dtype);
    }
    double *index = MX_NEW_N(&g->arena, double, b->seq);
    for (int64_t i = 0; i < b->seq; i++)
        index[i] = (double)i;
    return mx_table(g, MX_SHAPE(1, b->seq, 1, 1), g->param_dtype, index);
}

/* Which of the three positions pair i turns by. */
static int axis_of(const mx_rope *r, int64_t i)
{
    int axis = (int)(i % 3);
    return axis && i < 3 * r->sections[axis] ? axis : 0;
}

/* Angles of the frequencies f (head_dim), of which `half` pairs lie `half` apart. */
static mx_node *angles(mx_graph *g, const mx_build *b, const mx_rope *r, const double *f,
                       int64_t head_dim, int64_t half)
{
    mx_shape dims = MX_SHAPE(head_dim), column = MX_SHAPE(b->batch, b->seq, 1, 1);
    if (!b->places || !r->sections[0])
        return mx_mul(g, position_column(g, b), mx_table(g, dims, g->param_dtype, f));
    mx_node *sum = NULL;
    for (int axis = 0; axis < 3; axis++) {
        double own[MX_MAX_HEAD_DIM] = {0};
        for (int64_t i = 0; i < 2 * half; i++)
            own[i] = axis_of(r, i % half) == axis ? f[i] : 0;
        mx_node *p = mx_reshape(g, mx_slice(g, b->places, 0, axis, 1), column);
        p = mx_mul(g, mx_cast(g, p, g->param_dtype), mx_table(g, dims, g->param_dtype, own));
        sum = sum ? mx_add(g, sum, p) : p;
    }
    return sum;
}

mx_rope_table mx_rope_tables(mx_graph *g, const mx_build *b, const mx_rope *r, int64_t head_dim,
                             bool interleaved)
{
    if (head_dim < 1 || head_dim > MX_MAX_HEAD_DIM || !(r->partial >= 0 && r->partial <= 1)) {
        mx_graph_fail(g, "rope: a share of %g of a head of %lld dims; expected 0 to 1 of 1 to %d",
                      r->partial, (long long)head_dim, MX_MAX_HEAD_DIM);
        return (mx_rope_table){0};
    }
    bool proportional = strcmp(r->type, "proportional") == 0;
    int64_t dims = r->partial > 0 ? (int64_t)((double)head_dim * r->partial) : head_dim;
    int64_t rotated = dims / 2 * 2;
    if (proportional) {
        /* Pairs lie half a head apart; the frequencies beyond the share are 0. */
        dims = head_dim;
    }
    int64_t longest = b->seq > b->cache_len ? b->seq : b->cache_len;
    if (strcmp(r->type, "dynamic") == 0 && (double)longest > r->original_length)
        mx_graph_fail(g, "rope: type dynamic is supported up to the %g positions the model was "
                      "trained on, not for %lld", r->original_length, (long long)longest);
    double f[MX_MAX_HEAD_DIM] = {0}, on[MX_MAX_HEAD_DIM] = {0};
    double factor = rope_attention_factor(r);
    for (int64_t i = 0; i < dims / 2; i++) {
        double v = proportional && 2 * i >= rotated ? 0 : frequency(r, dims, head_dim, i);
        int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + dims / 2;
        f[first] = f[second] = (float)v; /* the reference keeps its frequencies in float32 */
        on[first] = on[second] = factor;
    }
    mx_node *angle = angles(g, b, r, f, head_dim, dims / 2);
    mx_rope_table t = {mx_cos(g, angle), mx_sin(g, angle), dims, interleaved};
    if (factor != 1 && dims == head_dim) {
        t.cos = mx_affine(g, t.cos, factor, 0);
        t.sin = mx_affine(g, t.sin, factor, 0);
    } else if (factor != 1) {
        /* Beyond the rotated dims the cosine stays 1. */
        for (int64_t i = dims; i < head_dim; i++)
            on[i] = 1;
        mx_node *scale = mx_table(g, MX_SHAPE(head_dim), g->param_dtype, on);
        t.cos = mx_mul(g, t.cos, scale);
        t.sin = mx_mul(g, t.sin, scale);
    }
    return t;
}

mx_node *mx_rope_apply(mx_graph *g, mx_node *x, const mx_rope_table *t)
{
    mx_node *rotated = mx_rotate_half(g, x, t->dims, t->interleaved);
    return mx_add(g, mx_mul(g, x, t->cos), mx_mul(g, rotated, t->sin));
}

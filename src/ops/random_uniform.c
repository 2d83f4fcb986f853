/* random_uniform.c - float32 numbers in [0, 1): a pure function of (seed, stream, index).
 *
 * The seed is a tensor (one int64, written by the host before each step), the stream an attribute
 * that tells one use from another. Element i is the (i mod 4)-th word of Philox at counter i / 4,
 * so neither threads nor batch order change it and a resumed run sees the same numbers.
 *
 * mx_dropout is a composition: u < rate gives 0, the rest is scaled by 1 / (1 - rate). The numbers
 * are never kept for the backward pass (remat.c).
 */
#include "base/rng.h"
#include "base/simd.h"
#include "ops.h"
#include <math.h>

typedef struct {
    int64_t stream;
    mx_shape shape;
} random_attr;

enum { COUNTERS = 64 };

static void infer(mx_graph *g, mx_node *n)
{
    const mx_type *seed = &n->in[0]->type;
    if (seed->dtype != MX_I64 || mx_type_count(seed) != 1)
        mx_graph_fail(g, "random_uniform: the seed is %s of %lld elements, expected one int64",
                      mx_dtype_name(seed->dtype), (long long)mx_type_count(seed));
    n->type = mx_type_of(MX_F32, ((const random_attr *)n->attr)->shape);
}

/* n numbers from counter `from` on, n <= 4 COUNTERS. One counter per lane: the rounds vectorise. */
static MX_CLONES void fill(uint64_t seed, uint64_t stream, uint64_t from, int64_t n, float *out)
{
    uint32_t word[4][COUNTERS];
#pragma omp simd
    for (int i = 0; i < COUNTERS; i++) {
        mx_random4 r = mx_philox(seed, stream, from + (uint64_t)i);
        word[0][i] = r.v[0];
        word[1][i] = r.v[1];
        word[2][i] = r.v[2];
        word[3][i] = r.v[3];
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = mx_uniform_f32(word[i % 4][i / 4]);
}

static void random_uniform_cpu(const mx_call *c)
{
    uint64_t seed = (uint64_t)*(const int64_t *)c->in[0].data;
    uint64_t stream = (uint64_t)((const random_attr *)c->attr)->stream;
    int64_t n = mx_type_count(&c->out[0].type);
    float *out = c->out[0].data;
#pragma omp parallel for schedule(static) if (n > 1 << 14)
    for (int64_t i = 0; i < n; i += 4 * COUNTERS)
        fill(seed, stream, (uint64_t)i / 4, n - i < 4 * COUNTERS ? n - i : 4 * COUNTERS, out + i);
}

mx_node *mx_random_uniform(mx_graph *g, mx_node *seed, int64_t stream, mx_shape shape)
{
    return MX_APPLY(g, &mx_op_random_uniform, (&(random_attr){stream, shape}), seed);
}

mx_node *mx_dropout(mx_graph *g, mx_node *x, mx_node *seed, int64_t stream, double rate)
{
    if (rate <= 0)
        return x;
    mx_node *u = mx_random_uniform(g, seed, stream, mx_shape_of(&x->type));
    double below = nextafterf((float)rate, -1); /* u is at least the rate */
    mx_node *keep = mx_greater(g, u, mx_constant(g, MX_SCALAR, MX_F32, below));
    return mx_mul(g, mx_affine(g, x, 1 / (1 - rate), 0), keep);
}

/* The input that the host writes a seed to before each step. */
mx_node *mx_dropout_seed(mx_graph *g)
{
    mx_node *seed = mx_graph_find(g, "dropout_seed");
    return seed ? seed : mx_input(g, "dropout_seed", MX_SCALAR, MX_I64);
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.flops = 20 * (double)mx_type_count(&n->type)};
}

const mx_op mx_op_random_uniform = {
    .name = "random_uniform",
    .doc = "numbers in [0, 1) from a seed and a stream",
    .dtypes = 1u << MX_I64,
    .attr_size = sizeof(random_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(random_attr, MX_ATTR_INT, stream),
                                      MX_FIELD(random_attr, MX_ATTR_DIMS, shape), {0}},
    .infer = infer,
    .cost = cost,
    .cpu = random_uniform_cpu,
    .cases = (const mx_case[]){{1, {{0, {0}, MX_I64, 5, 6}}, &(random_attr){3, {2, {5, 7}}}}, {0}},
};

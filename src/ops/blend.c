/* blend.c - streams mixed into streams, token by token, and how alike streams are.
 *
 *     blend        x (*, n, d)   w (*, n, m)  ->  (*, m, d):   y[k] = sum_j w[j][k] x[j]
 *     stream_dots  x (*, n, d)   y (*, m, d)  ->  (*, n, m):   z[j][k] = x[j] . y[k]
 * Matmuls of tiny matrices, one for each token: as GEMMs they would be padded to tiles many times
 * their size, while memory is all that they need. Each is the other's gradient. n and m are at most
 * 8; w is float32, whatever the streams are.
 */
#include "base/simd.h"
#include "ops.h"
#include "ops/load.h"

#include <string.h>

enum { MOST = 8, RUN = 256 };

static void check(mx_graph *g, mx_node *n)
{
    const mx_type *x = &n->in[0]->type;
    int64_t streams = x->ndim > 2 ? x->dim[x->ndim - 2] : 0, other = n->type.dim[n->type.ndim - 1];
    if (n->op == &mx_op_blend)
        other = n->type.dim[n->type.ndim - 2];
    if (streams < 1 || streams > MOST || other < 1 || other > MOST)
        mx_graph_fail_inputs(g, n, "expected 1 to %d streams on either side", MOST);
    if (n->op == &mx_op_stream_dots && x->dtype != MX_F64)
        n->type.dtype = MX_F32;
}

/* What one token's streams are. */
typedef struct {
    int64_t tokens, d;
    int n, m;
} sizes;

static sizes sizes_of(const mx_type *x, int64_t m)
{
    int64_t n = x->dim[x->ndim - 2], d = x->dim[x->ndim - 1];
    return (sizes){mx_type_count(x) / (n * d), d, (int)n, (int)m};
}

/* y[0..k) += w x[0..k) */
#define ADD(T, name)                                                                               \
    static MX_CLONES void name(T *y, const T *x, T w, int64_t k)                                   \
    {                                                                                              \
        for (int64_t i = 0; i < k; i++)                                                            \
            y[i] += w * x[i];                                                                      \
    }
ADD(float, add_f32)
ADD(double, add_f64)

#define BLEND(T, suffix)                                                                           \
    static void blend_##suffix(const mx_call *c, const sizes *s, int64_t t)                        \
    {                                                                                              \
        T x[RUN], y[MOST][RUN], w[MOST * MOST];                                                    \
        mx_load_run_##suffix(&c->in[1], t * s->n * s->m, s->n * s->m, w);                          \
        for (int64_t at = 0; at < s->d; at += RUN) {                                               \
            int64_t k = s->d - at < RUN ? s->d - at : RUN;                                         \
            memset(y, 0, sizeof y);                                                                \
            for (int j = 0; j < s->n; j++) {                                                       \
                mx_load_run_##suffix(&c->in[0], (t * s->n + j) * s->d + at, k, x);                 \
                for (int i = 0; i < s->m; i++)                                                     \
                    add_##suffix(y[i], x, w[j * s->m + i], k);                                     \
            }                                                                                      \
            for (int i = 0; i < s->m; i++)                                                         \
                mx_store_run_##suffix(&c->out[0], (t * s->m + i) * s->d + at, k, y[i]);            \
        }                                                                                          \
    }
BLEND(float, f32)
BLEND(double, f64)

static void blend_cpu(const mx_call *c)
{
    const mx_type *w = &c->in[1].type;
    sizes s = sizes_of(&c->in[0].type, w->dim[w->ndim - 1]);
    bool wide = c->in[0].type.dtype == MX_F64;
#pragma omp parallel for schedule(static) if (s.tokens * s.d > 1 << 14)
    for (int64_t t = 0; t < s.tokens; t++)
        (wide ? blend_f64 : blend_f32)(c, &s, t);
}

/* Sums of a run in 16 lanes, added up in a fixed order. */
#define DOT(T, name)                                                                               \
    static MX_CLONES double name(const T *x, const T *y, int64_t k)                                \
    {                                                                                              \
        T lane[16] = {0};                                                                          \
        double sum = 0;                                                                            \
        int64_t i = 0;                                                                             \
        for (; i + 16 <= k; i += 16)                                                               \
            for (int l = 0; l < 16; l++)                                                           \
                lane[l] += x[i + l] * y[i + l];                                                    \
        for (int l = 0; i < k; i++, l++)                                                           \
            lane[l] += x[i] * y[i];                                                                \
        for (int l = 0; l < 16; l++)                                                               \
            sum += (double)lane[l];                                                                \
        return sum;                                                                                \
    }
DOT(float, dot_f32)
DOT(double, dot_f64)

#define DOTS(T, suffix)                                                                            \
    static void dots_##suffix(const mx_call *c, const sizes *s, int64_t t)                         \
    {                                                                                              \
        T x[RUN], y[MOST][RUN];                                                                    \
        double z[MOST * MOST] = {0};                                                               \
        for (int64_t at = 0; at < s->d; at += RUN) {                                               \
            int64_t k = s->d - at < RUN ? s->d - at : RUN;                                         \
            for (int i = 0; i < s->m; i++)                                                         \
                mx_load_run_##suffix(&c->in[1], (t * s->m + i) * s->d + at, k, y[i]);              \
            for (int j = 0; j < s->n; j++) {                                                       \
                mx_load_run_##suffix(&c->in[0], (t * s->n + j) * s->d + at, k, x);                 \
                for (int i = 0; i < s->m; i++)                                                     \
                    z[j * s->m + i] += dot_##suffix(x, y[i], k);                                   \
            }                                                                                      \
        }                                                                                          \
        mx_store_run_f64(&c->out[0], t * s->n * s->m, s->n * s->m, z);                             \
    }
DOTS(float, f32)
DOTS(double, f64)

static void dots_cpu(const mx_call *c)
{
    const mx_type *y = &c->in[1].type;
    sizes s = sizes_of(&c->in[0].type, y->dim[y->ndim - 2]);
    bool wide = c->in[0].type.dtype == MX_F64;
#pragma omp parallel for schedule(static) if (s.tokens * s.d > 1 << 14)
    for (int64_t t = 0; t < s.tokens; t++)
        (wide ? dots_f64 : dots_f32)(c, &s, t);
}

mx_node *mx_blend(mx_graph *g, mx_node *x, mx_node *w)
{
    return MX_APPLY(g, &mx_op_blend, NULL, x, w);
}

mx_node *mx_stream_dots(mx_graph *g, mx_node *x, mx_node *y)
{
    return MX_APPLY(g, &mx_op_stream_dots, NULL, x, y);
}

/* The last two dims exchanged. */
static mx_node *transposed(mx_graph *g, mx_node *w)
{
    static const char *const dims[] = {"ab->ba", "abc->acb", "abcd->abdc", "abcde->abced"};
    int n = w->type.ndim;
    if (n < 2 || n > 5) {
        mx_graph_fail(g, "blend: weights of %d dims, expected 2 to 5", n);
        return w;
    }
    return mx_transpose(g, w, dims[n - 2]);
}

static void blend_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *d = mx_cast(g, dout[0], n->type.dtype);
    din[0] = mx_blend(g, d, transposed(g, n->in[1]));
    din[1] = mx_stream_dots(g, n->in[0], d);
}

static void dots_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_blend(g, n->in[1], transposed(g, dout[0]));
    din[1] = mx_blend(g, n->in[0], dout[0]);
}

static mx_cost blend_cost(const mx_node *n)
{
    const mx_type *x = &n->in[0]->type;
    return (mx_cost){.flops = 2 * (double)mx_type_count(&n->type) * (double)x->dim[x->ndim - 2]};
}

static mx_cost dots_cost(const mx_node *n)
{
    const mx_type *x = &n->in[0]->type;
    return (mx_cost){.flops = 2 * (double)mx_type_count(&n->type) * (double)x->dim[x->ndim - 1]};
}

const mx_op mx_op_blend = {
    .name = "blend",
    .doc = "streams mixed into streams, token by token",
    .dtypes = MX_REALS,
    .dims = "*!j!d,*!j!k->*!k!d",
    .n_cast = 1,
    .infer = check,
    .grad = blend_vjp,
    .cost = blend_cost,
    .cpu = blend_cpu,
    .cases = (const mx_case[]){{2, {{4, {2, 3, 4, 40}}, {4, {2, 3, 4, 4}}}},
                               {2, {{3, {5, 3, 17}}, {3, {5, 3, 1}}}},
                               {2, {{3, {5, 1, 300}}, {3, {5, 1, 8}}}}, {0}},
};

const mx_op mx_op_stream_dots = {
    .name = "stream_dots",
    .doc = "dot products of each stream with each, token by token",
    .dtypes = MX_REALS,
    .dims = "*!j!d,*!k!d->*!j!k",
    .keep_f32 = true,
    .infer = check,
    .grad = dots_vjp,
    .cost = dots_cost,
    .cpu = dots_cpu,
    .cases = (const mx_case[]){{2, {{4, {2, 3, 4, 40}}, {4, {2, 3, 4, 40}}}},
                               {2, {{3, {5, 3, 17}}, {3, {5, 1, 17}}}},
                               {2, {{3, {5, 1, 300}}, {3, {5, 8, 300}}}}, {0}},
};

/* cpu_delta_test.c - the gated delta rule against its recurrence, and its gradients against
 * differences.
 *
 * The recurrence is written out token by token in double. Gradients of the f64 kernel are checked
 * element by element against central differences of that recurrence; f32 and bf16 kernels, and all
 * chunk sizes, against the f64 kernel.
 */
#include "../test.h"

#include "base/arena.h"
#include "base/vmath.h"
#include "ops/cpu/delta_kernel.h"
#include <math.h>
#include <string.h>

static uint32_t next(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}
static double *random_array(mx_arena *a, int64_t n, double lo, double hi, uint32_t *s)
{
    double *p = MX_NEW_N(a, double, n + 1);
    for (int64_t i = 0; i < n; i++)
        p[i] = lo + (hi - lo) * (double)next(s) * 0x1p-24;
    return p;
}

enum { Q, K, V, G, BETA, STATE, INPUTS };

typedef struct {
    mx_delta d;         /* f64 */
    double *in[INPUTS]; /* q k v g beta state */
    int64_t size[INPUTS];
    double *wo, *wm; /* weights of out and of the final state in the loss */
} problem;

static problem make(mx_arena *a, mx_delta d, bool segments, uint32_t *s)
{
    int64_t bs = d.batch * d.len, nm = d.batch * d.v_heads * d.k_dim * d.v_dim;
    problem p = {.d = d, .size = {bs * d.k_heads * d.k_dim, bs * d.k_heads * d.k_dim,
                                  bs * d.v_heads * d.v_dim, bs * d.v_heads, bs * d.v_heads, nm}};
    double unit = 1 / sqrt((double)d.k_dim);
    const double lo[] = {-1, -unit * 1.7, -1, -0.6, 0.1, -1}, hi[] = {1, unit * 1.7, 1, 0, 1, 1};
    for (int i = 0; i < INPUTS; i++)
        p.in[i] = random_array(a, p.size[i], lo[i], hi[i], s);
    p.wo = random_array(a, p.size[V], -1, 1, s);
    p.wm = random_array(a, nm, -1, 1, s);
    p.d.type = MX_NUM_F64;
    p.d.q = p.in[Q], p.d.k = p.in[K], p.d.v = p.in[V], p.d.g = p.in[G], p.d.beta = p.in[BETA];
    p.d.initial_state = p.in[STATE];
    if (segments) {
        int32_t *seg = MX_NEW_N(a, int32_t, bs), id = 0;
        for (int64_t i = 0; i < bs; i++)
            seg[i] = id += i % d.len == 0 || next(s) % 7 == 0;
        p.d.segments = seg;
    }
    return p;
}

/* out and the final state, token by token. */
static void recurrence(const problem *p, double *out, double *state)
{
    const mx_delta *d = &p->d;
    int64_t dk = d->k_dim, dv = d->v_dim;
    memcpy(state, p->in[STATE], sizeof(double) * (size_t)p->size[STATE]);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->v_heads; h++)
            for (int64_t t = 0; t < d->len; t++) {
                int64_t bt = b * d->len + t, hk = h / (d->v_heads / d->k_heads);
                const double *q = p->in[Q] + (bt * d->k_heads + hk) * dk;
                const double *k = p->in[K] + (bt * d->k_heads + hk) * dk;
                const double *v = p->in[V] + (bt * d->v_heads + h) * dv;
                double *m = state + (b * d->v_heads + h) * dk * dv;
                double beta = p->in[BETA][bt * d->v_heads + h];
                double keep = exp(p->in[G][bt * d->v_heads + h]);
                if (d->segments && t > 0 && d->segments[bt] != d->segments[bt - 1])
                    keep = 0;
                for (int64_t i = 0; i < dk * dv; i++)
                    m[i] *= keep;
                for (int64_t x = 0; x < dv; x++) {
                    double u = v[x], o = 0;
                    for (int64_t i = 0; i < dk; i++)
                        u -= m[i * dv + x] * k[i];
                    for (int64_t i = 0; i < dk; i++) {
                        m[i * dv + x] += k[i] * u * beta;
                        o += m[i * dv + x] * q[i];
                    }
                    out[(bt * d->v_heads + h) * dv + x] = o * d->scale;
                }
            }
}

static double loss(mx_arena *a, const problem *p)
{
    double *out = MX_NEW_N(a, double, p->size[V]), *m = MX_NEW_N(a, double, p->size[STATE]), l = 0;
    recurrence(p, out, m);
    for (int64_t i = 0; i < p->size[V]; i++)
        l += out[i] * p->wo[i];
    for (int64_t i = 0; i < p->size[STATE]; i++)
        l += m[i] * p->wm[i];
    return l;
}

typedef struct {
    double *out, *state, *grad[INPUTS];
} result;

static void *to(mx_arena *a, const double *x, int64_t n, mx_num t)
{
    void *p = mx_arena_alloc(a, (size_t)(n * MX_NUM_BYTES(t)) + 1);
    for (int64_t i = 0; i < n; i++)
        if (t == MX_NUM_F64)
            ((double *)p)[i] = x[i];
        else if (t == MX_NUM_F32)
            ((float *)p)[i] = (float)x[i];
        else
            ((uint16_t *)p)[i] = mx_bf16_of_float((float)x[i]);
    return p;
}
static double *from(mx_arena *a, const void *x, int64_t n, mx_num t)
{
    double *p = MX_NEW_N(a, double, n + 1);
    for (int64_t i = 0; i < n; i++)
        p[i] = t == MX_NUM_F64   ? ((const double *)x)[i]
               : t == MX_NUM_F32 ? ((const float *)x)[i]
                                 : mx_float_of_bf16(((const uint16_t *)x)[i]);
    return p;
}

/* Workspace full of NaN: whatever is read before it is written shows. */
static void *dirty(mx_arena *a, size_t bytes)
{
    return memset(mx_arena_alloc(a, bytes), 0xff, bytes);
}

/* Forward and backward of the kernel in the given numbers. */
static result run(mx_arena *a, const problem *p, mx_num t, int chunk, int threads)
{
    mx_num small = t == MX_NUM_F64 ? t : MX_NUM_F32; /* of g, beta, state */
    mx_num types[INPUTS] = {t, t, t, small, small, small};
    void *in[INPUTS], *grad[INPUTS];
    for (int i = 0; i < INPUTS; i++) {
        in[i] = to(a, p->in[i], p->size[i], types[i]);
        grad[i] = mx_arena_alloc(a, (size_t)(p->size[i] * MX_NUM_BYTES(types[i])) + 1);
    }
    mx_delta d = p->d;
    d.type = t;
    d.chunk = chunk;
    d.threads = threads;
    d.q = in[Q], d.k = in[K], d.v = in[V], d.g = in[G], d.beta = in[BETA];
    d.initial_state = in[STATE];
    void *out = to(a, p->wo, p->size[V], t), *state = to(a, p->wm, p->size[STATE], small);
    mx_delta_forward(&d, out, state, dirty(a, mx_delta_forward_work_bytes(&d)));
    mx_delta_grads g = {.dout = to(a, p->wo, p->size[V], t),
                        .dfinal_state = to(a, p->wm, p->size[STATE], small), .dq = grad[Q],
                        .dk = grad[K], .dv = grad[V], .dg = grad[G], .dbeta = grad[BETA],
                        .dinitial_state = grad[STATE]};
    mx_delta_backward(&d, &g, dirty(a, mx_delta_backward_work_bytes(&d)));
    result r = {from(a, out, p->size[V], t), from(a, state, p->size[STATE], small), {0}};
    for (int i = 0; i < INPUTS; i++)
        r.grad[i] = from(a, grad[i], p->size[i], types[i]);
    return r;
}

static void compare(const char *what, const double *got, const double *want, int64_t n, double tol)
{
    double big = 1e-3, worst = 0;
    for (int64_t i = 0; i < n; i++)
        big = fmax(big, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        worst = isnan(got[i]) ? INFINITY : fmax(worst, fabs(got[i] - want[i]) / big);
    MX_CHECK(worst <= tol, "%s: off by %g of the largest (limit %g)", what, worst, tol);
}

static const char *const names[] = {"dq", "dk", "dv", "dg", "dbeta", "dstate"};
static const mx_delta small_shape = {.batch = 2, .len = 21, .k_heads = 2, .v_heads = 4, .k_dim = 5,
                                     .v_dim = 3, .scale = 0.4};

MX_TEST(delta_gradients_match_differences)
{
    mx_arena a = {0};
    uint32_t s = 1;
    for (int seg = 0; seg < 2; seg++) {
        problem p = make(&a, small_shape, seg, &s);
        result r = run(&a, &p, MX_NUM_F64, 8, 1);
        double *out = MX_NEW_N(&a, double, p.size[V]), *m = MX_NEW_N(&a, double, p.size[STATE]);
        recurrence(&p, out, m);
        compare("out", r.out, out, p.size[V], 1e-12);
        compare("state", r.state, m, p.size[STATE], 1e-12);
        for (int k = 0; k < INPUTS; k++) {
            double *num = MX_NEW_N(&a, double, p.size[k]);
            for (int64_t i = 0; i < p.size[k]; i++) {
                double x = p.in[k][i], h = 1e-5, up;
                p.in[k][i] = x + h;
                up = loss(&a, &p);
                p.in[k][i] = x - h;
                num[i] = (up - loss(&a, &p)) / (2 * h);
                p.in[k][i] = x;
            }
            compare(names[k], r.grad[k], num, p.size[k], 1e-8);
        }
    }
    mx_arena_fini(&a);
}

MX_TEST(delta_chunk_sizes_and_threads_agree)
{
    uint32_t s = 2;
    static const int chunks[] = {1, 16, 64, 100};
    for (int i = 0; i < 2; i++) {
        mx_arena a = {0};
        problem p = make(&a, (mx_delta){.batch = 1, .len = 150, .k_heads = 1, .v_heads = 2,
                                        .k_dim = 33, .v_dim = 20, .scale = 0.2}, i, &s);
        result want = run(&a, &p, MX_NUM_F64, 32, 1);
        for (int c = 0; c < 4; c++) {
            result r = run(&a, &p, MX_NUM_F32, chunks[c], c % 3);
            compare("out", r.out, want.out, p.size[V], 1e-5);
            compare("state", r.state, want.state, p.size[STATE], 1e-5);
            for (int k = 0; k < INPUTS; k++)
                compare(names[k], r.grad[k], want.grad[k], p.size[k], 1e-5);
        }
        result b = run(&a, &p, MX_NUM_BF16, 64, 2);
        compare("bf16 out", b.out, want.out, p.size[V], 3e-2);
        for (int k = 0; k < INPUTS; k++)
            compare(names[k], b.grad[k], want.grad[k], p.size[k], 3e-2);
        mx_arena_fini(&a);
    }
}

/* A sequence in two calls, the state handed over in place, is the sequence in one. */
MX_TEST(delta_continues_from_its_state)
{
    mx_arena a = {0};
    uint32_t s = 3;
    problem p = make(&a, (mx_delta){.batch = 1, .len = 12, .k_heads = 1, .v_heads = 1, .k_dim = 4,
                                    .v_dim = 6, .scale = 0.5}, false, &s);
    result want = run(&a, &p, MX_NUM_F64, 64, 1);
    mx_delta d = p.d;
    d.chunk = 1;
    d.len = 1;
    double *out = MX_NEW_N(&a, double, p.size[V]);
    for (int64_t t = 0; t < 12; t++) {
        d.q = p.in[Q] + t * 4, d.k = p.in[K] + t * 4, d.v = p.in[V] + t * 6;
        d.g = p.in[G] + t, d.beta = p.in[BETA] + t;
        mx_delta_forward(&d, out + t * 6, p.in[STATE],
                         dirty(&a, mx_delta_forward_work_bytes(&d)));
    }
    compare("out", out, want.out, p.size[V], 1e-12);
    compare("state", p.in[STATE], want.state, p.size[STATE], 1e-12);
    mx_arena_fini(&a);
}

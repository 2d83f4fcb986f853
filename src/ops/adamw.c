/* adamw.c - one AdamW update of one variable, in place.
 *
 *     w (*) float32 or bfloat16    g (*)    m, v (*) float32 or bfloat16
 *     hyper (4): lr, clip, step, -    c (*) the weight in the compute dtype, optional
 *     m <- b1 m + (1-b1) s g         v <- b2 v + (1-b2) (s g)^2          s: clip scale
 *     w <- w - lr (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + wd w)
 * The last output is the sum of the squares of the new w, for the parameter norm.
 *
 * A bfloat16 weight is rounded stochastically, up with the probability of the fraction that is
 * lost: to nearest, most steps would be smaller than half a unit and never move it. The random bits
 * are a function of (salt, step, element of the whole weight): equal runs round alike on any mesh.
 *
 * Decoupled weight decay; eps outside the root (as AdamW), or inside as well (eps_root, as
 * adam_pax). The scale, learning rate and step are inputs so that one compiled program serves every
 * step. When the clip scale is not finite (a gradient was NaN or infinite) nothing is changed.
 * Memory-bound: 7 words per parameter; runs of RUN elements keep the conversions in cache.
 */
#include "base/rng.h"
#include "base/simd.h"
#include "ir/placement.h"
#include "ops.h"
#include "ops/adamw8.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"
#include "ops/load.h"

#include <math.h>
#include <string.h>

enum { MX_INPUTS_ADAMW };
enum { MX_INPUTS_ADAMW8 };

enum { RUN = 1024 };

typedef struct {
    float lr, scale, b1, b2, eps, eps_root, wd, fix1, fix2; /* fix: 1 / (1 - b^t) */
} rates;

static MX_CLONES void update(int64_t n, const rates *r, float *w, const float *g, float *m,
                             float *v)
{
    for (int64_t i = 0; i < n; i++) {
        float gi = g[i] * r->scale;
        m[i] = r->b1 * m[i] + (1 - r->b1) * gi;
        v[i] = r->b2 * v[i] + (1 - r->b2) * gi * gi;
        float step = m[i] * r->fix1 / (sqrtf(v[i] * r->fix2 + r->eps_root) + r->eps);
        w[i] -= r->lr * (step + r->wd * w[i]);
    }
}

/* The pointer to elements of a float32 tensor, or a buffer filled from it. */
static float *open_run(const mx_tensor *t, int64_t at, int64_t n, float *buffer)
{
    if (t->type.dtype == MX_F32)
        return (float *)t->data + at;
    mx_load_run_f32(t, at, n, buffer);
    return buffer;
}

/* bfloat16 is the upper half of float32: the lower half, plus 16 random bits, carries into it. Four
 * elements share 64 bits. */
static void store_stochastic(const mx_tensor *t, int64_t at, int64_t n, const float *run,
                                    uint64_t key, const mx_box *box)
{
    uint16_t *out = (uint16_t *)t->data + at;
    for (int64_t i = 0; i < n; i++) {
        uint64_t element = (uint64_t)(box ? mx_box_element(box, &t->type, at + i) : at + i);
        uint32_t u, bits = mx_hash64(key, element / 4) >> (16 * (element % 4)) & 0xffff;
        memcpy(&u, &run[i], 4);
        bool finite = (u & 0x7f800000u) != 0x7f800000u;
        out[i] = (uint16_t)(finite ? (u + bits) >> 16 : u >> 16 | ((u & 0x7fffffu) ? 0x40 : 0));
    }
}

static MX_CLONES double squares(const float *x, int64_t n)
{
    double lane[8] = {0}, total = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            lane[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++)
        lane[i % 8] += (double)x[i] * (double)x[i];
    for (int k = 0; k < 8; k++)
        total += lane[k];
    return total;
}

static void close_run(const mx_tensor *t, int64_t at, int64_t n, const float *run)
{
    if (t->type.dtype != MX_F32)
        mx_store_run_f32(t, at, n, run);
}

static rates rates_of(const mx_adamw_rates *a, const float *hyper)
{
    double t = hyper[2];
    return (rates){.lr = hyper[0], .scale = hyper[1], .b1 = (float)a->b1, .b2 = (float)a->b2,
                   .eps = (float)a->eps, .eps_root = (float)a->eps_root,
                   .wd = (float)a->weight_decay, .fix1 = (float)(1 / (1 - pow(a->b1, t))),
                   .fix2 = (float)(1 / (1 - pow(a->b2, t)))};
}

/* What the random rounding of a step depends on. */
static uint64_t key_of(const mx_adamw_rates *a, const float *hyper)
{
    return (uint64_t)a->salt + (uint64_t)hyper[2] * 0xd1342543de82ef95u;
}

/* The new weight, and its copy where there is one. */
static void close_weight(const mx_call *c, const mx_tensor *copy, int64_t at, int64_t n,
                         const float *run, uint64_t key)
{
    const mx_tensor *w = &c->in[ADAMW_W];
    if (w->type.dtype == MX_BF16)
        store_stochastic(w, at, n, run, key, ((const mx_adamw_rates *)c->attr)->box);
    else
        close_run(w, at, n, run);
    if (copy)
        mx_store_run_f32(copy, at, n, run);
}

static void adamw_cpu(const mx_call *c)
{
    const mx_tensor *w = &c->in[ADAMW_W], *g = &c->in[ADAMW_G], *m = &c->in[ADAMW_M],
                    *v = &c->in[ADAMW_V];
    const mx_tensor *copy =
        c->n_in > ADAMW_COPY && c->in[ADAMW_COPY].data ? &c->in[ADAMW_COPY] : NULL;
    rates r = rates_of(c->attr, c->in[ADAMW_HYPER].data);
    bool stands = isfinite(r.scale);
    uint64_t key = key_of(c->attr, c->in[ADAMW_HYPER].data);
    int64_t n = mx_type_count(&w->type);
    double *part = c->work, total = 0;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n; at += RUN) {
        float bw[RUN], bg[RUN], bm[RUN], bv[RUN];
        int64_t k = n - at < RUN ? n - at : RUN;
        float *pw = open_run(w, at, k, bw);
        if (stands) {
            float *pg = open_run(g, at, k, bg), *pm = open_run(m, at, k, bm);
            float *pv = open_run(v, at, k, bv);
            update(k, &r, pw, pg, pm, pv);
            close_weight(c, copy, at, k, pw, key);
            close_run(m, at, k, pm);
            close_run(v, at, k, pv);
        }
        part[at / RUN] = squares(pw, k);
    }
    for (int64_t i = 0; i * RUN < n; i++)
        total += part[i];
    mx_store_f64(&c->out[4], 0, total);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    (void)n_threads;
    return sizeof(double) * (size_t)((mx_type_count(&n->type) + RUN - 1) / RUN);
}

mx_node *mx_adamw(mx_graph *g, mx_node *const in[6], mx_adamw_rates a)
{
    return mx_apply(g, &mx_op_adamw, &a, 6, in);
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.flops = 12.0 * (double)mx_type_count(&n->type)};
}

static void infer(mx_graph *g, mx_node *n)
{
    for (int i = 1; i < 4; i++)
        if (!mx_shape_equal(&n->in[ADAMW_W]->type, &n->in[i]->type))
            mx_graph_fail(g, "adamw: weight, gradient and moments of %s differ in shape",
                          n->in[ADAMW_W]->name ? n->in[ADAMW_W]->name : "a variable");
    n->type = n->in[ADAMW_W]->type;
    n->more[0] = n->in[ADAMW_M]->type;
    n->more[1] = n->in[ADAMW_V]->type;
    n->more[2] = n->in[ADAMW_COPY] ? n->in[ADAMW_COPY]->type : (mx_type){0};
    bool wide = n->type.dtype == MX_F64 || ((const mx_adamw_rates *)n->attr)->wide;
    n->more[3] = mx_type_of(wide ? MX_F64 : MX_F32, MX_SCALAR);
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    (void)most;
    return mx_gpu_adamw_bytes(mx_type_count(&n->in[ADAMW_W]->type));
}

static const mx_attr_field fields[] = {
    MX_FIELD(mx_adamw_rates, MX_ATTR_F64, b1), MX_FIELD(mx_adamw_rates, MX_ATTR_F64, b2),
    MX_FIELD(mx_adamw_rates, MX_ATTR_F64, eps), MX_FIELD(mx_adamw_rates, MX_ATTR_F64, eps_root),
    MX_FIELD(mx_adamw_rates, MX_ATTR_F64, weight_decay),
    MX_FIELD(mx_adamw_rates, MX_ATTR_INT, salt),
    MX_QUIET_FIELD(mx_adamw_rates, MX_ATTR_BOX, box),
    MX_FIELD(mx_adamw_rates, MX_ATTR_BOOL, wide), {0}};

const mx_op mx_op_adamw = {
    .name = "adamw",
    .doc = "one AdamW update, in place",
    .dtypes = MX_REALS,
    .dtypes_at = {[ADAMW_HYPER] = MX_F32_ONLY},
    .attr_size = sizeof(mx_adamw_rates),
    .fields = fields,
    .n_out = 5,
    .alias = {1, 3, 4, 6},
    .no_cast = true,
    .infer = infer,
    .dims = "*,*,*,*,!h,*->*,*,*,*,",
    .cost = cost,
    .cpu = adamw_cpu,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .gpu_work_adds = true,
    .cases = (const mx_case[]){
        {6, {{2, {4, 6}, .no_grad = true}, {2, {4, 6}, .no_grad = true},
             {2, {4, 6}, .no_grad = true}, {2, {4, 6}, .lo = 0.1, .hi = 1, .no_grad = true},
             {1, {4}, .lo = 1, .hi = 2, .no_grad = true, .fixed = true},
             {2, {4, 6}, .no_grad = true}},
         &(mx_adamw_rates){0.9, 0.95, 1e-8, 0, 0.1, 0}},
        {6, {{1, {2100}, .no_grad = true}, {1, {2100}, .no_grad = true},
             {1, {2100}, .no_grad = true}, {1, {2100}, .lo = 0.1, .hi = 1, .no_grad = true},
             {1, {4}, .lo = 1, .hi = 2, .no_grad = true, .fixed = true}, {.absent = true}},
         &(mx_adamw_rates){0.9, 0.999, 0, 1e-6, 0, 0}}, {0}},
};

/* --- moments of 8 bits ---
 *
 *     m, v (*) uint8    m_most, v_most (blocks of 256) float32    map (2, 256) float32, ascending
 *     a moment is map[code] * most of its block: map 0 for m, map 1 for v
 * The map is bitsandbytes' dynamic one: 0, 1, and between powers of ten more numbers the larger
 * they are. After the update a block has its new largest magnitude, and each moment the nearest
 * number; one of m that would change its sign takes the next on its own side, so that small moments
 * do not all become 0. One of v that is not 0 does not become 0 either: where the next gradient is
 * 0 (a token that a batch lacks, an expert without rows) m would be divided by eps alone.
 */
enum { BLOCK = MX_ADAMW8_BLOCK, CODES = MX_ADAMW8_CODES };

void mx_adamw8_map(bool is_signed, double map[CODES])
{
    int n = 0;
    for (int i = 0; i < 7; i++) {
        int items = 1 << (is_signed ? i : i + 1);
        float step = 0.9f / (float)items;
        for (int k = 0; k < items; k++) {
            float edge[2]; /* as torch's linspace has them: from the nearer end */
            for (int e = 0; e < 2; e++)
                edge[e] = k + e < (items + 1) / 2 ? fmaf(step, (float)(k + e), 0.1f)
                                                  : fmaf(-step, (float)(items - k - e), 1);
            float x = (float)pow(10, i - 6) * ((edge[0] + edge[1]) / 2);
            map[n++] = x;
            if (is_signed)
                map[n++] = -x;
        }
    }
    map[n++] = 0;
    map[n++] = 1;
    MX_ASSERT(n == CODES, "%d numbers", n);
    for (int i = 1; i < CODES; i++) /* ascending */
        for (int k = i; k > 0 && map[k] < map[k - 1]; k--) {
            double x = map[k];
            map[k] = map[k - 1];
            map[k - 1] = x;
        }
}

/* Of x in [-1, 1]. */
static int nearest_code(const float *map, float x)
{
    int low = 0, high = CODES - 1;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(map[middle] <= x ? &low : &high) = middle;
    }
    return x > (map[low] + map[high]) / 2 ? high : low;
}

static void decode_block(const float *map, float most, const uint8_t *q, int64_t n, float *x)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = map[q[i]] * most;
}

static float encode_block(const float *map, const float *x, int64_t n, bool keeps_sign, uint8_t *q)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    for (int64_t i = 0; i < n; i++) {
        int code = nearest_code(map, most > 0 ? x[i] / most : 0);
        if (keeps_sign && signbit(map[code]) != signbit(x[i]) && x[i] != 0)
            code += x[i] > 0 ? 1 : -1;
        else if (!keeps_sign && code == 0 && x[i] > 0)
            code = 1;
        q[i] = (uint8_t)code;
    }
    return most;
}

static void adamw8_cpu(const mx_call *c)
{
    const mx_tensor *w = &c->in[ADAMW8_W];
    const mx_tensor *copy =
        c->n_in > ADAMW8_COPY && c->in[ADAMW8_COPY].data ? &c->in[ADAMW8_COPY] : NULL;
    uint8_t *qm = c->in[ADAMW8_M].data, *qv = c->in[ADAMW8_V].data;
    float *m_most = c->in[ADAMW8_M_MOST].data, *v_most = c->in[ADAMW8_V_MOST].data;
    const float *map = c->in[ADAMW8_MAP].data;
    rates r = rates_of(c->attr, c->in[ADAMW8_HYPER].data);
    uint64_t key = key_of(c->attr, c->in[ADAMW8_HYPER].data);
    int64_t n = mx_type_count(&w->type);
    if (!isfinite(r.scale))
        return;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n; at += BLOCK) {
        float bw[BLOCK], bg[BLOCK], m[BLOCK], v[BLOCK];
        int64_t k = n - at < BLOCK ? n - at : BLOCK, b = at / BLOCK;
        float *pw = open_run(w, at, k, bw), *pg = open_run(&c->in[ADAMW8_G], at, k, bg);
        decode_block(map, m_most[b], qm + at, k, m);
        decode_block(map + CODES, v_most[b], qv + at, k, v);
        update(k, &r, pw, pg, m, v);
        close_weight(c, copy, at, k, pw, key);
        m_most[b] = encode_block(map, m, k, true, qm + at);
        v_most[b] = encode_block(map + CODES, v, k, false, qv + at);
    }
}

mx_node *mx_adamw8(mx_graph *g, mx_node *const in[9], mx_adamw_rates a)
{
    return mx_apply(g, &mx_op_adamw8, &a, 9, in);
}

static void infer8(mx_graph *g, mx_node *n)
{
    int64_t blocks = (mx_type_count(&n->in[ADAMW8_W]->type) + BLOCK - 1) / BLOCK;
    for (int i = 1; i < 4; i++)
        if (!mx_shape_equal(&n->in[ADAMW8_W]->type, &n->in[i]->type))
            mx_graph_fail(g, "adamw8: weight, gradient and moments of %s differ in shape",
                          n->in[ADAMW8_W]->name ? n->in[ADAMW8_W]->name : "a variable");
    if (mx_type_count(&n->in[ADAMW8_M_MOST]->type) != blocks ||
        mx_type_count(&n->in[ADAMW8_V_MOST]->type) != blocks ||
        mx_type_count(&n->in[ADAMW8_MAP]->type) != 2 * CODES)
        mx_graph_fail_inputs(g, n, "expected a number for each 256 of the weight, and two maps");
    n->type = n->in[ADAMW8_W]->type;
    for (int i = 0; i < 4; i++)
        n->more[i] = n->in[ADAMW8_M + i]->type;
    n->more[4] = n->in[ADAMW8_COPY] ? n->in[ADAMW8_COPY]->type : (mx_type){0};
}

#define FEW(...) {__VA_ARGS__, .no_grad = true}
#define STATE(...) {__VA_ARGS__, .no_grad = true, .fixed = true}
const mx_op mx_op_adamw8 = {
    .name = "adamw8",
    .doc = "one AdamW update with moments of 8 bits, in place",
    .dtypes = MX_REALS,
    .dtypes_at = {[ADAMW8_M] = 1u << MX_U8, [ADAMW8_V] = 1u << MX_U8,
                  [ADAMW8_M_MOST] = MX_F32_ONLY, [ADAMW8_V_MOST] = MX_F32_ONLY,
                  [ADAMW8_HYPER] = MX_F32_ONLY, [ADAMW8_MAP] = MX_F32_ONLY},
    .attr_size = sizeof(mx_adamw_rates),
    .fields = fields,
    .n_out = 6,
    .alias = {1, 3, 4, 5, 6, 9},
    .no_cast = true,
    .infer = infer8,
    .cost = cost,
    .cpu = adamw8_cpu,
    .cases = (const mx_case[]){
        /* Of one magnitude: a rounded gradient must not change a code. */
        {9, {FEW(1, {600}), FEW(1, {600}, .lo = 1.2e-30, .hi = 2e-30), {1, {600}, MX_U8, 0, 256},
             {1, {600}, MX_U8, 0, 256}, STATE(1, {3}, .lo = 1e-30, .hi = 2e-30),
             STATE(1, {3}, .lo = 0.1, .hi = 1), STATE(1, {4}, .lo = 1, .hi = 2),
             STATE(2, {2, 256}, .lo = 0.5, .hi = 0.5001), FEW(1, {600})},
         &(mx_adamw_rates){0.9, 0.95, 1e-8, 0, 0.1, 0}}, {0}},
};

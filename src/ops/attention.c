/* attention.c - softmax(scale q k^T + mask) v as one op, forward and backward.
 *
 *     q (B, Sq, H, D)   k (B, Sk, K, D)   v (B, Sk, K, E)   ->   out (B, Sq, H, E), lse (B, H, Sq)
 * H is a multiple of K (grouped queries). The mask description is in ir/attention.h. lse, the logarithm of
 * each row's sum, is what the backward pass needs besides the inputs and the output; no S x S matrix is
 * ever stored.
 */
#include "ir/attention.h"

#include "ops.h"
#include "ops/load.h"
#include <math.h>
#include <string.h>

/* Inputs: q k v, then the optional ones in this order. */
enum { Q_POS = 3, K_POS, Q_SEG, K_SEG, Q_SPAN, K_SPAN, SINKS, SELECTED, N_IN };
/* The backward op has these behind them. */
enum { OUT = N_IN, LSE, DOUT, N_GRAD_IN };

static int32_t at2(const mx_tensor *t, int64_t b, int64_t i)
{
    return ((const int32_t *)t->data)[b * t->type.dim[1] + i];
}

static bool sees(const mx_call *c, const mx_attention_attr *a, int64_t b, int64_t i, int64_t j)
{
    int64_t qp = c->in[Q_POS].data ? at2(&c->in[Q_POS], b, i) : i;
    int64_t kp = c->in[K_POS].data ? at2(&c->in[K_POS], b, j) : j;
    if (kp < 0)
        return false;
    if (c->in[Q_SEG].data && at2(&c->in[Q_SEG], b, i) != at2(&c->in[K_SEG], b, j))
        return false;
    if (c->in[SELECTED].data) {
        int64_t n = c->in[SELECTED].type.dim[2], sq = c->in[SELECTED].type.dim[1];
        const int32_t *list = (const int32_t *)c->in[SELECTED].data + (b * sq + i) * n;
        bool found = false;
        for (int64_t s = 0; s < n; s++)
            found |= list[s] == j;
        if (!found)
            return false;
    }
    if (c->in[Q_SPAN].data && at2(&c->in[Q_SPAN], b, i) > 0 &&
        at2(&c->in[Q_SPAN], b, i) == at2(&c->in[K_SPAN], b, j))
        return true;
    if (a->causal && kp > qp)
        return false;
    if (a->window && (qp - kp >= a->window || kp - qp >= a->window))
        return false;
    return !a->chunk || qp / a->chunk == kp / a->chunk;
}

static double score(const mx_call *c, const mx_attention_attr *a, int64_t q0, int64_t k0, int64_t d,
                    double *slope)
{
    double s = 0;
    for (int64_t x = 0; x < d; x++)
        s += mx_load_f64(&c->in[0], q0 + x) * mx_load_f64(&c->in[1], k0 + x);
    s *= a->scale;
    *slope = a->scale;
    if (a->softcap > 0) {
        double t = tanh(s / a->softcap);
        *slope *= 1 - t * t;
        s = a->softcap * t;
    }
    return s;
}

static void forward(const mx_call *c)
{
    const mx_attention_attr *a = c->attr;
    const mx_type *q = &c->in[0].type, *k = &c->in[1].type, *v = &c->in[2].type;
    int64_t sq = q->dim[1], sk = k->dim[1], h = q->dim[2], kh = k->dim[2], d = q->dim[3];
    int64_t e = v->dim[3];
#pragma omp parallel for collapse(3) schedule(static)
    for (int64_t b = 0; b < q->dim[0]; b++)
        for (int64_t hh = 0; hh < h; hh++)
            for (int64_t i = 0; i < sq; i++) {
                double acc[1024] = {0}, top = -INFINITY, sum = 0, slope;
                int64_t q0 = ((b * sq + i) * h + hh) * d;
                if (c->in[SINKS].data) {
                    top = mx_load_f64(&c->in[SINKS], hh);
                    sum = 1;
                }
                for (int64_t j = 0; j < sk; j++) {
                    if (!sees(c, a, b, i, j))
                        continue;
                    int64_t row = (b * sk + j) * kh + hh / (h / kh);
                    double s = score(c, a, q0, row * d, d, &slope);
                    double m = s > top ? s : top, keep = exp(top - m), p = exp(s - m);
                    sum = sum * keep + p;
                    for (int64_t x = 0; x < e; x++)
                        acc[x] = acc[x] * keep + p * mx_load_f64(&c->in[2], row * e + x);
                    top = m;
                }
                for (int64_t x = 0; x < e; x++)
                    mx_store_f64(&c->out[0], ((b * sq + i) * h + hh) * e + x,
                                 sum > 0 ? acc[x] / sum : 0);
                mx_store_f64(&c->out[1], (b * h + hh) * sq + i, sum > 0 ? top + log(sum) : -INFINITY);
            }
}

static void add_to(const mx_tensor *t, int64_t i, double v)
{
    mx_store_f64(t, i, mx_load_f64(t, i) + v);
}

static void backward(const mx_call *c)
{
    const mx_attention_attr *a = c->attr;
    const mx_type *q = &c->in[0].type, *k = &c->in[1].type, *v = &c->in[2].type;
    int64_t sq = q->dim[1], sk = k->dim[1], h = q->dim[2], kh = k->dim[2], d = q->dim[3];
    int64_t e = v->dim[3];
    for (int o = 0; o < 4; o++)
        memset(c->out[o].data, 0, mx_type_bytes(&c->out[o].type));
    for (int64_t b = 0; b < q->dim[0]; b++)
        for (int64_t hh = 0; hh < h; hh++)
            for (int64_t i = 0; i < sq; i++) {
                int64_t q0 = ((b * sq + i) * h + hh) * d, o0 = ((b * sq + i) * h + hh) * e;
                double lse = mx_load_f64(&c->in[LSE], (b * h + hh) * sq + i), dot = 0, slope;
                for (int64_t x = 0; x < e; x++)
                    dot += mx_load_f64(&c->in[OUT], o0 + x) * mx_load_f64(&c->in[DOUT], o0 + x);
                if (c->in[SINKS].data && isfinite(lse))
                    add_to(&c->out[3], hh, -exp(mx_load_f64(&c->in[SINKS], hh) - lse) * dot);
                for (int64_t j = 0; j < sk; j++) {
                    if (!sees(c, a, b, i, j))
                        continue;
                    int64_t row = (b * sk + j) * kh + hh / (h / kh);
                    double p = exp(score(c, a, q0, row * d, d, &slope) - lse), dp = 0;
                    for (int64_t x = 0; x < e; x++) {
                        double dy = mx_load_f64(&c->in[DOUT], o0 + x);
                        dp += dy * mx_load_f64(&c->in[2], row * e + x);
                        add_to(&c->out[2], row * e + x, p * dy);
                    }
                    double ds = p * (dp - dot) * slope;
                    for (int64_t x = 0; x < d; x++) {
                        add_to(&c->out[0], q0 + x, ds * mx_load_f64(&c->in[1], row * d + x));
                        add_to(&c->out[1], row * d + x, ds * mx_load_f64(&c->in[0], q0 + x));
                    }
                }
            }
}

/* --- the graph's side --- */

static void infer(mx_graph *g, mx_node *n)
{
    const mx_type *q = &n->in[0]->type, *k = &n->in[1]->type, *v = &n->in[2]->type;
    if (q->ndim != 4 || k->ndim != 4 || v->ndim != 4 || q->dim[3] != k->dim[3] ||
        k->dim[1] != v->dim[1] || k->dim[2] != v->dim[2] || q->dim[0] != k->dim[0] ||
        k->dim[2] == 0 || q->dim[2] % k->dim[2] != 0) {
        mx_str s = {0};
        mx_type_print(&s, q);
        mx_type_print(&s, k);
        mx_type_print(&s, v);
        mx_graph_fail(g, "attention: q, k, v do not go together: %s", mx_str_text(&s));
        mx_str_fini(&s);
        return;
    }
    n->type = *q;
    n->type.dim[3] = v->dim[3];
    n->more[0] = mx_type_of(q->dtype == MX_F64 ? MX_F64 : MX_F32,
                            MX_SHAPE(q->dim[0], q->dim[2], q->dim[1]));
}

/* Scores and values, 2 FLOPs each; what the mask excludes by index alone is not counted. */
static double pairs(const mx_node *n)
{
    const mx_attention_attr *a = n->attr;
    double sq = (double)n->in[0]->type.dim[1], sk = (double)n->in[1]->type.dim[1], p = sq * sk;
    bool by_index = !n->in[K_POS];
    if (a->causal && by_index && sq == sk)
        p = sq * (sq + 1) / 2;
    double span = (double)(a->window ? a->window : a->chunk);
    if (by_index && span > 0 && span < sk)
        p = p < sq * span ? p : sq * span;
    return p * (double)(n->in[0]->type.dim[0] * n->in[0]->type.dim[2]);
}

static mx_cost cost(const mx_node *n)
{
    double d = (double)n->in[0]->type.dim[3], e = (double)n->in[2]->type.dim[3];
    return (mx_cost){.flops = 2 * pairs(n) * (d + e)};
}

/* Scores again, dv, dp, dq, dk. */
static mx_cost grad_cost(const mx_node *n)
{
    double d = (double)n->in[0]->type.dim[3], e = (double)n->in[2]->type.dim[3];
    return (mx_cost){.flops = 2 * pairs(n) * (3 * d + 2 * e)};
}

static void grad_infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[0]->type;
    n->more[0] = n->in[1]->type;
    n->more[1] = n->in[2]->type;
    n->more[2] = n->in[SINKS] ? n->in[SINKS]->type : mx_type_of(MX_F32, MX_SCALAR);
}

mx_node *mx_attention(mx_graph *g, mx_node *q, mx_node *k, mx_node *v, mx_attention_attr a,
                      mx_attention_extra e)
{
    mx_node *in[N_IN] = {q, k, v, e.q_pos, e.k_pos, e.q_seg, e.k_seg,
                         e.q_span, e.k_span, e.sinks, e.selected};
    return mx_apply(g, &mx_op_attention, &a, N_IN, in);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    if (!dout[0])
        return; /* lse is for the backward pass only and has no gradient of its own */
    mx_node *in[N_GRAD_IN];
    memcpy(in, n->in, sizeof(mx_node *) * N_IN);
    in[OUT] = n;
    in[LSE] = mx_output(g, n, 1);
    in[DOUT] = mx_cast(g, dout[0], n->type.dtype);
    mx_node *d = mx_apply(g, &mx_op_attention_grad, n->attr, N_GRAD_IN, in);
    for (int i = 0; i < 3; i++)
        din[i] = mx_output(g, d, i);
    if (n->in[SINKS])
        din[SINKS] = mx_output(g, d, 3);
}

static const mx_attr_field fields[] = {
    MX_FIELD(mx_attention_attr, MX_ATTR_BOOL, causal), MX_FIELD(mx_attention_attr, MX_ATTR_INT, window),
    MX_FIELD(mx_attention_attr, MX_ATTR_INT, chunk),   MX_FIELD(mx_attention_attr, MX_ATTR_F64, softcap),
    MX_FIELD(mx_attention_attr, MX_ATTR_F64, scale),   {0},
};

#define NONE {.absent = true}
#define SEGMENTS {2, {2, 6}, MX_I32, 0, 2}
const mx_op mx_op_attention = {
    .name = "attention",
    .doc = "softmax(scale q k^T + mask) v",
    /* Batch splits freely; heads split together; sequence and head dims stay whole. */
    .dims = "b!s!h!d,b!t!k!d,b!t!k!e,b!s,b!t,b!s,b!t,b!s,b!t,!h,b!s!n->b!s!h!e,b!h!s",
    .attr_size = sizeof(mx_attention_attr),
    .fields = fields,
    .n_out = 2,
    .saved = 1 << 1,
    .infer = infer,
    .grad = vjp,
    .cost = cost,
    .cpu = forward,
    .cases = (const mx_case[]){
        {N_IN, {{4, {2, 6, 4, 4}}, {4, {2, 6, 2, 4}}, {4, {2, 6, 2, 6}}, NONE, NONE, NONE, NONE,
                NONE, NONE, NONE, NONE},
         &(mx_attention_attr){.causal = true, .scale = 0.5}},
        {N_IN, {{4, {2, 6, 4, 4}}, {4, {2, 6, 2, 4}}, {4, {2, 6, 2, 4}}, NONE, NONE, SEGMENTS,
                SEGMENTS, SEGMENTS, SEGMENTS, {1, {4}}, NONE},
         &(mx_attention_attr){.causal = true, .window = 3, .softcap = 2, .scale = 0.7}},
        {N_IN, {{4, {2, 6, 2, 4}}, {4, {2, 6, 2, 4}}, {4, {2, 6, 2, 4}}, NONE, NONE, NONE, NONE,
                NONE, NONE, NONE, {3, {2, 6, 3}, MX_I32, 0, 6}},
         &(mx_attention_attr){.chunk = 4, .scale = 0.7}},
        {0}},
};

const mx_op mx_op_attention_grad = {
    .name = "attention_grad",
    .doc = "dq, dk, dv and dsinks of attention",
    .attr_size = sizeof(mx_attention_attr),
    .fields = fields,
    .n_out = 4,
    .infer = grad_infer,
    .cost = grad_cost,
    .cpu = backward,
};

/* distill_loss.c - the loss of distillation over the graph.
 *
 *     MaxText   a T^2 KL(t_T || s_T) - (1 - a) log s[label] + b feature
 *     GKD       b KL(t || m) + (1 - b) KL(s || m),  m = (1 - b) s + b t;  b = 0: KL(t || s),
 *               b = 1: KL(s || t)
 * s and t are the distributions of student and teacher, s_T of logits / T; means over the tokens
 * with a label. Of a teacher's largest k logits, t is their softmax and s the student's over the
 * same k tokens.
 *
 * Logits exist for some places of every row at a time: rows may be shared by ranks, and each has
 * its own then. The gradient by the logits is written down, G, and what follows from it, G W and
 * G^T x, is kept instead of anything as wide as the vocabulary: the loss is its value plus y - y of
 * y = <x, G W> + <W, G^T x>, whose gradients these are.
 */
#include "post/distill.h"

#include "ops.h"
#include "post/teacher.h"
#include "post/tokens.h"

enum { MOST = 1 << 24 }; /* logits at a time */

/* What is known of each token, (n, 1). */
enum { SOFT, HARD, TEACHER, PLAIN, N_FACTS };

typedef struct {
    mx_graph *g;
    const mx_head *h;
    const mx_distill *s;
    mx_token_logps t;
    mx_node *x, *w;              /* (B, S, d), (V, d): without gradients */
    mx_node *logits, *ids;       /* (B, S, W) or (B, S, K), (B, S, K) or NULL: the teacher's */
    mx_node *alpha, *temperature, *beta; /* scalars */
    mx_node *fact[N_FACTS];
    mx_node *dx, *dw;            /* facts and dx: (B, S, 1), (B, S, d) */
    bool grads;
} pass;

static mx_node *log_softmax(mx_graph *g, mx_node *z)
{
    mx_node *lower = mx_sub(g, z, mx_row_max(g, z));
    return mx_sub(g, lower, mx_log(g, mx_row_sum(g, mx_exp(g, lower))));
}

/* KL(p || q) of log-probabilities: (rows, 1). */
static mx_node *kl(mx_graph *g, mx_node *p, mx_node *q)
{
    return mx_row_sum(g, mx_mul(g, mx_exp(g, p), mx_sub(g, p, q)));
}

/* The student's logits, (rows, V), to the teacher's tokens. */
static mx_node *shared(const pass *p, mx_node *z, mx_node *ids)
{
    if (ids)
        return mx_gather_last(p->g, z, ids);
    int64_t W = p->logits->type.dim[2];
    return z->type.dim[1] == W ? z : mx_slice(p->g, z, 1, 0, W);
}

/* A gradient by those, as one by all logits. */
static mx_node *unshared(const pass *p, mx_node *d, mx_node *ids)
{
    int64_t V = p->w->type.dim[0], W = d->type.dim[1];
    if (ids)
        return mx_scatter_last(p->g, ids, d, V);
    return V == W ? d : mx_pad(p->g, d, 1, 0, V - W);
}

/* GKD's divergence of log-probabilities s, t: its value, and its gradient by s's logits. */
static mx_node *divergence(const pass *p, mx_node *s, mx_node *t, mx_node **dz)
{
    mx_graph *g = p->g;
    double b = p->s->jsd;
    mx_node *ps = mx_exp(g, s), *pt = mx_exp(g, t), *r, *value;
    if (b == 0) {
        *dz = mx_sub(g, ps, pt);
        return kl(g, t, s);
    }
    if (b == 1) {
        r = mx_sub(g, s, t);
        value = mx_row_sum(g, mx_mul(g, ps, r));
    } else {
        mx_node *most = mx_maximum(g, s, t);
        mx_node *sum = mx_add(g, mx_affine(g, mx_exp(g, mx_sub(g, s, most)), 1 - b, 0),
                              mx_affine(g, mx_exp(g, mx_sub(g, t, most)), b, 0));
        mx_node *m = mx_add(g, most, mx_log(g, sum));
        r = mx_affine(g, mx_sub(g, s, m), 1 - b, 0);
        value = mx_add(g, mx_affine(g, kl(g, t, m), b, 0), mx_row_sum(g, mx_mul(g, ps, r)));
    }
    *dz = mx_mul(g, ps, mx_sub(g, r, mx_row_sum(g, mx_mul(g, ps, r))));
    return value;
}

static mx_node *gather_label(const pass *p, mx_node *logp, mx_node *labels)
{
    int64_t rows = labels->type.dim[0];
    return mx_affine(p->g, mx_gather_last(p->g, logp, mx_reshape(p->g, labels, MX_SHAPE(rows, 1))),
                     -1, 0);
}

/* MaxText's loss of some rows: facts into f, gradient by the logits given back. */
static mx_node *maxtext(const pass *p, mx_node *z, mx_node *teacher, mx_node *ids, mx_node *labels,
                        mx_node *f[N_FACTS])
{
    mx_graph *g = p->g;
    mx_node *z_shared = shared(p, z, ids);
    mx_node *s = log_softmax(g, mx_div(g, z_shared, p->temperature));
    mx_node *t = log_softmax(g, mx_div(g, teacher, p->temperature)), *plain = log_softmax(g, z);
    f[SOFT] = mx_mul(g, kl(g, t, s), mx_mul(g, p->temperature, p->temperature));
    f[HARD] = gather_label(p, plain, labels);
    if (!p->grads)
        return NULL;
    mx_node *t1 = log_softmax(g, teacher);
    f[PLAIN] = kl(g, t1, log_softmax(g, z_shared));
    f[TEACHER] = ids ? f[HARD] : gather_label(p, t1, labels);
    mx_node *soft = mx_mul(g, mx_sub(g, mx_exp(g, s), mx_exp(g, t)),
                           mx_mul(g, p->alpha, p->temperature));
    mx_node *hard = mx_sub(g, mx_exp(g, plain), mx_one_hot(g, labels, z->type.dim[1]));
    hard = mx_mul(g, hard, mx_affine(g, p->alpha, -1, 1));
    return mx_add(g, unshared(p, soft, ids), hard);
}

/* Of x (B, S, k), or (B S) numbers, places [at, at + n) of every row: (B n, k), or (B n). */
static mx_node *places_of(const pass *p, mx_node *x, int64_t at, int64_t n)
{
    mx_graph *g = p->g;
    int64_t B = p->t.batch, S = p->t.seq, k = mx_type_count(&x->type) / (B * S);
    bool numbers = x->type.ndim == 1;
    if (n < S)
        x = mx_slice(g, numbers ? mx_reshape(g, x, MX_SHAPE(B, S)) : x, 1, at, n);
    return mx_reshape(g, x, numbers ? MX_SHAPE(B * n) : MX_SHAPE(B * n, k));
}

/* all (B, m, k), with some (B n, k) after. */
static mx_node *joined(const pass *p, mx_node *all, mx_node *some)
{
    if (!some)
        return all;
    int64_t k = some->type.dim[1], n = some->type.dim[0] / p->t.batch;
    some = mx_reshape(p->g, some, MX_SHAPE(p->t.batch, n, k));
    return all ? mx_concat(p->g, 2, (mx_node *[]){all, some}, 1) : some;
}

/* Places [at, at + n) of every row. */
static void some_places(pass *p, int64_t at, int64_t n)
{
    mx_graph *g = p->g;
    const mx_head *h = p->h;
    mx_node *x = places_of(p, p->x, at, n), *f[N_FACTS] = {0}, *dz;
    mx_node *z = mx_matmul_as(g, "*d,vd->*v", x, p->w, MX_F32);
    z = p->t.tempered != 1 ? mx_affine(g, z, p->t.tempered, 0) : z;
    mx_node *bent = NULL;
    if (h->softcap > 0) {
        bent = mx_tanh(g, mx_affine(g, z, 1 / h->softcap, 0));
        z = mx_affine(g, bent, h->softcap, 0);
    }
    mx_node *teacher = places_of(p, p->logits, at, n);
    mx_node *ids = p->ids ? places_of(p, p->ids, at, n) : NULL;
    mx_node *labels = places_of(p, p->t.labels, at, n);
    if (p->s->gkd) {
        f[SOFT] = divergence(p, log_softmax(g, shared(p, z, ids)), log_softmax(g, teacher), &dz);
        dz = unshared(p, dz, ids);
    } else {
        dz = maxtext(p, z, teacher, ids, labels, f);
    }
    for (int i = 0; i < N_FACTS; i++)
        p->fact[i] = joined(p, p->fact[i], f[i]);
    if (!p->grads)
        return;
    mx_node *counts = mx_reshape(g, places_of(p, p->t.counts, at, n),
                                 MX_SHAPE(p->t.batch * n, 1));
    dz = mx_mul(g, dz, mx_affine(g, mx_mul(g, counts, p->t.scale), p->t.tempered, 0));
    if (bent)
        dz = mx_mul(g, dz, mx_affine(g, mx_mul(g, bent, bent), -1, 1));
    p->dx = joined(p, p->dx, mx_matmul(g, "*v,vd->*d", dz, p->w));
    mx_node *dw = mx_matmul_as(g, "nv,nd->vd", dz, x, MX_F32);
    p->dw = p->dw ? mx_add(g, p->dw, dw) : dw;
}

/* --- features --- */

/* x (layers, n, d) of the student, y of the teacher: a number for each layer and token. */
static mx_node *apart(const pass *p, mx_node *x, mx_node *y)
{
    mx_graph *g = p->g;
    if (!p->s->cosine) {
        mx_node *d = mx_sub(g, x, y);
        return mx_affine(g, mx_row_sum(g, mx_mul(g, d, d)), 1 / (double)x->type.dim[2], 0);
    }
    mx_node *least = mx_constant(g, MX_SCALAR, MX_F32, 1e-12); /* of a square */
    mx_node *xx = mx_maximum(g, mx_row_sum(g, mx_mul(g, x, x)), least);
    mx_node *yy = mx_maximum(g, mx_row_sum(g, mx_mul(g, y, y)), least);
    mx_node *by = mx_mul(g, mx_rsqrt(g, xx), mx_rsqrt(g, yy));
    return mx_affine(g, mx_mul(g, mx_row_sum(g, mx_mul(g, x, y)), by), -1, 1);
}

/* beta x the mean over layers of what tokens with a label have: (n, 1). */
static mx_node *feature_loss(const pass *p, const mx_build *b)
{
    mx_graph *g = p->g;
    int L = p->s->n_layers;
    int64_t n = b->batch * b->seq;
    mx_node *x = mx_attention_outputs(g, b, p->s->layers, L);
    if (!x)
        return NULL;
    int64_t d = x->type.dim[2];
    mx_node *y = mx_rows_input(g, "teacher_features", MX_SHAPE(L, b->batch, b->seq, d), MX_F32,
                               "," MX_PLACES_AXES);
    mx_node *sum = NULL;
    mx_node *each = apart(p, mx_cast(g, x, MX_F32), mx_reshape(g, y, MX_SHAPE(L, n, d)));
    for (int i = 0; i < L; i++) {
        mx_node *one = mx_reshape(g, mx_slice(g, each, 0, i, 1), MX_SHAPE(n, 1));
        sum = sum ? mx_add(g, sum, one) : one;
    }
    return mx_mul(g, mx_affine(g, sum, 1.0 / L, 0), p->beta);
}

/* --- the whole --- */

static mx_node *scalar(mx_graph *g, const char *name)
{
    return mx_input(g, name, MX_SCALAR, MX_F32);
}

static pass pass_of(mx_graph *g, const mx_head *h, mx_build *b, const mx_distill *s)
{
    int64_t V = h->weight->type.dim[0], k = s->top_k ? s->top_k : s->width < V ? s->width : V;
    mx_shape given = MX_SHAPE(b->batch, b->seq, k);
    pass p = {.g = g, .h = h, .s = s, .t = mx_logps_of(g, h, b, 1), .grads = b->training};
    p.x = mx_detach(g, h->hidden);
    p.w = mx_detach(g, h->weight);
    p.logits = mx_rows_input(g, "teacher_logits", given, MX_F32, MX_PLACES_AXES);
    if (s->top_k)
        p.ids = mx_rows_input(g, "teacher_ids", given, MX_I32, MX_PLACES_AXES);
    if (!s->gkd) {
        p.alpha = scalar(g, "distill_alpha");
        p.temperature = scalar(g, "distill_temperature");
    }
    if (s->features)
        p.beta = scalar(g, "distill_beta");
    return p;
}

static void metrics(const pass *p, mx_node *total, mx_node *features)
{
    mx_graph *g = p->g;
    static const char *const names[N_FACTS] = {"distill/soft_loss", "distill/hard_loss",
                                               "distill/teacher_loss", "distill/kl_div_T1"};
    mx_node *counts = mx_reshape(g, p->t.counts, MX_SHAPE(p->t.counts->type.dim[0], 1));
    for (int i = 0; i < N_FACTS; i++)
        if (p->fact[i] && !(i == TEACHER && p->ids))
            mx_metric_root(g, names[i], mx_mean_counted(g, p->fact[i], counts));
    mx_metric_root(g, "distill/total_loss", mx_mean_counted(g, total, counts));
    if (p->s->gkd)
        return;
    mx_metric_root(g, "distill/alpha", p->alpha);
    mx_metric_root(g, "distill/temperature", p->temperature);
    if (features) {
        mx_metric_root(g, "distill/beta_feature", p->beta);
        mx_metric_root(g, "distill/out_proj_feature_loss", mx_mean_counted(g, features, counts));
    }
}

mx_node *mx_distill_build(mx_graph *g, const mx_head *h, mx_build *b, const void *settings)
{
    pass p = pass_of(g, h, b, settings);
    int64_t n = b->batch * b->seq, rows = b->row_ranks > 1 ? b->batch / b->row_ranks : b->batch;
    int64_t most = MOST / h->weight->type.dim[0] / rows;
    most = most < 1 ? 1 : most;
    for (int64_t at = 0; at < b->seq; at += most)
        some_places(&p, at, b->seq - at < most ? b->seq - at : most);
    for (int i = 0; i < N_FACTS; i++)
        if (p.fact[i])
            p.fact[i] = mx_reshape(g, p.fact[i], MX_SHAPE(n, 1));
    mx_node *each = p.fact[SOFT], *counts = mx_reshape(g, p.t.counts, MX_SHAPE(n, 1));
    if (!p.s->gkd)
        each = mx_add(g, mx_mul(g, each, p.alpha),
                      mx_mul(g, p.fact[HARD], mx_affine(g, p.alpha, -1, 1)));
    each = mx_detach(g, each);
    mx_node *features = p.s->features ? feature_loss(&p, b) : NULL;
    if (features)
        each = mx_add(g, each, features);
    mx_node *loss = mx_mul(g, mx_sum_all(g, mx_mul(g, each, counts)), p.t.scale);
    if (p.grads) {
        mx_node *y = mx_add(g, mx_sum_all(g, mx_mul(g, h->hidden, mx_detach(g, p.dx))),
                            mx_sum_all(g, mx_mul(g, h->weight, mx_detach(g, p.dw))));
        loss = mx_add(g, loss, mx_sub(g, y, mx_detach(g, y)));
        metrics(&p, each, features);
    }
    mx_node *share = mx_mul(g, mx_sum_all(g, p.t.counts), p.t.scale);
    return mx_loss_root(g, b, loss, share);
}

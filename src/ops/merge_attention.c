/* merge_attention.c - attention to several sets of keys as attention to all of them.
 *
 *     out_i (B, S_i, H, E)   lse_i (B, H, S_i), for each set   ->   out (B, S, H, E), lse (B, H, S)
 *     lse = log sum_i e^lse_i      out = sum_i w_i out_i      w_i = e^(lse_i - lse)
 * S is S_0. A set with fewer rows is that of the last queries: the others saw none of its keys. A
 * query that saw nothing at all has out 0 and lse -infinity, as in attention.
 *
 * Backward:  dout_i = w_i dout      dlse_i = w_i (dlse + dout . (out_i - out))
 * Attention never has this computed: its own gradient from out_i, lse_i, dout_i and dlse_i is the
 * one from out, lse and dout, which mx_merged_whole finds.
 */
#include "ops/merge_attention.h"

#include "ops.h"
#include "ops/copy.h"
#include "ops/load.h"

#include <math.h>

/* Of the gradient: one set's, then those of all, of as many rows. */
enum { PART_OUT, PART_LSE, OUT, LSE, DOUT, DLSE, N_GRAD_IN };

/* One query of one head, in the set that has it or in all. */
typedef struct {
    int64_t row, lse; /* elements of out and of lse */
} place;

typedef struct {
    int64_t batch, length, heads, size;
} sizes;

static sizes sizes_of(const mx_type *out)
{
    return (sizes){out->dim[0], out->dim[1], out->dim[2], out->dim[3]};
}

/* `skipped`: how many of all queries the set does not have. */
static place find(const sizes *s, int64_t b, int64_t q, int64_t h, int64_t skipped)
{
    int64_t n = s->length - skipped, i = q - skipped;
    return (place){((b * n + i) * s->heads + h) * s->size, (b * s->heads + h) * n + i};
}

enum { RUN = 256 };

static int64_t run_of(int64_t left)
{
    return left < RUN ? left : RUN;
}

static void merge_one(const mx_call *c, const sizes *s, int64_t b, int64_t q, int64_t h)
{
    double lse[MX_MERGED_SETS], top = -INFINITY, sum = 0;
    place at[MX_MERGED_SETS], to = find(s, b, q, h, 0);
    int n = c->n_in / 2;
    for (int i = 0; i < n; i++) {
        int64_t skipped = s->length - c->in[2 * i].type.dim[1];
        at[i] = find(s, b, q, h, skipped);
        lse[i] = q < skipped ? -INFINITY : mx_load_f64(&c->in[2 * i + 1], at[i].lse);
        top = fmax(top, lse[i]);
    }
    for (int i = 0; i < n; i++)
        sum += lse[i] > -INFINITY ? exp(lse[i] - top) : 0;
    double all = top > -INFINITY ? top + log(sum) : -INFINITY;
    mx_store_f64(&c->out[1], to.lse, all);
    for (int64_t e = 0; e < s->size; e += RUN) {
        double y[RUN] = {0}, x[RUN];
        int64_t k = run_of(s->size - e);
        for (int i = 0; i < n; i++) {
            if (lse[i] == -INFINITY)
                continue;
            double w = exp(lse[i] - all);
            mx_load_run_f64(&c->in[2 * i], at[i].row + e, k, x);
            for (int64_t j = 0; j < k; j++)
                y[j] += w * x[j];
        }
        mx_store_run_f64(&c->out[0], to.row + e, k, y);
    }
}

static void merge_cpu(const mx_call *c)
{
    sizes s = sizes_of(&c->out[0].type);
    int64_t rows = s.batch * s.length;
#pragma omp parallel for schedule(static) if (rows * s.heads * s.size > 1 << 14)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < s.heads; h++)
            merge_one(c, &s, r / s.length, r % s.length, h);
}

static void merge_one_grad(const mx_call *c, const sizes *s, int64_t b, int64_t q, int64_t h)
{
    place at = find(s, b, q, h, 0);
    double part = mx_load_f64(&c->in[PART_LSE], at.lse);
    double w = part > -INFINITY ? exp(part - mx_load_f64(&c->in[LSE], at.lse)) : 0;
    double dlse = c->in[DLSE].data ? mx_load_f64(&c->in[DLSE], at.lse) : 0;
    for (int64_t e = 0; e < s->size; e += RUN) {
        double x[RUN], y[RUN], dy[RUN];
        int64_t k = run_of(s->size - e);
        mx_load_run_f64(&c->in[PART_OUT], at.row + e, k, x);
        mx_load_run_f64(&c->in[OUT], at.row + e, k, y);
        mx_load_run_f64(&c->in[DOUT], at.row + e, k, dy);
        for (int64_t j = 0; j < k; j++) {
            dlse += dy[j] * (x[j] - y[j]);
            dy[j] *= w;
        }
        mx_store_run_f64(&c->out[0], at.row + e, k, dy);
    }
    mx_store_f64(&c->out[1], at.lse, w * dlse);
}

static void merge_grad_cpu(const mx_call *c)
{
    sizes s = sizes_of(&c->out[0].type);
    int64_t rows = s.batch * s.length;
#pragma omp parallel for schedule(static) if (rows * s.heads * s.size > 1 << 14)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < s.heads; h++)
            merge_one_grad(c, &s, r / s.length, r % s.length, h);
}

/* --- the graph's side --- */

static bool belongs(const mx_type *out, const mx_type *lse, const mx_type *all)
{
    return out->ndim == 4 && lse->ndim == 3 && out->dim[0] == all->dim[0] &&
           out->dim[1] <= all->dim[1] && out->dim[2] == all->dim[2] &&
           out->dim[3] == all->dim[3] && lse->dim[0] == out->dim[0] &&
           lse->dim[1] == out->dim[2] && lse->dim[2] == out->dim[1];
}

static void infer(mx_graph *g, mx_node *n)
{
    const mx_type *all = &n->in[0]->type;
    bool fits = n->n_in % 2 == 0;
    for (int i = 0; fits && i < n->n_in; i += 2)
        fits = belongs(&n->in[i]->type, &n->in[i + 1]->type, all);
    if (!fits) {
        mx_graph_fail_inputs(g, n, "expected pairs of (B, S, H, E) and (B, H, S), no S larger "
                                   "than the first");
        return;
    }
    n->type = *all;
    n->more[0] = n->in[1]->type;
}

static void grad_infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[PART_OUT]->type;
    n->more[0] = n->in[PART_LSE]->type;
}

mx_node *mx_merge_attention(mx_graph *g, int n, mx_node *const *in)
{
    return mx_apply(g, &mx_op_merge_attention, NULL, n, in);
}

bool mx_merged_whole(const mx_node *part, mx_node *const *dout, mx_merged *whole)
{
    mx_node *d = dout[0];
    if (!d || d->op != &mx_op_merge_attention_grad || d->in[PART_OUT] != part || !dout[1] ||
        dout[1]->op != &mx_op_output || dout[1]->in[0] != d)
        return false; /* something else was made of the part too */
    *whole = (mx_merged){d->in[OUT], d->in[LSE], d->in[DOUT], d->in[DLSE]};
    return true;
}

/* The last `length` queries. */
static mx_merged last_of(mx_graph *g, const mx_merged *m, int64_t length)
{
    int64_t from = m->out->type.dim[1] - length;
    return (mx_merged){mx_slice(g, m->out, 1, from, length), mx_slice(g, m->lse, 2, from, length),
                       mx_slice(g, m->dout, 1, from, length),
                       m->dlse ? mx_slice(g, m->dlse, 2, from, length) : NULL};
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_merged whole = {n, mx_output(g, n, 1), dout[0], dout[1]}, last = {0};
    if (!whole.dout)
        whole.dout = mx_constant(g, mx_shape_of(&n->type), n->type.dtype, 0);
    mx_merged_whole(n, dout, &whole); /* merged once more: then those of all */
    whole.dout = mx_cast(g, whole.dout, n->type.dtype);
    for (int i = 0; i < n->n_in; i += 2) {
        int64_t length = n->in[i]->type.dim[1];
        const mx_merged *m = &whole;
        if (length < n->type.dim[1]) {
            if (!last.out || last.out->type.dim[1] != length)
                last = last_of(g, &whole, length);
            m = &last;
        }
        mx_node *in[N_GRAD_IN] = {n->in[i], n->in[i + 1], m->out, m->lse, m->dout, m->dlse};
        mx_node *d = mx_apply(g, &mx_op_merge_attention_grad, NULL, N_GRAD_IN, in);
        din[i] = d;
        din[i + 1] = mx_output(g, d, 1);
    }
}

#define LSES {[1] = FLOATS, [3] = FLOATS, [5] = FLOATS, [7] = FLOATS, [9] = FLOATS, [11] = FLOATS, \
              [13] = FLOATS, [15] = FLOATS}
#define FLOATS (1u << MX_F32 | 1u << MX_F64)

const mx_op mx_op_merge_attention = {
    .name = "merge_attention",
    .doc = "attention to several sets of keys as attention to all",
    .dtypes = MX_REALS,
    .dtypes_at = LSES,
    .alike = 0x5555, /* what each set has found */
    .n_out = 2,
    .saved = 1 << 1,
    .no_cast = true,
    .infer = infer,
    .grad = vjp,
    .cost = mx_cost_move,
    .cpu = merge_cpu,
    .cases = (const mx_case[]){
        {6, {{4, {2, 6, 3, 5}}, {3, {2, 3, 6}}, {4, {2, 6, 3, 5}}, {3, {2, 3, 6}},
             {4, {2, 3, 3, 5}}, {3, {2, 3, 3}}}},
        {4, {{4, {1, 4, 2, 300}}, {3, {1, 2, 4}}, {4, {1, 2, 2, 300}}, {3, {1, 2, 2}}}},
        {2, {{4, {2, 3, 2, 8}}, {3, {2, 2, 3}}}}, {0}},
};

const mx_op mx_op_merge_attention_grad = {
    .name = "merge_attention_grad",
    .doc = "what merge_attention's gradient is for one set",
    .dtypes = MX_REALS,
    .dtypes_at = {[PART_LSE] = FLOATS, [LSE] = FLOATS, [DLSE] = FLOATS},
    .alike = 1 << PART_OUT | 1 << OUT | 1 << DOUT,
    .n_out = 2,
    .no_cast = true,
    .infer = grad_infer,
    .cost = mx_cost_move,
    .cpu = merge_grad_cpu,
};

/* sinkhorn.c - positive matrices made doubly stochastic: each column divided by its sum, then
 * `steps` - 1 times each row by its sum and each column again (Sinkhorn, Knopp).
 *
 *     x (*, n, n) -> y (*, n, n)          a sum s divides as 1 / (s + eps)
 * What a step has made is x[i][j] r[i] c[j], so of every step only the divisors are known: the
 * gradient goes back through them, for y = x / (s + eps) along a row or column
 *     dx = (dy - sum dy y) / (s + eps)
 * The last step is by columns: rows sum to 1 only as far as the steps have converged.
 */
#include "ops.h"
#include "ops/load.h"

enum { MOST = 8, MOST_STEPS = 64 }; /* n, steps */

typedef struct {
    int64_t steps;
    double eps;
} sinkhorn_attr;

static void infer(mx_graph *g, mx_node *n)
{
    const sinkhorn_attr *a = n->attr;
    const mx_type *t = &n->in[0]->type;
    if (t->ndim < 2 || t->dim[t->ndim - 1] != t->dim[t->ndim - 2] ||
        t->dim[t->ndim - 1] > MOST || a->steps < 1 || a->steps > MOST_STEPS)
        mx_graph_fail_inputs(g, n, "expected square matrices of at most %d rows, and 1 to %d steps",
                             MOST, MOST_STEPS);
}

/* The factors of rows and columns after all steps, and every divisor on the way. */
typedef struct {
    double r[MOST], c[MOST], by[2 * MOST_STEPS][MOST];
    int n_by;
} scales;

static void divide(scales *s, const double *x, int n, bool rows, double eps)
{
    double *by = s->by[s->n_by++];
    for (int i = 0; i < n; i++) {
        by[i] = eps;
        for (int j = 0; j < n; j++)
            by[i] += rows ? x[i * n + j] * s->r[i] * s->c[j] : x[j * n + i] * s->r[j] * s->c[i];
    }
    for (int i = 0; i < n; i++)
        *(rows ? &s->r[i] : &s->c[i]) /= by[i];
}

static void iterate(scales *s, const double *x, int n, const sinkhorn_attr *a)
{
    s->n_by = 0;
    for (int i = 0; i < n; i++)
        s->r[i] = s->c[i] = 1;
    for (int64_t k = 0; k < a->steps; k++) {
        if (k)
            divide(s, x, n, true, a->eps);
        divide(s, x, n, false, a->eps);
    }
}

/* Back through the last step: d is the gradient of what it made, and becomes that of what it had.
 */
static void undo(scales *s, const double *x, int n, bool rows, double *d)
{
    const double *by = s->by[--s->n_by];
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int j = 0; j < n; j++) {
            int at = rows ? i * n + j : j * n + i;
            sum += d[at] * x[at] * s->r[at / n] * s->c[at % n];
        }
        for (int j = 0; j < n; j++) {
            int at = rows ? i * n + j : j * n + i;
            d[at] = (d[at] - sum) / by[i];
        }
    }
    for (int i = 0; i < n; i++)
        *(rows ? &s->r[i] : &s->c[i]) *= by[i];
}

static void sinkhorn_cpu(const mx_call *c)
{
    const mx_type *t = &c->in[0].type;
    int n = (int)t->dim[t->ndim - 1];
    int64_t all = mx_type_count(t) / (n * n);
#pragma omp parallel for schedule(static) if (all > 256)
    for (int64_t m = 0; m < all; m++) {
        double x[MOST * MOST];
        scales s;
        mx_load_run_f64(&c->in[0], m * n * n, n * n, x);
        iterate(&s, x, n, c->attr);
        for (int i = 0; i < n * n; i++)
            x[i] *= s.r[i / n] * s.c[i % n];
        mx_store_run_f64(&c->out[0], m * n * n, n * n, x);
    }
}

static void grad_cpu(const mx_call *c)
{
    const mx_type *t = &c->in[0].type;
    int n = (int)t->dim[t->ndim - 1];
    int64_t all = mx_type_count(t) / (n * n);
#pragma omp parallel for schedule(static) if (all > 256)
    for (int64_t m = 0; m < all; m++) {
        double x[MOST * MOST], d[MOST * MOST];
        scales s;
        mx_load_run_f64(&c->in[0], m * n * n, n * n, x);
        mx_load_run_f64(&c->in[1], m * n * n, n * n, d);
        iterate(&s, x, n, c->attr);
        while (s.n_by)
            undo(&s, x, n, s.n_by % 2 == 0, d);
        mx_store_run_f64(&c->out[0], m * n * n, n * n, d);
    }
}

mx_node *mx_sinkhorn(mx_graph *g, mx_node *x, int64_t steps, double eps)
{
    return MX_APPLY(g, &mx_op_sinkhorn, (&(sinkhorn_attr){steps, eps}), x);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = MX_APPLY(g, &mx_op_sinkhorn_grad, n->attr, n->in[0],
                      mx_cast(g, dout[0], n->type.dtype));
}

/* Sums, quotients and factors of every step. */
static mx_cost cost(const mx_node *n)
{
    const sinkhorn_attr *a = n->attr;
    return (mx_cost){.flops = 6.0 * (double)a->steps * (double)mx_type_count(&n->type)};
}

static const mx_attr_field fields[] = {MX_FIELD(sinkhorn_attr, MX_ATTR_INT, steps),
                                       MX_FIELD(sinkhorn_attr, MX_ATTR_F64, eps), {0}};

const mx_op mx_op_sinkhorn = {
    .name = "sinkhorn",
    .doc = "positive matrices made doubly stochastic",
    .dtypes = MX_REALS,
    .dims = "*!i!j->*!i!j",
    .attr_size = sizeof(sinkhorn_attr),
    .fields = fields,
    .no_cast = true,
    .infer = infer,
    .grad = vjp,
    .cost = cost,
    .cpu = sinkhorn_cpu,
    .cases = (const mx_case[]){{1, {{4, {2, 3, 4, 4}, .lo = 0.1, .hi = 2}},
                                &(sinkhorn_attr){6, 1e-6}},
                               {1, {{3, {70, 3, 3}, .lo = 0.5, .hi = 1}},
                                &(sinkhorn_attr){1, 1e-3}}, {0}},
};

const mx_op mx_op_sinkhorn_grad = {
    .name = "sinkhorn_grad",
    .doc = "dx of sinkhorn",
    .dtypes = MX_REALS,
    .dims = "*!i!j,*!i!j->*!i!j",
    .attr_size = sizeof(sinkhorn_attr),
    .fields = fields,
    .no_cast = true,
    .infer = infer,
    .cost = cost,
    .cpu = grad_cpu,
    .cases = (const mx_case[]){{2, {{3, {5, 4, 4}, .lo = 0.1, .hi = 2, .no_grad = true},
                                    {3, {5, 4, 4}, .no_grad = true}},
                                &(sinkhorn_attr){6, 1e-6}}, {0}},
};

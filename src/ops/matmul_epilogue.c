/* matmul_epilogue.c - the epilogues of matmul.h: their notation, CPU kernels and gradients.
 *
 * The arithmetic is that of the elementwise ops, whose float64 tiles are called here: an epilogue
 * is defined by the ops that it stands for.
 */
#include "ops.h"
#include "ops/load.h"
#include "ops/matmul.h"

#include <stdio.h>
#include <string.h>

enum { TILE = 512, MOST = 2 }; /* MOST: tensors that an epilogue reads, or gives, beside C */

/* y = op(a, b) over n elements; y may be a or b, and b NULL for an op of one operand. */
static void apply(const mx_op *op, int64_t n, const double *a, const double *b, double *y)
{
    op->tile_f64(&(mx_tile){.n = n, .in = {a, b}, .out = y});
}

/* n elements of C, of what is read and of what is given. */
typedef void (*tile_fn)(int64_t n, double *c, double (*in)[TILE], double (*out)[TILE]);

typedef struct {
    const mx_tensor *c, *in, *out;
    int n_in, n_out;
    tile_fn f;
} tiles;

static void run_tiles(const tiles *t)
{
    int64_t count = mx_type_count(&t->c->type);
#pragma omp parallel for schedule(static) if (count > 1 << 15)
    for (int64_t i = 0; i < count; i += TILE) {
        double c[TILE], in[MOST][TILE], out[MOST][TILE];
        int64_t n = count - i < TILE ? count - i : TILE;
        mx_load_run_f64(t->c, i, n, c);
        for (int k = 0; k < t->n_in; k++)
            mx_load_run_f64(&t->in[k], i, n, in[k]);
        t->f(n, c, in, out);
        mx_store_run_f64(t->c, i, n, c);
        for (int k = 0; k < t->n_out; k++)
            mx_store_run_f64(&t->out[k], i, n, out[k]);
    }
}

static void bias_cpu(const mx_call *c, const mx_tensor *in, const mx_tensor *out)
{
    const mx_tensor *y = &c->out[0];
    int64_t n = mx_type_count(&in[0].type), count = mx_type_count(&y->type);
    (void)out;
#pragma omp parallel for schedule(static) if (count > 1 << 15)
    for (int64_t i = 0; i < count; i++)
        mx_store_f64(y, i, mx_load_f64(y, i) + mx_load_f64(&in[0], i % n));
}

static void residual_tile(int64_t n, double *c, double (*in)[TILE], double (*out)[TILE])
{
    (void)out;
    apply(&mx_op_add, n, c, in[0], c);
}

static void residual_cpu(const mx_call *c, const mx_tensor *in, const mx_tensor *out)
{
    (void)out;
    run_tiles(&(tiles){c->out, in, NULL, 1, 0, residual_tile});
}

static void gelu_tile(int64_t n, double *c, double (*in)[TILE], double (*out)[TILE])
{
    (void)in;
    memcpy(out[0], c, sizeof *c * (size_t)n);
    apply(&mx_op_gelu_tanh, n, c, NULL, c);
}

static void gelu_cpu(const mx_call *c, const mx_tensor *in, const mx_tensor *out)
{
    (void)in;
    run_tiles(&(tiles){c->out, NULL, out, 0, 1, gelu_tile});
}

static void gelu_grad_tile(int64_t n, double *c, double (*in)[TILE], double (*out)[TILE])
{
    (void)out;
    apply(&mx_op_gelu_tanh_grad, n, in[0], c, c);
}

static void gelu_grad_cpu(const mx_call *c, const mx_tensor *in, const mx_tensor *out)
{
    (void)out;
    run_tiles(&(tiles){c->out, in, NULL, 1, 0, gelu_grad_tile});
}

static void bias_grad_cpu(const mx_call *c, const mx_tensor *in, const mx_tensor *out)
{
    const mx_tensor *y = &c->out[0];
    int64_t n = mx_type_count(&out[0].type), count = mx_type_count(&y->type);
    (void)in;
#pragma omp parallel for schedule(static) if (count > 1 << 15)
    for (int64_t k = 0; k < n; k++) {
        double sum = 0;
        for (int64_t i = k; i < count; i += n)
            sum += mx_load_f64(y, i);
        mx_store_f64(&out[0], k, sum);
    }
}

static void swiglu_tile(int64_t n, double *c, double (*in)[TILE], double (*out)[TILE])
{
    memcpy(out[0], c, sizeof *c * (size_t)n);
    apply(&mx_op_silu, n, c, NULL, c);
    apply(&mx_op_mul, n, c, in[0], c);
}

static void swiglu_cpu(const mx_call *c, const mx_tensor *in, const mx_tensor *out)
{
    mx_tensor u = out[1];
    mx_matmul_contract(c, &in[0], &u);
    run_tiles(&(tiles){c->out, &u, out, 1, 1, swiglu_tile});
}

static void swiglu_grad_tile(int64_t n, double *c, double (*in)[TILE], double (*out)[TILE])
{
    enum { G, U };
    apply(&mx_op_silu, n, in[G], NULL, out[0]);
    apply(&mx_op_mul, n, c, out[0], out[0]);
    apply(&mx_op_mul, n, c, in[U], c);
    apply(&mx_op_silu_grad, n, in[G], c, c);
}

static void swiglu_grad_cpu(const mx_call *c, const mx_tensor *in, const mx_tensor *out)
{
    run_tiles(&(tiles){c->out, in, out, 2, 1, swiglu_grad_tile});
}

/* Of a term x that is added: C has the result's gradient, x its sum over what x is repeated for. */
static mx_node *same_vjp(mx_graph *g, mx_node *n, mx_node *d, int out)
{
    (void)g, (void)n, (void)out;
    return d;
}

static mx_node *term_vjp(mx_graph *g, mx_node *d, const mx_node *x)
{
    return mx_sum_to(g, d, mx_shape_of(&x->type));
}

static mx_node *gelu_vjp(mx_graph *g, mx_node *n, mx_node *d, int out)
{
    return mx_gelu_tanh_grad(g, mx_output(g, n, out), d);
}

const mx_epilogue_kind mx_epilogue_kinds[MX_EPILOGUE_COUNT] = {
    [MX_EPILOGUE_BIAS] = {"bias", "n", "", bias_cpu, same_vjp, term_vjp},
    [MX_EPILOGUE_RESIDUAL] = {"residual", "c", "", residual_cpu, same_vjp, term_vjp},
    [MX_EPILOGUE_GELU] = {"gelu", "", "c", gelu_cpu, gelu_vjp},
    [MX_EPILOGUE_GELU_GRAD] = {"gelu_grad", "c", "", gelu_grad_cpu},
    [MX_EPILOGUE_BIAS_GRAD] = {"bias_grad", "", "n", bias_grad_cpu},
    [MX_EPILOGUE_SWIGLU] = {"swiglu", "b", "cc", swiglu_cpu},
    [MX_EPILOGUE_SWIGLU_GRAD] = {"swiglu_grad", "cc", "c", swiglu_grad_cpu},
};

/* --- notation --- */

/* The pieces of "a,b->c", without what epilogues have added. */
typedef struct {
    char a[16], b[16], c[16];
} contraction;

static void take(const char **from, const char *until, char *out, size_t cap)
{
    size_t n = 0;
    for (; **from && !strchr(until, **from); ++*from)
        if (**from != '!' && n + 1 < cap)
            out[n++] = **from;
    out[n] = 0;
}

static contraction parse(const char *spec)
{
    contraction t;
    take(&spec, ",", t.a, sizeof t.a);
    spec += *spec == ',';
    take(&spec, ",-", t.b, sizeof t.b);
    spec = strstr(spec, "->");
    spec = spec ? spec + 2 : "";
    take(&spec, ",", t.c, sizeof t.c);
    return t;
}

/* A factor whose summed letters stay whole. */
static void add_factor(mx_str *s, const char *letters, const char *result)
{
    for (; *letters; letters++)
        mx_str_addf(s, "%s%c", strchr(result, *letters) ? "" : "!", *letters);
}

static void add_term(mx_str *s, char code, const contraction *t)
{
    if (code == 'b')
        add_factor(s, t->b, t->c);
    else
        mx_str_add(s, code == 'n' && *t->c ? t->c + strlen(t->c) - 1 : t->c);
}

void mx_matmul_notation(const char *spec, mx_epilogues list, char *out, size_t cap)
{
    contraction t = parse(spec);
    mx_str s = {0}, more = {0};
    bool any = list.of[0] != MX_EPILOGUE_NONE;
    add_factor(&s, t.a, any ? t.c : t.a);
    mx_str_add(&s, ",");
    add_factor(&s, t.b, any ? t.c : t.b);
    for (int e = 0; list.of[e]; e++) {
        for (const char *c = mx_epilogue_kinds[list.of[e]].in; *c; c++) {
            mx_str_add(&s, ",");
            add_term(&s, *c, &t);
        }
        for (const char *c = mx_epilogue_kinds[list.of[e]].out; *c; c++) {
            mx_str_add(&more, ",");
            add_term(&more, *c, &t);
        }
    }
    snprintf(out, cap, "%s->%s%s", mx_str_text(&s), t.c, mx_str_text(&more));
    mx_str_fini(&s);
    mx_str_fini(&more);
}

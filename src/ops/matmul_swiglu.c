/* matmul_swiglu.c - the products before a SwiGLU together with it, and the product behind it
 * together with its gradient:
 *
 *     matmul_swiglu         g = x w     u = x w2     h = silu(g) u                  -> h, g, u
 *     matmul_swiglu_slope   d = dy w    dg = d u silu'(g)    du = d silu(g)         -> dg, du
 *
 * One kernel each where the device has it: g and u are not read again, d is not written. Graphs for
 * a GPU get them from a pass behind autodiff (compile/swiglu.c), so they have no gradients.
 */
#include "ops.h"
#include "ops/load.h"
#include "ops/matmul.h"
#include "ops/tile.h"

#include <stdio.h>
#include <string.h>

static const char *notation(const mx_node *n)
{
    return ((const mx_matmul_attr *)n->attr)->spec;
}

static double sigmoid(double a)
{
    return MX_T_SIGMOID(a);
}

static void product(const mx_call *c, int factor, int out)
{
    mx_tensor in[2] = {c->in[0], c->in[factor]}, y = c->out[out];
    mx_call one = *c;
    one.n_in = 2, one.in = in, one.out = &y;
    mx_op_matmul.cpu(&one);
}

static void matmul_swiglu_cpu(const mx_call *c)
{
    enum { H, G, U };
    product(c, 1, G);
    product(c, 2, U);
    int64_t count = mx_type_count(&c->out[H].type);
#pragma omp parallel for schedule(static) if (count > 1 << 15)
    for (int64_t i = 0; i < count; i++) {
        double g = mx_load_f64(&c->out[G], i);
        mx_store_f64(&c->out[H], i, g * sigmoid(g) * mx_load_f64(&c->out[U], i));
    }
}

static void matmul_swiglu_slope_cpu(const mx_call *c)
{
    enum { DG, DU };
    product(c, 1, DG);
    int64_t count = mx_type_count(&c->out[DG].type);
#pragma omp parallel for schedule(static) if (count > 1 << 15)
    for (int64_t i = 0; i < count; i++) {
        double d = mx_load_f64(&c->out[DG], i), g = mx_load_f64(&c->in[2], i), s = sigmoid(g);
        mx_store_f64(&c->out[DG], i, d * mx_load_f64(&c->in[3], i) * s * (1 + g * (1 - s)));
        mx_store_f64(&c->out[DU], i, d * g * s);
    }
}

mx_node *mx_matmul_swiglu(mx_graph *g, mx_node *gate, mx_node *up)
{
    const char *spec = notation(gate), *arrow = strstr(spec, "->"), *out = arrow + 2;
    char factor[16] = {0}, more[16] = {0};
    size_t n = 0;
    for (const char *c = strchr(spec, ',') + 1; c < arrow && n + 2 < sizeof factor; c++) {
        if (!strchr(out, *c))
            factor[n++] = '!'; /* a summed letter stays whole: see mx_matmul_third */
        factor[n++] = *c;
    }
    snprintf(more, sizeof more, "%.6s,%.6s", out, out);
    mx_matmul_attr a = mx_matmul_third(gate, factor, more);
    return MX_APPLY(g, &mx_op_matmul_swiglu, &a, gate->in[0], gate->in[1], up->in[1]);
}

mx_node *mx_matmul_swiglu_slope(mx_graph *g, mx_node *d, mx_node *gate, mx_node *up)
{
    const char *out = strstr(notation(d), "->") + 2;
    char third[16] = {0};
    snprintf(third, sizeof third, "%.6s,%.6s", out, out);
    mx_matmul_attr a = mx_matmul_third(d, third, out);
    return MX_APPLY(g, &mx_op_matmul_swiglu_slope, &a, d->in[0], d->in[1], gate, up);
}

static mx_cost twice(const mx_node *n)
{
    mx_cost c = mx_matmul_cost(n);
    c.flops *= 2;
    return c;
}

#define IN(rank, ...) {rank, __VA_ARGS__, .lo = -1, .hi = 1, .no_grad = true}
const mx_op mx_op_matmul_swiglu = {
    .name = "matmul_swiglu",
    .doc = "SwiGLU of two products, and these",
    .n_out = 3,
    .attr_size = sizeof(mx_matmul_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(mx_matmul_attr, MX_ATTR_TEXT, spec), {0}},
    .notation = notation,
    .multiplies = true,
    .cost = twice,
    .cpu = matmul_swiglu_cpu,
    .cases = (const mx_case[]){{3, {IN(3, {2, 3, 8}), IN(2, {16, 8}), IN(2, {16, 8})},
                                &(mx_matmul_attr){"*!d,f!d,f!d->*f,*f,*f", 0, false}},
                               {0}},
};
const mx_op mx_op_matmul_swiglu_slope = {
    .name = "matmul_swiglu_slope",
    .doc = "gradients of SwiGLU's factors, from a product",
    .n_out = 2,
    .attr_size = sizeof(mx_matmul_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(mx_matmul_attr, MX_ATTR_TEXT, spec), {0}},
    .notation = notation,
    .cost = mx_matmul_cost,
    .cpu = matmul_swiglu_slope_cpu,
    .cases = (const mx_case[]){{4, {IN(3, {2, 3, 8}), IN(2, {8, 16}), IN(3, {2, 3, 16}),
                                    IN(3, {2, 3, 16})},
                                &(mx_matmul_attr){"*!d,!df,*f,*f->*f,*f", 0, false}},
                               {0}},
};

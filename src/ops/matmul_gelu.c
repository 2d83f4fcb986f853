/* matmul_gelu.c - a product with bias and GELU, and what GELU was taken of:
 *
 *     u = x w + b     y = gelu_tanh(u)     -> y, u
 *
 * One kernel where the device has it: u is written for the backward pass and
 * not read again. Graphs for a GPU get it from a pass (compile/bias.c).
 */
#include "ops.h"
#include "ops/load.h"
#include "ops/matmul.h"
#include "ops/tile.h"

#include <string.h>

static const char *notation(const mx_node *n)
{
    return ((const mx_matmul_attr *)n->attr)->spec;
}

static double gelu(double a)
{
    typedef double real;
    return a * MX_T_GELU_GATE(a);
}

static void matmul_gelu_cpu(const mx_call *c)
{
    mx_tensor u = c->out[1];
    mx_call product = *c;
    product.out = &u;
    mx_op_matmul.cpu(&product);
    int64_t count = mx_type_count(&u.type);
#pragma omp parallel for schedule(static) if (count > 1 << 15)
    for (int64_t i = 0; i < count; i++)
        mx_store_f64(&c->out[0], i, gelu(mx_load_f64(&u, i)));
}

mx_node *mx_matmul_gelu(mx_graph *g, mx_node *product, mx_node *bias)
{
    const char *out = strstr(notation(product), "->") + 2;
    mx_matmul_attr a = mx_matmul_third(product, out + strlen(out) - 1, out);
    return MX_APPLY(g, &mx_op_matmul_gelu, &a, product->in[0], product->in[1], bias);
}

static void matmul_gelu_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *du = mx_gelu_tanh_slope(g, mx_output(g, n, 1), dout[0]);
    mx_op_matmul.grad(g, n, &du, din);
}

const mx_op mx_op_matmul_gelu = {
    .name = "matmul_gelu",
    .doc = "GELU of a product with bias, and what it was taken of",
    .n_out = 2,
    .saved = 1 << 1,
    .attr_size = sizeof(mx_matmul_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(mx_matmul_attr, MX_ATTR_TEXT, spec), {0}},
    .notation = notation,
    .multiplies = true,
    .grad = matmul_gelu_vjp,
    .cost = mx_matmul_cost,
    .cpu = matmul_gelu_cpu,
    .cases = (const mx_case[]){{3, {{3, {2, 3, 8}, .lo = -0.3, .hi = 0.3}, {2, {8, 16}}, {1, {16}}},
                                &(mx_matmul_attr){"*!d,!df,f->*f,*f", 0, false}},
                               {0}},
};

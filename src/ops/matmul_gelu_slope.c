/* matmul_gelu_slope.c - a product times the slope of GELU, and the sum of its rows:
 *
 *     du = (dy w) gelu_tanh'(u)     db = the sum of du's rows     -> du, db
 *
 * which are the gradients of what GELU was taken of and of the bias in it, from the gradient of
 * what the next layer gave. One kernel where the device has it: dy w is not written, nor is du read
 * again. Graphs for a GPU get it from a pass (compile/slope.c).
 */
#include "ops.h"
#include "ops/gpu_work.h"
#include "ops/load.h"
#include "ops/matmul.h"
#include "ops/tile.h"

#include <string.h>

static const char *notation(const mx_node *n)
{
    return ((const mx_matmul_attr *)n->attr)->spec;
}

static double slope(double a)
{
    typedef double real;
    double s = MX_T_GELU_GATE(a);
    return s * (1 + a * (1 - s) * (1.5957691216057308 + 0.21406444881780074 * a * a));
}

static void matmul_gelu_slope_cpu(const mx_call *c)
{
    const mx_tensor *du = &c->out[0];
    mx_call product = *c;
    product.n_in = 2;
    mx_op_matmul.cpu(&product);
    int64_t n = mx_type_count(&c->out[1].type), rows = mx_type_count(&du->type) / n;
#pragma omp parallel for schedule(static) if (rows * n > 1 << 15)
    for (int64_t k = 0; k < n; k++) {
        double sum = 0;
        for (int64_t i = k; i < rows * n; i += n) {
            mx_store_f64(du, i, mx_load_f64(du, i) * slope(mx_load_f64(&c->in[2], i)));
            sum += mx_load_f64(du, i);
        }
        mx_store_f64(&c->out[1], k, sum);
    }
}

/* Sums have the dtype that sum_to gives them. */
static void infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->more[0].dtype = n->type.dtype == MX_F64 ? MX_F64 : MX_F32;
}

mx_node *mx_matmul_gelu_slope(mx_graph *g, mx_node *product, mx_node *u)
{
    const char *out = strstr(notation(product), "->") + 2;
    mx_matmul_attr a = mx_matmul_third(product, out, out + strlen(out) - 1);
    return MX_APPLY(g, &mx_op_matmul_gelu_slope, &a, product->in[0], product->in[1], u);
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    int64_t cols = n->type.dim[n->type.ndim - 1];
    (void)most;
    return mx_gpu_slope_bytes(mx_type_count(&n->type) / (cols ? cols : 1), cols);
}

const mx_op mx_op_matmul_gelu_slope = {
    .name = "matmul_gelu_slope",
    .doc = "a product times the slope of GELU, and the sum of its rows",
    .n_out = 2,
    .attr_size = sizeof(mx_matmul_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(mx_matmul_attr, MX_ATTR_TEXT, spec), {0}},
    .notation = notation,
    .multiplies = true,
    .infer = infer,
    .cost = mx_matmul_cost,
    .cpu = matmul_gelu_slope_cpu,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){{3, {{3, {2, 3, 8}, .no_grad = true}, {2, {16, 8}, .no_grad = true},
                                    {3, {2, 3, 16}, .lo = -3, .hi = 3, .no_grad = true}},
                                &(mx_matmul_attr){"*!d,f!d,*f->*f,f", 0, false}},
                               {3, {{2, {70, 8}, .no_grad = true}, {2, {8, 16}, .no_grad = true},
                                    {2, {70, 16}, .lo = -3, .hi = 3, .no_grad = true}},
                                &(mx_matmul_attr){"*!d,!df,*f->*f,f", 0, false}},
                               {0}},
};

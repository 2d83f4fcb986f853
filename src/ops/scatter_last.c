/* scatter_last.c - values added into rows of zeros by index: the gradient of gather_last and top_k.
 *
 *     index (*, k) int32   v (*, k)  ->  (*, d):   y[index[i]] += v[i]
 * Values for one place are added in the order of i. An index outside [0, d) is left out.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/inputs.h"
#include "ops/load.h"

#include <string.h>

enum { MX_INPUTS_SCATTER_LAST };

typedef struct {
    int64_t size;
} scatter_attr;

static void infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type.dim[n->type.ndim - 1] = ((const scatter_attr *)n->attr)->size;
    n->type.dtype = n->in[SCATTER_X]->type.dtype;
}

static void scatter_last_cpu(const mx_call *c)
{
    const mx_tensor *v = &c->in[SCATTER_X], *y = &c->out[0];
    int64_t k = v->type.dim[v->type.ndim - 1], d = y->type.dim[y->type.ndim - 1];
    int64_t rows = d ? mx_type_count(&y->type) / d : 0;
    const int32_t *index = c->in[SCATTER_INDEX].data;
    size_t row_bytes = (size_t)d * mx_dtype_bytes(y->type.dtype);
#pragma omp parallel for schedule(static) if (rows * d > 1 << 14)
    for (int64_t r = 0; r < rows; r++) {
        memset((char *)y->data + (size_t)r * row_bytes, 0, row_bytes);
        for (int64_t i = r * k; i < (r + 1) * k; i++)
            if (index[i] >= 0 && index[i] < d) {
                int64_t at = r * d + index[i];
                mx_store_f64(y, at, mx_load_f64(y, at) + mx_load_f64(v, i));
            }
    }
}

mx_node *mx_scatter_last(mx_graph *g, mx_node *index, mx_node *v, int64_t size)
{
    return MX_APPLY(g, &mx_op_scatter_last, &(scatter_attr){size}, index, v);
}

static void scatter_last_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[SCATTER_X] = mx_gather_last(g, dout[0], n->in[SCATTER_INDEX]);
}

const mx_op mx_op_scatter_last = {
    .name = "scatter_last",
    .doc = "values added into rows of zeros by index",
    .dtypes = MX_NUMBERS,
    .dtypes_at = {[SCATTER_INDEX] = MX_INDICES},
    .dims = "*k,*k->*!d",
    .attr_size = sizeof(scatter_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(scatter_attr, MX_ATTR_INT, size), {0}},
    .no_cast = true,
    .infer = infer,
    .grad = scatter_last_vjp,
    .cost = mx_cost_move,
    .cpu = scatter_last_cpu,
    .cases = (const mx_case[]){{2, {{3, {2, 3, 4}, MX_I32, -1, 6}, {3, {2, 3, 4}}},
                                &(scatter_attr){5}},
                               {2, {{1, {3}, MX_I32, 0, 2}, {1, {3}}}, &(scatter_attr){2}},
                               {2, {{2, {9, 70}, MX_I32, -3, 50}, {2, {9, 70}, .no_grad = true}},
                                &(scatter_attr){45}},
                               {2, {{2, {3, 40}, MX_I32, -1, 6}, {2, {3, 40}, MX_I32, -9, 9}},
                                &(scatter_attr){5}}, {0}},
};

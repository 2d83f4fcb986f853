/* gather_last.c - entries of the last dim by index, row by row.
 *
 *     x (*, d)   index (*, k) int32  ->  (*, k):   y[i] = x[index[i]]
 * An index outside [0, d) gives 0. The gradient is scatter_last.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/inputs.h"

#include <string.h>

enum { MX_INPUTS_GATHER_LAST };

static void gather_last_cpu(const mx_call *c)
{
    const mx_type *x = &c->in[GATHER_X].type, *y = &c->out[0].type;
    int64_t d = x->dim[x->ndim - 1], k = y->dim[y->ndim - 1], n = mx_type_count(y);
    size_t item = mx_dtype_bytes(x->dtype);
    const int32_t *index = c->in[GATHER_INDEX].data;
#pragma omp parallel for schedule(static) if (n > 1 << 14)
    for (int64_t i = 0; i < n; i++) {
        char *out = (char *)c->out[0].data + (size_t)i * item;
        const char *row = (const char *)c->in[GATHER_X].data + (size_t)(i / k * d) * item;
        if (index[i] >= 0 && index[i] < d)
            memcpy(out, row + (size_t)index[i] * item, item);
        else
            memset(out, 0, item);
    }
}

mx_node *mx_gather_last(mx_graph *g, mx_node *x, mx_node *index)
{
    return MX_APPLY(g, &mx_op_gather_last, NULL, x, index);
}

static void gather_last_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const mx_type *x = &n->in[GATHER_X]->type;
    din[GATHER_X] = mx_scatter_last(g, n->in[GATHER_INDEX], dout[0], x->dim[x->ndim - 1]);
}

const mx_op mx_op_gather_last = {
    .name = "gather_last",
    .doc = "entries of the last dim by index",
    .dtypes = MX_ANY_DTYPE,
    .dtypes_at = {[GATHER_INDEX] = MX_INDICES},
    .dims = "*!d,*k->*k",
    .no_cast = true,
    .grad = gather_last_vjp,
    .cost = mx_cost_move,
    .cpu = gather_last_cpu,
    .cases = (const mx_case[]){{2, {{3, {2, 3, 5}}, {3, {2, 3, 4}, MX_I32, -1, 6}}},
                               {2, {{1, {5}}, {1, {3}, MX_I32, 0, 5}}},
                               {2, {{2, {40, 9}, MX_I32, -50, 50}, {2, {40, 70}, MX_I32, -2, 11}}},
                               {0}},
};

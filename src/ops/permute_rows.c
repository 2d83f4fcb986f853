/* permute_rows.c - each token's row once per choice, in the order sort_by_expert found.
 *
 *     x (N, d)   order (N k)   place (N k)  ->  (N k, d):   y[i] = x[order[i] / k]
 * order and place are inverse to each other, so the gradient gathers too (unpermute_rows) and
 * nothing has to be added under a lock. k follows from the sizes.
 */
#include "ir/partition.h"
#include "ops.h"
#include "ops/copy.h"
#include "ops/inputs.h"

#include <string.h>

enum { MX_INPUTS_PERMUTE };

static void check(mx_graph *g, mx_node *n)
{
    int64_t rows = n->in[PERMUTE_X]->type.dim[0], m = n->in[PERMUTE_ORDER]->type.dim[0];
    if (!rows || m % rows)
        mx_graph_fail(g, "permute_rows: %lld entries for %lld rows; expected a multiple",
                      (long long)m, (long long)rows);
}

static void permute_rows_cpu(const mx_call *c)
{
    int64_t rows = c->in[PERMUTE_X].type.dim[0], m = c->in[PERMUTE_ORDER].type.dim[0], k = m / rows;
    size_t row = mx_dims_after_bytes(&c->in[PERMUTE_X].type, 0);
    const int32_t *order = c->in[PERMUTE_ORDER].data;
#pragma omp parallel for schedule(static) if ((size_t)m * row > 1 << 16)
    for (int64_t i = 0; i < m; i++) {
        char *out = (char *)c->out[0].data + (size_t)i * row;
        if (order[i] >= 0 && order[i] < m)
            memcpy(out, (const char *)c->in[PERMUTE_X].data + (size_t)(order[i] / k) * row, row);
        else
            memset(out, 0, row);
    }
}

mx_node *mx_permute_rows(mx_graph *g, mx_node *x, mx_node *order, mx_node *place)
{
    return MX_APPLY(g, &mx_op_permute_rows, NULL, x, order, place);
}

static void permute_rows_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *dy = dout[0];
    int64_t rows = n->in[PERMUTE_X]->type.dim[0];
    /* A sum of two gradients (gate and up projection) is formed while the rows are added up. */
    bool sum = dy->op == &mx_op_add;
    for (int i = 0; sum && i < 2; i++)
        sum = mx_shape_equal(&dy->in[i]->type, &dy->type)
              && dy->in[i]->type.dtype == dy->type.dtype;
    mx_node *in[4] = {sum ? dy->in[0] : dy, n->in[PERMUTE_ORDER], n->in[PERMUTE_PLACE],
                      sum ? dy->in[1] : NULL};
    din[PERMUTE_X] = mx_unpermute_sum(g, in, rows);
}

/* Tokens lie as those that were sorted. Their rows are gathered before they are copied. */
static void place(const mx_node *n, mx_partition_call *p)
{
    mx_cut entries = p->have[1].dim[0], tokens = entries;
    if (tokens.n)
        tokens.size[tokens.n - 1] /=
            n->in[PERMUTE_ORDER]->type.dim[0] / n->in[PERMUTE_X]->type.dim[0];
    tokens.sorted_by = 0;
    p->in[0] = (mx_placement){{tokens}};
    p->in[1] = p->in[2] = (mx_placement){{entries}};
    p->out[0] = (mx_placement){{entries}};
}

const mx_op mx_op_permute_rows = {
    .name = "permute_rows",
    .doc = "rows once per choice, grouped by expert",
    .dtypes = MX_ANY_DTYPE,
    .dtypes_at = {[PERMUTE_ORDER] = MX_INDICES, [PERMUTE_PLACE] = MX_INDICES},
    .dims = "!nd,!m,!m->!md",
    .no_cast = true,
    .place = place,
    .infer = check,
    .grad = permute_rows_vjp,
    .cost = mx_cost_move,
    .cpu = permute_rows_cpu,
    /* A gradient needs one row and the identity: order and place of a random case would not be each
     * other's inverse. Real orders are in tests/ops/ops_values_test.c. */
    .cases = (const mx_case[]){{3, {{2, {1, 4}}, {1, {1}, MX_I32, 0, 1}, {1, {1}, MX_I32, 0, 1}}},
                               {3, {{2, {5, 264}, .no_grad = true}, {1, {15}, MX_I32, -1, 16},
                                    {1, {15}, MX_I32, -1, 16}}},
                               {3, {{2, {5, 6}, .no_grad = true}, {1, {10}, MX_I32, -1, 11},
                                    {1, {10}, MX_I32, -1, 11}}},
                               {3, {{2, {3, 24}, .no_grad = true}, {1, {3}, MX_I32, -1, 4},
                                    {1, {3}, MX_I32, -1, 4}}}, {0}},
};

/* embed.c - rows of a table by number.
 *
 *     table (v, d)   ids (*) int32  ->  (*, d)
 * An id outside the table gives a row of zeros: a step must not crash on one (the loader refuses
 * such ids with the record's name, long before they come here), and negative ids mark padding. The
 * gradient is embed_grad.
 */
#include "ops.h"
#include "ops/copy.h"

#include <string.h>

enum { WORTH = 1 << 16 };

static void embed_cpu(const mx_call *c)
{
    const mx_type *table = &c->in[0].type;
    const int32_t *id = c->in[1].data;
    int64_t n = mx_type_count(&c->in[1].type), rows = table->dim[0];
    size_t row = mx_dims_after_bytes(table, 0);
#pragma omp parallel for schedule(static) if ((size_t)n * row > WORTH)
    for (int64_t i = 0; i < n; i++) {
        char *out = (char *)c->out[0].data + (size_t)i * row;
        if (id[i] >= 0 && id[i] < rows)
            memcpy(out, (const char *)c->in[0].data + (size_t)id[i] * row, row);
        else
            memset(out, 0, row);
    }
}

mx_node *mx_embed(mx_graph *g, mx_node *table, mx_node *ids)
{
    return MX_APPLY(g, &mx_op_embed, NULL, table, ids);
}

static void embed_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_embed_grad(g, n->in[1], dout[0], n->in[0]->type.dim[0]);
}

const mx_op mx_op_embed = {
    .name = "embed",
    .doc = "rows of a table by number",
    .dtypes = MX_ANY_DTYPE,
    .dtypes_at = {[1] = MX_INDICES},
    .dims = "!vd,*->*d",
    .grad = embed_vjp,
    .cost = mx_cost_move,
    .cpu = embed_cpu,
    .cases = (const mx_case[]){{2, {{2, {5, 8}}, {2, {3, 4}, MX_I32, -1, 6}}},
                               {2, {{2, {5, 3}}, {1, {2}, MX_I32, 0, 5}}},
                               {2, {{2, {4, 2}}, {0, {0}, MX_I32, 2, 3}}}, {0}},
};

/* embed_by_row.c - rows of a table by number, where every row of the batch has a table of its own.
 *
 *     table (B, v, d)   ids (B, S) int32  ->  (B, S, d)
 * As embed of one table otherwise: an id outside it gives zeros. For meshes: table and ids are cut
 * by rows of the batch alike, and no rank needs another's rows. What runs is embed, of the tables
 * one after the other.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/inputs.h"

#include <string.h>

enum { MX_INPUTS_EMBED };

static void embed_by_row_cpu(const mx_call *c)
{
    const mx_type *table = &c->in[EMBED_TABLE].type;
    const int32_t *id = c->in[EMBED_IDS].data;
    int64_t rows = table->dim[1], each = c->in[EMBED_IDS].type.dim[1];
    int64_t n = mx_type_count(&c->in[EMBED_IDS].type);
    size_t row = mx_dims_after_bytes(table, 1);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        char *out = (char *)c->out[0].data + (size_t)i * row;
        const char *own = (const char *)c->in[EMBED_TABLE].data + (size_t)(i / each * rows) * row;
        if (id[i] >= 0 && id[i] < rows)
            memcpy(out, own + (size_t)id[i] * row, row);
        else
            memset(out, 0, row);
    }
}

mx_node *mx_embed_by_row(mx_graph *g, mx_node *table, mx_node *ids)
{
    return MX_APPLY(g, &mx_op_embed_by_row, NULL, table, ids);
}

/* The ids in the tables one after the other; those outside their own table become -1. */
static mx_node *whole_ids(mx_graph *g, mx_node *ids, int64_t rows)
{
    int64_t B = ids->type.dim[0];
    double *first = MX_NEW_N(&g->arena, double, B);
    for (int64_t i = 0; i < B; i++)
        first[i] = (double)(i * rows);
    mx_node *x = mx_cast(g, ids, MX_F32);
    mx_node *most = mx_constant(g, MX_SCALAR, MX_F32, (double)rows - 0.5);
    mx_node *least = mx_constant(g, MX_SCALAR, MX_F32, -0.5);
    mx_node *inside = mx_mul(g, mx_greater(g, x, least), mx_greater(g, most, x));
    mx_node *at = mx_add(g, x, mx_table(g, MX_SHAPE(B, 1), MX_F32, first));
    at = mx_affine(g, mx_mul(g, mx_affine(g, at, 1, 1), inside), 1, -1);
    return mx_cast(g, at, MX_I32);
}

static mx_node *lookup(mx_graph *g, mx_node *table, mx_node *ids)
{
    const int64_t *t = table->type.dim;
    return mx_embed(g, mx_reshape(g, table, MX_SHAPE(t[0] * t[1], t[2])),
                    whole_ids(g, ids, t[1]));
}

static mx_node *local(mx_graph *g, const mx_node *n, mx_node *const *in,
                      struct mx_partition_call *p)
{
    (void)n, (void)p;
    return lookup(g, in[EMBED_TABLE], in[EMBED_IDS]);
}

static void embed_by_row_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const int64_t *t = n->in[EMBED_TABLE]->type.dim;
    mx_node *ids = whole_ids(g, n->in[EMBED_IDS], t[1]);
    mx_node *grad = mx_embed_grad(g, ids, dout[0], t[0] * t[1]);
    din[EMBED_TABLE] = mx_reshape(g, grad, MX_SHAPE(t[0], t[1], t[2]));
}

const mx_op mx_op_embed_by_row = {
    .name = "embed_by_row",
    .doc = "rows by number, of a table for each row of the batch",
    .dtypes = MX_REALS,
    .dtypes_at = {[EMBED_IDS] = MX_INDICES},
    .dims = "b!vd,bs->bsd",
    .local = local,
    .grad = embed_by_row_vjp,
    .cost = mx_cost_move,
    .cpu = embed_by_row_cpu,
    .cases = (const mx_case[]){{2, {{3, {2, 5, 8}}, {2, {2, 4}, MX_I32, -1, 6}}},
                               {2, {{3, {4, 3, 4}}, {2, {4, 6}, MX_I32, 0, 3}}}, {0}},
};

/* embed.c - rows of a table by number.
 *
 *     table (v, d)   ids (*) int32  ->  (*, d)
 * An id outside the table gives a row of zeros: a step must not crash on one (the loader refuses
 * such ids with the record's name, long before they come here), and negative ids mark padding. The
 * gradient is embed_grad. A table that is a served model's head too may lie in panels (panels.h).
 */
#include "ir/partition.h"
#include "ops.h"
#include "ops/copy.h"
#include "ops/embed.h"
#include "ops/grouped.h"
#include "ops/inputs.h"

#include <string.h>

enum { MX_INPUTS_EMBED };

enum { WORTH = 1 << 16 };

/* One row of a table in panels. */
static void copy_row(const mx_panels *p, const mx_tensor *table, int64_t row, char *out)
{
    int64_t d = table->type.dim[1];
    size_t item = mx_dtype_bytes(table->type.dtype), word = item * (size_t)p->pair;
    const char *from = (const char *)table->data + (size_t)mx_panel_at(*p, d, row, 0) * item;
    for (int64_t k = 0; k < d; k += p->pair)
        memcpy(out + (size_t)k * item, from + (size_t)(k * p->cols) * item, word);
}

static void embed_cpu(const mx_call *c)
{
    const mx_panels *p = &((const mx_embed_attr *)c->attr)->panels;
    const mx_type *table = &c->in[EMBED_TABLE].type;
    const int32_t *id = c->in[EMBED_IDS].data;
    int64_t n = mx_type_count(&c->in[EMBED_IDS].type), rows = table->dim[0];
    size_t row = mx_dims_after_bytes(table, 0);
#pragma omp parallel for schedule(static) if ((size_t)n * row > WORTH)
    for (int64_t i = 0; i < n; i++) {
        char *out = (char *)c->out[0].data + (size_t)i * row;
        if (id[i] >= 0 && id[i] < rows && p->cols)
            copy_row(p, &c->in[EMBED_TABLE], id[i], out);
        else if (id[i] >= 0 && id[i] < rows)
            memcpy(out, (const char *)c->in[EMBED_TABLE].data + (size_t)id[i] * row, row);
        else
            memset(out, 0, row);
    }
}

mx_node *mx_embed(mx_graph *g, mx_node *table, mx_node *ids)
{
    return MX_APPLY(g, &mx_op_embed, NULL, table, ids);
}

mx_node *mx_embed_own(mx_graph *g, mx_node *table, mx_node *ids)
{
    return MX_APPLY(g, &mx_op_embed, &(mx_embed_attr){.own = true}, table, ids);
}

static void embed_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[EMBED_TABLE] = mx_embed_grad(g, n->in[EMBED_IDS], dout[0], n->in[EMBED_TABLE]->type.dim[0]);
}

/* A table with a row for each expert (a bias), looked up by the experts of sorted rows: the rows go
 * to the ranks of their experts, as for the experts' GEMMs. */
static bool place_experts(const mx_node *n, mx_partition_call *p)
{
    mx_cut experts = p->have[0].dim[0];
    if (n->in[EMBED_IDS]->type.ndim != 1 || !p->have[1].dim[0].sorted_by)
        return false;
    mx_cut rows = mx_grouped_rows(p, &p->have[1].dim[0], &experts);
    mx_cut width = mx_cut_without(&p->have[0].dim[1], mx_cut_axes(&rows));
    if (!rows.exchanged)
        return false;
    p->in[0] = (mx_placement){{experts, width}};
    p->in[1] = (mx_placement){{rows}};
    p->out[0] = (mx_placement){{rows, width}};
    return true;
}

/* The part of the table that the ids name, as they are cut; false: ids of any row. */
static bool place_own(const mx_node *n, mx_partition_call *p)
{
    const mx_cut *batch = &p->have[1].dim[0];
    const mx_type *table = &n->in[EMBED_TABLE]->type, *ids = &n->in[EMBED_IDS]->type;
    if (!((const mx_embed_attr *)n->attr)->own || batch->n != 1 || batch->zigzag[0] ||
        batch->sorted_by || batch->n_blocks)
        return false;
    p->in[0].dim[0] = mx_cut_resized(batch, ids->dim[0], table->dim[0]);
    return true;
}

/* On a mesh the ids stay where they are. A table of weights may be cut by rows: ids of others' rows
 * give zeros, so the result is a partial sum. */
static void place(const mx_node *n, mx_partition_call *p)
{
    int ids = n->in[EMBED_IDS]->type.ndim;
    if (place_experts(n, p))
        return;
    p->in[1] = p->have[1];
    p->in[0] = p->out[0] = (mx_placement){0};
    mx_axis_set used = mx_placement_axes(&p->in[1]);
    memcpy(p->out[0].dim, p->in[1].dim, sizeof(mx_cut) * (size_t)ids);
    if (!place_own(n, p) && p->weight[0]) {
        p->in[0].dim[0] = mx_cut_without(&p->have[0].dim[0], used);
        p->out[0].partial = mx_cut_axes(&p->in[0].dim[0]);
    }
    mx_cut width = mx_cut_without(&p->have[0].dim[1], used | p->out[0].partial);
    if (p->has_want && !mx_cut_equal(&width, &p->want.dim[ids]))
        width = (mx_cut){0};
    p->in[0].dim[1] = p->out[0].dim[ids] = width;
}

static mx_node *local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    const mx_cut *rows = &p->in[0].dim[0];
    if (!rows->n)
        return mx_embed(g, in[EMBED_TABLE], in[EMBED_IDS]);
    int64_t first = mx_cut_from(p->mesh, p->rank, rows, n->in[EMBED_TABLE]->type.dim[0]);
    return mx_embed(g, in[EMBED_TABLE], mx_affine(g, in[EMBED_IDS], 1, -(double)first));
}

const mx_op mx_op_embed = {
    .name = "embed",
    .doc = "rows of a table by number",
    .dtypes = MX_ANY_DTYPE,
    .dtypes_at = {[EMBED_IDS] = MX_INDICES},
    .attr_size = sizeof(mx_embed_attr),
    .fields = (const mx_attr_field[]){MX_QUIET_FIELD(mx_embed_attr, MX_ATTR_INT32, panels.cols),
                                      MX_QUIET_FIELD(mx_embed_attr, MX_ATTR_INT32, panels.pair),
                                      MX_QUIET_FIELD(mx_embed_attr, MX_ATTR_BOOL, own), {0}},
    .dims = "!vd,*->*d",
    .place = place,
    .local = local,
    .grad = embed_vjp,
    .cost = mx_cost_move,
    .cpu = embed_cpu,
    .cases = (const mx_case[]){{2, {{2, {5, 8}}, {2, {3, 4}, MX_I32, -1, 6}}},
                               {2, {{2, {5, 3}}, {1, {2}, MX_I32, 0, 5}}},
                               {2, {{2, {4, 2}}, {0, {0}, MX_I32, 2, 3}}},
                               {2, {{2, {5, 16}, MX_I8, -127, 128}, {1, {6}, MX_I32, -1, 6}}},
                               {2, {{2, {5, 6}, MX_I8, -127, 128}, {1, {6}, MX_I32, 0, 5}}}, {0}},
};

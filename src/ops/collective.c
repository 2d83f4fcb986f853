/* collective.c - what the collectives' kernels share. */
#include "ops/collective.h"

#include "ops/copy.h"

const mx_attr_field mx_collective_fields[] = {
    MX_FIELD(mx_collective_attr, MX_ATTR_INT, axes),
    MX_FIELD(mx_collective_attr, MX_ATTR_INT, size),
    MX_FIELD(mx_collective_attr, MX_ATTR_INT, index),
    MX_FIELD(mx_collective_attr, MX_ATTR_INT, dim),
    MX_FIELD(mx_collective_attr, MX_ATTR_INT, to),
    MX_FIELD(mx_collective_attr, MX_ATTR_BOOL, varying),
    MX_FIELD(mx_collective_attr, MX_ATTR_BOOL, beside),
    MX_FIELD(mx_collective_attr, MX_ATTR_INT, issue_order),
    {0},
};

void mx_collective_infer_same(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[0]->type;
}

void mx_collective_infer_piece(mx_graph *g, mx_node *n)
{
    const mx_collective_attr *a = n->attr;
    n->type = n->in[0]->type;
    int64_t d = mx_dim_index(g, n->op->name, n->in[0], a->dim);
    if (g->error)
        return;
    if (n->type.dim[d] % a->size)
        mx_graph_fail_inputs(g, n, "dim %lld does not divide by the %lld ranks of the group",
                             (long long)d, (long long)a->size);
    n->type.dim[d] /= a->size;
}

bool mx_collective_is_beside(const mx_node *n)
{
    return n->op->collective && ((const mx_collective_attr *)n->attr)->beside;
}

bool mx_pieces_are_packed(const mx_type *t, int d)
{
    return mx_dims_before(t, d) == 1;
}

static size_t run_bytes(const mx_type *piece, int d)
{
    return (size_t)piece->dim[d] * mx_dims_after_bytes(piece, d);
}

void mx_pieces_pack(void *pieces, const void *whole, const mx_type *piece, int d, int64_t size)
{
    size_t run = run_bytes(piece, d), bytes = mx_type_bytes(piece);
    for (int64_t k = 0; k < size; k++)
        mx_copy_runs((char *)pieces + (size_t)k * bytes, run,
                     (const char *)whole + (size_t)k * run, (size_t)size * run, run,
                     mx_dims_before(piece, d));
}

void mx_pieces_unpack(void *whole, const void *pieces, const mx_type *piece, int d, int64_t size)
{
    size_t run = run_bytes(piece, d), bytes = mx_type_bytes(piece);
    for (int64_t k = 0; k < size; k++)
        mx_copy_runs((char *)whole + (size_t)k * run, (size_t)size * run,
                     (const char *)pieces + (size_t)k * bytes, run, run,
                     mx_dims_before(piece, d));
}

void mx_call_fail(const mx_call *c, mx_status st)
{
    if (st && c->status && !*c->status)
        *c->status = st;
    else
        mx_status_free(st);
}

/* reshape.c - the same elements in the same order under another shape. Costs nothing. */
#include "ir/partition.h"
#include "ops.h"

typedef struct {
    mx_shape shape;
} reshape_attr;

static void check(mx_graph *g, mx_node *n)
{
    const reshape_attr *at = n->attr;
    mx_type t = mx_type_of(n->type.dtype, at->shape);
    if (mx_type_count(&t) != mx_type_count(&n->in[0]->type)) {
        mx_str s = {0};
        mx_type_print(&s, &n->in[0]->type);
        mx_str_add(&s, " to ");
        mx_type_print(&s, &t);
        mx_graph_fail(g, "reshape changes the number of elements: %s", mx_str_text(&s));
        mx_str_fini(&s);
    }
    n->type = t;
}

mx_node *mx_reshape(mx_graph *g, mx_node *x, mx_shape shape)
{
    return MX_APPLY(g, &mx_op_reshape, &(reshape_attr){shape}, x);
}

static void reshape_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_reshape(g, dout[0], mx_shape_of(&n->in[0]->type));
}

/* --- on a mesh: the factors of the dims, regrouped --- */

enum { MAX_ATOMS = 2 * MX_MAX_DIMS * MX_MAX_FACTORS };

/* A factor of a dim, and which dim of the input it is from. */
typedef struct {
    int64_t size;
    mx_axis_set axes;
    bool zigzag;
    int dim;
    const mx_cut *whole; /* rows in an order of their own, or blocks: all of it, or gathered */
} atom;

static int atoms_of(const mx_type *t, const mx_placement *p, atom *out)
{
    int n = 0;
    for (int d = 0; d < t->ndim; d++) {
        const mx_cut *c = &p->dim[d];
        if (c->sorted_by || c->n_blocks) {
            out[n++] = (atom){t->dim[d], mx_cut_axes(c), false, d, c};
            continue;
        }
        if (!c->n && t->dim[d] != 1)
            out[n++] = (atom){t->dim[d], 0, false, d, NULL};
        for (int f = 0; f < c->n; f++)
            out[n++] = (atom){c->size[f], c->axes[f], c->zigzag[f], d, NULL};
    }
    return n;
}

/* Adds a factor to the cut of a result's dim; false when there are too many. */
static bool add_factor(mx_cut *c, int64_t size, mx_axis_set axes, bool zigzag)
{
    if (c->n && !axes) {
        c->size[c->n - 1] *= size;
        return true;
    }
    if (c->n == MX_MAX_FACTORS)
        return false;
    c->size[c->n] = size;
    c->zigzag[c->n] = zigzag;
    c->axes[c->n++] = axes;
    return true;
}

/* The atoms dealt out to the dims of the result. False when a dim of it ends inside an atom in a
 * way that does not divide; `whole` then says which atom has to be gathered before. */
static bool regroup(const mx_mesh *m, const mx_type *to, atom *a, int n, mx_placement *out,
                    int *whole)
{
    int i = 0;
    for (int d = 0; d < to->ndim; d++) {
        int64_t need = to->dim[d];
        mx_cut c = {0};
        if (i < n && a[i].whole && a[i].size == need) {
            out->dim[d] = *a[i++].whole;
            continue;
        }
        while (need > 1 && i < n) {
            int64_t pieces = mx_mesh_size(m, a[i].axes);
            *whole = i;
            int64_t take = a[i].size <= need ? a[i].size : need;
            bool parts = take < a[i].size; /* chunks must not be split */
            if (a[i].whole || need % take || a[i].size % take || take % pieces ||
                (parts && a[i].zigzag) || !add_factor(&c, take, a[i].axes, a[i].zigzag))
                return false;
            need /= take;
            a[i].size /= take;
            a[i].axes = 0;
            i += a[i].size == 1;
        }
        out->dim[d] = mx_cut_without(&c, 0);
    }
    return true;
}

static void place(const mx_node *n, mx_partition_call *p)
{
    mx_axis_set partial = p->have[0].partial;
    p->in[0] = p->have[0];
    for (;;) {
        atom a[MAX_ATOMS];
        int count = atoms_of(&n->in[0]->type, &p->in[0], a), whole = 0;
        p->out[0] = (mx_placement){.partial = partial};
        if (regroup(p->mesh, &n->type, a, count, &p->out[0], &whole))
            return;
        mx_cut *c = &p->in[0].dim[a[whole].dim];
        if (!c->n && !c->sorted_by) { /* nothing to gather there: give up */
            p->in[0] = p->out[0] = (mx_placement){.partial = partial};
            return;
        }
        *c = (mx_cut){0};
    }
}

static mx_node *local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    mx_type t = mx_placement_local(p->mesh, &n->type, &p->out[0]);
    return mx_reshape(g, in[0], mx_shape_of(&t));
}

const mx_op mx_op_reshape = {
    .name = "reshape",
    .doc = "the same elements under another shape",
    .dtypes = MX_ANY_DTYPE,
    .linear = true,
    .kind = MX_VIEW,
    .attr_size = sizeof(reshape_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(reshape_attr, MX_ATTR_DIMS, shape), {0}},
    .infer = check,
    .place = place,
    .local = local,
    .grad = reshape_vjp,
    .cases = (const mx_case[]){{1, {{2, {4, 6}}}, &(reshape_attr){{3, {2, 3, 4}}}}, {0}},
};

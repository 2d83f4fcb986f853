/* group.c - what may be a step of a fused group, and the op that a group becomes. Its evaluation on
 * the CPU is in group_run.c. */
#include "ops/group.h"

#include "ir/graph.h"
#include "ops.h"
#include "ops/gpu_work.h"

bool mx_group_sums_columns(const mx_node *n)
{
    if (n->op != &mx_op_sum_to)
        return false;
    const mx_type *x = &n->in[0]->type;
    int64_t cols = x->ndim ? x->dim[x->ndim - 1] : 1;
    return x->ndim > 1 && cols > 1 && n->type.ndim && n->type.dim[n->type.ndim - 1] == cols &&
           mx_type_count(&n->type) == cols && mx_dtype_is_float(x->dtype);
}

bool mx_group_step_sums_columns(const mx_group_step *s)
{
    return s->op == &mx_op_sum_to;
}

mx_shape mx_group_space(const mx_node *n)
{
    bool of_input = n->op->kind == MX_ROW_REDUCE || mx_group_sums_columns(n);
    return mx_shape_of(of_input ? &n->in[0]->type : &n->type);
}

/* Does t broadcast to the space (aligned at the right)? */
static bool fits(const mx_type *t, const mx_shape *s)
{
    if (t->ndim > s->ndim)
        return false;
    for (int i = 0; i < t->ndim; i++) {
        int64_t full = s->dim[s->ndim - t->ndim + i];
        if (t->dim[i] != full && t->dim[i] != 1)
            return false;
    }
    return true;
}

bool mx_group_accepts(const mx_node *n, const mx_shape *space)
{
    mx_op_kind k = n->op->kind;
    if (mx_group_sums_columns(n)) {
        mx_type whole = mx_type_of(n->type.dtype, *space);
        return mx_shape_equal(&n->in[0]->type, &whole);
    }
    if (!mx_op_kind_is_tiled(k))
        return false;
    if (space->ndim == 0 && k != MX_ELEMENTWISE)
        return false;
    int64_t cols = space->ndim ? space->dim[space->ndim - 1] : 1;
    /* A row op inside the group must see the space's own rows. */
    if (k != MX_ELEMENTWISE && n->in[0]->type.dim[n->in[0]->type.ndim - 1] != cols)
        return false;
    for (int i = 0; i < n->n_in; i++)
        if (!fits(&n->in[i]->type, space))
            return false;
    return fits(&n->type, space);
}

/* --- the op --- */

static void infer(mx_graph *gr, mx_node *n)
{
    (void)gr;
    const mx_group *g = ((const mx_fused_attr *)n->attr)->group;
    for (int k = 0; k < n->n_out; k++)
        *(k ? &n->more[k - 1] : &n->type) = g->step[g->out[k] - g->n_ext].type;
}

static void fused_cpu(const mx_call *c)
{
    mx_group_run(((const mx_fused_attr *)c->attr)->group, c->in, c->out, c->work);
}

static size_t fused_work(const mx_node *n, int n_threads)
{
    return mx_group_work_bytes(((const mx_fused_attr *)n->attr)->group, n_threads);
}

static size_t fused_gpu_work(const mx_node *n, size_t most)
{
    const mx_group *g = ((const mx_fused_attr *)n->attr)->group;
    int64_t rows = 1, cols = g->space.ndim ? g->space.dim[g->space.ndim - 1] : 1;
    int sums = 0;
    (void)most;
    for (int i = 0; i + 1 < g->space.ndim; i++)
        rows *= g->space.dim[i];
    for (int i = 0; i < g->n_steps; i++)
        sums += mx_group_step_sums_columns(&g->step[i]);
    return mx_gpu_fused_bytes(sums, rows, cols);
}

static mx_cost fused_cost(const mx_node *n)
{
    const mx_group *g = ((const mx_fused_attr *)n->attr)->group;
    mx_cost c = {0};
    for (int s = 0; s < g->n_steps; s++)
        c.flops += (double)mx_type_count(&g->step[s].type);
    return c;
}

mx_node *mx_fused(mx_graph *g, const mx_group *group, mx_node *const *in)
{
    return mx_apply_n(g, &mx_op_fused, &(mx_fused_attr){group}, group->n_ext, in, group->n_out);
}

const mx_op mx_op_fused = {
    .name = "fused",
    .doc = "a group of elementwise and row ops as one kernel",
    .dtypes = MX_ANY_DTYPE,
    .attr_size = sizeof(mx_fused_attr),
    .fields = (const mx_attr_field[]){MX_QUIET_FIELD(mx_fused_attr, MX_ATTR_GROUP, group), {0}},
    .n_out = -1,
    .infer = infer,
    .cost = fused_cost,
    .cpu = fused_cpu,
    .work_bytes = fused_work,
    .gpu_work_bytes = fused_gpu_work,
};

bool mx_group_is_flat(const mx_group *g)
{
    int64_t total = 1;
    for (int i = 0; i < g->space.ndim; i++)
        total *= g->space.dim[i];
    for (int i = 0; i < g->n_ext; i++) {
        int64_t n = mx_type_count(&g->ext[i]);
        if (n != total && n != 1)
            return false;
    }
    for (int i = 0; i < g->n_steps; i++)
        if (g->step[i].op->kind != MX_ELEMENTWISE)
            return false;
    return true;
}

/* partition.c - walks the global graph in order and writes that of one rank.
 *
 * For each node: where its inputs must lie (the op's `place`, or place.c by notation), bring them
 * there (reshard.c), apply the op to what this rank has of them, and bring the result to where the
 * node's own logical axes want it. docs/design-parallel.md has the whole picture.
 */
#include "compile/mesh/partition.h"

#include "compile/compile.h"
#include "compile/quantize_frozen.h"
#include "compile/optimizer.h"
#include "compile/mesh/partition_impl.h"
#include "ops.h"
#include <stdio.h>
#include <string.h>

static mx_arena *arena(mx_partitioner *p)
{
    return &p->to->arena;
}

/* The placement that logical axes ask for. */
static bool wanted(mx_partitioner *p, const mx_node *n, mx_placement *out)
{
    mx_axis_report report = {0};
    if (!n->axes)
        return false;
    if (!mx_axis_rules_place(p->how->rules, p->how->mesh, n->axes, &n->type, out, &report)) {
        mx_graph_fail(p->to, "%s: its logical axes \"%s\" do not fit its %d dims",
                      n->name ? n->name : n->op->name, n->axes, n->type.ndim);
        return false;
    }
    if (p->how->zigzag && n->op != &mx_op_variable)
        mx_axis_rules_zigzag(n->axes, p->how->mesh, &n->type, out);
    for (int i = 0; i < report.n && p->how->report; i++) {
        mx_axis_loss_print(p->how->report, n->name ? n->name : n->op->name, n->axes, p->how->mesh,
                           &report.loss[i]);
        mx_str_add(p->how->report, "\n");
    }
    return true;
}

static void set_value(mx_partitioner *p, const mx_node *n, mx_node *local, const mx_placement *at)
{
    mx_local_value *v = &p->value[n->id];
    v->node = local;
    v->at = *at;
}

/* --- sources --- */

static void copy_variable(mx_partitioner *p, const mx_node *n)
{
    mx_placement at = {0};
    wanted(p, n, &at);
    mx_box box = mx_box_of(p->how->mesh, p->how->rank, &n->type, &at);
    mx_type t = mx_placement_local(p->how->mesh, &n->type, &at);
    mx_node *v = n->op == &mx_op_input
                     ? mx_input(p->to, n->name, mx_shape_of(&t), t.dtype)
                     : mx_variable(p->to, n->name, t, *(const mx_var_attr *)n->attr);
    v->box = mx_arena_copy(arena(p), &box, sizeof box);
    v->axes = n->axes ? mx_arena_strdup(arena(p), n->axes) : NULL;
    set_value(p, n, v, &at);
    const mx_var_attr *attr = n->op == &mx_op_variable ? n->attr : NULL;
    p->value[n->id].weight = attr != NULL;
    p->value[n->id].trained = attr && attr->kind == MX_VAR_WEIGHT && !attr->frozen;
    if (p->how->report) {
        mx_str_addf(p->how->report, "%-60s ", n->name);
        mx_type_print(p->how->report, &n->type);
        mx_str_add(p->how->report, " ");
        mx_placement_print(p->how->report, &n->type, &at);
        mx_str_add(p->how->report, "\n");
    }
}

static void copy_constant(mx_partitioner *p, const mx_node *n)
{
    const mx_const_attr *a = n->attr;
    mx_shape s = mx_shape_of(&n->type);
    mx_node *c = a->table ? mx_table(p->to, s, n->type.dtype, a->table)
                          : mx_constant(p->to, s, n->type.dtype, a->value);
    set_value(p, n, c, &(mx_placement){0});
    p->value[n->id].weight = p->value[n->id].trained = true;
}

/* --- everything else --- */

/* A rank's part of a constant is a constant; NULL where it is no box. */
static mx_node *local_constant(mx_partitioner *p, const mx_node *x, const mx_placement *to)
{
    const mx_const_attr *a = x->attr;
    mx_type t = mx_placement_local(p->how->mesh, &x->type, to);
    if (!a->table)
        return mx_constant(p->to, mx_shape_of(&t), t.dtype, a->value);
    for (int d = 0; d < t.ndim; d++)
        if (to->dim[d].sorted_by || (to->dim[d].n > 1 && !to->dim[d].n_blocks))
            return NULL;
    mx_box box = mx_box_of(p->how->mesh, p->how->rank, &x->type, to);
    double *table = MX_NEW_N(arena(p), double, mx_type_count(&t));
    for (int64_t i = 0; i < mx_type_count(&t); i++) {
        int64_t at = mx_box_element(&box, &t, i);
        table[i] = at < 0 ? 0 : a->table[at];
    }
    return mx_table(p->to, mx_shape_of(&t), t.dtype, table);
}

static mx_node *bring_varied_weights(mx_partitioner *p, const mx_node *x, mx_axis_set vary);

/* Value of global node x at a placement, made once. */
static mx_node *bring(mx_partitioner *p, const mx_node *x, const mx_placement *to, mx_axis_set vary)
{
    mx_local_value *v = &p->value[x->id];
    bool constant = x->op == &mx_op_constant;
    vary &= ~mx_placement_axes(to);
    if (!mx_dtype_is_float(x->type.dtype) || constant)
        vary = 0;
    if (!vary && mx_placement_equal(&v->at, to))
        return v->node;
    for (mx_moved *m = v->moved; m; m = m->next)
        if (m->vary == vary && mx_placement_equal(&m->at, to))
            return m->node;
    mx_moved *m = MX_NEW(arena(p), mx_moved);
    *m = (mx_moved){*to, vary, NULL, v->moved};
    m->node = constant ? local_constant(p, x, to) : NULL;
    mx_axis_set early = vary & ~mx_placement_axes(&v->at);
    mx_node *varied = early && !m->node ? bring_varied_weights(p, x, early) : NULL;
    if (varied)
        m->node = mx_reshard(p, varied, &x->type, &v->at, to, vary & ~early);
    else if (!m->node)
        m->node = mx_reshard(p, v->node, &x->type, &v->at, to, vary);
    v->moved = m;
    return m->node;
}

/* What an op that writes over a variable gives lies as the variable does. */
static bool aliased(mx_partitioner *p, const mx_node *n, mx_placement *out)
{
    int a = n->op->alias[0];
    if (!a || !n->in[a - 1])
        return false;
    *out = p->value[n->in[a - 1]->id].at;
    return true;
}

static void decide(mx_partitioner *p, const mx_node *n, mx_partition_call *c)
{
    c->mesh = p->how->mesh;
    c->rank = p->how->rank;
    c->exchange_factor = p->how->exchange_factor;
    c->context = p->how->context;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i]) {
            c->have[i] = p->value[n->in[i]->id].at;
            c->weight[i] = p->value[n->in[i]->id].weight;
        }
    c->has_want = aliased(p, n, &c->want) || wanted(p, n, &c->want);
    if (n->op->place)
        n->op->place(n, c);
    else
        mx_place_by_notation(n, c);
}

/* An op that overwrites a variable must read it where it lies. */
static void check_alias(mx_partitioner *p, const mx_node *n, const mx_partition_call *c)
{
    for (int k = 0; k < n->n_out; k++) {
        int i = n->op->alias[k] - 1;
        if (i >= 0 && i < n->n_in && n->in[i] && !mx_placement_equal(&c->in[i], &c->have[i]))
            mx_graph_fail(p->to, "partition: %s would write to a copy of %s", n->op->name,
                          n->in[i]->name ? n->in[i]->name : "its input");
    }
}

static void check_context(mx_partitioner *p, const mx_node *n, const mx_partition_call *c)
{
    if (c->not_ulysses && p->how->only_this_context)
        mx_graph_fail(p->to, "context_parallel_strategy=ulysses: %lld query heads and %lld key "
                      "heads do not divide by context=%d%s; use ring or all_gather",
                      (long long)n->in[0]->type.dim[2], (long long)n->in[1]->type.dim[2],
                      mx_mesh_degree(p->how->mesh, MX_AXIS_CONTEXT),
                      c->have[0].dim[2].n ? " and the axes that cut heads already" : "");
}

/* Axes over which the ranks do different work in this op. */
static mx_axis_set work_axes(const mx_node *n, const mx_partition_call *c)
{
    mx_axis_set s = 0;
    for (int i = 0; i < n->n_in; i++)
        s |= n->in[i] ? mx_placement_axes(&c->in[i]) | c->in[i].partial : 0;
    for (int k = 0; k < n->n_out; k++)
        s |= mx_placement_axes(&c->out[k]) | c->out[k].partial;
    return s;
}

static void check_shape(mx_partitioner *p, const mx_node *n, const mx_node *local,
                        const mx_partition_call *c)
{
    mx_type t = mx_placement_local(p->how->mesh, &n->type, &c->out[0]);
    if (p->to->error || mx_shape_equal(&t, &local->type))
        return;
    mx_str s = {0};
    mx_type_print(&s, &local->type);
    mx_str_add(&s, " instead of ");
    mx_type_print(&s, &t);
    mx_graph_fail(p->to, "partition: %s gives %s on one rank", n->op->name, mx_str_text(&s));
    mx_str_fini(&s);
}

/* The op on what this rank has of its inputs; `vary`: besides the axes that it works on. */
static mx_node *apply(mx_partitioner *p, const mx_node *n, mx_partition_call *c, mx_axis_set vary)
{
    mx_node *in[MX_MAX_IN] = {0};
    mx_axis_set work = work_axes(n, c) | vary;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i])
            in[i] = bring(p, n->in[i], &c->in[i], work & ~c->in[i].partial);
    mx_node *y = n->op->local ? n->op->local(p->to, n, in, c)
                              : mx_apply_n(p->to, n->op, n->attr, n->n_in, in, n->n_out);
    /* Of two inputs the larger gives the dtype; on one rank they may be equally large. */
    if (n->n_out == 1 && y->type.dtype != n->type.dtype)
        y = mx_cast(p->to, y, n->type.dtype);
    check_shape(p, n, y, c);
    return y;
}

/* What is computed from trained weights varies from those on, so that every rank takes the
 * gradient to the weight before it is summed, as a device does with each microbatch. NULL where
 * the sum is the same anywhere (a copy) or comes before a rounding (a cast). */
static mx_node *bring_varied_weights(mx_partitioner *p, const mx_node *x, mx_axis_set vary)
{
    const mx_local_value *v = &p->value[x->id];
    mx_op_kind k = x->op->kind;
    bool copied = k == MX_SOURCE || k == MX_VIEW || k == MX_PROJECT || x->op == &mx_op_cast;
    if (!v->trained || copied || x->n_out > 1)
        return NULL;
    mx_partition_call c = {0};
    decide(p, x, &c);
    return mx_placement_equal(&c.out[0], &v->at) ? apply(p, x, &c, vary) : NULL;
}

static void copy_node(mx_partitioner *p, const mx_node *n)
{
    mx_partition_call c = {0};
    bool weight = n->n_in > 0, trained = weight;
    decide(p, n, &c);
    check_alias(p, n, &c);
    check_context(p, n, &c);
    mx_node *y = apply(p, n, &c, 0);
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i]) {
            weight &= p->value[n->in[i]->id].weight;
            trained &= p->value[n->in[i]->id].trained;
        }
    mx_local_value *v = &p->value[n->id];
    v->weight = weight;
    v->trained = trained;
    v->made_by = y;
    set_value(p, n, y, &c.out[0]);
    if (n->n_out > 1) {
        v->more = mx_arena_copy(arena(p), c.out, sizeof c.out);
        v->made = mx_arena_copy(arena(p), c.made, sizeof c.made);
    }
    if (c.has_want && !mx_placement_equal(&c.out[0], &c.want))
        set_value(p, n, mx_reshard(p, y, &n->type, &c.out[0], &c.want, 0), &c.want);
    if (n->name && !v->node->name)
        v->node->name = mx_arena_strdup(arena(p), n->name);
}

static void copy_output(mx_partitioner *p, const mx_node *n)
{
    int64_t k = *(const int64_t *)n->attr;
    const mx_local_value *v = &p->value[n->in[0]->id];
    mx_placement at = k ? v->more[k] : v->at;
    mx_node *y = k && v->made[k] ? v->made[k] : k ? mx_output(p->to, v->made_by, (int)k) : v->node;
    mx_placement want;
    p->value[n->id].weight = v->weight;
    if (wanted(p, n, &want) && !mx_placement_equal(&at, &want)) {
        y = mx_reshard(p, y, &n->type, &at, &want, 0);
        at = want;
    }
    if (n->name && !y->name)
        y->name = mx_arena_strdup(arena(p), n->name);
    set_value(p, n, y, &at);
}

/* Roots are whole, except factors of a weight's rows, which lie as those rows do, and those that a
 * rank keeps its part of. */
static mx_placement root_placement(mx_partitioner *p, const mx_node *n)
{
    const char *weight = mx_row_scale_of(n);
    const mx_node *w = weight ? mx_graph_find(p->from, weight) : NULL;
    mx_placement own = {0};
    if (n->name && mx_starts_with(n->name, MX_SHARD_ROOT) && wanted(p, n, &own))
        return own;
    return w ? (mx_placement){{p->value[w->id].at.dim[0]}} : (mx_placement){0};
}

static void copy_root(mx_partitioner *p, const mx_node *n)
{
    mx_local_value *v = &p->value[n->id];
    bool state = n->op->alias[0] != 0;
    mx_placement at = root_placement(p, n);
    mx_node *x = state ? v->node : bring(p, n, &at, 0);
    if (n->name && x->name && x != v->node)
        x->name = NULL;
    mx_graph_root(p->to, n->name, x);
}

mx_status mx_pass_partition(mx_graph *g, const mx_partition *how)
{
    mx_graph to;
    mx_arena scratch = {0};
    mx_partition inside = *how; /* stages have layers of their own, and everything of those */
    mx_mesh mesh = mx_mesh_without(how->mesh, MX_AXIS_STAGE, how->rank, &inside.rank);
    inside.mesh = &mesh;
    mx_partitioner p = {.how = &inside, .from = g, .to = &to};
    MX_TRY(mx_graph_check(g));
    mx_graph_init(&to);
    to.param_dtype = g->param_dtype;
    to.one_path = g->one_path;
    p.value = MX_NEW_N(&scratch, mx_local_value, g->n_nodes);
    int n_order;
    mx_node **order = mx_graph_order(g, &scratch, &n_order);
    const char *scope = NULL, *copied = to.scope, *top = to.scope;
    for (int i = 0; i < n_order && !to.error; i++) {
        const mx_node *n = order[i];
        if (n->scope != scope) {
            scope = n->scope;
            copied = mx_arena_strdup(&to.arena, scope);
        }
        to.scope = copied;
        if (n->op == &mx_op_constant)
            copy_constant(&p, n);
        else if (n->op->kind == MX_SOURCE)
            copy_variable(&p, n);
        else if (n->op->kind == MX_PROJECT)
            copy_output(&p, n);
        else
            copy_node(&p, n);
    }
    to.scope = top;
    for (int i = 0; i < g->n_roots && !to.error; i++)
        copy_root(&p, g->root[i]);
    mx_status st = mx_graph_check(&to);
    if (!st)
        st = mx_partition_check(how, &to);
    mx_arena_fini(&scratch);
    if (st) {
        mx_graph_fini(&to);
        return st;
    }
    mx_graph_fini(g);
    *g = to;
    return MX_OK;
}

/* With dump_ir: how every weight and input lies on the mesh, and what the rules could not give. */
static mx_status run(mx_graph *g, mx_compilation *c)
{
    const mx_compile_options *o = c->o;
    if (!o->partition)
        return MX_OK;
    MX_ASSERT(!c->loss || c->loss->name, "the loss is a named root");
    mx_pass_quantize_frozen(g, o->frozen_quant);
    mx_str report = {0};
    mx_partition how = *o->partition;
    how.report = mx_compile_dumps(o, "partition") ? &report : how.report;
    mx_status st = mx_pass_partition(g, &how);
    if (report.len)
        fprintf(stderr, "-- placements on the mesh\n%s", mx_str_text(&report));
    mx_str_fini(&report);
    if (!st && c->loss) {
        c->loss = mx_graph_find_root(g, "loss");
        MX_ASSERT(c->loss, "the loss is lost");
    }
    return st;
}

const mx_compile_pass mx_compile_pass_partition = {
    .name = "partition",
    .doc = "global shapes -> one rank's part of them, with collectives",
    .after = "precision",
    .programs = MX_IN_FORWARD | MX_IN_TRAINING,
    .run = run,
};

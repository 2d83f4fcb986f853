/* source.c - where values come from: inputs, variables, constants. They have no kernel; the device
 * gives them memory and, for constants, fills it once.
 *
 *   input      written by the host before each run
 *   variable   lives from run to run: weights, optimizer state, caches
 *   constant   one number spread over a shape, or a small table given at build time
 */
#include "ir/source.h"

#include "ops.h"
#include <stdio.h>
#include <string.h>

static mx_node *make(mx_graph *g, const mx_op *op, const void *attr, mx_type type)
{
    mx_node *n = mx_apply(g, op, attr, 0, (mx_node *[]){NULL});
    n->type = type;
    mx_node_check_sizes(g, n);
    return n;
}

/* What a model declares is not empty: a size of 0 is a mistake in a configuration. What is beside a
 * weight is as large as it is, and that may be nothing: another stage has it. */
static void check_not_empty(mx_graph *g, const mx_node *n)
{
    const mx_var_attr *a = n->attr;
    bool beside = a->kind == MX_VAR_OPTIMIZER || a->kind == MX_VAR_GRADIENT ||
                  a->kind == MX_VAR_COPY;
    if (mx_type_count(&n->type) || beside)
        return;
    mx_str s = {0};
    mx_type_print(&s, &n->type);
    mx_graph_fail(g, "%s would be %s, which holds nothing", n->name, mx_str_text(&s));
    mx_str_fini(&s);
}

mx_node *mx_input(mx_graph *g, const char *name, mx_shape shape, mx_dtype dtype)
{
    mx_node *n = make(g, &mx_op_input, NULL, mx_type_of(dtype, shape));
    n->name = mx_arena_strdup(&g->arena, name);
    mx_graph_enter(g, n);
    return n;
}

mx_node *mx_variable(mx_graph *g, const char *name, mx_type type, mx_var_attr attr)
{
    mx_node *n = make(g, &mx_op_variable, &attr, type);
    n->name = mx_arena_strdup(&g->arena, name);
    check_not_empty(g, n);
    mx_graph_enter(g, n);
    return n;
}

mx_var_attr *mx_var_edit(mx_node *n)
{
    return n->op == &mx_op_variable ? mx_attr_edit(n) : NULL;
}

void mx_freeze(mx_node *n)
{
    mx_var_attr *a = mx_var_edit(n);
    if (a)
        a->frozen = true;
}

/* A trainable weight, named by the scope. Declared where it is used; a second declaration of the
 * same name with the same shape is the same weight (tied weights). */
mx_node *mx_param(mx_graph *g, const char *name, mx_shape shape, const char *axes, mx_init init)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s%s", g->scope, *g->scope ? "." : "", name);
    mx_type type = mx_type_of(g->param_dtype, shape);
    mx_node *n = mx_graph_find(g, full);
    if (n) {
        if (!mx_shape_equal(&n->type, &type))
            mx_graph_fail(g, "the weight %s is declared with two different shapes", full);
        return n;
    }
    n = mx_variable(g, full, type, (mx_var_attr){.init = init, .kind = MX_VAR_WEIGHT});
    n->axes = axes;
    return n;
}

mx_node *mx_constant(mx_graph *g, mx_shape shape, mx_dtype dtype, double value)
{
    mx_const_attr a = {.value = value};
    return make(g, &mx_op_constant, &a, mx_type_of(dtype, shape));
}

/* A table of float64 values, copied into the graph and converted to dtype by the device. */
mx_node *mx_table(mx_graph *g, mx_shape shape, mx_dtype dtype, const double *values)
{
    mx_type t = mx_type_of(dtype, shape);
    if (!mx_type_fits(&t))
        return mx_constant(g, shape, dtype, 0);
    mx_const_attr a = {.table = mx_arena_copy(&g->arena, values,
                                              sizeof(double) * (size_t)mx_type_count(&t))};
    return make(g, &mx_op_constant, &a, t);
}

static const mx_attr_field variable_fields[] = {
    MX_ENUM_FIELD(mx_var_attr, init.kind, MX_INIT_CHOICE + 1),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_F64, init.scale),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_INT, init.cols),
    MX_ENUM_FIELD(mx_var_attr, kind, MX_VAR_KIND_COUNT),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_BOOL, frozen),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_BOOL, stepped),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_BOOL, adapter),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_BOOL, on_host),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_NAME, copy_of),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_INT, unsummed),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_BOOL, minimum),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_BOOL, quantized),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_BOOL, in_out),
    MX_QUIET_FIELD(mx_var_attr, MX_ATTR_INT, matrices),
    {0},
};

const mx_op mx_op_input = {.name = "input", .doc = "written by the host", .kind = MX_SOURCE};
const mx_op mx_op_variable = {
    .name = "variable",
    .doc = "lives from run to run",
    .kind = MX_SOURCE,
    .attr_size = sizeof(mx_var_attr),
    .fields = variable_fields,
};
const mx_op mx_op_constant = {
    .name = "constant",
    .doc = "one number, or a table",
    .kind = MX_SOURCE,
    .attr_size = sizeof(mx_const_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(mx_const_attr, MX_ATTR_F64, value),
                                      MX_FIELD(mx_const_attr, MX_ATTR_TABLE, table),
                                      {0}},
};

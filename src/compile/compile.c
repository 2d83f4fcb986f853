/* compile.c - runs the passes in order, prints between them,
 * verifies between them in test builds. */
#include "compile/compile.h"

#include "compile/panels.h"
#include "compile/partition.h"

#include "ops.h"
#include <stdio.h>
#include <string.h>

/* Of the ranks of a mesh the first one speaks. */
static bool dumps(const mx_compile_options *o, const char *pass)
{
    if (!o->dump_ir || !*o->dump_ir || (o->partition && o->partition->rank != 0))
        return false;
    return strcmp(o->dump_ir, pass) == 0 || strcmp(o->dump_ir, "all") == 0;
}

/* Text and Graphviz of the graph as it stands after a pass, where the user asked for it. */
static mx_status dump(const mx_graph *g, const mx_compile_options *o, const char *pass)
{
    if (!dumps(o, pass))
        return MX_OK;
    mx_str text = {0}, dot = {0}, path = {0};
    mx_status st = MX_OK;
    mx_graph_print(g, &text);
    if (!o->dump_prefix) {
        fprintf(stderr, "-- after %s\n%s", pass, mx_str_text(&text));
        goto out;
    }
    mx_graph_print_dot(g, &dot);
    for (int i = 0; i < 2 && !st; i++) {
        mx_str_clear(&path);
        mx_str_addf(&path, "%s.%s.%s", o->dump_prefix, pass, i ? "dot" : "txt");
        FILE *f = fopen(mx_str_text(&path), "w");
        if (!f || fputs(mx_str_text(i ? &dot : &text), f) < 0)
            st = mx_fail_errno(MX_DEVICE, "cannot write %s", mx_str_text(&path));
        if (f && fclose(f) != 0 && !st)
            st = mx_fail_errno(MX_DEVICE, "cannot write %s", mx_str_text(&path));
    }
out:
    mx_str_fini(&text);
    mx_str_fini(&dot);
    mx_str_fini(&path);
    return st;
}

/* What dump_ir may name; a pass that is not here asserts. */
static const char *const passes[] = {"build",     "precision", "partition", "merge",
                                     "quantize",  "rewrites",  "autodiff",  "optimizer",
                                     "remat",     "epilogues", "offload",   "fuse"};
enum { N_PASSES = sizeof passes / sizeof *passes };

static bool is_pass(const char *name)
{
    bool found = false;
    for (int i = 0; i < N_PASSES; i++)
        found |= strcmp(passes[i], name) == 0;
    return found;
}

static mx_status check_dump(const char *name)
{
    if (!name || !*name || strcmp(name, "all") == 0 || is_pass(name))
        return MX_OK;
    mx_str known = {0};
    for (int i = 0; i < N_PASSES; i++)
        mx_str_addf(&known, "%s, ", passes[i]);
    mx_status st = mx_fail(MX_USAGE, "dump_ir=%s: there is no such pass; use one of %sall", name,
                           mx_str_text(&known));
    mx_str_fini(&known);
    return st;
}

static mx_status after(mx_graph *g, const mx_compile_options *o, const char *pass)
{
    MX_ASSERT(is_pass(pass), "%s", pass);
    MX_TRY(check_dump(o->dump_ir));
    MX_TRY(mx_graph_check(g));
    MX_TRY(dump(g, o, pass));
    if (MX_VERIFY_PASSES)
        MX_TRY(mx_status_wrap(mx_graph_verify(g), "after the pass %s", pass));
    return MX_OK;
}

/* With dump_ir it is said how every weight and input lies on the mesh, and what rules could not
 * give. */
static mx_status partition(mx_graph *g, const mx_compile_options *o)
{
    if (!o->partition)
        return MX_OK;
    mx_str report = {0};
    mx_partition how = *o->partition;
    how.report = dumps(o, "partition") ? &report : how.report;
    mx_status st = mx_pass_partition(g, &how);
    if (report.len)
        fprintf(stderr, "-- placements on the mesh\n%s", mx_str_text(&report));
    mx_str_fini(&report);
    return st;
}

static mx_node *find_root(const mx_graph *g, const char *name)
{
    for (int i = 0; i < g->n_roots; i++)
        if (g->root[i]->name && strcmp(g->root[i]->name, name) == 0)
            return g->root[i];
    return NULL;
}

const mx_device_traits mx_plain_traits = {.name = "host", .host_memory = true};

static const mx_device_traits *traits_of(const mx_compile_options *o)
{
    return o->device ? o->device : &mx_plain_traits;
}

/* A gradient is added to its sum as soon as it is there, so that it need not be kept: at the end
 * all of them would be alive at once. Behind fuse, so that no group is cut apart. */
static void hasten_sums(mx_graph *g)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (g->node[i]->op == &mx_op_accumulate)
            g->node[i]->seq = g->node[i]->in[1]->seq;
}

static mx_status finish(mx_graph *g, const mx_compile_options *o, mx_program *out)
{
    mx_pass_fuse(g, !o->no_fuse);
    hasten_sums(g);
    MX_TRY(after(g, o, "fuse"));
    return mx_program_init(out, g, o->n_threads, traits_of(o));
}

mx_node **mx_trainable(mx_graph *g, int *n)
{
    mx_node **v = MX_NEW_N(&g->arena, mx_node *, g->n_nodes);
    *n = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        const mx_var_attr *a = g->node[i]->attr;
        if (g->node[i]->op == &mx_op_variable && a->kind == MX_VAR_WEIGHT && !a->frozen)
            v[(*n)++] = g->node[i];
    }
    return v;
}

/* Weights are read from the copies that the update writes: where gradients are summed up, and where
 * the weights of a training step are used beside it. */
static void read_copies(mx_graph *g, mx_node **var, int n)
{
    mx_arena scratch = {0};
    mx_node **cast = mx_first_casts(g, &scratch);
    for (int i = 0; i < n; i++)
        mx_weight_copy(g, var[i], cast[var[i]->id]);
    mx_arena_fini(&scratch);
    mx_graph_resolve(g);
}

mx_status mx_compile_forward(mx_graph *g, const mx_compile_options *o, mx_program *out)
{
    MX_TRY(after(g, o, "build"));
    mx_pass_precision(g, o->compute);
    if (o->weights_fixed || o->narrow_weights || o->narrow_frozen)
        mx_pass_narrow_weights(g, o->weights_fixed || o->narrow_weights);
    if (o->reads_copies) {
        int n;
        mx_node **var = mx_trainable(g, &n);
        read_copies(g, var, n);
    }
    MX_TRY(after(g, o, "precision"));
    MX_TRY(partition(g, o));
    MX_TRY(after(g, o, "partition"));
    mx_pass_quantize(g, o->quantization, false);
    if (o->weights_fixed && o->int8_weights)
        mx_pass_int8_weights(g);
    if (o->weights_fixed && g->one_path && !o->int8_weights && traits_of(o)->host_memory)
        mx_pass_panel_weights(g);
    MX_TRY(after(g, o, "quantize"));
    return finish(g, o, out);
}

static mx_node *sum_variable(mx_graph *g, const mx_node *w)
{
    char name[512];
    snprintf(name, sizeof name, "%s.grad", w->name);
    mx_type t = mx_type_of(MX_F32, mx_shape_of(&w->type));
    mx_node *v = mx_variable(g, name, t, (mx_var_attr){.kind = MX_VAR_GRADIENT});
    v->axes = w->axes;
    v->box = w->box;
    return v;
}

/* The least of the row factors of a step's microbatches. */
static void keep_least(mx_graph *g, mx_node *factors, mx_node *first)
{
    mx_node *v = mx_row_scale_variable(g, factors), *anew = mx_constant(g, MX_SCALAR, MX_F32, 1);
    mx_node *least = mx_where(g, first, factors, mx_minimum(g, v, factors));
    mx_graph_root(g, NULL, mx_accumulate(g, v, least, anew));
}

static void keep_gradients(mx_graph *g, mx_grads_use use, mx_node **var, mx_node **grad, int n)
{
    if (use == MX_GRADS_ACCUMULATE)
        read_copies(g, var, n);
    mx_node *first = use == MX_GRADS_ACCUMULATE ? mx_graph_find(g, "first") : NULL;
    if (use == MX_GRADS_ACCUMULATE && !first) /* the partition keeps what the model reads */
        first = mx_input(g, "first", MX_SCALAR, MX_F32);
    for (int i = 0; i < n; i++) {
        char name[512];
        snprintf(name, sizeof name, "grad:%s", var[i]->name);
        if (!grad[i])
            continue;
        if (first)
            mx_graph_root(g, NULL, mx_accumulate(g, sum_variable(g, var[i]), grad[i], first));
        else /* a copy, so that naming it cannot rename a weight or share another root's node */
            mx_graph_root(g, name, mx_affine(g, mx_cast(g, grad[i], var[i]->type.dtype), 1, 0));
    }
    for (int i = 0, n_roots = g->n_roots; first && i < n_roots; i++)
        if (mx_row_scale_of(g->root[i]))
            keep_least(g, g->root[i], first);
}

mx_status mx_compile_training(mx_graph *g, mx_node *loss, mx_grads_use use, const mx_optimizer *opt,
                              const mx_compile_options *o, mx_program *out)
{
    if (use == MX_GRADS_ACCUMULATE)
        mx_input(g, "first", MX_SCALAR, MX_F32);
    MX_TRY(after(g, o, "build"));
    mx_pass_precision(g, o->compute);
    if (o->narrow_weights || o->narrow_frozen)
        mx_pass_narrow_weights(g, o->narrow_weights);
    MX_TRY(after(g, o, "precision"));
    if (o->partition) {
        const char *name = loss->name;
        MX_ASSERT(name, "the loss is a named root");
        MX_TRY(partition(g, o));
        loss = find_root(g, "loss");
        MX_ASSERT(loss, "the loss is lost");
    }
    MX_TRY(after(g, o, "partition"));
    mx_pass_grad_dtypes(g, o->narrow_grads ? o->compute : MX_DTYPE_COUNT);
    mx_remat remat = o->remat.policy ? o->remat : (mx_remat){.policy = "none"};
    const mx_device_traits *d = traits_of(o);
    mx_rewrite(g, d->before_quantize, remat);
    MX_TRY(after(g, o, "merge"));
    mx_pass_quantize(g, o->quantization, true);
    MX_TRY(after(g, o, "quantize"));
    mx_rewrite(g, d->before_autodiff, remat);
    MX_TRY(after(g, o, "rewrites"));
    int n;
    mx_node **var = mx_trainable(g, &n);
    mx_node **grad = MX_NEW_N(&g->arena, mx_node *, n);
    mx_pass_autodiff(g, loss, var, n, grad);
    if (o->quantization)
        mx_pass_quantize_share(g);
    MX_TRY(after(g, o, "autodiff"));
    if (use == MX_GRADS_APPLY)
        mx_pass_optimizer(g, opt, var, grad, n, o->partition);
    else
        keep_gradients(g, use, var, grad, n);
    MX_TRY(after(g, o, "optimizer"));
    MX_TRY(mx_pass_remat(g, remat));
    MX_TRY(after(g, o, "remat"));
    mx_rewrite(g, d->behind_remat, remat);
    MX_TRY(after(g, o, "epilogues"));
    if (!d->host_memory && remat.offload && *remat.offload)
        MX_TRY(mx_pass_offload(g, remat.offload));
    MX_TRY(after(g, o, "offload"));
    return finish(g, o, out);
}

mx_status mx_compile_apply(mx_graph *g, const mx_graph *model, const mx_optimizer *opt,
                           const mx_compile_options *o, mx_program *out)
{
    int n = 0;
    mx_node **var = MX_NEW_N(&g->arena, mx_node *, model->n_nodes);
    mx_node **grad = MX_NEW_N(&g->arena, mx_node *, model->n_nodes);
    mx_node **cast = mx_first_casts(model, &g->arena);
    for (int i = 0; i < model->n_nodes; i++) {
        const mx_node *w = model->node[i];
        const mx_var_attr *a = w->attr;
        if (w->op != &mx_op_variable || a->kind != MX_VAR_WEIGHT || a->frozen)
            continue;
        var[n] = mx_variable(g, w->name, w->type, *a);
        var[n]->axes = w->axes ? mx_arena_strdup(&g->arena, w->axes) : NULL;
        var[n]->box = w->box ? mx_arena_copy(&g->arena, w->box, sizeof *w->box) : NULL;
        grad[n] = sum_variable(g, var[n]);
        if (cast[w->id])
            mx_cast(g, var[n], o->compute); /* its copy follows the update: see optimizer.c */
        n++;
    }
    for (int i = 0; i < model->n_roots; i++)
        if (mx_row_scale_of(model->root[i]))
            mx_graph_root(g, model->root[i]->name,
                          mx_affine(g, mx_row_scale_variable(g, model->root[i]), 1, 0));
    mx_pass_optimizer(g, opt, var, grad, n, o->partition);
    MX_TRY(after(g, o, "optimizer"));
    return finish(g, o, out);
}

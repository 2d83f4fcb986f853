/* compile.c - runs the passes in order; prints, and in test builds verifies, between them. */
#include "compile/compile.h"

#include "compile/mesh/partition.h"
#include "compile/mesh/stages.h"

#include "ops.h"
#include <stdio.h>
#include <string.h>

/* Of the ranks of a mesh the first one speaks. */
bool mx_compile_dumps(const mx_compile_options *o, const char *pass)
{
    if (!o->dump_ir || !*o->dump_ir || (o->partition && o->partition->rank != 0))
        return false;
    return strcmp(o->dump_ir, pass) == 0 || strcmp(o->dump_ir, "all") == 0;
}

/* Text and Graphviz of the graph as it stands after a pass, where the user asked for it. */
static mx_status dump(const mx_graph *g, const mx_compile_options *o, const char *pass)
{
    if (!mx_compile_dumps(o, pass))
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

/* The passes in the order in which they are run: each after the one that it names, and before
 * those that say they are after it or that it must precede. Of several the first by name. */
enum { MAX_PASSES = 64 };

static int find_pass(const mx_compile_pass *const *list, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(list[i]->name, name) == 0)
            return i;
    return -1;
}

static bool may_run(const mx_compile_pass *p, const mx_compile_pass *const *done, int n_done)
{
    if (p->after && find_pass(done, n_done, p->after) < 0)
        return false;
    for (const mx_compile_pass *const *q = mx_compile_pass_table; *q; q++)
        if ((*q)->before && strcmp((*q)->before, p->name) == 0 &&
            find_pass(done, n_done, (*q)->name) < 0)
            return false;
    return find_pass(done, n_done, p->name) < 0;
}

static int order_passes(const mx_compile_pass *out[MAX_PASSES])
{
    int n = 0, before = -1;
    MX_ASSERT(mx_compile_pass_count <= MAX_PASSES, "%d passes", mx_compile_pass_count);
    while (n != before) {
        before = n;
        for (const mx_compile_pass *const *p = mx_compile_pass_table; *p && n == before; p++)
            if (may_run(*p, out, n))
                out[n++] = *p;
    }
    MX_ASSERT(n == mx_compile_pass_count, "after and before allow no order of the passes");
    return n;
}

static mx_status check_dump(const char *name)
{
    const mx_compile_pass *pass[MAX_PASSES];
    int n = order_passes(pass);
    if (!name || !*name || strcmp(name, "all") == 0 || strcmp(name, "build") == 0 ||
        find_pass(pass, n, name) >= 0)
        return MX_OK;
    mx_str known = {0};
    for (int i = 0; i < n; i++)
        mx_str_addf(&known, "%s, ", pass[i]->name);
    mx_status st = mx_fail(MX_USAGE, "dump_ir=%s: there is no such pass; use one of build, %sall",
                           name, mx_str_text(&known));
    mx_str_fini(&known);
    return st;
}

static mx_status after(mx_graph *g, const mx_compile_options *o, const char *pass)
{
    MX_TRY(mx_graph_check(g));
    MX_TRY(dump(g, o, pass));
    if (MX_VERIFY_PASSES)
        MX_TRY(mx_status_wrap(mx_graph_verify(g), "after the pass %s", pass));
    return MX_OK;
}

const mx_device_traits mx_plain_traits = {.name = "host", .host_memory = true};

static const mx_device_traits *traits_of(const mx_compile_options *o)
{
    return o->device ? o->device : &mx_plain_traits;
}

static mx_compilation begin(const mx_compile_options *o)
{
    mx_remat none = {.policy = "none"};
    return (mx_compilation){.o = o, .device = traits_of(o),
                            .remat = o->remat.policy ? o->remat : none};
}

static mx_status run_passes(mx_graph *g, mx_compilation *c, unsigned programs)
{
    const mx_compile_pass *pass[MAX_PASSES];
    int n = order_passes(pass);
    MX_TRY(check_dump(c->o->dump_ir));
    if (programs & (MX_IN_FORWARD | MX_IN_TRAINING))
        MX_TRY(after(g, c->o, "build"));
    for (int i = 0; i < n; i++) {
        if (!(pass[i]->programs & programs))
            continue;
        MX_TRY(pass[i]->run(g, c));
        MX_TRY(after(g, c->o, pass[i]->name));
    }
    return MX_OK;
}

static mx_status finish(mx_graph *g, mx_compilation *c, mx_program *out)
{
    MX_TRY(run_passes(g, c, MX_IN_ALL));
    return mx_program_init(out, g, c->o->n_threads, c->device);
}

mx_status mx_compile_forward(mx_graph *g, const mx_compile_options *o, mx_program *out)
{
    mx_compilation c = begin(o);
    MX_TRY(run_passes(g, &c, MX_IN_FORWARD));
    return finish(g, &c, out);
}

static mx_status run_training(mx_graph *g, mx_compilation *c, mx_node *loss, mx_grads_use use)
{
    c->training = true;
    c->loss = loss;
    c->use = use;
    if (use == MX_GRADS_ACCUMULATE)
        mx_input(g, "first", MX_SCALAR, MX_F32);
    return run_passes(g, c, MX_IN_TRAINING);
}

mx_status mx_compile_training(mx_graph *g, mx_node *loss, mx_grads_use use, const mx_optimizer *opt,
                              const mx_compile_options *o, mx_program *out)
{
    mx_compilation c = begin(o);
    c.opt = opt;
    MX_TRY(run_training(g, &c, loss, use));
    return finish(g, &c, out);
}

mx_status mx_compile_joint(mx_graph *g, mx_node *loss, mx_grads_use use,
                           const mx_compile_options *o)
{
    MX_ASSERT(o->stages && use != MX_GRADS_APPLY, "updates are programs of their own");
    mx_compilation c = begin(o);
    return run_training(g, &c, loss, use);
}

mx_status mx_compile_joint_forward(mx_graph *g, const mx_compile_options *o)
{
    mx_compilation c = begin(o);
    return run_passes(g, &c, MX_IN_FORWARD);
}

mx_status mx_compile_chunk(const mx_graph *joint, int k, const mx_compile_options *o,
                           mx_stage_chunk *out)
{
    MX_TRY(mx_stage_cut(joint, o->stages, k, out));
    mx_status st = MX_OK;
    mx_compilation c = begin(o);
    for (int p = 0; p < MX_STAGE_PARTS && !st; p++) {
        st = run_passes(&out->graph[p], &c, MX_IN_ALL);
        if (!st)
            st = mx_program_init_kept(&out->program[p], &out->graph[p], o->n_threads, traits_of(o),
                                      (mx_kept_list){out->kept[p], out->n_kept[p]});
    }
    if (st)
        mx_stage_chunk_fini(out);
    return st;
}

/* A variable like that of another graph, which need not live as long. */
static mx_node *declare(mx_graph *g, const mx_node *w)
{
    mx_node *v = mx_node_copy(g, w, NULL);
    v->attr = mx_arena_copy(&g->arena, w->attr, sizeof(mx_var_attr));
    v->name = mx_arena_strdup(&g->arena, w->name);
    v->scope = g->scope;
    v->axes = w->axes ? mx_arena_strdup(&g->arena, w->axes) : NULL;
    v->box = w->box ? mx_arena_copy(&g->arena, w->box, sizeof *w->box) : NULL;
    mx_graph_enter(g, v);
    return v;
}

mx_status mx_compile_apply(mx_graph *g, const mx_graph *model, const mx_optimizer *opt,
                           const mx_compile_options *o, mx_program *out)
{
    int n = 0, n_all = model->n_nodes;
    mx_node **var = MX_NEW_N(&g->arena, mx_node *, model->n_nodes);
    mx_node **grad = MX_NEW_N(&g->arena, mx_node *, model->n_nodes);
    mx_node **cast = mx_first_casts(model, &g->arena);
    const mx_node **all = (const mx_node **)model->node;
    if (o->stages)
        n_all = mx_stage_weights(model, o->stages, &g->arena, &all);
    for (int i = 0; i < n_all; i++) {
        const mx_node *w = all[i];
        const mx_var_attr *a = w->attr;
        if (w->op != &mx_op_variable || a->kind != MX_VAR_WEIGHT || (a->frozen && !o->stages))
            continue;
        var[n] = declare(g, w);
        if (a->frozen) { /* all stages have the same weights in the same order */
            mx_graph_root(g, NULL, var[n]);
            continue;
        }
        grad[n] = mx_gradient_of_ranks(g, mx_gradient_sum(g, var[n]), o);
        if (cast[w->id])
            mx_cast(g, var[n], o->compute); /* its copy follows the update: see optimizer.c */
        n++;
    }
    for (int i = 0; i < model->n_roots; i++)
        if (mx_row_scale_of(model->root[i]))
            mx_graph_root(g, model->root[i]->name,
                          mx_affine(g, mx_row_scale_variable(g, model->root[i]), 1, 0));
    mx_compilation c = begin(o);
    c.use = MX_GRADS_APPLY;
    c.opt = opt;
    c.var = var;
    c.grad = grad;
    c.n = n;
    MX_TRY(run_passes(g, &c, MX_IN_UPDATE));
    return finish(g, &c, out);
}

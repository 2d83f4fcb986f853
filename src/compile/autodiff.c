/* autodiff.c - reverse-mode differentiation: walk the forward nodes backwards, ask each op for its
 * gradient, add up what arrives.
 *
 * A gradient may have size 1 where its node has more: "the same all along this dim". Elementwise
 * and row ops understand that (see mx_sum_like), which keeps the gradient of a mean from being
 * spread out in memory; before any other op the gradient is broadcast to its full shape.
 */
#include "compile/compile.h"
#include "compile/quantize_amax.h"

#include "ops.h"
#include <string.h>

typedef struct {
    mx_node **sum; /* gradient of output k of node i, at [i * MX_MAX_OUT + k] */
    bool *needs;   /* does a gradient have to reach this node? */
} flow;

static int64_t index_of(const mx_node *n)
{
    return *(const int64_t *)n->attr; /* the output op's only attribute */
}

/* Rows of a table are added into the gradient that is there, ranges beside each other are put
 * together; anything else makes a sum. Of a pipeline's chunks the first one makes it: gradients go
 * from later chunks to earlier ones. */
static void accumulate(mx_graph *g, mx_node **slot, mx_node *d)
{
    int stage = g->stage;
    if (*slot && (*slot)->stage < stage)
        g->stage = (*slot)->stage;
    mx_node *onto = *slot ? mx_embed_grad_onto(g, *slot, d) : NULL;
    if (*slot && !onto)
        onto = mx_pad_join(g, *slot, d);
    *slot = onto ? onto : *slot ? mx_add(g, *slot, d) : d;
    g->stage = stage;
}

static void mark_needed(mx_node *const *order, int n_order, mx_node *const *x, int n, bool *needs)
{
    for (int i = 0; i < n; i++)
        needs[x[i]->id] = true;
    for (int i = 0; i < n_order; i++)
        for (int k = 0; k < order[i]->n_in; k++)
            if (order[i]->in[k] && needs[order[i]->in[k]->id])
                needs[order[i]->id] = true;
}

/* int8 holds quantized numbers, whose gradient passes straight through. */
static bool takes_gradient(mx_dtype d)
{
    return mx_dtype_is_float(d) || d == MX_I8;
}

static void visit(mx_graph *g, flow *f, mx_node *n)
{
    mx_node **dout = &f->sum[(size_t)n->id * MX_MAX_OUT];
    bool any = false;
    for (int k = 0; k < n->n_out; k++)
        any |= dout[k] != NULL;
    if (!any || !f->needs[n->id] || n->op->kind == MX_SOURCE)
        return;
    g->stage = n->stage;
    if (n->op->kind == MX_PROJECT) {
        accumulate(g, &f->sum[(size_t)n->in[0]->id * MX_MAX_OUT + (size_t)index_of(n)], dout[0]);
        return;
    }
    if (!n->op->grad)
        return;
    for (int k = 0; k < n->n_out; k++)
        if (dout[k] && (!mx_op_kind_is_tiled(n->op->kind) || n->op->kind == MX_ROW_MAP))
            dout[k] = mx_broadcast_to(g, dout[k], mx_shape_of(mx_node_type(n, k)));
    mx_node *din[MX_MAX_IN] = {0};
    const char *scope = g->scope;
    g->scope = n->scope; /* gradients carry the scope of what they belong to */
    n->op->grad(g, n, dout, din);
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && din[i] && f->needs[n->in[i]->id] &&
            takes_gradient(n->in[i]->type.dtype))
            accumulate(g, &f->sum[(size_t)n->in[i]->id * MX_MAX_OUT], din[i]);
    g->scope = scope;
}

void mx_gradients(mx_graph *g, mx_node *y, mx_node *dy, mx_node *const *x, int n, mx_node **dx)
{
    int n_forward = g->n_nodes;
    mx_arena scratch = {0};
    flow f = {MX_NEW_N(&scratch, mx_node *, (size_t)n_forward * MX_MAX_OUT),
              MX_NEW_N(&scratch, bool, n_forward)};
    int n_order;
    mx_node **order = mx_node_order(g, y, &scratch, &n_order);
    mark_needed(order, n_order, x, n, f.needs);
    f.sum[(size_t)y->id * MX_MAX_OUT] = dy ? dy : mx_constant(g, MX_SCALAR, y->type.dtype, 1);
    for (int i = n_order - 1; i >= 0 && !g->error; i--)
        visit(g, &f, order[i]);
    for (int i = 0; i < n; i++) {
        mx_node *d = f.sum[(size_t)x[i]->id * MX_MAX_OUT];
        g->stage = x[i]->stage;
        dx[i] = d ? mx_broadcast_to(g, d, mx_shape_of(&x[i]->type)) : NULL;
    }
    g->stage = 0;
    mx_arena_fini(&scratch);
    mx_graph_resolve(g); /* a gradient builder may have replaced a forward node */
    for (int i = 0; i < n; i++)
        while (dx[i] && dx[i]->forward)
            dx[i] = dx[i]->forward;
}

/* A gradient that nothing but the optimizer reads (a weight's) can wait. Let it, by a few nodes:
 * the elementwise work around it then stands together and fuses, where a GEMM in between would
 * split it. */
static void delay_weight_gradients(mx_graph *g, int n_forward)
{
    enum { DELAY = 24 };
    mx_arena scratch = {0};
    bool *read = MX_NEW_N(&scratch, bool, g->n_nodes);
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->node[i]->n_in; k++)
            if (g->node[i]->in[k])
                read[g->node[i]->in[k]->id] = true;
    for (int i = n_forward; i < g->n_nodes; i++)
        if (!read[i] && g->node[i]->op == &mx_op_matmul)
            g->node[i]->seq += DELAY;
    mx_arena_fini(&scratch);
}

void mx_pass_autodiff(mx_graph *g, mx_node *loss, mx_node *const *var, int n, mx_node **grad)
{
    int n_forward = g->n_nodes;
    if (loss->type.ndim != 0)
        mx_graph_fail(g, "the loss must be one number, it has %d dims", loss->type.ndim);
    g->backward = true;
    mx_gradients(g, loss, NULL, var, n, grad);
    delay_weight_gradients(g, n_forward);
}

static mx_status run(mx_graph *g, mx_compilation *c)
{
    c->var = mx_trainable(g, &c->n);
    c->grad = MX_NEW_N(&g->arena, mx_node *, c->n);
    mx_pass_autodiff(g, c->loss, c->var, c->n, c->grad);
    if (c->o->quantization) {
        mx_pass_quantize_share(g);
        mx_pass_quantize_amax(g, c->o->partition);
    }
    return MX_OK;
}

const mx_compile_pass mx_compile_pass_autodiff = {
    .name = "autodiff",
    .doc = "gradient nodes, from each op's gradient builder",
    .after = "rewrites",
    .programs = MX_IN_TRAINING,
    .run = run,
};

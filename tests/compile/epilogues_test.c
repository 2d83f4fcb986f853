/* epilogues_test.c - what is fused into GEMMs (compile/epilogues.c) under every remat policy:
 * programs for a device that has all epilogues, run on the CPU, against programs without. */
#include "compile/compile.h"
#include "graph_run.h"
#include "nn/nn.h"
#include "ops.h"
#include "ops/matmul.h"
#include "../test.h"
#include "../device/test_devices.h"
#include <math.h>
#include <string.h>

enum { B = 2, S = 6, D = 16, F = 24, LAYERS = 2, N_WEIGHTS = 3 * LAYERS, MAX_SIZE = D * F };

static mx_node *mean_square(mx_graph *g, mx_node *y)
{
    return mx_graph_root(g, "loss", mx_affine(g, mx_sum_all(g, mx_mul(g, y, y)), 1. / (B * S), 0));
}

/* y + gelu(y w + b) v */
static mx_node *gelu_layer(mx_graph *g, mx_node *y)
{
    mx_node *w = mx_param(g, "w", MX_SHAPE(D, F), NULL, MX_NORMAL(0.4));
    mx_node *b = mx_param(g, "b", MX_SHAPE(F), NULL, MX_NORMAL(0.4));
    mx_node *v = mx_param(g, "v", MX_SHAPE(F, D), NULL, MX_NORMAL(0.4));
    mx_node *u = mx_name(g, "wide", mx_add(g, mx_matmul(g, "*d,df->*f", y, w), b));
    return mx_add(g, y, mx_matmul(g, "*f,fd->*d", mx_gelu_tanh(g, u), v));
}

/* y + (silu(y w^T) y b^T) v^T; `scaled`: twice what is in brackets. */
static mx_node *any_swiglu_layer(mx_graph *g, mx_node *y, bool scaled)
{
    mx_node *w = mx_param(g, "w", MX_SHAPE(F, D), NULL, MX_NORMAL(0.4));
    mx_node *b = mx_param(g, "b", MX_SHAPE(F, D), NULL, MX_NORMAL(0.4));
    mx_node *v = mx_param(g, "v", MX_SHAPE(D, F), NULL, MX_NORMAL(0.4));
    mx_node *gate = mx_name(g, "wide", mx_matmul(g, "*d,fd->*f", y, w));
    mx_node *h = mx_mul(g, mx_silu(g, gate), mx_matmul(g, "*d,fd->*f", y, b));
    return mx_add(g, y, mx_matmul(g, "*f,df->*d", scaled ? mx_affine(g, h, 2, 0) : h, v));
}

static mx_node *swiglu_layer(mx_graph *g, mx_node *y)
{
    return any_swiglu_layer(g, y, false);
}

static mx_node *scaled_layer(mx_graph *g, mx_node *y)
{
    return any_swiglu_layer(g, y, true);
}

typedef mx_node *(*layer)(mx_graph *g, mx_node *y);

static mx_node *model(mx_graph *g, layer make)
{
    mx_node *y = mx_input(g, "x", MX_SHAPE(B, S, D), MX_F32);
    for (int l = 0; l < LAYERS; l++) {
        mx_scope(g, "layers.%d", l);
        y = mx_scope_end(g, make(g, y));
    }
    return mean_square(g, y);
}

typedef struct {
    float loss, grad[N_WEIGHTS][MAX_SIZE];
    double gemm_flops;
    int forward[MX_EPILOGUE_COUNT], backward[MX_EPILOGUE_COUNT], again[MX_EPILOGUE_COUNT];
} outcome;

static void count(outcome *out, const mx_node *n)
{
    const mx_matmul_attr *a = n->attr;
    int *at = n->recomputed ? out->again : n->backward ? out->backward : out->forward;
    out->gemm_flops += mx_node_cost(n).flops;
    for (int e = 0; a->epilogues.of[e]; e++)
        at[a->epilogues.of[e]]++;
}

static const char *const weight[N_WEIGHTS] = {"layers.0.w", "layers.0.b", "layers.0.v",
                                              "layers.1.w", "layers.1.b", "layers.1.v"};

static outcome run(layer make, const mx_device_traits *device, mx_remat remat)
{
    outcome out = {0};
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    mx_compile_options o = {
        .n_threads = 1, .compute = MX_BF16, .device = device, .remat = remat};
    MX_CHECK_OK(mx_compile_training(&g, model(&g, make), MX_GRADS_KEEP, NULL, &o, &p));
    for (int i = 0; i < p.n; i++)
        if (p.order[i]->op == &mx_op_matmul)
            count(&out, p.order[i]);
    out.loss = mx_test_gradients(&p, weight, N_WEIGHTS, out.grad[0], MAX_SIZE);
    mx_program_fini(&p);
    mx_graph_fini(&g);
    return out;
}

static const mx_remat none = {.policy = "none"}, elementwise = {.policy = "elementwise"},
                      minimal = {.policy = "minimal"}, full = {.policy = "full"},
                      saved = {.policy = "custom", .save = "wide"},
                      moved = {.policy = "custom", .offload = "wide"};

/* With epilogues, which have to agree with the plain program and cost it no GEMM more. */
static outcome fused_as_plain(layer make, mx_remat remat)
{
    mx_device_traits fusing = mx_test_fusing();
    outcome a = run(make, &fusing, remat), b = run(make, NULL, remat);
    for (int e = 0; e < MX_EPILOGUE_COUNT; e++)
        MX_CHECK(!b.forward[e] && !b.backward[e] && !b.again[e], "%s without a rule",
                 mx_epilogue_kinds[e].name);
    MX_CHECK(a.gemm_flops == b.gemm_flops, "%s: %g FLOPs of GEMMs and %g", remat.policy,
             a.gemm_flops, b.gemm_flops);
    MX_CHECK(fabsf(a.loss - b.loss) < 0.01 * b.loss && b.loss > 0.1, "%s: %g and %g", remat.policy,
             a.loss, b.loss);
    mx_test_same_gradients(a.grad[0], b.grad[0], weight, N_WEIGHTS, MAX_SIZE, 0.02);
    return a;
}

/* Each layer's activation is fused into its GEMM in the forward pass, its gradient into one in the
 * backward pass; and once more where the GEMM is computed again with it. */
static void check(layer make, mx_remat remat, int activation, int derivative, int again)
{
    outcome a = fused_as_plain(make, remat);
    MX_CHECK(a.forward[activation] == LAYERS && a.backward[derivative] == LAYERS &&
                 a.again[activation] == again && !a.again[derivative],
             "%s: %d, %d, %d again", remat.policy, a.forward[activation], a.backward[derivative],
             a.again[activation]);
}

MX_TEST(a_gelu_and_its_gradient_are_epilogues_under_every_policy)
{
    enum { ACTIVATION = MX_EPILOGUE_GELU, DERIVATIVE = MX_EPILOGUE_GELU_GRAD };
    check(gelu_layer, none, ACTIVATION, DERIVATIVE, 0);
    check(gelu_layer, elementwise, ACTIVATION, DERIVATIVE, 0);
    check(gelu_layer, minimal, ACTIVATION, DERIVATIVE, 0);
    check(gelu_layer, saved, ACTIVATION, DERIVATIVE, 0);
    check(gelu_layer, moved, ACTIVATION, DERIVATIVE, 0);
    check(gelu_layer, full, ACTIVATION, DERIVATIVE, LAYERS);
}

/* With the gate kept, the up projection alone is computed again: the two are not one kernel. */
MX_TEST(a_swiglu_and_its_gradient_are_epilogues_under_every_policy)
{
    enum { ACTIVATION = MX_EPILOGUE_SWIGLU, DERIVATIVE = MX_EPILOGUE_SWIGLU_GRAD };
    check(swiglu_layer, none, ACTIVATION, DERIVATIVE, 0);
    check(swiglu_layer, elementwise, ACTIVATION, DERIVATIVE, 0);
    check(swiglu_layer, minimal, ACTIVATION, DERIVATIVE, 0);
    check(swiglu_layer, full, ACTIVATION, DERIVATIVE, LAYERS);
    for (int i = 0; i < 2; i++) {
        outcome a = fused_as_plain(swiglu_layer, i ? moved : saved);
        MX_CHECK(a.forward[ACTIVATION] == LAYERS && !a.again[ACTIVATION] && !a.backward[DERIVATIVE],
                 "%d, %d, %d", a.forward[ACTIVATION], a.again[ACTIVATION], a.backward[DERIVATIVE]);
    }
}

MX_TEST(a_swiglu_that_a_group_reads_stays_in_it)
{
    outcome a = fused_as_plain(scaled_layer, none);
    MX_CHECK(!a.forward[MX_EPILOGUE_SWIGLU] && !a.backward[MX_EPILOGUE_SWIGLU_GRAD]);
}

/* What is kept in host memory changes no bit. */
MX_TEST(epilogues_do_not_depend_on_where_a_value_waits)
{
    mx_device_traits fusing = mx_test_fusing();
    outcome a = run(gelu_layer, &fusing, saved), b = run(gelu_layer, &fusing, moved);
    MX_CHECK(a.loss == b.loss && memcmp(a.grad, b.grad, sizeof a.grad) == 0, "%g and %g", a.loss,
             b.loss);
}

/* --- the rewriter itself --- */

static bool doubles(const mx_rewriter *r, mx_node *n, mx_match *m)
{
    m->at[0] = n->in[0];
    return n->in[0] == n->in[1] && mx_uses_count(&r->uses, n->in[0]) == 2;
}

static void as_affine(mx_graph *g, mx_node *n, mx_match *m)
{
    mx_match_replace(m, n, mx_affine(g, m->at[0], 2, 0));
}

static const mx_rule twice = {"twice", &mx_op_add, doubles, as_affine};
static const mx_rule *const twice_only[] = {&twice, NULL};

/* add(x, x) becomes 2 x, but where x has another reader: the exp that a first rewrite leaves unread
 * no longer counts, and a node that nobody needs never did. */
MX_TEST(rules_see_live_uses_and_carry_names_and_places)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_node *x = mx_input(&g, "x", MX_SHAPE(4), MX_F32), *y = mx_tanh(&g, x);
    mx_exp(&g, y); /* dead */
    mx_scope(&g, "inner");
    mx_node *sum = mx_name(&g, "sum", mx_add(&g, y, y));
    mx_scope_end(&g, sum);
    mx_node *kept = mx_add(&g, x, x);
    sum->seq = 77;
    sum->recomputed = true;
    mx_graph_root(&g, "a", mx_exp(&g, sum));
    mx_graph_root(&g, NULL, kept);
    mx_rewrite(&g, twice_only, (mx_remat){.policy = "none"});
    mx_node *now = g.root[0]->in[0];
    MX_CHECK(now->op == &mx_op_affine && now->seq == 77 && now->recomputed && now->name &&
                 strcmp(now->name, "sum") == 0 && strcmp(now->scope, "inner") == 0,
             "%s %d %s", now->op->name, now->seq, now->scope);
    MX_CHECK(g.root[1] == kept, "x has a third reader");
    MX_CHECK(g.seq == -1 && !*g.scope && sum->forward == now);
    mx_graph_fini(&g);
}

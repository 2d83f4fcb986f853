/* product_ends.c - what joins products on a GPU: a GELU the one before it (compile/bias.c), its
 * slope the one behind (compile/slope.c), a SwiGLU and its gradient likewise (compile/swiglu.c).
 * The graph for a GPU, run on the CPU, against the one without. */
#include "compile/compile.h"
#include "graph_run.h"
#include "nn/nn.h"
#include "ops.h"
#include "test.h"
#include <math.h>

enum { B = 2, S = 6, D = 16, F = 24, N_WEIGHTS = 3, MAX_SIZE = D * F };

/* A model, its weights, and the ops that its activation and the slope of that become. */
typedef struct {
    mx_node *(*build)(mx_graph *g);
    const char *weight[N_WEIGHTS];
    const mx_op *end, *slope;
} trial;

static mx_node *mean_square(mx_graph *g, mx_node *y)
{
    return mx_graph_root(g, "loss", mx_affine(g, mx_sum_all(g, mx_mul(g, y, y)), 1. / (B * S), 0));
}
/* Of gelu(x w + b) v. */
static mx_node *gelu_model(mx_graph *g)
{
    mx_node *x = mx_input(g, "x", MX_SHAPE(B, S, D), MX_F32);
    mx_node *w = mx_param(g, "w", MX_SHAPE(D, F), NULL, MX_NORMAL(0.4));
    mx_node *b = mx_param(g, "b", MX_SHAPE(F), NULL, MX_NORMAL(0.4));
    mx_node *v = mx_param(g, "v", MX_SHAPE(F, D), NULL, MX_NORMAL(0.4));
    mx_node *u = mx_add(g, mx_matmul(g, "*d,df->*f", x, w), b);
    return mean_square(g, mx_matmul(g, "*f,fd->*d", mx_gelu_tanh(g, u), v));
}
/* Of (silu(x w^T) x u^T) v^T; `scaled`: twice what is in brackets. */
static mx_node *any_swiglu_model(mx_graph *g, bool scaled)
{
    mx_node *x = mx_input(g, "x", MX_SHAPE(B, S, D), MX_F32);
    mx_node *w = mx_param(g, "w", MX_SHAPE(F, D), NULL, MX_NORMAL(0.4));
    mx_node *u = mx_param(g, "u", MX_SHAPE(F, D), NULL, MX_NORMAL(0.4));
    mx_node *v = mx_param(g, "v", MX_SHAPE(D, F), NULL, MX_NORMAL(0.4));
    mx_node *gate = mx_silu(g, mx_matmul(g, "*d,fd->*f", x, w));
    mx_node *h = mx_mul(g, gate, mx_matmul(g, "*d,fd->*f", x, u));
    return mean_square(g, mx_matmul(g, "*f,df->*d", scaled ? mx_affine(g, h, 2, 0) : h, v));
}
static mx_node *swiglu_model(mx_graph *g)
{
    return any_swiglu_model(g, false);
}
static mx_node *scaled_model(mx_graph *g)
{
    return any_swiglu_model(g, true);
}
static const trial gelu = {gelu_model, {"w", "b", "v"}, &mx_op_matmul_gelu,
                           &mx_op_matmul_gelu_slope};
static const trial swiglu = {swiglu_model, {"w", "u", "v"}, &mx_op_matmul_swiglu,
                             &mx_op_matmul_swiglu_slope};
static const trial scaled = {scaled_model, {"w", "u", "v"}, &mx_op_matmul_swiglu,
                             &mx_op_matmul_swiglu_slope};

typedef struct {
    float loss, grad[N_WEIGHTS][MAX_SIZE];
    int joined, slopes, biased; /* products with the activation, its slope, with a bias alone */
} outcome;

static outcome gradients(const trial *t, bool gpu, const char *policy)
{
    outcome out = {0};
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    mx_compile_options o = {.n_threads = 1, .compute = MX_BF16, .gpu = gpu, .remat = {policy}};
    MX_CHECK_OK(mx_compile_training(&g, t->build(&g), MX_GRADS_KEEP, NULL, &o, &p));
    for (int i = 0; i < p.n; i++) {
        out.joined += p.order[i]->op == t->end;
        out.slopes += p.order[i]->op == t->slope;
        out.biased += p.order[i]->op == &mx_op_matmul && p.order[i]->n_in == 3;
    }
    out.loss = mx_test_gradients(&p, t->weight, N_WEIGHTS, out.grad[0], MAX_SIZE);
    mx_program_fini(&p);
    mx_graph_fini(&g);
    return out;
}
/* The outcome on a GPU, which has to agree with the plain one. */
static outcome joined_as_plain(const trial *t, const char *policy)
{
    outcome a = gradients(t, true, policy), b = gradients(t, false, policy);
    MX_CHECK(!b.joined && !b.slopes, "%d, %d", b.joined, b.slopes);
    MX_CHECK(fabsf(a.loss - b.loss) < 0.01 * b.loss && b.loss > 0.1, "%g and %g", a.loss, b.loss);
    mx_test_same_gradients(a.grad[0], b.grad[0], t->weight, N_WEIGHTS, MAX_SIZE, 0.015);
    return a;
}

MX_TEST(a_gelu_and_its_slope_join_the_products_beside_them)
{
    outcome a = joined_as_plain(&gelu, "none");
    MX_CHECK(a.joined == 1 && a.slopes == 1, "%d, %d", a.joined, a.slopes);
}

MX_TEST(a_gelu_that_is_computed_again_stays_out_of_its_product)
{
    outcome a = joined_as_plain(&gelu, "full");
    /* nor does its bias join alone: it is part of GELU's group */
    MX_CHECK(!a.joined && !a.biased, "%d, %d", a.joined, a.biased);
    /* nor does its slope: u is not in memory */
    MX_CHECK(!a.slopes, "%d", a.slopes);
}

MX_TEST(a_swiglu_and_its_gradient_join_the_products_beside_them)
{
    outcome a = joined_as_plain(&swiglu, "none");
    MX_CHECK(a.joined == 1 && a.slopes == 1, "%d, %d", a.joined, a.slopes);
}

MX_TEST(a_swiglu_that_is_computed_again_stays_out_of_its_products)
{
    outcome a = joined_as_plain(&swiglu, "full");
    MX_CHECK(!a.joined && !a.slopes, "%d, %d", a.joined, a.slopes);
}

MX_TEST(a_swiglu_that_a_group_reads_stays_in_it)
{
    outcome a = joined_as_plain(&scaled, "none");
    MX_CHECK(!a.joined && !a.slopes, "%d, %d", a.joined, a.slopes);
}

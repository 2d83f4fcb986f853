/* swiglu_join.c - a SwiGLU inside the products before it and its gradient inside the one behind it
 * (compile/swiglu.c): the graph for a GPU, run on the CPU, against the one without. */
#include "compile/compile.h"
#include "graph_run.h"
#include "nn/nn.h"
#include "ops.h"
#include "test.h"
#include <math.h>

enum { B = 2, S = 6, D = 16, F = 24, N_WEIGHTS = 3, MAX_SIZE = D * F };
static const char *const weight[N_WEIGHTS] = {"w", "u", "v"};

/* The mean square of (silu(x w^T) x u^T) v^T; `scaled`: twice what is in brackets. */
static mx_node *model(mx_graph *g, bool scaled)
{
    mx_node *x = mx_input(g, "x", MX_SHAPE(B, S, D), MX_F32);
    mx_node *w = mx_param(g, "w", MX_SHAPE(F, D), NULL, MX_NORMAL(0.4));
    mx_node *u = mx_param(g, "u", MX_SHAPE(F, D), NULL, MX_NORMAL(0.4));
    mx_node *v = mx_param(g, "v", MX_SHAPE(D, F), NULL, MX_NORMAL(0.4));
    mx_node *gate = mx_silu(g, mx_matmul(g, "*d,fd->*f", x, w));
    mx_node *h = mx_mul(g, gate, mx_matmul(g, "*d,fd->*f", x, u));
    mx_node *y = mx_matmul(g, "*f,df->*d", scaled ? mx_affine(g, h, 2, 0) : h, v);
    return mx_graph_root(g, "loss", mx_affine(g, mx_sum_all(g, mx_mul(g, y, y)), 1. / (B * S), 0));
}

typedef struct {
    float loss, grad[N_WEIGHTS][MAX_SIZE];
    int joined, slopes; /* products with a SwiGLU, and with its gradient */
} outcome;

static outcome gradients(bool gpu, const char *policy, bool scaled)
{
    outcome out = {0};
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    mx_compile_options o = {.n_threads = 1, .compute = MX_BF16, .gpu = gpu, .remat = {policy}};
    MX_CHECK_OK(mx_compile_training(&g, model(&g, scaled), MX_GRADS_KEEP, NULL, &o, &p));
    for (int i = 0; i < p.n; i++) {
        out.joined += p.order[i]->op == &mx_op_matmul_swiglu;
        out.slopes += p.order[i]->op == &mx_op_matmul_swiglu_slope;
    }
    out.loss = mx_test_gradients(&p, weight, N_WEIGHTS, out.grad[0], MAX_SIZE);
    mx_program_fini(&p);
    mx_graph_fini(&g);
    return out;
}

static void compare(const outcome *a, const outcome *b)
{
    MX_CHECK(fabsf(a->loss - b->loss) < 0.01 * b->loss && b->loss > 0.1, "%g and %g", a->loss,
             b->loss);
    mx_test_same_gradients(a->grad[0], b->grad[0], weight, N_WEIGHTS, MAX_SIZE, 0.015);
}

MX_TEST(a_swiglu_and_its_gradient_join_the_products_beside_them)
{
    outcome plain = gradients(false, "none", false), joined = gradients(true, "none", false);
    MX_CHECK(!plain.joined && joined.joined == 1, "%d, %d", plain.joined, joined.joined);
    MX_CHECK(!plain.slopes && joined.slopes == 1, "%d, %d", plain.slopes, joined.slopes);
    compare(&joined, &plain);
}

MX_TEST(a_swiglu_that_is_computed_again_stays_out_of_its_products)
{
    outcome plain = gradients(false, "full", false), joined = gradients(true, "full", false);
    MX_CHECK(!joined.joined && !joined.slopes, "%d, %d", joined.joined, joined.slopes);
    compare(&joined, &plain);
}

MX_TEST(a_swiglu_that_a_group_reads_stays_in_it)
{
    outcome plain = gradients(false, "none", true), joined = gradients(true, "none", true);
    MX_CHECK(!joined.joined && !joined.slopes, "%d, %d", joined.joined, joined.slopes);
    compare(&joined, &plain);
}

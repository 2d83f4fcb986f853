/* gelu_join.c - a GELU inside the product before it (compile/bias.c), and its slope inside the one
 * behind it (compile/slope.c): the graph for a GPU, run on the CPU, against the one without. */
#include "compile/compile.h"
#include "graph_run.h"
#include "nn/nn.h"
#include "ops.h"
#include "test.h"
#include <math.h>

enum { B = 2, S = 6, D = 16, F = 24, N_WEIGHTS = 3, MAX_SIZE = D * F };
static const char *const weight[N_WEIGHTS] = {"w", "b", "v"};

/* The mean square of gelu(x w + b) v. */
static mx_node *model(mx_graph *g)
{
    mx_node *x = mx_input(g, "x", MX_SHAPE(B, S, D), MX_F32);
    mx_node *w = mx_param(g, "w", MX_SHAPE(D, F), NULL, MX_NORMAL(0.4));
    mx_node *b = mx_param(g, "b", MX_SHAPE(F), NULL, MX_NORMAL(0.4));
    mx_node *v = mx_param(g, "v", MX_SHAPE(F, D), NULL, MX_NORMAL(0.4));
    mx_node *u = mx_add(g, mx_matmul(g, "*d,df->*f", x, w), b);
    mx_node *y = mx_matmul(g, "*f,fd->*d", mx_gelu_tanh(g, u), v);
    return mx_graph_root(g, "loss", mx_affine(g, mx_sum_all(g, mx_mul(g, y, y)), 1. / (B * S), 0));
}

typedef struct {
    float loss, grad[N_WEIGHTS][MAX_SIZE];
    int joined, slopes, biased; /* products with a GELU, with its slope, and with a bias alone */
} outcome;

static outcome gradients(bool gpu, const char *policy)
{
    outcome out = {0};
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    mx_compile_options o = {.n_threads = 1, .compute = MX_BF16, .gpu = gpu, .remat = {policy}};
    MX_CHECK_OK(mx_compile_training(&g, model(&g), MX_GRADS_KEEP, NULL, &o, &p));
    for (int i = 0; i < p.n; i++) {
        out.joined += p.order[i]->op == &mx_op_matmul_gelu;
        out.slopes += p.order[i]->op == &mx_op_matmul_gelu_slope;
        out.biased += p.order[i]->op == &mx_op_matmul && p.order[i]->n_in == 3;
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

MX_TEST(a_gelu_and_its_slope_join_the_products_beside_them)
{
    outcome plain = gradients(false, "none"), joined = gradients(true, "none");
    MX_CHECK(!plain.joined && joined.joined == 1, "%d, %d", plain.joined, joined.joined);
    MX_CHECK(!plain.slopes && joined.slopes == 1, "%d, %d", plain.slopes, joined.slopes);
    compare(&joined, &plain);
}

MX_TEST(a_gelu_that_is_computed_again_stays_out_of_its_product)
{
    outcome plain = gradients(false, "full"), joined = gradients(true, "full");
    /* nor does its bias join alone: it is part of GELU's group */
    MX_CHECK(!joined.joined && !joined.biased, "%d, %d", joined.joined, joined.biased);
    /* nor does its slope: u is not in memory */
    MX_CHECK(!joined.slopes, "%d", joined.slopes);
    compare(&joined, &plain);
}

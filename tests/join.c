/* join.c - q, k and v from one product (compile/join.c): the same losses and gradients as from
 * three, and no copies of activations on a device that takes parts. */
#include "compile/compile.h"
#include "compile/passes.h"
#include "ir/attention.h"
#include "graph_run.h"
#include "nn/nn.h"
#include "ops.h"
#include "test.h"
#include <math.h>

enum { B = 2, S = 5, HQ = 4, HK = 2, D = 8, F = HQ * D, N_WEIGHTS = 4, MAX_SIZE = F * F };
static const char *const weight[N_WEIGHTS] = {"q", "k", "v", "o"};

static mx_node *heads(mx_graph *g, mx_node *x, const char *name, int n)
{
    mx_node *w = mx_param(g, name, MX_SHAPE(n * D, F), NULL, MX_NORMAL(0.4));
    return mx_reshape(g, mx_matmul(g, "*d,fd->*f", x, w), MX_SHAPE(B, S, n, D));
}
/* The mean square of x + attention; q and k are changed row by row in between, as by a rotation. */
static mx_node *model(mx_graph *g, bool two)
{
    mx_node *x = mx_input(g, "x", MX_SHAPE(B, S, F), MX_F32);
    mx_node *q = heads(g, x, "q", HQ), *k = heads(g, x, "k", HK);
    mx_node *v = heads(g, two ? mx_affine(g, x, 2, 0) : x, "v", HK);
    q = mx_add(g, q, mx_rotate_half(g, q, D, false));
    k = mx_sub(g, k, mx_rotate_half(g, k, D, false));
    mx_attention_attr a = {.causal = true, .scale = 0.3};
    mx_node *o = mx_attention(g, q, k, v, a, (mx_attention_extra){0});
    mx_node *w = mx_param(g, "o", MX_SHAPE(F, F), NULL, MX_NORMAL(0.4));
    mx_node *y = mx_add(g, x, mx_matmul(g, "*d,fd->*f", mx_reshape(g, o, MX_SHAPE(B, S, F)), w));
    return mx_graph_root(g, "loss", mx_affine(g, mx_sum_all(g, mx_mul(g, y, y)), 1. / (B * S), 0));
}

typedef struct {
    float loss, grad[N_WEIGHTS][MAX_SIZE];
} outcome;

static outcome gradients(bool joined, mx_dtype compute)
{
    outcome out = {0};
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    mx_node *loss = model(&g, false);
    if (joined)
        mx_pass_join(&g);
    mx_compile_options o = {.n_threads = 1, .compute = compute};
    MX_CHECK_OK(mx_compile_training(&g, loss, MX_GRADS_KEEP, NULL, &o, &p));
    int splits = 0;
    for (int i = 0; i < p.n; i++)
        splits += p.order[i]->op == &mx_op_split;
    MX_CHECK(splits == joined, "%d splits", splits);
    out.loss = mx_test_gradients(&p, weight, N_WEIGHTS, out.grad[0], MAX_SIZE);
    mx_program_fini(&p);
    mx_graph_fini(&g);
    return out;
}

MX_TEST(q_k_and_v_from_one_product_have_the_gradients_of_three)
{
    outcome apart = gradients(false, MX_F32), joined = gradients(true, MX_F32);
    MX_CHECK(fabsf(apart.loss - joined.loss) < 1e-5f * apart.loss && apart.loss > 0.1f, "%g and %g",
             apart.loss, joined.loss);
    mx_test_same_gradients(joined.grad[0], apart.grad[0], weight, N_WEIGHTS, MAX_SIZE, 1e-5);
}

/* Of a program for a GPU: products with weights, and splits and concats of columns that copy. */
typedef struct {
    int products, copies, wide; /* wide: gradients of weights in float32 */
    int over;                   /* groups that leave their result in a part of the product */
} counts;
static counts count(bool two, const char *policy, bool narrow)
{
    counts c = {0};
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    mx_compile_options o = {.n_threads = 1, .compute = MX_BF16, .gpu = true, .remat = {policy},
                            .narrow_grads = narrow};
    MX_CHECK_OK(mx_compile_training(&g, model(&g, two), MX_GRADS_KEEP, NULL, &o, &p));
    for (int i = 0; i < p.n; i++) {
        const mx_node *n = p.order[i];
        bool columns = n->op == &mx_op_split ||
                       (n->op == &mx_op_concat && *(const int64_t *)n->attr > 0);
        c.products += n->op == &mx_op_matmul && !n->recomputed;
        c.copies += columns && !p.copies_nothing[n->id];
        c.wide += n->op == &mx_op_matmul && n->type.dtype == MX_F32;
        c.over += n->op == &mx_op_fused &&
                  mx_program_place(&p, n, 0)->root->op == &mx_op_matmul;
    }
    mx_program_fini(&p);
    mx_graph_fini(&g);
    return c;
}

MX_TEST(q_k_and_v_are_one_product_on_a_gpu_and_nothing_is_copied)
{
    counts c = count(false, "none", true); /* qkv and o: forward, dW, and dx of o alone */
    MX_CHECK(c.products == 5 && c.copies == 0, "%d products, %d copies", c.products, c.copies);
    MX_CHECK(c.over == 2, "%d of q and k are changed in place", c.over);
    c = count(false, "none", false);
    MX_CHECK(c.products == 5 && c.wide == 2, "%d products, %d wide", c.products, c.wide);
}

MX_TEST(products_of_two_or_of_what_is_computed_again_stay_apart)
{
    counts two = count(true, "none", true), again = count(false, "full", true);
    MX_CHECK(two.products == 9, "%d products", two.products);
    MX_CHECK(again.products == 9, "%d products", again.products);
}

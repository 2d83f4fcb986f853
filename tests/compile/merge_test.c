/* merge_test.c - q, k and v from one GEMM (compile/merge.c): the same losses and gradients as from
 * three, and no copies of activations on a device that takes strided views. */
#include "compile/compile.h"
#include "compile/passes.h"
#include "ir/attention.h"
#include "graph_run.h"
#include "nn/nn.h"
#include "ops.h"
#include "../test.h"
#include "../device/test_devices.h"
#include <math.h>
#include <stdio.h>

enum { B = 2, S = 5, HQ = 4, HK = 2, D = 8, F = HQ * D, N_WEIGHTS = 4, MAX_SIZE = F * F };
static const char *const weight[N_WEIGHTS] = {"layers.0.query", "layers.0.key", "layers.0.value",
                                              "layers.0.o"};

static mx_node *heads(mx_graph *g, mx_node *x, const char *name, int n)
{
    char whole[32];
    snprintf(whole, sizeof whole, "%s_proj", name);
    mx_node *w = mx_param(g, name, MX_SHAPE(n * D, F), NULL, MX_NORMAL(0.4));
    mx_node *y = mx_name(g, whole, mx_matmul(g, "*d,fd->*f", x, w));
    return mx_reshape(g, y, MX_SHAPE(B, S, n, D));
}
/* The mean square of x + attention; q and k are changed row by row in between, as by a rotation. */
static mx_node *model(mx_graph *g, bool two)
{
    mx_node *x = mx_input(g, "x", MX_SHAPE(B, S, F), MX_F32);
    mx_scope(g, "layers.0");
    mx_node *q = heads(g, x, "query", HQ), *k = heads(g, x, "key", HK);
    mx_node *v = heads(g, two ? mx_affine(g, x, 2, 0) : x, "value", HK);
    q = mx_add(g, q, mx_rotate_half(g, q, D, false));
    k = mx_sub(g, k, mx_rotate_half(g, k, D, false));
    mx_attention_attr a = {.causal = true, .scale = 0.3};
    mx_node *o = mx_attention(g, q, k, v, a, (mx_attention_extra){0});
    mx_node *w = mx_param(g, "o", MX_SHAPE(F, F), NULL, MX_NORMAL(0.4));
    mx_node *y = mx_add(g, x, mx_matmul(g, "*d,fd->*f", mx_reshape(g, o, MX_SHAPE(B, S, F)), w));
    mx_scope_end(g, y);
    return mx_graph_root(g, "loss", mx_affine(g, mx_sum_all(g, mx_mul(g, y, y)), 1. / (B * S), 0));
}

typedef struct {
    float loss, grad[N_WEIGHTS][MAX_SIZE];
    double gemm_flops;
    int splits;
} outcome;

static outcome run(const mx_device_traits *device, mx_dtype compute, mx_remat remat)
{
    outcome out = {0};
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    mx_compile_options o = {.n_threads = 1, .compute = compute, .device = device, .remat = remat};
    MX_CHECK_OK(mx_compile_training(&g, model(&g, false), MX_GRADS_KEEP, NULL, &o, &p));
    for (int i = 0; i < p.n; i++) {
        out.splits += p.order[i]->op == &mx_op_split;
        if (p.order[i]->op == &mx_op_matmul)
            out.gemm_flops += mx_node_cost(p.order[i]).flops;
    }
    out.loss = mx_test_gradients(&p, weight, N_WEIGHTS, out.grad[0], MAX_SIZE);
    mx_program_fini(&p);
    mx_graph_fini(&g);
    return out;
}

/* Merged as often as it may be, with the gradients of three and no GEMM more. */
static void check(mx_remat remat, int splits)
{
    mx_device_traits fusing = mx_test_fusing();
    outcome three = run(NULL, MX_F32, remat), one = run(&fusing, MX_F32, remat);
    MX_CHECK(one.splits == splits && !three.splits, "%s: %d and %d splits", remat.policy,
             one.splits, three.splits);
    MX_CHECK(one.gemm_flops == three.gemm_flops, "%s: %g and %g", remat.policy, one.gemm_flops,
             three.gemm_flops);
    MX_CHECK(fabsf(three.loss - one.loss) < 1e-5f * three.loss && three.loss > 0.1f, "%g and %g",
             three.loss, one.loss);
    mx_test_same_gradients(one.grad[0], three.grad[0], weight, N_WEIGHTS, MAX_SIZE, 1e-5);
}

MX_TEST(merged_q_k_and_v_have_the_gradients_of_three_under_every_policy)
{
    check((mx_remat){.policy = "none"}, 1);
    check((mx_remat){.policy = "elementwise"}, 1);
    check((mx_remat){.policy = "minimal"}, 1);
    check((mx_remat){.policy = "full"}, 2); /* and computed again */
    check((mx_remat){.policy = "custom", .save = "query_proj,key_proj,value_proj"}, 1);
    check((mx_remat){.policy = "custom", .offload = "query_proj,key_proj,value_proj"}, 1);
}

/* With q kept and the others computed again, a merged GEMM would compute q again as well. */
MX_TEST(q_k_and_v_of_which_some_are_kept_stay_apart)
{
    check((mx_remat){.policy = "custom", .save = "query_proj"}, 0);
    check((mx_remat){.policy = "custom", .save = "key_proj", .offload = "value_proj"}, 0);
}

/* Of a program for a device that takes strided views: matmuls, and splits and concats of columns
 * that copy. */
typedef struct {
    int gemms, copies, wide; /* wide: gradients of weights in float32 */
    int over;                /* groups that leave their result in a view of the GEMM's */
} counts;
static counts count(bool two, const char *policy, bool narrow)
{
    counts c = {0};
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    mx_compile_options o = {.n_threads = 1, .compute = MX_BF16, .device = &mx_cuda_traits,
                            .remat = {policy}, .narrow_grads = narrow};
    MX_CHECK_OK(mx_compile_training(&g, model(&g, two), MX_GRADS_KEEP, NULL, &o, &p));
    for (int i = 0; i < p.n; i++) {
        const mx_node *n = p.order[i];
        bool columns = n->op == &mx_op_split ||
                       (n->op == &mx_op_concat && *(const int64_t *)n->attr > 0);
        c.gemms += n->op == &mx_op_matmul && !n->recomputed;
        c.copies += columns && !p.copies_nothing[n->id];
        c.wide += n->op == &mx_op_matmul && n->type.dtype == MX_F32;
        c.over += n->op == &mx_op_fused &&
                  mx_program_place(&p, n, 0)->root->op == &mx_op_matmul;
    }
    mx_program_fini(&p);
    mx_graph_fini(&g);
    return c;
}

MX_TEST(merged_q_k_and_v_are_split_without_copies)
{
    counts c = count(false, "none", true); /* qkv and o: forward, dW, and dx of o alone */
    MX_CHECK(c.gemms == 5 && c.copies == 0, "%d GEMMs, %d copies", c.gemms, c.copies);
    MX_CHECK(c.over == 2, "%d of q and k are changed in place", c.over);
    c = count(false, "none", false);
    MX_CHECK(c.gemms == 5 && c.wide == 2, "%d GEMMs, %d wide", c.gemms, c.wide);
    c = count(false, "full", true);
    MX_CHECK(c.gemms == 5 && c.copies == 0, "%d GEMMs, %d copies", c.gemms, c.copies);
}

MX_TEST(matmuls_of_two_inputs_stay_apart)
{
    counts two = count(true, "none", true);
    MX_CHECK(two.gemms == 9, "%d GEMMs", two.gemms);
}

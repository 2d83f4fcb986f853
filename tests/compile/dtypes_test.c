/* dtypes_test.c - what an op takes is part of its contract: other dtypes are refused before a
 * kernel meets them, and the dtype of a weight's gradient belongs to the weight. */
#include "compile/compile.h"
#include "graph_run.h"
#include "ir/attention.h"
#include "ops.h"
#include "../test.h"
#include <string.h>

MX_TEST(every_op_says_which_dtypes_it_takes)
{
    for (int i = 0; i < mx_op_count; i++)
        MX_CHECK((mx_op_table[i]->dtypes != 0) == (mx_op_table[i]->kind != MX_SOURCE), "%s",
                 mx_op_table[i]->name);
}

/* Of every op and input, a dtype that it does not take. */
MX_TEST(an_input_of_another_dtype_is_refused)
{
    int refused = 0;
    for (int o = 0; o < mx_op_count; o++) {
        const mx_op *op = mx_op_table[o];
        const mx_case *c = op->cases;
        for (int i = 0; c && i < c->n_in; i++) {
            mx_dtypes takes = op->dtypes_at[i] ? op->dtypes_at[i] : op->dtypes;
            if (c->in[i].absent || takes == MX_ANY_DTYPE)
                continue;
            mx_dtype other = takes >> MX_U8 & 1 ? MX_BOOL : MX_U8;
            mx_graph g;
            mx_node *in[MX_MAX_IN] = {0};
            mx_graph_init(&g);
            for (int k = 0; k < c->n_in; k++) {
                mx_shape shape = {.ndim = c->in[k].ndim};
                memcpy(shape.dim, c->in[k].dim, sizeof shape.dim);
                mx_dtype d = k == i ? other : c->in[k].dtype;
                in[k] = c->in[k].absent ? NULL : mx_constant(&g, shape, d, 0);
            }
            int n_out = op->n_out < 0 ? c->n_out : op->n_out ? op->n_out : 1;
            mx_graph_root(&g, NULL, mx_apply_n(&g, op, c->attr, c->n_in, in, n_out));
            mx_status st = mx_graph_check(&g);
            MX_CHECK(st && strstr(mx_status_text(st), op->name), "%s takes %s as input %d: %s",
                     op->name, mx_dtype_name(other), i, mx_status_text(st));
            refused += st != MX_OK;
            mx_status_free(st);
            mx_graph_fini(&g);
        }
    }
    MX_CHECK(refused > 80, "%d inputs were tried", refused);
}

MX_TEST(inputs_that_must_agree_are_checked_when_kernels_will_run)
{
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    mx_node *q = mx_input(&g, "q", MX_SHAPE(1, 4, 2, 8), MX_F32);
    mx_node *k = mx_input(&g, "k", MX_SHAPE(1, 4, 2, 8), MX_BF16);
    mx_attention_attr a = {.causal = true, .scale = 1};
    mx_graph_root(&g, "y", mx_attention(&g, q, k, k, a, (mx_attention_extra){0}));
    MX_CHECK_OK(mx_graph_check(&g)); /* a cache may be narrower until the precision pass */
    MX_CHECK_ERROR(mx_program_init(&p, &g, 1, &mx_plain_traits),
                   "attention has bfloat16 as input 1 beside float32; they must be of one dtype");
    mx_graph_fini(&g);
}

/* --- the dtype of a weight's gradient --- */

/* As a collective or an adapter stands between a weight and its use. */
static void relay_grad(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    (void)g, (void)n;
    din[0] = dout[0];
}

static const mx_op relay = {.name = "relay", .doc = "its input", .dtypes = MX_ANY_DTYPE,
                            .kind = MX_VIEW, .dims = "*->*", .same_value = true,
                            .grad = relay_grad};

/* The dtype of the GEMM that makes a weight's gradient, with `relays` ops before its use. */
static mx_dtype gradient_dtype(bool relays, bool narrow)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_node *x = mx_input(&g, "x", MX_SHAPE(6, 8), MX_F32), *dw;
    mx_node *w = mx_param(&g, "w", MX_SHAPE(4, 8), NULL, MX_NORMAL(1)), *used = w;
    if (relays)
        used = MX_APPLY(&g, &relay, NULL, MX_APPLY(&g, &relay, NULL, w));
    mx_node *y = mx_matmul(&g, "*d,fd->*f", x, used);
    mx_node *loss = mx_graph_root(&g, "loss", mx_sum_all(&g, mx_mul(&g, y, y)));
    mx_pass_precision(&g, MX_BF16);
    mx_pass_grad_dtypes(&g, narrow ? MX_BF16 : MX_DTYPE_COUNT);
    mx_pass_autodiff(&g, loss, &w, 1, &dw);
    while (dw->op != &mx_op_matmul)
        dw = dw->in[0];
    mx_dtype d = dw->type.dtype;
    mx_graph_fini(&g);
    return d;
}

MX_TEST(the_dtype_of_a_gradient_belongs_to_the_weight)
{
    for (int relays = 0; relays < 2; relays++) {
        MX_CHECK(gradient_dtype(relays, false) == MX_F32, "%d relays", relays);
        MX_CHECK(gradient_dtype(relays, true) == MX_BF16, "%d relays", relays);
    }
}

/* Of experts' weights as of others. */
MX_TEST(the_gradient_of_experts_has_the_dtype_that_gradients_have)
{
    for (int narrow = 0; narrow < 2; narrow++) {
        mx_graph g;
        mx_graph_init(&g);
        mx_node *x = mx_input(&g, "x", MX_SHAPE(6, 8), MX_F32), *dw;
        mx_node *start = mx_input(&g, "start", MX_SHAPE(3), MX_I32);
        mx_node *w = mx_param(&g, "w", MX_SHAPE(2, 4, 8), NULL, MX_NORMAL(1));
        mx_node *y = mx_grouped_matmul(&g, x, w, start, false);
        mx_node *loss = mx_graph_root(&g, "loss", mx_sum_all(&g, mx_mul(&g, y, y)));
        mx_pass_precision(&g, MX_BF16);
        mx_pass_grad_dtypes(&g, narrow ? MX_BF16 : MX_DTYPE_COUNT);
        mx_pass_autodiff(&g, loss, &w, 1, &dw);
        while (dw->op != &mx_op_grouped_outer)
            dw = dw->in[0];
        MX_CHECK(dw->type.dtype == (narrow ? MX_BF16 : MX_F32), "%s with narrow=%d",
                 mx_dtype_name(dw->type.dtype), narrow);
        mx_graph_fini(&g);
    }
}

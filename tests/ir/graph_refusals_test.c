/* graph_refusals_test.c - what no kernel can do ends at the graph: sizes beyond any memory, dtypes
 * that are for storage, shares of a head that are none. */
#include "../test.h"

#include "compile/compile.h"
#include "nn/nn.h"
#include "ops.h"
#include "ops/load.h"
#include <math.h>
#include <string.h>

typedef void (*builder)(mx_graph *g, mx_node *x);

/* x (2, 4, 8) float32; building goes on after the first mistake. */
static void refused(builder make, const char *part)
{
    mx_graph g;
    mx_program p;
    mx_graph_init(&g);
    mx_node *x = mx_input(&g, "x", MX_SHAPE(2, 4, 8), MX_F32);
    make(&g, x);
    make(&g, x);
    MX_CHECK_ERROR(mx_graph_check(&g), part);
    MX_CHECK_ERROR(mx_compile_forward(&g, &(mx_compile_options){.n_threads = 1}, &p), part);
    mx_graph_fini(&g);
}

static void huge_weight(mx_graph *g, mx_node *x)
{
    (void)x;
    mx_param(g, "w", MX_SHAPE((int64_t)1 << 40, (int64_t)1 << 40), NULL, MX_ZEROS);
}

static void empty_weight(mx_graph *g, mx_node *x)
{
    mx_matmul(g, "*d,fd->*f", x, mx_param(g, "w", MX_SHAPE(0, 8), NULL, MX_ZEROS));
}

static void negative_table(mx_graph *g, mx_node *x)
{
    mx_mul(g, x, mx_table(g, MX_SHAPE(-8), MX_F32, (double[]){0}));
}

static void huge_repetition(mx_graph *g, mx_node *x)
{
    mx_shape s = MX_SHAPE((int64_t)1 << 30, (int64_t)1 << 30, 2, 4, 8);
    mx_node *y = mx_broadcast_to(g, x, s);
    mx_exp(g, mx_reshape(g, y, MX_SHAPE(y->type.dim[0], y->type.dim[1])));
}

static void negative_turn(mx_graph *g, mx_node *x)
{
    mx_rotate_half(g, x, INT64_MIN, false);
}

static void negative_part(mx_graph *g, mx_node *x)
{
    mx_split(g, x, 2, (int64_t[]){-8, 16});
}

static void no_experts(mx_graph *g, mx_node *x)
{
    (void)x;
    mx_sort_by_expert(g, mx_constant(g, MX_SHAPE(4, 2), MX_I32, 0), 0);
}

MX_TEST(graph_refuses_sizes_that_cannot_be)
{
    refused(huge_weight, "more than 2^46 elements");
    refused(empty_weight, "holds nothing");
    refused(negative_table, "a size is negative");
    refused(huge_repetition, "more than 2^46 elements");
    refused(negative_turn, "rotary dims");
    refused(negative_part, "a size is negative");
    refused(no_experts, "expected 1 or more");
}

static void half_product(mx_graph *g, mx_node *x)
{
    mx_node *w = mx_constant(g, MX_SHAPE(3, 8), MX_F16, 1);
    mx_matmul(g, "*d,fd->*f", mx_cast(g, x, MX_F16), w);
}

static void half_result(mx_graph *g, mx_node *x)
{
    mx_matmul_as(g, "*d,fd->*f", x, mx_constant(g, MX_SHAPE(3, 8), MX_F32, 1), MX_F16);
}

static void byte_attention(mx_graph *g, mx_node *x)
{
    mx_node *q = mx_cast(g, mx_reshape(g, x, MX_SHAPE(2, 4, 2, 4)), MX_F8_E4M3);
    mx_attention(g, q, q, q, (mx_attention_attr){.scale = 1}, (mx_attention_extra){0});
}

static void real_positions(mx_graph *g, mx_node *x)
{
    mx_node *q = mx_reshape(g, x, MX_SHAPE(2, 4, 2, 4));
    mx_node *at = mx_constant(g, MX_SHAPE(2, 4), MX_F32, 0);
    mx_attention(g, q, q, q, (mx_attention_attr){.scale = 1},
                 (mx_attention_extra){.q_pos = at, .k_pos = at});
}

static void half_labels(mx_graph *g, mx_node *x)
{
    mx_node *rows = mx_reshape(g, x, MX_SHAPE(8, 8));
    mx_node *labels = mx_constant(g, MX_SHAPE(8), MX_I64, 0);
    mx_linear_xent(g, rows, mx_constant(g, MX_SHAPE(3, 8), MX_F32, 1), labels, 1, 0, 0);
}

static void half_experts(mx_graph *g, mx_node *x)
{
    mx_node *rows = mx_cast(g, mx_reshape(g, x, MX_SHAPE(8, 8)), MX_F16);
    mx_node *start = mx_constant(g, MX_SHAPE(3), MX_I32, 0);
    mx_grouped_matmul(g, rows, mx_constant(g, MX_SHAPE(2, 3, 8), MX_F16, 1), start, false);
}

MX_TEST(graph_refuses_dtypes_that_kernels_do_not_read)
{
    refused(half_product, "is float16, expected float32, float64 or bfloat16");
    refused(half_result, "would be float16");
    refused(byte_attention, "is float8_e4m3fn, expected");
    refused(real_positions, "is float32, expected int32");
    refused(half_labels, "is int64, expected int32");
    refused(half_experts, "is float16, expected");
}

MX_TEST(compiling_in_a_dtype_that_is_not_computed_is_refused)
{
    const mx_dtype none[] = {MX_F16, MX_I32, MX_F8_E4M3};
    for (int i = 0; i < 3; i++) {
        mx_graph g;
        mx_program p;
        mx_graph_init(&g);
        mx_node *x = mx_input(&g, "x", MX_SHAPE(2, 8), MX_F32);
        mx_node *w = mx_param(&g, "w", MX_SHAPE(3, 8), NULL, MX_ONES);
        mx_graph_root(&g, "y", mx_matmul(&g, "*d,fd->*f", x, w));
        mx_compile_options o = {.n_threads = 1, .compute = none[i], .weights_fixed = true};
        MX_CHECK_ERROR(mx_compile_forward(&g, &o, &p), "nothing is computed in");
        mx_graph_fini(&g);
    }
}

MX_TEST(integers_take_the_nearest_number_they_have)
{
    const float in[] = {1e30f, -1e30f, NAN, -3.7f, 2147483648.f, -2147483648.f, INFINITY, 200};
    const int32_t want[] = {INT32_MAX, INT32_MIN, 0, -3, INT32_MAX, INT32_MIN, INT32_MAX, 200};
    int32_t out[8];
    uint8_t small[8];
    mx_store_run_f32(&(mx_tensor){out, {MX_I32, 1, {8}}}, 0, 8, in);
    MX_CHECK(memcmp(out, want, sizeof out) == 0, "%d %d %d %d", out[0], out[1], out[2], out[3]);
    mx_store_run_f32(&(mx_tensor){small, {MX_U8, 1, {8}}}, 0, 8, in);
    MX_CHECK(small[0] == 255 && small[1] == 0 && small[2] == 0 && small[7] == 200);
}

MX_TEST(rope_refuses_shares_beyond_a_head)
{
    const double shares[] = {1.5, 1e308, -1, -1e308};
    for (int i = 0; i < 4; i++) {
        mx_graph g;
        mx_graph_init(&g);
        mx_build b = {.batch = 1, .seq = 4};
        mx_rope r = {.type = "default", .theta = 10000, .factor = 1, .partial = shares[i]};
        mx_rope_table t = mx_rope_tables(&g, &b, &r, 8, false);
        mx_rope_apply(&g, mx_input(&g, "x", MX_SHAPE(1, 4, 2, 8), MX_F32), &t);
        MX_CHECK_ERROR(mx_graph_check(&g), "rope: a share of");
        mx_graph_fini(&g);
    }
}

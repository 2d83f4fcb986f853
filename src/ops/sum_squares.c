/* sum_squares.c - the sum of the squares of all elements, for gradient norms.
 *
 * Blocks of BLOCK elements are summed in double, block by block, and the block sums are added in
 * order: the blocks do not depend on the number of threads, so neither does the result. The result
 * is float32 (float64 for float64, and where it is one part of a larger sum: `wide`). It has no
 * gradient: nothing is trained through a norm.
 */
#include "ops.h"
#include "ops/cpu/lane_sum.h"
#include "ops/gpu_work.h"
#include "ops/load.h"

enum { BLOCK = 8192, TILE = 1024 };

typedef struct {
    bool wide;
} squares_attr;

static void infer(mx_graph *g, mx_node *n)
{
    (void)g;
    bool wide = n->type.dtype == MX_F64 || ((const squares_attr *)n->attr)->wide;
    n->type.dtype = wide ? MX_F64 : MX_F32;
}

MX_LANE_SUM(float, squares_f32, v * v)
MX_LANE_SUM(double, squares_f64, v * v)

static double block_sum(const mx_tensor *x, int64_t from, int64_t n)
{
    if (x->type.dtype == MX_F64)
        return squares_f64((const double *)x->data + from, n);
    if (x->type.dtype == MX_F32)
        return squares_f32((const float *)x->data + from, n);
    double total = 0;
    float tile[TILE];
    for (int64_t i = 0; i < n; i += TILE) {
        int64_t m = n - i < TILE ? n - i : TILE;
        mx_load_run_f32(x, from + i, m, tile);
        total += squares_f32(tile, m);
    }
    return total;
}

static void sum_squares_cpu(const mx_call *c)
{
    int64_t n = mx_type_count(&c->in[0].type), blocks = (n + BLOCK - 1) / BLOCK;
    double *part = c->work, total = 0;
#pragma omp parallel for schedule(static) if (blocks > 4)
    for (int64_t b = 0; b < blocks; b++)
        part[b] = block_sum(&c->in[0], b * BLOCK, n - b * BLOCK < BLOCK ? n - b * BLOCK : BLOCK);
    for (int64_t b = 0; b < blocks; b++)
        total += part[b];
    mx_store_f64(&c->out[0], 0, total);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    (void)n_threads;
    return sizeof(double) * (size_t)((mx_type_count(&n->in[0]->type) + BLOCK - 1) / BLOCK);
}

mx_node *mx_sum_squares(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_sum_squares, &(squares_attr){0}, x);
}

mx_node *mx_sum_squares_wide(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_sum_squares, &(squares_attr){true}, x);
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.flops = 2 * (double)mx_type_count(&n->in[0]->type)};
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    (void)most;
    return mx_gpu_squares_bytes(mx_type_count(&n->in[0]->type));
}

const mx_op mx_op_sum_squares = {
    .name = "sum_squares",
    .doc = "sum of the squares of all elements",
    .dtypes = MX_REALS,
    .dims = "*->",
    .attr_size = sizeof(squares_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(squares_attr, MX_ATTR_BOOL, wide), {0}},
    .keep_f32 = true,
    .no_cast = true,
    .infer = infer,
    .cost = cost,
    .cpu = sum_squares_cpu,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .gpu_work_adds = true,
    .cases = (const mx_case[]){{1, {{3, {2, 3, 7}, .no_grad = true}}, &(squares_attr){0}},
                               {1, {{2, {130, 70}, .no_grad = true}}, &(squares_attr){0}},
                               {1, {{0, {0}, .no_grad = true}}, &(squares_attr){0}}, {0}},
};

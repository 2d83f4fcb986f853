/* scaled_matmul.c - y = a b^T of quantized operands (quantize.h), and the matmuls of its gradient.
 *
 *     a (*, k)  sa   b (n, k)  sb  ->  y (*, n)
 *     y_mn = sum over blocks of k: sa sb (sum of a_mk b_nk)
 * Both are 8 bits wide with the summed dim last. Products of 8-bit numbers are exact in bfloat16's
 * float32 sums; sums of int8 are exact altogether. This is the emulation that devices with 8-bit
 * matrix units are compared with: scales are applied after the sum of a block of k, as there.
 *
 * Gradient, by the node's recipe: dx = dy w and dw = dy^T x, each quantized or in high precision. A
 * factor with one scale, and a weight in square blocks, is the forward pass's own, transposed;
 * others are quantized again from x and w, along the other dim.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/cpu/gemm.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"
#include "ops/load.h"
#include "ops/matmul.h"

#include <string.h>

enum { MX_INPUTS_SCALED_MATMUL };

typedef struct {
    mx_dtype out;
    bool fast;              /* a unit may keep sums in less than float32 */
    mx_quant_recipe recipe; /* of the gradient */
} scaled_attr;

enum { COLUMNS = 2048 }; /* of y at a time */
enum { EXACT = 1024 };   /* terms of int8 whose sum float32 holds */

/* One factor as a matrix (rows, k), and its scales. */
typedef struct {
    int64_t rows, k, block_rows, block_k, grid_k;
    const float *scale;
    const mx_tensor *q;
} factor;

/* The size of the grid tells the blocks: one for all, one for each row, or 128. */
static factor factor_of(const mx_tensor *q, const mx_tensor *scale)
{
    const mx_type *t = &q->type;
    factor f = {.k = t->dim[t->ndim - 1], .q = q, .scale = scale->data,
                .grid_k = scale->type.dim[1]};
    f.rows = mx_dims_before(t, t->ndim - 1);
    int64_t grid = scale->type.dim[0];
    f.block_rows = grid == 1 ? f.rows : grid == f.rows ? 1 : MX_QUANT_BLOCK;
    f.block_k = f.grid_k == 1 ? f.k : MX_QUANT_BLOCK;
    return f;
}

static float scale_at(const factor *f, int64_t row, int64_t k)
{
    return f->scale[row / f->block_rows * f->grid_k + k / f->block_k];
}

/* q as bfloat16, which holds every number of the three formats. */
static void widen(const mx_tensor *q, uint16_t *out)
{
    uint16_t value[256];
    uint8_t code[256];
    float decoded[256];
    for (int i = 0; i < 256; i++)
        code[i] = (uint8_t)i;
    mx_tensor table = {.data = code, .type = {q->type.dtype, 1, {256}}};
    mx_load_run_f32(&table, 0, 256, decoded);
    mx_store_run_f32(&(mx_tensor){.data = value, .type = {MX_BF16, 1, {256}}}, 0, 256, decoded);
    const uint8_t *x = q->data;
    int64_t n = mx_type_count(&q->type);
#pragma omp parallel for schedule(static) if (n > 1 << 15)
    for (int64_t i = 0; i < n; i++)
        out[i] = value[x[i]];
}

typedef struct {
    factor a, b;
    uint16_t *wide_a, *wide_b;
    float *part, *sum; /* (a.rows, COLUMNS): of a block of k; of all so far */
    bool whole;        /* numbers are integers */
} job;

/* part = a b^T over [k0, k0 + n_k), for columns [n0, n0 + n). */
static void multiply(const job *j, int64_t n0, int64_t n, int64_t k0, int64_t n_k)
{
    mx_gemm(&(mx_gemm_args){.m = j->a.rows, .n = n, .k = n_k, .alpha = 1, .a = j->wide_a + k0,
                            .b = j->wide_b + n0 * j->b.k + k0, .c = j->part, .lda = j->a.k,
                            .ldb = j->b.k, .ldc = n, .trans_b = true, .a_type = MX_NUM_BF16,
                            .b_type = MX_NUM_BF16, .c_type = MX_NUM_F32});
}

/* sum += part, times the scales where they change along k. Sums of integers stay integers. */
static void add_up(const job *j, int64_t n0, int64_t n, int64_t k0, bool scaled)
{
#pragma omp parallel for schedule(static) if (j->a.rows * n > 1 << 15)
    for (int64_t m = 0; m < j->a.rows; m++) {
        float *sum = j->sum + m * n, *part = j->part + m * n;
        float sa = scaled ? scale_at(&j->a, m, k0) : 1;
        for (int64_t i = 0; i < n; i++) {
            if (!scaled)
                ((int32_t *)sum)[i] += (int32_t)part[i];
            else
                sum[i] += part[i] * (sa * scale_at(&j->b, n0 + i, k0));
        }
    }
}

/* y = sum, scaled where that has not been done yet. */
static void finish(const job *j, const mx_tensor *y, int64_t n0, int64_t n, int n_parts)
{
    bool blocks = j->a.grid_k > 1 || j->b.grid_k > 1;
#pragma omp parallel for schedule(static) if (j->a.rows * n > 1 << 15)
    for (int64_t m = 0; m < j->a.rows; m++) {
        float *row = (n_parts > 1 || blocks ? j->sum : j->part) + m * n;
        float sa = scale_at(&j->a, m, 0);
        for (int64_t i = 0; i < n && !blocks; i++) {
            float v = n_parts > 1 ? (float)((const int32_t *)row)[i] : row[i];
            row[i] = v * (sa * scale_at(&j->b, n0 + i, 0));
        }
        mx_store_run_f32(y, m * j->b.rows + n0, n, row);
    }
}

static size_t padded(int64_t n, size_t item)
{
    return ((size_t)n * item + 63) / 64 * 64;
}

static void scaled_cpu(const mx_call *c)
{
    job j = {factor_of(&c->in[SCALED_A], &c->in[SCALED_SA]),
             factor_of(&c->in[SCALED_B], &c->in[SCALED_SB]),
             .whole = c->in[SCALED_A].type.dtype == MX_I8};
    int64_t wide = j.b.rows < COLUMNS ? j.b.rows : COLUMNS;
    char *at = c->work;
    j.wide_a = (uint16_t *)at;
    j.wide_b = (uint16_t *)(at += padded(j.a.rows * j.a.k, 2));
    j.part = (float *)(at += padded(j.b.rows * j.b.k, 2));
    j.sum = (float *)(at + padded(j.a.rows * wide, 4));
    widen(&c->in[SCALED_A], j.wide_a);
    widen(&c->in[SCALED_B], j.wide_b);
    bool blocks = j.a.grid_k > 1 || j.b.grid_k > 1;
    int64_t step = blocks ? MX_QUANT_BLOCK : j.whole ? EXACT : j.a.k;
    for (int64_t n0 = 0, n; n0 < j.b.rows; n0 += n) {
        n = j.b.rows - n0 < COLUMNS ? j.b.rows - n0 : COLUMNS;
        int n_parts = 0;
        memset(j.sum, 0, sizeof(float) * (size_t)(j.a.rows * n));
        for (int64_t k = 0; k < j.a.k; k += step, n_parts++) {
            multiply(&j, n0, n, k, j.a.k - k < step ? j.a.k - k : step);
            if (blocks || step < j.a.k)
                add_up(&j, n0, n, k, blocks);
        }
        finish(&j, &c->out[0], n0, n, step < j.a.k ? 2 : 1);
    }
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    (void)n_threads;
    const mx_type *a = &n->in[SCALED_A]->type, *b = &n->in[SCALED_B]->type;
    int64_t rows = mx_dims_before(a, a->ndim - 1);
    int64_t wide = b->dim[0] < COLUMNS ? b->dim[0] : COLUMNS;
    return padded(mx_type_count(a), 2) + padded(mx_type_count(b), 2) + 2 * padded(rows * wide, 4);
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    (void)most;
    const mx_type *a = &n->in[SCALED_A]->type, *sa = &n->in[SCALED_SA]->type,
                  *sb = &n->in[SCALED_SB]->type;
    return mx_gpu_scaled_bytes(mx_dims_before(a, a->ndim - 1), n->in[SCALED_B]->type.dim[0],
                               n->in[SCALED_B]->type.dim[1],
                               sa->dim[1] > sb->dim[1] ? sa->dim[1] : sb->dim[1],
                               a->dtype == MX_I8);
}

static bool fits(const mx_type *q, const mx_type *scale)
{
    int64_t rows = mx_dims_before(q, q->ndim - 1), k = q->dim[q->ndim - 1];
    int64_t tall = (rows + MX_QUANT_BLOCK - 1) / MX_QUANT_BLOCK;
    int64_t wide = (k + MX_QUANT_BLOCK - 1) / MX_QUANT_BLOCK;
    return scale->dtype == MX_F32 && scale->ndim == 2 &&
           (scale->dim[0] == 1 || scale->dim[0] == rows || scale->dim[0] == tall) &&
           (scale->dim[1] == 1 || scale->dim[1] == wide);
}

static bool is_8_bit(mx_dtype d)
{
    return d == MX_I8 || d == MX_F8_E4M3 || d == MX_F8_E5M2;
}

static void infer(mx_graph *g, mx_node *n)
{
    const mx_type *a = &n->in[SCALED_A]->type, *b = &n->in[SCALED_B]->type;
    if (!is_8_bit(a->dtype) || !is_8_bit(b->dtype) ||
        (a->dtype == MX_I8) != (b->dtype == MX_I8))
        mx_graph_fail_inputs(g, n, "expected two int8 tensors, or two of float8");
    else if (b->ndim != 2 || a->ndim < 1 || a->dim[a->ndim - 1] != b->dim[1])
        mx_graph_fail_inputs(g, n, "expected (*, k) and (n, k)");
    else if (!fits(a, &n->in[SCALED_SA]->type) || !fits(b, &n->in[SCALED_SB]->type))
        mx_graph_fail_inputs(g, n, "expected scales for all, for each row or for blocks of %d",
                             MX_QUANT_BLOCK);
    n->type = *a;
    n->type.dtype = ((const scaled_attr *)n->attr)->out;
    if (b->ndim == 2 && a->ndim)
        n->type.dim[a->ndim - 1] = b->dim[0];
}

static mx_cost cost(const mx_node *n)
{
    const mx_type *a = &n->in[SCALED_A]->type;
    return (mx_cost){.flops =
                         2.0 * (double)mx_type_count(a) * (double)n->in[SCALED_B]->type.dim[0]};
}

/* recipe: of the gradient; NULL where there will be none. Sums of gradients keep all their bits. */
mx_node *mx_scaled_matmul(mx_graph *g, mx_quantized a, mx_quantized b, mx_dtype out,
                          const mx_quant_recipe *recipe)
{
    scaled_attr at = {.out = out};
    at.fast = recipe != NULL;
    if (recipe)
        at.recipe = *recipe;
    return MX_APPLY(g, &mx_op_scaled_matmul, &at, a.q, a.scale, b.q, b.scale);
}

/* The quantize node that a factor comes from; is the factor its transpose? */
static mx_node *origin(mx_node *q, bool *transposed)
{
    *transposed = q->op == &mx_op_output;
    q = *transposed ? q->in[0] : q;
    MX_ASSERT(q->op == &mx_op_quantize, "%s", q->op->name);
    return q;
}

/* What both gradients are made of. */
typedef struct {
    const mx_quant_recipe *recipe;
    mx_node *dy, *qdy; /* qdy: as the input's gradient has quantized it */
    mx_node *x, *qx, *w, *qw;
    bool transposed; /* w is stored (in, out) */
} backward;

static mx_quant_operand operand_of(const backward *b, mx_granularity grain, const char *role)
{
    bool grad = *role == 'g';
    return (mx_quant_operand){.recipe = b->recipe, .grain = grain, .role = role, .of = b->w,
                              .dtype = grad ? b->recipe->grad : b->recipe->value,
                              .stochastic = grad && b->recipe->stochastic, .training = true};
}

static mx_node *input_gradient(mx_graph *g, backward *b)
{
    mx_granularity grain = b->recipe->dgrad;
    if (grain == MX_GRANULARITY_HIGH)
        return mx_matmul_as(g, b->transposed ? "*f,df->*d" : "*f,fd->*d",
                            mx_cast(g, b->dy, b->w->type.dtype), b->w, b->x->type.dtype);
    mx_quant_operand dy = operand_of(b, grain, "grad"), w = operand_of(b, grain, "weight");
    w.weight = true;
    w.over_rows = !b->transposed;
    w.made = b->recipe->forward == grain ? b->qw : NULL;
    mx_quantized q = mx_quant_operand_make(g, b->dy, &dy);
    b->qdy = q.q;
    return mx_scaled_matmul(g, q, mx_quant_operand_make(g, b->w, &w), b->x->type.dtype, NULL);
}

static mx_node *weight_gradient(mx_graph *g, const backward *b)
{
    mx_granularity grain = b->recipe->wgrad;
    mx_dtype out = mx_node_grad_dtype(b->w);
    if (grain == MX_GRANULARITY_HIGH)
        return mx_matmul_as(g, "*f,*d->fd", b->dy, b->x, out);
    mx_quant_operand dy = operand_of(b, grain, "grad"), x = operand_of(b, grain, "input");
    dy.over_rows = x.over_rows = true;
    dy.made = b->recipe->dgrad == grain ? b->qdy : NULL;
    x.made = b->recipe->forward == grain ? b->qx : NULL;
    return mx_scaled_matmul(g, mx_quant_operand_make(g, b->dy, &dy),
                            mx_quant_operand_make(g, b->x, &x), out, NULL);
}

static void scaled_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    bool transposed;
    backward b = {.recipe = &((const scaled_attr *)n->attr)->recipe,
                  .qx = origin(n->in[SCALED_A], &transposed),
                  .qw = origin(n->in[SCALED_B], &transposed)};
    b.transposed = transposed;
    b.x = b.qx->in[0];
    b.w = b.qw->in[0];
    b.dy = mx_cast(g, dout[0], b.x->type.dtype);
    din[SCALED_A] = input_gradient(g, &b);
    din[SCALED_B] = weight_gradient(g, &b);
}

#define Q(d, ...) {__VA_ARGS__, .dtype = d, .lo = -9, .hi = 9, .no_grad = true, .fixed = true}
#define S(rows, cols) {2, {rows, cols}, .lo = 0.1, .hi = 2, .no_grad = true, .fixed = true}
#define OUT &(scaled_attr){.out = MX_F32}
/* Hopper's units align the products of float8 to the largest and keep 13 bits after its point. */
#define WIDE OUT, .on_device = 0x1p-10
const mx_op mx_op_scaled_matmul = {
    .name = "scaled_matmul",
    .doc = "matmul of 8-bit numbers with scales",
    .attr_size = sizeof(scaled_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(scaled_attr, MX_ATTR_DTYPE, out),
                                      MX_FIELD(scaled_attr, MX_ATTR_BOOL, fast), {0}},
    .dtypes = MX_CODES,
    .dtypes_at = {[SCALED_SA] = MX_F32_ONLY, [SCALED_SB] = MX_F32_ONLY},
    .gives = MX_REALS,
    .no_cast = true,
    .infer = infer,
    .grad = scaled_vjp,
    .cost = cost,
    .cpu = scaled_cpu,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){
        {4, {Q(MX_F8_E4M3, 3, {2, 8, 16}), S(1, 1), Q(MX_F8_E4M3, 2, {32, 16}), S(1, 1)}, WIDE},
        {4, {Q(MX_F8_E5M2, 2, {16, 32}), S(16, 1), Q(MX_F8_E4M3, 2, {48, 32}), S(48, 1)}, WIDE},
        {4, {Q(MX_F8_E4M3, 2, {48, 272}), S(48, 3), Q(MX_F8_E4M3, 2, {144, 272}), S(2, 3)}, WIDE},
        {4, {Q(MX_F8_E4M3, 2, {32, 256}), S(32, 2), Q(MX_F8_E4M3, 2, {144, 256}), S(144, 2)}, WIDE},
        {4, {Q(MX_I8, 2, {16, 2064}), S(16, 1), Q(MX_I8, 2, {32, 2064}), S(32, 1)}, OUT},
        {4, {Q(MX_I8, 2, {16, 64}), S(1, 1), Q(MX_I8, 2, {32, 64}), S(1, 1)}, OUT}, {0}},
};

/* dequantize.c - a quantized weight, dequantized: w (*, k) of the dtype of the attribute.
 *
 *     codes (*, k) int8 or E4M3     scale (rows, 1) float32, a scale a row
 *     codes (*, k / 2) uint8: NF4 (ops/cpu/nf4.h), blocks of 64 over all elements
 *         absmax (blocks) float32
 *         absmax (blocks) uint8, nested (blocks / 256) float32, offset (), map (256) float32
 * The matmul of a frozen weight (compile/quantize_frozen.h) and its gradient read the dequantized
 * numbers, which are made again for each pass rather than kept (remat.c). No gradient.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/cpu/dequant.h"
#include "ops/cpu/nf4.h"
#include "ops/inputs.h"
#include "ops/load.h"

enum { MX_INPUTS_DEQUANTIZE };

typedef struct {
    mx_dtype dtype;
} dequantize_attr;

enum { AT_ONCE = 16 }; /* blocks */

static void rows_cpu(const mx_call *c)
{
    const mx_type *t = &c->out[0].type;
    int64_t k = t->dim[t->ndim - 1], rows = mx_dims_before(t, t->ndim - 1);
    mx_codes w = {.kind = c->in[CODES].type.dtype == MX_I8 ? MX_CODES_INT8 : MX_CODES_FP8,
                  .codes = c->in[CODES].data, .scale = c->in[CODES_SCALE].data, .n = rows, .k = k,
                  .group = k};
    enum { PIECE = 1024 };
#pragma omp parallel for schedule(static) if (rows * k > 1 << 15)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t at = 0; at < k; at += PIECE) {
            float run[PIECE];
            int64_t n = k - at < PIECE ? k - at : PIECE;
            mx_codes some = w;
            some.codes += r * k + at;
            some.scale += r;
            some.k = some.group = n;
            mx_dequant_row(&some, 0, true, run);
            mx_store_run_f32(&c->out[0], r * k + at, n, run);
        }
}

static void nf4_cpu(const mx_call *c)
{
    const mx_tensor *in = c->in;
    bool nested = in[CODES_SCALE].type.dtype == MX_U8;
    mx_nf4 w = {.codes = in[CODES].data,
                .n = mx_type_count(&c->out[0].type),
                .absmax = nested ? NULL : in[CODES_SCALE].data,
                .absmax_codes = in[CODES_SCALE].data};
    if (nested) {
        w.nested = in[CODES_NESTED].data;
        w.offset = *(const float *)in[CODES_OFFSET].data;
        w.map = in[CODES_MAP].data;
    }
    int64_t blocks = mx_nf4_blocks(w.n);
#pragma omp parallel for schedule(static) if (w.n > 1 << 15)
    for (int64_t b = 0; b < blocks; b += AT_ONCE) {
        float run[AT_ONCE * MX_NF4_BLOCK];
        int64_t some = blocks - b < AT_ONCE ? blocks - b : AT_ONCE, at = b * MX_NF4_BLOCK;
        int64_t n = some * MX_NF4_BLOCK;
        mx_nf4_decode(&w, b, some, run);
        mx_store_run_f32(&c->out[0], at, w.n - at < n ? w.n - at : n, run);
    }
}

static void dequantize_cpu(const mx_call *c)
{
    (c->in[CODES].type.dtype == MX_U8 ? nf4_cpu : rows_cpu)(c);
}

/* Do the scales fit a weight of this type? */
static bool fits(const mx_node *n, const mx_type *w)
{
    const mx_type *s = &n->in[CODES_SCALE]->type;
    int64_t blocks = mx_nf4_blocks(mx_type_count(w));
    if (n->in[CODES]->type.dtype != MX_U8)
        return n->n_in == 2 && s->dtype == MX_F32 &&
               mx_type_count(s) == mx_dims_before(w, w->ndim - 1);
    if (mx_type_count(s) != blocks || n->n_in != (s->dtype == MX_U8 ? 5 : 2))
        return false;
    return n->n_in == 2 || (mx_type_count(&n->in[CODES_NESTED]->type) == mx_nf4_nests(blocks) &&
                            mx_type_count(&n->in[CODES_OFFSET]->type) == 1 &&
                            mx_type_count(&n->in[CODES_MAP]->type) == MX_NF4_CODES);
}

static void infer(mx_graph *g, mx_node *n)
{
    mx_type w = n->in[CODES]->type;
    w.dtype = ((const dequantize_attr *)n->attr)->dtype;
    if (w.ndim && n->in[CODES]->type.dtype == MX_U8)
        w.dim[w.ndim - 1] *= 2;
    if (w.ndim < 1 || !fits(n, &w))
        mx_graph_fail_inputs(g, n, "expected codes (*, k) with a scale a row, or NF4 (*, k / 2) "
                             "with the absmax of blocks of 64");
    n->type = w;
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.bytes = (double)mx_type_bytes(&n->in[CODES]->type) +
                              (double)mx_type_bytes(&n->in[CODES_SCALE]->type) +
                              (double)mx_type_bytes(&n->type)};
}

/* in: codes and what scales them, n_in of them as above. */
mx_node *mx_dequantize(mx_graph *g, int n_in, mx_node *const *in, mx_dtype dtype)
{
    return mx_apply_n(g, &mx_op_dequantize, &(dequantize_attr){dtype}, n_in, in, 1);
}

#define F32(...) {__VA_ARGS__, .no_grad = true, .fixed = true}
#define NF4(...) {__VA_ARGS__, MX_U8, 0, 256}
const mx_op mx_op_dequantize = {
    .name = "dequantize",
    .doc = "a weight of 8 or 4 bits as numbers",
    .dtypes = MX_F32_ONLY,
    .dtypes_at = {1u << MX_I8 | 1u << MX_U8 | 1u << MX_F8_E4M3, MX_F32_ONLY | 1u << MX_U8},
    .gives = MX_REALS,
    .attr_size = sizeof(dequantize_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(dequantize_attr, MX_ATTR_DTYPE, dtype), {0}},
    .no_cast = true,
    .infer = infer,
    .cost = cost,
    .cpu = dequantize_cpu,
    .cases = (const mx_case[]){
        {2, {{2, {20, 96}, MX_I8, -127, 128}, F32(2, {20, 1})}, &(dequantize_attr){MX_F32}},
        {2, {{2, {70, 1040}, MX_I8, -127, 128}, F32(2, {70, 1})}, &(dequantize_attr){MX_F32}},
        {2, {{3, {2, 5, 48}, MX_F8_E4M3, -3, 3, .no_grad = true, .fixed = true},
             F32(2, {10, 1})}, &(dequantize_attr){MX_F32}},
        {2, {NF4(2, {16, 16}), F32(1, {8})}, &(dequantize_attr){MX_F32}},
        {2, {NF4(2, {5, 7}), F32(1, {2})}, &(dequantize_attr){MX_F32}},
        {5, {NF4(3, {3, 32, 200}), NF4(1, {600}), F32(1, {3}), F32(0, {0}), F32(1, {256})},
         &(dequantize_attr){MX_F32}},
        {5, {NF4(2, {12, 9}), NF4(1, {4}), F32(1, {1}), F32(0, {0}), F32(1, {256})},
         &(dequantize_attr){MX_F32}}, {0}},
};

/* embed_grad.c - the gradient of embed: rows of dy added into the rows of a table.
 *
 *     ids (*) int32   dy (*, d)   base (v, d)  ->  (v, d)
 * The table starts as zeros, in float32 (float64 for float64), or as `base`, in whose memory the
 * result then lies: a tied head's gradient takes in the embedding's without another table.
 * Threads split the columns, not the ids: an element's sum then always runs in the order of the
 * ids, so the result does not depend on the number of threads, nothing is locked and no workspace
 * is needed. Ids outside the table are left out, as in embed.
 *
 * With `parts`, ids are sorted and `start` (v parts + 1) says where those of each part of every row
 * begin: each part is summed separately, and then the parts, in order (see grouped_outer.c).
 */
#include "base/simd.h"
#include "base/vmath.h"
#include "ops.h"
#include "ops/copy.h"
#include "ops/gpu_work.h"
#include "ops/grouped.h"
#include "ops/inputs.h"
#include "ops/load.h"

enum { MX_INPUTS_EMBED_GRAD };

typedef struct {
    int64_t rows;
    int64_t parts; /* of a row's ids; 0: one */
} embed_grad_attr;

enum { COLS = 256, LINE = 16 };

static void infer(mx_graph *g, mx_node *n)
{
    const embed_grad_attr *at = n->attr;
    n->type.dim[0] = at->rows;
    if (at->parts)
        mx_grouped_check(g, n, at->rows * at->parts, n->in[EMBED_GRAD_START]);
    mx_dtype sum = n->in[EMBED_GRAD_DY]->type.dtype == MX_F64 ? MX_F64 : MX_F32;
    n->type.dtype = n->in[EMBED_GRAD_BASE] ? n->in[EMBED_GRAD_BASE]->type.dtype : sum;
}

#define ADD_ROW(T, name)                                                                           \
    static MX_CLONES void name(T *restrict out, const T *restrict x, int64_t n)                    \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++)                                                            \
            out[i] += x[i];                                                                        \
    }
ADD_ROW(float, add_f32)
ADD_ROW(double, add_f64)

/* Columns [from, from + n) of row `to` += those of dy's rows from `first` to `last`, which are
 * summed separately. */
static void add_part(const mx_call *c, int64_t to, int64_t first, int64_t last, int64_t from,
                     int64_t n)
{
    const mx_tensor *dy = &c->in[EMBED_GRAD_DY], *out = &c->out[0];
    int64_t d = out->type.dim[1];
    if (out->type.dtype == MX_F64) {
        double sum[COLS] = {0};
        for (int64_t i = first; i < last; i++)
            add_f64(sum, (const double *)dy->data + i * d + from, n);
        add_f64((double *)out->data + to * d + from, sum, n);
        return;
    }
    float tile[COLS], sum[COLS] = {0};
    for (int64_t i = first; i < last; i++) {
        mx_load_run_f32(dy, i * d + from, n, tile);
        add_f32(sum, tile, n);
    }
    add_f32((float *)out->data + to * d + from, sum, n);
}

/* Columns [from, from + n) of every id, in order; n <= COLS. */
static void add_columns(const mx_call *c, int64_t from, int64_t n, const int32_t *start)
{
    const embed_grad_attr *at = c->attr;
    const int32_t *id = c->in[EMBED_GRAD_IDS].data;
    const mx_tensor *dy = &c->in[EMBED_GRAD_DY], *out = &c->out[0];
    int64_t n_ids = mx_type_count(&c->in[EMBED_GRAD_IDS].type), rows = out->type.dim[0],
            d = out->type.dim[1];
    if (start) {
        for (int64_t i = 0; i < rows * at->parts; i++)
            add_part(c, i / at->parts, start[i], start[i + 1], from, n);
        return;
    }
    for (int64_t i = 0; i < n_ids; i++) {
        if (id[i] < 0 || id[i] >= rows)
            continue;
        int64_t to = id[i] * d + from;
        if (out->type.dtype == MX_F64) {
            add_f64((double *)out->data + to, (const double *)dy->data + i * d + from, n);
        } else if (dy->type.dtype == MX_F32 && out->type.dtype == MX_F32) {
            add_f32((float *)out->data + to, (const float *)dy->data + i * d + from, n);
        } else {
            float tile[COLS], sum[COLS];
            mx_load_run_f32(dy, i * d + from, n, tile);
            mx_load_run_f32(out, to, n, sum);
            add_f32(sum, tile, n);
            mx_store_run_f32(out, to, n, sum);
        }
    }
}

static void embed_grad_cpu(const mx_call *c)
{
    const mx_type *t = &c->out[0].type;
    int64_t d = t->dim[1], n_ids = mx_type_count(&c->in[EMBED_GRAD_IDS].type);
    int64_t parts = ((const embed_grad_attr *)c->attr)->parts;
    int32_t *start = parts ? c->work : NULL;
    if (start)
        mx_grouped_starts(c->in[EMBED_GRAD_START].data, t->dim[0] * parts, n_ids, start);
    if (!c->in[EMBED_GRAD_BASE].data)
        mx_zero_runs(c->out[0].data, 0, mx_type_bytes(t), 1);
    /* Narrow enough for every thread to have a share, whole cache lines, at most COLS. */
    int64_t width = (d / 16 + LINE - 1) / LINE * LINE;
    width = width < LINE ? LINE : width > COLS ? COLS : width;
#pragma omp parallel for schedule(static) if (n_ids * d > 1 << 14)
    for (int64_t from = 0; from < d; from += width)
        add_columns(c, from, d - from < width ? d - from : width, start);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    const embed_grad_attr *at = n->attr;
    (void)n_threads;
    return at->parts ? sizeof(int32_t) * (size_t)(at->rows * at->parts + 1) : 0;
}

mx_node *mx_embed_grad(mx_graph *g, mx_node *ids, mx_node *dy, int64_t rows)
{
    return MX_APPLY(g, &mx_op_embed_grad, (&(embed_grad_attr){rows, 0}), ids, dy, NULL);
}

mx_node *mx_embed_grad_parts(mx_graph *g, const mx_node *n, mx_node *start, int64_t parts)
{
    embed_grad_attr at = {((const embed_grad_attr *)n->attr)->rows, parts};
    return MX_APPLY(g, &mx_op_embed_grad, &at, n->in[EMBED_GRAD_IDS], n->in[EMBED_GRAD_DY], NULL,
                    start);
}

mx_node *mx_embed_grad_onto(mx_graph *g, mx_node *base, const mx_node *grad)
{
    if (grad->op != &mx_op_embed_grad || grad->in[EMBED_GRAD_BASE] ||
        ((const embed_grad_attr *)grad->attr)->parts || base->op->kind == MX_SOURCE ||
        grad->in[EMBED_GRAD_IDS]->type.ndim > 3 || !mx_shape_equal(&base->type, &grad->type) ||
        base->type.dtype != grad->type.dtype)
        return NULL;
    return MX_APPLY(g, &mx_op_embed_grad, grad->attr, grad->in[EMBED_GRAD_IDS],
                    grad->in[EMBED_GRAD_DY], base);
}

/* Halves of the ids leave parts of a sum, and a base must be in it once: then ids stay whole. */
static const char *notation(const mx_node *n)
{
    static const char *const whole[] = {"*,*d,!vd->!vd", "!s,!sd,!vd->!vd", "!b!s,!b!sd,!vd->!vd",
                                        "!a!b!s,!a!b!sd,!vd->!vd"};
    int rank = n->in[EMBED_GRAD_IDS]->type.ndim;
    if (((const embed_grad_attr *)n->attr)->parts)
        return "!n,!nd,!vd,!s->!vd";
    return whole[n->in[EMBED_GRAD_BASE] && rank < 4 ? rank : 0];
}

static void embed_grad_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[EMBED_GRAD_DY] =
        mx_embed(g, mx_cast(g, dout[0], n->in[EMBED_GRAD_DY]->type.dtype), n->in[EMBED_GRAD_IDS]);
    din[EMBED_GRAD_BASE] = dout[0];
}

static mx_cost cost(const mx_node *n)
{
    double moved = (double)mx_type_count(&n->in[EMBED_GRAD_DY]->type);
    return (mx_cost){moved, (double)mx_type_bytes(&n->in[EMBED_GRAD_IDS]->type) +
                                (double)mx_type_bytes(&n->in[EMBED_GRAD_DY]->type) +
                                (double)mx_type_bytes(&n->type) +
                                2 * moved * (double)mx_dtype_bytes(n->type.dtype)};
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    (void)most;
    return mx_gpu_embed_bytes(mx_type_count(&n->in[EMBED_GRAD_IDS]->type));
}

const mx_op mx_op_embed_grad = {
    .name = "embed_grad",
    .doc = "rows added into a table by number",
    .dtypes = MX_REALS,
    .dtypes_at = {[EMBED_GRAD_IDS] = MX_INDICES, [EMBED_GRAD_START] = MX_INDICES},
    .dims = "*,*d,!vd->!vd",
    .notation = notation,
    .alias = {3},
    .attr_size = sizeof(embed_grad_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(embed_grad_attr, MX_ATTR_INT, rows),
                                      MX_FIELD(embed_grad_attr, MX_ATTR_INT, parts), {0}},
    .keep_f32 = true,
    .no_cast = true,
    .infer = infer,
    .grad = embed_grad_vjp,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cost = cost,
    .cpu = embed_grad_cpu,
    .cases = (const mx_case[]){{3, {{2, {2, 6}, MX_I32, -1, 6}, {3, {2, 6, 8}},
                                    {.absent = true}}, &(embed_grad_attr){5}},
                               {3, {{1, {4}, MX_I32, 0, 3}, {2, {4, 3}}, {2, {3, 3}}},
                                &(embed_grad_attr){3}},
                               /* A slice of a vocabulary: most ids are rows of other ranks. */
                               {3, {{1, {64}, MX_I32, -20, 25}, {2, {64, 4}}, {.absent = true}},
                                &(embed_grad_attr){5}},
                               {0}},
};

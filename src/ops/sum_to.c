/* sum_to.c - x summed down to a smaller shape that broadcasts back to x's.
 *
 * The target is aligned at the right; a dim that is 1 or missing there is summed. This is what the
 * gradient of broadcasting is: the gradient of a bias is its output's gradient summed to (d).
 * Kernels: (rows, d) -> (d) goes by blocks of rows, so that the error grows with the number of
 * blocks; one number is summed by blocks; anything else piece by piece of the output, in double.
 * Threads split the output or the fixed blocks, so the result does not depend on their number.
 */
#include "base/simd.h"
#include "ir/partition.h"
#include "ops.h"
#include "ops/cpu/lane_sum.h"
#include "ops/gpu_work.h"
#include "ops/load.h"

#include <string.h>

typedef struct {
    mx_shape shape;
} sum_to_attr;

static void check(mx_graph *g, mx_node *n)
{
    const sum_to_attr *at = n->attr;
    const mx_type *x = &n->in[0]->type;
    bool fits = at->shape.ndim <= x->ndim;
    for (int i = 0; fits && i < at->shape.ndim; i++) {
        int64_t have = x->dim[x->ndim - at->shape.ndim + i];
        fits = at->shape.dim[i] == have || at->shape.dim[i] == 1;
    }
    n->type = mx_type_of(n->type.dtype, at->shape);
    if (!fits) {
        mx_str s = {0};
        mx_type_print(&s, &n->type);
        mx_graph_fail_inputs(g, n, "cannot be summed to %s", mx_str_text(&s));
        mx_str_fini(&s);
    }
}

enum { COLS = 64, WIDE = 256, BLOCK = 64, BLOCK_SUM = 8192, WORTH = 1 << 15 };

#define SUM_COLUMNS(T, name)                                                                       \
    static MX_CLONES void name(const T *x, int64_t rows, int64_t stride, int64_t cols, T *out)     \
    {                                                                                              \
        T total[COLS] = {0};                                                                       \
        for (int64_t r0 = 0; r0 < rows; r0 += BLOCK) {                                             \
            T part[COLS] = {0};                                                                    \
            int64_t end = r0 + BLOCK < rows ? r0 + BLOCK : rows;                                   \
            for (int64_t r = r0; r < end; r++)                                                     \
                for (int64_t c = 0; c < cols; c++)                                                 \
                    part[c] += x[r * stride + c];                                                  \
            for (int64_t c = 0; c < cols; c++)                                                     \
                total[c] += part[c];                                                               \
        }                                                                                          \
        for (int64_t c = 0; c < cols; c++)                                                         \
            out[c] = total[c];                                                                     \
    }
SUM_COLUMNS(float, columns_f32)
SUM_COLUMNS(double, columns_f64)

static MX_CLONES void add_f32(float *restrict sum, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

/* The same for 16-bit columns, at most WIDE of them, widened a row at a time. */
static void columns_narrow(const mx_tensor *x, int64_t from, int64_t rows, int64_t cols,
                           const mx_tensor *out)
{
    float total[WIDE] = {0}, tile[WIDE], part[WIDE];
    int64_t d = mx_type_count(&out->type);
    for (int64_t r0 = 0; r0 < rows; r0 += BLOCK) {
        int64_t end = r0 + BLOCK < rows ? r0 + BLOCK : rows;
        memset(part, 0, sizeof part);
        for (int64_t r = r0; r < end; r++) {
            mx_load_run_f32(x, r * d + from, cols, tile);
            add_f32(part, tile, cols);
        }
        add_f32(total, part, cols);
    }
    mx_store_run_f32(out, from, cols, total);
}

/* (rows, d) -> (d). */
static bool sum_rows(const mx_tensor *x, const mx_tensor *out, int64_t rows, int64_t d)
{
    mx_dtype in = x->type.dtype;
    bool narrow = mx_dtype_is_float(in) && mx_dtype_bytes(in) == 2;
    if (!narrow && (in != out->type.dtype || (in != MX_F32 && in != MX_F64)))
        return false;
    int64_t width = narrow ? WIDE : COLS;
#pragma omp parallel for schedule(static) if (rows * d > WORTH)
    for (int64_t c = 0; c < d; c += width) {
        int64_t n = d - c < width ? d - c : width;
        if (narrow)
            columns_narrow(x, c, rows, n, out);
        else if (in == MX_F32)
            columns_f32((const float *)x->data + c, rows, d, n, (float *)out->data + c);
        else
            columns_f64((const double *)x->data + c, rows, d, n, (double *)out->data + c);
    }
    return true;
}

MX_LANE_SUM(float, lanes_f32, v)
MX_LANE_SUM(double, lanes_f64, v)

/* n neighbouring elements, in double. */
static double sum_run(const mx_tensor *x, int64_t from, int64_t n)
{
    if (x->type.dtype == MX_F32)
        return lanes_f32((const float *)x->data + from, n);
    if (x->type.dtype == MX_F64)
        return lanes_f64((const double *)x->data + from, n);
    double tile[256], total = 0;
    for (int64_t i = 0; i < n; i += 256) {
        int64_t m = n - i < 256 ? n - i : 256;
        mx_load_run_f64(x, from + i, m, tile);
        total += lanes_f64(tile, m);
    }
    return total;
}

/* Everything to one number: blocks of BLOCK_SUM elements in double, their sums added in order. */
static void sum_everything(const mx_tensor *x, const mx_tensor *out, double *part)
{
    int64_t n = mx_type_count(&x->type), blocks = (n + BLOCK_SUM - 1) / BLOCK_SUM;
    double total = 0;
#pragma omp parallel for schedule(static) if (blocks > 8)
    for (int64_t b = 0; b < blocks; b++)
        part[b] = sum_run(x, b * BLOCK_SUM, b + 1 < blocks ? BLOCK_SUM : n - b * BLOCK_SUM);
    for (int64_t b = 0; b < blocks; b++)
        total += part[b];
    mx_store_f64(out, 0, total);
}

/* x's dims, neighbours of one kind merged: those that stay and those that are summed. */
typedef struct {
    int n_kept, n_summed;
    int64_t kept[MX_MAX_DIMS], kept_stride[MX_MAX_DIMS];
    int64_t summed[MX_MAX_DIMS], summed_stride[MX_MAX_DIMS];
    int64_t run;   /* the innermost dim, contiguous in x */
    bool run_kept;
} layout;

static layout lay_out(const mx_type *x, const mx_type *out)
{
    layout l = {.run = 1, .run_kept = true};
    int64_t step = 1;
    bool in_run = true;
    for (int i = x->ndim - 1; i >= 0; i--) {
        int o = i - (x->ndim - out->ndim);
        bool kept = o >= 0 && out->dim[o] == x->dim[i];
        if (x->dim[i] == 1)
            continue;
        if (l.run == 1)
            l.run_kept = kept;
        in_run &= kept == l.run_kept;
        if (in_run) {
            l.run *= x->dim[i];
        } else {
            int64_t *size = kept ? l.kept : l.summed;
            int64_t *stride = kept ? l.kept_stride : l.summed_stride;
            int *n = kept ? &l.n_kept : &l.n_summed;
            size[*n] = x->dim[i];
            stride[(*n)++] = step;
        }
        step *= x->dim[i];
    }
    return l;
}

/* Where the i-th index of these dims (innermost first) begins. */
static int64_t locate(const int64_t *size, const int64_t *stride, int n, int64_t i)
{
    int64_t at = 0;
    for (int k = 0; k < n; i /= size[k++])
        at += i % size[k] * stride[k];
    return at;
}

static int64_t product(const int64_t *size, int n)
{
    int64_t p = 1;
    for (int k = 0; k < n; k++)
        p *= size[k];
    return p;
}

/* Any shape: each piece of the output is summed by one thread, in double, in the order of x. */
static void sum_any(const mx_tensor *x, const mx_tensor *out)
{
    layout l = lay_out(&x->type, &out->type);
    int64_t outer = product(l.kept, l.n_kept), sums = product(l.summed, l.n_summed);
    int64_t width = l.run_kept ? l.run : 1, pieces = (width + COLS - 1) / COLS;
#pragma omp parallel for collapse(2) schedule(static) if (mx_type_count(&x->type) > WORTH)
    for (int64_t o = 0; o < outer; o++)
        for (int64_t p = 0; p < pieces; p++) {
            double acc[COLS] = {0}, tile[COLS];
            int64_t c = p * COLS, n = width - c < COLS ? width - c : COLS;
            int64_t from = locate(l.kept, l.kept_stride, l.n_kept, o) + c;
            for (int64_t s = 0; s < sums; s++) {
                int64_t at = from + locate(l.summed, l.summed_stride, l.n_summed, s);
                if (!l.run_kept) {
                    acc[0] += sum_run(x, at, l.run);
                    continue;
                }
                mx_load_run_f64(x, at, n, tile);
                for (int64_t i = 0; i < n; i++)
                    acc[i] += tile[i];
            }
            mx_store_run_f64(out, o * width + c, n, acc);
        }
}

static void sum_to_cpu(const mx_call *c)
{
    const mx_tensor *x = &c->in[0], *out = &c->out[0];
    int64_t n = mx_type_count(&x->type), d = mx_type_count(&out->type);
    bool suffix = true; /* the target, leading ones aside, is a suffix of x's shape */
    int skip = 0;
    while (skip < out->type.ndim && out->type.dim[skip] == 1)
        skip++;
    for (int i = skip; i < out->type.ndim; i++)
        suffix &= out->type.dim[i] == x->type.dim[x->type.ndim - out->type.ndim + i];
    if (suffix && d > 1 && sum_rows(x, out, n / d, d))
        return;
    if (d == 1)
        sum_everything(x, out, c->work);
    else
        sum_any(x, out);
}

static size_t sum_to_work(const mx_node *n, int n_threads)
{
    (void)n_threads;
    int64_t count = mx_type_count(&n->in[0]->type);
    return mx_type_count(&n->type) == 1
               ? sizeof(double) * (size_t)((count + BLOCK_SUM - 1) / BLOCK_SUM) : 0;
}

mx_node *mx_sum_to(mx_graph *g, mx_node *x, mx_shape shape)
{
    mx_type want = mx_type_of(x->type.dtype, shape);
    if (mx_shape_equal(&want, &x->type))
        return x;
    return MX_APPLY(g, &mx_op_sum_to, &(sum_to_attr){shape}, x);
}

/* The gradient dy of an elementwise node n, as the gradient of its input x. dy may itself be
 * smaller than n where it is constant along a dim: then the sum over that dim is a product. */
mx_node *mx_sum_like(mx_graph *g, mx_node *dy, mx_node *n, mx_node *x)
{
    int nd = n->type.ndim, dd = dy->type.ndim, xd = x->type.ndim;
    mx_shape target = {.ndim = dd};
    double times = 1;
    bool reduce = false;
    for (int i = 0; i < nd; i++) { /* i counts from the right */
        int64_t full = n->type.dim[nd - 1 - i];
        int64_t have = i < dd ? dy->type.dim[dd - 1 - i] : 1;
        int64_t want = i < xd ? x->type.dim[xd - 1 - i] : 1;
        if (want == 1 && full > 1 && have == 1)
            times *= (double)full;
        if (i < dd)
            target.dim[dd - 1 - i] = want == 1 ? 1 : have;
        reduce |= want == 1 && have > 1;
    }
    mx_node *s = dy;
    bool last_only = reduce && dd > 0 && target.dim[dd - 1] == 1 && dy->type.dim[dd - 1] > 1;
    for (int i = 0; i < dd - 1; i++)
        last_only &= target.dim[i] == dy->type.dim[i];
    if (last_only) {
        s = mx_row_sum(g, dy); /* fusable, unlike sum_to */
    } else if (reduce) {
        while (target.ndim > xd) { /* leading ones that x does not have */
            for (int i = 0; i + 1 < target.ndim; i++)
                target.dim[i] = target.dim[i + 1];
            target.dim[--target.ndim] = 0;
        }
        s = mx_sum_to(g, dy, target);
    }
    if (times != 1)
        s = mx_affine(g, s, times, 0);
    if (s->type.ndim > xd) {
        mx_shape cut = {.ndim = xd};
        for (int i = 0; i < xd; i++)
            cut.dim[i] = s->type.dim[s->type.ndim - xd + i];
        s = mx_reshape(g, s, cut);
    }
    return s;
}

static void sum_to_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_broadcast_to(g, dout[0], mx_shape_of(&n->in[0]->type));
}

/* Dims that are summed may be cut: the result is a partial sum. */
static void place(const mx_node *n, mx_partition_call *p)
{
    const mx_type *x = &n->in[0]->type, *y = &n->type;
    p->in[0] = p->have[0];
    p->out[0] = (mx_placement){.partial = p->have[0].partial};
    for (int d = 0; d < x->ndim; d++) {
        int to = d - (x->ndim - y->ndim);
        if (to >= 0 && y->dim[to] == x->dim[d])
            p->out[0].dim[to] = p->in[0].dim[d];
        else
            p->out[0].partial |= mx_cut_axes(&p->in[0].dim[d]);
    }
}

static mx_node *local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    mx_type t = mx_placement_local(p->mesh, &n->type, &p->out[0]);
    return mx_sum_to(g, in[0], mx_shape_of(&t));
}

/* Of sums of whole rows; others need none. */
static size_t sum_to_gpu_work(const mx_node *n, size_t most)
{
    (void)most;
    return mx_gpu_sum_rows_bytes(mx_type_count(&n->type), n->type.dtype != MX_F32);
}

const mx_op mx_op_sum_to = {
    .name = "sum_to",
    .doc = "x summed to a shape that broadcasts to x's",
    .dtypes = MX_REALS,
    .place = place,
    .local = local,
    .linear = true,
    .attr_size = sizeof(sum_to_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(sum_to_attr, MX_ATTR_DIMS, shape), {0}},
    .keep_f32 = true,
    .no_cast = true,
    .infer = check,
    .grad = sum_to_vjp,
    .cpu = sum_to_cpu,
    .work_bytes = sum_to_work,
    .gpu_work_bytes = sum_to_gpu_work,
    .cases = (const mx_case[]){{1, {{3, {2, 70, 9}}}, &(sum_to_attr){{1, {9}}}},
                               {1, {{3, {2, 3, 4}}}, &(sum_to_attr){{3, {2, 1, 4}}}},
                               {1, {{4, {2, 3, 4, 5}}}, &(sum_to_attr){{3, {3, 1, 5}}}},
                               {1, {{4, {2, 3, 1, 5}}}, &(sum_to_attr){{4, {2, 1, 1, 1}}}},
                               {1, {{3, {2, 3, 4}}}, &(sum_to_attr){{2, {3, 1}}}},
                               {1, {{3, {20, 3, 8}}}, &(sum_to_attr){{2, {3, 1}}}},
                               {1, {{2, {3, 5}}}, &(sum_to_attr){{0}}}, {0}},
};

mx_node *mx_sum_all(mx_graph *g, mx_node *x)
{
    return mx_sum_to(g, x, MX_SCALAR);
}

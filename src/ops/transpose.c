/* transpose.c - the dims of x in another order, said in index notation: "bshd->bhsd".
 *
 * Dims that stay neighbours are merged first, which leaves one of two jobs. If the last dim stays
 * last, whole runs are copied. Otherwise the input's last dim and the output's last dim form a
 * matrix that is transposed by TILE x TILE blocks, so that both sides touch whole cache lines;
 * everything else is an outer loop. Threads split the outer loop and the blocks.
 */
#include "base/simd.h"
#include "ops.h"
#include "ops/copy.h"

#include <string.h>

typedef struct {
    char dims[2 * MX_MAX_DIMS + 4];
} transpose_attr;

static const char *notation(const mx_node *n)
{
    return ((const transpose_attr *)n->attr)->dims;
}

/* from[i]: which dim of x is dim i of the output; false when the text is not a permutation. */
static bool permutation(const char *dims, int ndim, int *from)
{
    const char *arrow = strstr(dims, "->");
    if (!arrow || arrow - dims != ndim || (int)strlen(arrow + 2) != ndim)
        return false;
    unsigned seen = 0;
    for (int i = 0; i < ndim; i++) {
        const char *at = memchr(dims, arrow[2 + i], (size_t)ndim);
        if (!at)
            return false;
        from[i] = (int)(at - dims);
        seen |= 1u << from[i];
    }
    return seen == (1u << ndim) - 1;
}

static void check(mx_graph *g, mx_node *n)
{
    const transpose_attr *at = n->attr;
    int from[MX_MAX_DIMS];
    if (!permutation(at->dims, n->in[0]->type.ndim, from))
        mx_graph_fail(g,
                      "transpose: \"%s\" is not a reordering of %d dims; write it like bshd->bhsd",
                      at->dims, n->in[0]->type.ndim);
}

/* The output's dims after merging: size, and stride in x and in the output, in elements. */
typedef struct {
    int n;
    int64_t size[MX_MAX_DIMS], in[MX_MAX_DIMS], out[MX_MAX_DIMS];
} layout;

static layout merge(const mx_type *x, const int *from)
{
    int64_t stride[MX_MAX_DIMS], step = 1;
    for (int i = x->ndim - 1; i >= 0; step *= x->dim[i--])
        stride[i] = step;
    layout l = {0};
    for (int i = 0; i < x->ndim; i++) {
        int f = from[i];
        if (x->dim[f] == 1)
            continue;
        if (l.n && l.in[l.n - 1] == stride[f] * x->dim[f]) {
            l.size[l.n - 1] *= x->dim[f];
            l.in[l.n - 1] = stride[f];
        } else {
            l.size[l.n] = x->dim[f];
            l.in[l.n++] = stride[f];
        }
    }
    step = 1;
    for (int i = l.n - 1; i >= 0; step *= l.size[i--])
        l.out[i] = step;
    return l;
}

/* Takes dim d out of the layout. */
static void drop(layout *l, int d)
{
    l->n--;
    for (int i = d; i < l->n; i++) {
        l->size[i] = l->size[i + 1];
        l->in[i] = l->in[i + 1];
        l->out[i] = l->out[i + 1];
    }
}

static int64_t count(const layout *l)
{
    int64_t n = 1;
    for (int i = 0; i < l->n; i++)
        n *= l->size[i];
    return n;
}

/* Where the i-th index of the outer loop begins, in x and in the output. */
static void locate(const layout *l, int64_t i, int64_t *in, int64_t *out)
{
    *in = *out = 0;
    for (int d = l->n - 1; d >= 0; d--) {
        int64_t k = i % l->size[d];
        *in += k * l->in[d];
        *out += k * l->out[d];
        i /= l->size[d];
    }
}

enum { TILE = 64, PITCH = TILE + 8, WORTH = 1 << 15 };

/* A square of n x n in vector registers: zipping row i with row i + n/2, log n times, turns it. */
#define SQUARE(T, n, rounds, name, low, high)                                                      \
    MX_INLINE void name(const T *x, int64_t in, T *y)                                              \
    {                                                                                              \
        typedef T vec __attribute__((vector_size(n * sizeof(T))));                                 \
        vec a[n], b[n];                                                                            \
        for (int i = 0; i < n; i++)                                                                \
            memcpy(&a[i], x + i * in, sizeof(vec));                                                \
        for (int r = 0; r < rounds; r++) {                                                         \
            for (int i = 0; i < n / 2; i++) {                                                      \
                b[2 * i] = __builtin_shufflevector(a[i], a[i + n / 2], low);                       \
                b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + n / 2], high);                  \
            }                                                                                      \
            memcpy(a, b, sizeof a);                                                                \
        }                                                                                          \
        for (int i = 0; i < n; i++)                                                                \
            memcpy(y + i * PITCH, &a[i], sizeof(vec));                                             \
    }
#define LOW8 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH8 4, 12, 5, 13, 6, 14, 7, 15
#define LOW4 0, 4, 1, 5
#define HIGH4 2, 6, 3, 7
SQUARE(uint16_t, 8, 3, square_2, LOW8, HIGH8)
SQUARE(uint32_t, 4, 2, square_4, LOW4, HIGH4)

MX_INLINE void square_1(const uint8_t *x, int64_t in, uint8_t *y)
{
    (void)in;
    *y = *x;
}

MX_INLINE void square_8(const uint64_t *x, int64_t in, uint64_t *y)
{
    (void)in;
    *y = *x;
}

/* One block: rows go along the output's last dim (stride `in` in x), columns along x's last dim. It
 * turns in a buffer on the stack, so that lines of x are read and lines of y written one after
 * another: with strides of a power of two they would push each other out of the cache. */
#define BLOCK(T, n, square, name)                                                                  \
    static void name(const void *src, int64_t in, void *dst, int64_t out, int64_t rows,            \
                     int64_t cols)                                                                 \
    {                                                                                              \
        const T *x = src;                                                                          \
        T *y = dst, turned[TILE][PITCH];                                                           \
        for (int64_t r = 0; r < rows; r += n)                                                      \
            for (int64_t c = 0; c < cols; c += n) {                                                \
                if (r + n <= rows && c + n <= cols) {                                              \
                    square(x + r * in + c, in, &turned[c][r]);                                     \
                    continue;                                                                      \
                }                                                                                  \
                for (int64_t i = r; i < rows && i < r + n; i++)                                    \
                    for (int64_t j = c; j < cols && j < c + n; j++)                                \
                        turned[j][i] = x[i * in + j];                                              \
            }                                                                                      \
        for (int64_t c = 0; c < cols; c++)                                                         \
            memcpy(y + c * out, turned[c], sizeof(T) * (size_t)rows);                              \
    }
BLOCK(uint8_t, 1, square_1, block_1)
BLOCK(uint16_t, 8, square_2, block_2)
BLOCK(uint32_t, 4, square_4, block_4)
BLOCK(uint64_t, 1, square_8, block_8)

static void transpose_blocks(layout l, size_t item, const char *x, char *y)
{
    int inner = 0; /* the dim that is last in x */
    while (l.in[inner] != 1)
        inner++;
    int64_t cols = l.size[inner], out = l.out[inner];
    int64_t rows = l.size[l.n - 1], in = l.in[l.n - 1];
    drop(&l, l.n - 1);
    drop(&l, inner);
    int64_t outer = count(&l), row_tiles = (rows + TILE - 1) / TILE;
    int64_t col_tiles = (cols + TILE - 1) / TILE;
    void (*block)(const void *, int64_t, void *, int64_t, int64_t, int64_t) =
        item == 1 ? block_1 : item == 2 ? block_2 : item == 4 ? block_4 : block_8;
#pragma omp parallel for collapse(2) schedule(static) if (outer * rows * cols > WORTH)
    for (int64_t o = 0; o < outer; o++)
        for (int64_t ct = 0; ct < col_tiles; ct++) {
            int64_t from, to, c = ct * TILE, n_cols = cols - c < TILE ? cols - c : TILE;
            locate(&l, o, &from, &to);
            for (int64_t rt = 0; rt < row_tiles; rt++) {
                int64_t r = rt * TILE, n_rows = rows - r < TILE ? rows - r : TILE;
                block(x + (size_t)(from + r * in + c) * item, in,
                      y + (size_t)(to + c * out + r) * item, out, n_rows, n_cols);
            }
        }
}

static void transpose_cpu(const mx_call *c)
{
    int from[MX_MAX_DIMS];
    const mx_type *t = &c->in[0].type;
    const char *x = c->in[0].data;
    char *y = c->out[0].data;
    permutation(((const transpose_attr *)c->attr)->dims, t->ndim, from);
    layout l = merge(t, from);
    size_t item = mx_dtype_bytes(t->dtype);
    if (!mx_type_count(t))
        return;
    if (l.n <= 1) { /* nothing moves */
        mx_copy_runs(y, 0, x, 0, mx_type_bytes(t), 1);
        return;
    }
    if (l.in[l.n - 1] != 1) {
        transpose_blocks(l, item, x, y);
        return;
    }
    int64_t run = l.size[l.n - 1];
    drop(&l, l.n - 1);
    int64_t runs = count(&l);
#pragma omp parallel for schedule(static) if (runs * run > WORTH)
    for (int64_t i = 0; i < runs; i++) {
        int64_t in, out;
        locate(&l, i, &in, &out);
        memcpy(y + (size_t)out * item, x + (size_t)in * item, (size_t)run * item);
    }
}

/* mx_transpose(g, x, "bshd->bhsd"): one letter per dim. */
mx_node *mx_transpose(mx_graph *g, mx_node *x, const char *dims)
{
    transpose_attr at = {0};
    if (strlen(dims) >= sizeof at.dims)
        mx_graph_fail(g, "transpose: \"%s\" names more than %d dims", dims, MX_MAX_DIMS);
    else
        memcpy(at.dims, dims, strlen(dims));
    return MX_APPLY(g, &mx_op_transpose, &at, x);
}

static void transpose_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const char *dims = ((const transpose_attr *)n->attr)->dims;
    size_t nd = (size_t)n->type.ndim;
    char back[2 * MX_MAX_DIMS + 4] = {0};
    memcpy(back, dims + nd + 2, nd);
    memcpy(back + nd, "->", 2);
    memcpy(back + nd + 2, dims, nd);
    din[0] = mx_transpose(g, dout[0], back);
}

const mx_op mx_op_transpose = {
    .name = "transpose",
    .doc = "dims in another order",
    .dtypes = MX_ANY_DTYPE,
    .linear = true,
    .attr_size = sizeof(transpose_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(transpose_attr, MX_ATTR_TEXT, dims), {0}},
    .notation = notation,
    .no_cast = true,
    .infer = check,
    .grad = transpose_vjp,
    .cost = mx_cost_move,
    .cpu = transpose_cpu,
    .cases = (const mx_case[]){{1, {{2, {5, 8}}}, &(transpose_attr){"ab->ba"}},
                               {1, {{2, {70, 40}}}, &(transpose_attr){"ab->ba"}},
                               {1, {{4, {2, 3, 4, 5}}}, &(transpose_attr){"bshd->bhsd"}},
                               {1, {{4, {2, 3, 4, 5}}}, &(transpose_attr){"bshd->hdsb"}},
                               {1, {{3, {2, 3, 4}, MX_I32, 0, 9}}, &(transpose_attr){"abc->cab"}},
                               {1, {{3, {2, 1, 4}}}, &(transpose_attr){"abc->bac"}}, {0}},
};

/* concat.c - up to sixteen tensors concatenated along one dim; all others must agree.
 * Floats of several dtypes take the dtype of the largest input, as elementwise ops do, so that one
 * float32 part does not widen a bfloat16 activation. The gradient of each input is its slice of the
 * output's. */
#include "ir/partition.h"
#include "ops.h"
#include "ops/copy.h"
#include "ops/load.h"

#include <string.h>

typedef struct {
    int64_t dim;
} concat_attr;

static void infer(mx_graph *g, mx_node *n)
{
    int64_t d = mx_dim_index(g, "concat", n->in[0], ((const concat_attr *)n->attr)->dim);
    if (g->error)
        return;
    const mx_type *first = &n->in[0]->type;
    int64_t total = 0, largest = -1;
    for (int i = 0; i < n->n_in; i++) {
        const mx_type *x = &n->in[i]->type;
        if (x->dtype != first->dtype &&
            !(mx_dtype_is_float(x->dtype) && mx_dtype_is_float(first->dtype)))
            mx_graph_fail(g, "concat: input %d is %s, input 0 is %s", i, mx_dtype_name(x->dtype),
                          mx_dtype_name(first->dtype));
        total += x->dim[d];
        bool wider = mx_dtype_bytes(x->dtype) > mx_dtype_bytes(n->type.dtype);
        if (x->dim[d] > largest || (x->dim[d] == largest && wider)) {
            largest = x->dim[d];
            n->type.dtype = x->dtype;
        }
    }
    n->type.dim[d] = total;
}

/* Sixteen inputs whose concatenated dim has a size of its own (A to P); a node with fewer uses the
 * first ones. */
#define JOINED(pre, post)                                                                          \
    pre "!A" post "," pre "!B" post "," pre "!C" post "," pre "!D" post "," pre "!E" post ","      \
    pre "!F" post "," pre "!G" post "," pre "!H" post "," pre "!I" post "," pre "!J" post ","      \
    pre "!K" post "," pre "!L" post "," pre "!M" post "," pre "!N" post "," pre "!O" post ","      \
    pre "!P" post "->" pre "!Z" post

static const char *notation(const mx_node *n)
{
    static const char *const text[MX_MAX_DIMS][MX_MAX_DIMS] = {
        {JOINED("", "")},
        {JOINED("", "b"), JOINED("a", "")},
        {JOINED("", "bc"), JOINED("a", "c"), JOINED("ab", "")},
        {JOINED("", "bcd"), JOINED("a", "cd"), JOINED("ab", "d"), JOINED("abc", "")},
        {JOINED("", "bcde"), JOINED("a", "cde"), JOINED("ab", "de"), JOINED("abc", "e"),
         JOINED("abcd", "")},
        {JOINED("", "bcdef"), JOINED("a", "cdef"), JOINED("ab", "def"), JOINED("abc", "ef"),
         JOINED("abcd", "f"), JOINED("abcde", "")},
    };
    int ndim = n->in[0]->type.ndim;
    int64_t d = ((const concat_attr *)n->attr)->dim;
    return ndim > 0 && d >= 0 && d < ndim ? text[ndim - 1][d] : "-->-";
}

/* Rows of n elements of another dtype, `to` elements apart in y from element `at` on. */
static void convert_rows(const mx_tensor *x, const mx_tensor *y, int64_t rows, int64_t n,
                         int64_t at, int64_t to)
{
    enum { TILE = 512 };
#pragma omp parallel for schedule(static) if (rows * n > 1 << 15)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i += TILE) {
            double tile[TILE];
            int64_t m = n - i < TILE ? n - i : TILE;
            mx_load_run_f64(x, r * n + i, m, tile);
            mx_store_run_f64(y, r * to + at + i, m, tile);
        }
}

static void concat_cpu(const mx_call *c)
{
    int d = (int)((const concat_attr *)c->attr)->dim;
    const mx_type *y = &c->out[0].type;
    size_t one = mx_dims_after_bytes(y, d), row = (size_t)y->dim[d] * one, at = 0;
    int64_t rows = mx_dims_before(y, d);
    for (int i = 0; i < c->n_in; i++) {
        size_t run = (size_t)c->in[i].type.dim[d] * one;
        size_t item = mx_dtype_bytes(y->dtype);
        if (c->in[i].type.dtype == y->dtype)
            mx_copy_runs((char *)c->out[0].data + at, row, c->in[i].data, run, run, rows);
        else
            convert_rows(&c->in[i], &c->out[0], rows, (int64_t)(run / item), (int64_t)(at / item),
                         (int64_t)(row / item));
        at += run;
    }
}

/* A negative dim counts from the right. */
mx_node *mx_concat(mx_graph *g, int n, mx_node *const *x, int64_t dim)
{
    MX_ASSERT(n > 0 && n <= MX_MAX_IN, "n=%d", n);
    concat_attr at = {mx_dim_index(g, "concat", x[0], dim)};
    return n == 1 ? x[0] : mx_apply(g, &mx_op_concat, &at, n, x);
}

/* x and then y along a dim; a concat along it gives its own inputs instead of itself, as far as
 * they have room. */
mx_node *mx_concat_flat(mx_graph *g, mx_node *x, mx_node *y, int64_t dim)
{
    mx_node *side[2] = {x, y}, *part[2 * MX_MAX_IN];
    int n = 0;
    for (int i = 0; i < 2; i++) {
        const concat_attr *at = side[i]->attr;
        bool open = side[i]->op == &mx_op_concat && at->dim == dim &&
                    n + side[i]->n_in + 1 - i <= MX_MAX_IN;
        for (int k = 0; k < (open ? side[i]->n_in : 1); k++)
            part[n++] = open ? side[i]->in[k] : side[i];
    }
    return mx_concat(g, n, part, dim);
}

static void concat_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    int64_t d = ((const concat_attr *)n->attr)->dim, at = 0;
    bool last = d == n->type.ndim - 1 && n->n_in <= MX_MAX_OUT; /* one split instead of n slices */
    int64_t sizes[MX_MAX_IN];
    for (int i = 0; i < n->n_in; i++)
        sizes[i] = n->in[i]->type.dim[d];
    mx_node *parts = last ? mx_split(g, dout[0], n->n_in, sizes) : NULL;
    for (int i = 0; i < n->n_in; at += sizes[i++])
        din[i] = last ? mx_output(g, parts, i) : mx_slice(g, dout[0], d, at, sizes[i]);
}

/* On a mesh, inputs that are cut alike along the concatenated dim become blocks of it. */
static void place(const mx_node *n, mx_partition_call *p)
{
    int d = (int)((const concat_attr *)n->attr)->dim;
    const mx_cut *first = &p->have[0].dim[d];
    mx_cut joined = *first;
    joined.n_blocks = 0;
    memset(joined.size, 0, sizeof joined.size);
    mx_place_by_notation(n, p);
    if (!first->n || first->zigzag[0] || first->sorted_by ||
        (mx_cut_axes(first) & (mx_placement_axes(&p->in[0]) | p->in[0].partial)))
        return;
    for (int i = 0; i < n->n_in; i++) {
        const mx_cut *c = &p->have[i].dim[d];
        int more = c->n_blocks ? c->n_blocks : 1;
        if (!mx_cut_alike(c, first) || joined.n_blocks + more > MX_MAX_BLOCKS)
            return;
        for (int b = 0; b < more; b++)
            joined.block[joined.n_blocks++] = c->n_blocks ? c->block[b] : n->in[i]->type.dim[d];
    }
    for (int i = 0; i < n->n_in; i++)
        p->in[i].dim[d] = p->have[i].dim[d];
    p->out[0].dim[d] = joined;
}

const mx_op mx_op_concat = {
    .name = "concat",
    .doc = "tensors concatenated along one dim",
    .dtypes = MX_ANY_DTYPE,
    .linear = true,
    .place = place,
    .attr_size = sizeof(concat_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(concat_attr, MX_ATTR_INT, dim), {0}},
    .notation = notation,
    .no_cast = true,
    .same_value = true,
    .infer = infer,
    .grad = concat_vjp,
    .cost = mx_cost_move,
    .cpu = concat_cpu,
    .cases = (const mx_case[]){{3, {{2, {4, 3}}, {2, {4, 1}}, {2, {4, 5}}}, &(concat_attr){1}},
                               {2, {{3, {4, 3, 2}}, {3, {4, 2, 2}}}, &(concat_attr){1}},
                               {2, {{2, {1, 4}}, {2, {2, 4}}}, &(concat_attr){0}},
                               {2, {{1, {3}, MX_I32, 0, 9}, {1, {2}, MX_I32, 0, 9}}}, {0}},
};

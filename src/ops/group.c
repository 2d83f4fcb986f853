/* group.c - running a fused group on the CPU, row by row, in cache.
 *
 * Each thread takes a contiguous share of the rows. For a row, every step calls its op's tile
 * function on rows of scratch memory; inputs of the arithmetic type are read in place, results that
 * leave the group are written in place, anything else is converted on the way in and out.
 * Arithmetic is float, or double when any value is double; 16-bit values are widened, so nothing is
 * rounded inside a group. A step whose type is an integer is truncated, so that fusing does not
 * keep fractions alive.
 *
 * When no step looks at a whole row and nothing but scalars is broadcast, the space is flat: it is
 * cut into rows of FLAT elements whatever the shape.
 *
 * A column sum is made in blocks of BLOCK rows, which are added in order when all rows are done:
 * the same sums, bit for bit, as sum_to's own kernel makes.
 *
 * The result does not depend on the number of threads: no step looks beyond its row, or its block.
 */
#include "ops/group.h"

#include "base/simd.h"
#include "ir/graph.h"
#include "ops.h"
#include "ops/load.h"
#include <math.h>
#include <omp.h>
#include <string.h>

enum { FLAT = 4096, BLOCK = 64 };

bool mx_group_sums_columns(const mx_node *n)
{
    if (n->op != &mx_op_sum_to)
        return false;
    const mx_type *x = &n->in[0]->type;
    int64_t cols = x->ndim ? x->dim[x->ndim - 1] : 1;
    return x->ndim > 1 && cols > 1 && n->type.ndim && n->type.dim[n->type.ndim - 1] == cols &&
           mx_type_count(&n->type) == cols && mx_dtype_is_float(x->dtype);
}

bool mx_group_step_sums_columns(const mx_group_step *s)
{
    return s->op == &mx_op_sum_to;
}

mx_shape mx_group_space(const mx_node *n)
{
    bool of_input = n->op->kind == MX_ROW_REDUCE || mx_group_sums_columns(n);
    return mx_shape_of(of_input ? &n->in[0]->type : &n->type);
}

/* Does t broadcast to the space (aligned at the right)? */
static bool fits(const mx_type *t, const mx_shape *s)
{
    if (t->ndim > s->ndim)
        return false;
    for (int i = 0; i < t->ndim; i++) {
        int64_t full = s->dim[s->ndim - t->ndim + i];
        if (t->dim[i] != full && t->dim[i] != 1)
            return false;
    }
    return true;
}

bool mx_group_accepts(const mx_node *n, const mx_shape *space)
{
    mx_op_kind k = n->op->kind;
    if (mx_group_sums_columns(n)) {
        mx_type whole = mx_type_of(n->type.dtype, *space);
        return mx_shape_equal(&n->in[0]->type, &whole);
    }
    if (k != MX_ELEMENTWISE && k != MX_ROW_REDUCE && k != MX_ROW_MAP)
        return false;
    if (space->ndim == 0 && k != MX_ELEMENTWISE)
        return false;
    int64_t cols = space->ndim ? space->dim[space->ndim - 1] : 1;
    /* A row op inside the group must see the space's own rows. */
    if (k != MX_ELEMENTWISE && n->in[0]->type.dim[n->in[0]->type.ndim - 1] != cols)
        return false;
    for (int i = 0; i < n->n_in; i++)
        if (!fits(&n->in[i]->type, space))
            return false;
    return fits(&n->type, space);
}

/* How a value lies over the space. */
typedef struct {
    const mx_tensor *tensor; /* NULL: scratch */
    int64_t stride[MX_MAX_DIMS]; /* of the leading dims, in elements */
    bool narrow;                 /* one number per row */
    bool direct;                 /* the row can be used in place */
} view;

typedef struct {
    int64_t rows, cols;
    int64_t total;               /* elements of a flat space, else rows * cols */
    bool flat, wide_type;        /* wide_type: double arithmetic */
    size_t item;                 /* bytes of the arithmetic type */
} plan;

static bool is_flat(const mx_group *g, int64_t total)
{
    for (int i = 0; i < g->n_ext; i++) {
        int64_t n = mx_type_count(&g->ext[i]);
        if (n != total && n != 1)
            return false;
    }
    for (int i = 0; i < g->n_steps; i++)
        if (g->step[i].op->kind != MX_ELEMENTWISE)
            return false;
    return true;
}

static plan make_plan(const mx_group *g)
{
    plan p = {.rows = 1, .cols = g->space.ndim ? g->space.dim[g->space.ndim - 1] : 1};
    for (int i = 0; i + 1 < g->space.ndim; i++)
        p.rows *= g->space.dim[i];
    p.total = p.rows * p.cols;
    p.flat = is_flat(g, p.total);
    if (p.flat) {
        p.cols = p.total < FLAT ? p.total : FLAT;
        p.rows = p.cols ? (p.total + p.cols - 1) / p.cols : 0;
    }
    for (int i = 0; i < g->n_ext; i++)
        p.wide_type |= g->ext[i].dtype == MX_F64;
    for (int i = 0; i < g->n_steps; i++)
        p.wide_type |= g->step[i].type.dtype == MX_F64;
    p.item = p.wide_type ? 8 : 4;
    return p;
}

static size_t row_bytes(const plan *p)
{
    return ((size_t)p->cols * p->item + 63) / 64 * 64;
}

/* Scratch rows per thread: one per value, two spare for spreading narrow
 * operands (at most four). */
static size_t thread_bytes(const mx_group *g, const plan *p)
{
    return row_bytes(p) * (size_t)(g->n_ext + g->n_steps + 4);
}

/* Rows of partial sums: one per block for every column sum. */
static size_t sum_bytes(const mx_group *g, const plan *p)
{
    size_t n = 0;
    for (int s = 0; s < g->n_steps; s++)
        n += mx_group_step_sums_columns(&g->step[s]);
    return n * row_bytes(p) * (size_t)((p->rows + BLOCK - 1) / BLOCK);
}

size_t mx_group_work_bytes(const mx_group *g, int n_threads)
{
    plan p = make_plan(g);
    return sum_bytes(g, &p) + thread_bytes(g, &p) * (size_t)n_threads;
}

static view make_view(const mx_group *g, const plan *p, const mx_type *t, const mx_tensor *tensor)
{
    view v = {.tensor = tensor};
    v.narrow = p->flat ? mx_type_count(t) == 1 && p->total != 1
                       : t->ndim == 0 || (t->dim[t->ndim - 1] == 1 && p->cols != 1);
    v.direct = tensor && !v.narrow && tensor->type.dtype == (p->wide_type ? MX_F64 : MX_F32);
    int64_t step = t->ndim ? t->dim[t->ndim - 1] : 1;
    for (int i = t->ndim - 2; i >= 0; i--) {
        int at = g->space.ndim - t->ndim + i;
        v.stride[at] = t->dim[i] == 1 ? 0 : step;
        step *= t->dim[i];
    }
    return v;
}

/* A row by its number and by its place in the leading dims of the space. Counting up is cheaper
 * than dividing, where rows are short. */
typedef struct {
    int64_t r, index[MX_MAX_DIMS];
} place;

static place place_of(const mx_group *g, int64_t r)
{
    place at = {.r = r};
    for (int i = g->space.ndim - 2; i >= 0; i--) {
        at.index[i] = r % g->space.dim[i];
        r /= g->space.dim[i];
    }
    return at;
}

static void next_place(const mx_group *g, place *at)
{
    at->r++;
    for (int i = g->space.ndim - 2; i >= 0 && ++at->index[i] == g->space.dim[i]; i--)
        at->index[i] = 0;
}

/* Where that row of a value begins, in elements. */
static int64_t row_start(const mx_group *g, const plan *p, const view *v, const place *row)
{
    if (p->flat)
        return v->narrow ? 0 : row->r * p->cols;
    int64_t at = 0;
    for (int i = 0; i < g->space.ndim - 1; i++)
        at += v->stride[i] * row->index[i];
    return at;
}

static void load(const plan *p, const mx_tensor *t, int64_t at, int64_t n, void *row)
{
    p->wide_type ? mx_load_run_f64(t, at, n, row) : mx_load_run_f32(t, at, n, row);
}

static void store(const plan *p, const mx_tensor *t, int64_t at, int64_t n, const void *row)
{
    p->wide_type ? mx_store_run_f64(t, at, n, row) : mx_store_run_f32(t, at, n, row);
}

static void spread(const plan *p, const void *one, int64_t n, void *row)
{
    if (p->wide_type)
        for (int64_t i = 0; i < n; i++)
            ((double *)row)[i] = *(const double *)one;
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)row)[i] = *(const float *)one;
}

enum { VALUES = MX_MAX_IN + MX_GROUP_STEPS };

typedef struct {
    const mx_group *g;
    plan p;
    view v[VALUES];
    char *sum; /* sum_bytes: all blocks of the first column sum, then of the next */
    size_t sum_stride;
} job;

static MX_CLONES void add_f32(float *restrict sum, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

static MX_CLONES void add_f64(double *restrict sum, const double *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

static void add_run(const plan *p, void *sum, const void *x, int64_t n)
{
    p->wide_type ? add_f64(sum, x, n) : add_f32(sum, x, n);
}

/* Row r of column sum number k. */
static void add_row(const job *j, int k, int64_t r, const void *x)
{
    char *sum = j->sum + j->sum_stride * (size_t)k + row_bytes(&j->p) * (size_t)(r / BLOCK);
    if (r % BLOCK == 0)
        memset(sum, 0, row_bytes(&j->p));
    add_run(&j->p, sum, x, j->p.cols);
}

/* The blocks' sums, added in order into a row of zeros, to where the results belong. */
static void finish_sums(const job *j, mx_tensor *const *result, char *total)
{
    int k = 0;
    for (int s = 0; s < j->g->n_steps; s++) {
        if (!mx_group_step_sums_columns(&j->g->step[s]))
            continue;
        const char *sum = j->sum + j->sum_stride * (size_t)k++;
        memset(total, 0, row_bytes(&j->p));
        for (int64_t b = 0; b * BLOCK < j->p.rows; b++)
            add_run(&j->p, total, sum + row_bytes(&j->p) * (size_t)b, j->p.cols);
        store(&j->p, result[s], 0, j->p.cols, total);
    }
}

/* What storing an integer and loading it again does to a fraction. */
static void truncate_run(const plan *p, void *row, int64_t n)
{
    if (p->wide_type)
        for (int64_t i = 0; i < n; i++)
            ((double *)row)[i] = trunc(((double *)row)[i]);
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)row)[i] = truncf(((float *)row)[i]);
}

static void run_step(const job *j, int s, char **row, char *spare, int64_t n)
{
    const mx_group_step *st = &j->g->step[s];
    int self = j->g->n_ext + s;
    bool narrow_result = j->v[self].narrow && st->op->kind == MX_ELEMENTWISE;
    mx_tile t = {.n = narrow_result ? 1 : n, .out = row[self], .attr = st->attr};
    for (int i = 0; i < st->n_in; i++) {
        const view *v = &j->v[st->in[i]];
        t.in[i] = row[st->in[i]];
        if (v->narrow && !narrow_result) {
            char *wide = spare + row_bytes(&j->p) * (size_t)i;
            spread(&j->p, row[st->in[i]], n, wide);
            t.in[i] = wide;
        }
    }
    (j->p.wide_type ? st->op->tile_f64 : st->op->tile_f32)(&t);
    if (!mx_dtype_is_float(st->type.dtype))
        truncate_run(&j->p, t.out, st->op->kind == MX_ROW_REDUCE ? 1 : t.n);
}

static void run_rows(const job *j, int64_t from, int64_t to, char *scratch)
{
    const mx_group *g = j->g;
    size_t stride = row_bytes(&j->p);
    char *row[VALUES], *spare = scratch + stride * (size_t)(g->n_ext + g->n_steps);
    for (place at = place_of(g, from); at.r < to; next_place(g, &at)) {
        int64_t n = j->p.cols;
        if (j->p.flat && (at.r + 1) * n > j->p.total)
            n = j->p.total - at.r * n;
        for (int i = 0; i < g->n_ext + g->n_steps; i++) {
            const view *v = &j->v[i];
            row[i] = scratch + stride * (size_t)i;
            if (!v->tensor)
                continue;
            int64_t start = row_start(g, &j->p, v, &at);
            if (v->direct)
                row[i] = (char *)v->tensor->data + (size_t)start * j->p.item;
            else if (i < g->n_ext)
                load(&j->p, v->tensor, start, v->narrow ? 1 : n, row[i]);
        }
        for (int s = 0, k = 0; s < g->n_steps; s++)
            if (mx_group_step_sums_columns(&g->step[s]))
                add_row(j, k++, at.r, row[g->step[s].in[0]]);
            else
                run_step(j, s, row, spare, n);
        for (int i = g->n_ext; i < g->n_ext + g->n_steps; i++)
            if (j->v[i].tensor && !j->v[i].direct)
                store(&j->p, j->v[i].tensor, row_start(g, &j->p, &j->v[i], &at),
                      j->v[i].narrow ? 1 : n, row[i]);
    }
}

void mx_group_run(const mx_group *g, const mx_tensor *in, mx_tensor *out, void *work)
{
    job j = {.g = g, .p = make_plan(g), .sum = work};
    mx_tensor *result[MX_GROUP_STEPS] = {0};
    for (int k = 0; k < g->n_out; k++)
        result[g->out[k] - g->n_ext] = &out[k];
    for (int i = 0; i < g->n_ext; i++)
        j.v[i] = make_view(g, &j.p, &g->ext[i], &in[i]);
    for (int s = 0; s < g->n_steps; s++)
        j.v[g->n_ext + s] = make_view(g, &j.p, &g->step[s].type,
                                      mx_group_step_sums_columns(&g->step[s]) ? NULL : result[s]);
    int64_t blocks = (j.p.rows + BLOCK - 1) / BLOCK;
    bool sums = sum_bytes(g, &j.p) > 0;
    j.sum_stride = row_bytes(&j.p) * (size_t)blocks;
    char *scratch = (char *)work + sum_bytes(g, &j.p);
    size_t per_thread = thread_bytes(g, &j.p);
    if (j.p.rows == 1 || j.p.total < FLAT) { /* not worth waking the other threads */
        run_rows(&j, 0, j.p.rows, scratch);
    } else {
        int64_t unit = sums ? BLOCK : 1, units = sums ? blocks : j.p.rows;
#pragma omp parallel
        {
            int64_t n = omp_get_num_threads(), me = omp_get_thread_num();
            int64_t from = units * me / n * unit, to = units * (me + 1) / n * unit;
            run_rows(&j, from, to < j.p.rows ? to : j.p.rows, scratch + per_thread * (size_t)me);
        }
    }
    if (sums)
        finish_sums(&j, result, scratch);
}

/* --- the op --- */

static void infer(mx_graph *gr, mx_node *n)
{
    (void)gr;
    const mx_group *g = ((const mx_fused_attr *)n->attr)->group;
    for (int k = 0; k < n->n_out; k++)
        *(k ? &n->more[k - 1] : &n->type) = g->step[g->out[k] - g->n_ext].type;
}

static void fused_cpu(const mx_call *c)
{
    mx_group_run(((const mx_fused_attr *)c->attr)->group, c->in, c->out, c->work);
}

static size_t fused_work(const mx_node *n, int n_threads)
{
    return mx_group_work_bytes(((const mx_fused_attr *)n->attr)->group, n_threads);
}

static mx_cost fused_cost(const mx_node *n)
{
    const mx_group *g = ((const mx_fused_attr *)n->attr)->group;
    mx_cost c = {0};
    for (int s = 0; s < g->n_steps; s++)
        c.flops += (double)mx_type_count(&g->step[s].type);
    return c;
}

mx_node *mx_fused(mx_graph *g, const mx_group *group, mx_node *const *in)
{
    return mx_apply_n(g, &mx_op_fused, &(mx_fused_attr){group}, group->n_ext, in, group->n_out);
}

const mx_op mx_op_fused = {
    .name = "fused",
    .doc = "a group of elementwise and row ops as one kernel",
    .attr_size = sizeof(mx_fused_attr),
    .n_out = -1,
    .infer = infer,
    .cost = fused_cost,
    .cpu = fused_cpu,
    .work_bytes = fused_work,
};

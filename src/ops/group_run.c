/* group_run.c - running a fused group on the CPU, tile by tile, in L1.
 *
 * Each thread takes a contiguous share of the rows. For a tile of about TILE elements every step
 * calls its op's tile function on scratch memory; inputs of the arithmetic type are read in place,
 * results that leave the group are written in place, anything else is converted on the way in and
 * out. Arithmetic is float, or double when any value is double; 16-bit values are widened, so
 * nothing is rounded inside a group. A step whose type is an integer is truncated, so that fusing
 * does not keep fractions alive.
 *
 * What a tile is:
 *     flat     no step looks at a row and nothing but scalars is broadcast: TILE elements of the
 *              whole, whatever the shape
 *     columns  no step looks at a whole row and rows are long: TILE elements of one row
 *     rows     otherwise: one row, or as many short ones as make TILE elements
 *
 * Scratch. Inputs are converted just before the first step that reads them, results stored as soon
 * as they are made, and a value's piece of scratch goes to another one after its last reader: a
 * group of 30 steps touches six or seven pieces of 4 KB. An elementwise step writes over an
 * operand that it is the last to read. Values with one number per row lie by themselves; a
 * step of two operands takes such a number as it is, others get it spread.
 *
 * Two steps that share an exponential (silu and its derivative) run as one: see mx_sibling.
 *
 * A column sum is made in blocks of BLOCK rows, which are added in order when all rows are done:
 * the same sums, bit for bit, as sum_to's own kernel makes.
 *
 * The result does not depend on the number of threads: no step looks beyond its row, or its block.
 */
#include "base/simd.h"
#include "ops/cpu/narrow.h"
#include "ops/group_plan.h"
#include "ops/load.h"
#include <math.h>
#include <omp.h>
#include <string.h>

enum { FEW = 4096 /* elements that are not worth waking other threads for */ };

size_t mx_group_work_bytes(const mx_group *g, int n_threads)
{
    mx_group_plan p;
    mx_group_plan_make(&p, g);
    return mx_group_sum_bytes(&p) + mx_group_thread_bytes(&p) * (size_t)n_threads;
}

static void load(const mx_group_plan *p, const mx_tensor *t, int64_t at, int64_t n, void *row)
{
    p->wide_type ? mx_load_run_f64(t, at, n, row) : mx_load_run_f32(t, at, n, row);
}

static void store(const mx_group_plan *p, const mx_tensor *t, int64_t at, int64_t n,
                  const void *row)
{
    if (p->wide_type)
        mx_store_run_f64(t, at, n, row);
    else if (t->type.dtype == MX_BF16)
        mx_narrow((uint16_t *)t->data + at, row, n);
    else
        mx_store_run_f32(t, at, n, row);
}

static MX_CLONES void fill_f32(float *x, float one, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = one;
}

static void fill(const mx_group_plan *p, const void *one, int64_t n, void *x)
{
    if (!p->wide_type)
        fill_f32(x, *(const float *)one, n);
    else
        for (int64_t i = 0; i < n; i++)
            ((double *)x)[i] = *(const double *)one;
}

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

static void add_run(const mx_group_plan *p, void *sum, const void *x, int64_t n)
{
    p->wide_type ? add_f64(sum, x, n) : add_f32(sum, x, n);
}

/* What storing an integer and loading it again does to a fraction. */
static void truncate_run(const mx_group_plan *p, void *row, int64_t n)
{
    if (p->wide_type)
        for (int64_t i = 0; i < n; i++)
            ((double *)row)[i] = trunc(((double *)row)[i]);
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)row)[i] = truncf(((float *)row)[i]);
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

static void advance(const mx_group *g, place *at, int64_t n)
{
    at->r += n;
    for (int i = g->space.ndim - 2; i >= 0 && n > 0; i--) {
        int64_t dim = g->space.dim[i], index = at->index[i] + n;
        for (n = 0; index >= dim; n++)
            index -= dim;
        at->index[i] = index;
    }
}

/* Where that row of a value begins, in elements. */
static int64_t row_start(const mx_group_plan *p, const mx_group_view *v, const place *row)
{
    if (p->flat)
        return v->narrow ? 0 : row->r * p->cols;
    if (v->even)
        return row->r * (v->narrow ? 1 : p->cols);
    int64_t at = 0;
    for (int i = 0; i < p->g->space.ndim - 1; i++)
        at += v->stride[i] * row->index[i];
    return at;
}

/* One thread at one tile. */
typedef struct {
    const mx_group_plan *p;
    char *sum; /* mx_group_sum_bytes: all blocks of the first column sum, then of the next */
    size_t sum_stride;
    char *at[MX_GROUP_VALUES]; /* where the values of the tile lie */
    char *spare;
    place first; /* row */
    int64_t rows, col, cols;
} tile;

/* Prefetches what the next tile will read of a value: the hardware's prefetcher loses its way
 * between that many short runs. */
static void prefetch_next(const tile *t, int value)
{
    const mx_group_plan *p = t->p;
    const mx_tensor *x = p->v[value].tensor;
    size_t each = mx_dtype_bytes(x->type.dtype), bytes = (size_t)(t->rows * t->cols) * each;
    const char *at = (const char *)x->data + (size_t)(t->first.r * p->cols + t->col) * each + bytes;
    const char *end = at + bytes;
    if (value < p->g->n_ext)
        for (; at < end; at += 64)
            __builtin_prefetch(at, 0, 2);
    else
        for (; at < end; at += 64)
            __builtin_prefetch(at, 1, 2);
}

typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));
static MX_CLONES void repeat_f32(float *restrict to, const float *restrict row, int64_t n,
                                 int64_t times)
{
    for (; times > 0; times--, to += n) {
        int64_t i = 0;
        for (; i + 16 <= n; i += 16)
            *(lanes *)(to + i) = *(const lanes *)(row + i);
        for (; i < n; i++)
            to[i] = row[i];
    }
}

static void repeat(const mx_group_plan *p, char *to, const char *row, int64_t n, int64_t times)
{
    if (!p->wide_type)
        repeat_f32((float *)to, (const float *)row, n, times);
    else
        for (; times > 0; times--, to += (size_t)n * p->item)
            memcpy(to, row, (size_t)n * p->item);
}

/* A value that is not used where it lies: rows that are the same one are converted once. */
static void load_value(const tile *t, int value)
{
    const mx_group_plan *p = t->p;
    const mx_group_view *v = &p->v[value];
    int64_t n = v->narrow ? 1 : t->cols, col = v->narrow ? 0 : t->col, same;
    if (v->even || t->rows == 1) {
        load(p, v->tensor, row_start(p, v, &t->first) + col, n * t->rows, t->at[value]);
        return;
    }
    place row = t->first;
    for (int64_t r = 0; r < t->rows; r += same, advance(p->g, &row, same)) {
        char *to = t->at[value] + (size_t)(r * n) * p->item;
        load(p, v->tensor, row_start(p, v, &row) + col, n, to);
        same = v->repeat - row.r % v->repeat;
        same = same < t->rows - r ? same : t->rows - r;
        repeat(p, to + (size_t)n * p->item, to, n, same - 1);
    }
}

static void store_value(const tile *t, int value)
{
    const mx_group_plan *p = t->p;
    const mx_group_view *v = &p->v[value];
    int64_t n = v->narrow ? 1 : t->cols, col = v->narrow ? 0 : t->col;
    if (v->even || t->rows == 1) {
        store(p, v->tensor, row_start(p, v, &t->first) + col, n * t->rows, t->at[value]);
        return;
    }
    place row = t->first;
    for (int64_t r = 0; r < t->rows; r++, advance(p->g, &row, 1))
        store(p, v->tensor, row_start(p, v, &row) + col, n,
              t->at[value] + (size_t)(r * n) * p->item);
}

/* A step that looks at whole rows. */
static void run_row_step(const tile *t, const mx_group_step *st, int self)
{
    const mx_group_plan *p = t->p;
    for (int64_t r = 0; r < t->rows; r++) {
        mx_tile u = {.n = t->cols, .attr = st->attr};
        for (int i = 0; i < st->n_in; i++)
            u.in[i] = t->at[st->in[i]]
                      + (size_t)(r * (p->v[st->in[i]].narrow ? 1 : t->cols)) * p->item;
        u.out = t->at[self] + (size_t)(r * (p->v[self].narrow ? 1 : t->cols)) * p->item;
        (p->wide_type ? st->op->tile_f64 : st->op->tile_f32)(&u);
    }
}

static void run_elements(const tile *t, const mx_group_step *st, int self)
{
    const mx_group_plan *p = t->p;
    const bool narrow = p->v[self].narrow;
    mx_tile u = {.n = narrow ? t->rows : t->rows * t->cols, .out = t->at[self], .attr = st->attr};
    for (int i = 0; i < st->n_in; i++) {
        u.in[i] = t->at[st->in[i]];
        if (narrow || !p->v[st->in[i]].narrow)
            continue;
        if (t->rows == 1 && st->n_in == 2 && !u.single) {
            u.single = 1u << i;
            continue;
        }
        char *wide = t->spare + mx_group_slot_bytes(p) * (size_t)i;
        for (int64_t r = 0; r < t->rows; r++)
            fill(p, (const char *)u.in[i] + (size_t)r * p->item, t->cols,
                 wide + (size_t)(r * t->cols) * p->item);
        u.in[i] = wide;
    }
    (p->wide_type ? st->op->tile_f64 : st->op->tile_f32)(&u);
}

/* A step and its sibling (op.h) at once. */
static void run_siblings(const tile *t, int self, int sibling)
{
    const mx_group *g = t->p->g;
    const mx_group_step *st = &g->step[sibling];
    st->op->sibling->tile_f32(&(mx_tile){.n = t->rows * t->cols,
                                         .in = {t->at[st->in[0]], t->at[st->in[1]]},
                                         .out = t->at[g->n_ext + sibling],
                                         .sibling_out = t->at[self],
                                         .attr = st->attr});
}

static void run_step(const tile *t, int self)
{
    int s = self - t->p->g->n_ext;
    const mx_group_step *st = &t->p->g->step[s];
    if (t->p->sibling[s])
        run_siblings(t, self, t->p->sibling[s]);
    else if (st->op->kind == MX_ELEMENTWISE)
        run_elements(t, st, self);
    else
        run_row_step(t, st, self);
    if (!mx_dtype_is_float(st->type.dtype))
        truncate_run(t->p, t->at[self], t->rows * (t->p->v[self].narrow ? 1 : t->cols));
}

/* The tile's part of column sum number k. */
static void sum_rows(const tile *t, int k, const char *x)
{
    const mx_group_plan *p = t->p;
    char *sums = t->sum + t->sum_stride * (size_t)k + (size_t)t->col * p->item;
    for (int64_t r = 0; r < t->rows; r++) {
        char *sum = sums + mx_group_row_bytes(p) * (size_t)((t->first.r + r) / MX_GROUP_BLOCK);
        if ((t->first.r + r) % MX_GROUP_BLOCK == 0)
            memset(sum, 0, (size_t)t->cols * p->item);
        add_run(p, sum, x + (size_t)(r * t->cols) * p->item, t->cols);
    }
}

static void run_tile(tile *t)
{
    const mx_group_plan *p = t->p;
    for (int i = 0; i < p->g->n_ext + p->g->n_steps; i++)
        if (p->v[i].direct)
            t->at[i] = (char *)p->v[i].tensor->data
                       + (size_t)(row_start(p, &p->v[i], &t->first) + t->col) * p->item;
    for (int i = 0, k = 0; i < p->n_acts; i++) {
        int value = p->act[i].value;
        if (p->act[i].kind == MX_GROUP_ASK)
            prefetch_next(t, value);
        else if (p->act[i].kind == MX_GROUP_LOAD)
            load_value(t, value);
        else if (p->act[i].kind == MX_GROUP_STEP)
            run_step(t, value);
        else if (p->act[i].kind == MX_GROUP_STORE)
            store_value(t, value);
        else
            sum_rows(t, k++, t->at[p->g->step[value - p->g->n_ext].in[0]]);
    }
}

static void run_rows(tile *t, int64_t from, int64_t to, char *scratch)
{
    const mx_group_plan *p = t->p;
    t->spare = scratch + mx_group_slot_bytes(p) * (size_t)p->n_slots;
    char *narrow = t->spare + mx_group_slot_bytes(p) * MX_GROUP_SPARE;
    for (int i = 0; i < p->g->n_ext + p->g->n_steps; i++) {
        t->at[i] = NULL; /* direct, or a column sum */
        if (p->v[i].narrow)
            t->at[i] = narrow + mx_group_narrow_bytes(p) * (size_t)i;
        else if (p->v[i].slot != MX_GROUP_NO_SLOT)
            t->at[i] = scratch + mx_group_slot_bytes(p) * (size_t)p->v[i].slot;
    }
    t->first = place_of(p->g, from);
    while (t->first.r < to) {
        t->rows = to - t->first.r < p->tile_rows ? to - t->first.r : p->tile_rows;
        int64_t cols = p->cols, left = p->total - t->first.r * p->cols;
        if (p->flat && left < cols)
            cols = left;
        for (t->col = 0; t->col < cols; t->col += p->tile_cols) {
            t->cols = cols - t->col < p->tile_cols ? cols - t->col : p->tile_cols;
            run_tile(t);
        }
        advance(p->g, &t->first, t->rows);
    }
}

/* The blocks' sums, added in order into a row of zeros, to where the results belong. */
static void finish_sums(const tile *t, mx_tensor *const *result, char *total)
{
    const mx_group_plan *p = t->p;
    int k = 0;
    for (int s = 0; s < p->g->n_steps; s++) {
        if (!mx_group_step_sums_columns(&p->g->step[s]))
            continue;
        const char *sum = t->sum + t->sum_stride * (size_t)k++;
        memset(total, 0, mx_group_row_bytes(p));
        for (int64_t b = 0; b * MX_GROUP_BLOCK < p->rows; b++)
            add_run(p, total, sum + mx_group_row_bytes(p) * (size_t)b, p->cols);
        store(p, result[s], 0, p->cols, total);
    }
}

void mx_group_run(const mx_group *g, const mx_tensor *in, mx_tensor *out, void *work)
{
    mx_group_plan p;
    mx_tensor *result[MX_GROUP_STEPS] = {0};
    mx_group_plan_make(&p, g);
    for (int k = 0; k < g->n_out; k++)
        result[g->out[k] - g->n_ext] = &out[k];
    for (int i = 0; i < g->n_ext; i++)
        p.v[i].tensor = &in[i];
    for (int s = 0; s < g->n_steps; s++)
        p.v[g->n_ext + s].tensor = result[s];
    int64_t blocks = (p.rows + MX_GROUP_BLOCK - 1) / MX_GROUP_BLOCK;
    bool sums = mx_group_sum_bytes(&p) > 0;
    tile t = {.p = &p, .sum = work, .sum_stride = mx_group_row_bytes(&p) * (size_t)blocks};
    char *scratch = (char *)work + mx_group_sum_bytes(&p);
    size_t per_thread = mx_group_thread_bytes(&p);
    if (p.rows == 1 || p.total < FEW) {
        run_rows(&t, 0, p.rows, scratch);
    } else {
        int64_t unit = sums ? MX_GROUP_BLOCK : 1, units = sums ? blocks : p.rows;
#pragma omp parallel firstprivate(t)
        {
            int64_t n = omp_get_num_threads(), me = omp_get_thread_num();
            int64_t from = units * me / n * unit, to = units * (me + 1) / n * unit;
            run_rows(&t, from, to < p.rows ? to : p.rows, scratch + per_thread * (size_t)me);
        }
    }
    if (sums)
        finish_sums(&t, result, scratch);
}

/* program_attr.c - attributes, types and boxes as bytes and back; see program_file.h. */
#include "compile/program_file.h"

#include "ir/placement.h"
#include "ops/collective.h"
#include "ops/group.h"
#include <limits.h>
#include <string.h>

void mx_code_op(mx_codec *c, const mx_op **op)
{
    const char *name = mx_codec_reads(c) ? "" : (*op)->name;
    mx_code_text(c, &name);
    if (!mx_codec_reads(c))
        return;
    *op = mx_op_table[0]; /* sorted by name */
    for (int lo = 0, hi = mx_op_count; lo < hi;) {
        int mid = (lo + hi) / 2, way = strcmp(name, mx_op_table[mid]->name);
        if (way == 0) {
            *op = mx_op_table[mid];
            return;
        }
        if (way < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    mx_codec_refuse(c, "it has an op that this program does not know");
}

static void code_dtype(mx_codec *c, mx_dtype *d)
{
    int v = (int)*d;
    mx_code_int(c, &v, 0, MX_DTYPE_COUNT - 1);
    *d = (mx_dtype)v;
}

static void code_shape(mx_codec *c, int *ndim, int64_t *dim)
{
    mx_code_int(c, ndim, 0, MX_MAX_DIMS);
    for (int i = 0; i < *ndim; i++)
        mx_code_i64(c, &dim[i]);
}

void mx_code_type(mx_codec *c, mx_type *t)
{
    code_dtype(c, &t->dtype);
    code_shape(c, &t->ndim, t->dim);
    if (mx_codec_reads(c) && !mx_type_fits(t)) {
        mx_codec_refuse(c, "a tensor has an impossible size");
        *t = (mx_type){0};
    }
}

static void code_axes(mx_codec *c, mx_axis_set *axes)
{
    int64_t v = *axes;
    mx_code_range(c, &v, 0, (1 << MX_AXIS_COUNT) - 1);
    *axes = (mx_axis_set)v;
}

static void code_cut(mx_codec *c, mx_cut *k)
{
    mx_code_int(c, &k->n, 0, MX_MAX_FACTORS);
    for (int i = 0; i < k->n; i++) {
        mx_code_i64(c, &k->size[i]);
        code_axes(c, &k->axes[i]);
        mx_code_bool(c, &k->zigzag[i]);
    }
    mx_code_int(c, &k->n_blocks, 0, MX_MAX_BLOCKS);
    for (int i = 0; i < k->n_blocks; i++)
        mx_code_i64(c, &k->block[i]);
    mx_code_int(c, &k->sorted_by, 0, INT_MAX);
    code_axes(c, &k->exchanged);
    mx_code_i64(c, &k->rows);
}

/* Could the partition pass have cut a dim of this size so? */
static bool is_cut_of(const mx_mesh *m, const mx_cut *k, int64_t size)
{
    int64_t sum = 0, chunks = 2 * mx_mesh_degree(m, MX_AXIS_CONTEXT);
    for (int b = 0; b < k->n_blocks; b++) {
        if (k->block[b] < 0 || k->block[b] > size - sum)
            return false;
        sum += k->block[b];
    }
    for (int f = 0; f < k->n; f++)
        if (f + 1 < k->n && k->size[f] != mx_mesh_size(m, k->axes[f]))
            return false;
    if (k->n && k->zigzag[0] && (k->size[0] < chunks || size > k->size[0]))
        return false;
    return !k->sorted_by && (!k->n || !k->zigzag[0] || chunks < MX_MAX_RUNS || k->n == 1);
}

/* The part of another rank of the same kind: whether it is the first of those that have the same
 * stays as it is. A stage has everything of its layers, as the partition pass has it. */
static mx_box moved(mx_codec *c, const mx_box *b)
{
    int rank;
    mx_box own = *b;
    mx_mesh mesh = mx_mesh_without(c->mesh, MX_AXIS_STAGE, c->rank, &rank);
    for (int d = 0; d < b->whole.ndim; d++)
        if (!is_cut_of(&mesh, &b->at.dim[d], b->whole.dim[d]))
            mx_codec_refuse(c, "a tensor is cut in an impossible way");
    if (!c->bad)
        own = mx_box_of(&mesh, rank, &b->whole, &b->at);
    own.first = b->first;
    return own;
}

void mx_code_box(mx_codec *c, const mx_box **box)
{
    bool there = !mx_codec_reads(c) && *box;
    mx_code_bool(c, &there);
    mx_box b = {0};
    if (there && !mx_codec_reads(c))
        b = **box;
    if (mx_codec_reads(c))
        *box = NULL;
    if (!there)
        return;
    mx_code_type(c, &b.whole);
    code_axes(c, &b.at.partial);
    mx_code_bool(c, &b.first);
    for (int d = 0; d < b.whole.ndim; d++) {
        code_cut(c, &b.at.dim[d]);
        mx_code_int(c, &b.n_runs[d], 0, MX_MAX_RUNS);
        for (int i = 0; i < b.n_runs[d]; i++) {
            mx_code_range(c, &b.run[d][i].from, 0, b.whole.dim[d]);
            mx_code_range(c, &b.run[d][i].n, 0, b.whole.dim[d] - b.run[d][i].from);
        }
    }
    if (mx_codec_reads(c) && c->mesh && !c->bad)
        b = moved(c, &b);
    if (mx_codec_reads(c))
        *box = mx_arena_copy(c->arena, &b, sizeof b);
}

static void code_step(mx_codec *c, mx_group *g, int i)
{
    mx_group_step *s = &g->step[i];
    mx_code_op(c, &s->op);
    if (mx_codec_reads(c) && !mx_op_kind_is_tiled(s->op->kind) && !mx_group_step_sums_columns(s))
        mx_codec_refuse(c, "a fused group has a step that cannot be fused");
    mx_code_type(c, &s->type);
    mx_code_attr(c, s->op, &s->attr, mx_type_count(&s->type));
    mx_code_int(c, &s->n_in, 0, 4);
    for (int k = 0; k < s->n_in; k++)
        mx_code_int(c, &s->in[k], 0, g->n_ext + i - 1);
}

static void code_group(mx_codec *c, const mx_group **group)
{
    bool reads = mx_codec_reads(c);
    mx_group *g = MX_NEW(c->arena, mx_group);
    if (!reads)
        *g = **group;
    code_shape(c, &g->space.ndim, g->space.dim);
    mx_code_int(c, &g->n_ext, 0, MX_MAX_IN);
    for (int i = 0; i < g->n_ext; i++)
        mx_code_type(c, &g->ext[i]);
    mx_code_int(c, &g->n_steps, 1, MX_GROUP_STEPS);
    for (int i = 0; i < g->n_steps; i++)
        code_step(c, g, i);
    mx_code_int(c, &g->n_out, 1, MX_MAX_OUT);
    for (int i = 0; i < g->n_out; i++)
        mx_code_int(c, &g->out[i], g->n_ext, g->n_ext + g->n_steps - 1);
    if (reads)
        *group = g;
}

/* A text or a list in an array of its own, which ends in a zero. */
static void code_array(mx_codec *c, char *array, size_t cap)
{
    const char *text = array;
    mx_code_text(c, &text);
    if (mx_codec_reads(c) && strlen(text) >= cap)
        mx_codec_refuse(c, "a text is too long");
    else if (mx_codec_reads(c))
        memcpy(array, text, strlen(text) + 1);
}

static void code_table(mx_codec *c, const double **table, int64_t count)
{
    bool there = *table != NULL;
    mx_code_bool(c, &there);
    if (!there)
        return;
    if (mx_codec_reads(c) && (uint64_t)count > mx_codec_left(c) / sizeof(double)) {
        mx_codec_refuse(c, "it ends in the middle of a table");
        return;
    }
    double *v = mx_codec_reads(c) ? MX_NEW_N(c->arena, double, count + 1) : (double *)*table;
    for (int64_t i = 0; i < count; i++)
        mx_code_f64(c, &v[i]);
    *table = v;
}

static void code_i32(mx_codec *c, int32_t *v, int64_t hi)
{
    int64_t wide = *v;
    mx_code_range(c, &wide, 0, hi);
    *v = (int32_t)wide;
}

static void code_field(mx_codec *c, const mx_attr_field *f, char *at, int64_t count)
{
    switch (f->kind) {
    case MX_ATTR_INT:
    case MX_ATTR_INTS:
        for (size_t i = 0; i < f->size / sizeof(int64_t); i++)
            mx_code_i64(c, (int64_t *)(void *)at + i);
        break;
    case MX_ATTR_F64:
        mx_code_f64(c, (double *)(void *)at);
        break;
    case MX_ATTR_BOOL:
        mx_code_bool(c, (bool *)at);
        break;
    case MX_ATTR_DTYPE:
        code_dtype(c, (mx_dtype *)(void *)at);
        break;
    case MX_ATTR_ENUM:
    case MX_ATTR_INT32:
        code_i32(c, (int32_t *)(void *)at, f->kind == MX_ATTR_ENUM ? f->n - 1 : INT_MAX);
        break;
    case MX_ATTR_TEXT:
    case MX_ATTR_LIST:
        code_array(c, at, f->size);
        break;
    case MX_ATTR_DIMS:
        code_shape(c, &((mx_shape *)(void *)at)->ndim, ((mx_shape *)(void *)at)->dim);
        break;
    case MX_ATTR_TABLE:
        code_table(c, (const double **)(void *)at, count);
        break;
    case MX_ATTR_NAME:
        mx_code_name(c, (const char **)(void *)at);
        break;
    case MX_ATTR_BOX:
        mx_code_box(c, (const mx_box **)(void *)at);
        break;
    case MX_ATTR_GROUP:
        code_group(c, (const mx_group **)(void *)at);
        break;
    }
}

void mx_code_attr(mx_codec *c, const mx_op *op, const void **attr, int64_t count)
{
    if (!op->attr_size)
        return;
    char *copy = mx_arena_alloc(c->arena, op->attr_size);
    if (!mx_codec_reads(c) && *attr)
        memcpy(copy, *attr, op->attr_size);
    for (const mx_attr_field *f = op->fields; f && f->name; f++)
        code_field(c, f, copy + f->offset, count);
    if (!mx_codec_reads(c))
        return;
    *attr = copy;
    if (c->mesh && op->fields == mx_collective_fields) {
        mx_collective_attr *a = (mx_collective_attr *)(void *)copy;
        if (a->axes < 0 || a->axes >= 1 << MX_AXIS_COUNT)
            mx_codec_refuse(c, "a group of ranks has axes that do not exist");
        else
            a->index = mx_mesh_index(c->mesh, c->rank, (mx_axis_set)a->axes);
    }
}

/* group_plan.c - see group_plan.h. The ways of cutting a space, and why scratch is shared out as it
 * is, are in group_run.c. */
#include "ops/group_plan.h"

#include "ir/graph.h"

enum { SLOT_PAD = 3 * 64 };

static bool sees_rows(const mx_group *g)
{
    for (int i = 0; i < g->n_steps; i++)
        if (g->step[i].op->kind != MX_ELEMENTWISE && !mx_group_step_sums_columns(&g->step[i]))
            return true;
    return false;
}

static mx_group_view make_view(const mx_group_plan *p, int value, bool stored)
{
    const mx_type *t = mx_group_type(p->g, value);
    int64_t n = mx_type_count(t), step = t->ndim ? t->dim[t->ndim - 1] : 1;
    mx_group_view v = {.slot = MX_GROUP_NO_SLOT};
    v.narrow = p->flat ? n == 1 && p->total != 1
                       : t->ndim == 0 || (t->dim[t->ndim - 1] == 1 && p->cols != 1);
    v.even = v.narrow ? !p->flat && n == p->rows : n == p->total;
    v.direct = stored && !v.narrow && t->dtype == (p->wide_type ? MX_F64 : MX_F32)
               && (v.even || p->tile_rows == 1);
    for (int i = t->ndim - 2; i >= 0; i--) {
        v.stride[p->g->space.ndim - t->ndim + i] = t->dim[i] == 1 ? 0 : step;
        step *= t->dim[i];
    }
    v.repeat = 1;
    for (int i = p->g->space.ndim - 2; i >= 0 && v.stride[i] == 0; i--)
        v.repeat *= p->g->space.dim[i];
    return v;
}

static int take_slot(mx_group_plan *p, bool *used)
{
    int i = 0;
    while (used[i])
        i++;
    used[i] = true;
    p->n_slots = i + 1 > p->n_slots ? i + 1 : p->n_slots;
    return i;
}

/* The slot of an operand that step s is the last to read and may write over, or none. */
static int inherited(const mx_group_plan *p, int s, const int *last)
{
    const mx_group_step *st = &p->g->step[s];
    for (int i = 0; i < st->n_in && st->op->kind == MX_ELEMENTWISE; i++)
        if (last[st->in[i]] == s && p->v[st->in[i]].slot != MX_GROUP_NO_SLOT)
            return p->v[st->in[i]].slot;
    return MX_GROUP_NO_SLOT;
}

static void ask(mx_group_plan *p, int value)
{
    if (!p->v[value].narrow && p->v[value].even)
        p->act[p->n_acts++] = (mx_group_act){MX_GROUP_ASK, value};
}

/* What step s reads for the first time. */
static void schedule_loads(mx_group_plan *p, int s, bool *loaded, bool *used)
{
    const mx_group_step *st = &p->g->step[s];
    for (int i = 0; i < st->n_in; i++) {
        mx_group_view *in = &p->v[st->in[i]];
        if (st->in[i] >= p->g->n_ext || loaded[st->in[i]])
            continue;
        loaded[st->in[i]] = true;
        if (!in->direct) {
            in->slot = in->narrow ? MX_GROUP_NO_SLOT : take_slot(p, used);
            p->act[p->n_acts++] = (mx_group_act){MX_GROUP_LOAD, st->in[i]};
        }
        ask(p, st->in[i]);
    }
}

/* Was step s made by an earlier one? */
static bool sibling_of(const mx_group_plan *p, int s)
{
    for (int i = 0; i < s; i++)
        if (p->sibling[i] == s)
            return true;
    return false;
}

/* A later step that shares its work with step s and could run now: it reads the same operand, and
 * its other one is there; all over whole rows. 0: none. */
static int find_sibling(const mx_group_plan *p, int s)
{
    const mx_group *g = p->g;
    const mx_group_step *st = &g->step[s];
    for (int u = s + 1; u < g->n_steps && !p->wide_type; u++) {
        const mx_group_step *other = &g->step[u];
        if (!other->op->sibling || other->op->sibling->of != st->op || other->in[0] != st->in[0])
            continue;
        bool narrow = p->v[g->n_ext + u].narrow || p->v[other->in[0]].narrow
                      || p->v[other->in[1]].narrow;
        if (!narrow && other->in[1] < g->n_ext + s && mx_dtype_is_float(other->type.dtype)
            && !sibling_of(p, u))
            return u;
    }
    return 0;
}

/* Puts step s, what it reads for the first time and what it stores into the list. */
static void schedule_step(mx_group_plan *p, int s, const int *last, bool *loaded, bool *used)
{
    const mx_group_step *st = &p->g->step[s];
    int self = p->g->n_ext + s, heir = MX_GROUP_NO_SLOT, sibling = find_sibling(p, s);
    mx_group_view *v = &p->v[self];
    schedule_loads(p, s, loaded, used);
    if (sibling) {
        schedule_loads(p, sibling, loaded, used);
        p->sibling[s] = sibling;
        if (!p->v[p->g->n_ext + sibling].direct)
            p->v[p->g->n_ext + sibling].slot = take_slot(p, used);
    }
    bool sum = mx_group_step_sums_columns(st), needs = !sum && !v->narrow && !v->direct;
    bool made = sibling_of(p, s);
    if (needs && !made) {
        heir = inherited(p, s, last);
        v->slot = heir != MX_GROUP_NO_SLOT ? heir : take_slot(p, used);
    }
    if (!made)
        p->act[p->n_acts++] = (mx_group_act){sum ? MX_GROUP_SUM : MX_GROUP_STEP, self};
    for (int i = 0; i < st->n_in; i++)
        if (last[st->in[i]] == s && p->v[st->in[i]].slot != MX_GROUP_NO_SLOT
            && p->v[st->in[i]].slot != heir)
            used[p->v[st->in[i]].slot] = false;
    if (needs && last[self] < s)
        used[v->slot] = false;
}

static void schedule(mx_group_plan *p, const bool *stored)
{
    const mx_group *g = p->g;
    int last[MX_GROUP_VALUES]; /* the last step that reads a value */
    bool loaded[MX_GROUP_VALUES] = {false}, used[MX_GROUP_VALUES] = {false};
    for (int i = 0; i < g->n_ext + g->n_steps; i++) {
        last[i] = -1;
        p->v[i] = make_view(p, i, stored[i]);
    }
    for (int s = 0; s < g->n_steps; s++)
        for (int i = 0; i < g->step[s].n_in; i++)
            last[g->step[s].in[i]] = s;
    for (int s = 0; s < g->n_steps; s++) {
        schedule_step(p, s, last, loaded, used);
        int self = g->n_ext + s;
        if (stored[self] && !p->v[self].direct)
            p->act[p->n_acts++] = (mx_group_act){MX_GROUP_STORE, self};
        if (stored[self])
            ask(p, self);
    }
}

void mx_group_plan_make(mx_group_plan *p, const mx_group *g)
{
    bool stored[MX_GROUP_VALUES] = {false};
    *p = (mx_group_plan){.g = g, .rows = 1, .cols = 1};
    if (g->space.ndim)
        p->cols = g->space.dim[g->space.ndim - 1];
    for (int i = 0; i + 1 < g->space.ndim; i++)
        p->rows *= g->space.dim[i];
    p->total = p->rows * p->cols;
    p->flat = mx_group_is_flat(g);
    if (p->flat) {
        p->cols = p->total < MX_GROUP_TILE ? p->total : MX_GROUP_TILE;
        p->rows = p->cols ? (p->total + p->cols - 1) / p->cols : 0;
    }
    p->tile_cols = p->cols > MX_GROUP_TILE && !sees_rows(g) ? MX_GROUP_TILE : p->cols;
    p->tile_rows = MX_GROUP_TILE / (p->cols > 0 ? p->cols : 1);
    p->tile_rows = p->flat || p->tile_rows < 2 ? 1 : p->tile_rows;
    p->tile_rows = p->tile_rows < p->rows ? p->tile_rows : p->rows > 0 ? p->rows : 1;
    for (int i = 0; i < g->n_ext; i++)
        stored[i] = true, p->wide_type |= g->ext[i].dtype == MX_F64;
    for (int i = 0; i < g->n_steps; i++)
        p->wide_type |= g->step[i].type.dtype == MX_F64;
    for (int k = 0; k < g->n_out; k++) /* a column sum is stored at the end */
        stored[g->out[k]] = !mx_group_step_sums_columns(&g->step[g->out[k] - g->n_ext]);
    p->item = p->wide_type ? 8 : 4;
    schedule(p, stored);
}

static size_t lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* The pad keeps pieces of a power of two out of each other's cache sets. */
size_t mx_group_slot_bytes(const mx_group_plan *p)
{
    return lines((size_t)(p->tile_rows * p->tile_cols) * p->item) + SLOT_PAD;
}

size_t mx_group_narrow_bytes(const mx_group_plan *p)
{
    return lines((size_t)p->tile_rows * p->item);
}

size_t mx_group_row_bytes(const mx_group_plan *p)
{
    return lines((size_t)p->cols * p->item);
}

size_t mx_group_thread_bytes(const mx_group_plan *p)
{
    size_t rows = mx_group_slot_bytes(p) * (size_t)(p->n_slots + MX_GROUP_SPARE)
                  + mx_group_narrow_bytes(p) * (size_t)(p->g->n_ext + p->g->n_steps);
    /* a total of column sums is made there */
    return rows > mx_group_row_bytes(p) ? rows : mx_group_row_bytes(p);
}

/* Rows of partial sums: one per block for every column sum. */
size_t mx_group_sum_bytes(const mx_group_plan *p)
{
    size_t n = 0;
    for (int s = 0; s < p->g->n_steps; s++)
        n += mx_group_step_sums_columns(&p->g->step[s]);
    return n * mx_group_row_bytes(p) * (size_t)((p->rows + MX_GROUP_BLOCK - 1) / MX_GROUP_BLOCK);
}

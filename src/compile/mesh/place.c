/* place.c - the placements of an op's inputs and outputs, from its index notation.
 *
 * Each letter gets a cut or stays whole:
 *   1. a summed letter, where every input that has it is cut alike (the result is a partial sum);
 *      or where an activation is cut and the others are weights, which are sliced for nothing, if
 *      no weight brings the axis for a letter of the result
 *   2. letters of the result, as the node's own logical axes want it
 *   3. without those, as the first activation has it, then as a weight has it
 * and no axis serves two letters. Letters marked `!` stay whole.
 */
#include "ir/notation.h"
#include "ir/partition.h"

#include <string.h>

enum { LETTERS = 128, NONE = 0 };

typedef struct {
    unsigned char in[MX_MAX_IN][MX_MAX_DIMS], out[MX_MAX_OUT][MX_MAX_DIMS]; /* NONE: not known */
    bool whole[LETTERS], in_out[LETTERS], in_in[LETTERS];
    mx_cut cut[LETTERS];
    mx_axis_set used;
} letters;

static void note(letters *l, unsigned char *slot, int d, unsigned char c, bool is_out)
{
    MX_ASSERT(d < MX_MAX_DIMS, "dim %d", d);
    slot[d] = c;
    if (is_out)
        l->in_out[c] = true;
    else
        l->in_in[c] = true;
}

/* Elementwise ops and row ops: dim i of the result is letter i + 1. */
static void read_elementwise(const mx_node *n, letters *l)
{
    int ndim = n->type.ndim;
    bool rows = n->op->kind != MX_ELEMENTWISE;
    for (int d = 0; d < ndim; d++)
        if (!(n->op->kind == MX_ROW_REDUCE && d == ndim - 1))
            note(l, l->out[0], d, (unsigned char)(d + 1), true);
    for (int i = 0; i < n->n_in; i++) {
        const mx_type *t = &n->in[i]->type;
        for (int d = 0; d < t->ndim; d++) {
            int at = d + ndim - t->ndim;
            if (t->dim[d] == n->type.dim[at] || (rows && at == ndim - 1))
                note(l, l->in[i], d, (unsigned char)(at + 1), false);
        }
    }
    bool sums = n->op->kind == MX_ROW_REDUCE && n->op->linear;
    l->whole[ndim] = rows && !sums;
}

static void read_term(letters *l, const mx_notation *nt, int t, const mx_type *type,
                      unsigned char *slot, bool is_out)
{
    if (t >= nt->n_terms || nt->term[t].unknown)
        return;
    int lead = type->ndim - nt->term[t].n;
    for (int d = 0; d < type->ndim; d++) {
        unsigned char c = (unsigned char)(d < lead ? d + 1 : nt->term[t].letter[d - lead]);
        if (c == '1')
            continue;
        note(l, slot, d, c, is_out);
        l->whole[c] |= d >= lead && nt->term[t].whole[d - lead];
    }
}

static bool read_letters(const mx_node *n, letters *l)
{
    if (mx_op_kind_is_tiled(n->op->kind)) {
        read_elementwise(n, l);
        return true;
    }
    const char *text = n->op->notation ? n->op->notation(n) : n->op->dims;
    mx_notation nt;
    if (!text || !mx_notation_parse(text, &nt))
        return false;
    for (int i = 0; i < n->n_in && i < nt.n_in; i++)
        if (n->in[i])
            read_term(l, &nt, i, &n->in[i]->type, l->in[i], false);
    for (int k = 0; k < n->n_out; k++)
        read_term(l, &nt, nt.n_in + k, mx_node_type(n, k), l->out[k], true);
    return true;
}

/* --- who gets what --- */

static void assign(letters *l, unsigned char c, const mx_cut *cut)
{
    mx_cut free = mx_cut_without(cut, l->used);
    if (l->whole[c] || !free.n || l->cut[c].n)
        return;
    l->cut[c] = free;
    l->used |= mx_cut_axes(&free);
}

static const mx_cut *cut_of(const mx_node *n, const letters *l, const mx_partition_call *p, int i,
                            unsigned char c)
{
    for (int d = 0; n->in[i] && d < n->in[i]->type.ndim; d++)
        if (l->in[i][d] == c)
            return &p->have[i].dim[d];
    return NULL;
}

/* Does a weight bring one of these axes for a letter of the result? */
static bool weight_has(const mx_node *n, const letters *l, const mx_partition_call *p,
                       mx_axis_set axes)
{
    for (int i = 0; i < n->n_in; i++)
        for (int d = 0; n->in[i] && p->weight[i] && d < n->in[i]->type.ndim; d++)
            if (l->in_out[l->in[i][d]] && (mx_cut_axes(&p->have[i].dim[d]) & axes))
                return true;
    return false;
}

static void assign_summed(const mx_node *n, letters *l, const mx_partition_call *p, unsigned char c)
{
    const mx_cut *alike = NULL, *activation = NULL;
    bool all = true, weights_whole = true;
    mx_axis_set in_weights = ~0u;
    for (int i = 0; i < n->n_in; i++) {
        const mx_cut *x = cut_of(n, l, p, i, c);
        if (!x)
            continue;
        all &= x->n && (!alike || mx_cut_equal(alike, x));
        alike = alike ? alike : x;
        if (!p->weight[i] && x->n && !activation)
            activation = x;
        else
            in_weights &= mx_cut_axes(x), weights_whole &= !x->n;
    }
    if (alike && all)
        assign(l, c, alike);
    else if (activation && (mx_cut_axes(activation) & ~in_weights) == 0)
        assign(l, c, activation); /* the weight has it, and more that is gathered */
    else if (activation && weights_whole && !weight_has(n, l, p, mx_cut_axes(activation)))
        assign(l, c, activation);
}

static void assign_wanted(const mx_node *n, letters *l, const mx_partition_call *p)
{
    for (int d = 0; d < n->type.ndim; d++)
        if (l->out[0][d] && p->want.dim[d].n)
            assign(l, l->out[0][d], &p->want.dim[d]);
}

/* Activations before weights; of those, what is summed already (and may be scattered) last. */
static void assign_given(const mx_node *n, letters *l, const mx_partition_call *p)
{
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; i < n->n_in; i++) {
            int rank = p->weight[i] ? 2 : p->have[i].partial ? 1 : 0;
            for (int d = 0; n->in[i] && rank == pass && d < n->in[i]->type.ndim; d++)
                if (l->in_out[l->in[i][d]])
                    assign(l, l->in[i][d], &p->have[i].dim[d]);
        }
}

static bool passes_sums(const mx_node *n)
{
    return n->op->is_linear ? n->op->is_linear(n) : n->op->linear;
}

/* The axes over which every float input is a partial sum, where the op is linear. */
static mx_axis_set common_sum(const mx_node *n, const mx_partition_call *p)
{
    mx_axis_set s = ~0u;
    bool any = false;
    for (int i = 0; i < n->n_in && passes_sums(n); i++)
        if (n->in[i]) {
            s &= p->have[i].partial;
            any = true;
        }
    return any && passes_sums(n) ? s : 0;
}

void mx_place_by_notation(const mx_node *n, mx_partition_call *p)
{
    letters l = {0};
    mx_axis_set sum = common_sum(n, p), summed = 0;
    memset(p->in, 0, sizeof p->in);
    memset(p->out, 0, sizeof p->out);
    l.used = sum;
    if (!read_letters(n, &l))
        return; /* everything whole */
    for (int c = 1; c < LETTERS; c++)
        if (l.in_in[c] && !l.in_out[c])
            assign_summed(n, &l, p, (unsigned char)c);
    if (p->has_want)
        assign_wanted(n, &l, p);
    else
        assign_given(n, &l, p);
    for (int i = 0; i < n->n_in; i++) {
        for (int d = 0; n->in[i] && d < n->in[i]->type.ndim; d++)
            p->in[i].dim[d] = l.cut[l.in[i][d]];
        p->in[i].partial = sum;
    }
    for (int c = 1; c < LETTERS; c++)
        if (l.in_in[c] && !l.in_out[c])
            summed |= mx_cut_axes(&l.cut[c]);
    for (int k = 0; k < n->n_out; k++) {
        for (int d = 0; d < mx_node_type(n, k)->ndim; d++)
            p->out[k].dim[d] = l.cut[l.out[k][d]];
        p->out[k].partial = sum | summed;
    }
}

/* ops_splits_test.c - every placement that an op's notation allows: its cases run on halves,
 * joined, against the whole. */
#include "ir/notation.h"
#include "op_trial.h"
#include "../test.h"
#include <stdio.h>
#include <string.h>

/* A way to cut a case in two: which dim of each input and output is cut, -1 for none. An output
 * that is not cut is the sum of the halves' outputs. */
typedef struct {
    int in[MX_MAX_IN], out[MX_MAX_OUT];
    bool skip[MX_MAX_OUT]; /* the notation says nothing about this output */
    char what[24];
} cut;

static void copy_half(const mx_type *whole, const double *x, int dim, int half, double *out,
                      bool back)
{
    int64_t run = 1, rows = 1;
    for (int i = 0; i < dim; i++)
        rows *= whole->dim[i];
    for (int i = dim; i < whole->ndim; i++)
        run *= whole->dim[i];
    for (int64_t r = 0; r < rows; r++) {
        const double *big = x + r * run + half * run / 2;
        double *small = out + r * run / 2;
        if (back)
            memcpy((double *)big, small, sizeof(double) * (size_t)run / 2);
        else
            memcpy(small, big, sizeof(double) * (size_t)run / 2);
    }
}

static void check_cut(op_trial *t, const op_outcome *whole, const cut *c)
{
    double *joined[MX_MAX_OUT];
    for (int k = 0; k < whole->n; k++)
        joined[k] = MX_NEW_N(&t->arena, double, mx_type_count(&whole->type[k]) + 1);
    for (int half = 0; half < 2; half++) {
        op_trial h = *t;
        op_outcome out;
        h.arena = (mx_arena){0};
        for (int i = 0; i < t->c->n_in; i++) {
            if (c->in[i] < 0)
                continue;
            h.x[i] = MX_NEW_N(&h.arena, double, mx_type_count(&t->type[i]) + 1);
            copy_half(&t->type[i], t->x[i], c->in[i], half, h.x[i], false);
            h.type[i].dim[c->in[i]] /= 2;
        }
        bool ok = op_trial_forward(&h, MX_F64, &out);
        for (int k = 0; ok && k < whole->n; k++) {
            int64_t n = mx_type_count(&out.type[k]);
            int64_t want = mx_type_count(&whole->type[k]) / (c->out[k] >= 0 ? 2 : 1);
            MX_CHECK(n == want || c->skip[k], "%s, case %d, %s: output %d of a half has %lld "
                     "elements, expected %lld", t->op->name, t->index, c->what, k, (long long)n,
                     (long long)want);
            if (n != want)
                continue;
            if (c->out[k] >= 0)
                copy_half(&whole->type[k], joined[k], c->out[k], half, out.y[k], true);
            for (int64_t j = 0; j < n && c->out[k] < 0; j++)
                joined[k][j] += out.y[k][j];
        }
        mx_arena_fini(&h.arena);
    }
    for (int k = 0; k < whole->n; k++) {
        double far = mx_test_distance(joined[k], whole->y[k], mx_type_count(&whole->type[k]), 1e-3);
        MX_CHECK(c->skip[k] || !op_trial_has_output(t, k) || far < 1e-12,
                 "%s, case %d, %s: the halves' output %d is off by %.2g", t->op->name, t->index,
                 c->what, k, far);
    }
}

/* A dim of a tensor counted from the right in the outputs (elementwise and row ops). */
static void cut_from_right(op_trial *t, const op_outcome *whole, int from_right)
{
    cut c = {0};
    const mx_type *y = &whole->type[0];
    int64_t size = 1;
    snprintf(c.what, sizeof c.what, "dim -%d cut", from_right);
    for (int i = 0; i < t->c->n_in; i++) {
        c.in[i] = t->type[i].ndim - from_right;
        if (c.in[i] >= 0 && t->type[i].dim[c.in[i]] == 1)
            c.in[i] = -1;
        if (c.in[i] >= 0)
            size = t->type[i].dim[c.in[i]];
    }
    c.out[0] = y->ndim - from_right;
    if (size > 1 && size % 2 == 0)
        check_cut(t, whole, &c);
}

/* The dim that `letter` is in term t of a tensor with ndim dims, or -1. */
static int dim_of_letter(const mx_notation *n, int t, int ndim, char letter)
{
    for (int k = 0; k < n->term[t].n; k++)
        if (n->term[t].letter[k] == letter)
            return ndim - n->term[t].n + k;
    return -1;
}

/* `letter` cut, or with letter '*' the leading dim number `lead`. */
static void cut_letter(op_trial *t, const op_outcome *whole, const mx_notation *nt, char letter,
                       int lead)
{
    cut c = {0};
    bool whole_dim = false;
    int64_t size = 0;
    snprintf(c.what, sizeof c.what, "'%c' %d cut", letter, lead);
    for (int i = 0; i < nt->n_in + whole->n; i++) {
        bool is_in = i < nt->n_in;
        if (is_in && i >= t->c->n_in)
            continue;
        int term = i; /* outputs follow the notation's inputs */
        const mx_type *x = is_in ? &t->type[i] : &whole->type[i - nt->n_in];
        bool absent = is_in && t->c->in[i].absent, known = term < nt->n_terms;
        int n_lead = known ? x->ndim - nt->term[term].n : 0, d = -1;
        if (known && !absent && letter == '*')
            d = nt->term[term].star && lead < n_lead ? lead : -1;
        else if (known && !absent)
            d = dim_of_letter(nt, term, x->ndim, letter);
        for (int k = 0; known && k < nt->term[term].n; k++)
            whole_dim |= nt->term[term].letter[k] == letter && nt->term[term].whole[k];
        if (is_in) {
            c.in[i] = d;
            size = d >= 0 ? x->dim[d] : size;
        } else {
            c.out[i - nt->n_in] = d;
            c.skip[i - nt->n_in] = !known || nt->term[term].unknown;
        }
    }
    if (!whole_dim && size > 1 && size % 2 == 0)
        check_cut(t, whole, &c);
}

static bool has_shape_attribute(const mx_op *op)
{
    for (const mx_attr_field *f = op->fields; f && f->name; f++)
        if (f->kind == MX_ATTR_DIMS)
            return true;
    return false;
}

static void check_splits(op_trial *t)
{
    op_outcome whole;
    mx_op_kind kind = t->op->kind;
    /* A global shape among the attributes would have to be cut too: the partition pass's affair. */
    if (has_shape_attribute(t->op) || !op_trial_forward(t, MX_F64, &whole))
        return;
    bool rows = kind == MX_ROW_REDUCE || kind == MX_ROW_MAP;
    if (kind == MX_ELEMENTWISE || rows)
        for (int d = rows ? 2 : 1; d <= whole.type[0].ndim; d++)
            cut_from_right(t, &whole, d);
    mx_graph g;
    mx_graph_init(&g);
    mx_node *n = op_trial_build(&g, t, MX_F64, false);
    const char *text = t->op->notation ? t->op->notation(n) : t->op->dims;
    mx_notation nt;
    if (text) {
        bool parsed = mx_notation_parse(text, &nt);
        MX_CHECK(parsed, "%s: malformed notation %s", t->op->name, text);
        for (int letter = 'A'; parsed && letter <= 'z'; letter++)
            cut_letter(t, &whole, &nt, (char)letter, 0);
        for (int lead = 0; parsed && lead < MX_MAX_DIMS; lead++)
            cut_letter(t, &whole, &nt, '*', lead);
    }
    mx_graph_fini(&g);
}

MX_TEST(ops_halves_join_to_the_whole)
{
    op_each_case(check_splits);
}

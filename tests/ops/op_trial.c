/* op_trial.c - see op_trial.h. */
#include "op_trial.h"

#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void op_trial_init(op_trial *t, const mx_op *op, int index)
{
    *t = (op_trial){.op = op, .c = &op->cases[index], .index = index};
    for (int i = 0; i < t->c->n_in; i++) {
        const mx_case_in *in = &t->c->in[i];
        t->type[i] = (mx_type){.dtype = in->dtype, .ndim = in->ndim};
        memcpy(t->type[i].dim, in->dim, sizeof in->dim);
        int64_t n = mx_type_count(&t->type[i]);
        bool real = mx_dtype_is_float(in->dtype), given = in->lo != 0 || in->hi != 0;
        t->x[i] = MX_NEW_N(&t->arena, double, n + 1);
        mx_test_fill(t->x[i], n, given ? in->lo : real ? -1 : 0, given ? in->hi : real ? 1 : 0,
                     (uint64_t)(index * 100 + i + 1));
        for (int64_t k = 0; k < n && !real; k++)
            t->x[i][k] = floor(t->x[i][k]);
    }
}

void op_trial_round(op_trial *t, mx_dtype d)
{
    for (int i = 0; i < t->c->n_in; i++)
        for (int64_t k = 0; k < mx_type_count(&t->type[i]); k++)
            t->x[i][k] = mx_test_round(t->x[i][k], d);
}

void op_each_case_on(mx_session *gpu, void (*body)(op_trial *t))
{
    const char *only = getenv("MX_TEST_OPS");
    for (int o = 0; o < mx_op_count; o++) {
        const mx_op *op = mx_op_table[o];
        bool wanted = op->cases && (!only || strstr(only, op->name));
        for (int i = 0; wanted && op->cases[i].n_in; i++) {
            op_trial t;
            op_trial_init(&t, op, i);
            t.gpu = gpu;
            body(&t);
            mx_arena_fini(&t.arena);
        }
    }
}

void op_each_case(void (*body)(op_trial *t))
{
    op_each_case_on(NULL, body);
}

mx_dtype op_case_dtype(const mx_op *op, const mx_case *c, int i, mx_dtype real)
{
    if (!mx_dtype_is_float(c->in[i].dtype) || c->in[i].fixed)
        return c->in[i].dtype;
    bool narrow = !op->dtypes_at[i] || op->dtypes_at[i] >> MX_BF16 & 1;
    bool cast = narrow && (!op->n_cast || i < op->n_cast);
    return real != MX_BF16 || cast ? real : MX_F32;
}

mx_node *op_trial_build(mx_graph *g, const op_trial *t, mx_dtype real, bool wrapped)
{
    mx_node *in[MX_MAX_IN] = {0};
    for (int i = 0; i < t->c->n_in; i++) {
        if (t->c->in[i].absent)
            continue;
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        in[i] = mx_input(g, name, mx_shape_of(&t->type[i]), op_case_dtype(t->op, t->c, i, real));
        if (wrapped && mx_dtype_is_float(t->type[i].dtype) && !t->c->in[i].fixed)
            in[i] = mx_add(g, mx_affine(g, in[i], 0.5, 0.25), mx_affine(g, in[i], 0.5, -0.25));
    }
    int n_out = t->op->n_out < 0 ? t->c->n_out : t->op->n_out ? t->op->n_out : 1;
    return mx_apply_n(g, t->op, t->c->attr, t->c->n_in, in, n_out);
}

void op_trial_write(mx_graph_run *r, const op_trial *t)
{
    for (int i = 0; i < t->c->n_in; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        if (!t->c->in[i].absent)
            mx_graph_run_write(r, name, t->x[i]);
    }
}

bool op_trial_compile(mx_graph_run *r, const op_trial *t, bool merge)
{
    mx_status st = mx_graph_run_compile(r, merge);
    MX_CHECK(!st, "%s, case %d: %s", t->op->name, t->index, mx_status_text(st));
    bool ok = !st;
    mx_status_free(st);
    return ok;
}

bool op_trial_finish(mx_graph_run *r, op_trial *t, bool merge, op_outcome *out)
{
    bool ok = op_trial_compile(r, t, merge);
    if (ok) {
        op_trial_write(r, t);
        mx_graph_run_go(r);
    }
    for (int k = 0; ok && k < out->n; k++) {
        char name[16];
        out->y[k] = MX_NEW_N(&t->arena, double, mx_type_count(&out->type[k]) + 1);
        snprintf(name, sizeof name, "y%d", k);
        mx_graph_run_read(r, name, out->y[k]);
    }
    mx_graph_run_fini(r);
    return ok;
}

bool op_trial_forward(op_trial *t, mx_dtype real, op_outcome *out)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    r.shared = real == MX_F64 ? NULL : t->gpu;
    mx_node *n = op_trial_build(&r.graph, t, real, false);
    char name[16];
    out->n = n->n_out;
    for (int k = 0; k < n->n_out; k++) {
        snprintf(name, sizeof name, "y%d", k);
        mx_graph_root(&r.graph, name, mx_output(&r.graph, n, k));
        out->type[k] = *mx_node_type(n, k);
    }
    return op_trial_finish(&r, t, true, out);
}

bool op_trial_has_output(const op_trial *t, int k)
{
    int a = t->op->alias[k];
    return !a || !t->c->in[a - 1].absent;
}

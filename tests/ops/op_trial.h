/* op_trial.h - an op of the table on one of its own test cases: what the tests of all ops share. */
#ifndef MX_TESTS_OP_TRIAL_H
#define MX_TESTS_OP_TRIAL_H

#include "../compile/graph_run.h"
#include "ops.h"

/* One case with its types and values. */
typedef struct {
    const mx_op *op;
    const mx_case *c;
    int index;
    mx_type type[MX_MAX_IN];
    double *x[MX_MAX_IN];
    mx_arena arena;
    mx_session *gpu; /* borrows; where float32 and bfloat16 run (float64 never does); NULL: CPU */
} op_trial;

/* What a run gave. Values are in the trial's arena. */
typedef struct {
    int n;
    mx_type type[MX_MAX_OUT];
    double *y[MX_MAX_OUT];
} op_outcome;

/* The values as this dtype can hold them, so that runs in two dtypes see the same numbers. */
void op_trial_round(op_trial *t, mx_dtype d);
/* Runs `body` for every case of every op, or of those that MX_TEST_OPS names. */
void op_each_case_on(mx_session *gpu, void (*body)(op_trial *t));
void op_each_case(void (*body)(op_trial *t));
/* What input i of a case is where computing is done in `real`: a dtype that the op takes there. */
mx_dtype op_case_dtype(const mx_op *op, const mx_case *c, int i, mx_dtype real);
/* The op on inputs named x0, x1, ...; floats in the given dtype. With `wrapped`, float inputs pass
 * through elementwise nodes first, so that there is something to fuse with. */
mx_node *op_trial_build(mx_graph *g, const op_trial *t, mx_dtype real, bool wrapped);
void op_trial_write(mx_graph_run *r, const op_trial *t);
bool op_trial_compile(mx_graph_run *r, const op_trial *t, bool merge);
/* Compiles, runs, reads the roots y0, y1, ... whose types are in `out`, and ends r. */
bool op_trial_finish(mx_graph_run *r, op_trial *t, bool merge, op_outcome *out);
/* The forward pass. False when it could not be built (which has been reported). */
bool op_trial_forward(op_trial *t, mx_dtype real, op_outcome *out);
/* An output that would overwrite an input which is absent holds nothing. */
bool op_trial_has_output(const op_trial *t, int k);

#endif

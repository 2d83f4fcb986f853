/* graph_run.h - build a graph, compile it, run it, read what came out: for tests.
 *
 *     mx_graph_run r;
 *     mx_graph_run_init(&r);
 *     mx_node *x = mx_input(&r.graph, "x", MX_SHAPE(3, 8), MX_F64);
 *     mx_graph_root(&r.graph, "y", mx_exp(&r.graph, x));
 *     MX_CHECK_OK(mx_graph_run_compile(&r, true));
 *     mx_graph_run_write(&r, "x", values);
 *     mx_graph_run_go(&r);
 *     mx_graph_run_read(&r, "y", result);
 *     mx_graph_run_fini(&r);
 * Values are doubles on this side, whatever the tensor's dtype.
 */
#ifndef MX_TESTS_GRAPH_RUN_H
#define MX_TESTS_GRAPH_RUN_H

#include "device/device.h"

typedef struct {
    mx_graph graph;
    mx_program program;
    mx_session *session;
    mx_exec *exec;
    int n_threads; /* 2 unless changed before compiling */
    mx_session *shared; /* borrows; set before compiling: run there, not in a session of its own */
} mx_graph_run;

void mx_graph_run_init(mx_graph_run *r);
/* Verifies, fuses (merge as in mx_pass_fuse), verifies again, places, opens a session, gives
 * variables their initial values. */
mx_status mx_graph_run_compile(mx_graph_run *r, bool merge) MX_MUST_USE;
void mx_graph_run_write(mx_graph_run *r, const char *name, const double *values);
void mx_graph_run_go(mx_graph_run *r);
void mx_graph_run_read(mx_graph_run *r, const char *name, double *values);
void mx_graph_run_fini(mx_graph_run *r);

/* A training program of input x that keeps its gradients (MX_GRADS_KEEP), run once on the CPU from
 * weights of a fixed seed. Gives its loss; grad has `room` numbers for each weight. */
float mx_test_gradients(const mx_program *p, const char *const *weight, int n, float *grad,
                        int64_t room);
/* Those of two programs are within `limit` of each other, of the largest of each weight. */
void mx_test_same_gradients(const float *a, const float *b, const char *const *weight, int n,
                            int64_t room, double limit);

/* n values in [lo, hi), a pure function of the seed. */
void mx_test_fill(double *x, int64_t n, double lo, double hi, uint64_t seed);
/* x as a tensor of this dtype holds it. */
double mx_test_round(double x, mx_dtype d);
/* The largest |a[i] - b[i]|, relative to the largest |b[i]| or to `floor`, whichever is larger. */
double mx_test_distance(const double *a, const double *b, int64_t n, double floor);

#endif

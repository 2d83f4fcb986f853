/* optimizer.h - what the optimizer pass is told. */
#ifndef MX_COMPILE_OPTIMIZER_H
#define MX_COMPILE_OPTIMIZER_H

#include "ir/graph.h"

typedef enum { MX_ADAMW, MX_SGD } mx_optimizer_kind;

typedef struct {
    mx_optimizer_kind kind;
    double b1, b2, eps, eps_root, weight_decay;
    double clip;           /* global norm; 0: no clip */
    const char *no_decay;  /* comma-separated shell patterns of weights without decay */
    mx_dtype moment_dtype; /* float32, or bfloat16 to halve the state */
} mx_optimizer;

/* grad[i] is the gradient of var[i]; NULL leaves the weight alone. */
void mx_pass_optimizer(mx_graph *g, const mx_optimizer *o, mx_node *const *var,
                       mx_node *const *grad, int n);

#endif

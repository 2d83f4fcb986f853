/* optimizer.h - what the optimizer pass is told. */
#ifndef MX_COMPILE_OPTIMIZER_H
#define MX_COMPILE_OPTIMIZER_H

#include "ir/graph.h"

typedef enum { MX_ADAMW, MX_SGD, MX_MUON } mx_optimizer_kind;

typedef struct {
    mx_optimizer_kind kind;
    double b1, b2, eps, eps_root, weight_decay;
    double momentum;                        /* of SGD; 0: none */
    double muon_beta, muon_decay, muon_rms; /* rms 0: scaled by the matrix's shape */
    int muon_steps;
    double clip;                 /* global norm; 0: no clip */
    const char *no_decay;        /* comma-separated shell patterns of weights without decay */
    mx_dtype mu_dtype, nu_dtype; /* of the moments: float32, or bfloat16 to halve them */
    bool eight_bits;   /* AdamW: moments of 8 bits, of weights that are not small */
    bool on_host;      /* the state is kept in host memory and read and written from there */
    bool skips_spikes; /* inputs norm_limit and loss_limit: above them nothing is updated */
} mx_optimizer;

/* How many steps changed nothing: a scalar variable that the pass adds. */
#define MX_SKIPPED_STEPS "skipped_steps"

struct mx_partition;
/* A root of this name and a weight's, "row_scale:NAME", (rows of NAME): after the update the rows
 * are multiplied by it. Where a step has several microbatches or ranks, the smallest factor counts:
 * programs that accumulate leave it in a variable "NAME.row_scale". */
#define MX_ROW_SCALE_ROOT "row_scale:"
/* The weight that a root rescales; NULL: none. */
const char *mx_row_scale_of(const mx_node *root);
/* That variable. */
mx_node *mx_row_scale_variable(mx_graph *g, const mx_node *root);

/* grad[i] is the gradient of var[i]; NULL leaves the weight alone. `on`: the mesh that they are cut
 * over; NULL: one device. */
void mx_pass_optimizer(mx_graph *g, const mx_optimizer *o, mx_node *const *var,
                       mx_node *const *grad, int n, const struct mx_partition *on);

/* The first cast of each node, by the node's id; NULL: none. In the arena. */
mx_node **mx_first_casts(const mx_graph *g, mx_arena *arena);
/* The cast of a weight to the compute dtype becomes a variable that updates rewrite; NULL: NULL.
 * Takes effect in mx_graph_resolve. */
mx_node *mx_weight_copy(mx_graph *g, const mx_node *w, mx_node *cast);

/* muon.c. How far to go along a direction: w <- w - lr (factor direction + decay w); where the clip
 * scale is not finite nothing happens. */
typedef struct {
    mx_node *lr, *scale;
    double factor, decay;
} mx_step_rule;
bool mx_muon_takes(const mx_node *w); /* is this a weight for Muon? The rest gets AdamW */
/* in: weight, gradient, momentum, copy in the compute dtype or NULL. */
mx_node *mx_muon(mx_graph *g, const mx_optimizer *o, mx_node *const in[4], mx_step_rule r,
                 mx_node *step, const struct mx_partition *on);
/* m <- keep m + take scale d; gives the new m. */
mx_node *mx_momentum(mx_graph *g, mx_node *m, mx_node *d, mx_node *scale, double keep, double take);
mx_node *mx_step_along(mx_graph *g, mx_node *w, mx_node *direction, mx_step_rule r, mx_node *copy);

#endif

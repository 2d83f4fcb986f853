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
    bool on_host;      /* the state is kept in host memory and read and written from there */
    bool skips_spikes; /* inputs norm_limit and loss_limit: above them nothing is updated */
} mx_optimizer;

/* How many steps changed nothing: a scalar variable that the pass adds. */
#define MX_SKIPPED_STEPS "skipped_steps"

struct mx_partition;
/* grad[i] is the gradient of var[i]; NULL leaves the weight alone. `on`: the mesh that they are cut
 * over; NULL: one device. */
void mx_pass_optimizer(mx_graph *g, const mx_optimizer *o, mx_node *const *var,
                       mx_node *const *grad, int n, const struct mx_partition *on);

/* muon.c. How far to go along a direction: w <- w - lr (factor direction + decay w); where the clip
 * scale is not finite nothing happens. */
typedef struct {
    mx_node *lr, *scale;
    double factor, decay;
} mx_step_rule;
bool mx_muon_takes(const mx_node *w); /* is this a weight for Muon? The rest gets AdamW */
/* in: weight, gradient, momentum, copy in the compute dtype or NULL. */
mx_node *mx_muon(mx_graph *g, const mx_optimizer *o, mx_node *const in[4], mx_step_rule r,
                 mx_node *step);
/* m <- keep m + take scale d; gives the new m. */
mx_node *mx_momentum(mx_graph *g, mx_node *m, mx_node *d, mx_node *scale, double keep, double take);
mx_node *mx_step_along(mx_graph *g, mx_node *w, mx_node *direction, mx_step_rule r, mx_node *copy);

#endif

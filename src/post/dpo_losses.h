/* dpo_losses.h - the losses of direct preference optimisation, as TRL names them. */
#ifndef MX_POST_DPO_LOSSES_H
#define MX_POST_DPO_LOSSES_H

#include "ir/graph.h"

/* What they are made from, all (P, 1). c and r are log p - log p_ref of the chosen and rejected
 * answers, summed over their tokens; scores are the map of f_divergence_type of these. */
typedef struct {
    mx_graph *g;
    double beta, smoothing, tau;
    bool conservative;          /* label smoothing of sigmoid is cDPO's (MaxText) */
    mx_node *c, *r;
    mx_node *c_score, *r_score, *delta;
    mx_node *c_length, *r_length; /* at least 1 */
    mx_node *ratio, *ref_ratio;   /* chosen - rejected, of the model and of the reference */
    mx_node *there;               /* 1: a pair, 0: padding, which follows all pairs */
    mx_node *nll;                 /* of the chosen tokens of the batch, their mean */
} mx_pair;

typedef struct {
    const char *name;
    mx_node *(*build)(const mx_pair *p); /* (P, 1) */
} mx_dpo_loss;

const mx_dpo_loss *mx_dpo_loss_find(const char *name, size_t n); /* NULL when there is none */
const char *mx_dpo_loss_names(mx_arena *a);

#endif

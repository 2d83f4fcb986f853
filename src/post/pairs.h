/* pairs.h - a batch of chosen and rejected answers in the graph: P pairs, rows alternating. */
#ifndef MX_POST_PAIRS_H
#define MX_POST_PAIRS_H

#include "post/tokens.h"
#include "train/run/objective.h"

/* x (2 P, 1), or (2 P S): what belongs to one side, (P, 1) or (P, S). */
mx_node *mx_side(mx_graph *g, mx_node *x, int side);

/* One number for each pair, as a scalar: its mean over the pairs of which `there` is 1. */
mx_node *mx_pair_mean(mx_graph *g, mx_node *x, mx_node *there);

/* rewards/{chosen,rejected,accuracies,margins} of such numbers, and with Tunix's names too:
 * rewards/{accuracy,margin}. */
void mx_reward_metrics(mx_graph *g, mx_node *chosen, mx_node *rejected, mx_node *there,
                       bool tunix);
/* logps/{chosen,rejected}, which Tunix has as log_probs. */
void mx_logp_metrics(mx_graph *g, mx_node *chosen, mx_node *rejected, mx_node *there, bool tunix);

/* log sigmoid(x). */
mx_node *mx_log_sigmoid(mx_graph *g, mx_node *x);

/* Pairs of a batch that are not padding. */
int64_t mx_count_pairs(const mx_objective_run *o, const mx_batch *b);

/* `beta`, else the other key. */
double mx_beta_of(const mx_config *c, const char *other);

#endif

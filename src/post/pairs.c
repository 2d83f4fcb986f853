/* pairs.c - see pairs.h. */
#include "post/pairs.h"

#include "ops.h"

mx_node *mx_side(mx_graph *g, mx_node *x, int side)
{
    int64_t rows = x->type.dim[0], cols = mx_type_count(&x->type) / rows;
    mx_node *pairs = mx_reshape(g, x, MX_SHAPE(rows / 2, 2 * cols));
    return mx_slice(g, pairs, 1, side * cols, cols);
}

mx_node *mx_pair_mean(mx_graph *g, mx_node *x, mx_node *there)
{
    return mx_mean_counted(g, x, there);
}

void mx_reward_metrics(mx_graph *g, mx_node *chosen, mx_node *rejected, mx_node *there,
                       bool tunix)
{
    mx_node *right = mx_pair_mean(g, mx_greater(g, chosen, rejected), there);
    mx_node *margin = mx_pair_mean(g, mx_sub(g, chosen, rejected), there);
    mx_metric_root(g, "rewards/chosen", mx_pair_mean(g, chosen, there));
    mx_metric_root(g, "rewards/rejected", mx_pair_mean(g, rejected, there));
    mx_metric_root(g, "rewards/accuracies", right);
    mx_metric_root(g, "rewards/margins", margin);
    if (!tunix)
        return;
    mx_metric_root(g, "rewards/accuracy", right);
    mx_metric_root(g, "rewards/margin", margin);
}

void mx_logp_metrics(mx_graph *g, mx_node *chosen, mx_node *rejected, mx_node *there, bool tunix)
{
    mx_metric_root(g, tunix ? "log_probs/chosen" : "logps/chosen", mx_pair_mean(g, chosen, there));
    mx_metric_root(g, tunix ? "log_probs/rejected" : "logps/rejected",
                   mx_pair_mean(g, rejected, there));
}

mx_node *mx_log_sigmoid(mx_graph *g, mx_node *x)
{
    return mx_affine(g, mx_softplus(g, mx_affine(g, x, -1, 0)), -1, 0);
}

int64_t mx_count_pairs(const mx_objective_run *o, const mx_batch *b)
{
    int64_t n = 0;
    (void)o;
    for (int64_t row = 0; row < b->rows; row += 2)
        for (int64_t i = 0; i < b->seq_len; i++)
            if (b->labels[row * b->seq_len + i] >= 0) {
                n++;
                break;
            }
    return n;
}

double mx_beta_of(const mx_config *c, const char *other)
{
    double beta = mx_config_float(c, "beta");
    return beta >= 0 ? beta : mx_config_float(c, other);
}

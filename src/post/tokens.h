/* tokens.h - the log-probabilities of a batch's tokens in the graph, and what is known about the
 * distributions they come from. B rows of S places, n = B S, V the vocabulary.
 */
#ifndef MX_POST_TOKENS_H
#define MX_POST_TOKENS_H

#include "data/load/loader.h"
#include "device/device.h"
#include "models/model.h"

/* How an input or a result (B, S) lies on a mesh. */
#define MX_ROWS_AXES "activation_batch,activation_length"
#define MX_PLACES_AXES "activation_batch,activation_length," /* (B, S, k) */
#define MX_BATCH_AXES "activation_batch"                     /* (B) */

typedef struct {
    int64_t batch, seq;
    int64_t row_ranks; /* as in mx_build */
    mx_node *x;       /* (n, d) hidden states */
    mx_node *labels;  /* (n) int32, the input "labels"; below 0: not counted */
    mx_node *counts;  /* (n) 1 where a token counts, else 0 */
    mx_node *logp;    /* (n) of the labels; 0 where none counts */
    mx_node *lse;     /* (n) of the logits, likewise */
    mx_node *scale;   /* the input "loss_scale" */
    double tempered;  /* the head's factor on logits, divided by the temperature */
} mx_token_logps;

/* Declares the inputs. temperature divides the logits. */
mx_token_logps mx_logps_of(mx_graph *g, const mx_head *h, const mx_build *b, double temperature);

/* Sum over the places of each row: (n) -> (B, 1). */
mx_node *mx_row_sums(mx_graph *g, const mx_token_logps *t, mx_node *each);
/* The mean of `each` over the places where `counts` is 1, a scalar; 0 where there is none. */
mx_node *mx_mean_counted(mx_graph *g, mx_node *each, mx_node *counts);

/* Of the distribution at every place, without gradients; all (n), 0 where none counts. */
typedef struct {
    mx_node *entropy; /* in nats */
    mx_node *top1;    /* 1 where the label is the likeliest token */
    mx_node *logit;   /* the mean of the logits over the vocabulary */
    mx_node *squares; /* log sum p^2 */
} mx_token_facts;
mx_token_facts mx_facts_of(mx_graph *g, const mx_head *h, const mx_token_logps *t);

/* Rows of a batch, from `row` on, into a program that trains nothing: loss_scale is 1. */
mx_status mx_feed_frozen(mx_exec *e, const mx_batch *b, int64_t row) MX_MUST_USE;

/* An input that lies so on a mesh. */
mx_node *mx_rows_input(mx_graph *g, const char *name, mx_shape shape, mx_dtype dtype,
                       const char *axes);

/* A scalar that is logged as NAME. */
void mx_metric_root(mx_graph *g, const char *name, mx_node *x);

/* The root "loss": with the losses that the model's own blocks add, weighted by this microbatch's
 * share of what the loss is a mean over (share: a scalar), or by the input "aux_scale" where the
 * objective is one of TRL's that balances experts. */
mx_node *mx_loss_root(mx_graph *g, const mx_build *b, mx_node *loss, mx_node *share);

#endif

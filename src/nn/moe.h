/* moe.h - mixtures of experts: a router chooses k of E experts for each token, the tokens are
 * sorted by expert, each expert's weights multiply its own rows, and the results come back
 * weighted.
 *
 * B batch, S sequence, N = B S tokens, d model, E experts, k choices of a token, f hidden size of
 * an expert. A family with the usual form is four lines:
 *
 *     mx_node *logits = mx_router_logits(g, b, x, "gate", c->moe.experts, false);
 *     mx_routing r = mx_route(g, logits, mx_softmax(g, logits),
 *                             (mx_gating){.k = 2, .renormalise = true});
 *     mx_balance(g, b, &c->moe, &r);
 *     return mx_expert_mlp(g, b, x, &r, &c->moe,
 *                          (mx_expert_names){"gate_proj", "up_proj", "down_proj"},
 *                          MX_ACT_SILU);
 *
 * Names. The weights of all experts are one variable whose first dim is the expert (logical axis
 * "exp"). Where checkpoints have a tensor per expert, the variable's name has a `*` in the place of
 * the expert's number ("model.layers.0.mlp.experts.*.up_proj.weight"), and src/store reads and
 * writes one tensor for each.
 */
#ifndef MX_NN_MOE_H
#define MX_NN_MOE_H

#include "nn/nn.h"

/* What families configure. */
typedef struct {
    int64_t experts, k, d_ff;
    bool renormalise;       /* the weights of the chosen sum to one */
    double scale;           /* factor on them; 0 means 1 */
    double capacity;        /* tokens an expert takes, relative to an even share; <= 0: all */
    bool balance;           /* add the two losses below (output_router_logits) */
    double balance_weight;  /* load-balancing loss */
    double z_weight;        /* mean of the squared log of the router's partition sum */
} mx_moe;

/* --- routers --- */

typedef struct {
    mx_node *expert; /* (N, k) int32 */
    mx_node *weight; /* (N, k) */
    mx_node *logits; /* (N, E) */
    int64_t experts, k;
    mx_node *order; /* sort_by_expert of expert; NULL: not made yet */
} mx_routing;

/* x (B, S, d) -> (N, E) in float32, by NAME.weight (E, d) and, if asked, NAME.bias (E). */
mx_node *mx_router_logits(mx_graph *g, const mx_build *b, mx_node *x, const char *name,
                          int64_t experts, bool bias);

/* How experts are chosen by their scores. Only k is required. */
typedef struct {
    int64_t k;
    bool renormalise;
    double scale;        /* factor on the weights; 0 means 1 */
    mx_node *bias;       /* (E) added to the scores for the choice, not for the weights */
    int64_t groups;      /* experts in as many equal groups, of which the best are open; 0: none */
    int64_t open_groups;
    mx_node *expert;     /* (N, k) int32: chosen beforehand, by a table; NULL: by the scores */
    int64_t group_best; /* a group is as good as the sum of this many best experts (V2: 1, V3: 2) */
} mx_gating;

/* The k experts with the highest scores; their weights are the scores themselves (or their
 * shares). */
mx_routing mx_route(mx_graph *g, mx_node *logits, mx_node *scores, mx_gating c);
/* The k highest logits; the weights are the softmax of these alone (GPT-OSS). */
mx_routing mx_route_top(mx_graph *g, mx_node *logits, int64_t k);

/* The experts of each token by a table of the checkpoint, NAME (vocab, k) int32, which is never
 * trained: (N, k) int32. In a new model every token has k experts at random. */
mx_node *mx_router_table(mx_graph *g, const mx_build *b, const char *name, int64_t vocab,
                         const mx_moe *m);

/* The bias that balances without a loss: a frozen weight (E), in training moved by `rate` towards
 * the experts with less than their share of the tokens (rate 0: not moved). Declare before routing,
 * update after. */
mx_node *mx_router_bias(mx_graph *g, const char *name, int64_t experts);
void mx_router_bias_update(mx_graph *g, const mx_build *b, mx_node *bias, mx_routing *r,
                           double rate);

/* Enters a layer's routing into the losses of m, where they are on, and in training into the
 * metrics: expert_load_max and expert_load_min, over all layers the load of the busiest and of the
 * idlest expert relative to an even one (1 and 1: balanced; E / k: one expert takes every token),
 * and the losses themselves, router_balance_loss and router_z_loss. */
void mx_balance(mx_graph *g, mx_build *b, const mx_moe *m, mx_routing *r);
/* After the last layer: b->aux_loss gets what the layers entered. Called by mx_model_build. */
void mx_balance_finish(mx_graph *g, mx_build *b);

/* --- experts --- */

/* Tokens once per choice, sorted by expert. */
typedef struct {
    mx_node *rows;                 /* (N k, d) */
    mx_node *weight;               /* (N k, 1) */
    mx_node *expert;               /* (N k) int32; E: dropped */
    mx_node *start, *order, *place;
    int64_t experts, tokens;
} mx_dispatch;

/* capacity > 0: an expert takes capacity S k / E entries of a sequence and no more.
 * Decoding never drops. */
mx_dispatch mx_dispatch_tokens(mx_graph *g, const mx_build *b, mx_node *x, const mx_routing *r,
                               double capacity);
/* y (N k, d) -> (B, S, d): added up over the choices. */
mx_node *mx_combine(mx_graph *g, const mx_build *b, const mx_dispatch *t, mx_node *y);
/* h (N k, f), each row times its weight. Before the down projection rather than after it, where
 * that is linear: f is smaller than d, the multiplication fuses with the activation, and the
 * gradient of the weights does not need the projection's result, which then is not kept. */
mx_node *mx_weigh(mx_graph *g, const mx_dispatch *t, mx_node *h);

/* h (N k, in) -> (N k, out): each row by its expert's weight. in_out: stored (E, in, out),
 * otherwise (E, out, in). `axes` as stored, "exp,mlp_moe,embed_moe". */
mx_node *mx_expert_linear(mx_graph *g, const mx_build *b, const mx_dispatch *t, mx_node *h,
                          const char *name, int64_t out, const char *axes, bool in_out);
/* Those of a gate and an up projection in one, f each. */
const char *mx_gate_up_axes(mx_graph *g, int64_t f, bool in_out);
/* + NAME (E, out), each row its expert's; `axes` "exp,mlp_moe". */
mx_node *mx_expert_bias(mx_graph *g, const mx_dispatch *t, mx_node *h, const char *name,
                        const char *axes);

/* down(act(gate(x)) * up(x)) of the chosen experts, weighted: experts.N.NAME.weight. */
typedef struct {
    const char *gate, *up, *down;
} mx_expert_names;
mx_node *mx_expert_mlp(mx_graph *g, const mx_build *b, mx_node *x, const mx_routing *r,
                       const mx_moe *m, mx_expert_names names, mx_act act);

/* The expert that sees every token: a gated MLP under NAME; gate: its output times sigmoid of the
 * linear map GATE (1, d); NULL: none. */
mx_node *mx_shared_expert(mx_graph *g, const mx_build *b, mx_node *x, const char *name,
                          int64_t d_ff, mx_act act, const char *gate);

#endif

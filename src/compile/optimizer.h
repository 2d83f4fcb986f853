/* optimizer.h - settings of the optimizer pass, and what an update rule is.
 *
 * A rule is one const struct in its own file, optimizer_NAME.c, found by tools/scan; the key
 * opt_type chooses it. docs/extending.md shows one.
 */
#ifndef MX_COMPILE_OPTIMIZER_H
#define MX_COMPILE_OPTIMIZER_H

#include "base/config.h"
#include "ir/graph.h"

struct mx_partition;
struct mx_optimizer_rule;

typedef struct mx_optimizer {
    const struct mx_optimizer_rule *rule; /* NULL: AdamW */
    const void *own;                      /* numbers of the rule's own: its `configure`. Borrows */
    double b1, b2, eps, eps_root, weight_decay;
    double clip;                 /* global norm; 0: no clip */
    const char *no_decay;        /* comma-separated shell patterns of weights without decay */
    mx_dtype mu_dtype, nu_dtype; /* of the moments: float32, or bfloat16 to halve them */
    bool on_host;      /* the state is kept in host memory and read and written from there */
    bool in_backward;  /* each weight is updated as soon as its gradient is there; no clip */
    bool skips_spikes; /* inputs norm_limit and loss_limit: above them nothing is updated */
} mx_optimizer;

/* What a rule is given for one weight. */
typedef struct {
    const mx_optimizer *o;
    mx_node *w, *d;      /* the weight, or this rank's part of it, and its gradient */
    const mx_node *like; /* name, type and box of that */
    mx_node *copy;       /* of the weight in the compute dtype, rewritten with it; NULL: none */
    double decay;        /* 0 where no_decay names the weight */
    mx_node *lr, *scale, *step; /* scalars; where the clip scale is not finite nothing happens */
    mx_node *hyper;             /* the same as one vector, as mx_adamw and mx_sgd take them */
    const struct mx_partition *on; /* NULL: one device */
} mx_update;

typedef struct mx_optimizer_rule {
    const char *name, *doc; /* as opt_type has it */
    const char *alias;      /* another name of it; NULL: none */
    int moments;            /* numbers of state a weight, for estimates */
    double moment_bytes;    /* of each; 0: as mu_dtype and nu_dtype say */
    double instructions;    /* of a GPU's thread a weight, for estimates; 0: bytes take longer */
    bool rounds;            /* can round bfloat16 weights at random: weight_dtype=bfloat16 */
    bool by_shard;          /* element by element: each rank may update its shard of a weight */
    /* Reads its own keys into what mx_optimizer.own will be, in the arena; NULL: has none. */
    const void *(*configure)(const mx_config *cfg, mx_arena *a);
    /* Gives the node of an update op, mx_adamw or mx_sgd, that writes the weight in place. */
    mx_node *(*update)(mx_graph *g, const mx_update *u);
} mx_optimizer_rule;

extern const mx_optimizer_rule *const mx_optimizer_rule_table[]; /* scanned; ends with NULL */
extern const int mx_optimizer_rule_count;
extern const mx_optimizer_rule mx_optimizer_rule_adamw, mx_optimizer_rule_sgd,
    mx_optimizer_rule_muon;

const mx_optimizer_rule *mx_optimizer_rule_find(const char *name); /* NULL: there is none */
const mx_optimizer_rule *mx_optimizer_rule_of(const mx_optimizer *o);

/* A variable NAME.SUFFIX of the weight's shape, zero at first, kept with the optimizer's state. */
mx_node *mx_update_state(mx_graph *g, const mx_update *u, const char *suffix, mx_dtype dtype);
/* m <- keep m + take scale d; gives the new m. */
mx_node *mx_momentum(mx_graph *g, mx_node *m, const mx_update *u, double keep, double take);
/* w <- w - lr (factor direction + decay w). */
mx_node *mx_step_along(mx_graph *g, const mx_update *u, mx_node *direction, double factor,
                       double decay);

typedef struct {
    double momentum; /* 0: none */
} mx_sgd_rates;
typedef struct {
    double beta, decay, rms; /* rms 0: scaled by the matrix's shape */
    int steps;
} mx_muon_rates;

/* How many steps changed nothing: a scalar variable that the pass adds. */
#define MX_SKIPPED_STEPS "skipped_steps"

/* A root of this name and a weight's, "row_scale:NAME", (rows of NAME): after the update the rows
 * are multiplied by it. Where a step has several microbatches or ranks, the smallest factor counts:
 * programs that accumulate leave it in a variable "NAME.row_scale". */
#define MX_ROW_SCALE_ROOT "row_scale:"
/* The weight that a root rescales; NULL: none. */
const char *mx_row_scale_of(const mx_node *root);
/* That variable. */
mx_node *mx_row_scale_variable(mx_graph *g, const mx_node *root);

/* Sums of gradients for steps of several microbatches: the variable NAME.grad of a weight. */
mx_node *mx_gradient_sum(mx_graph *g, const mx_node *w);
struct mx_compile_options;
/* The sum of all ranks, in the place of this rank's own (mx_compile_options.sum_late). */
mx_node *mx_gradient_of_ranks(mx_graph *g, mx_node *own, const struct mx_compile_options *o);
struct mx_compilation;
/* Gradients as roots or added to sums, by c->use. */
void mx_keep_gradients(mx_graph *g, const struct mx_compilation *c);
/* Weights are read from the copies that the update writes: where gradients are summed up, and where
 * the weights of a training step are used beside it. */
void mx_read_copies(mx_graph *g, mx_node *const *var, int n);

/* The first cast of each node, by the node's id; NULL: none. In the arena. */
mx_node **mx_first_casts(const mx_graph *g, mx_arena *arena);
/* The cast of a weight to the compute dtype becomes a variable that updates rewrite; NULL: NULL.
 * Takes effect in mx_graph_resolve. */
mx_node *mx_weight_copy(mx_graph *g, const mx_node *w, mx_node *cast);

#endif

/* source.h - attributes of the nodes that have no inputs (src/ops/source.c builds them). */
#ifndef MX_IR_SOURCE_H
#define MX_IR_SOURCE_H

#include "ir/op.h"

typedef enum {
    MX_INIT_ZEROS,
    MX_INIT_ONES,
    MX_INIT_NORMAL,
    MX_INIT_VALUE,
    MX_INIT_LOG_UNIFORM, /* the logarithm of a number between 0.01 and scale */
    MX_INIT_UNIFORM,     /* between -scale and scale */
    MX_INIT_CHOICE,      /* in each row different whole numbers below scale */
} mx_init_kind;

typedef struct {
    mx_init_kind kind;
    double scale; /* standard deviation of a normal, or the value */
    int64_t cols; /* of a choice: numbers in a row, at most scale */
} mx_init;
#define MX_ZEROS ((mx_init){.kind = MX_INIT_ZEROS})
#define MX_ONES ((mx_init){.kind = MX_INIT_ONES, .scale = 1})
#define MX_NORMAL(sd) ((mx_init){.kind = MX_INIT_NORMAL, .scale = (sd)})
#define MX_VALUE(v) ((mx_init){.kind = MX_INIT_VALUE, .scale = (v)})
#define MX_CHOICE(of, n)                                                                           \
    ((mx_init){.kind = MX_INIT_CHOICE, .scale = (double)(of), .cols = (n)})
#define MX_LOG_UNIFORM(high) ((mx_init){.kind = MX_INIT_LOG_UNIFORM, .scale = (high)})

typedef enum {
    MX_VAR_WEIGHT,    /* in the checkpoint, trained unless frozen */
    MX_VAR_OPTIMIZER, /* moments: beside the checkpoint */
    MX_VAR_GRADIENT,  /* accumulated gradients */
    MX_VAR_CACHE,     /* decode state */
    MX_VAR_COPY,      /* a weight in the compute dtype, rewritten by the optimizer */
    MX_VAR_KIND_COUNT
} mx_var_kind;

typedef struct {
    mx_init init;
    mx_var_kind kind;
    bool frozen;         /* no gradient, no optimizer state */
    bool stepped;        /* frozen, and yet a step adds to it: a router's bias */
    bool adapter;        /* a weight beside the model's own (compile/lora.h) */
    bool on_host;        /* kept in host memory, where the device has memory of its own */
    const char *copy_of; /* MX_VAR_COPY: the weight it follows */
    int64_t unsummed;    /* MX_VAR_GRADIENT: mesh axes over which the update still sums it */
    bool minimum;        /* MX_VAR_GRADIENT: of microbatches and ranks the least, not the sum */
    bool quantized;      /* an int8 weight; its rows have scales (compile/quantize.h) */
    bool in_out;         /* a matrix that is stored (in, out), not (out, in) */
    int64_t matrices;    /* matrices of equal size, one below the other; 0: one */
} mx_var_attr;

/* A variable's attributes, to be changed until the passes have run; NULL: it is another node, as
 * may be after a mistake in a model. */
mx_var_attr *mx_var_edit(mx_node *n);
void mx_freeze(mx_node *n); /* of other nodes: nothing */

/* Constants of an AdamW update (src/ops/adamw.c). */
typedef struct {
    double b1, b2, eps, eps_root, weight_decay;
    int64_t salt; /* of the stochastic rounding of a bfloat16 weight */
    const struct mx_box *box; /* the part of the weight that this is; NULL: the whole */
    bool wide; /* the sum of squares in float64: it is one of several */
} mx_adamw_rates;

typedef struct {
    double value;
    const double *table; /* NULL: value everywhere */
} mx_const_attr;

#endif

/* cost.h - what a layer costs on one rank of a layout: seconds, bytes on the wire, memory.
 *
 * The profile's work is divided by the layout's degrees and timed kernel by kernel. Collectives are
 * those of the partition pass:
 *   tensor    each GEMM whose k is cut leaves a sum: a gather before its pair, a scatter after
 *             it; the same again backward, and one more gather of the input for the weight's
 *             gradient
 *   context   keys and values go round: gathered forward, and backward with their gradients
 *             scattered
 *   expert    rows to their experts and back, forward and backward
 *   fsdp      weights gathered forward and again backward, gradients scattered, per microbatch
 *   data      gradients summed once per update
 */
#ifndef MX_PLAN_COST_H
#define MX_PLAN_COST_H

#include "plan/layout.h"
#include "plan/profile.h"

/* How a run computes, beside its layout. */
typedef struct {
    mx_rate rate;           /* of what is computed in, float32 or bfloat16 */
    mx_rate narrow[3];      /* of GEMMs that are quantized: forward, to the input, to the weight */
    double again;           /* FLOPs computed again; < 0: as the profile's program does */
    bool shared_moments;    /* replicas have a part each (shard_optimizer_over_data) */
    bool frozen;            /* adapters are trained: no gradients of weights */
    bool unfused;           /* every elementwise op alone */
    bool overlap_tensor;    /* GEMMs in pieces, whose collectives run beside the next piece */
    double exchange_factor; /* room for rows at a rank's experts, in even shares; <= 0: for all */
    bool deduplicate;       /* a row goes once to each node that has experts for it */
    bool whole_keys;        /* context ranks gather keys and values, and keep them for backward */
    double attention_share; /* of the curve's rate, for an older kernel; 0: 1 */
    double host_seconds;    /* per kernel, to launch it from the host; 0: CUDA graphs, none */
    /* bytes per parameter: weight, its copy for GEMMs, gradient, optimizer state; and what an
     * update reads and writes */
    double weight_bytes, copy_bytes, gradient_bytes, state_bytes, update_bytes;
    double update_instructions; /* a parameter; 0: moving the bytes takes longer */
} mx_run_kind;

typedef struct {
    const mx_profile *profile;
    const mx_layout *layout;
    const mx_run_kind *run;
    const mx_plan_chip *chip;
    const mx_network *network;
} mx_cost_request;

/* A layer, or the embedding, or the head: of one microbatch. Forward, backward. */
typedef struct {
    double gemm[2], attention[2], stream[2]; /* seconds */
    double exposed[2];         /* collectives that kernels wait for: tensor, context, expert */
    double hidden[2];          /* collectives that run beside kernels */
    double gather[2], scatter; /* of weights and their gradients (fsdp) */
    double saved_bytes;        /* kept for the backward pass */
} mx_layer_cost;

typedef struct {
    mx_layer_cost kind[MX_PROFILE_KINDS], embedding, head;
    double sent[MX_GROUPS][MX_LEVELS]; /* bytes that a rank sends per update, by group */
} mx_layer_costs;

void mx_layer_costs_of(const mx_cost_request *q, mx_layer_costs *out);
double mx_layer_seconds(const mx_layer_cost *c, int pass); /* kernels and what they wait for */

/* Parameters that a rank of the middle of a stage computes with, and keeps state of. */
typedef struct {
    double dense, expert;                      /* of its layers, after tensor, expert and stage */
    double ends;                               /* of embedding and head, on a rank that has them */
    double dense_kept, expert_kept, ends_kept; /* of those, what it holds between steps */
} mx_rank_weights;
mx_rank_weights mx_rank_weights_of(const mx_cost_request *q);

typedef struct {
    double weights, copies, gradients, optimizer, activations, communication, workspace, total;
} mx_rank_memory;
/* At the rank that needs the most, which is on the first stage or on the last. */
mx_rank_memory mx_rank_memory_of(const mx_cost_request *q, const mx_layer_costs *c);

#endif

/* stages.h - pipeline parallelism: a graph in chunks of consecutive layers, the programs of one.
 *
 * A model is cut into `chunks` of layers. A rank of the mesh's `stage` axis has one of them, or
 * with interleaving several: chunk k belongs to stage k mod (degree of the axis).
 *
 * mx_pass_stages runs on the forward graph of one rank, after partition and before autodiff: every
 * node gets the number of its chunk (mx_node.stage), layers by cost, everything else where its
 * inputs are. Autodiff gives gradients the chunk of what they belong to, so the joint graph is the
 * same as without a pipeline, node for node. mx_stage_cut takes one chunk out of it, as programs:
 *
 *     F   forward
 *     B   the gradients that chunks before it need; without `split` also those of the weights
 *     W   the gradients of its weights
 *
 * What one program of a chunk makes and another reads, and what chunks send each other, lies in a
 * slot: memory for one microbatch in flight. Values made of weights alone (casts, gathers) and of
 * inputs alone (masks, rotary tables) are neither kept nor sent: every program makes its own.
 */
#ifndef MX_COMPILE_STAGES_H
#define MX_COMPILE_STAGES_H

#include "compile/program.h"

/* Which chunk a layer is in. */
typedef struct {
    const char *scope; /* of a node in it, of the graph that was cut */
    size_t length;     /* of the layer's own name */
    int chunk;
} mx_layer_chunk;
typedef struct {
    mx_layer_chunk *v; /* in the graph's arena */
    int n;
} mx_layer_chunks;

typedef struct mx_stages {
    int chunks;
    const mx_layer_chunks *as; /* the cut of another graph of the model, to be used again; NULL:
                                * none */
    mx_layer_chunks *cut;      /* receives how it was cut; NULL: not needed */
    int stages, stage; /* of the mesh, and this rank's: it has every `stages`-th chunk */
    int layers_each; /* of every chunk but the last ones; 0: chunks of nearly equal cost */
    bool split;      /* weight gradients are programs of their own */
} mx_stages;

mx_status mx_pass_stages(mx_graph *g, const mx_stages *s) MX_MUST_USE;

typedef enum { MX_STAGE_F, MX_STAGE_B, MX_STAGE_W, MX_STAGE_PARTS } mx_stage_part;

/* Bytes of a slot that are one message. */
typedef struct {
    int64_t at, bytes;
} mx_stage_message;

/* One chunk. The joint graph must outlive it. */
typedef struct mx_stage_chunk {
    mx_graph graph[MX_STAGE_PARTS];
    mx_kept *kept[MX_STAGE_PARTS];   /* in the graph's arena */
    int n_kept[MX_STAGE_PARTS];
    mx_program program[MX_STAGE_PARTS];
    bool has[MX_STAGE_PARTS];        /* there is something to run */
    mx_stage_message in, out;        /* from the chunk before, to the one after */
    mx_stage_message grad_in, grad_out; /* from the one after, to the one before */
    size_t slot_bytes;
} mx_stage_chunk;

/* The graphs of chunk `k` of a joint graph; the caller fuses and plans them. */
mx_status mx_stage_cut(const mx_graph *joint, const mx_stages *s, int k,
                       mx_stage_chunk *out) MX_MUST_USE;
void mx_stage_chunk_fini(mx_stage_chunk *c);

/* The weights of a model after mx_pass_stages, each name once, in the arena: those of this rank's
 * chunks, and an empty part for each of the others', so that all stages have the same list in the
 * same order. Gives their number. */
int mx_stage_weights(const mx_graph *model, const mx_stages *s, mx_arena *arena,
                     const mx_node ***out);

/* --- for both files --- */

/* What a node is made of: sources of one kind, or more than that. */
typedef enum {
    MX_MADE_OF_CONSTANTS,
    MX_MADE_OF_WEIGHTS,
    MX_MADE_OF_INPUTS,
    MX_MADE_OF_MORE
} mx_made_of;
/* By id, of the nodes in `order`. State that a forward node overwrites counts as more. */
mx_made_of *mx_made_of_sources(const mx_graph *g, mx_node *const *order, int n, mx_arena *scratch);

#endif

/* partition.h - what the partition pass asks of an op that index notation cannot describe.
 *
 * `place` is given the placements of the inputs and the one that the node's own logical axes ask
 * for, and says which placement it needs of each input and which its outputs then have. The pass
 * brings the inputs there. `local` builds the node of one rank out of them.
 */
#ifndef MX_IR_PARTITION_H
#define MX_IR_PARTITION_H

#include "ir/graph.h"
#include "ir/placement.h"

/* How attention reaches keys that other ranks of the `context` axis have. */
typedef enum { MX_CONTEXT_ALL_GATHER, MX_CONTEXT_RING, MX_CONTEXT_ULYSSES } mx_context_strategy;

typedef struct mx_partition_call {
    const mx_mesh *mesh;
    int rank;
    mx_context_strategy context;
    double exchange_factor; /* of a rank's own rows: what its buffer for experts' rows holds; <= 0:
                               all there can be */
    /* Given: */
    mx_placement have[MX_MAX_IN];
    bool weight[MX_MAX_IN]; /* made of variables and constants alone */
    bool has_want;
    mx_placement want;      /* of output 0 */
    /* Decided: */
    bool not_ulysses; /* that was asked for, and the heads do not divide */
    mx_placement in[MX_MAX_IN], out[MX_MAX_OUT];
    /* `local` may give outputs 1.. as nodes of their own; NULL: those of the node it returns. */
    mx_node *made[MX_MAX_OUT];
} mx_partition_call;

/* The notation's own answer, for a `place` that changes it in places. */
void mx_place_by_notation(const mx_node *n, mx_partition_call *p);

#endif

/* update_shard.h - which shard of a weight a rank updates; see update_shard.c. */
#ifndef MX_COMPILE_UPDATE_SHARD_H
#define MX_COMPILE_UPDATE_SHARD_H

#include "compile/mesh/partition.h"

typedef struct {
    mx_node *weight;     /* the variable */
    mx_node *w, *d;      /* what is updated of it, and the gradient of that */
    const mx_node *like; /* name, type and box of that shard; not in the graph */
    bool cut;            /* it is less than the variable */
} mx_update_shard;

/* `on` may be NULL: one device. */
mx_update_shard mx_update_shard_of(mx_graph *g, mx_node *weight, mx_node *gradient,
                                   const mx_partition *on);
/* The new shards of all ranks, gathered into the variable and its copy (NULL: none). */
void mx_update_shard_gather(mx_graph *g, const mx_update_shard *p, mx_node *made, mx_node *copy,
                            const mx_partition *on);

#endif

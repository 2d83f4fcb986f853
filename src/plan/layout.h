/* layout.h - how a run is spread over chips, in the degrees that costs depend on.
 *
 * Made from a mesh, which says for each axis how much of it lies inside a node; or, without one,
 * for ranks numbered with tensor innermost, then context, then data, then stage. Parameters that
 * are cut over data ranks (FSDP) are cut over `shard` of the context and data ranks. Experts lie
 * over neighbours of one stage.
 */
#ifndef MX_PLAN_LAYOUT_H
#define MX_PLAN_LAYOUT_H

#include "base/str.h"
#include "ir/mesh.h"
#include "plan/kernels.h"

typedef struct {
    int64_t chips, per_node;              /* per_node: chips that share the innermost links */
    int64_t tensor, context, stage, data; /* their product is chips */
    int64_t shard;        /* ranks over which a parameter lies cut, beside tensor; 1: whole */
    int64_t expert_shard; /* the same of an expert's parameters */
    bool shard_optimizer; /* replicas each update a part (ZeRO-1) */
    int64_t expert, expert_tensor;
    int64_t chunks; /* of a stage's layers, for the interleaved schedule; 1: 1F1B */
    int64_t microbatch, n_microbatches; /* sequences; of a data rank, per update */
    const mx_mesh *mesh;                /* NULL: ranks are numbered as above */
} mx_layout;

typedef enum {
    MX_GROUP_TENSOR,
    MX_GROUP_CONTEXT,
    MX_GROUP_SHARD,
    MX_GROUP_REPLICA,
    MX_GROUP_STAGE,
    MX_GROUP_EXPERT,
    MX_GROUP_EXPERT_TENSOR,
    MX_GROUP_EXPERT_SHARD,
    MX_GROUP_EXPERT_REPLICA,
    MX_GROUPS
} mx_plan_group;
/* The ranks of a group and how many of them share the innermost links. */
mx_group_span mx_layout_span(const mx_layout *l, mx_plan_group g);
/* Of a mesh, which must outlive it. Batches are left to the caller. */
void mx_layout_of_mesh(mx_layout *l, const mx_mesh *mesh);

#endif

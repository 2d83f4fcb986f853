/* layout.h - how a run is spread over chips, in the degrees that costs depend on.
 *
 * Ranks are numbered with tensor innermost, then context, then data (of which shard, the group over
 * which parameters lie cut, is the inner part), then stage. experts lie over neighbours of tensor,
 * context and data ranks of one stage, or of data ranks only.
 */
#ifndef MX_PLAN_LAYOUT_H
#define MX_PLAN_LAYOUT_H

#include "base/str.h"
#include "plan/kernels.h"

typedef struct {
    int64_t chips;
    int64_t tensor, context, stage, data; /* their product is chips */
    int64_t shard;        /* data ranks over which parameters are cut (FSDP); 1: none */
    bool sequence;        /* norms and residuals are cut by tensor as well */
    bool shard_optimizer; /* replicas each update a part (ZeRO-1) */
    int64_t expert, expert_tensor;
    int64_t chunks; /* of a stage's layers, for the interleaved schedule; 1: 1F1B */
    int64_t microbatch, n_microbatches; /* sequences; of a data rank, per update */
    int64_t per_node;                   /* chips that share the innermost links */
} mx_layout;

typedef enum {
    MX_GROUP_TENSOR,
    MX_GROUP_CONTEXT,
    MX_GROUP_SHARD,
    MX_GROUP_REPLICA,
    MX_GROUP_STAGE,
    MX_GROUP_EXPERT,
    MX_GROUP_EXPERT_TENSOR,
    MX_GROUP_EXPERT_REPLICA,
    MX_GROUPS
} mx_group;
const char *mx_group_name(mx_group g);
/* The ranks of a group and how many of them share the innermost links. */
mx_span mx_layout_span(const mx_layout *l, mx_group g);
/* "tensor=8, stage=4, fsdp=16, microbatch 1 x 32": for people. */
void mx_layout_print(const mx_layout *l, mx_str *out);

#endif

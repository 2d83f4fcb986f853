/* partition.h - the partition pass: a graph at global shapes becomes the graph of one rank. */
#ifndef MX_COMPILE_PARTITION_H
#define MX_COMPILE_PARTITION_H

#include "compile/mesh/axis_rules.h"
#include "ir/partition.h"

typedef struct mx_partition {
    const mx_mesh *mesh;
    const mx_axis_rules *rules;
    int rank;
    double exchange_factor; /* see ir/partition.h */
    mx_context_strategy context;
    bool only_this_context; /* where heads do not divide for it nothing else is taken */
    bool zigzag; /* sequences cut by `context` are shared in chunks of equal work */
    /* Share of all weights that may lie whole along an axis that should cut them. */
    double sharding_tolerance;
    bool no_overlap; /* every collective is waited for at once (overlap.c) */
    bool optimizer_over_data; /* AdamW's moments are cut by `data` as well (update_shard.c) */
    mx_str *report; /* where each tensor lies, a line each; NULL: not asked for */
} mx_partition;

/* A root "shard:NAME" stays cut, as its logical axes say; others are made whole. */
#define MX_SHARD_ROOT "shard:"

/* Replaces g by the graph of one rank; nodes found before are gone, names stay. Before autodiff. */
mx_status mx_pass_partition(mx_graph *g, const mx_partition *p) MX_MUST_USE;

/* A value of a graph that is a rank's already: of a tensor `whole`, it lies as `at` and is brought
 * to `to`. For updates, which have no gradient. */
mx_node *mx_partition_bring(mx_graph *g, const mx_partition *how, mx_node *x, const mx_type *whole,
                            const mx_placement *at, const mx_placement *to);

#endif

/* partition_impl.h - what the files of the partition pass share. */
#ifndef MX_COMPILE_PARTITION_IMPL_H
#define MX_COMPILE_PARTITION_IMPL_H

#include "compile/partition.h"
#include "ir/partition.h"

/* A value brought to another placement, kept for the next who asks. */
typedef struct mx_moved {
    mx_placement at;
    mx_axis_set vary;
    mx_node *node;
    struct mx_moved *next;
} mx_moved;

/* A value of the global graph in the local one. */
typedef struct {
    mx_node *node;
    mx_placement at;
    const mx_placement *more; /* of outputs 1.. of a node with several */
    mx_node **made;           /* those outputs, where they are nodes of their own */
    bool weight;              /* made of variables and constants alone */
    mx_moved *moved;
} mx_local_value;

/* How rows sorted by one node go to the ranks of their experts. */
typedef struct mx_exchange_plan {
    int sorted_by;
    mx_axis_set axes;
    mx_node *plan;
    struct mx_exchange_plan *next;
} mx_exchange_plan;

typedef struct {
    const mx_partition *how;
    const mx_graph *from;
    mx_graph *to;
    mx_local_value *value; /* by the global node's id */
    mx_exchange_plan *plans;
} mx_partitioner;

/* Node `x` of the local graph, a value of type `whole` that lies as `at`, brought to `to`. `vary`:
 * axes over which ranks do different work with it. */
mx_node *mx_reshard(mx_partitioner *p, mx_node *x, const mx_type *whole, const mx_placement *at,
                    const mx_placement *to, mx_axis_set vary);

#endif

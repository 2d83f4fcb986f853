/* partition_impl.h - what the files of the partition pass share. */
#ifndef MX_COMPILE_PARTITION_IMPL_H
#define MX_COMPILE_PARTITION_IMPL_H

#include "compile/mesh/partition.h"
#include "ir/partition.h"
#include "ops/collective.h"

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
    mx_node *made_by;         /* of several outputs: the node whose output 0 `node` is made of */
    const mx_placement *more; /* of outputs 1.. of a node with several */
    mx_node **made;           /* those outputs, where they are nodes of their own */
    bool weight;              /* made of variables and constants alone */
    bool trained;             /* and of trained ones alone */
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

/* Of the local graph: are its weights cut as far as they should be? (sharding_check.c) */
mx_status mx_partition_check(const mx_partition *how, const mx_graph *g) MX_MUST_USE;

/* --- a value on its way (reshard.c, reshard_dim.c, reshard_rows.c) --- */

typedef struct {
    mx_partitioner *p;
    mx_node *x;
    const mx_type *whole;
    mx_placement at;
} mx_move;

mx_collective_attr mx_move_group(const mx_move *m, mx_axis_set axes, int dim);
/* Is the innermost cut of c by these axes, all of it in one piece? */
bool mx_move_innermost(const mx_move *m, const mx_cut *c, mx_axis_set axes);
/* Dim d, which c cuts by `axes` among others, into the order of the pieces: before it is cut by
 * them; `back`: into its natural order, after it has been gathered over them. */
void mx_move_reorder(mx_move *m, int d, const mx_cut *c, mx_axis_set axes, bool back);
/* Gathers what is cut and should not be; takes the axes it has varied over out of `vary`. */
void mx_move_gather(mx_move *m, int d, const mx_cut *to, mx_axis_set *vary);
/* Cuts what should be cut and is not. */
void mx_move_shard(mx_move *m, int d, const mx_cut *to);
/* Rows to the ranks of their experts, in a buffer of c->rows, and back. */
void mx_move_send_rows(mx_move *m, const mx_cut *c);
void mx_move_return_rows(mx_move *m);
/* Where each expert's rows begin in the buffer. */
mx_node *mx_move_row_starts(mx_move *m, const mx_cut *c);

#endif

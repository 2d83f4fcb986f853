/* collective.h - attributes and kernels' helpers of the ops in which ranks take part together.
 *
 * A group of ranks is named by mesh axes; the device finds its communicator (mx_call.group). Size
 * and index are those of this rank's group: shapes and slices depend on them. Without a group (size
 * 1) every collective is a copy.
 */
#ifndef MX_OPS_COLLECTIVE_H
#define MX_OPS_COLLECTIVE_H

#include "ir/placement.h"
#include "ir/op.h"
#include "ir/process_group.h"

typedef struct {
    int64_t axes;        /* an mx_axis_set */
    int64_t size, index; /* of the group; this rank's place in it */
    int64_t dim;         /* along which pieces lie */
    int64_t to;          /* all_to_all: the dim that is cut instead. ring_shift: places to go */
    bool varying;        /* ranks do different work with the result: see all_gather.c */
    bool beside;         /* other nodes go on, up to a wait: see compile/mesh/overlap.c */
    int64_t issue_order; /* its place among the program's collectives, on every rank; 0: any */
} mx_collective_attr;

/* Fields for printing. */
extern const mx_attr_field mx_collective_fields[];
/* What every op with these attributes has, and every collective. */
#define MX_COLLECTIVE_ATTR                                                                         \
    .attr_size = sizeof(mx_collective_attr), .fields = mx_collective_fields, .no_cast = true
#define MX_COLLECTIVE_OP MX_COLLECTIVE_ATTR, .collective = true
/* The result has the input's type; or it is a piece of dim `dim`, one for each rank. */
void mx_collective_infer_same(mx_graph *g, mx_node *n);
void mx_collective_infer_piece(mx_graph *g, mx_node *n);

/* Pieces of dim d of a tensor: (outer, size * run bytes) as [size][outer][run] and back. */
void mx_pieces_pack(void *pieces, const void *whole, const mx_type *piece, int d, int64_t size);
void mx_pieces_unpack(void *whole, const void *pieces, const mx_type *piece, int d, int64_t size);
/* Does this node go on beside others? */
bool mx_collective_is_beside(const mx_node *n);
/* Do the pieces of this dim lie one after the other anyway? */
bool mx_pieces_are_packed(const mx_type *t, int d);

/* Enters an error of a collective into the call; the device ends the run with it. */
void mx_call_fail(const mx_call *c, mx_status st);

#endif

/* norms.h - norms over many tensors; see norms.c. */
#ifndef MX_COMPILE_NORMS_H
#define MX_COMPILE_NORMS_H

#include "compile/mesh/partition.h"

/* Scalars as one vector; as many as a node has inputs are concatenated at a time. */
mx_node *mx_vector_of(mx_graph *g, mx_node *const *x, int n, mx_dtype dtype);
/* The sum of the squares of a tensor, or of this rank's part of it (on != NULL). */
mx_node *mx_squares(mx_graph *g, mx_node *x, const mx_partition *on);
/* The root of the sum of such numbers; of[i] is the variable whose box squares[i] is about. */
mx_node *mx_norm_of(mx_graph *g, mx_node *const *squares, const mx_node *const *of, int n,
                    const mx_partition *on);

#endif

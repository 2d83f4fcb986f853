/* update_part.h - which part of a weight a rank updates; see update_part.c. */
#ifndef MX_COMPILE_UPDATE_PART_H
#define MX_COMPILE_UPDATE_PART_H

#include "compile/mesh/partition.h"

typedef struct {
    mx_node *weight;     /* the variable */
    mx_node *w, *d;      /* what is updated of it, and the gradient of that */
    const mx_node *like; /* name, type and box of that part; not in the graph */
    bool cut;            /* it is less than the variable */
} mx_update_part;

/* `on` may be NULL: one device. */
mx_update_part mx_update_part_of(mx_graph *g, mx_node *weight, mx_node *gradient,
                                 const mx_partition *on);
/* The new part, from everybody, into the variable and its copy (NULL: none). */
void mx_update_part_back(mx_graph *g, const mx_update_part *p, mx_node *made, mx_node *copy,
                         const mx_partition *on);

#endif

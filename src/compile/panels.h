/* panels.h - weights of matmuls lie as the CPU's GEMM reads them (ops/panels.h). */
#ifndef MX_COMPILE_PANELS_H
#define MX_COMPILE_PANELS_H

#include "ir/graph.h"

/* For programs whose weights are fixed. Whoever loads weights lays them out afterwards: those that
 * mx_panel_weight names. */
void mx_pass_panel_weights(mx_graph *g);
/* The weight that this node reads in panels; NULL: none. */
const mx_node *mx_panel_weight(const mx_node *n);

#endif

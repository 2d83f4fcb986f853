/* panels.h - weights of matmuls lie as the CPU's GEMM reads them (ops/panels.h).
 *
 * The pass says so in the matmuls of programs that serve; whoever loads weights lays them out.
 */
#ifndef MX_COMPILE_PANELS_H
#define MX_COMPILE_PANELS_H

#include "ir/graph.h"

/* The weight that this node reads in panels; NULL: none. */
const mx_node *mx_panel_weight(const mx_node *n);

#endif

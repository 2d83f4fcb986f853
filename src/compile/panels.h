/* panels.h - weights of matmuls laid out as the CPU's GEMM reads them (ops/panels.h).
 *
 * The pass marks the matmuls of programs that serve; the code that loads weights lays them out.
 */
#ifndef MX_COMPILE_PANELS_H
#define MX_COMPILE_PANELS_H

#include "ir/graph.h"

/* The weight that this node reads in panels; NULL: none. */
const mx_node *mx_panel_weight(const mx_node *n);
/* Its scales, where that is of codes; NULL: it is not. */
const mx_node *mx_panel_scale(const mx_node *n);

#endif

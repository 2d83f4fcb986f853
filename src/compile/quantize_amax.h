/* quantize_amax.h - histories of a delayed recipe on a mesh. */
#ifndef MX_COMPILE_QUANTIZE_AMAX_H
#define MX_COMPILE_QUANTIZE_AMAX_H

#include "compile/mesh/partition.h"

/* After autodiff: what goes into the histories is the largest magnitude of all ranks, so that all
 * have the same ones. One all_reduce of a number for each history; not for the stages of a
 * pipeline, whose programs are cut apart later. on: NULL on one device. */
void mx_pass_quantize_amax(mx_graph *g, const mx_partition *on);

#endif

/* grouped.h - what grouped_matmul and grouped_outer share: where each expert's rows lie. */
#ifndef MX_OPS_GROUPED_H
#define MX_OPS_GROUPED_H

#include "ir/partition.h"
#include "ops/num.h"

/* The given starts as a partition of the rows: none below its predecessor, none beyond the rows. */
static inline void mx_grouped_starts(const int32_t *given, int64_t experts, int64_t rows,
                                     int32_t *start)
{
    int32_t at = 0;
    for (int64_t e = 0; e <= experts; e++) {
        at = given[e] > at ? given[e] : at;
        at = at < rows ? at : (int32_t)rows;
        start[e] = at;
    }
}

static inline void mx_grouped_check(mx_graph *g, const mx_node *n, int64_t experts,
                                    const mx_node *start)
{
    if (start->type.dim[0] != experts + 1 || experts < 1)
        mx_graph_fail_inputs(g, n, "the starts of %lld experts are %lld numbers",
                             (long long)experts, (long long)experts + 1);
}

/* On a mesh: how rows that were sorted by expert lie for experts that are cut so. Each rank then
 * has the rows of its own experts from everywhere; where that cannot be, the experts become whole.
 */
mx_cut mx_grouped_rows(const mx_partition_call *p, const mx_cut *rows, mx_cut *experts);

#endif

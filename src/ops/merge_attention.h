/* merge_attention.h - attention whose results were merged with others' (merge_attention.c). */
#ifndef MX_OPS_MERGE_ATTENTION_H
#define MX_OPS_MERGE_ATTENTION_H

#include "ir/graph.h"

enum { MX_MERGED_SETS = MX_MAX_IN / 2 }; /* at once */

/* Of all sets together. */
typedef struct {
    mx_node *out, *lse, *dout, *dlse; /* dlse may be NULL */
} mx_merged;

/* Are `dout` the gradients of a part as merge_attention gives them? Then also what they were made
 * from, for the part's queries. */
bool mx_merged_whole(const mx_node *part, mx_node *const *dout, mx_merged *whole);

#endif

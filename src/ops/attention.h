/* attention.h - the inputs of the attention op, for its own files and devices' kernels. */
#ifndef MX_OPS_ATTENTION_H
#define MX_OPS_ATTENTION_H

#include "ir/attention.h"
#include "ir/partition.h"

/* q, k, v, then the optional ones in this order. */
enum {
    MX_ATTN_Q,
    MX_ATTN_K,
    MX_ATTN_V,
    MX_ATTN_Q_POS,
    MX_ATTN_K_POS,
    MX_ATTN_Q_SEG,
    MX_ATTN_K_SEG,
    MX_ATTN_Q_SPAN,
    MX_ATTN_K_SPAN,
    MX_ATTN_SINKS,
    MX_ATTN_SELECTED,
    MX_ATTN_N_IN
};

/* On a mesh (attention_mesh.c). */
void mx_attention_place(const mx_node *n, mx_partition_call *p);
mx_node *mx_attention_local(mx_graph *g, const mx_node *n, mx_node *const *in,
                            mx_partition_call *p);
/* The places in the sequence of what a rank has of it: rows and elements as in s, all rows alike.
 */
mx_node *mx_attention_places(mx_graph *g, const mx_partition_call *p, int rank,
                             const mx_cut *length, mx_shape s);

#endif

/* embed.h - attributes of the op of that name. */
#ifndef MX_OPS_EMBED_H
#define MX_OPS_EMBED_H

#include "ir/graph.h"
#include "ops/panels.h"

typedef struct {
    mx_panels panels; /* how the table lies; no columns: in rows */
    bool own;         /* ids of row b of a batch are in the table's b-th part: see mx_embed_own */
} mx_embed_attr;

/* Rows of activations, (B v, d), by ids (B, n) that count through the whole table, where a row of
 * the batch names none of another's. On a mesh both are cut by the batch, and no rank needs the
 * rows of others. */
mx_node *mx_embed_own(mx_graph *g, mx_node *table, mx_node *ids);

#endif

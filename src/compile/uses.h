/* uses.h - who reads each value: one table for every pass that asks.
 *
 * Only live nodes count, those that a root needs. The rewriter (rewrite.h) keeps the table up to
 * date while it changes the graph; other passes fill it and read it.
 */
#ifndef MX_COMPILE_USES_H
#define MX_COMPILE_USES_H

#include "ir/graph.h"

typedef struct {
    mx_node *by;
    int input; /* by->in[input] is the value */
} mx_use;

typedef struct {
    mx_use *use;
    int n, cap;
    int n_roots; /* how often it is a root */
} mx_use_list;

typedef struct {
    mx_graph *g;
    mx_arena arena;
    mx_use_list *of; /* by node id */
    int n, cap;      /* nodes that are entered */
} mx_uses;

void mx_uses_init(mx_uses *u, mx_graph *g);
void mx_uses_fini(mx_uses *u);

static inline const mx_use_list *mx_uses_of(const mx_uses *u, const mx_node *n)
{
    return &u->of[n->id];
}
/* Reads by nodes, and once for each time it is a root; 0: it is not needed. */
static inline int mx_uses_count(const mx_uses *u, const mx_node *n)
{
    return u->of[n->id].n + u->of[n->id].n_roots;
}
/* The first reader of this op, or NULL. */
mx_node *mx_uses_find(const mx_uses *u, const mx_node *n, const mx_op *op);

/* Enters nodes made since the table was filled. */
void mx_uses_enter_new(mx_uses *u);
/* All readers of `old` read `now` from here on, roots included. Nodes that are no longer needed no
 * longer count as readers. */
void mx_uses_replace(mx_uses *u, mx_node *old, mx_node *now);

#endif

/* rewrite.h - rules that replace a few nodes of a graph by others, and the one driver that applies
 * them.
 *
 * A rule looks at nodes of one op. Its guard says whether the nodes around one match, and what they
 * are; its build makes what stands for them. The driver keeps the table of uses up to date, gives
 * new nodes the scope, the place in the order and the marks of what they replace, and carries names
 * over. Rules are applied one after the other, each to all nodes there are, so that a rule finds
 * what those before it have made.
 */
#ifndef MX_COMPILE_REWRITE_H
#define MX_COMPILE_REWRITE_H

#include "compile/passes.h"
#include "compile/uses.h"

typedef struct {
    mx_graph *g;
    mx_uses uses;
    mx_remat remat; /* what will be, or has been, computed again */
} mx_rewriter;

enum { MX_MATCH_NODES = MX_MAX_OUT };

typedef struct {
    mx_node *at[MX_MATCH_NODES]; /* the guard's findings, in an order of its own */
    int n;
    const mx_node *place; /* new nodes go where this one is; the guard may choose another */
    struct {
        mx_node *old, *now;
    } replaced[MX_MAX_OUT];
    int n_replaced;
} mx_match;

typedef struct mx_rule {
    const char *name;
    const mx_op *root;
    bool (*guard)(const mx_rewriter *r, mx_node *n, mx_match *m);
    /* Makes nodes and says with mx_match_replace what they stand for. */
    void (*build)(mx_graph *g, mx_node *n, mx_match *m);
} mx_rule;

void mx_match_replace(mx_match *m, mx_node *old, mx_node *now);

/* Applies the rules of a list that NULL ends; a NULL list is empty. */
void mx_rewrite(mx_graph *g, const mx_rule *const *rules, mx_remat remat);

/* Is n read by a node that may read it inside a fused group? What is made there costs no memory
 * traffic. */
bool mx_is_read_in_group(const mx_rewriter *r, const mx_node *n);

#endif

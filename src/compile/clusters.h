/* clusters.h - the groups of nodes that the fuse pass forms (fuse.c), and the fused nodes made of
 * them (clusters.c). */
#ifndef MX_COMPILE_CLUSTERS_H
#define MX_COMPILE_CLUSTERS_H

#include "compile/uses.h"
#include "ops/group.h"

typedef struct mx_cluster mx_cluster;
struct mx_cluster {
    mx_cluster *into; /* merged into; NULL: alive */
    mx_node **member; /* in execution order; owned */
    int n, cap;
    int seen; /* number of the last search that passed through it */
    mx_shape space;
};

typedef struct {
    mx_graph *g;
    mx_cluster **of; /* by node id; NULL: in none */
    mx_uses uses;
    bool early; /* a group runs before its first reader, if that comes before its last member */
} mx_clusters;

static inline mx_cluster *mx_cluster_alive(mx_cluster *c)
{
    while (c && c->into)
        c = c->into;
    return c;
}

static inline mx_cluster *mx_cluster_of(const mx_clusters *k, const mx_node *n)
{
    return mx_cluster_alive(k->of[n->id]);
}

int64_t mx_cluster_elements(const mx_shape *space);

/* A fused node for each cluster of these nodes, which are in execution order: in place of its last
 * member. */
void mx_clusters_emit(mx_clusters *k, mx_node *const *order, int n, mx_arena *scratch);

#endif

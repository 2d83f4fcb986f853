/* fuse.c - elementwise chains, row ops and column sums become one node.
 *
 * Nodes are visited in execution order. A fusable node joins, and thereby merges, the groups it
 * reads from and the groups that read what it reads (SwiGLU's two gradients are made from the same
 * three tensors: one kernel reads each of them once). A group may grow as long as no path leaves it
 * and comes back: then everything it reads can run before it, and everything that reads it after.
 * Paths are looked for backwards from the group through what lies between its first and last
 * member, updates in place included, and a search that takes too long counts as a path. A path may
 * also lead through a group that began before and has grown since: the search does not see those,
 * and a group that turns out to wait for itself is split again.
 *
 * The group runs where its last member stood. The scheduler moves what has to wait for it. Where an
 * MLP is computed in tiles (tile_mlp.c) it runs before its first reader instead: a recomputed norm
 * is fused with parts of its own gradient, which come after all tiles, and until then whatever in
 * the tiles does not need the norm would be computed and kept.
 * clusters.c makes the nodes.
 */
#include "compile/compile.h"

#include "compile/clusters.h"
#include "ops.h"
#include <string.h>

enum { EXT_LIMIT = MX_MAX_IN, SEARCH_LIMIT = 512, JOIN_LIMIT = 8 };

typedef struct {
    mx_clusters clusters;
    mx_cluster **read_by; /* by node id: the last group that read it from outside, over its space */
    int *at;              /* by node id: place in the order of execution */
    int *seen;            /* by node id: number of the last search that passed */
    int search;
    int *stack;
    mx_edges before;
    bool merge; /* false: every node is a group of its own */
} fuser;

/* Groups that a node would merge into one. */
typedef struct {
    mx_cluster *c[JOIN_LIMIT];
    int n;
    mx_shape space;
} joint;

static bool same_space(const mx_shape *a, const mx_shape *b)
{
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, sizeof(int64_t) * (size_t)a->ndim) == 0;
}

static bool inside(const joint *j, const mx_cluster *c)
{
    for (int q = 0; c && q < j->n; q++)
        if (j->c[q] == c)
            return true;
    return false;
}

/* Distinct values that the members and n read from outside. */
static int count_ext(const fuser *f, const joint *j, const mx_node *n)
{
    const mx_node *seen[EXT_LIMIT + 1];
    int n_seen = 0;
    for (int k = 0; k <= j->n; k++)
        for (int m = 0; m < (k < j->n ? j->c[k]->n : 1); m++) {
            const mx_node *x = k < j->n ? j->c[k]->member[m] : n;
            for (int i = 0; i < x->n_in; i++) {
                bool known = inside(j, mx_cluster_of(&f->clusters, x->in[i]));
                for (int q = 0; q < n_seen && !known; q++)
                    known = seen[q] == x->in[i];
                if (known)
                    continue;
                if (n_seen == EXT_LIMIT)
                    return EXT_LIMIT + 1;
                seen[n_seen++] = x->in[i];
            }
        }
    return n_seen;
}

/* --- paths --- */

typedef struct {
    const joint *inside;
    int first; /* where the first member stands: nothing before it can lie after the group */
    int depth, steps;
} search;

/* Follows what must run before node x. Only what is reached from outside closes a path; what a
 * member reads directly does not. False: there is a path, or the search has grown too long. */
static bool follow(fuser *f, search *s, int x, bool from_outside)
{
    for (int e = f->before.start[x]; e < f->before.start[x + 1]; e++) {
        int y = f->before.node[e];
        mx_cluster *c = mx_cluster_alive(f->clusters.of[y]);
        if (inside(s->inside, c)) {
            if (from_outside)
                return false;
            continue;
        }
        int last = c ? f->at[c->member[c->n - 1]->id] : f->at[y];
        int *seen = c ? &c->seen : &f->seen[y];
        if (*seen == f->search || last < s->first)
            continue;
        *seen = f->search;
        if (s->depth == SEARCH_LIMIT || ++s->steps > SEARCH_LIMIT)
            return false;
        f->stack[s->depth++] = y;
    }
    return true;
}

/* Would these groups and n, as one node, depend on themselves? */
static bool depends_on_itself(fuser *f, const joint *j, const mx_node *n)
{
    search s = {.inside = j, .first = f->at[n->id]};
    for (int q = 0; q < j->n; q++)
        if (f->at[j->c[q]->member[0]->id] < s.first)
            s.first = f->at[j->c[q]->member[0]->id];
    f->search++;
    bool fine = follow(f, &s, n->id, false);
    for (int q = 0; q < j->n; q++)
        for (int m = 0; m < j->c[q]->n && fine; m++)
            fine = follow(f, &s, j->c[q]->member[m]->id, false);
    while (s.depth && fine) {
        int x = f->stack[--s.depth];
        const mx_cluster *c = mx_cluster_alive(f->clusters.of[x]);
        if (!c)
            fine = follow(f, &s, x, true);
        for (int m = 0; c && m < c->n && fine; m++)
            fine = follow(f, &s, c->member[m]->id, true);
    }
    return !fine;
}

/* --- growing a group --- */

/* A member whose result is a column sum cannot be read inside: the sum is there when the group has
 * run. */
static bool reads_a_sum(const fuser *f, const mx_cluster *c, const mx_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && mx_cluster_of(&f->clusters, n->in[i]) == c &&
            mx_group_sums_columns(n->in[i]))
            return true;
    return false;
}

/* What the backward pass computes again stays there: in a group of the forward pass it would be
 * computed early and kept. */
static bool is_forward(const mx_node *n)
{
    return !n->backward && !n->recomputed;
}

/* The wider of two spaces where the other has one number for each of its rows; NULL where they
 * cannot be one. (Anything narrower, say an angle per position, would be computed again for every
 * row.) */
static const mx_shape *wider(const mx_shape *a, const mx_shape *b)
{
    if (same_space(a, b))
        return a;
    int64_t na = mx_cluster_elements(a), nb = mx_cluster_elements(b);
    const mx_shape *wide = na > nb ? a : b;
    int64_t cols = wide->ndim ? wide->dim[wide->ndim - 1] : 1;
    return (na < nb ? na : nb) * cols == (na > nb ? na : nb) ? wide : NULL;
}

static bool accepts_all(const mx_cluster *c, const mx_shape *space)
{
    for (int m = 0; m < c->n; m++)
        if (!mx_group_accepts(c->member[m], space))
            return false;
    return true;
}

static bool fits_together(fuser *f, joint *j, const mx_node *n)
{
    mx_shape own = mx_group_space(n);
    const mx_shape *space = &own;
    int members = 1;
    for (int q = 0; q < j->n && space; q++) {
        members += j->c[q]->n;
        space = wider(space, &j->c[q]->space);
        if (reads_a_sum(f, j->c[q], n) || is_forward(j->c[q]->member[0]) != is_forward(n))
            return false;
    }
    if (!space || members > MX_GROUP_STEPS || !mx_group_accepts(n, space))
        return false;
    for (int q = 0; q < j->n; q++)
        if (!same_space(&j->c[q]->space, space) && !accepts_all(j->c[q], space))
            return false;
    j->space = *space;
    return count_ext(f, j, n) <= EXT_LIMIT && !depends_on_itself(f, j, n);
}

static void try_to_join(fuser *f, joint *j, mx_cluster *c, const mx_node *n)
{
    if (!c || inside(j, c) || j->n == JOIN_LIMIT)
        return;
    mx_shape space = j->space;
    j->c[j->n++] = c;
    if (fits_together(f, j, n))
        return;
    j->n--;
    j->space = space;
}

/* The groups that n can join together: those it reads, then those that read what it reads. A
 * column sum joins a group that makes or reads what it sums; alone it stays what it is: clusters.c
 * makes no node of it. */
static joint find_joint(fuser *f, const mx_node *n)
{
    joint j = {.space = mx_group_space(n)};
    for (int i = 0; i < n->n_in; i++)
        try_to_join(f, &j, mx_cluster_of(&f->clusters, n->in[i]), n);
    for (int i = 0; i < n->n_in; i++) {
        mx_cluster *c = mx_cluster_alive(f->read_by[n->in[i]->id]);
        if (c && same_space(&c->space, &j.space))
            try_to_join(f, &j, c, n);
    }
    return j;
}

static void add_member(mx_cluster *c, mx_node *n)
{
    MX_GROW(c->member, c->n, c->cap);
    c->member[c->n++] = n;
}

/* b's members into a, keeping execution order (both lists have it). */
static void merge(const fuser *f, mx_cluster *a, mx_cluster *b)
{
    for (int i = 0; i < b->n; i++) {
        add_member(a, b->member[i]);
        for (int k = a->n - 1; k > 0 && f->at[a->member[k]->id] < f->at[a->member[k - 1]->id];
             k--) {
            mx_node *t = a->member[k];
            a->member[k] = a->member[k - 1];
            a->member[k - 1] = t;
        }
    }
    b->into = a;
    b->n = 0;
    mx_free(b->member);
    b->member = NULL;
}

static void visit(fuser *f, mx_node *n, mx_arena *scratch)
{
    if (!mx_op_kind_is_tiled(n->op->kind) && !(f->merge && mx_group_sums_columns(n)))
        return;
    joint j = {.space = mx_group_space(n)};
    if (f->merge)
        j = find_joint(f, n);
    mx_cluster *c = j.n ? j.c[0] : MX_NEW(scratch, mx_cluster);
    c->space = j.space;
    for (int q = 1; q < j.n; q++)
        merge(f, c, j.c[q]);
    add_member(c, n);
    f->clusters.of[n->id] = c;
    for (int i = 0; i < n->n_in; i++)
        if (mx_cluster_of(&f->clusters, n->in[i]) != c &&
            mx_type_count(&n->in[i]->type) == mx_cluster_elements(&c->space))
            f->read_by[n->in[i]->id] = c;
}

/* --- groups that wait for themselves --- */

enum { NEW, OPEN, DONE };

typedef struct {
    int id;   /* a node, for the whole of its group */
    int m, e; /* the member and the edge to look at next */
} frame;

/* What must run before the frame's node or group, one after the other; -1: that was all. */
static int next_before(const fuser *f, frame *at)
{
    const mx_cluster *c = mx_cluster_alive(f->clusters.of[at->id]);
    for (;; at->m++, at->e = 0) {
        if (at->m == (c ? c->n : 1))
            return -1;
        int x = c ? c->member[at->m]->id : at->id;
        while (at->e < f->before.start[x + 1] - f->before.start[x]) {
            int y = f->before.node[f->before.start[x] + at->e++];
            const mx_cluster *of = mx_cluster_alive(f->clusters.of[y]);
            if (!c || of != c)
                return of ? of->member[0]->id : y;
        }
    }
}

/* The group that was closed last among those of a cycle that ends the stack and comes back to
 * `id`. */
static mx_cluster *latest_of(const fuser *f, const frame *stack, int depth, int id)
{
    mx_cluster *latest = NULL;
    int closed = -1;
    for (int i = depth - 1; i >= 0; i--) {
        mx_cluster *c = mx_cluster_alive(f->clusters.of[stack[i].id]);
        int at = c ? f->at[c->member[c->n - 1]->id] : -1;
        if (at > closed) {
            latest = c;
            closed = at;
        }
        if (stack[i].id == id)
            break;
    }
    MX_ASSERT(latest, "the graph had a cycle before");
    return latest;
}

/* A group on a cycle, found depth first from this node or group; NULL: there is none. */
static mx_cluster *find_cycle(const fuser *f, int from, char *state, frame *stack)
{
    int depth = 0;
    const mx_cluster *own = mx_cluster_alive(f->clusters.of[from]);
    from = own ? own->member[0]->id : from;
    if (state[from] == NEW) {
        state[from] = OPEN;
        stack[depth++] = (frame){from, 0, 0};
    }
    while (depth) {
        int y = next_before(f, &stack[depth - 1]);
        if (y < 0) {
            state[stack[--depth].id] = DONE;
        } else if (state[y] == OPEN) {
            return latest_of(f, stack, depth, y);
        } else if (state[y] == NEW) {
            state[y] = OPEN;
            stack[depth++] = (frame){y, 0, 0};
        }
    }
    return NULL;
}

static void take_apart(fuser *f, mx_cluster *c, mx_arena *scratch)
{
    for (int m = 0; m < c->n; m++) {
        mx_cluster *one = MX_NEW(scratch, mx_cluster);
        *one = (mx_cluster){.space = mx_group_space(c->member[m])};
        add_member(one, c->member[m]);
        f->clusters.of[c->member[m]->id] = one;
    }
    mx_free(c->member);
    *c = (mx_cluster){0};
}

static void break_cycles(fuser *f, mx_node *const *order, int n, mx_arena *scratch)
{
    char *state = MX_NEW_N(scratch, char, f->clusters.g->n_nodes);
    frame *stack = MX_NEW_N(scratch, frame, n + 1);
    for (int i = 0; i < n; i++) {
        mx_cluster *c = find_cycle(f, order[i]->id, state, stack);
        if (!c)
            continue;
        take_apart(f, c, scratch);
        memset(state, NEW, (size_t)f->clusters.g->n_nodes);
        i = -1;
    }
}

static void fuse(mx_graph *g, bool merge_, bool early)
{
    mx_arena scratch = {0};
    int n, n_nodes = g->n_nodes;
    mx_node **order = mx_graph_order(g, &scratch, &n);
    fuser f = {.clusters = {.g = g, .of = MX_NEW_N(&scratch, mx_cluster *, n_nodes),
                            .early = early},
               .read_by = MX_NEW_N(&scratch, mx_cluster *, n_nodes),
               .at = MX_NEW_N(&scratch, int, n_nodes),
               .seen = MX_NEW_N(&scratch, int, n_nodes),
               .stack = MX_NEW_N(&scratch, int, SEARCH_LIMIT),
               .before = mx_graph_before(g, &scratch),
               .merge = merge_};
    mx_uses_init(&f.clusters.uses, g);
    for (int i = 0; i < n; i++) {
        order[i]->seq = i; /* positions, so that seq is also the order */
        f.at[order[i]->id] = i;
    }
    for (int i = 0; i < n; i++)
        visit(&f, order[i], &scratch);
    if (merge_)
        break_cycles(&f, order, n, &scratch);
    mx_clusters_emit(&f.clusters, order, n, &scratch);
    for (int i = 0; i < n; i++) {
        mx_cluster *c = f.clusters.of[order[i]->id];
        if (c) {
            mx_free(c->member);
            c->member = NULL;
        }
    }
    mx_graph_resolve(g);
    mx_uses_fini(&f.clusters.uses);
    mx_arena_fini(&scratch);
}

void mx_pass_fuse(mx_graph *g, bool merge_)
{
    fuse(g, merge_, false);
}

/* A gradient is added to its sum as soon as it is there, so that it need not be kept: at the end
 * all of them would be alive at once. After fuse, so that no group is split. */
static void accumulate_early(mx_graph *g)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (g->node[i]->op == &mx_op_accumulate)
            g->node[i]->seq = g->node[i]->in[1]->seq;
}

static mx_status run(mx_graph *g, mx_compilation *c)
{
    fuse(g, !c->o->no_fuse, c->o->mlp_tiles > 1);
    accumulate_early(g);
    return MX_OK;
}

const mx_compile_pass mx_compile_pass_fuse = {
    .name = "fuse",
    .doc = "elementwise chains and row ops -> one kernel",
    .after = "offload",
    .programs = MX_IN_ALL,
    .run = run,
};

/* fuse.c - elementwise chains and row ops become one node.
 *
 * Nodes are visited in execution order. A group stays open while nobody outside it has read one of
 * its values; a fusable node joins (and thereby merges) all open groups it reads from, if the
 * result still runs over one space and within the limits. The group runs where its last member
 * stood: everything it reads is there by then, and because it was open, nothing outside has needed
 * it before. A node that updates memory in place closes the groups that read the old value: they
 * must not be put off until after it.
 */
#include "compile/passes.h"

#include "ops.h"
#include "ops/group.h"
#include <string.h>

enum { EXT_LIMIT = MX_MAX_IN };

typedef struct cluster cluster;
struct cluster {
    cluster *into;     /* merged into; NULL: alive */
    mx_node **member;  /* in execution order */
    int n, cap;
    mx_shape space;
    bool closed;
};

typedef struct {
    mx_graph *g;
    cluster **of; /* by node id; NULL: in none */
    int *n_users; /* by node id: live uses, roots included */
    bool merge;   /* false: every node is a group of its own */
    /* Nodes in groups that read a memory which some node overwrites: lists by memory, 1 + place in
     * `reader`; first is -1 where nobody overwrites. */
    int *first;
    struct {
        const mx_node *node;
        int next;
    } *reader;
    int n_readers, cap_readers;
} fuser;

static cluster *cluster_of(const fuser *f, const mx_node *n)
{
    cluster *c = f->of[n->id];
    while (c && c->into)
        c = c->into;
    return c;
}

static bool fusable(const mx_node *n)
{
    mx_op_kind k = n->op->kind;
    return k == MX_ELEMENTWISE || k == MX_ROW_REDUCE || k == MX_ROW_MAP;
}

static bool same_space(const mx_shape *a, const mx_shape *b)
{
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, sizeof(int64_t) * (size_t)a->ndim) == 0;
}

static int64_t elements(const mx_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++)
        n *= s->dim[i];
    return n;
}

/* Distinct values that the members of a and n read from outside. */
static int count_ext(const fuser *f, cluster *const *c, int n_c, const mx_node *n)
{
    const mx_node *seen[EXT_LIMIT + 1];
    int n_seen = 0;
    for (int k = 0; k <= n_c; k++)
        for (int m = 0; m < (k < n_c ? c[k]->n : 1); m++) {
            const mx_node *x = k < n_c ? c[k]->member[m] : n;
            for (int i = 0; i < x->n_in; i++) {
                cluster *from = cluster_of(f, x->in[i]);
                bool inside = false;
                for (int q = 0; q < n_c; q++)
                    inside |= from == c[q];
                for (int q = 0; q < n_seen && !inside; q++)
                    inside = seen[q] == x->in[i];
                if (!inside) {
                    if (n_seen == EXT_LIMIT)
                        return EXT_LIMIT + 1;
                    seen[n_seen++] = x->in[i];
                }
            }
        }
    return n_seen;
}

static void add_member(cluster *c, mx_node *n)
{
    MX_GROW(c->member, c->n, c->cap);
    c->member[c->n++] = n;
}

static int by_order(const mx_node *a, const mx_node *b)
{
    return a->seq != b->seq ? (a->seq < b->seq ? -1 : 1) : a->id < b->id ? -1 : a->id > b->id;
}

/* b's members into a, keeping execution order (both lists have it). */
static void merge(cluster *a, cluster *b)
{
    for (int i = 0; i < b->n; i++) {
        add_member(a, b->member[i]);
        for (int k = a->n - 1; k > 0 && by_order(a->member[k], a->member[k - 1]) < 0; k--) {
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

/* The open groups among n's inputs that n can join together. Tries all of them, then gives up the
 * last one until the limits hold. */
static int joinable(const fuser *f, const mx_node *n, cluster **c)
{
    mx_shape space = mx_group_space(n);
    int n_c = 0;
    for (int i = 0; i < n->n_in; i++) {
        cluster *from = cluster_of(f, n->in[i]);
        bool known = !from || from->closed;
        for (int q = 0; q < n_c; q++)
            known |= c[q] == from;
        /* A scalar-per-row tail may run in the wider space of the group it reads. */
        if (!known && (same_space(&from->space, &space) ||
                       (elements(&from->space) > elements(&space) &&
                        mx_group_accepts(n, &from->space))))
            c[n_c++] = from;
    }
    for (int q = 1; q < n_c; q++)
        if (!same_space(&c[q]->space, &c[0]->space))
            n_c = q;
    while (n_c) {
        int members = 1;
        for (int q = 0; q < n_c; q++)
            members += c[q]->n;
        if (members <= MX_GROUP_STEPS && mx_group_accepts(n, &c[0]->space) &&
            count_ext(f, c, n_c, n) <= EXT_LIMIT)
            return n_c;
        n_c--;
    }
    return 0;
}

static void find_overwritten(fuser *f, mx_node *const *order, int n, mx_arena *scratch)
{
    size_t memories = (size_t)f->g->n_nodes * MX_MAX_OUT;
    f->first = MX_NEW_N(scratch, int, memories);
    memset(f->first, -1, sizeof(int) * memories);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < order[i]->n_out; k++)
            if (mx_node_overwrites(order[i], k))
                f->first[mx_node_memory(mx_node_overwrites(order[i], k))] = 0;
}

static void note_readers(fuser *f, const mx_node *n)
{
    for (int i = 0; i < n->n_in; i++) {
        int *first = &f->first[mx_node_memory(n->in[i])];
        if (*first < 0)
            continue;
        MX_GROW(f->reader, f->n_readers, f->cap_readers);
        f->reader[f->n_readers].node = n;
        f->reader[f->n_readers++].next = *first;
        *first = f->n_readers;
    }
}

static void close_readers(fuser *f, const mx_node *n)
{
    for (int k = 0; k < n->n_out; k++) {
        const mx_node *old = mx_node_overwrites(n, k);
        for (int r = old ? f->first[mx_node_memory(old)] : 0; r > 0; r = f->reader[r - 1].next)
            cluster_of(f, f->reader[r - 1].node)->closed = true;
    }
}

static void visit(fuser *f, mx_node *n, mx_arena *scratch)
{
    close_readers(f, n);
    cluster *join[4];
    int n_join = f->merge && fusable(n) ? joinable(f, n, join) : 0;
    for (int i = 0; i < n->n_in; i++) {
        cluster *from = n->in[i] ? cluster_of(f, n->in[i]) : NULL;
        bool joined = false;
        for (int q = 0; q < n_join; q++)
            joined |= from == join[q];
        if (from && !joined)
            from->closed = true;
    }
    if (!fusable(n))
        return;
    cluster *c;
    if (n_join) {
        c = join[0];
        for (int q = 1; q < n_join; q++)
            merge(c, join[q]);
    } else {
        c = MX_NEW(scratch, cluster);
        c->space = mx_group_space(n);
    }
    add_member(c, n);
    f->of[n->id] = c;
    note_readers(f, n);
}

static bool leaves(const fuser *f, const mx_node *n, const int *inside_uses)
{
    return f->n_users[n->id] > inside_uses[n->id];
}

static int value_number(const mx_group *g, mx_node *const *ext, const cluster *c, const mx_node *x)
{
    for (int i = 0; i < g->n_ext; i++)
        if (ext[i] == x)
            return i;
    for (int i = 0; i < c->n; i++)
        if (c->member[i] == x)
            return g->n_ext + i;
    return -1;
}

static void emit(fuser *f, cluster *c, const int *inside_uses)
{
    mx_group *g = MX_NEW(&f->g->arena, mx_group);
    mx_node *ext[MX_MAX_IN], *result[MX_MAX_OUT];
    g->space = c->space;
    for (int m = 0; m < c->n; m++)
        for (int i = 0; i < c->member[m]->n_in; i++) {
            mx_node *x = c->member[m]->in[i];
            if (cluster_of(f, x) == c || value_number(g, ext, &(cluster){0}, x) >= 0)
                continue;
            g->ext[g->n_ext] = x->type;
            ext[g->n_ext++] = x;
        }
    for (int m = 0; m < c->n; m++) {
        const mx_node *n = c->member[m];
        mx_group_step *s = &g->step[g->n_steps++];
        *s = (mx_group_step){n->op, n->attr, n->n_in, {0}, n->type};
        for (int i = 0; i < n->n_in; i++)
            s->in[i] = value_number(g, ext, c, n->in[i]);
        if (leaves(f, n, inside_uses)) {
            result[g->n_out] = c->member[m];
            g->out[g->n_out++] = g->n_ext + m;
        }
    }
    mx_node *last = c->member[c->n - 1];
    f->g->seq = last->seq;
    const char *scope = f->g->scope;
    f->g->scope = last->scope;
    mx_node *fused = mx_fused(f->g, g, ext);
    fused->recomputed = last->recomputed;
    for (int k = 0; k < g->n_out; k++) {
        mx_node *out = mx_output(f->g, fused, k);
        if (!out->name)
            out->name = result[k]->name;
        mx_node_forward(result[k], out);
    }
    f->g->scope = scope;
    f->g->seq = -1;
}

/* A group with more results than a node can have is emitted member by member. That takes a long
 * chain of which nearly everything is read elsewhere, where fusing would save little. */
static void emit_within_limits(fuser *f, cluster *c, const int *inside_uses)
{
    int n_out = 0;
    for (int m = 0; m < c->n; m++)
        n_out += leaves(f, c->member[m], inside_uses);
    if (n_out <= MX_MAX_OUT) {
        emit(f, c, inside_uses);
        return;
    }
    int *none = MX_NEW_N(&f->g->arena, int, f->g->n_nodes);
    for (int m = 0; m < c->n; m++) {
        mx_node *one[1] = {c->member[m]};
        cluster alone = {.member = one, .n = 1, .space = mx_group_space(c->member[m])};
        cluster *own =
            f->of[one[0]->id]; /* perhaps one that was merged into c and still owns its list */
        f->of[one[0]->id] = &alone;
        emit(f, &alone, none);
        f->of[one[0]->id] = own;
    }
}

void mx_pass_fuse(mx_graph *g, bool merge)
{
    mx_arena scratch = {0};
    int n, n_nodes = g->n_nodes;
    mx_node **order = mx_graph_order(g, &scratch, &n);
    fuser f = {g, MX_NEW_N(&scratch, cluster *, n_nodes), MX_NEW_N(&scratch, int, n_nodes),
               merge};
    for (int i = 0; i < n; i++) {
        order[i]->seq = i; /* positions, so that seq is also the order */
        for (int k = 0; k < order[i]->n_in; k++)
            if (order[i]->in[k])
                f.n_users[order[i]->in[k]->id]++;
    }
    for (int i = 0; i < g->n_roots; i++)
        f.n_users[g->root[i]->id]++;
    find_overwritten(&f, order, n, &scratch);
    for (int i = 0; i < n; i++)
        visit(&f, order[i], &scratch);
    int *inside = MX_NEW_N(&scratch, int, n_nodes);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < order[i]->n_in; k++)
            if (order[i]->in[k] && cluster_of(&f, order[i]) &&
                cluster_of(&f, order[i]) == cluster_of(&f, order[i]->in[k]))
                inside[order[i]->in[k]->id]++;
    for (int i = 0; i < n; i++) {
        cluster *c = cluster_of(&f, order[i]);
        if (c && c->n && c->member[c->n - 1] == order[i])
            emit_within_limits(&f, c, inside);
    }
    for (int i = 0; i < n; i++) {
        cluster *c = f.of[order[i]->id];
        if (c) {
            mx_free(c->member);
            c->member = NULL;
        }
    }
    mx_free(f.reader);
    mx_graph_resolve(g);
    mx_arena_fini(&scratch);
}

/* clusters.c - each group that the fuse pass has formed becomes one fused node.
 *
 * Members become the steps of an mx_group, what they read from outside its inputs, and what is read
 * outside its outputs. Groups have grown to at most MX_MAX_IN inputs; one with more than MX_MAX_OUT
 * outputs is emitted in pieces.
 */
#include "compile/clusters.h"

#include "ops.h"

int64_t mx_cluster_elements(const mx_shape *space)
{
    int64_t n = 1;
    for (int i = 0; i < space->ndim; i++)
        n *= space->dim[i];
    return n;
}

static bool leaves(const mx_clusters *k, const mx_node *n, const int *inside_uses)
{
    return mx_uses_count(&k->uses, n) > inside_uses[n->id];
}

static int value_number(const mx_group *g, mx_node *const *ext, const mx_cluster *c,
                        const mx_node *x)
{
    for (int i = 0; i < g->n_ext; i++)
        if (ext[i] == x)
            return i;
    for (int i = 0; i < c->n; i++)
        if (c->member[i] == x)
            return g->n_ext + i;
    return -1;
}

/* The place in the order of its last member; with `early`, that of its first reader outside. */
static int place_of(const mx_clusters *k, const mx_cluster *c)
{
    int at = c->member[c->n - 1]->seq;
    for (int m = 0; m < c->n && k->early; m++) {
        const mx_use_list *u = mx_uses_of(&k->uses, c->member[m]);
        for (int i = 0; i < u->n; i++)
            if (mx_cluster_of(k, u->use[i].by) != c && u->use[i].by->seq < at)
                at = u->use[i].by->seq;
    }
    return at;
}

static void emit(mx_clusters *k, mx_cluster *c, const int *inside_uses)
{
    mx_group *g = MX_NEW(&k->g->arena, mx_group);
    mx_node *ext[MX_MAX_IN], *result[MX_MAX_OUT];
    g->space = c->space;
    for (int m = 0; m < c->n; m++)
        for (int i = 0; i < c->member[m]->n_in; i++) {
            mx_node *x = c->member[m]->in[i];
            if (mx_cluster_of(k, x) == c || value_number(g, ext, &(mx_cluster){0}, x) >= 0)
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
        if (leaves(k, n, inside_uses)) {
            result[g->n_out] = c->member[m];
            g->out[g->n_out++] = g->n_ext + m;
        }
    }
    mx_node *last = c->member[c->n - 1];
    k->g->seq = place_of(k, c);
    const char *scope = k->g->scope;
    k->g->scope = last->scope;
    mx_node *fused = mx_fused(k->g, g, ext);
    fused->recomputed = last->recomputed;
    for (int i = 0; i < g->n_out; i++) {
        mx_node *out = mx_output(k->g, fused, i);
        if (!out->name)
            out->name = result[i]->name;
        mx_node_forward(result[i], out);
    }
    k->g->scope = scope;
    k->g->seq = -1;
}

static bool in_piece(const mx_cluster *piece, const mx_node *x)
{
    for (int m = 0; m < piece->n; m++)
        if (piece->member[m] == x)
            return true;
    return false;
}

static int distinct_inputs(const mx_cluster *piece)
{
    const mx_node *seen[MX_MAX_IN + 1];
    int n = 0;
    for (int m = 0; m < piece->n; m++)
        for (int i = 0; i < piece->member[m]->n_in; i++) {
            const mx_node *x = piece->member[m]->in[i];
            bool known = in_piece(piece, x);
            for (int q = 0; q < n && !known; q++)
                known = seen[q] == x;
            if (known)
                continue;
            if (n == MX_MAX_IN)
                return n + 1;
            seen[n++] = x;
        }
    return n;
}

/* Uses of the members by each other; sign -1 takes them back. */
static void count_uses(const mx_cluster *piece, int *uses, int sign)
{
    for (int m = 0; m < piece->n; m++)
        for (int i = 0; i < piece->member[m]->n_in; i++)
            if (in_piece(piece, piece->member[m]->in[i]))
                uses[piece->member[m]->in[i]->id] += sign;
}

/* Can the piece be a node? Gives it its space. */
static bool is_within_limits(const mx_clusters *k, mx_cluster *piece, int *uses)
{
    int n_out = 0;
    piece->space = mx_group_space(piece->member[0]);
    for (int m = 1; m < piece->n; m++) {
        mx_shape space = mx_group_space(piece->member[m]);
        if (mx_cluster_elements(&space) > mx_cluster_elements(&piece->space))
            piece->space = space;
    }
    for (int m = 0; m < piece->n && piece->n > 1; m++)
        if (!mx_group_accepts(piece->member[m], &piece->space))
            return false;
    count_uses(piece, uses, 1);
    for (int m = 0; m < piece->n; m++)
        n_out += leaves(k, piece->member[m], uses);
    count_uses(piece, uses, -1);
    return n_out <= MX_MAX_OUT && distinct_inputs(piece) <= MX_MAX_IN;
}

static void emit_piece(mx_clusters *k, mx_cluster *piece, int *uses)
{
    mx_cluster *own[MX_GROUP_STEPS]; /* perhaps merged into another; still owner of its list */
    int n_sums = 0;
    for (int m = 0; m < piece->n; m++)
        n_sums += mx_group_sums_columns(piece->member[m]);
    if (n_sums == piece->n)
        return; /* sums alone: their op has a kernel of its own */
    for (int m = 0; m < piece->n; m++) {
        own[m] = k->of[piece->member[m]->id];
        k->of[piece->member[m]->id] = piece;
    }
    count_uses(piece, uses, 1);
    emit(k, piece, uses);
    count_uses(piece, uses, -1);
    for (int m = 0; m < piece->n; m++)
        k->of[piece->member[m]->id] = own[m];
}

/* A group with more outputs than a node can have is emitted in pieces, each as long as may be. */
static void emit_within_limits(mx_clusters *k, mx_cluster *c, const int *inside_uses)
{
    int n_out = 0, n_sums = 0;
    for (int m = 0; m < c->n; m++) {
        n_out += leaves(k, c->member[m], inside_uses);
        n_sums += mx_group_sums_columns(c->member[m]);
    }
    if (n_sums == c->n)
        return;
    if (n_out <= MX_MAX_OUT) {
        emit(k, c, inside_uses);
        return;
    }
    int *uses = MX_NEW_N(&k->g->arena, int, k->g->n_nodes);
    for (int from = 0; from < c->n;) {
        mx_cluster piece = {.member = c->member + from, .n = c->n - from};
        while (piece.n > 1 && !is_within_limits(k, &piece, uses))
            piece.n--;
        (void)is_within_limits(k, &piece, uses);
        emit_piece(k, &piece, uses);
        from += piece.n;
    }
}

/* How often members of one cluster read each node of it. */
static int *uses_inside(const mx_clusters *k, mx_node *const *order, int n, mx_arena *scratch)
{
    int *uses = MX_NEW_N(scratch, int, k->g->n_nodes);
    for (int i = 0; i < n; i++) {
        const mx_cluster *c = mx_cluster_of(k, order[i]);
        for (int m = 0; c && m < order[i]->n_in; m++)
            if (order[i]->in[m] && mx_cluster_of(k, order[i]->in[m]) == c)
                uses[order[i]->in[m]->id]++;
    }
    return uses;
}

void mx_clusters_emit(mx_clusters *k, mx_node *const *order, int n, mx_arena *scratch)
{
    const int *uses = uses_inside(k, order, n, scratch);
    for (int i = 0; i < n; i++) {
        mx_cluster *c = mx_cluster_of(k, order[i]);
        if (c && c->n && c->member[c->n - 1] == order[i])
            emit_within_limits(k, c, uses);
    }
}

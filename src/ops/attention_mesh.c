/* attention_mesh.c - attention on a mesh: cut by batch, by heads and by the place of queries.
 *
 * Heads: a rank has whole groups of query heads with their key heads, or, where there are fewer key
 * heads than ranks, takes the one its queries read.
 *
 * Sequence (the axis `context`; queries stay where they are):
 *   all_gather   keys and values of the whole sequence on every rank
 *   ring         keys and values go round; each rank attends to what it has and merges what it
 *                found (merge_attention.c)
 *   ulysses      queries, keys and values are cut by heads instead, the sequence is whole
 * A query's place in the sequence is its own wherever it lies, so every mask means what it means on
 * one device. Lists of selected keys name places of the whole sequence: then keys are gathered.
 */
#include "ops/attention.h"

#include "ops.h"
#include "ops/merge_attention.h"
#include <string.h>

static bool of_query(int i)
{
    return i == MX_ATTN_Q || i == MX_ATTN_Q_POS || i == MX_ATTN_Q_SEG || i == MX_ATTN_Q_SPAN ||
           i == MX_ATTN_SELECTED;
}

static int64_t heads_of(const mx_node *n, int i)
{
    return n->in[i]->type.dim[2];
}

/* Can query heads be cut into this many pieces? */
static bool heads_fit(const mx_node *n, int64_t pieces)
{
    int64_t h = heads_of(n, MX_ATTN_Q), k = heads_of(n, MX_ATTN_K);
    return h % pieces == 0 && (k % pieces == 0 || pieces % k == 0);
}

/* Are its queries pieces of a sequence already? */
static bool is_piece(const mx_node *n)
{
    const mx_attention_attr *a = n->attr;
    return a->q_offset || a->q_jump;
}

static bool is_ring(const mx_node *n, const mx_partition_call *p, const mx_cut *length)
{
    return p->context == MX_CONTEXT_RING && length->n == 1 && !n->in[MX_ATTN_SELECTED] &&
           length->axes[0] == 1u << MX_AXIS_CONTEXT;
}

void mx_attention_place(const mx_node *n, mx_partition_call *p)
{
    mx_cut batch = p->have[MX_ATTN_Q].dim[0], length = p->have[MX_ATTN_Q].dim[1];
    mx_cut heads = p->have[MX_ATTN_Q].dim[2];
    int64_t h = heads_of(n, MX_ATTN_Q), k = heads_of(n, MX_ATTN_K);
    if (is_piece(n))
        length = (mx_cut){0};
    if (!heads_fit(n, mx_mesh_size(p->mesh, mx_cut_axes(&heads))))
        heads = (mx_cut){0};
    mx_axis_set both = mx_cut_axes(&heads) | mx_cut_axes(&length);
    bool ulysses = p->context == MX_CONTEXT_ULYSSES && length.n;
    p->not_ulysses = ulysses && !heads_fit(n, mx_mesh_size(p->mesh, both));
    if (ulysses && !p->not_ulysses) {
        heads = mx_cut_inside(p->mesh, &heads, h, mx_cut_axes(&length));
        length = (mx_cut){0};
    }
    /* Where there are fewer keys than ranks each takes what it needs. */
    bool keys_too = k % mx_mesh_size(p->mesh, mx_cut_axes(&heads)) == 0;
    mx_cut keys = keys_too ? mx_cut_resized(&heads, h, k) : (mx_cut){0};
    for (int i = 0; i < MX_ATTN_N_IN; i++) {
        p->in[i] = (mx_placement){0};
        if (!n->in[i])
            continue;
        if (i == MX_ATTN_SINKS) {
            p->in[i].dim[0] = heads;
            continue;
        }
        p->in[i].dim[0] = n->in[i]->type.dim[0] == 1 ? (mx_cut){0} : batch;
        if (of_query(i) || is_ring(n, p, &length))
            p->in[i].dim[1] = length;
        if (i <= MX_ATTN_V)
            p->in[i].dim[2] = i == MX_ATTN_Q ? heads : keys;
    }
    p->out[0] = (mx_placement){{batch, length, heads}};
    p->out[1] = (mx_placement){{batch, heads, length}};
}

mx_node *mx_attention_places(mx_graph *g, const mx_partition_call *p, int rank,
                             const mx_cut *length, mx_shape s)
{
    double *v = mx_arena_alloc(&g->arena, sizeof *v * (size_t)s.dim[1]);
    int64_t whole = s.dim[1] * mx_mesh_size(p->mesh, mx_cut_axes(length));
    for (int64_t i = 0; i < s.dim[1]; i++)
        v[i] = (double)mx_cut_index(p->mesh, rank, length, whole, i);
    return mx_broadcast_to(g, mx_table(g, MX_SHAPE(1, s.dim[1]), MX_I32, v),
                           MX_SHAPE(s.dim[0], s.dim[1]));
}

/* Key heads for this rank's queries out of all of them. */
static void take_heads(mx_graph *g, const mx_node *n, mx_node **in, const mx_partition_call *p)
{
    int64_t kv = in[MX_ATTN_K]->type.dim[2], heads = in[MX_ATTN_Q]->type.dim[2];
    int64_t share = heads_of(n, MX_ATTN_Q) / heads_of(n, MX_ATTN_K);
    if (heads >= kv * share)
        return;
    int64_t mine = mx_cut_from(p->mesh, p->rank, &p->out[0].dim[2], n->type.dim[2]);
    int64_t first = mine / share, count = (heads + share - 1) / share;
    in[MX_ATTN_K] = mx_slice(g, in[MX_ATTN_K], 2, first, count);
    in[MX_ATTN_V] = mx_slice(g, in[MX_ATTN_V], 2, first, count);
}

/* --- the ring --- */

/* Attention to one rank's keys after the other. */
typedef struct {
    int n;
    mx_node **set; /* out and lse of each */
} found;

static void attend(mx_graph *g, const mx_node *n, const mx_attention_attr *a, mx_node *const *in,
                   found *f)
{
    f->set[2 * f->n] = mx_apply(g, n->op, a, MX_ATTN_N_IN, in);
    f->set[2 * f->n + 1] = mx_output(g, f->set[2 * f->n], 1);
    f->n++;
}

/* The op's outputs, as it has them: of as many sets as one op merges, then of what that gave. The
 * first set has all queries. */
static mx_node *outputs(mx_graph *g, found *f, mx_partition_call *p)
{
    while (f->n > 1) {
        int most = f->n < MX_MERGED_SETS ? f->n : MX_MERGED_SETS;
        f->set[0] = mx_merge_attention(g, 2 * most, f->set);
        f->set[1] = mx_output(g, f->set[0], 1);
        f->n -= most - 1;
        memmove(f->set + 2, f->set + 2 * most, sizeof *f->set * 2 * (size_t)(f->n - 1));
    }
    p->made[1] = f->set[1];
    return f->set[0];
}

/* What a rank has of the context axis. */
typedef struct {
    int size, index;
    mx_collective_attr next;
} circle;

static circle circle_of(const mx_partition_call *p)
{
    mx_axis_set axes = 1u << MX_AXIS_CONTEXT;
    circle c = {mx_mesh_size(p->mesh, axes), mx_mesh_index(p->mesh, p->rank, axes), {0}};
    c.next = (mx_collective_attr){.axes = axes, .size = c.size, .index = c.index, .to = 1};
    return c;
}

/* Keys and what belongs to them go one place further. */
static void pass_on(mx_graph *g, const circle *c, mx_node **in, bool places)
{
    in[MX_ATTN_SINKS] = NULL; /* it is in the first sum */
    for (int k = MX_ATTN_K; k < MX_ATTN_SINKS; k++)
        if (in[k] && !of_query(k) && (k != MX_ATTN_K_POS || places))
            in[k] = mx_ring_shift(g, in[k], c->next);
}

static mx_node *ring(mx_graph *g, const mx_node *n, mx_node **in, mx_partition_call *p)
{
    circle c = circle_of(p);
    found f = {0, MX_NEW_N(&g->arena, mx_node *, 2 * c.size)};
    bool placed = in[MX_ATTN_K_POS] != NULL;
    for (int i = 0; i < c.size; i++) {
        int source = mx_mesh_member(p->mesh, p->rank, (mx_axis_set)c.next.axes,
                                    (c.index - i + c.size) % c.size);
        mx_shape s = MX_SHAPE(in[MX_ATTN_K]->type.dim[0], in[MX_ATTN_K]->type.dim[1]);
        if (!placed)
            in[MX_ATTN_K_POS] = mx_attention_places(g, p, source, &p->in[MX_ATTN_K].dim[1], s);
        attend(g, n, n->attr, in, &f);
        if (i + 1 < c.size)
            pass_on(g, &c, in, placed);
    }
    return outputs(g, &f, p);
}

/* --- the ring where only order counts ---
 *
 * Under the causal mask alone positions are not needed: a rank's own tokens are in order. With
 * zigzag a rank has an early chunk and a late one. Both see the early chunk of a rank before it,
 * and the late one sees both chunks of a rank after it. So each pair of ranks has half the work,
 * and no mask at all. */

static bool only_order_counts(const mx_node *n, mx_node *const *in)
{
    const mx_attention_attr *a = n->attr;
    return !a->window && !a->chunk && !in[MX_ATTN_Q_POS] && !in[MX_ATTN_Q_SPAN];
}

/* Without zigzag the first rank would have no use for others' keys, and no rank to send them to. */
static bool has_use_for_all(const mx_node *n, const mx_cut *length)
{
    return length->zigzag[0] || !((const mx_attention_attr *)n->attr)->causal;
}

/* The first or second half of a rank's tokens. */
static mx_node *half_of(mx_graph *g, mx_node *x, int half)
{
    int64_t n = x ? x->type.dim[1] / 2 : 0;
    return x ? mx_slice(g, x, 1, half * n, n) : NULL;
}

static void take_half(mx_graph *g, mx_node **in, bool queries, int half)
{
    for (int k = 0; k < MX_ATTN_SINKS; k++)
        if (of_query(k) == queries)
            in[k] = half_of(g, in[k], half);
}

/* Keys of another rank, which is before this one or after it; late: the second half of queries;
 * NULL: the halves are treated alike. */
static void look_at(mx_graph *g, const mx_node *n, mx_node *const *in, mx_node *const *late,
                    bool before, found *f)
{
    mx_attention_attr open = *(const mx_attention_attr *)n->attr;
    mx_node *now[MX_ATTN_N_IN];
    open.causal = false;
    for (int k = 0; k < MX_ATTN_N_IN; k++)
        now[k] = late && !before && of_query(k) ? late[k] : in[k];
    if (late && before)
        take_half(g, now, false, 0);
    attend(g, n, &open, now, f);
}

static mx_node *ring_by_order(mx_graph *g, const mx_node *n, mx_node **in, mx_partition_call *p)
{
    circle c = circle_of(p);
    bool halves = ((const mx_attention_attr *)n->attr)->causal;
    found f = {0, MX_NEW_N(&g->arena, mx_node *, 2 * c.size)};
    mx_node *late[MX_ATTN_N_IN];
    memcpy(late, in, sizeof late);
    if (halves)
        take_half(g, late, true, 1);
    for (int i = 0; i < c.size; i++) {
        if (i == 0)
            attend(g, n, n->attr, in, &f);
        else
            look_at(g, n, in, halves ? late : NULL, (c.index - i + c.size) % c.size < c.index, &f);
        if (i + 1 < c.size)
            pass_on(g, &c, in, false);
    }
    return outputs(g, &f, p);
}

/* --- gathered keys where only order counts ---
 *
 * A rank's queries are one piece of the sequence, or two with zigzag; the op has where they begin,
 * so that kernels skip later keys. */

static bool is_by_context(const mx_cut *length)
{
    return length->n == 1 && length->axes[0] == 1u << MX_AXIS_CONTEXT;
}

static mx_node *by_places(mx_graph *g, const mx_node *n, mx_node *const *in,
                          const mx_partition_call *p)
{
    mx_attention_attr a = *(const mx_attention_attr *)n->attr;
    circle c = circle_of(p);
    int64_t size = in[MX_ATTN_Q]->type.dim[1];
    bool zigzag = p->out[0].dim[1].zigzag[0];
    a.q_offset = zigzag ? c.index * (size / 2) : c.index * size;
    a.q_jump = zigzag ? (c.size - 1 - c.index) * size : 0;
    return mx_apply(g, n->op, &a, MX_ATTN_N_IN, in);
}

/* What ranks send lies in one run. Values would keep a projection of queries, keys and values from
 * being read where it lies (strided_views.c), so they get a tensor of their own, as rotated keys
 * have. */
static mx_node *in_one_run(mx_graph *g, mx_node *x)
{
    return mx_affine(g, x, 1, 0);
}

mx_node *mx_attention_local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    mx_node *now[MX_ATTN_N_IN];
    const mx_cut *length = &p->out[0].dim[1];
    memcpy(now, in, sizeof now);
    take_heads(g, n, now, p);
    bool rings = length->n && is_ring(n, p, length);
    bool order = length->n && only_order_counts(n, in);
    if (rings)
        now[MX_ATTN_V] = in_one_run(g, now[MX_ATTN_V]);
    if (rings && order && has_use_for_all(n, length))
        return ring_by_order(g, n, now, p);
    if (!rings && order && is_by_context(length) && !in[MX_ATTN_SELECTED] &&
        ((const mx_attention_attr *)n->attr)->causal)
        return by_places(g, n, now, p);
    if (length->n && !in[MX_ATTN_Q_POS]) {
        mx_shape q = MX_SHAPE(now[MX_ATTN_Q]->type.dim[0], now[MX_ATTN_Q]->type.dim[1]);
        mx_shape k = MX_SHAPE(now[MX_ATTN_K]->type.dim[0], now[MX_ATTN_K]->type.dim[1]);
        now[MX_ATTN_Q_POS] = mx_attention_places(g, p, p->rank, length, q);
        if (!rings)
            now[MX_ATTN_K_POS] = mx_attention_places(g, p, p->rank, &(mx_cut){0}, k);
    }
    return rings ? ring(g, n, now, p) : mx_apply(g, n->op, n->attr, MX_ATTN_N_IN, now);
}

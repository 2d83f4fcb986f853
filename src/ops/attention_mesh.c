/* attention_mesh.c - attention on a mesh: cut by batch, by heads and by the place of queries.
 *
 * Heads: a rank has whole groups of query heads with their key heads, or, where there are fewer key
 * heads than ranks, takes the one its queries read.
 *
 * Sequence (the axis `context`; queries stay where they are):
 *   all_gather   keys and values of the whole sequence on every rank
 *   ring         keys and values go round; each rank attends to what it has and merges:
 *                    lse = log sum_i e^lse_i,  out = sum_i e^(lse_i - lse) out_i
 *   ulysses      queries, keys and values are cut by heads instead, the sequence is whole
 * A query's place in the sequence is its own wherever it lies, so every mask means what it means on
 * one device. Lists of selected keys name places of the whole sequence: then keys are gathered.
 */
#include "ops/attention.h"

#include "ops.h"
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

/* Can query heads be cut in so many pieces? */
static bool heads_fit(const mx_node *n, int64_t pieces)
{
    int64_t h = heads_of(n, MX_ATTN_Q), k = heads_of(n, MX_ATTN_K);
    return h % pieces == 0 && (k % pieces == 0 || pieces % k == 0);
}

static bool takes_turns(const mx_node *n, const mx_partition_call *p, const mx_cut *length)
{
    return p->context == MX_CONTEXT_RING && length->n == 1 && !n->in[MX_ATTN_SELECTED] &&
           length->axes[0] == 1u << MX_AXIS_CONTEXT;
}

void mx_attention_place(const mx_node *n, mx_partition_call *p)
{
    mx_cut batch = p->have[MX_ATTN_Q].dim[0], length = p->have[MX_ATTN_Q].dim[1];
    mx_cut heads = p->have[MX_ATTN_Q].dim[2];
    int64_t h = heads_of(n, MX_ATTN_Q), k = heads_of(n, MX_ATTN_K);
    if (!heads_fit(n, mx_mesh_size(p->mesh, mx_cut_axes(&heads))))
        heads = (mx_cut){0};
    mx_axis_set both = mx_cut_axes(&heads) | mx_cut_axes(&length);
    if (p->context == MX_CONTEXT_ULYSSES && heads_fit(n, mx_mesh_size(p->mesh, both))) {
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
        if (of_query(i) || takes_turns(n, p, &length))
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

typedef struct {
    mx_node *out, *lse; /* (B, S, H, E) and (B, S, H, 1), in float32 or wider */
} partial;

static mx_dtype wide(const mx_node *n)
{
    return n->type.dtype == MX_F64 ? MX_F64 : MX_F32;
}

static partial attend(mx_graph *g, const mx_node *n, mx_node *const *in)
{
    mx_node *y = mx_apply(g, n->op, n->attr, MX_ATTN_N_IN, in);
    mx_node *lse = mx_transpose(g, mx_output(g, y, 1), "bhs->bsh");
    mx_shape s = mx_shape_of(&lse->type);
    s.dim[s.ndim++] = 1;
    /* A query that sees nothing here has -infinity: a number, so that differences are. */
    mx_node *least = mx_constant(g, MX_SCALAR, lse->type.dtype, -1e30);
    return (partial){mx_cast(g, y, wide(n)), mx_maximum(g, mx_reshape(g, lse, s), least)};
}

static mx_node *merge(mx_graph *g, const mx_node *n, const partial *part, int count,
                      mx_partition_call *p)
{
    mx_node *top = part[0].lse, *sum = NULL, *out = NULL;
    for (int i = 1; i < count; i++)
        top = mx_maximum(g, top, part[i].lse);
    top = mx_detach(g, top);
    for (int i = 0; i < count; i++) {
        mx_node *e = mx_exp(g, mx_sub(g, part[i].lse, top)), *y = mx_mul(g, part[i].out, e);
        sum = sum ? mx_add(g, sum, e) : e;
        out = out ? mx_add(g, out, y) : y;
    }
    mx_node *lse = mx_add(g, top, mx_log(g, sum));
    mx_shape s = mx_shape_of(&lse->type);
    s.ndim--;
    p->made[1] = mx_transpose(g, mx_reshape(g, lse, s), "bsh->bhs");
    return mx_cast(g, mx_div(g, out, sum), n->type.dtype);
}

static mx_node *ring(mx_graph *g, const mx_node *n, mx_node **in, mx_partition_call *p)
{
    mx_axis_set axes = 1u << MX_AXIS_CONTEXT;
    int size = mx_mesh_size(p->mesh, axes), index = mx_mesh_index(p->mesh, p->rank, axes);
    mx_collective_attr next = {.axes = axes, .size = size, .index = index, .to = 1};
    partial *part = MX_NEW_N(&g->arena, partial, size);
    bool placed = in[MX_ATTN_K_POS] != NULL;
    for (int i = 0; i < size; i++) {
        int source = mx_mesh_member(p->mesh, p->rank, axes, (index - i + size) % size);
        mx_shape s = MX_SHAPE(in[MX_ATTN_K]->type.dim[0], in[MX_ATTN_K]->type.dim[1]);
        if (!placed)
            in[MX_ATTN_K_POS] = mx_attention_places(g, p, source, &p->in[MX_ATTN_K].dim[1], s);
        part[i] = attend(g, n, in);
        in[MX_ATTN_SINKS] = NULL; /* it is in the first sum */
        for (int k = MX_ATTN_K; k < MX_ATTN_SINKS && i + 1 < size; k++)
            if (in[k] && !of_query(k) && (k != MX_ATTN_K_POS || placed))
                in[k] = mx_ring_shift(g, in[k], next);
    }
    return merge(g, n, part, size, p);
}

mx_node *mx_attention_local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    mx_node *now[MX_ATTN_N_IN];
    const mx_cut *length = &p->out[0].dim[1];
    memcpy(now, in, sizeof now);
    take_heads(g, n, now, p);
    bool turns = length->n && takes_turns(n, p, length);
    if (length->n && !in[MX_ATTN_Q_POS]) {
        mx_shape q = MX_SHAPE(now[MX_ATTN_Q]->type.dim[0], now[MX_ATTN_Q]->type.dim[1]);
        mx_shape k = MX_SHAPE(now[MX_ATTN_K]->type.dim[0], now[MX_ATTN_K]->type.dim[1]);
        now[MX_ATTN_Q_POS] = mx_attention_places(g, p, p->rank, length, q);
        if (!turns)
            now[MX_ATTN_K_POS] = mx_attention_places(g, p, p->rank, &(mx_cut){0}, k);
    }
    return turns ? ring(g, n, now, p) : mx_apply(g, n->op, n->attr, MX_ATTN_N_IN, now);
}

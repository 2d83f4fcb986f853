/* overlap.c - collectives that go on beside other nodes: see docs/design-overlap.md.
 *
 * The gather of a weight starts about a layer before it is read. A sum over ranks that is not read
 * at once ends before its first reader, or about a layer's sums later. What moves between ranks (a
 * step round the ring, rows to experts and back) starts when it is made and ends when it is read.
 * Each of them becomes two nodes: the collective, marked `beside`, and a wait, which all readers
 * read instead. Let L be the bytes of the layer that gathers, or sums, most:
 *
 *     gather   starts before the reader of the gather L bytes earlier in the order of reading
 *     sum      ends before the sum that is L bytes further on in the order of making is made, or
 *              begun, where its input is added up piece by piece
 *              (where MLPs are computed in pieces, one larger than L, a head's, ends at once: its
 *              input would outweigh what the pieces save)
 *     move     starts after what it is made of, ends before the first reader that computes;
 *              what only moves elements between them goes with it, inside the layer
 *
 * All ranks must issue collectives in one order, even where their programs differ (the ranks of a
 * ring read each other's keys in one of two ways) and different nodes are fused. So the order is
 * fixed here: that of the graph as it was built, except that a gather of weights goes before the
 * matmul that it was moved ahead of, which is the same matmul on all ranks. Moves overtake no other
 * collective.
 *
 * In the order in which models are written, the exchange of rows with experts has nothing to
 * overlap with. So about half of what the layer computes without those rows, a shared expert, is
 * moved there.
 */
#include "compile/compile.h"
#include "compile/mesh/partition.h"

#include "ops.h"
#include "ops/collective.h"
#include <stdlib.h>

enum { LEAST = 4096, CHAIN = 4 }; /* bytes; nodes between a weight and its gather */

typedef struct {
    mx_node *x;
    int64_t bytes; /* of what is whole: a gather's result, a sum's input */
    int made, read; /* positions in the order; read: of the first reader, n when it can wait */
    int begun; /* where the input's memory begins: made, but of a sum of pieces its first part */
    int starts, ends;
} item;

typedef struct {
    mx_graph *g;
    mx_node **order;
    int n;
    int *read; /* by node id: as in item */
    int *late; /* the same, after readers that only move elements */
    int *starts; /* by node id, of collectives: where they start */
    int *there; /* position from which it can be there, where what only moves elements goes ahead */
    bool *root;
    bool in_pieces; /* MLPs are computed so (tile_mlp.c), since memory is short */
    item *items;
    int n_items, cap_items;
} overlap;

/* Is the node made of weights and nothing else, by few nodes? */
static bool is_of_weights(const mx_node *x, int depth)
{
    if (x->op->kind == MX_SOURCE)
        return x->op == &mx_op_variable;
    for (int k = 0; k < x->n_in && depth; k++)
        if (!x->in[k] || !is_of_weights(x->in[k], depth - 1))
            return false;
    return depth && x->n_in;
}

static bool is_gather(const mx_node *x)
{
    return x->op == &mx_op_all_gather && is_of_weights(x->in[0], CHAIN);
}

static bool is_sum(const mx_node *x)
{
    return x->backward && (x->op == &mx_op_reduce_scatter || x->op == &mx_op_all_reduce);
}

/* A sum, or rows of one: weights that were gathered together have such gradients. */
static bool is_of_sum(const mx_node *x)
{
    return is_sum(x->op == &mx_op_slice ? x->in[0] : x);
}

static bool is_move(const mx_node *x)
{
    return x->op == &mx_op_ring_shift || x->op == &mx_op_all_to_all ||
           x->op == &mx_op_exchange_rows || x->op == &mx_op_return_rows;
}

/* Something that computes; otherwise it moves elements, or is waited for by all ranks. */
static bool computes(const mx_node *x)
{
    return x->op->kind != MX_VIEW && x->op->kind != MX_PROJECT && x->op->kind != MX_SOURCE &&
           !x->op->collective && mx_node_cost(x).flops > 0;
}

static bool is_light(const mx_node *x)
{
    for (int k = 0; k < x->n_out; k++)
        if (mx_node_overwrites(x, k))
            return false;
    return x->op->kind != MX_SOURCE && !x->op->collective && !computes(x);
}

static void find_readers(overlap *o)
{
    for (int i = 0; i < o->n; i++)
        o->read[o->order[i]->id] = o->late[o->order[i]->id] = o->n;
    for (int i = 0; i < o->g->n_roots; i++)
        o->root[o->g->root[i]->id] = true;
    for (int i = o->n - 1; i >= 0; i--) {
        const mx_node *r = o->order[i];
        int at = r->op == &mx_op_slice && is_of_sum(r) ? o->read[r->id] : i;
        for (int k = 0; k < r->n_in; k++) { /* what is only added up may be added up later */
            bool later = r->op == &mx_op_accumulate && r->in[k] && is_of_sum(r->in[k]);
            if (r->in[k] && !later && at < o->read[r->in[k]->id])
                o->read[r->in[k]->id] = at;
            int first = is_light(r) ? o->late[r->id] : i;
            if (r->in[k] && first < o->late[r->in[k]->id])
                o->late[r->in[k]->id] = first;
        }
    }
    for (int i = 0; i < o->n; i++) {
        const mx_node *x = o->order[i];
        int *at = &o->there[x->id], from = 0;
        for (int k = 0; k < x->n_in; k++)
            if (x->in[k] && o->there[x->in[k]->id] > from)
                from = o->there[x->in[k]->id];
        bool source = x->op->kind == MX_SOURCE;
        *at = source ? 0 : is_light(x) ? from : is_move(x) ? o->late[x->id] : i + 1;
    }
}

/* Where the first part of what it sums is made, of an input that pieces are added to in place; else
 * where it is made itself. */
static int begun(const mx_node *x, int made)
{
    const mx_node *y = x->in[0];
    while (y->op == &mx_op_cast || y->op->kind == MX_VIEW)
        y = y->in[0];
    if (y->op != &mx_op_accumulate)
        return made;
    while (y->op == &mx_op_accumulate)
        y = y->in[0];
    return y->seq / 2; /* see find_order */
}

static void find_items(overlap *o, bool (*is)(const mx_node *x))
{
    o->n_items = 0;
    for (int i = 0; i < o->n; i++) {
        mx_node *x = o->order[i];
        const mx_collective_attr *a = x->op->collective ? x->attr : NULL;
        if (!a || a->size < 2 || a->beside || o->root[x->id] || !is(x))
            continue;
        const mx_type *whole = is == is_sum ? &x->in[0]->type : &x->type;
        int64_t bytes = (int64_t)mx_type_bytes(whole);
        if (bytes < LEAST)
            continue;
        MX_GROW(o->items, o->n_items, o->cap_items);
        o->items[o->n_items++] =
            (item){.x = x, .bytes = bytes, .made = i, .read = o->read[x->id], .begun = begun(x, i)};
    }
}

/* What lies in no layer, a vocabulary's head, is larger than any and no measure. */
static int64_t largest_layer(const overlap *o)
{
    int64_t most = 0, sum = 0;
    for (int i = 0; i < o->n_items; i++) {
        const item *it = &o->items[i];
        if (!mx_scope_layer(it->x->scope))
            continue;
        sum = (i && mx_same_layer(it->x, it[-1].x) ? sum : 0) + it->bytes;
        most = sum > most ? sum : most;
    }
    return most;
}

static int by_reading(const void *a, const void *b)
{
    return ((const item *)a)->read - ((const item *)b)->read;
}

static void place_gathers(overlap *o)
{
    item *it = o->items;
    int64_t layer = largest_layer(o), window = 0;
    if (o->n_items)
        qsort(it, (size_t)o->n_items, sizeof *it, by_reading);
    for (int i = 0, j = 0; i < o->n_items; i++) { /* window: bytes of j to i - 1 */
        while (j < i && window - it[j].bytes >= layer)
            window -= it[j++].bytes;
        int early = window >= layer ? it[j].read : 0;
        it[i].starts = early < it[i].made ? early : it[i].made;
        it[i].ends = it[i].read;
        window += it[i].bytes;
    }
}

static void place_sums(overlap *o)
{
    item *it = o->items;
    int64_t layer = largest_layer(o), ahead = 0;
    for (int i = 0, j = 0; i < o->n_items; i++) { /* ahead: bytes of i + 1 to j */
        while (ahead < layer && j + 1 < o->n_items)
            ahead += it[++j].bytes;
        int late = o->in_pieces && it[i].bytes > layer ? it[i].made + 1
                   : ahead >= layer                    ? it[j].begun
                                                       : o->n;
        it[i].starts = it[i].made;
        it[i].ends = late < it[i].read ? late : it[i].read;
        ahead -= i + 1 < o->n_items ? it[i + 1].bytes : 0;
    }
}

/* Of the same layer, in the same pass over it. */
static bool is_near(const mx_node *a, const mx_node *b)
{
    return mx_same_layer(a, b) && (a->backward || a->recomputed) == (b->backward || b->recomputed);
}

static void place_moves(overlap *o)
{
    for (int i = 0; i < o->n_items; i++) {
        item *it = &o->items[i];
        int from = 0, layer = it->made;
        for (int k = 0; k < it->x->n_in; k++)
            if (o->there[it->x->in[k]->id] > from)
                from = o->there[it->x->in[k]->id];
        while (layer > from && is_near(o->order[layer - 1], it->x))
            layer--;
        it->starts = layer;
        it->ends = o->late[it->x->id];
    }
}

/* Is anything computed between two places in the order? */
static bool has_work(const overlap *o, int from, int to)
{
    for (int i = from; i < to; i++)
        if (o->order[i]->op->kind == MX_PLAIN && computes(o->order[i]))
            return true;
    return false;
}

/* Moves x, and what it is computed from, to `seq` if it comes later: a collective needs its
 * input. */
static void go_with(mx_node *x, int seq)
{
    if (x->op->kind == MX_SOURCE || x->seq <= seq)
        return;
    x->seq = seq;
    for (int k = 0; k < x->n_in; k++)
        if (x->in[k])
            go_with(x->in[k], seq);
}

/* Node i of the order has seq 2 i + 1, so that 2 i is free for what goes right before it. */
static void part(overlap *o, const item *it)
{
    mx_graph *g = o->g;
    mx_node *x = it->x;
    mx_collective_attr *a = mx_arena_copy(&g->arena, x->attr, sizeof *a);
    a->beside = true;
    x->attr = a;
    o->starts[x->id] = it->starts;
    if (it->starts < it->made) {
        x->seq = 2 * it->starts;
        for (int k = 0; k < x->n_in; k++)
            go_with(x->in[k], x->seq);
    }
    g->scope = x->scope;
    g->stage = x->stage;
    g->seq = 2 * it->ends;
    g->backward = x->backward;
    mx_node *y = x->n_in > 1 ? MX_APPLY(g, &mx_op_wait, NULL, x, x->in[0], x->in[1])
                             : mx_wait(g, x, x->in[0]);
    y->recomputed = x->recomputed;
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < o->order[i]->n_in; k++)
            if (o->order[i]->in[k] == x)
                o->order[i]->in[k] = y;
}

static void place_all(overlap *o, bool (*is)(const mx_node *x), void (*place)(overlap *o))
{
    find_items(o, is);
    place(o);
    for (int i = 0; i < o->n_items; i++) {
        const item *it = &o->items[i];
        if (has_work(o, it->starts < it->made ? it->starts : it->made + 1, it->ends))
            part(o, it);
    }
}

/* --- issue order --- */

typedef struct {
    mx_node *x;
    int before, number; /* collectives issued before it; itself, where it was built */
} issue;

static int by_issue_order(const void *a, const void *b)
{
    const issue *s = a, *t = b;
    if (s->before != t->before)
        return s->before - t->before;
    bool a_moved = s->before < s->number, b_moved = t->before < t->number;
    return a_moved != b_moved ? b_moved - a_moved : s->number - t->number;
}

static bool takes_part(const mx_node *x)
{
    return x->op->collective && x->op->kind == MX_PLAIN &&
           ((const mx_collective_attr *)x->attr)->size > 1;
}

static void set_issue_order(overlap *o, mx_arena *scratch)
{
    issue *t = MX_NEW_N(scratch, issue, o->n + 1);
    int *before = MX_NEW_N(scratch, int, o->n + 1), n = 0;
    for (int i = 0; i < o->n; i++) {
        before[i] = n;
        if (takes_part(o->order[i]))
            t[n] = (issue){.x = o->order[i], .number = n}, n++;
    }
    for (int i = 0, k = 0; i < o->n; i++)
        if (takes_part(o->order[i])) {
            t[k].before = is_gather(o->order[i]) ? before[o->starts[o->order[i]->id]] : k;
            k++;
        }
    qsort(t, (size_t)n, sizeof *t, by_issue_order);
    for (int i = 0; i < n; i++) {
        mx_collective_attr *a = mx_arena_copy(&o->g->arena, t[i].x->attr, sizeof *a);
        a->issue_order = i + 1;
        t[i].x->attr = a;
    }
}

/* --- what to overlap with --- */

/* What depends on x, of the nodes from its place on. */
static void mark_dependents(const overlap *o, int at, int end, bool *depends)
{
    for (int i = at; i < end; i++) {
        const mx_node *n = o->order[i];
        depends[n->id] = i == at;
        for (int k = 0; k < n->n_in && !depends[n->id]; k++)
            depends[n->id] = n->in[k] && depends[n->in[k]->id];
    }
}

/* Puts nodes of the layer that do not depend on the one at `at`, and what they are made of, after
 * it: about half of what they compute. */
static void fill(overlap *o, int at, bool *depends)
{
    mx_node *x = o->order[at];
    double all = 0, moved = 0;
    int end = at + 1;
    while (end < o->n && (is_near(o->order[end], x) || !mx_scope_layer(o->order[end]->scope)))
        end++;
    mark_dependents(o, at, end, depends);
    for (int i = at; i < end; i++)
        if (computes(o->order[i]) && is_near(o->order[i], x) && !depends[o->order[i]->id])
            all += mx_node_cost(o->order[i]).flops;
    for (int i = at; i < end && moved < all / 2; i++) {
        mx_node *n = o->order[i];
        if (!computes(n) || !is_near(n, x) || depends[n->id])
            continue;
        moved += mx_node_cost(n).flops;
        go_with(n, x->seq + 1);
    }
    for (int i = at; i < end; i++)
        depends[o->order[i]->id] = false;
}

static void find_order(overlap *o, mx_arena *scratch)
{
    o->order = mx_graph_order(o->g, scratch, &o->n);
    for (int i = 0; i < o->n; i++) {
        o->order[i]->seq = 2 * i + 1;
        o->starts[o->order[i]->id] = i;
    }
}

static void fill_all(overlap *o, mx_arena *scratch)
{
    bool *depends = MX_NEW_N(scratch, bool, o->g->n_nodes);
    find_order(o, scratch);
    for (int i = 0; i < o->n; i++)
        if (o->order[i]->op == &mx_op_exchange_rows && !o->order[i]->backward &&
            (int64_t)mx_type_bytes(&o->order[i]->type) >= LEAST)
            fill(o, i, depends);
    find_order(o, scratch);
}

static mx_status run(mx_graph *g, mx_compilation *c)
{
    const mx_partition *how = c->o->partition;
    if (!c->device->overlaps || !how || how->no_overlap || c->o->stages)
        return MX_OK;
    mx_arena scratch = {0};
    mx_graph before = *g;
    overlap o = {.g = g,
                 .in_pieces = c->o->mlp_tiles > 1,
                 .read = MX_NEW_N(&scratch, int, g->n_nodes),
                 .late = MX_NEW_N(&scratch, int, g->n_nodes),
                 .starts = MX_NEW_N(&scratch, int, g->n_nodes),
                 .there = MX_NEW_N(&scratch, int, g->n_nodes),
                 .root = MX_NEW_N(&scratch, bool, g->n_nodes)};
    fill_all(&o, &scratch);
    find_readers(&o);
    place_all(&o, is_move, place_moves); /* first: their inputs are those of the order */
    place_all(&o, is_gather, place_gathers);
    place_all(&o, is_sum, place_sums);
    set_issue_order(&o, &scratch);
    g->seq = before.seq;
    g->scope = before.scope;
    g->stage = before.stage;
    g->backward = before.backward;
    mx_free(o.items);
    mx_arena_fini(&scratch);
    return MX_OK;
}

const mx_compile_pass mx_compile_pass_overlap = {
    .name = "overlap",
    .doc = "collectives that go on beside other nodes",
    .after = "offload",
    .before = "fuse",
    .programs = MX_IN_TRAINING,
    .run = run,
};

/* --- after fuse --- */

enum { STEP = 256 }; /* between neighbours of the order: room for those that are moved */

static int64_t issue_order_of(const mx_node *x)
{
    return x->op->collective ? ((const mx_collective_attr *)x->attr)->issue_order : 0;
}

static int by_number(const void *a, const void *b)
{
    return (int)(issue_order_of(*(mx_node *const *)a) - issue_order_of(*(mx_node *const *)b));
}

/* A collective that comes too early in the order goes after its predecessor. */
static void keep_issue_order(mx_graph *g, mx_arena *scratch)
{
    int n = 0, m = 0;
    mx_node **order = mx_graph_order(g, scratch, &n), **t = MX_NEW_N(scratch, mx_node *, n + 1);
    for (int i = 0; i < n; i++) {
        order[i]->seq = STEP * i;
        if (issue_order_of(order[i]))
            t[m++] = order[i];
    }
    qsort(t, (size_t)m, sizeof *t, by_number);
    for (int i = 1; i < m; i++)
        if (t[i]->seq < t[i - 1]->seq)
            t[i]->seq = t[i - 1]->seq + 1;
}

/* A wait for a value that is read next. Others end early to free memory: the wait for a sum, or for
 * a copy to the host, lets go of its input. */
static bool is_wait_to_read(const mx_node *n)
{
    if (n->op != &mx_op_wait)
        return false;
    const mx_node *x = n->in[0];
    return x->op == &mx_op_prefetch || (mx_collective_is_beside(x) && !is_sum(x));
}

/* A group of nodes runs where its last one did, so readers have moved: a wait comes right before
 * the first of them. */
static mx_status run_waits(mx_graph *g, mx_compilation *c)
{
    mx_arena scratch = {0};
    int n = 0;
    (void)c;
    keep_issue_order(g, &scratch);
    mx_node **order = mx_graph_order(g, &scratch, &n);
    int *read = MX_NEW_N(&scratch, int, g->n_nodes);
    for (int i = n - 1; i >= 0; i--) {
        order[i]->seq = 2 * i + 1;
        for (int k = 0; k < order[i]->n_in; k++)
            if (order[i]->in[k])
                read[order[i]->in[k]->id] = i;
    }
    for (int i = 0; i < n; i++)
        if (is_wait_to_read(order[i]) && read[order[i]->id])
            order[i]->seq = 2 * read[order[i]->id];
    mx_arena_fini(&scratch);
    return MX_OK;
}

const mx_compile_pass mx_compile_pass_waits = {
    .name = "waits",
    .doc = "collectives in their order of issue, and waits for them right before what needs them",
    .after = "fuse",
    .programs = MX_IN_ALL,
    .run = run_waits,
};

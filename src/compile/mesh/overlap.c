/* overlap.c - collectives that go on beside other nodes: see docs/design-overlap.md.
 *
 * The gather of a weight starts about a layer before it is read. A sum over ranks that is not read
 * at once ends before its first reader, or about a layer's sums later. Both are then two nodes: the
 * collective, marked `beside`, and wait, which everybody reads instead of it. Let L be the bytes of
 * the layer that gathers, or sums, most:
 *
 *     gather   starts before the reader of the gather L bytes earlier in the order of reading
 *     sum      ends before the sum that is L bytes further on in the order of making is made
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
    int starts, ends;
} item;

typedef struct {
    mx_graph *g;
    mx_node **order;
    int n;
    int *read; /* by node id: as in item */
    bool *root;
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

static void find_readers(overlap *o)
{
    for (int i = 0; i < o->n; i++)
        o->read[o->order[i]->id] = o->n;
    for (int i = 0; i < o->g->n_roots; i++)
        o->root[o->g->root[i]->id] = true;
    for (int i = o->n - 1; i >= 0; i--) {
        const mx_node *r = o->order[i];
        int at = r->op == &mx_op_slice && is_of_sum(r) ? o->read[r->id] : i;
        for (int k = 0; k < r->n_in; k++) { /* what is only added up may be added up later */
            bool later = r->op == &mx_op_accumulate && r->in[k] && is_of_sum(r->in[k]);
            if (r->in[k] && !later && at < o->read[r->in[k]->id])
                o->read[r->in[k]->id] = at;
        }
    }
}

static void find_items(overlap *o, bool (*is)(const mx_node *x))
{
    o->n_items = 0;
    for (int i = 0; i < o->n; i++) {
        mx_node *x = o->order[i];
        const mx_collective_attr *a = x->op->collective ? x->attr : NULL;
        if (!a || a->size < 2 || a->beside || o->root[x->id] || !is(x))
            continue;
        const mx_type *whole = is == is_gather ? &x->type : &x->in[0]->type;
        int64_t bytes = (int64_t)mx_type_bytes(whole);
        if (bytes < LEAST)
            continue;
        MX_GROW(o->items, o->n_items, o->cap_items);
        o->items[o->n_items++] =
            (item){.x = x, .bytes = bytes, .made = i, .read = o->read[x->id]};
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
    int64_t layer = largest_layer(o), behind = 0;
    if (o->n_items)
        qsort(it, (size_t)o->n_items, sizeof *it, by_reading);
    for (int i = 0, j = 0; i < o->n_items; i++) { /* behind: bytes of j to i - 1 */
        while (j < i && behind - it[j].bytes >= layer)
            behind -= it[j++].bytes;
        int early = behind >= layer ? it[j].read : 0;
        it[i].starts = early < it[i].made ? early : it[i].made;
        it[i].ends = it[i].read;
        behind += it[i].bytes;
    }
}

static void place_sums(overlap *o)
{
    item *it = o->items;
    int64_t layer = largest_layer(o), ahead = 0;
    for (int i = 0, j = 0; i < o->n_items; i++) { /* ahead: bytes of i + 1 to j */
        while (ahead < layer && j + 1 < o->n_items)
            ahead += it[++j].bytes;
        int late = ahead >= layer ? it[j].made : o->n;
        it[i].starts = it[i].made;
        it[i].ends = late < it[i].read ? late : it[i].read;
        ahead -= i + 1 < o->n_items ? it[i + 1].bytes : 0;
    }
}

/* Is anything computed between two places in the order? */
static bool has_work(const overlap *o, int from, int to)
{
    for (int i = from; i < to; i++) {
        const mx_node *x = o->order[i];
        if (x->op->kind == MX_PLAIN && !x->op->collective && mx_node_cost(x).flops > 0)
            return true;
    }
    return false;
}

/* What a weight's gather is made of goes with it. */
static void go_with(mx_node *x, int seq)
{
    if (x->op->kind == MX_SOURCE)
        return;
    x->seq = x->seq < seq ? x->seq : seq;
    for (int k = 0; k < x->n_in; k++)
        go_with(x->in[k], seq);
}

/* Nodes of the order stand at odd numbers; at 2 i comes what goes before node i. */
static void part(overlap *o, const item *it)
{
    mx_graph *g = o->g;
    mx_node *x = it->x;
    mx_collective_attr *a = mx_arena_copy(&g->arena, x->attr, sizeof *a);
    a->beside = true;
    x->attr = a;
    if (it->starts < it->made) {
        x->seq = 2 * it->starts;
        go_with(x->in[0], x->seq);
    }
    g->scope = x->scope;
    g->stage = x->stage;
    g->seq = 2 * it->ends;
    g->backward = x->backward;
    mx_node *y = mx_wait(g, x, x->in[0]);
    y->recomputed = x->recomputed;
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < o->order[i]->n_in; k++)
            if (o->order[i]->in[k] == x)
                o->order[i]->in[k] = y;
    for (int i = it->made; i < it->ends && i < o->n; i++) /* rows of it, and what adds them up */
        if (o->order[i]->op == &mx_op_slice && o->order[i]->in[0] == y)
            o->order[i]->seq = y->seq;
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

static mx_status run(mx_graph *g, mx_compilation *c)
{
    const mx_partition *how = c->o->partition;
    if (!c->device->overlaps || !how || how->no_overlap || c->o->stages)
        return MX_OK;
    mx_arena scratch = {0};
    mx_graph before = *g;
    overlap o = {.g = g,
                 .read = MX_NEW_N(&scratch, int, g->n_nodes),
                 .root = MX_NEW_N(&scratch, bool, g->n_nodes)};
    o.order = mx_graph_order(g, &scratch, &o.n);
    for (int i = 0; i < o.n; i++)
        o.order[i]->seq = 2 * i + 1;
    find_readers(&o);
    place_all(&o, is_gather, place_gathers);
    place_all(&o, is_sum, place_sums);
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
    .behind = "offload",
    .before = "fuse",
    .programs = MX_IN_TRAINING,
    .run = run,
};

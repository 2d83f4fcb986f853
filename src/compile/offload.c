/* offload.c - kept values that wait for the backward pass in host memory.
 *
 * Runs after remat, which has decided what the backward pass reads of the forward pass. What it
 * reads of a value x that is to be moved becomes
 *
 *     h = wait(offload(x), x)      in the forward pass: to the host
 *     y = wait(prefetch(h), h)     in the backward pass: back, into memory of its own
 *
 * A copy goes on beside the computation from its offload or prefetch to its wait, which reads both
 * ends, so that lifetimes as the memory pass finds them hold for it. What is left to decide is how
 * far from each other the two stand. Let L be the bytes of the layer that offloads most:
 *
 *     out    ends before the value L bytes further on in the order of making is made
 *     back   starts before the value L bytes earlier in the order of reading is read
 *
 * so that a copy has about one layer's computation to hide behind, and about a layer and a half of
 * such values is on the device at any time. The values of the last L bytes have none to hide
 * behind: they stay, and are read while the first ones come back.
 *
 * A value is identified by its memory, whichever node is named and whichever view of it is read.
 * The name decoder_layer_input stands for a value that another layer has made and one layer alone
 * reads.
 */
#include "compile/compile.h"

#include "ops.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    mx_node *x; /* as its first reader sees it */
    int64_t bytes;
    /* Positions in the order: of x, of its first reader; where the copy out has to have ended and
     * the copy back begins, -1: nowhere. */
    int made, read, ends, starts;
} item;

typedef struct {
    mx_graph *g;
    mx_node **order;
    int n;
    int *at;             /* by node id: position in the order */
    bool *named, *found; /* by memory: the user names it; it has an item */
    bool *mixed;         /* by memory: readers in several layers, or in none */
    mx_node **from;      /* by memory: the first backward reader */
    mx_node **moved;     /* by memory: what has come back */
    mx_node **back;      /* by node id: what is read instead of it */
    item *items;
    int n_items, cap_items;
} offload;

/* Is input k of a node a value of the forward pass that the backward pass waits for? (A projection
 * that is made here reads another output than it has as its input: small ones, which stay.) */
static bool waits(const mx_node *reader, int k)
{
    const mx_node *x = reader->in[k];
    if (!x || !reader->backward || x->backward || reader->op->kind == MX_PROJECT)
        return false;
    while (x->op->kind == MX_VIEW)
        x = x->in[0];
    return x->op->kind != MX_SOURCE && mx_type_bytes(&x->type) > 0;
}

static void find_readers(offload *o)
{
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < o->order[i]->n_in; k++) {
            mx_node *reader = o->order[i];
            if (!waits(reader, k))
                continue;
            size_t m = mx_node_memory(reader->in[k]);
            if (!o->from[m])
                o->from[m] = reader;
            o->mixed[m] |= !mx_same_layer(o->from[m], reader);
        }
}

static void find_items(offload *o, bool inputs)
{
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < o->order[i]->n_in; k++) {
            mx_node *reader = o->order[i], *x = reader->in[k];
            if (!waits(reader, k))
                continue;
            size_t m = mx_node_memory(x);
            bool passed_on = inputs && !o->mixed[m] && !mx_same_layer(x, reader);
            if (o->found[m] || !(o->named[m] || passed_on))
                continue;
            MX_GROW(o->items, o->n_items, o->cap_items);
            o->items[o->n_items++] = (item){.x = x, .made = o->at[x->id], .read = i, .ends = -1,
                                            .starts = -1,
                                            .bytes = (int64_t)mx_type_bytes(&x->type)};
            o->found[m] = true;
        }
}

static int by_making(const void *a, const void *b)
{
    return ((const item *)a)->made - ((const item *)b)->made;
}

static int by_reading(const void *a, const void *b)
{
    return ((const item *)a)->read - ((const item *)b)->read;
}

/* Drops the items of layers after the first `most`: their values stay on the device. */
static void limit_layers(offload *o, int64_t most)
{
    int64_t layers = 0;
    int n = 0;
    qsort(o->items, (size_t)o->n_items, sizeof *o->items, by_making);
    for (int i = 0; i < o->n_items; i++) {
        const mx_node *now = o->order[o->items[i].read];
        const mx_node *last = n ? o->order[o->items[n - 1].read] : NULL;
        layers += !last || !mx_same_layer(now, last);
        if (layers > most)
            break;
        o->items[n++] = o->items[i];
    }
    o->n_items = n;
}

static int64_t largest_layer(const offload *o)
{
    int64_t most = 0, sum = 0;
    for (int i = 0; i < o->n_items; i++) {
        bool same = i && mx_same_layer(o->items[i].x, o->items[i - 1].x);
        sum = (same ? sum : 0) + o->items[i].bytes;
        most = sum > most ? sum : most;
    }
    return most;
}

static void place_copies(offload *o)
{
    item *it = o->items;
    int n = o->n_items;
    qsort(it, (size_t)n, sizeof *it, by_making);
    int64_t layer = largest_layer(o), ahead = 0;
    for (int i = 0, j = 0; i < n; i++) { /* ahead: bytes of i + 1 to j */
        while (ahead < layer && j + 1 < n)
            ahead += it[++j].bytes;
        it[i].ends = ahead >= layer ? it[j].made : -1;
        ahead -= i + 1 < n ? it[i + 1].bytes : 0;
    }
    qsort(it, (size_t)n, sizeof *it, by_reading);
    int64_t window = 0;
    for (int i = 0, j = 0; i < n; i++) { /* window: bytes of j to i - 1 */
        while (j < i && window - it[j].bytes >= layer)
            window -= it[j++].bytes;
        it[i].starts = window >= layer ? it[j].read : -1;
        window += it[i].bytes;
    }
}

/* Nodes of the order stand at odd numbers; at 2 i comes what goes before node i. */
static mx_node *move(mx_graph *g, const item *it)
{
    g->scope = it->x->scope;
    g->stage = it->x->stage;
    g->seq = 2 * it->made + 1;
    mx_node *h = mx_offload(g, it->x);
    g->seq = 2 * it->ends;
    h = mx_wait(g, h, it->x);
    g->seq = 2 * it->starts;
    mx_node *y = mx_prefetch(g, h);
    y->name = it->x->name;
    g->seq = 2 * it->read;
    return mx_wait(g, y, h);
}

static void move_all(offload *o)
{
    mx_graph *g = o->g;
    const char *scope = g->scope;
    for (int i = 0; i < o->n; i++)
        o->order[i]->seq = 2 * i + 1;
    for (int i = 0; i < o->n_items; i++) {
        const item *it = &o->items[i];
        if (it->ends >= 0 && it->starts >= 0)
            o->moved[mx_node_memory(it->x)] = move(g, it);
    }
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < o->order[i]->n_in; k++) {
            mx_node *x = o->order[i]->in[k];
            mx_node *y = waits(o->order[i], k) ? o->moved[mx_node_memory(x)] : NULL;
            if (!y)
                continue;
            g->seq = 2 * i;
            if (!o->back[x->id])
                o->back[x->id] = mx_shape_equal(&x->type, &y->type)
                                     ? y
                                     : mx_reshape(g, y, mx_shape_of(&x->type));
            o->order[i]->in[k] = o->back[x->id];
        }
    g->seq = -1;
    g->scope = scope;
    g->stage = 0;
}

/* Does x hold the elements of its input, in another order or in several tensors? */
static bool moves(const mx_node *x)
{
    return x->op->kind == MX_PLAIN && x->n_in == 1 && mx_node_cost(x).flops == 0;
}

/* Marks the memory of what is named, and of what is made by moving it: the gate and up halves of a
 * merged projection are kept, not the projection. Names that fit nothing are an error: they are
 * another model's, or misspelt. */
static mx_status find_names(offload *o, const char *names)
{
    bool any = mx_glob_any(names, "decoder_layer_input");
    mx_str there = {0};
    for (int i = 0; i < o->n; i++) {
        const mx_node *x = o->order[i];
        if (x->backward)
            continue;
        bool moved = moves(x) && o->named[mx_node_memory(x->in[0])];
        for (int k = 0; k < x->n_out && moved; k++)
            o->named[mx_node_memory(x) + (size_t)k] = true;
        if (!x->name || x->op->kind == MX_SOURCE)
            continue;
        bool is = mx_glob_any(names, x->name);
        o->named[mx_node_memory(x)] |= is;
        any |= is;
        if (mx_scope_layer(x->scope) && !mx_glob_any(mx_str_text(&there), x->name))
            mx_str_addf(&there, "%s%s", there.len ? "," : "", x->name);
    }
    mx_status st = any ? MX_OK
                       : mx_fail(MX_USAGE,
                                 "tensors called %s are to be moved to host memory, and this model "
                                 "has none; it has %s. Use remat_policy=custom with one of those "
                                 "set to offload",
                                 names, mx_str_text(&there));
    mx_str_fini(&there);
    return st;
}

mx_status mx_pass_offload(mx_graph *g, const char *names, int64_t layers)
{
    mx_arena scratch = {0};
    size_t n_memory = (size_t)g->n_nodes * MX_MAX_OUT;
    offload o = {.g = g,
                 .at = MX_NEW_N(&scratch, int, g->n_nodes),
                 .named = MX_NEW_N(&scratch, bool, n_memory),
                 .found = MX_NEW_N(&scratch, bool, n_memory),
                 .mixed = MX_NEW_N(&scratch, bool, n_memory),
                 .from = MX_NEW_N(&scratch, mx_node *, n_memory),
                 .moved = MX_NEW_N(&scratch, mx_node *, n_memory),
                 .back = MX_NEW_N(&scratch, mx_node *, g->n_nodes)};
    o.order = mx_graph_order(g, &scratch, &o.n);
    mx_status st = find_names(&o, names);
    if (!st) {
        for (int i = 0; i < o.n; i++)
            o.at[o.order[i]->id] = i;
        find_readers(&o);
        find_items(&o, mx_glob_any(names, "decoder_layer_input"));
        if (layers > 0)
            limit_layers(&o, layers);
        place_copies(&o);
        move_all(&o);
    }
    mx_free(o.items);
    mx_arena_fini(&scratch);
    return st;
}

static mx_status run(mx_graph *g, mx_compilation *c)
{
    const char *names = c->remat.offload;
    if (c->device->host_memory || !names || !*names)
        return MX_OK;
    return mx_pass_offload(g, names, c->o->offload_layers);
}

const mx_compile_pass mx_compile_pass_offload = {
    .name = "offload",
    .doc = "activations kept in host memory between the passes",
    .after = "epilogues",
    .programs = MX_IN_TRAINING,
    .run = run,
};

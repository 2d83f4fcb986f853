/* tile_mlp.c - a dense MLP computed in pieces of the sequence (num_mlp_tiling).
 *
 *     y = mlp(x), x (B, S, d)   ->   y = concat(mlp(x_1), .., mlp(x_n)),  x_i (B, S / n, d)
 *
 * Rows do not depend on each other there, so the result is the same, and with remat_policy=full the
 * wide activations of only one piece exist at a time, in the forward pass and again in the backward
 * pass. Otherwise a long sequence costs a whole layer of such activations, which are several times
 * as large as the layer's input.
 *
 * The gradient of a weight is a sum over the pieces. Autodiff writes it as a chain of additions,
 * which fuse would make one node that waits for all of them: n times the size of every weight.
 * Behind autodiff each part is added in place to the sum of those before it instead (tile_sums), in
 * the same order and in float32, as a group adds: the bits are those of the chain.
 *
 * A region is what stands in the scope `mlp` of a layer and depends on the one activation that
 * comes from outside. It is left whole where an op of it is neither elementwise nor a matmul by
 * rows: experts and their routers, dropout. On a mesh it lies between the collectives that bring
 * its input and take its result.
 */
#include "compile/compile.h"

#include "compile/uses.h"
#include "ops.h"
#include "ops/matmul.h"
#include <string.h>

enum { MOST = 16 }; /* that one concat takes */

typedef struct {
    mx_graph *g;
    mx_uses uses;
    bool *of_rows;   /* by id: it is of a region and depends on x */
    mx_node **piece; /* by id: of the piece that is being made */
} tiling;

/* An MLP: the nodes that depend on x. */
typedef struct {
    const mx_node *first;
    mx_node *x, *result, **node;
    int n;
} region;

/* The length of the node's scope up to the MLP of its layer; 0: it is not in one. */
static size_t mlp_scope(const mx_node *node)
{
    static const char name[] = ".mlp";
    const char *scope = node->scope;
    if (node->op->collective || node->op == &mx_op_vary)
        return 0;
    size_t layer = mx_scope_layer(scope), n = sizeof name - 1;
    bool in = layer && strncmp(scope + layer, name, n) == 0 &&
              (scope[layer + n] == 0 || scope[layer + n] == '.');
    return in ? layer + n : 0;
}

static bool same_mlp(const mx_node *a, const mx_node *b)
{
    size_t n = mlp_scope(a);
    return n && n == mlp_scope(b) && memcmp(a->scope, b->scope, n) == 0;
}

static bool has_rows_of(const mx_node *n, const mx_node *x)
{
    return n->type.ndim == 3 && n->type.dim[0] == x->type.dim[0] &&
           n->type.dim[1] == x->type.dim[1];
}

/* Does every row of the result depend on the same row of its inputs alone? */
static bool is_by_rows(const tiling *t, const mx_node *n, const mx_node *x)
{
    if (n->n_out != 1 || !has_rows_of(n, x))
        return false;
    if (n->op == &mx_op_matmul) {
        const char *spec = ((const mx_matmul_attr *)n->attr)->spec;
        return n->n_in == 2 && *spec == '*' && strstr(spec, "->*") && n->in[1] != x &&
               !t->of_rows[n->in[1]->id];
    }
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] != x && !t->of_rows[n->in[i]->id] && n->in[i]->type.ndim > 1)
            return false;
    return n->op->kind == MX_ELEMENTWISE;
}

/* An activation that an MLP reads and has not made. */
static mx_node *enters(const mx_node *n)
{
    for (int i = 0; i < n->n_in; i++) {
        mx_node *x = n->in[i];
        if (x && x->type.ndim == 3 && x->op->kind != MX_SOURCE && !same_mlp(x, n))
            return x;
    }
    return NULL;
}

/* The one node of the region that is read outside of it; NULL: there are several, or none. */
static mx_node *result_of(const tiling *t, const region *r)
{
    mx_node *result = NULL;
    for (int i = 0; i < r->n; i++) {
        const mx_use_list *u = mx_uses_of(&t->uses, r->node[i]);
        bool outside = u->n_roots > 0;
        for (int k = 0; k < u->n; k++)
            outside |= !t->of_rows[u->use[k].by->id];
        if (outside && result)
            return NULL;
        result = outside ? r->node[i] : result;
    }
    return result;
}

/* What depends on x in its MLP, in order; false: it stays whole. */
static bool find_region(tiling *t, mx_node *const *order, int n, region *r)
{
    bool by_rows = true;
    for (int i = 0; i < n && by_rows; i++) {
        mx_node *y = order[i];
        bool reads = false;
        for (int k = 0; k < y->n_in && same_mlp(y, r->first); k++)
            reads |= y->in[k] && (y->in[k] == r->x || t->of_rows[y->in[k]->id]);
        if (!reads)
            continue;
        by_rows = is_by_rows(t, y, r->x);
        t->of_rows[y->id] = by_rows;
        r->node[r->n++] = y;
    }
    r->result = by_rows ? result_of(t, r) : NULL;
    return r->result != NULL;
}

/* The region once more, over rows [start, start + length) of the sequence. */
static mx_node *make_piece(tiling *t, const region *r, int64_t start, int64_t length)
{
    mx_graph *g = t->g;
    g->scope = r->first->scope;
    mx_node *x = mx_slice(g, r->x, 1, start, length);
    for (int i = 0; i < r->n; i++) {
        const mx_node *n = r->node[i];
        mx_node *in[MX_MAX_IN];
        for (int k = 0; k < n->n_in; k++)
            in[k] = !n->in[k] ? NULL : n->in[k] == r->x ? x
                  : t->of_rows[n->in[k]->id] ? t->piece[n->in[k]->id] : n->in[k];
        g->scope = n->scope;
        mx_node *made = mx_apply_n(g, n->op, n->attr, n->n_in, in, n->n_out);
        made->name = n->name;
        made->axes = n->axes;
        t->piece[n->id] = made;
    }
    return t->piece[r->result->id];
}

static void tile(tiling *t, const region *r, int64_t n)
{
    mx_graph *g = t->g;
    mx_node *piece[MOST];
    const char *scope = g->scope;
    int64_t rows = r->x->type.dim[1], each = (rows + n - 1) / n, at = 0;
    int count = 0;
    g->stage = r->first->stage;
    g->seq = r->result->seq; /* between the layers: what comes last in a program waits for all */
    for (; at < rows; at += each)
        piece[count++] = make_piece(t, r, at, rows - at < each ? rows - at : each);
    g->scope = r->result->scope;
    mx_node *whole = mx_concat(g, count, piece, 1);
    whole->axes = r->result->axes;
    mx_node_forward(r->result, whole);
    g->scope = scope;
    g->stage = 0;
    g->seq = -1;
}

/* Every MLP once: its first node by order is the one that reads what enters. */
static int tile_all(tiling *t, int64_t tiles, mx_arena *scratch)
{
    int n, found = 0;
    mx_node **order = mx_graph_order(t->g, scratch, &n);
    region r = {.node = MX_NEW_N(scratch, mx_node *, n)};
    for (int i = 0; i < n; i++) {
        mx_node *x = enters(order[i]);
        bool seen = r.first && same_mlp(r.first, order[i]);
        if (!x || !mlp_scope(order[i]) || seen || x->type.dim[1] < 2 * tiles)
            continue;
        r = (region){.node = r.node, .first = order[i], .x = x};
        if (!find_region(t, order, n, &r))
            continue;
        tile(t, &r, tiles);
        found++;
    }
    return found;
}

static mx_status run(mx_graph *g, mx_compilation *c)
{
    int64_t tiles = c->o->mlp_tiles;
    mx_arena scratch = {0};
    if (tiles < 2)
        return MX_OK;
    if (c->o->quantization)
        return mx_fail(MX_USAGE,
                       "num_mlp_tiling=%lld does not go with quantization, whose scales are of "
                       "whole tensors; leave one of them out",
                       (long long)tiles);
    MX_ASSERT(tiles <= MOST, "%lld tiles", (long long)tiles);
    int before = g->n_nodes;
    tiling t = {.g = g, .of_rows = MX_NEW_N(&scratch, bool, before),
                .piece = MX_NEW_N(&scratch, mx_node *, before)};
    mx_uses_init(&t.uses, g);
    int found = tile_all(&t, tiles, &scratch);
    mx_uses_fini(&t.uses);
    mx_graph_resolve(g);
    mx_graph_renumber(g);
    mx_arena_fini(&scratch);
    if (!found && c->training)
        return mx_fail(MX_USAGE, "num_mlp_tiling=%lld: no MLP of this model can be computed in "
                       "pieces of at least 2 tokens (experts and dropout cannot); leave it out",
                       (long long)tiles);
    return MX_OK;
}

/* --- gradients of weights --- */

typedef struct {
    mx_graph *g;
    mx_uses uses;
    mx_node **sum; /* by id of an addition of the chain: the sum in place, in float32 */
} summing;

/* What a piece adds to the gradient of a weight. */
static bool is_part(const mx_node *n)
{
    return n->backward && n->op == &mx_op_matmul && n->type.ndim == 2 && mlp_scope(n) &&
           !strchr(strstr(((const mx_matmul_attr *)n->attr)->spec, "->"), '*');
}

static bool adds_part(const summing *s, const mx_node *n)
{
    mx_dtype t = n->type.dtype;
    return n->op == &mx_op_add && n->backward && (t == MX_F32 || t == MX_BF16) &&
           is_part(n->in[1]) && (is_part(n->in[0]) || s->sum[n->in[0]->id]) &&
           mx_uses_count(&s->uses, n->in[0]) == 1 && n->in[0]->type.dtype == t &&
           n->in[1]->type.dtype == t;
}

static void add_in_place(summing *s, mx_node *n)
{
    mx_graph *g = s->g;
    mx_node *sum = s->sum[n->in[0]->id];
    g->stage = n->stage;
    g->scope = n->scope;
    g->seq = n->seq;
    if (!sum)
        sum = mx_cast(g, n->in[0], MX_F32);
    sum = mx_accumulate(g, sum, n->in[1], mx_constant(g, MX_SCALAR, MX_F32, 0));
    s->sum[n->id] = sum;
    mx_node_forward(n, mx_cast(g, sum, n->type.dtype));
}

static mx_status sum_tiles(mx_graph *g, mx_compilation *c)
{
    mx_arena scratch = {0};
    int n;
    if (c->o->mlp_tiles < 2)
        return MX_OK;
    mx_node **order = mx_graph_order(g, &scratch, &n);
    summing s = {.g = g, .sum = MX_NEW_N(&scratch, mx_node *, g->n_nodes)};
    const char *scope = g->scope;
    mx_uses_init(&s.uses, g);
    for (int i = 0; i < n; i++)
        if (adds_part(&s, order[i]))
            add_in_place(&s, order[i]);
    mx_uses_fini(&s.uses);
    mx_graph_resolve(g);
    g->scope = scope;
    g->stage = 0;
    g->seq = -1;
    mx_arena_fini(&scratch);
    return MX_OK;
}

const mx_compile_pass mx_compile_pass_tile_sums = {
    .name = "tile_sums",
    .doc = "gradients of weights of such MLPs are added up in place",
    .after = "optimizer",
    .before = "remat",
    .programs = MX_IN_TRAINING,
    .run = sum_tiles,
};

const mx_compile_pass mx_compile_pass_tile_mlp = {
    .name = "tile_mlp",
    .doc = "dense MLPs in pieces of the sequence (num_mlp_tiling)",
    .after = "stages",
    .before = "quantize",
    .programs = MX_IN_FORWARD | MX_IN_TRAINING,
    .run = run,
};

/* stages.c - which chunk of layers each node of the forward graph belongs to; see stages.h.
 *
 * Layers are scopes with a number ("model.layers.3"), in the order in which they first appear:
 * those of a vision tower come before the decoder's, those of an MTP head after them. A node
 * outside of all layers counts with the last layer that it depends on, so embeddings count with the
 * first and head and loss with the last. Chunks are runs of layers, cut so that the most expensive
 * chunk is as cheap as possible; among such cuts, the most even one.
 *
 * What is computed from weights alone or from inputs alone is duplicated in every chunk that reads
 * it, down to the source. A tied weight is thus a variable of two chunks, and has a gradient in
 * each.
 */
#include "compile/mesh/stages.h"

#include "compile/compile.h"
#include "compile/mesh/partition.h"
#include "ir/placement.h"
#include "ops.h"
#include <math.h>
#include <string.h>

typedef struct {
    const char *scope;
    size_t length;
    double cost;
} layer;

typedef struct {
    mx_graph *g;
    int chunks;
    mx_node **order;
    int n;
    mx_made_of *made_of; /* by id, of the n_nodes that were there at first */
    int n_nodes;
    int *layer_of;       /* by id; -1: before all layers */
    layer *layers;
    int n_layers;
    int *chunk_of; /* by layer */
    mx_node **twin; /* of node i in chunk c: [i * chunks + c] */
    mx_node ***was; /* by id: its inputs before they were replaced by twins */
    mx_arena scratch;
} stager;

static bool is_doubled(const stager *s, const mx_node *n)
{
    return s->made_of[n->id] != MX_MADE_OF_MORE;
}

mx_made_of *mx_made_of_sources(const mx_graph *g, mx_node *const *order, int n, mx_arena *scratch)
{
    mx_made_of *of = MX_NEW_N(scratch, mx_made_of, g->n_nodes);
    bool *changes = MX_NEW_N(scratch, bool, g->n_nodes);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < order[i]->n_out; k++) {
            const mx_node *old = mx_node_overwrites(order[i], k);
            bool sum = old && old->op == &mx_op_variable &&
                       ((const mx_var_attr *)old->attr)->kind == MX_VAR_GRADIENT;
            if (old && !sum)
                changes[old->id] = true;
        }
    for (int i = 0; i < n; i++) {
        const mx_node *x = order[i];
        bool writes = false;
        for (int k = 0; k < x->n_out; k++)
            writes |= mx_node_overwrites(x, k) != NULL;
        mx_made_of m = x->op == &mx_op_variable ? MX_MADE_OF_WEIGHTS
                       : x->op == &mx_op_input  ? MX_MADE_OF_INPUTS
                                                : MX_MADE_OF_CONSTANTS;
        for (int k = 0; k < x->n_in; k++) {
            mx_made_of in = x->in[k] ? of[x->in[k]->id] : MX_MADE_OF_CONSTANTS;
            m = in == MX_MADE_OF_CONSTANTS || in == m ? m : m == MX_MADE_OF_CONSTANTS ? in
                                                                          : MX_MADE_OF_MORE;
        }
        of[x->id] = writes || changes[x->id] ? MX_MADE_OF_MORE : m;
    }
    return of;
}

/* --- layers --- */

/* State that a layer overwrites comes before all layers, and says nothing of their order. */
static bool is_state(const mx_node *n)
{
    return n->op == &mx_op_variable;
}

static int find_layer(stager *s, const mx_node *n, int guess)
{
    size_t length = mx_scope_layer(n->scope);
    if (!length)
        return -1;
    for (int i = -1; i < s->n_layers; i++) {
        const layer *l = &s->layers[i < 0 ? guess : i];
        if (l->length == length && memcmp(l->scope, n->scope, length) == 0)
            return (int)(l - s->layers);
    }
    s->layers[s->n_layers] = (layer){n->scope, length, 0};
    return s->n_layers++;
}

static void find_layers(stager *s)
{
    int last = 0;
    s->layers = MX_NEW_N(&s->scratch, layer, s->n + 1);
    s->layer_of = MX_NEW_N(&s->scratch, int, s->n_nodes);
    for (int i = 0; i < s->n; i++) {
        const mx_node *x = s->order[i];
        s->layer_of[x->id] = -1;
        if (is_doubled(s, x) || is_state(x))
            continue;
        int at = find_layer(s, x, last);
        last = at < 0 ? last : at;
        for (int k = 0; k < x->n_in; k++)
            if (x->in[k] && s->layer_of[x->in[k]->id] > at)
                at = s->layer_of[x->in[k]->id];
        s->layer_of[x->id] = at;
    }
    for (int i = 0; i < s->n; i++) {
        int at = s->layer_of[s->order[i]->id];
        if (!is_doubled(s, s->order[i]))
            s->layers[at < 0 ? 0 : at].cost += mx_node_cost(s->order[i]).flops;
    }
}

/* --- chunks of equal cost --- */

/* best[k][i]: of the first i layers in k chunks, the least `worse` of all; from[k][i] says where
 * the last of them begins. Squares are added where no chunk costs more than `most`; without a limit
 * (most < 0) the largest counts. */
typedef struct {
    const double *before; /* cost of the first i layers */
    int n_layers, chunks;
    double *best;
    int *from;
} cutter;

static double worse(double a, double b, double most)
{
    return most < 0 ? fmax(a, b) : b > most ? INFINITY : a + b * b;
}

static void solve(cutter *c, double most)
{
    int w = c->n_layers + 1;
    for (int i = 0; i < w; i++)
        c->best[i] = i ? INFINITY : 0;
    for (int k = 1; k <= c->chunks; k++)
        for (int i = 0; i < w; i++) {
            c->best[k * w + i] = INFINITY;
            for (int j = k - 1; j < i; j++) {
                double cost = worse(c->best[(k - 1) * w + j], c->before[i] - c->before[j], most);
                if (cost < c->best[k * w + i]) {
                    c->best[k * w + i] = cost;
                    c->from[k * w + i] = j;
                }
            }
        }
}

static void cut_evenly(stager *s)
{
    int w = s->n_layers + 1;
    double *before = MX_NEW_N(&s->scratch, double, w);
    for (int i = 0; i < s->n_layers; i++)
        before[i + 1] = before[i] + s->layers[i].cost;
    cutter c = {before, s->n_layers, s->chunks,
                MX_NEW_N(&s->scratch, double, (size_t)w * (size_t)(s->chunks + 1)),
                MX_NEW_N(&s->scratch, int, (size_t)w * (size_t)(s->chunks + 1))};
    solve(&c, -1);
    solve(&c, c.best[s->chunks * w + s->n_layers] * (1 + 1e-9));
    for (int k = s->chunks, end = s->n_layers; k > 0; k--) {
        int from = c.from[k * w + end];
        for (int i = from; i < end; i++)
            s->chunk_of[i] = k - 1;
        end = from;
    }
}

/* A layer that the other graph does not have is where the one before it is. */
static void cut_alike(stager *s, const mx_layer_chunks *as)
{
    for (int i = 0; i < s->n_layers; i++) {
        const layer *l = &s->layers[i];
        s->chunk_of[i] = i ? s->chunk_of[i - 1] : 0;
        for (int k = 0; k < as->n; k++)
            if (as->v[k].length == l->length && memcmp(as->v[k].scope, l->scope, l->length) == 0)
                s->chunk_of[i] = as->v[k].chunk;
    }
}

static void tell_cut(const stager *s, mx_layer_chunks *to)
{
    to->n = s->n_layers;
    to->v = MX_NEW_N(&s->g->arena, mx_layer_chunk, s->n_layers);
    for (int i = 0; i < s->n_layers; i++)
        to->v[i] = (mx_layer_chunk){s->layers[i].scope, s->layers[i].length, s->chunk_of[i]};
}

static mx_status cut_layers(stager *s, const mx_stages *how)
{
    s->chunk_of = MX_NEW_N(&s->scratch, int, s->n_layers + 1);
    if (how->as) {
        cut_alike(s, how->as);
        return MX_OK;
    }
    int each = how->layers_each, need = each ? (s->chunks - 1) * each + 1 : s->chunks;
    if (s->n_layers < need)
        return mx_fail(MX_USAGE,
                       "the model has %d layers, and %d chunks of a pipeline%s need at least %d; "
                       "use fewer stages, or fewer chunks for each (num_pipeline_repeats)",
                       s->n_layers, s->chunks, each > 1 ? " of so many layers each" : "", need);
    if (!each)
        cut_evenly(s);
    for (int i = 0; i < s->n_layers && each; i++)
        s->chunk_of[i] = i / each < s->chunks ? i / each : s->chunks - 1;
    return MX_OK;
}

/* --- marking --- */

/* The node of chunk c that does what n does; n is made of weights or of inputs alone. */
static mx_node *twin(stager *s, mx_node *n, int c)
{
    mx_node **all = &s->twin[(size_t)n->id * (size_t)s->chunks], **t = &all[c];
    if (*t)
        return *t;
    bool first = true;
    for (int i = 0; i < s->chunks; i++)
        first &= !all[i];
    mx_node *in[MX_MAX_IN] = {0};
    for (int k = 0; k < n->n_in; k++)
        in[k] = s->was[n->id][k] ? twin(s, s->was[n->id][k], c) : NULL;
    s->g->seq = n->seq;
    *t = first ? n : mx_node_copy(s->g, n, in);
    s->g->seq = -1;
    for (int k = 0; k < n->n_in; k++)
        (*t)->in[k] = in[k];
    (*t)->stage = c;
    return *t;
}

static void mark(stager *s)
{
    s->twin = MX_NEW_N(&s->scratch, mx_node *, (size_t)s->n_nodes * (size_t)s->chunks);
    s->was = MX_NEW_N(&s->scratch, mx_node **, s->n_nodes);
    for (int i = 0; i < s->n; i++) {
        mx_node *x = s->order[i];
        int at = s->layer_of[x->id];
        s->was[x->id] = mx_arena_copy(&s->scratch, x->in, sizeof *x->in * (size_t)x->n_in);
        if (is_doubled(s, x))
            continue;
        x->stage = at < 0 ? 0 : s->chunk_of[at];
    }
    /* State belongs to the chunk that overwrites it. */
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->order[i]->n_out; k++) {
            const mx_node *old = mx_node_overwrites(s->order[i], k);
            if (old && old->op == &mx_op_variable)
                s->g->node[old->id]->stage = s->order[i]->stage;
        }
    for (int i = 0; i < s->n; i++) {
        mx_node *x = s->order[i];
        for (int k = 0; k < x->n_in && !is_doubled(s, x); k++)
            if (x->in[k] && is_doubled(s, x->in[k]))
                x->in[k] = twin(s, x->in[k], x->stage);
    }
}

/* Of the chunks that have the same weight the first counts: for norms, and for checkpoints. */
static void count_once(stager *s)
{
    for (int i = 0; i < s->n; i++) {
        const mx_node *x = s->order[i];
        bool found = false;
        for (int c = 0; c < s->chunks && x->op == &mx_op_variable; c++) {
            mx_node *t = s->twin[(size_t)x->id * (size_t)s->chunks + (size_t)c];
            if (t && found && t->box) {
                mx_box *b = mx_arena_copy(&s->g->arena, t->box, sizeof *t->box);
                b->first = false;
                b->repeated = true;
                t->box = b;
            }
            found |= t != NULL;
        }
    }
}

/* Numbers that a step reports, and what it gives of its rows, are all found on the last stage. */
static void send_results(mx_graph *g, int last)
{
    for (int i = 0; i < g->n_roots; i++) {
        mx_node *r = g->root[i];
        bool result = r->name && (mx_type_count(&r->type) == 1 ||
                                  mx_starts_with(r->name, MX_SHARD_ROOT));
        if (!result || r->stage == last || r->op->kind == MX_SOURCE)
            continue;
        g->stage = last;
        mx_node *there = mx_affine(g, r, 1, 0);
        g->stage = 0;
        there->name = r->name;
        r->name = NULL;
        g->root[i] = there;
    }
}

mx_status mx_pass_stages(mx_graph *g, const mx_stages *how)
{
    MX_TRY(mx_graph_check(g));
    stager s = {.g = g, .chunks = how->chunks, .n_nodes = g->n_nodes};
    s.order = mx_graph_order(g, &s.scratch, &s.n);
    s.made_of = mx_made_of_sources(g, s.order, s.n, &s.scratch);
    find_layers(&s);
    mx_status st = cut_layers(&s, how);
    if (!st) {
        if (how->cut)
            tell_cut(&s, how->cut);
        mark(&s);
        count_once(&s);
        send_results(g, how->chunks - 1);
    }
    mx_arena_fini(&s.scratch);
    return st;
}

static bool is_weight(const mx_node *n)
{
    return n->op == &mx_op_variable && ((const mx_var_attr *)n->attr)->kind == MX_VAR_WEIGHT;
}

/* Nothing of a weight: all its dims are empty. */
static const mx_node *none_of(const mx_node *w, mx_arena *arena)
{
    mx_node *n = mx_arena_copy(arena, w, sizeof *w);
    mx_box *b = mx_arena_copy(arena, w->box, sizeof *w->box);
    for (int d = 0; d < n->type.ndim; d++)
        n->type.dim[d] = b->n_runs[d] = 0;
    b->first = false;
    n->box = b;
    return n;
}

int mx_stage_weights(const mx_graph *model, const mx_stages *s, mx_arena *arena,
                     const mx_node ***out)
{
    int n = 0;
    *out = MX_NEW_N(arena, const mx_node *, model->n_nodes);
    for (int i = 0; i < model->n_nodes; i++) {
        const mx_node *w = model->node[i], *mine = NULL;
        if (!is_weight(w) || mx_graph_find(model, w->name) != w)
            continue;
        for (int k = i; k < model->n_nodes && !mine; k++) {
            const mx_node *t = model->node[k];
            bool here = is_weight(t) && t->name == w->name && t->stage % s->stages == s->stage;
            mine = here ? t : NULL;
        }
        (*out)[n++] = mine ? mine : none_of(w, arena);
    }
    return n;
}

static mx_status run(mx_graph *g, mx_compilation *c)
{
    return c->o->stages ? mx_pass_stages(g, c->o->stages) : MX_OK;
}

const mx_compile_pass mx_compile_pass_stages = {
    .name = "stages",
    .doc = "which chunk of a pipeline each node belongs to",
    .after = "partition",
    .programs = MX_IN_FORWARD | MX_IN_TRAINING,
    .run = run,
};

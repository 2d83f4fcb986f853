/* stage_cut.c - the programs of one chunk of layers, out of the joint graph; see stages.h.
 *
 * Every node has a home: a chunk, and its F, B or W program. Nodes computed from weights alone or
 * from inputs alone have none: they are copied into each program that reads them, and so are views.
 * A value that is read away from home lies in slots:
 *
 *     in        forward values of earlier chunks, read here or in later ones
 *     out       forward values of this chunk and of earlier ones, read in later ones
 *     grad_in   gradients of later chunks, read here or in earlier ones
 *     grad_out  gradients of this chunk and of later ones, read in earlier ones
 *     others    what B and W read of F, and W of B; inputs of the model
 *
 * The first four are messages, with the same values in the same order on both sides. Values for a
 * chunk further away are passed on by those between.
 */
#include "compile/mesh/stages.h"

#include "ops.h"
#include <stdio.h>
#include <string.h>

enum { ALIGN = 64 };

typedef struct {
    const mx_graph *g; /* the joint graph */
    int k, chunks;
    bool split;
    mx_node **order;
    int n;
    mx_made_of *made_of;
    const mx_node **same; /* by id, of projections: the first of the same output */
    mx_stage_part *part; /* by id */
    int *first, *last;   /* by id: the chunks between which a value is needed */
    unsigned *read_at;   /* by id: bit p: read by part p of its own chunk, away from home */
    int64_t *at;         /* by id: where in the slot of chunk k; -1: nowhere */
    mx_arena scratch;
    mx_stage_chunk *out;
    mx_node **map; /* by id: in the graph being written */
} cut;

static bool is_free(const cut *c, const mx_node *n)
{
    return c->made_of[n->id] != MX_MADE_OF_MORE;
}

static int64_t output_of(const mx_node *n)
{
    return *(const int64_t *)n->attr;
}

/* Shares the memory of another value: a view, output 0, an output that another node picks too. */
static bool is_view(const cut *c, const mx_node *n)
{
    return n->op->kind == MX_VIEW ||
           (n->op->kind == MX_PROJECT && (output_of(n) == 0 || c->same[n->id] != n));
}

/* The value that views are of, which has memory. */
static const mx_node *value_of(const cut *c, const mx_node *n)
{
    while (is_view(c, n))
        n = n->op->kind == MX_PROJECT && output_of(n) ? c->same[n->id] : n->in[0];
    return n;
}

/* The node that makes it. */
static const mx_node *maker_of(const cut *c, const mx_node *n)
{
    n = value_of(c, n);
    return n->op->kind == MX_PROJECT ? n->in[0] : n;
}

static void find_same(cut *c)
{
    const mx_node **first = MX_NEW_N(&c->scratch, const mx_node *,
                                     (size_t)c->g->n_nodes * MX_MAX_OUT);
    c->same = MX_NEW_N(&c->scratch, const mx_node *, c->g->n_nodes);
    for (int i = 0; i < c->n; i++) {
        const mx_node *x = c->order[i];
        if (x->op->kind != MX_PROJECT)
            continue;
        const mx_node **f = &first[(size_t)x->in[0]->id * MX_MAX_OUT + (size_t)output_of(x)];
        *f = *f ? *f : x;
        c->same[x->id] = *f;
    }
}

static bool has_home(const cut *c, const mx_node *n)
{
    return !is_free(c, n) && !is_view(c, n) && n->op->kind != MX_PROJECT;
}

/* --- homes and uses --- */

/* A node that was made after the forward pass still belongs to it where a forward node reads it: a
 * pass has put it in another's place. */
static void find_forward(cut *c)
{
    for (int i = c->n - 1; i >= 0; i--) {
        const mx_node *x = c->order[i];
        if (!x->backward)
            c->part[x->id] = MX_STAGE_F;
        for (int k = 0; k < x->n_in && c->part[x->id] == MX_STAGE_F; k++)
            if (x->in[k])
                c->part[x->in[k]->id] = MX_STAGE_F;
    }
}

/* Nodes that make gradients for other chunks are B, all others W. The first chunk makes none: no
 * chunk waits for it, so it does both at once. */
static void find_split(cut *c)
{
    for (int i = c->n - 1; i >= 0; i--) {
        const mx_node *x = c->order[i];
        if (!has_home(c, x) || c->part[x->id] == MX_STAGE_F)
            continue;
        if (c->part[x->id] != MX_STAGE_B)
            c->part[x->id] = MX_STAGE_W;
        for (int k = 0; k < x->n_in; k++) {
            const mx_node *y = x->in[k] ? maker_of(c, x->in[k]) : NULL;
            if (!y || is_free(c, y) || c->part[y->id] == MX_STAGE_F)
                continue;
            if (y->stage != x->stage || c->part[x->id] == MX_STAGE_B)
                c->part[y->id] = MX_STAGE_B;
        }
    }
}

static void find_parts(cut *c)
{
    c->part = MX_NEW_N(&c->scratch, mx_stage_part, c->g->n_nodes);
    for (int i = 0; i < c->g->n_nodes; i++)
        c->part[i] = MX_STAGE_PARTS; /* not known yet */
    find_forward(c);
    if (c->split)
        find_split(c);
    for (int i = 0; i < c->n; i++) {
        const mx_node *x = c->order[i];
        bool together = !c->split || x->stage == 0;
        if (c->part[x->id] != MX_STAGE_F && together)
            c->part[x->id] = MX_STAGE_B;
    }
}

static void use(cut *c, const mx_node *user, const mx_node *x)
{
    const mx_node *v = value_of(c, x), *m = maker_of(c, x);
    if (is_free(c, v))
        return;
    if (user->stage < c->first[v->id])
        c->first[v->id] = user->stage;
    if (user->stage > c->last[v->id])
        c->last[v->id] = user->stage;
    if (user->stage == m->stage && c->part[user->id] != c->part[m->id])
        c->read_at[v->id] |= 1u << c->part[user->id];
}

static void find_uses(cut *c)
{
    c->first = MX_NEW_N(&c->scratch, int, c->g->n_nodes);
    c->last = MX_NEW_N(&c->scratch, int, c->g->n_nodes);
    c->read_at = MX_NEW_N(&c->scratch, unsigned, c->g->n_nodes);
    for (int i = 0; i < c->n; i++) {
        const mx_node *x = c->order[i];
        c->first[x->id] = c->last[x->id] = maker_of(c, x)->stage;
    }
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < c->order[i]->n_in && has_home(c, c->order[i]); k++)
            if (c->order[i]->in[k])
                use(c, c->order[i], c->order[i]->in[k]);
}

/* --- slots --- */

static int64_t take(cut *c, const mx_node *v)
{
    int64_t at = (int64_t)c->out->slot_bytes;
    c->out->slot_bytes += (mx_type_bytes(&v->type) + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static bool is_value(const cut *c, const mx_node *n)
{
    return !is_free(c, n) && !is_view(c, n);
}

static bool is_forward(const cut *c, const mx_node *v)
{
    return c->part[maker_of(c, v)->id] == MX_STAGE_F;
}

/* Does the message between chunks b - 1 and b have this value? */
static bool crosses(const cut *c, const mx_node *v, int b, bool forward)
{
    int home = maker_of(c, v)->stage;
    if (!is_value(c, v) || is_forward(c, v) != forward)
        return false;
    return forward ? home < b && c->last[v->id] >= b : home >= b && c->first[v->id] < b;
}

/* The values of a message; where it is made here, or where what arrives is not read from elsewhere
 * already, they lie there for the other programs as well. */
static mx_stage_message lay_message(cut *c, int b, bool forward, int64_t *at)
{
    mx_stage_message m = {(int64_t)c->out->slot_bytes, 0};
    for (int i = 0; i < c->n; i++)
        if (crosses(c, c->order[i], b, forward))
            at[c->order[i]->id] = take(c, c->order[i]);
    m.bytes = (int64_t)c->out->slot_bytes - m.at;
    return m;
}

static int64_t *nowhere(cut *c)
{
    int64_t *at = MX_NEW_N(&c->scratch, int64_t, c->g->n_nodes);
    for (int i = 0; i < c->g->n_nodes; i++)
        at[i] = -1;
    return at;
}

/* Where values arrive, and where they leave from. */
typedef struct {
    int64_t *arrives, *leaves;
} places;

static places lay_out(cut *c)
{
    mx_stage_chunk *o = c->out;
    places p = {nowhere(c), nowhere(c)};
    o->in = lay_message(c, c->k, true, p.arrives);
    o->grad_in = lay_message(c, c->k + 1, false, p.arrives);
    o->out = lay_message(c, c->k + 1, true, p.leaves);
    o->grad_out = lay_message(c, c->k, false, p.leaves);
    c->at = nowhere(c);
    for (int i = 0; i < c->n; i++) {
        const mx_node *v = c->order[i];
        bool here = maker_of(c, v)->stage == c->k;
        if (!is_value(c, v))
            continue;
        c->at[v->id] = here ? p.leaves[v->id] : p.arrives[v->id];
        if (here && c->at[v->id] < 0 && c->read_at[v->id])
            c->at[v->id] = take(c, v);
    }
    return p;
}

/* --- writing --- */

static void keep(cut *c, mx_stage_part p, mx_kept v)
{
    c->out->kept[p][c->out->n_kept[p]++] = v;
}

/* A value from elsewhere, or an input of the model. */
static mx_node *input_of(cut *c, mx_stage_part p, const mx_node *v)
{
    mx_graph *g = &c->out->graph[p];
    mx_node *n;
    if (v->op == &mx_op_input) {
        n = mx_node_copy(g, v, NULL);
        mx_graph_enter(g, n);
        if (c->at[v->id] < 0)
            c->at[v->id] = take(c, v);
    } else {
        char name[32];
        snprintf(name, sizeof name, "stage:%d", v->id);
        n = mx_input(g, name, mx_shape_of(&v->type), v->type.dtype);
    }
    MX_ASSERT(c->at[v->id] >= 0, "%s of chunk %d is read in chunk %d", v->op->name, v->stage, c->k);
    keep(c, p, (mx_kept){.input = n, .at = c->at[v->id]});
    return n;
}

static bool is_home(const cut *c, mx_stage_part p, const mx_node *maker)
{
    return maker->stage == c->k && c->part[maker->id] == p;
}

static mx_node *get(cut *c, mx_stage_part p, const mx_node *n)
{
    mx_graph *g = &c->out->graph[p];
    if (n->op == &mx_op_input || n->op == &mx_op_variable)
        n = mx_graph_find(c->g, n->name); /* chunks have the same one under the same name */
    mx_node **m = &c->map[n->id], *in[MX_MAX_IN] = {0};
    if (*m)
        return *m;
    bool copied = is_free(c, n) || is_view(c, n) || is_home(c, p, maker_of(c, n));
    if (n->op == &mx_op_input || !copied)
        return *m = input_of(c, p, n);
    if (n->op->kind == MX_PROJECT && is_view(c, n) && !is_free(c, n))
        return *m = get(c, p, value_of(c, n));
    for (int k = 0; k < n->n_in; k++)
        in[k] = n->in[k] ? get(c, p, n->in[k]) : NULL;
    *m = mx_node_copy(g, n, in);
    if (n->op == &mx_op_variable)
        mx_graph_enter(g, *m);
    return *m;
}

static mx_node *own_memory(cut *c, mx_stage_part p, const mx_node *v)
{
    mx_node *n = get(c, p, v);
    const mx_node *m = maker_of(c, v);
    int k = v->op->kind == MX_PROJECT ? (int)output_of(v) : 0;
    bool shared = n->op->kind == MX_SOURCE || mx_node_overwrites(m, k);
    if (shared && !(MX_NUMBERS >> v->type.dtype & 1)) /* of int32 positions, far below 2^24 */
        mx_graph_fail(&c->out->graph[p], "a pipeline cannot pass %s on: it is %s", v->op->name,
                      mx_dtype_name(v->type.dtype));
    return shared ? mx_affine(&c->out->graph[p], n, 1, 0) : n;
}

static void leave(cut *c, mx_stage_part p, const mx_node *v, int64_t at)
{
    mx_graph *g = &c->out->graph[p];
    mx_graph_root(g, NULL, own_memory(c, p, v));
    keep(c, p, (mx_kept){.root = g->n_roots - 1, .at = at});
}

/* What this part makes or passes on for others. */
static void write_results(cut *c, mx_stage_part p, const places *where)
{
    for (int i = 0; i < c->n; i++) {
        const mx_node *v = c->order[i];
        if (!is_value(c, v))
            continue;
        bool home = is_home(c, p, maker_of(c, v));
        bool passes = maker_of(c, v)->stage != c->k && where->leaves[v->id] >= 0 &&
                      p == (is_forward(c, v) ? MX_STAGE_F : MX_STAGE_B);
        if (home && c->at[v->id] >= 0)
            leave(c, p, v, c->at[v->id]);
        if (passes)
            leave(c, p, v, where->leaves[v->id]);
    }
}

static void write_part(cut *c, mx_stage_part p, const places *where)
{
    mx_graph *g = &c->out->graph[p];
    mx_graph_init(g);
    g->param_dtype = c->g->param_dtype;
    c->map = MX_NEW_N(&c->scratch, mx_node *, c->g->n_nodes);
    c->out->kept[p] = MX_NEW_N(&g->arena, mx_kept, 2 * c->n + 1);
    for (int i = 0; i < c->n; i++)
        if (has_home(c, c->order[i]) && is_home(c, p, c->order[i]))
            get(c, p, c->order[i]);
    write_results(c, p, where);
    for (int i = 0; i < c->g->n_roots; i++) {
        const mx_node *r = c->g->root[i], *m = maker_of(c, r);
        bool here = is_free(c, r) ? r->stage == c->k && p == MX_STAGE_F : is_home(c, p, m);
        if (here)
            mx_graph_root(g, NULL, get(c, p, r));
    }
    c->out->has[p] = g->n_roots > 0;
}

mx_status mx_stage_cut(const mx_graph *joint, const mx_stages *s, int k, mx_stage_chunk *out)
{
    *out = (mx_stage_chunk){0};
    MX_TRY(mx_graph_check(joint));
    cut c = {.g = joint, .k = k, .chunks = s->chunks, .split = s->split, .out = out};
    c.order = mx_graph_order(joint, &c.scratch, &c.n);
    c.made_of = mx_made_of_sources(joint, c.order, c.n, &c.scratch);
    find_same(&c);
    find_parts(&c);
    find_uses(&c);
    places where = lay_out(&c);
    mx_status st = MX_OK;
    for (int p = 0; p < MX_STAGE_PARTS; p++) {
        write_part(&c, (mx_stage_part)p, &where);
        if (!st)
            st = mx_graph_check(&out->graph[p]);
    }
    mx_arena_fini(&c.scratch);
    if (st)
        mx_stage_chunk_fini(out);
    return st;
}

void mx_stage_chunk_fini(mx_stage_chunk *c)
{
    for (int p = 0; p < MX_STAGE_PARTS; p++) {
        mx_program_fini(&c->program[p]);
        mx_graph_fini(&c->graph[p]);
    }
    *c = (mx_stage_chunk){0};
}

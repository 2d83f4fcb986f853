/* memory.c - the memory pass: who shares storage, how long it lives, where it lies.
 *
 * Addresses are given out in execution order from a list of free ranges (best fit, neighbours
 * joined when freed), which is within a few per cent of the high-water mark for transformer steps
 * and takes linear time. Inputs and constants are never reused: the host writes them before a run.
 * Named roots are readable after a run, so they live to the end.
 */
#include "compile/parts.h"

#include "ops.h"
#include <string.h>

enum { ALIGN = 64 };

typedef struct {
    int64_t at, bytes;
} range;

typedef struct {
    range *free; /* by address */
    int n, cap;
    int64_t end, used, peak;
} space;

static int64_t take(space *s, int64_t bytes)
{
    s->used += bytes;
    s->peak = s->used > s->peak ? s->used : s->peak;
    int best = -1;
    for (int i = 0; i < s->n; i++)
        if (s->free[i].bytes >= bytes && (best < 0 || s->free[i].bytes < s->free[best].bytes))
            best = i;
    if (best < 0) { /* grow at the end, using up a free range that touches it */
        int64_t at = s->end;
        if (s->n && s->free[s->n - 1].at + s->free[s->n - 1].bytes == s->end)
            at = s->free[--s->n].at;
        s->end = at + bytes;
        return at;
    }
    int64_t at = s->free[best].at;
    s->free[best].at += bytes;
    s->free[best].bytes -= bytes;
    if (!s->free[best].bytes)
        memmove(&s->free[best], &s->free[best + 1], sizeof(range) * (size_t)(--s->n - best));
    return at;
}

static void give(space *s, int64_t at, int64_t bytes)
{
    s->used -= bytes;
    int i = 0;
    while (i < s->n && s->free[i].at < at)
        i++;
    bool left = i > 0 && s->free[i - 1].at + s->free[i - 1].bytes == at;
    bool right = i < s->n && at + bytes == s->free[i].at;
    if (left && right) {
        s->free[i - 1].bytes += bytes + s->free[i].bytes;
        memmove(&s->free[i], &s->free[i + 1], sizeof(range) * (size_t)(--s->n - i));
    } else if (left) {
        s->free[i - 1].bytes += bytes;
    } else if (right) {
        s->free[i].at = at;
        s->free[i].bytes += bytes;
    } else {
        MX_GROW(s->free, s->n, s->cap);
        memmove(&s->free[i + 1], &s->free[i], sizeof(range) * (size_t)(s->n++ - i));
        s->free[i] = (range){at, bytes};
    }
}

static mx_place *place_of(const mx_program *p, const mx_node *n, int k)
{
    return &p->place[(size_t)n->id * MX_MAX_OUT + (size_t)k];
}

const mx_place *mx_program_place(const mx_program *p, const mx_node *n, int k)
{
    return place_of(p, n, k);
}

static mx_place column(mx_place whole, const mx_node *split, int k)
{
    for (int i = 0; i < k; i++)
        whole.at += mx_node_type(split, i)->dim[split->type.ndim - 1];
    whole.run = mx_node_type(split, k)->dim[split->type.ndim - 1];
    whole.pitch = split->in[0]->type.dim[split->type.ndim - 1];
    return whole;
}

/* Whose memory is output k of n? */
static mx_place share(const mx_program *p, const mx_parts *parts, mx_node *n, int k)
{
    const mx_part *part = &parts->inside[(size_t)n->id * MX_MAX_OUT + (size_t)k];
    if (part->of)
        return (mx_place){.root = part->of, .offset = -1, .at = part->at, .run = part->run,
                          .pitch = part->pitch};
    if (n->op == &mx_op_split && parts->copies_nothing[n->id])
        return column(*place_of(p, n->in[0], 0), n, k);
    if (n->op->kind == MX_VIEW)
        return *place_of(p, n->in[0], 0);
    if (n->op->kind == MX_PROJECT)
        return *place_of(p, n->in[0], (int)*(const int64_t *)n->attr);
    int a = n->op->alias[k];
    if (a && n->in[a - 1])
        return *place_of(p, n->in[a - 1], 0);
    return (mx_place){.root = n, .out = k, .offset = -1, .hosted = n->op->hosted >> k & 1};
}

static int64_t rounded(const mx_type *t)
{
    int64_t b = (int64_t)mx_type_bytes(t);
    return (b + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t index_of(const mx_place *q)
{
    return (size_t)q->root->id * MX_MAX_OUT + (size_t)q->out;
}

static void find_lives(const mx_program *p, const mx_parts *parts, int *last)
{
    for (int i = 0; i < p->n; i++) {
        mx_node *n = p->order[i];
        for (int k = 0; k < n->n_out; k++) {
            mx_place *q = place_of(p, n, k);
            *q = share(p, parts, n, k);
            last[index_of(q)] = i;
        }
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k]) {
                /* A projection uses the output it picks, not output 0. */
                const mx_node *used = n->op->kind == MX_PROJECT ? n : n->in[k];
                last[index_of(place_of(p, used, 0))] = i;
            }
    }
    for (int i = 0; i < p->graph->n_roots; i++)
        last[index_of(place_of(p, p->graph->root[i], 0))] = p->n;
}

/* `spaces`: on the device, on the host. */
static void give_addresses(mx_program *p, const mx_parts *parts, space *spaces, mx_arena *scratch)
{
    size_t n_places = (size_t)p->graph->n_nodes * MX_MAX_OUT;
    int *last = MX_NEW_N(scratch, int, n_places);
    find_lives(p, parts, last);
    /* Storages by the position at which they die: singly linked lists through `next`. */
    int *head = MX_NEW_N(scratch, int, p->n + 1), *next = MX_NEW_N(scratch, int, n_places);
    memset(head, -1, sizeof(int) * (size_t)(p->n + 1));
    /* Inputs and constants first, wherever they stand in the order: they are written before the run
     * begins, so not even an earlier node's value may lie there. */
    for (int i = 0; i < p->n; i++)
        if (p->order[i]->op->kind == MX_SOURCE && p->order[i]->op != &mx_op_variable) {
            int64_t bytes = rounded(&p->order[i]->type);
            place_of(p, p->order[i], 0)->offset = take(&spaces[0], bytes);
            p->bytes.inputs += (double)bytes;
        }
    for (int i = 0; i < p->n; i++) {
        mx_node *n = p->order[i];
        for (int k = 0; k < n->n_out; k++) {
            mx_place *q = place_of(p, n, k), *own = place_of(p, q->root, q->out);
            /* The first part of a concat comes before the concat and takes room for all of it. */
            if (q->root->op != &mx_op_variable && own->offset < 0) {
                int at = last[index_of(q)];
                own->offset = take(&spaces[q->hosted], rounded(mx_node_type(q->root, q->out)));
                next[index_of(q)] = head[at];
                head[at] = (int)index_of(q);
            }
            q->offset = own->offset;
        }
        for (int d = head[i]; d >= 0; d = next[d]) {
            mx_node *owner = p->graph->node[d / MX_MAX_OUT];
            give(&spaces[p->place[d].hosted], p->place[d].offset,
                 rounded(mx_node_type(owner, d % MX_MAX_OUT)));
        }
    }
}

mx_status mx_program_init(mx_program *p, mx_graph *g, int n_threads, bool parts)
{
    MX_TRY(mx_graph_check(g));
    *p = (mx_program){.graph = g, .n_threads = n_threads};
    p->order = mx_graph_order(g, &p->arena, &p->n);
    p->place = MX_NEW_N(&p->arena, mx_place, (size_t)g->n_nodes * MX_MAX_OUT);
    p->copies_nothing = MX_NEW_N(&p->arena, bool, g->n_nodes);
    mx_arena scratch = {0};
    space s[2] = {{0}};
    mx_parts found = {.inside = MX_NEW_N(&scratch, mx_part, (size_t)g->n_nodes * MX_MAX_OUT),
                      .copies_nothing = p->copies_nothing};
    if (parts)
        mx_parts_find(&found, p, &scratch);
    give_addresses(p, &found, s, &scratch);
    size_t work = 0;
    for (int i = 0; i < p->n; i++) {
        const mx_node *n = p->order[i];
        size_t w = n->op->work_bytes ? n->op->work_bytes(n, n_threads) : 0;
        work = w > work ? w : work;
        if (!n->recomputed)
            p->bytes.flops += mx_node_cost(n).flops;
        if (n->op == &mx_op_variable) {
            const mx_var_attr *v = n->attr;
            p->bytes.variables[v->kind] += (double)rounded(&n->type);
            p->bytes.on_host += v->on_host ? (double)rounded(&n->type) : 0;
        }
    }
    p->work_offset = (size_t)s[0].end;
    p->scratch_bytes = (size_t)s[0].end + work;
    p->host_bytes = (size_t)s[1].end;
    p->bytes.workspace = (double)work;
    p->bytes.activations = (double)s[0].end - p->bytes.inputs;
    p->bytes.stowed = (double)s[1].end;
    mx_free(s[0].free);
    mx_free(s[1].free);
    mx_arena_fini(&scratch);
    return MX_OK;
}

void mx_program_fini(mx_program *p)
{
    mx_arena_fini(&p->arena);
    *p = (mx_program){0};
}

mx_node *mx_program_find(const mx_program *p, const char *name)
{
    for (int i = 0; i < p->graph->n_roots; i++)
        if (p->graph->root[i]->name && strcmp(p->graph->root[i]->name, name) == 0)
            return p->graph->root[i];
    return mx_graph_find(p->graph, name);
}

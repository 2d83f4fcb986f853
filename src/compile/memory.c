/* memory.c - the memory pass: who shares storage, how long it lives, where it lies.
 *
 * Inputs and constants are never reused: the host writes them before a run. They lie in front of
 * everything else, so that programs can have the rest in common (program.h). Named roots are
 * readable after a run, so they live to the end. pack.c gives the addresses.
 */
#include "compile/pack.h"
#include "compile/strided_views.h"

#include "ops.h"
#include "ops/collective.h"
#include <string.h>

enum { ALIGN = 64, WORK_ALIGN = 256 }; /* ALIGN: where the device does not say */
enum { SMALL_BYTES = 256 << 10 };

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
static mx_place share(const mx_program *p, const mx_strided_views *views, mx_node *n, int k)
{
    const mx_strided_view *view = &views->inside[(size_t)n->id * MX_MAX_OUT + (size_t)k];
    if (view->of)
        return (mx_place){.root = view->of, .offset = -1, .at = view->at, .run = view->run,
                          .pitch = view->pitch};
    if (k == 0 && views->over[n->id])
        return *place_of(p, views->over[n->id], 0);
    if (n->op == &mx_op_split && views->copies_nothing[n->id])
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

static int64_t rounded(const mx_program *p, const mx_type *t)
{
    int64_t b = (int64_t)mx_type_bytes(t);
    return (b + p->align - 1) / p->align * p->align;
}

static size_t index_of(const mx_place *q)
{
    return (size_t)q->root->id * MX_MAX_OUT + (size_t)q->out;
}

static void find_lives(const mx_program *p, const mx_strided_views *views, int *last)
{
    for (int i = 0; i < p->n; i++) {
        mx_node *n = p->order[i];
        for (int k = 0; k < n->n_out; k++) {
            mx_place *q = place_of(p, n, k);
            *q = share(p, views, n, k);
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

/* The storages of one space, with their places. */
typedef struct {
    mx_life *life;
    mx_place **place;
    int n;
} space;
enum { ON_DEVICE, ON_HOST, GIVEN, N_SPACES };

static void add_storage(space *s, mx_place *own, mx_life life)
{
    s->life[s->n] = life;
    s->place[s->n++] = own;
    own->offset = 0; /* known */
    own->first = life.first;
    own->last = life.last;
}

static void place_kept(const mx_program *p, mx_kept_list kept)
{
    for (int i = 0; i < kept.n; i++) {
        const mx_kept *v = &kept.v[i];
        const mx_place *q = place_of(p, v->input ? v->input : p->graph->root[v->root], 0);
        if (!q->root)
            continue; /* an input that nothing reads */
        mx_place *own = place_of(p, q->root, q->out);
        MX_ASSERT(!q->pitch && own->offset < 0 && q->root->op != &mx_op_variable,
                  "%s is no memory of its own", q->root->op->name);
        own->offset = v->at;
        own->kept = true;
    }
}

static void find_storages(const mx_program *p, const mx_strided_views *views, mx_kept_list kept,
                          space s[N_SPACES], mx_arena *scratch)
{
    int *last = MX_NEW_N(scratch, int, (size_t)p->graph->n_nodes * MX_MAX_OUT);
    find_lives(p, views, last);
    place_kept(p, kept);
    for (int i = 0; i < p->n; i++) {
        const mx_node *n = p->order[i];
        for (int k = 0; k < n->n_out; k++) {
            mx_place *q = place_of(p, n, k), *own = place_of(p, q->root, q->out);
            bool given = n->op->kind == MX_SOURCE; /* inputs and constants */
            /* The first input of a concat comes before it and takes room for all of it. */
            if (q->root->op == &mx_op_variable || own->offset >= 0)
                continue;
            mx_life life = {.bytes = rounded(p, mx_node_type(own->root, own->out)),
                            .first = given ? 0 : i, .last = given ? p->n : last[index_of(q)]};
            if (life.bytes <= SMALL_BYTES)
                life.last = life.last + p->linger < p->n ? life.last + p->linger : p->n;
            add_storage(&s[given ? GIVEN : q->hosted ? ON_HOST : ON_DEVICE], own, life);
        }
    }
}

/* Gives the sizes of the spaces; that of the device begins after what is given. */
static void give_addresses(mx_program *p, const mx_strided_views *views, mx_kept_list kept,
                           int64_t end[N_SPACES], mx_arena *scratch)
{
    int n_outputs = 0;
    for (int i = 0; i < p->n; i++)
        n_outputs += p->order[i]->n_out;
    space s[N_SPACES];
    for (int k = 0; k < N_SPACES; k++)
        s[k] = (space){MX_NEW_N(scratch, mx_life, n_outputs + 1),
                       MX_NEW_N(scratch, mx_place *, n_outputs + 1), 0};
    find_storages(p, views, kept, s, scratch);
    for (int k = N_SPACES - 1; k >= 0; k--) {
        int64_t from = k == ON_DEVICE ? end[GIVEN] : 0;
        end[k] = mx_pack(s[k].life, s[k].n, scratch);
        for (int i = 0; i < s[k].n; i++)
            s[k].place[i]->offset = from + s[k].life[i].at;
    }
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->order[i]->n_out; k++) {
            mx_place *q = place_of(p, p->order[i], k);
            q->offset = place_of(p, q->root, q->out)->offset;
            q->kept = place_of(p, q->root, q->out)->kept;
        }
}

/* Parts of weights may be empty (stages.h), and what is made of them. */
static bool is_empty(const mx_node *n)
{
    for (int k = 0; k < n->n_out; k++)
        if (mx_type_count(mx_node_type(n, k)))
            return false;
    return true;
}

bool mx_program_runs(const mx_program *p, const mx_node *n)
{
    mx_op_kind k = n->op->kind;
    return k != MX_SOURCE && k != MX_VIEW && k != MX_PROJECT && !p->copies_nothing[n->id] &&
           !is_empty(n);
}

/* What a kernel that could use any amount may take: a share of what the program needs anyway, so
 * that it is small on any device. */
enum { WORK_SHARE = 6, WORK_LEAST = 256 << 20 };
#define WORK_MOST ((size_t)8 << 30)

static size_t work_share(const mx_program *p, size_t values)
{
    size_t all = values;
    for (int k = 0; k < MX_VAR_KIND_COUNT; k++)
        all += (size_t)p->bytes.variables[k];
    size_t share = all / WORK_SHARE;
    return share < WORK_LEAST ? WORK_LEAST : share > WORK_MOST ? WORK_MOST : share;
}

/* Collectives beside other nodes have a workspace of their own after the others'. */
typedef struct {
    size_t work[2]; /* [1]: of collectives beside others */
} workspace;

static void add_work(workspace *w, const mx_node *n, size_t own)
{
    bool beside = mx_collective_is_beside(n);
    w->work[beside] = own > w->work[beside] ? own : w->work[beside];
}

static size_t beside_at(const workspace *w)
{
    return (w->work[0] + WORK_ALIGN - 1) / WORK_ALIGN * WORK_ALIGN;
}

static size_t whole(const workspace *w)
{
    return w->work[1] ? beside_at(w) + w->work[1] : w->work[0];
}

static void find_work(mx_program *p, const mx_device_traits *device)
{
    workspace host = {{0}}, own = {{0}};
    const mx_op *before = NULL;
    size_t most = work_share(p, p->value_bytes), sum = 0;
    for (int i = 0; i < p->n; i++) {
        const mx_node *n = p->order[i];
        add_work(&host, n, n->op->work_bytes ? n->op->work_bytes(n, p->n_threads) : 0);
        if (!device->work_bytes || !mx_program_runs(p, n))
            continue;
        /* Neighbours of an op that adds may be launched together, and then need the sum. */
        sum = (n->op == before && n->op->gpu_work_adds ? sum : 0) + device->work_bytes(n, most);
        before = n->op;
        add_work(&own, n, sum);
    }
    const workspace *w = device->work_bytes ? &own : &host;
    p->host_work_bytes = whole(&host);
    p->work_bytes = whole(w);
    p->beside_at = w->work[1] ? beside_at(w) : w->work[0];
}

static void count_bytes(mx_program *p, const mx_node *n)
{
    const mx_var_attr *v = n->attr;
    for (int k = 0; k < n->n_out; k++)
        p->updates[place_of(p, n, k)->root->id] |= mx_node_overwrites(n, k) != NULL;
    if (!n->recomputed)
        p->bytes.flops += mx_node_cost(n).flops;
    if (n->op != &mx_op_variable)
        return;
    p->bytes.variables[v->kind] += (double)rounded(p, &n->type);
    p->bytes.on_host += v->on_host ? (double)rounded(p, &n->type) : 0;
}

mx_status mx_program_init(mx_program *p, mx_graph *g, int n_threads, const mx_device_traits *device)
{
    return mx_program_init_kept(p, g, n_threads, device, (mx_kept_list){0});
}

void mx_program_begin(mx_program *p, mx_graph *g, int n_threads, const mx_device_traits *device)
{
    *p = (mx_program){.graph = g, .n_threads = n_threads,
                      .align = device->align ? (int64_t)device->align : ALIGN,
                      .linger = device->linger};
    p->place = MX_NEW_N(&p->arena, mx_place, (size_t)g->n_nodes * MX_MAX_OUT);
    p->copies_nothing = MX_NEW_N(&p->arena, bool, g->n_nodes);
    p->updates = MX_NEW_N(&p->arena, bool, g->n_nodes);
}

void mx_program_count(mx_program *p, const mx_device_traits *device)
{
    for (int i = 0; i < p->n; i++)
        count_bytes(p, p->order[i]);
    find_work(p, device);
    p->scratch_bytes = p->value_bytes + p->work_bytes;
    p->bytes.inputs = (double)p->given_bytes;
    p->bytes.workspace = (double)(p->work_bytes + device->gemm_work_bytes);
    p->bytes.activations = (double)(p->value_bytes - p->given_bytes);
    p->bytes.offloaded = (double)p->host_bytes;
}

mx_status mx_program_init_kept(mx_program *p, mx_graph *g, int n_threads,
                               const mx_device_traits *device, mx_kept_list kept)
{
    MX_TRY(mx_graph_check_final(g));
    mx_program_begin(p, g, n_threads, device);
    p->order = mx_graph_order(g, &p->arena, &p->n);
    mx_arena scratch = {0};
    int64_t end[N_SPACES];
    mx_strided_views views = {
        .inside = MX_NEW_N(&scratch, mx_strided_view, (size_t)g->n_nodes * MX_MAX_OUT),
        .copies_nothing = p->copies_nothing,
        .over = MX_NEW_N(&scratch, mx_node *, g->n_nodes)};
    if (device->strided_views)
        mx_strided_views_find(&views, p);
    give_addresses(p, &views, kept, end, &scratch);
    p->given_bytes = (size_t)end[GIVEN];
    p->value_bytes = p->given_bytes + (size_t)end[ON_DEVICE];
    p->host_bytes = (size_t)end[ON_HOST];
    mx_program_count(p, device);
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
    mx_node *root = mx_graph_find_root(p->graph, name);
    return root ? root : mx_graph_find(p->graph, name);
}

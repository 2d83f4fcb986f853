/* simulate.c - see simulate.h. */
#include "plan/simulate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Part of a step that is lost for every doubling of the number of nodes: the slowest sets the pace.
 * Published weak scaling keeps 96 % from 4 to 256 nodes. */
static const double STRAGGLER_LOSS = 0.0065;

/* t may be NULL */
static void trace_add(mx_trace *t, mx_event e)
{
    if (!t)
        return;
    MX_GROW(t->event, t->n, t->cap);
    t->event[t->n++] = e;
}

void mx_trace_fini(mx_trace *t)
{
    mx_free(t->event);
    *t = (mx_trace){0};
}

/* ---- the layers of one microbatch in one chunk of a stage ---- */

typedef struct {
    const mx_cost_request *q;
    const mx_layer_costs *c;
    int n_chunks; /* of all stages */
    mx_trace *trace;
    double kernels; /* seconds so far, by the last pass */
} engine;

/* Layers [first, end) of a chunk. Where they do not divide, those at the ends have one less: they
 * have the embedding and the head. */
static void chunk_layers(const engine *e, int chunk, int *first, int *end)
{
    int L = e->q->profile->n_layers, n = e->n_chunks, each = L / n, more = L % n;
    int skip = more && more <= n - 2 ? 1 + (n - 2 - more) / 2 : 0, at = 0;
    for (int j = 0; j <= chunk; j++) {
        *first = at;
        at += each + (j >= skip && j < skip + more);
    }
    *end = at;
}

typedef struct {
    const mx_layer_cost *cost[MX_MAX_LAYERS + 2];
    int number[MX_MAX_LAYERS + 2]; /* of the layer; -1: embedding, -2: head */
    int n;
} work_list;

static void list_work(const engine *e, int chunk, int pass, work_list *w)
{
    int first = 0, end = 0;
    chunk_layers(e, chunk, &first, &end);
    w->n = 0;
    if (chunk == 0) {
        w->cost[w->n] = &e->c->embedding;
        w->number[w->n++] = -1;
    }
    for (int l = first; l < end; l++) {
        w->cost[w->n] = &e->c->kind[e->q->profile->of[l]];
        w->number[w->n++] = l;
    }
    if (chunk == e->n_chunks - 1) {
        w->cost[w->n] = &e->c->head;
        w->number[w->n++] = -2;
    }
    for (int i = 0; pass && i < w->n / 2; i++) {
        const mx_layer_cost *c = w->cost[i];
        int k = w->number[i], j = w->n - 1 - i;
        w->cost[i] = w->cost[j];
        w->number[i] = w->number[j];
        w->cost[j] = c;
        w->number[j] = k;
    }
}

/* Kernels beside a collective have fewer SMs. */
static double slowed(const mx_plan_chip *c, double kernels, double comm)
{
    double taken = c->comm_units < c->units ? c->comm_units / (c->units - c->comm_units) : 0;
    return kernels + fmin(kernels, comm) * taken;
}

static void note_event(const engine *e, const char *what, int layer, mx_stream stream, double start,
                       double end)
{
    mx_event ev = {.stream = stream, .start = start, .end = end};
    if (layer >= 0)
        snprintf(ev.name, sizeof ev.name, "%s layer %d", what, layer);
    else
        snprintf(ev.name, sizeof ev.name, "%s %s", what, layer == -1 ? "embedding" : "head");
    if (end > start)
        trace_add(e->trace, ev);
}

/* Seconds of a pass over a chunk that begins at `from`. Weights of the next layer are gathered
 * while one is computed; gradients leave when they are made. */
static double pass_seconds(engine *e, int chunk, int pass, double from)
{
    static const char *const what[2] = {"forward", "backward"};
    work_list w;
    list_work(e, chunk, pass, &w);
    double at = from, net = from, started = from, sent = 0;
    e->kernels = 0;
    for (int i = 0; i < w.n; i++) {
        const mx_layer_cost *c = w.cost[i];
        double gather = c->gather[pass], scatter = pass ? c->scatter : 0;
        double wait = i ? fmax(net, started) : from;
        /* the first is there: it was gathered beside the pass before this one */
        net = i ? wait + gather : net;
        note_event(e, "gather", w.number[i], MX_STREAM_NETWORK, wait, net);
        started = fmax(at, net);
        double kernels = c->gemm[pass] + c->attention[pass] + c->stream[pass];
        double busy = slowed(e->q->chip, kernels, gather + scatter + c->hidden[pass]);
        e->kernels += busy;
        at = started + busy + c->exposed[pass];
        note_event(e, what[pass], w.number[i], MX_STREAM_COMPUTE, started, at);
        if (scatter > 0) {
            double begin = fmax(net, at);
            net = begin + scatter;
            note_event(e, "scatter", w.number[i], MX_STREAM_NETWORK, begin, net);
        }
        sent += gather + scatter;
    }
    return fmax(at - from, sent);
}

/* ---- the pipeline ---- */

typedef struct {
    int chunk, micro, pass; /* chunk of the stage */
} action;

typedef struct {
    engine *e;
    int p, v, m;
    double *end[2];     /* of chunk (of all) x microbatch; < 0: not yet */
    double *seconds[2]; /* of a chunk */
    double hop;         /* from stage to stage */
    action **list;      /* by stage */
    int *next;
    double *free_at, *busy;
} pipeline;

/* The k-th forward (or backward) action of a stage: microbatches go through the chunks in groups as
 * large as there are stages. */
static action nth(const pipeline *l, int k, int pass)
{
    int group = k / (l->p * l->v), at = k % (l->p * l->v);
    int size = l->m - group * l->p < l->p ? l->m - group * l->p : l->p;
    int chunk = at / size;
    return (action){pass ? l->v - 1 - chunk : chunk, group * l->p + at % size, pass};
}

static void schedule(pipeline *l, int stage, bool all_forward_first)
{
    int total = l->m * l->v, n = 0;
    int warm = l->v > 1 ? (l->p - stage - 1) * 2 + (l->v - 1) * l->p : l->p - stage - 1;
    warm = all_forward_first || warm > total ? total : warm;
    for (int k = 0; k < warm; k++)
        l->list[stage][n++] = nth(l, k, 0);
    for (int k = warm; k < total; k++) {
        l->list[stage][n++] = nth(l, k, 0);
        l->list[stage][n++] = nth(l, k - warm, 1);
    }
    for (int k = total - warm; k < total; k++)
        l->list[stage][n++] = nth(l, k, 1);
}

/* When the input of an action is there; < 0: not yet. */
static double ready(const pipeline *l, int stage, action a)
{
    int j = a.chunk * l->p + stage, n = l->p * l->v;
    if (!a.pass)
        return j == 0 ? 0
               : l->end[0][(j - 1) * l->m + a.micro] < 0
                   ? -1
                   : l->end[0][(j - 1) * l->m + a.micro] + l->hop;
    double own = l->end[0][j * l->m + a.micro];
    if (own < 0 || j == n - 1)
        return own;
    double after = l->end[1][(j + 1) * l->m + a.micro];
    return after < 0 ? -1 : fmax(own, after + l->hop);
}

static bool run_next(pipeline *l, int stage, mx_trace *trace)
{
    if (l->next[stage] == 2 * l->m * l->v)
        return false;
    action a = l->list[stage][l->next[stage]];
    double from = ready(l, stage, a);
    if (from < 0)
        return false;
    int j = a.chunk * l->p + stage;
    double start = fmax(from, l->free_at[stage]), end = start + l->seconds[a.pass][j];
    mx_event ev = {.stage = stage, .start = start, .end = end};
    snprintf(ev.name, sizeof ev.name, "%s %d.%d", a.pass ? "B" : "F", a.micro, a.chunk);
    trace_add(trace, ev);
    l->free_at[stage] = l->end[a.pass][j * l->m + a.micro] = end;
    l->busy[stage] += l->seconds[a.pass][j];
    l->next[stage]++;
    return true;
}

/* False: the schedule waits for itself. */
static bool run_schedule(pipeline *l, bool all_forward_first, mx_trace *trace)
{
    int n = l->p * l->v * l->m, done = 0;
    for (int i = 0; i < n; i++)
        l->end[0][i] = l->end[1][i] = -1;
    for (int s = 0; s < l->p; s++) {
        l->next[s] = 0;
        l->free_at[s] = l->busy[s] = 0;
        schedule(l, s, all_forward_first);
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < l->p; s++)
            while (run_next(l, s, trace)) {
                moved = true;
                done++;
            }
    }
    return done == 2 * n;
}

static void pipeline_init(pipeline *l, engine *e, mx_arena *a)
{
    const mx_layout *o = e->q->layout;
    *l = (pipeline){.e = e, .p = (int)o->stage, .v = (int)o->chunks, .m = (int)o->n_microbatches};
    int chunks = l->p * l->v;
    double bytes = (double)o->microbatch * e->q->profile->length / (double)o->context *
                   e->q->profile->width * 2 / (double)o->tensor;
    l->hop = mx_traffic_seconds(e->q->network, MX_SEND, bytes, mx_layout_span(o, MX_GROUP_STAGE));
    for (int pass = 0; pass < 2; pass++) {
        l->end[pass] = MX_NEW_N(a, double, chunks * l->m);
        l->seconds[pass] = MX_NEW_N(a, double, chunks);
        for (int j = 0; j < chunks; j++)
            l->seconds[pass][j] = pass_seconds(e, j, pass, 0);
    }
    l->list = MX_NEW_N(a, action *, l->p);
    for (int s = 0; s < l->p; s++)
        l->list[s] = MX_NEW_N(a, action, 2 * l->m * l->v);
    l->next = MX_NEW_N(a, int, l->p);
    l->free_at = MX_NEW_N(a, double, l->p);
    l->busy = MX_NEW_N(a, double, l->p);
}

static double run_pipeline(engine *e, mx_step_time *out, mx_trace *trace, double *last_backward)
{
    mx_arena arena = {0};
    pipeline l;
    pipeline_init(&l, e, &arena);
    int before = trace ? trace->n : 0;
    if (!run_schedule(&l, false, trace)) {
        if (trace)
            trace->n = before;
        run_schedule(&l, true, trace);
    }
    double end = 0, busy = 0, kernels = 0;
    for (int s = 0; s < l.p; s++) {
        end = fmax(end, l.free_at[s]);
        busy = fmax(busy, l.busy[s]);
    }
    *last_backward = 0;
    for (int c = 0; c < l.v; c++) {
        *last_backward += l.seconds[1][c * l.p];
        for (int pass = 0; pass < 2; pass++) {
            pass_seconds(e, c * l.p, pass, 0);
            kernels += e->kernels * l.m;
        }
    }
    out->compute = fmin(kernels, busy);
    out->network = busy - out->compute;
    out->bubble = end - busy;
    mx_arena_fini(&arena);
    return end;
}

/* Without stages: one microbatch after the other. */
static double run_alone(engine *e, mx_step_time *out, mx_trace *trace, double *last_backward)
{
    double m = (double)e->q->layout->n_microbatches;
    e->trace = trace;
    double forward = pass_seconds(e, 0, 0, 0), kernels = e->kernels;
    double backward = pass_seconds(e, 0, 1, forward);
    e->trace = NULL;
    kernels += e->kernels;
    *last_backward = backward;
    out->compute = m * kernels;
    out->network = fmax(0, m * (forward + backward - kernels));
    return m * (forward + backward);
}

double mx_update_seconds(const mx_cost_request *q, double window)
{
    const mx_layout *o = q->layout;
    const mx_run_kind *r = q->run;
    mx_rank_weights w = mx_rank_weights_of(q);
    mx_group_span replicas = mx_layout_span(o, MX_GROUP_REPLICA);
    mx_group_span experts = mx_layout_span(o, MX_GROUP_EXPERT_REPLICA);
    if (r->frozen)
        return 0;
    double dense = w.dense_kept + w.ends_kept, expert = w.expert_kept;
    double sums =
        mx_traffic_seconds(q->network, MX_REDUCE_SCATTER, dense * r->gradient_bytes, replicas) +
        mx_traffic_seconds(q->network, MX_REDUCE_SCATTER, expert * r->gradient_bytes, experts);
    double back =
        mx_traffic_seconds(q->network, MX_ALL_GATHER,
                           dense * (o->shard_optimizer ? 2 : r->gradient_bytes), replicas) +
        mx_traffic_seconds(q->network, MX_ALL_GATHER, expert * 2, experts);
    bool parts = o->shard_optimizer || r->shared_moments;
    double mine =
        parts ? dense / replicas.size + expert / experts.size : dense + expert;
    double exposed = fmax(sums * 0.1, sums - window) + fmax(back * 0.1, back - window / 2);
    double bytes = mine * r->update_bytes;
    return exposed + mx_stream_seconds(q->chip, bytes, 0) +
           mx_issue_seconds(q->chip, mine, r->update_instructions, bytes);
}

void mx_simulate_step(const mx_cost_request *q, const mx_layer_costs *c, mx_step_time *out,
                      mx_trace *trace)
{
    const mx_layout *o = q->layout;
    engine e = {.q = q, .c = c, .n_chunks = (int)(o->stage * o->chunks)};
    double last_backward, nodes = fmax(1, (double)o->chips / (double)o->per_node);
    *out = (mx_step_time){0};
    double t = o->stage > 1 ? run_pipeline(&e, out, trace, &last_backward)
                            : run_alone(&e, out, trace, &last_backward);
    out->optimizer = mx_update_seconds(q, last_backward);
    mx_event update = {.name = "update", .start = t, .end = t + out->optimizer};
    for (update.stage = 0; update.stage < o->stage; update.stage++)
        trace_add(trace, update);
    out->stragglers = (t + out->optimizer) * STRAGGLER_LOSS * log2(nodes);
    out->seconds = t + out->optimizer + out->stragglers;
}

/* search.c - see search.h. */
#include "plan/search.h"

#include "plan/model_profile.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIMULATED = 2048, MOST_DEGREES = 64 };

typedef struct {
    const mx_search_request *q;
    mx_profile *profile[MX_SEARCH_REMATS];
    mx_run_kind run;
    int64_t heads, experts, length;
    int64_t rows; /* that a microbatch of all ranks can have */
    mx_search *out;
    int cap;
} search;

/* ---- what is legal ---- */

/* Divisors of n up to `most`. */
static int degrees_of(int64_t n, int64_t most, int64_t out[MOST_DEGREES])
{
    int k = 0;
    for (int64_t d = 1; d <= most && d <= n && k < MOST_DEGREES; d++)
        if (n % d == 0)
            out[k++] = d;
    return k;
}

/* The divisor of n that follows d; n + 1 after the last. */
static int64_t next_divisor(int64_t n, int64_t d)
{
    for (d++; d <= n / 2; d++)
        if (n % d == 0)
            return d;
    return d <= n ? n : n + 1;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Query heads that every kind of layer has a divisor of, and experts likewise; 0: no such layers.
 */
static void read_sizes(search *s)
{
    const mx_profile *p = s->profile[0];
    for (int k = 0; k < p->n_kinds; k++) {
        const mx_profile_work *w = &p->kind[k].work;
        for (int i = 0; i < w->n_attention; i++)
            s->heads = common_divisor(s->heads, (int64_t)w->attention[i].heads);
        s->experts = common_divisor(s->experts, (int64_t)w->experts);
    }
    s->heads = s->heads ? s->heads : 1;
    s->length = (int64_t)p->length;
}

static void set_axis(mx_mesh *m, mx_axis a, int64_t degree, int64_t *room)
{
    int64_t inside = common_divisor(degree, *room);
    m->ici[a] = (int)inside;
    m->dcn[a] = (int)(degree / inside);
    *room /= inside;
}

static bool can_be_built(const mx_model_spec *m, int64_t rows, int64_t length)
{
    mx_graph g;
    mx_build b;
    mx_graph_init(&g);
    mx_model_build(&g, m, (mx_model_shape){.batch = rows, .seq = length, .training = true}, &b);
    mx_status st = mx_graph_check(&g);
    bool can = !st;
    mx_status_free(st);
    mx_graph_fini(&g);
    return can;
}

/* Some models have a limit on the rows of a batch. */
static void read_rows(search *s)
{
    s->rows = s->q->sequences;
    while (s->rows > 1 && !can_be_built(s->q->model, s->rows, s->length))
        s->rows /= 2;
}

typedef struct {
    int64_t stage, tensor, context, expert, fsdp, data;
} degrees;

static mx_mesh mesh_of(const degrees *d, int64_t per_node)
{
    mx_mesh m = {0};
    set_axis(&m, MX_AXIS_EXPERT, d->expert, &per_node);
    set_axis(&m, MX_AXIS_TENSOR, d->tensor, &per_node);
    set_axis(&m, MX_AXIS_CONTEXT, d->context, &per_node);
    set_axis(&m, MX_AXIS_FSDP, d->fsdp, &per_node);
    set_axis(&m, MX_AXIS_STAGE, d->stage, &per_node);
    set_axis(&m, MX_AXIS_DATA, d->data, &per_node);
    return m;
}

/* ---- one layout ---- */

/* A step of equal stages that never wait for each other but at its ends, and its update. */
static double bound_of(const mx_cost_request *q, const mx_layer_costs *c)
{
    const mx_layout *o = q->layout;
    double p = (double)o->stage, stage = 0, wire = 0, backward = 0;
    for (int k = 0; k < q->profile->n_kinds; k++) {
        const mx_layer_cost *l = &c->kind[k];
        double layers = q->profile->kind[k].layers / p;
        stage += layers * (mx_layer_seconds(l, 0) + mx_layer_seconds(l, 1));
        backward += layers * mx_layer_seconds(l, 1);
        wire += layers * (l->gather[0] + l->gather[1] + l->scatter);
    }
    double ends = mx_layer_seconds(&c->head, 0) + mx_layer_seconds(&c->head, 1);
    stage = fmax(stage + ends / p, wire);
    return stage * ((double)o->n_microbatches + (p - 1) / (double)o->chunks) +
           mx_update_seconds(q, backward);
}

static mx_cost_request request_of(const search *s, const mx_plan_choice *c)
{
    return (mx_cost_request){s->profile[c->remat], &c->layout, &s->run, &s->q->machine->chip,
                             &s->q->machine->network};
}

double mx_search_usable_bytes(const mx_plan_chip *c)
{
    return 0.96 * c->memory_bytes;
}

/* False: it does not fit. */
static bool consider(search *s, mx_plan_choice c)
{
    mx_layer_costs costs;
    c.layout.mesh = &c.mesh;
    mx_cost_request q = request_of(s, &c);
    mx_layer_costs_of(&q, &costs);
    c.memory = mx_rank_memory_of(&q, &costs);
    s->out->tried++;
    if (c.memory.total > mx_search_usable_bytes(&s->q->machine->chip)) {
        if (!s->out->too_large++ || c.memory.total < s->out->least.total) {
            s->out->least = c.memory;
            s->out->least_mesh = c.mesh;
        }
        return false;
    }
    c.bound = bound_of(&q, &costs);
    MX_GROW(s->out->best, s->out->n, s->cap);
    s->out->best[s->out->n++] = c;
    return true;
}

/* Chunks and remat policies of one mesh and microbatch. False: none fits. */
static bool fill_batch(search *s, mx_plan_choice c)
{
    bool fits = false;
    int64_t stages = c.layout.stage;
    for (int64_t v = 1; v == 1 || (stages > 1 && v <= 8); v *= 2) {
        c.layout.chunks = v;
        if (stages * v > s->profile[0]->n_layers)
            break;
        for (c.remat = 0; c.remat < s->out->n_remats; c.remat++)
            fits |= consider(s, c);
    }
    return fits;
}

/* Microbatches of one mesh, all that divide its rows, until they do not fit. */
static void fill_mesh(search *s, const degrees *d)
{
    mx_plan_choice c = {.mesh = mesh_of(d, s->q->machine->per_node)};
    mx_layout_of_mesh(&c.layout, &c.mesh);
    c.layout.per_node = s->q->machine->per_node;
    /* weights are cut along the model's width */
    if (s->q->sequences % c.layout.data || (int64_t)s->profile[0]->width % c.layout.shard)
        return;
    int64_t rows = s->q->sequences / c.layout.data;
    for (int64_t b = 1; b <= rows; b = next_divisor(rows, b)) {
        c.layout.microbatch = b;
        c.layout.n_microbatches = rows / b;
        if ((d->stage > 1 && c.layout.n_microbatches < d->stage) || b * c.layout.data > s->rows)
            return;
        if (!fill_batch(s, c))
            return;
    }
}

static void split_data(search *s, degrees d, int64_t left)
{
    int64_t f[MOST_DEGREES];
    int n = degrees_of(left, left, f);
    for (int i = 0; i < n; i++) {
        d.fsdp = f[i];
        d.data = left / f[i];
        fill_mesh(s, &d);
    }
}

static void split_rest(search *s, degrees d, int64_t left)
{
    int64_t most = s->length / 2048 > 1 ? s->length / 2048 : 1;
    for (int64_t c = 1; c <= most && c <= 64 && left % c == 0 && s->length % (2 * c) == 0; c *= 2)
        for (int64_t e = 1; e <= left / c; e *= 2) {
            if (left / c % e || (e > 1 && (!s->experts || s->experts % e)))
                continue;
            d.context = c;
            d.expert = e;
            split_data(s, d, left / c / e);
        }
}

static void enumerate_meshes(search *s)
{
    int64_t chips = s->q->machine->chips, p[MOST_DEGREES];
    int n = degrees_of(chips, s->q->stages ? s->profile[0]->n_layers : 1, p);
    for (int i = 0; i < n; i++)
        for (int64_t t = 1; t <= s->q->machine->per_node; t *= 2)
            if (chips / p[i] % t == 0 && s->heads % t == 0)
                split_rest(s, (degrees){.stage = p[i], .tensor = t}, chips / p[i] / t);
}

/* ---- the order ---- */

static int by_bound(const void *a, const void *b)
{
    double x = ((const mx_plan_choice *)a)->bound, y = ((const mx_plan_choice *)b)->bound;
    return (x > y) - (x < y);
}

static int by_time(const void *a, const void *b)
{
    double x = ((const mx_plan_choice *)a)->time.seconds;
    double y = ((const mx_plan_choice *)b)->time.seconds;
    return (x > y) - (x < y);
}

static void simulate_best(search *s)
{
    mx_search *out = s->out;
    if (!out->n)
        return;
    qsort(out->best, (size_t)out->n, sizeof *out->best, by_bound);
    if (!s->q->simulate_all && out->n > SIMULATED)
        out->n = SIMULATED;
    for (int i = 0; i < out->n; i++) {
        mx_plan_choice *c = &out->best[i];
        mx_layer_costs costs;
        c->layout.mesh = &c->mesh;
        mx_cost_request q = request_of(s, c);
        mx_layer_costs_of(&q, &costs);
        mx_simulate_step(&q, &costs, &c->time, NULL);
        c->layout.mesh = NULL;
    }
    qsort(out->best, (size_t)out->n, sizeof *out->best, by_time);
}

mx_status mx_search_run(mx_search *s, const mx_search_request *q)
{
    search all = {.q = q, .out = s};
    mx_status st = mx_run_kind_of(&all.run, q->config, q->model);
    if (!st)
        st = mx_plan_chip_computes(&q->machine->chip, all.run.rate);
    *s = (mx_search){.remat = {"none", "minimal", "full"}, .n_remats = MX_SEARCH_REMATS};
    if (q->remat) {
        s->remat[0] = q->remat;
        s->n_remats = 1;
    }
    for (int i = 0; i < s->n_remats && !st; i++) {
        s->profile[i] = all.profile[i] = MX_NEW(&s->arena, mx_profile);
        st = mx_profile_of(all.profile[i], q->config, q->model, s->remat[i]);
    }
    if (!st) {
        read_sizes(&all);
        read_rows(&all);
        enumerate_meshes(&all);
        simulate_best(&all);
    }
    return st;
}

void mx_search_fini(mx_search *s)
{
    mx_free(s->best);
    mx_arena_fini(&s->arena);
    *s = (mx_search){0};
}

void mx_search_take(const mx_search *s, int i, const mx_search_request *q, mx_forecast *f)
{
    const mx_plan_choice *c = &s->best[i];
    const mx_layout *l = &c->layout;
    int64_t pieces = l->stage > 1 ? l->n_microbatches : 1;
    f->mesh = c->mesh;
    f->layout = *l;
    f->known = s->profile[c->remat];
    snprintf(f->remat, sizeof f->remat, "%s", s->remat[c->remat]);
    f->batch = (mx_batch_plan){.devices = l->chips,
                               .data_ranks = l->data,
                               .accumulation = l->n_microbatches / pieces,
                               .length = mx_config_int(q->config, "max_target_length"),
                               .microbatch = l->microbatch * pieces,
                               .global_microbatch = l->microbatch * pieces * l->data,
                               .global_sequences = q->sequences};
    f->batch.global_tokens = f->batch.global_sequences * f->batch.length;
}

void mx_search_keys(const mx_search *s, int i, mx_str *out)
{
    const mx_plan_choice *c = &s->best[i];
    const mx_layout *l = &c->layout;
    bool piped = l->stage > 1;
    int64_t rows = l->microbatch * (piped ? l->n_microbatches : 1) * l->data;
    mx_str_add(out, "mesh=");
    mx_mesh_print(out, &c->mesh);
    mx_str_addf(out, " remat_policy=%s per_device_batch_size=%g", s->remat[c->remat],
                (double)rows / (double)l->chips);
    if (piped)
        mx_str_addf(out, " num_pipeline_microbatches=%lld", (long long)l->n_microbatches);
    if (l->chunks > 1)
        mx_str_addf(out, " num_pipeline_repeats=%lld", (long long)l->chunks);
    if (!piped && l->n_microbatches > 1)
        mx_str_addf(out, " gradient_accumulation_steps=%lld", (long long)l->n_microbatches);
}

/* ---- why ---- */

enum { PARTS = 5 };

static void parts_of(const mx_step_time *t, double out[PARTS])
{
    const double all[PARTS] = {t->compute, t->network, t->bubble, t->optimizer, t->stragglers};
    memcpy(out, all, sizeof all);
}

void mx_search_reason(const mx_search *s, int i, mx_str *out)
{
    static const char *const first[PARTS] = {"computing", "the network", "the pipeline's bubble",
                                             "the update", "stragglers"};
    static const char *const later[PARTS] = {"more kernel time", "waits longer for the network",
                                             "a larger bubble", "a longer update",
                                             "more stragglers"};
    double best[PARTS], here[PARTS];
    int most = 0;
    parts_of(&s->best[0].time, best);
    parts_of(&s->best[i].time, here);
    if (i == 0) {
        for (int k = 1; k < PARTS; k++)
            most = here[k] > here[most] ? k : most;
        int second = most ? 0 : 1;
        for (int k = 1; k < PARTS; k++)
            second = k != most && here[k] > here[second] ? k : second;
        mx_str_addf(out, "limited by %s; beside that %s, %.1f%%", first[most], first[second],
                    100 * here[second] / s->best[0].time.seconds);
        return;
    }
    for (int k = 1; k < PARTS; k++)
        most = here[k] - best[k] > here[most] - best[most] ? k : most;
    mx_str_addf(out, "%+.1f%%: %s (%+.1f%% of a step)",
                100 * (s->best[i].time.seconds / s->best[0].time.seconds - 1), later[most],
                100 * (here[most] - best[most]) / s->best[0].time.seconds);
}

/* plan.c - see plan.h. */
#include "exec/plan.h"

#include "base/clock.h"
#include "ir/placement.h"
#include "ops.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is alive when memory is fullest ---- */

/* The i-th output's place where it owns storage in the device's scratch memory; else NULL. */
static const mx_place *storage(const mx_program *p, const mx_node *n, int i)
{
    const mx_place *q = mx_program_place(p, n, i);
    return q->root == n && q->out == i && q->offset >= 0 && !q->hosted && !q->kept ? q : NULL;
}

static double bytes_of(const mx_place *q)
{
    return (double)mx_type_bytes(mx_node_type(q->root, q->out));
}

static int fullest(const mx_program *p, mx_arena *a)
{
    double *change = MX_NEW_N(a, double, p->n + 2), alive = 0, most = -1;
    int at = 0;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->order[i]->n_out; k++) {
            const mx_place *q = storage(p, p->order[i], k);
            if (q) {
                change[q->first] += bytes_of(q);
                change[q->last + 1] -= bytes_of(q);
            }
        }
    for (int i = 0; i < p->n; i++) {
        alive += change[i];
        if (alive > most) {
            most = alive;
            at = i;
        }
    }
    return at;
}

/* "model.layers.*.mlp mlpwi_0": scope with numbers replaced, and the tensor's name or its op. */
static void item_name(const mx_node *n, char *out, size_t cap)
{
    size_t k = mx_scope_of_all(n->scope, out, cap);
    const char *own = n->name && !strchr(n->name, '.') ? n->name : n->op->name;
    snprintf(out + k, cap - k, "%s%s%s", k ? " " : "", own, n->recomputed ? " (again)" : "");
}

static int by_bytes(const void *a, const void *b)
{
    double x = ((const mx_plan_item *)a)->bytes, y = ((const mx_plan_item *)b)->bytes;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Counts a storage with others of its name, or as the first. */
static void add_item(mx_plan_item **items, int *n, int *cap, const mx_place *q)
{
    mx_plan_item item = {.bytes = bytes_of(q), .n = 1};
    item_name(q->root, item.name, sizeof item.name);
    int k = 0;
    while (k < *n && strcmp((*items)[k].name, item.name) != 0)
        k++;
    if (k < *n) {
        (*items)[k].bytes += item.bytes;
        (*items)[k].n++;
        return;
    }
    MX_GROW(*items, *n, *cap);
    (*items)[(*n)++] = item;
}

static void find_largest(mx_plan *plan, const mx_program *p)
{
    mx_arena a = {0};
    int at = fullest(p, &a), n = 0, cap = 0;
    mx_plan_item *items = NULL;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->order[i]->n_out; k++) {
            const mx_place *q = storage(p, p->order[i], k);
            if (q && q->first <= at && at <= q->last)
                add_item(&items, &n, &cap, q);
        }
    qsort(items, (size_t)n, sizeof *items, by_bytes);
    plan->n_largest = n < MX_PLAN_LARGEST ? n : MX_PLAN_LARGEST;
    if (n)
        memcpy(plan->largest, items, sizeof *items * (size_t)plan->n_largest);
    mx_free(items);
    mx_arena_fini(&a);
}

/* ---- sums ---- */

/* Matmuls of 8-bit numbers have units of their own. */
static double rate_of(const mx_node *n, const mx_plan_device *d)
{
    mx_dtype of = n->n_in && n->in[0] ? n->in[0]->type.dtype : MX_F32;
    double narrow = MX_CODES >> of & 1 ? d->traits->chip.flops_per_second[of] : 0;
    return narrow > d->flops_per_second ? narrow : d->flops_per_second;
}

static void add_cost(mx_plan *plan, const mx_program *p, double times, const mx_plan_device *d)
{
    for (int i = 0; i < p->n; i++) {
        mx_cost c = mx_node_cost(p->order[i]);
        double rate = rate_of(p->order[i], d), compute = rate > 0 ? c.flops / rate : 0;
        double memory = d->bytes_per_second > 0 ? c.bytes / d->bytes_per_second : 0;
        plan->flops += times * c.flops;
        plan->moved_bytes += times * c.bytes;
        plan->seconds += times * fmax(compute, memory);
        if (!p->order[i]->recomputed)
            plan->model_flops += times * c.flops;
    }
}

static void add_memory(mx_plan *plan, const mx_program *p)
{
    plan->n_nodes += p->n;
    plan->inputs += p->bytes.inputs;
    plan->offloaded = fmax(plan->offloaded, p->bytes.offloaded);
    plan->on_host = fmax(plan->on_host, plan->traits->host_memory ? 0 : p->bytes.on_host);
    for (int k = 0; k < MX_VAR_KIND_COUNT; k++)
        plan->variables[k] = fmax(plan->variables[k], p->bytes.variables[k]);
    plan->workspace = fmax(plan->workspace, p->bytes.workspace);
    if (p->bytes.activations <= plan->activations)
        return;
    plan->activations = p->bytes.activations;
    find_largest(plan, p);
}

/* The programs of a stage, with room for its microbatches in flight. */
static void add_pipeline(mx_plan *plan, const mx_pipeline *p)
{
    for (int i = 0; i < p->how.repeats; i++) {
        int slots = p->schedule.n_slots[i * p->how.stages + p->how.stage];
        for (int part = 0; part < MX_STAGE_PARTS; part++) {
            add_memory(plan, &p->chunk[i].program[part]);
            plan->inputs += (slots - 1) * p->chunk[i].program[part].bytes.inputs;
        }
    }
}

static void add_pipeline_cost(mx_plan *plan, const mx_pipeline *p, const mx_plan_device *d)
{
    for (int i = 0; i < p->how.repeats * MX_STAGE_PARTS; i++)
        add_cost(plan, &p->chunk[i / MX_STAGE_PARTS].program[i % MX_STAGE_PARTS],
                 p->how.microbatches, d);
    plan->parameters = p->parameters;
    plan->trainable = p->trainable;
}

void mx_plan_of(mx_plan *p, mx_programs *programs, const mx_batch_plan *batch,
                const mx_plan_device *device)
{
    mx_step *list[MX_PROGRAMS];
    int n = mx_programs_list(programs, list);
    *p = (mx_plan){.batch = *batch, .traits = device->traits};
    for (int i = 0; i < n; i++)
        add_memory(p, &list[i]->program);
    if (programs->pipelined) {
        add_pipeline(p, &programs->pipeline);
        add_pipeline(p, &programs->eval_pipeline);
        p->activations += (double)(mx_pipeline_slot_bytes(&programs->pipeline) +
                                   mx_pipeline_slot_bytes(&programs->eval_pipeline));
        add_pipeline_cost(p, &programs->pipeline, device);
    } else {
        mx_count_parameters(&programs->step.graph, &p->parameters, &p->trainable);
        add_cost(p, &programs->step.program, (double)batch->accumulation, device);
    }
    if (programs->accumulates)
        add_cost(p, &programs->apply.program, 1, device);
    p->total = p->inputs + p->activations + p->workspace;
    for (int k = 0; k < MX_VAR_KIND_COUNT; k++)
        p->total += p->variables[k];
    p->total -= p->on_host;
    p->snapshot = p->variables[MX_VAR_WEIGHT] + p->variables[MX_VAR_OPTIMIZER];
}

mx_status mx_plan_make(mx_plan *p, const mx_model_spec *m, const mx_programs_request *q,
                       const mx_plan_device *device)
{
    mx_programs programs = {0};
    mx_programs_request here = *q;
    mx_step *list[MX_PROGRAMS];
    double start = mx_clock_now();
    int n_kernels = 0;
    char cache[512];
    if (device->kernels_for)
        mx_device_cache_dir(cache, sizeof cache);
    here.options.compile.device = device->traits;
    mx_status st = mx_programs_plan(&programs, m, &here);
    if (!st)
        mx_plan_of(p, &programs, &q->batch, device);
    int n = mx_programs_list(&programs, list);
    for (int i = 0; i < n && !st && device->kernels_for; i++)
        st = mx_device_compile_kernels(&list[i]->program, device->kernels_for, cache,
                                       &n_kernels);
    mx_programs_close(&programs);
    p->n_kernels = n_kernels;
    p->compile_seconds = mx_clock_now() - start;
    return st;
}

/* ---- what to change ---- */

typedef struct {
    const mx_plan *plan;
    const mx_model_spec *model;
    mx_plan_advice *out;
    int n, cap;
} advice;

static MX_PRINTF(3, 4) void try_change(advice *a, const mx_programs_request *q, const char *fmt,
                                       ...)
{
    mx_plan_device nothing = {.traits = a->plan->traits};
    mx_plan smaller = {0};
    if (a->n == a->cap)
        return;
    mx_status st = mx_plan_make(&smaller, a->model, q, &nothing);
    if (!st && smaller.total < a->plan->total) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(a->out[a->n].keys, sizeof a->out[a->n].keys, fmt, ap);
        va_end(ap);
        a->out[a->n++].total = smaller.total;
    }
    mx_status_free(st);
}

static void keep_less(advice *a, mx_programs_request q)
{
    static const char *const policies[] = {"minimal", "full"};
    const char *now = q.options.compile.remat.policy;
    for (int i = 0; i < 2; i++)
        if (strcmp(now, policies[i]) != 0) {
            q.options.compile.remat = (mx_remat){.policy = policies[i]};
            try_change(a, &q, "remat_policy=%s", policies[i]);
        }
    if (a->plan->traits->host_memory)
        return;
    q.options.compile.remat = (mx_remat){.policy = "custom", .offload = "decoder_layer_input"};
    try_change(a, &q, "remat_policy=custom decoder_layer_input=offload");
}

/* Down to one sequence, or an odd number of them. */
static mx_programs_request halve_batch(advice *a, mx_programs_request q)
{
    mx_batch_plan *b = &q.batch;
    while (b->microbatch % 2 == 0) {
        b->microbatch /= 2;
        b->global_microbatch /= 2;
        b->accumulation *= 2;
        q.eval_batch = q.eval_batch > b->microbatch ? b->microbatch : q.eval_batch;
        try_change(a, &q,
                   "remat_policy=full per_device_batch_size=%g gradient_accumulation_steps=%lld",
                   (double)b->global_microbatch / (double)b->devices, (long long)b->accumulation);
    }
    return q;
}

/* With the least batch: what weights and their state are kept in. */
static void narrow(advice *a, mx_programs_request q)
{
    mx_step_options *o = &q.options;
    const char *least = q.batch.microbatch < a->plan->batch.microbatch ? " with the least batch"
                                                                       : "";
    if (o->optimizer.mu_dtype != MX_BF16 || o->optimizer.nu_dtype != MX_BF16) {
        o->optimizer.mu_dtype = o->optimizer.nu_dtype = MX_BF16;
        try_change(a, &q, "remat_policy=full mu_dtype=bfloat16 nu_dtype=bfloat16%s", least);
    }
    if (!mx_optimizer_rule_of(&o->optimizer)->rounds || o->compile.narrow_weights)
        return;
    o->compile.compute = MX_BF16;
    o->compile.narrow_weights = o->compile.narrow_grads = true;
    try_change(a, &q,
               "remat_policy=full dtype=bfloat16 weight_dtype=bfloat16 grad_dtype=bfloat16%s",
               least);
}

int mx_plan_advise(const mx_plan *p, const mx_model_spec *m, const mx_programs_request *q,
                   mx_plan_advice *out, int cap)
{
    advice a = {.plan = p, .model = m, .out = out, .cap = cap};
    mx_programs_request changed = *q;
    keep_less(&a, changed);
    changed.options.compile.remat = (mx_remat){.policy = "full"};
    mx_programs_request least = halve_batch(&a, changed);
    if (!p->traits->host_memory && !q->options.optimizer.on_host) {
        changed.options.optimizer.on_host = true;
        try_change(&a, &changed, "remat_policy=full optimizer_memory_host_offload=true");
    }
    narrow(&a, least);
    return a.n;
}

mx_status mx_plan_check(const mx_plan *p, const mx_model_spec *m, const mx_programs_request *q,
                        mx_memory_available device)
{
    enum { MOST = 16 };
    char a[32], b[32];
    mx_plan_advice ways[MOST];
    mx_str text = {0};
    bool found = false;
    if (p->total <= (double)device.bytes)
        return MX_OK;
    int n = mx_plan_advise(p, m, q, ways, MOST), least = 0;
    for (int i = 0; i < n && !found; i++) {
        found = ways[i].total <= (double)device.bytes;
        least = found || ways[i].total < ways[least].total ? i : least;
    }
    if (n)
        mx_str_addf(&text, found ? "; with %s it needs %s" : "; even with %s it needs %s",
                    ways[least].keys, mx_format_bytes(a, sizeof a, ways[least].total));
    mx_status st =
        mx_fail(MX_MEMORY, "the run needs %s of memory and does not fit in the %s that %s%s%s",
                mx_format_bytes(a, sizeof a, p->total),
                mx_format_bytes(b, sizeof b, (double)device.bytes), device.why, mx_str_text(&text),
                found ? "" : "; use a shorter max_target_length, a smaller model or more devices");
    mx_str_fini(&text);
    return st;
}

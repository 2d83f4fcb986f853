/* plan.c - see plan.h. */
#include "train/plan.h"

#include "base/clock.h"
#include "ops.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

/* One of its name more. */
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

static void add_program(mx_plan *plan, const mx_program *p, double times, const mx_plan_device *d)
{
    plan->n_nodes += p->n;
    plan->inputs += p->bytes.inputs;
    plan->activations += p->bytes.activations;
    plan->workspace += p->bytes.workspace;
    plan->stowed += p->bytes.stowed;
    plan->on_host = fmax(plan->on_host, d->apart ? p->bytes.on_host : 0);
    for (int k = 0; k < MX_VAR_KIND_COUNT; k++)
        plan->variables[k] = fmax(plan->variables[k], p->bytes.variables[k]);
    for (int i = 0; i < p->n; i++) {
        mx_cost c = mx_node_cost(p->order[i]);
        double compute = d->flops_per_second > 0 ? c.flops / d->flops_per_second : 0;
        double memory = d->bytes_per_second > 0 ? c.bytes / d->bytes_per_second : 0;
        plan->flops += times * c.flops;
        plan->moved_bytes += times * c.bytes;
        plan->seconds += times * fmax(compute, memory);
        if (!p->order[i]->recomputed)
            plan->model_flops += times * c.flops;
    }
}

static void count_parameters(mx_plan *plan, const mx_graph *g)
{
    plan->parameters = plan->trainable = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        const mx_node *n = g->node[i];
        const mx_var_attr *v = n->attr;
        if (n->op != &mx_op_variable || v->kind != MX_VAR_WEIGHT)
            continue;
        double size = (double)mx_type_bytes(&n->type) / (double)mx_dtype_bytes(n->type.dtype);
        plan->parameters += size;
        plan->trainable += v->frozen ? 0 : size;
    }
}

static mx_status add_step(mx_plan *plan, const mx_model_spec *m, mx_step_options o,
                          mx_step_kind kind, double times, const mx_plan_device *d)
{
    mx_step step = {0};
    o.kind = kind;
    o.compile.gpu = d->gpu;
    o.compile.apart = d->apart;
    o.shape.batch = plan->batch.microbatch;
    MX_TRY(mx_step_plan(&step, m, &o));
    double before = plan->activations;
    if (kind != MX_STEP_APPLY)
        count_parameters(plan, &step.graph);
    add_program(plan, &step.program, times, d);
    if (plan->activations - before > before)
        find_largest(plan, &step.program);
    mx_status st = d->kernels_for
                       ? mx_device_compile_kernels(&step.program, d->kernels_for, &plan->n_kernels)
                       : MX_OK;
    mx_step_close(&step);
    return st;
}

mx_status mx_plan_make(mx_plan *p, const mx_model_spec *m, const mx_step_options *o,
                       const mx_batch_plan *batch, const mx_plan_device *device)
{
    *p = (mx_plan){.batch = *batch, .gpu = device->gpu, .apart = device->apart};
    double start = mx_clock_now();
    if (batch->accumulation > 1) {
        MX_TRY(add_step(p, m, *o, MX_STEP_ACCUMULATE, (double)batch->accumulation, device));
        MX_TRY(add_step(p, m, *o, MX_STEP_APPLY, 1, device));
    } else {
        MX_TRY(add_step(p, m, *o, MX_STEP_TRAIN, 1, device));
    }
    p->total = p->inputs + p->activations + p->workspace;
    for (int k = 0; k < MX_VAR_KIND_COUNT; k++)
        p->total += p->variables[k];
    p->total -= p->on_host;
    p->compile_seconds = mx_clock_now() - start;
    return MX_OK;
}

/* ---- what to change ---- */

static void try_change(const mx_plan *p, const mx_model_spec *m, const mx_step_options *o,
                       const mx_batch_plan *batch, mx_plan_advice *out, int *n)
{
    mx_plan_device nothing = {.gpu = p->gpu, .apart = p->apart};
    mx_plan smaller;
    mx_status st = mx_plan_make(&smaller, m, o, batch, &nothing);
    if (!st && smaller.total < p->total)
        out[(*n)++].total = smaller.total;
    mx_status_free(st);
}

int mx_plan_advise(const mx_plan *p, const mx_model_spec *m, const mx_step_options *o,
                   mx_plan_advice *out, int cap)
{
    static const char *const policies[] = {"minimal", "full"};
    mx_step_options changed = *o;
    mx_batch_plan batch = p->batch;
    int n = 0;
    for (int i = 0; i < 2 && n < cap; i++)
        if (strcmp(o->compile.remat.policy, policies[i]) != 0) {
            changed.compile.remat = (mx_remat){.policy = policies[i]};
            snprintf(out[n].keys, sizeof out[n].keys, "remat_policy=%s", policies[i]);
            try_change(p, m, &changed, &batch, out, &n);
        }
    if (p->apart && n < cap) {
        changed.compile.remat = (mx_remat){.policy = "custom", .offload = "decoder_layer_input"};
        snprintf(out[n].keys, sizeof out[n].keys,
                 "remat_policy=custom decoder_layer_input=offload");
        try_change(p, m, &changed, &batch, out, &n);
    }
    while (batch.microbatch % 2 == 0 && n < cap) {
        batch.microbatch /= 2;
        batch.global_microbatch /= 2;
        batch.accumulation *= 2;
        changed.compile.remat = (mx_remat){.policy = "full"};
        snprintf(out[n].keys, sizeof out[n].keys,
                 "remat_policy=full per_device_batch_size=%g gradient_accumulation_steps=%lld",
                 (double)batch.global_microbatch / (double)batch.devices,
                 (long long)batch.accumulation);
        try_change(p, m, &changed, &batch, out, &n);
    }
    if (p->apart && !o->optimizer.on_host && n < cap) {
        mx_step_options hosted = *o;
        hosted.optimizer.on_host = true;
        hosted.compile.remat = (mx_remat){.policy = "full"};
        snprintf(out[n].keys, sizeof out[n].keys,
                 "remat_policy=full optimizer_memory_host_offload=true");
        try_change(p, m, &hosted, &p->batch, out, &n);
    }
    changed.optimizer.mu_dtype = changed.optimizer.nu_dtype = MX_BF16;
    if (o->optimizer.mu_dtype != MX_BF16 && n < cap) {
        size_t k = (size_t)snprintf(out[n].keys, sizeof out[n].keys,
                                    "remat_policy=full mu_dtype=bfloat16 nu_dtype=bfloat16");
        if (batch.accumulation != p->batch.accumulation)
            snprintf(out[n].keys + k, sizeof out[n].keys - k, " with the smallest batch");
        try_change(p, m, &changed, &batch, out, &n);
    }
    return n;
}

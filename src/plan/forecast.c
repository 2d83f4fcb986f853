/* forecast.c - see forecast.h. */
#include "plan/forecast.h"

#include "plan/model_profile.h"
#include "ops/adamw8.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

mx_status mx_run_kind_of(mx_run_kind *r, const mx_config *c, const mx_model_spec *m)
{
    mx_arena arena = {0};
    mx_step_options o;
    mx_status st = mx_step_configure(&o, c, m, MX_STEP_TRAIN, 1, &arena);
    mx_arena_fini(&arena);
    if (st)
        return st;
    bool narrow = o.compile.compute == MX_BF16;
    double moment = (double)mx_dtype_bytes(o.optimizer.mu_dtype);
    if (o.optimizer.kind != MX_SGD)
        moment += (double)mx_dtype_bytes(o.optimizer.nu_dtype);
    if (o.optimizer.eight_bits)
        moment = 2 * (1 + sizeof(float) / (double)MX_ADAMW8_BLOCK);
    *r = (mx_run_kind){.rate = narrow ? MX_RATE_BF16 : MX_RATE_F32,
                       .again = -1,
                       .weight_bytes = o.compile.narrow_weights ? 2 : 4,
                       .copy_bytes = narrow && !o.compile.narrow_weights ? 2 : 0,
                       .gradient_bytes = o.compile.narrow_grads ? 2 : 4,
                       .state_bytes = moment};
    r->update_bytes =
        2 * r->weight_bytes + r->copy_bytes + 2 * r->gradient_bytes + 2 * r->state_bytes;
    return MX_OK;
}

mx_cost_request mx_forecast_request(const mx_forecast *f)
{
    return (mx_cost_request){&f->profile, &f->layout, &f->run, &f->machine.chip,
                             &f->machine.network};
}

double mx_forecast_tokens(const mx_forecast *f)
{
    return (double)f->batch.global_tokens / f->time.seconds;
}

double mx_forecast_mfu(const mx_forecast *f)
{
    double peak = f->machine.chip.peak[f->run.rate];
    peak = peak > 0 ? peak : f->machine.chip.peak[MX_RATE_BF16];
    return f->model_flops / f->time.seconds / (double)f->layout.chips / peak;
}

/* Microbatches of the pipeline, beside those that gradients are added up over. */
static mx_status cut_batch(mx_forecast *f, const mx_config *c)
{
    mx_layout *l = &f->layout;
    int64_t pieces = 1, asked = mx_config_int(c, "num_pipeline_microbatches");
    int64_t repeats = mx_config_int(c, "num_pipeline_repeats");
    if (l->stage > 1)
        pieces = asked > 0 ? asked : l->stage;
    if (f->batch.microbatch % pieces)
        return mx_fail(MX_USAGE,
                       "%s: a data rank has %lld sequences, which do not divide into %lld "
                       "microbatches of a pipeline of %lld stages; change per_device_batch_size or "
                       "num_pipeline_microbatches",
                       mx_config_where(c, "per_device_batch_size"), (long long)f->batch.microbatch,
                       (long long)pieces, (long long)l->stage);
    l->microbatch = f->batch.microbatch / pieces;
    l->n_microbatches = f->batch.accumulation * pieces;
    l->chunks = l->stage > 1 && repeats > 1 ? repeats : 1;
    if (l->stage * l->chunks > f->profile.n_layers)
        return mx_fail(MX_USAGE, "the mesh has %lld stages of %lld chunks, and the model %d layers",
                       (long long)l->stage, (long long)l->chunks, f->profile.n_layers);
    return MX_OK;
}

static void take_program(mx_forecast *f, mx_programs *programs)
{
    mx_step *list[MX_PROGRAMS];
    int n = mx_programs_list(programs, list);
    const mx_plan *p = &f->plan;
    mx_rank_memory *m = &f->memory;
    double buffers = 0;
    for (int i = 0; i < n; i++) {
        const mx_program *g = &list[i]->program;
        mx_peak peak = mx_program_peak(g);
        if (g->bytes.activations >= p->activations) {
            buffers = peak.collectives;
            f->fragmentation = fmax(0, g->bytes.activations - peak.alive);
        }
        if (list[i] != &programs->eval)
            mx_traffic_add(&f->traffic, g, &f->mesh,
                           list[i] == &programs->step ? (double)f->batch.accumulation : 1);
    }
    *m = (mx_rank_memory){.weights = p->variables[MX_VAR_WEIGHT],
                          .copies = p->variables[MX_VAR_COPY],
                          .gradients = p->variables[MX_VAR_GRADIENT],
                          .optimizer = p->variables[MX_VAR_OPTIMIZER] - p->on_host,
                          .activations = p->inputs + p->activations - buffers - f->fragmentation,
                          .communication = buffers,
                          .workspace = p->workspace};
    m->total = p->total;
    const mx_program *step = &programs->step.program;
    f->n_curve = step->n < MX_FORECAST_POINTS ? step->n : MX_FORECAST_POINTS;
    mx_program_curve(step, f->curve, f->n_curve);
}

/* The programs of rank 0. */
static mx_status compile_rank(mx_forecast *f, const mx_config *c, const mx_model_spec *m)
{
    mx_arena arena = {0};
    mx_mesh_plan on = {0};
    mx_programs programs = {0};
    mx_programs_request q;
    mx_plan_device d = {.traits = &mx_cuda_traits,
                        .flops_per_second = f->machine.chip.peak[f->run.rate],
                        .bytes_per_second = f->machine.chip.bytes_per_second,
                        .memory_bytes = f->machine.chip.memory_bytes};
    mx_status st;
    MX_TRY_OUT(st, mx_mesh_use(&on, c, &f->mesh));
    MX_TRY_OUT(st, mx_mesh_check(&on, c, m));
    mx_programs_ranks by = {f->layout.chips, f->layout.data, f->layout.chips > 1 ? &on.how : NULL};
    MX_TRY_OUT(st, mx_programs_configure(&q, c, m, by, &arena));
    q.options.compile.device = &mx_cuda_traits;
    mx_remat_find(f->remat, &q.options.compile.remat);
    q.batch = f->batch;
    MX_TRY_OUT(st, mx_programs_plan(&programs, m, &q));
    mx_plan_of(&f->plan, &programs, &f->batch, &d);
    take_program(f, &programs);
    f->exact = true;
out:
    mx_programs_close(&programs);
    mx_mesh_plan_fini(&on);
    mx_arena_fini(&arena);
    return st;
}

mx_status mx_forecast_make(mx_forecast *f, const mx_config *c, const mx_model_spec *m)
{
    bool chosen = f->batch.devices > 0;
    mx_layout given = f->layout;
    mx_layout_of_mesh(&f->layout, &f->mesh);
    f->layout.per_node = f->machine.per_node;
    MX_TRY(mx_run_kind_of(&f->run, c, m));
    MX_TRY(mx_profile_of(&f->profile, c, m, chosen ? f->remat : NULL));
    if (chosen) {
        f->layout.microbatch = given.microbatch;
        f->layout.n_microbatches = given.n_microbatches;
        f->layout.chunks = given.chunks;
    } else {
        snprintf(f->remat, sizeof f->remat, "%s", mx_config_text(c, "remat_policy"));
        MX_TRY(mx_batch_plan_make(&f->batch, c, f->layout.chips, f->layout.data));
        MX_TRY(cut_batch(f, c));
    }
    mx_cost_request q = mx_forecast_request(f);
    mx_layer_costs_of(&q, &f->costs);
    mx_simulate_step(&q, &f->costs, &f->time, NULL);
    f->model_flops = 3 * mx_profile_flops(&f->profile) * (double)f->batch.global_tokens;
    f->memory = f->estimate = mx_rank_memory_of(&q, &f->costs);
    return f->layout.stage > 1 ? MX_OK : compile_rank(f, c, m);
}

/* forecast.c - see forecast.h. */
#include "plan/forecast.h"

#include "plan/model_profile.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static mx_rate rate_of(const mx_quant_recipe *r, mx_granularity grain, mx_rate high)
{
    static const mx_rate float8[] = {[MX_GRANULARITY_TENSOR] = MX_RATE_FP8,
                                     [MX_GRANULARITY_ROW] = MX_RATE_FP8_ROWS,
                                     [MX_GRANULARITY_BLOCK] = MX_RATE_FP8_BLOCKS};
    if (grain == MX_GRANULARITY_HIGH)
        return high;
    return r->value == MX_I8 ? MX_RATE_INT8 : float8[grain];
}

void mx_run_kind_quantize(mx_run_kind *run, const mx_quant_recipe *r)
{
    mx_granularity grain[3] = {MX_GRANULARITY_HIGH, MX_GRANULARITY_HIGH, MX_GRANULARITY_HIGH};
    if (r && !r->fake_weights && !r->fake_inputs) {
        grain[0] = r->forward;
        grain[1] = r->dgrad;
        grain[2] = r->wgrad;
    }
    for (int i = 0; i < 3; i++)
        run->narrow[i] = rate_of(r, grain[i], run->rate);
}

/* Of most layers: the last rule that has one. Recipes of the table outlive the rules. */
static const mx_quant_recipe *recipe_of(const mx_quantization *q)
{
    const mx_quant_recipe *r = NULL;
    for (int i = 0; q && i < q->n_rules; i++)
        r = q->rule[i].recipe ? q->rule[i].recipe : r;
    return r ? mx_quant_recipe_find(r->name) : NULL;
}

mx_status mx_run_kind_of(mx_run_kind *r, const mx_config *c, const mx_model_spec *m)
{
    mx_arena arena = {0};
    mx_step_options o;
    mx_status st = mx_step_configure(&o, c, m, MX_STEP_TRAIN, 1, &arena);
    const mx_quant_recipe *recipe = st ? NULL : recipe_of(o.compile.quantization);
    mx_arena_fini(&arena);
    if (st)
        return st;
    /* weights that adapters are trained beside lie as they are multiplied */
    bool adapters = o.lora != NULL, narrow = o.compile.compute == MX_BF16;
    bool thin = o.compile.narrow_weights || (adapters && narrow && o.compile.narrow_frozen);
    mx_rate rate = narrow ? MX_RATE_BF16 : MX_RATE_F32;
    double moment = (double)mx_dtype_bytes(o.optimizer.mu_dtype);
    const mx_optimizer_rule *rule = mx_optimizer_rule_of(&o.optimizer);
    if (rule->moments > 1)
        moment += (double)mx_dtype_bytes(o.optimizer.nu_dtype);
    if (rule->moment_bytes > 0)
        moment = rule->moments * rule->moment_bytes;
    *r = (mx_run_kind){.rate = rate,
                       .again = -1,
                       .frozen = adapters,
                       .shared_moments = mx_config_bool(c, "shard_optimizer_over_data"),
                       .exchange_factor = mx_config_float(c, "ragged_buffer_factor"),
                       .whole_keys = strcmp(mx_config_text(c, "context_parallel_strategy"),
                                            "all_gather") == 0,
                       .weight_bytes = thin ? 2 : 4,
                       .copy_bytes = narrow && !thin ? 2 : 0,
                       .gradient_bytes = o.compile.narrow_grads ? 2 : 4,
                       .state_bytes = moment,
                       .update_instructions = rule->instructions};
    mx_run_kind_quantize(r, recipe);
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

/* A program of a rank, and how often it runs in an update. */
typedef struct {
    const mx_program *program;
    double times;
} rank_program;

static int programs_of(mx_programs *p, double times, mx_arena *a, rank_program **out)
{
    mx_step *list[MX_PROGRAMS];
    const mx_pipeline *pipes[] = {&p->pipeline, &p->eval_pipeline};
    int n = mx_programs_list(p, list), most = MX_PROGRAMS;
    for (int k = 0; k < 2 && p->pipelined; k++)
        most += pipes[k]->how.repeats * MX_STAGE_PARTS;
    *out = MX_NEW_N(a, rank_program, most);
    for (int i = 0; i < n; i++)
        (*out)[i] = (rank_program){&list[i]->program, list[i] == &p->step   ? times
                                                      : list[i] == &p->eval ? 0
                                                                            : 1};
    for (int k = 0; k < 2 && p->pipelined; k++)
        for (int i = 0; i < pipes[k]->how.repeats * MX_STAGE_PARTS; i++)
            (*out)[n++] = (rank_program){
                &pipes[k]->chunk[i / MX_STAGE_PARTS].program[i % MX_STAGE_PARTS], k ? 0 : times};
    return n;
}

static void add_messages(mx_forecast *f, const mx_pipeline *p)
{
    for (int i = 0; i < p->how.repeats; i++) {
        const mx_stage_message *sent[] = {&p->chunk[i].out, &p->chunk[i].grad_out};
        for (int k = 0; k < 2; k++)
            if (sent[k]->bytes)
                mx_traffic_add_messages(&f->traffic, &f->mesh, (double)sent[k]->bytes,
                                        p->how.microbatches);
    }
}

static void take_program(mx_forecast *f, mx_programs *programs, double times)
{
    mx_arena arena = {0};
    rank_program *list, *fullest = NULL;
    int n = programs_of(programs, times, &arena, &list);
    const mx_plan *p = &f->plan;
    for (int i = 0; i < n; i++) {
        if (!fullest || list[i].program->bytes.activations > fullest->program->bytes.activations)
            fullest = &list[i];
        if (list[i].times > 0)
            mx_traffic_add(&f->traffic, list[i].program, &f->mesh, list[i].times);
    }
    if (programs->pipelined)
        add_messages(f, &programs->pipeline);
    mx_peak peak = mx_program_peak(fullest->program);
    f->fragmentation = fmax(0, fullest->program->bytes.activations - peak.alive);
    f->memory =
        (mx_rank_memory){.weights = p->variables[MX_VAR_WEIGHT],
                         .copies = p->variables[MX_VAR_COPY],
                         .gradients = p->variables[MX_VAR_GRADIENT],
                         .optimizer = p->variables[MX_VAR_OPTIMIZER] - p->on_host,
                         .activations = p->inputs + p->activations - peak.collectives -
                                        f->fragmentation,
                         .communication = peak.collectives,
                         .workspace = p->workspace,
                         .total = p->total};
    int nodes = fullest->program->n;
    f->n_curve = nodes < MX_FORECAST_POINTS ? nodes : MX_FORECAST_POINTS;
    mx_program_curve(fullest->program, f->curve, f->n_curve);
    mx_arena_fini(&arena);
}

/* The microbatches and chunks of the layout; where it was searched the keys may say others. */
static void cut_as_layout(const mx_forecast *f, mx_programs_request *q)
{
    q->batch = f->batch;
    if (f->layout.stage == 1)
        return;
    q->batch.microbatch = f->layout.microbatch;
    q->batch.global_microbatch = f->layout.microbatch * f->layout.data;
    q->batch.accumulation = f->layout.n_microbatches;
    q->pipeline.microbatches = (int)f->layout.n_microbatches;
    if (q->pipeline.repeats != f->layout.chunks)
        q->pipeline.kind = f->layout.chunks > 1 ? MX_PIPELINE_INTERLEAVED : MX_PIPELINE_1F1B;
    q->pipeline.repeats = (int)f->layout.chunks;
}

/* Keeps what the programs of a stage need where it is more than that of the stages before. */
static void take_stage(mx_forecast *f, mx_programs *programs, const mx_programs_request *q,
                       int stage)
{
    mx_plan plan;
    mx_plan_device d = {.traits = q->options.compile.device,
                        .flops_per_second = f->machine.chip.peak[f->run.rate],
                        .bytes_per_second = f->machine.chip.bytes_per_second,
                        .memory_bytes = f->machine.chip.memory_bytes};
    mx_plan_of(&plan, programs, &q->batch, &d);
    if (stage > 0 && plan.total <= f->plan.total)
        return;
    f->plan = plan;
    f->traffic = (mx_traffic_table){0};
    f->worst_stage = stage;
    take_program(f, programs, (double)q->batch.accumulation);
}

/* The programs of one rank of each stage; all ranks of a stage need the same. */
static mx_status compile_ranks(mx_forecast *f, const mx_config *c, const mx_model_spec *m)
{
    mx_arena arena = {0};
    mx_mesh_plan on = {0};
    mx_programs programs = {0};
    mx_programs_request q;
    mx_status st;
    MX_TRY_OUT(st, mx_mesh_use(&on, c, &f->mesh));
    MX_TRY_OUT(st, mx_mesh_check(&on, c));
    mx_programs_ranks by = {f->layout.chips, f->layout.data, f->layout.chips > 1 ? &on.how : NULL};
    MX_TRY_OUT(st, mx_programs_configure(&q, c, m, by, &arena));
    q.options.compile.device = f->traits ? f->traits : &mx_cuda_traits;
    mx_remat_find(f->remat, &q.options.compile.remat);
    cut_as_layout(f, &q);
    MX_TRY_OUT(st, mx_programs_plan(&programs, m, &q));
    take_stage(f, &programs, &q, 0);
    for (int i = 1, like; i < f->layout.stage; i++) {
        for (like = 0; like < i && !mx_pipeline_is_like(&programs.pipeline, i, like);)
            like++;
        if (like < i)
            continue;
        if (f->room > 0 && f->memory.total > f->room)
            break;
        MX_TRY_OUT(st, mx_programs_replan(&programs, m, &q, i));
        take_stage(f, &programs, &q, i);
    }
out:
    mx_programs_close(&programs);
    mx_mesh_plan_fini(&on);
    mx_arena_fini(&arena);
    return st;
}

mx_status mx_forecast_make(mx_forecast *f, const mx_config *c, const mx_model_spec *m)
{
    MX_TRY(mx_forecast_time(f, c, m));
    return compile_ranks(f, c, m);
}

mx_status mx_forecast_time(mx_forecast *f, const mx_config *c, const mx_model_spec *m)
{
    bool chosen = f->batch.devices > 0;
    mx_layout given = f->layout;
    mx_layout_of_mesh(&f->layout, &f->mesh);
    f->layout.per_node = f->machine.per_node;
    MX_TRY(mx_run_kind_of(&f->run, c, m));
    MX_TRY(mx_plan_chip_computes(&f->machine.chip, f->run.rate));
    if (f->known)
        f->profile = *f->known;
    else
        MX_TRY(mx_profile_of(&f->profile, c, m, chosen ? f->remat : NULL));
    f->known = NULL;
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
    /* weights that stay as they are have no gradients */
    double passes = f->run.frozen ? 2 : 3, tokens = (double)f->batch.global_tokens;
    f->model_flops = passes * mx_profile_flops(&f->profile) * tokens;
    f->memory = f->estimate = mx_rank_memory_of(&q, &f->costs);
    return MX_OK;
}

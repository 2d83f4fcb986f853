/* run_plan.c - the programs of a run: planned, checked against the memory there is, opened.
 *
 * Nothing large is allocated before the check: a run that would not fit ends with status 4 and what
 * to change, instead of being killed by the kernel. The copy of the state that saves are written
 * from (a snapshot, in host memory) is not worth a refusal: without room for it saves are written
 * while the run waits, and that is said.
 */
#include "train/run/run_state.h"

#include "base/clock.h"
#include "exec/saved_programs.h"

#include <stdio.h>
#include <string.h>

static mx_status open_session(mx_run *r)
{
    MX_TRY(mx_mesh_rank_session(&r->session, r->mesh_rank, mx_config_text(r->c, "device"),
                           (int)mx_config_int(r->c, "num_threads")));
    mx_run_set_groups(r);
    if (!mx_config_bool(r->c, "deterministic"))
        mx_session_allow_any_order(r->session);
    if (mx_config_bool(r->c, "gemm_search"))
        mx_session_search(r->session);
    r->request.options = mx_step_options_for(r->session, &r->request.options);
    r->request.options.compile.n_threads = mx_session_threads(r->session);
    return MX_OK;
}

/* Virtual ranks have one memory. */
static mx_memory_available share_of(const mx_run *r, mx_memory_available left)
{
    if (r->mesh_rank && r->mesh_rank->world)
        left.bytes /= r->ranks.comm->size;
    return left;
}

/* Keys that choose among a GPU's ways to compute; the CPU has one. */
static void say_without_choice(mx_run *r, const char *key, bool asked)
{
    if (asked && mx_session_traits(r->session)->host_memory)
        mx_progress_say(&r->report.progress, "note: %s changes nothing on the CPU", key);
}

static bool saves_beside_steps(const mx_run *r)
{
    return mx_config_bool(r->c, "enable_checkpointing") &&
           mx_config_bool(r->c, "async_checkpointing");
}

/* What lies in host memory: everything on the CPU, what was moved there beside a GPU. */
static mx_status check_host(mx_run *r)
{
    const mx_plan *p = &r->plan;
    bool on_host = p->traits->host_memory;
    double need = on_host ? p->total : p->on_host + p->offloaded;
    mx_memory_available left = share_of(r, mx_memory_available_now());
    char a[32], b[32];
    r->saving.snapshots = saves_beside_steps(r) && need + p->snapshot <= (double)left.bytes;
    if (saves_beside_steps(r) && !r->saving.snapshots)
        mx_progress_say(&r->report.progress,
                        "note: a copy of the state to save from (%s) does not fit beside the run "
                        "in the %s that %s: steps wait while checkpoints are written",
                        mx_format_bytes(a, sizeof a, p->snapshot),
                        mx_format_bytes(b, sizeof b, (double)left.bytes), left.why);
    if (on_host || need <= (double)left.bytes)
        return MX_OK;
    return mx_fail(MX_MEMORY,
                   "the run keeps %s in host memory, beside the GPU's, and does not fit in the %s "
                   "that %s; offload less (remat_policy, optimizer_memory_host_offload=false)",
                   mx_format_bytes(a, sizeof a, need),
                   mx_format_bytes(b, sizeof b, (double)left.bytes), left.why);
}

static mx_status check_memory(mx_run *r)
{
    mx_plan_device d = {.traits = r->request.options.compile.device};
    mx_beside beside = {0};
    char a[32];
    mx_plan_of(&r->plan, &r->programs, &r->request.batch, &d);
    MX_TRY(mx_run_objective_beside(r, &beside));
    for (int i = 0; i < beside.n; i++)
        mx_progress_say(&r->report.progress, "memory: %s beside the run: %s",
                        mx_format_bytes(a, sizeof a, beside.v[i].bytes), beside.v[i].name);
    r->plan.total += r->plan.beside = mx_beside_bytes(&beside);
    const mx_memory_available left = mx_session_memory_available(r->session);
    if (!r->plan.traits->host_memory && !r->mesh_rank && left.bytes < INT64_MAX)
        r->watch.device_free = left.bytes;
    MX_TRY(mx_plan_check(&r->plan, &r->model, &r->request, share_of(r, left)));
    return check_host(r);
}

/* Of one rank; stages have different shares, the mean counts. */
static mx_status count_flops(mx_run *r)
{
    double n = (double)r->request.batch.accumulation;
    r->report.flops_per_step = r->programs.step.program.bytes.flops * n;
    if (!r->programs.pipelined)
        return MX_OK;
    r->report.flops_per_step = mx_pipeline_flops(&r->programs.pipeline) * n;
    MX_TRY(mx_comm_sum_f64(r->ranks.comm, &r->report.flops_per_step, 1));
    r->report.flops_per_step /= r->ranks.comm->size;
    return MX_OK;
}

/* What is quantized, and what the recipe could not take. */
static void say_quantization(mx_run *r)
{
    const mx_quantization *q = r->request.options.compile.quantization;
    if (!q)
        return;
    const mx_quant_report *p = q->report;
    mx_progress_say(&r->report.progress,
                    "quantization: %d matmuls of layers' weights, %d left in %s", p->n_quantized,
                    p->n_high, mx_dtype_name(r->request.options.compile.compute));
    for (const char *line = p->kept, *end; (end = strchr(line, '\n')); line = end + 1)
        mx_progress_say(&r->report.progress, "note: not quantized: %.*s", (int)(end - line), line);
}

/* Programs of stages do not exchange what goes into histories (compile/quantize_amax.h). */
static mx_status check_quantization(const mx_run *r)
{
    if (!r->mesh_rank || mx_mesh_size(&r->mesh_rank->mesh->mesh, 1u << MX_AXIS_STAGE) < 2 ||
        !mx_quantization_is_delayed(r->request.options.compile.quantization))
        return MX_OK;
    return mx_fail(MX_USAGE, "%s: delayed scaling has no histories in the stages of a pipeline; "
                   "use quantization=fp8_tensorwise", mx_config_where(r->c, "quantization"));
}

static mx_process_group *find_stages(const mx_run *r)
{
    mx_axis_set stage = 1u << MX_AXIS_STAGE;
    return r->ranks.groups ? mx_comm_groups_find(r->ranks.groups, stage)
                     : r->mesh_rank->find_group((void *)r->mesh_rank, stage);
}

/* What a file of compiled programs cannot be used with. */
static mx_status check_saved(const mx_run *r)
{
    const char *other = r->goal.objective                            ? "the objective of this verb"
                        : r->batch.ramp.n_stages                     ? "enable_rampup_batch_size"
                        : *mx_config_text(r->c, "dump_ir")           ? "dump_ir"
                                                                     : NULL;
    if (!other)
        return MX_OK;
    return mx_fail(MX_USAGE, "%s: programs that were compiled before do not go with %s; leave "
                   "compiled_trainstep_file out", mx_config_where(r->c, "compiled_trainstep_file"),
                   other);
}

static mx_status take_saved(mx_run *r, mx_saved_programs *s)
{
    const mx_device_traits *d = mx_session_traits(r->session);
    mx_saved_for here = {.device = d->name, .chip = d->chip.name ? d->chip.name : "",
                         .ranks = r->ranks.comm->size, .data_ranks = r->ranks.data_ranks,
                         .images_per_row = r->request.options.shape.images_per_row,
                         .model = mx_saved_model(&r->model, &r->arena)};
    mx_saved_rank by = {.rank = r->mesh_rank ? r->mesh_rank->rank : 0, .device = d,
                        .n_threads = mx_session_threads(r->session)};
    char cache[512];
    int n_kernels = 0;
    if (r->mesh_rank)
        here.mesh = r->mesh_rank->mesh->mesh;
    MX_TRY(mx_saved_programs_fit(s, r->c, &here));
    if (!d->host_memory) {
        mx_device_cache_dir(cache, sizeof cache);
        MX_TRY(mx_saved_programs_install(s, cache, &n_kernels));
    }
    return mx_saved_programs_take(s, &r->programs, &r->request, by);
}

/* Compiled, or read where they were compiled before. */
static mx_status make_programs(mx_run *r)
{
    const char *path = mx_config_text(r->c, "compiled_trainstep_file");
    mx_saved_programs *s = NULL;
    if (!*path)
        return mx_programs_plan(&r->programs, &r->model, &r->request);
    double began = mx_clock_now();
    MX_TRY(check_saved(r));
    MX_TRY(mx_saved_programs_open(&s, path));
    mx_status st = mx_status_wrap(take_saved(r, s), "compiled_trainstep_file: %s", path);
    if (!st)
        mx_progress_say(&r->report.progress,
                        "programs: read from %s in %.3f s, nothing compiled; compiling took %.3f s",
                        path, mx_clock_now() - began, mx_saved_programs_seconds(s));
    mx_saved_programs_free(s);
    return st;
}

mx_status mx_run_programs_open(mx_run *r)
{
    MX_TRY(check_quantization(r));
    MX_TRY(open_session(r));
    MX_TRY(make_programs(r));
    say_quantization(r);
    /* Together: no rank allocates while another still asks what is free. */
    MX_TRY(mx_comm_agree(r->ranks.comm, check_memory(r)));
    if (r->programs.pipelined)
        r->programs.stages = find_stages(r);
    MX_TRY(mx_programs_open(&r->programs, r->session));
    MX_TRY(count_flops(r));
    mx_dtype compute = r->request.options.compile.compute;
    r->report.measures_peak = mx_session_traits(r->session)->chip.flops_per_second[compute] <= 0;
    mx_run_measure_peak(r);
    return MX_OK;
}

double mx_run_planned_bytes(const mx_run *r)
{
    bool here = r->saving.snapshots && r->plan.traits->host_memory;
    return r->plan.total + (here ? r->plan.snapshot : 0);
}

/* plan.txt: every class of memory in bytes, and what a step computes. */
mx_status mx_run_write_plan(const mx_run *r)
{
    const mx_plan *p = &r->plan;
    const struct {
        const char *name;
        double bytes;
        const char *note;
    } rows[] = {{"weights", p->variables[MX_VAR_WEIGHT], ""},
                {"optimizer", p->variables[MX_VAR_OPTIMIZER] - p->on_host, ""},
                {"gradients", p->variables[MX_VAR_GRADIENT], ""},
                {"copies", p->variables[MX_VAR_COPY], ""},
                {"inputs", p->inputs, ""},
                {"activations", p->activations, ""},
                {"work space", p->workspace, ""},
                {"beside", p->beside, "  (other models and caches)"},
                {"snapshot", r->saving.snapshots ? p->snapshot : 0, "  (in host memory)"},
                {"in host memory", p->on_host, "  (of the optimizer, not in the total)"},
                {"in host memory", p->offloaded, "  (of activations, not in the total)"}};
    mx_str text = {0};
    char path[4096], buf[32];
    mx_batch_plan_print(&r->request.batch, &text);
    mx_str_addf(&text, "\n\n%-14s %14s\n", "memory", "bytes");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].bytes > 0)
            mx_str_addf(&text, "%-14s %14.0f%s\n", rows[i].name, rows[i].bytes, rows[i].note);
    double total = mx_run_planned_bytes(r);
    mx_str_addf(&text, "%-14s %14.0f  (%s)\n\n%.4g GFLOP a step, %d threads\n", "total", total,
                mx_format_bytes(buf, sizeof buf, total), r->report.flops_per_step / 1e9,
                mx_session_threads(r->session));
    snprintf(path, sizeof path, "%.4000s/plan.txt", r->folder);
    mx_status st = mx_io_write_file(NULL, path, text.text, text.len);
    mx_str_fini(&text);
    return st;
}

static void say_batch(mx_run *r)
{
    mx_str line = {0};
    mx_batch_plan_print(&r->request.batch, &line);
    mx_progress_say(&r->report.progress, "batch: %s", mx_str_text(&line));
    mx_str_fini(&line);
    if (r->batch.ramp.n_stages)
        mx_progress_say(&r->report.progress,
                        "batch: from %lld sequences, in %lld stages over the first %lld steps",
                        (long long)(r->batch.ramp.start * r->batch.ramp.per_sequence),
                        (long long)r->batch.ramp.n_stages,
                        (long long)mx_ramp_steps(&r->batch.ramp));
}

static void say_host_memory(mx_run *r)
{
    char buf[32];
    const char *offload = r->request.options.compile.remat.offload;
    if (r->plan.on_host > 0)
        mx_progress_say(&r->report.progress,
                        "memory: %s of host memory for the optimizer, beside that",
                        mx_format_bytes(buf, sizeof buf, r->plan.on_host));
    else if (mx_config_bool(r->c, "optimizer_memory_host_offload"))
        mx_progress_say(&r->report.progress,
                        "note: optimizer_memory_host_offload=true changes nothing "
                        "on the CPU: its memory is host memory");
    if (r->plan.offloaded > 0)
        mx_progress_say(&r->report.progress,
                        "memory: %s of host memory for activations, beside that",
                        mx_format_bytes(buf, sizeof buf, r->plan.offloaded));
    else if (offload && *offload)
        mx_progress_say(&r->report.progress, "note: no activation is moved to host memory: %s",
                        r->plan.traits->host_memory
                            ? "the memory of the CPU is host memory"
                            : "the model has one layer, whose activations are needed at once");
}

void mx_run_say_plan(mx_run *r)
{
    char buf[32], part[32];
    int threads = mx_session_threads(r->session);
    mx_progress_say(&r->report.progress, "model: %s, %s parameters", r->model.family->name,
                    mx_format_count(buf, sizeof buf, r->plan.parameters));
    say_batch(r);
    mx_progress_say(&r->report.progress,
                    "memory: %s planned, of which activations %s; %.2f GFLOP a step; %d thread%s",
                    mx_format_bytes(buf, sizeof buf, mx_run_planned_bytes(r)),
                    mx_format_bytes(part, sizeof part, r->plan.activations + r->plan.workspace),
                    r->report.flops_per_step / 1e9, threads, threads == 1 ? "" : "s");
    say_host_memory(r);
    say_without_choice(r, "deterministic=false", !mx_config_bool(r->c, "deterministic"));
    say_without_choice(r, "gemm_search=true", mx_config_bool(r->c, "gemm_search"));
    const mx_objective *o = r->goal.objective;
    if (o && o->rows != MX_ROWS_DOCUMENTS && mx_config_is_users(r->c, "packing") &&
        mx_config_bool(r->c, "packing"))
        mx_progress_say(&r->report.progress,
                        "note: packing=true has no effect: maxc %s has an answer a row", o->verb);
}

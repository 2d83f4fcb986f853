/* run_setup.c - a run from its configuration to the moment before its first step.
 *
 * Order: folder and lock; model; plan (programs, memory); state, from the first of these that
 * exists: the run's own newest whole checkpoint, load_full_state_path, load_parameters_path, fresh
 * weights; data, moved to where the state left off.
 */
#include "train/run.h"
#include "train/run_state.h"

#include "base/clock.h"
#include "models/from_config.h"
#include "ops/load.h"
#include "store/weights.h"
#include "train/run_config.h"
#include "train/step_config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>


static mx_status make_folders(mx_run *r)
{
    mx_status st = MX_OK;
    char *path = mx_arena_strdup(&r->arena, r->folder);
    for (char *p = path + 1; *p && !st; p++)
        if (*p == '/') {
            *p = 0;
            st = mx_io_make_dir(NULL, path);
            *p = '/';
        }
    return st ? st : mx_io_make_dir(NULL, path);
}

static mx_status open_model(mx_run *r)
{
    const char *from = mx_config_text(r->c, "load_parameters_path");
    const char *tokenizer = mx_config_text(r->c, "tokenizer_path");
    struct stat sb;
    bool folder = *tokenizer && stat(tokenizer, &sb) == 0 && S_ISDIR(sb.st_mode);
    r->like = folder ? tokenizer : *from ? from : NULL;
    if (!*from)
        return mx_model_from_config(&r->model, r->c);
    mx_hf_dir dir = {0};
    MX_TRY(mx_hf_dir_open(&dir, from, MX_HF_CONFIG_ONLY));
    mx_status st = mx_model_from_checkpoint(&r->model, r->c, dir.config,
                                            mx_arena_printf(&r->arena, "%s/config.json", from));
    mx_hf_dir_close(&dir);
    return st;
}

/* plan.txt: every class of memory in bytes, and what a step computes. */
static mx_status write_plan(const mx_run *r, const double *kind_bytes)
{
    static const char *const kinds[MX_VAR_KIND_COUNT] = {[MX_VAR_WEIGHT] = "weights",
                                                         [MX_VAR_OPTIMIZER] = "optimizer",
                                                         [MX_VAR_GRADIENT] = "gradients",
                                                         [MX_VAR_COPY] = "copies"};
    mx_str text = {0};
    char path[4096], buf[32];
    mx_batch_plan_print(&r->batch, &text);
    mx_str_addf(&text, "\n\n%-14s %14s\n", "memory", "bytes");
    for (int k = 0; k < MX_VAR_KIND_COUNT; k++)
        if (kind_bytes[k] > 0)
            mx_str_addf(&text, "%-14s %14.0f\n", kinds[k] ? kinds[k] : "state", kind_bytes[k]);
    mx_str_addf(&text, "%-14s %14.0f\n", "train step", (double)r->step.program.scratch_bytes);
    if (r->accumulates)
        mx_str_addf(&text, "%-14s %14.0f\n", "apply step", (double)r->apply.program.scratch_bytes);
    if (r->evaluates)
        mx_str_addf(&text, "%-14s %14.0f\n", "evaluation", (double)r->eval.program.scratch_bytes);
    if (mx_config_bool(r->c, "enable_checkpointing") && mx_config_bool(r->c, "async_checkpointing"))
        mx_str_addf(&text, "%-14s %14.0f\n", "snapshot", r->snapshot_bytes);
    if (r->hosted_bytes > 0)
        mx_str_addf(&text, "%-14s %14.0f  (of the optimizer, not in the total)\n", "in host memory",
                    r->hosted_bytes);
    if (r->step.program.host_bytes)
        mx_str_addf(&text, "%-14s %14.0f  (of activations, not in the total)\n", "in host memory",
                    (double)r->step.program.host_bytes);
    mx_str_addf(&text, "%-14s %14.0f  (%s)\n\n%.4g GFLOP a step, %d threads\n", "total",
                r->planned_bytes, mx_format_bytes(buf, sizeof buf, r->planned_bytes),
                r->flops_per_step / 1e9, mx_session_threads(r->session));
    snprintf(path, sizeof path, "%.4000s/plan.txt", r->folder);
    mx_status st = mx_io_write_file(NULL, path, text.text, text.len);
    mx_str_fini(&text);
    return st;
}

static mx_status say_plan(mx_run *r)
{
    const mx_plan_bytes *b = &r->step.program.bytes;
    mx_str line = {0};
    char buf[32];
    double total = (double)(r->step.program.scratch_bytes + r->apply.program.scratch_bytes +
                            r->eval.program.scratch_bytes);
    double weights = 0, kind[MX_VAR_KIND_COUNT] = {0};
    for (int i = 0; i < mx_session_count(r->session); i++) {
        const mx_var *v = mx_session_var(r->session, i);
        if (v->attr.kind == MX_VAR_WEIGHT)
            weights += (double)mx_type_count(&v->type);
        kind[v->attr.kind] += (double)mx_type_bytes(&v->type);
        if (v->attr.on_host && !mx_session_traits(r->session)->host_memory)
            r->hosted_bytes += (double)mx_type_bytes(&v->type);
        else
            total += (double)mx_type_bytes(&v->type);
    }
    r->snapshot_bytes = kind[MX_VAR_WEIGHT] + kind[MX_VAR_OPTIMIZER];
    bool copies = mx_config_bool(r->c, "enable_checkpointing") &&
                  mx_config_bool(r->c, "async_checkpointing") &&
                  mx_session_traits(r->session)->host_memory;
    r->planned_bytes = total + (copies ? r->snapshot_bytes : 0);
    mx_progress_say(&r->progress, "model: %s, %s parameters", r->model.family->name,
                    mx_format_count(buf, sizeof buf, weights));
    mx_batch_plan_print(&r->batch, &line);
    mx_progress_say(&r->progress, "batch: %s", mx_str_text(&line));
    if (r->ramp.n_stages)
        mx_progress_say(&r->progress,
                        "batch: from %lld sequences, in %lld stages over the first %lld steps",
                        (long long)(r->ramp.start * r->ramp.per_sequence),
                        (long long)r->ramp.n_stages, (long long)mx_ramp_steps(&r->ramp));
    mx_progress_say(&r->progress,
                    "memory: %s planned, of which activations %.0f MiB; %.2f GFLOP a step; "
                    "%d threads",
                    mx_format_bytes(buf, sizeof buf, r->planned_bytes),
                    (b->activations + b->workspace) / (1 << 20), r->flops_per_step / 1e9,
                    mx_session_threads(r->session));
    if (r->hosted_bytes > 0)
        mx_progress_say(&r->progress, "memory: %s of host memory for the optimizer, beside that",
                        mx_format_bytes(buf, sizeof buf, r->hosted_bytes));
    else if (mx_config_bool(r->c, "optimizer_memory_host_offload"))
        mx_progress_say(&r->progress, "note: optimizer_memory_host_offload=true changes nothing "
                                      "on the CPU: its memory is host memory");
    if (r->step.program.host_bytes)
        mx_progress_say(&r->progress, "memory: %s of host memory for activations, beside that",
                        mx_format_bytes(buf, sizeof buf, (double)r->step.program.host_bytes));
    else if (r->options.compile.remat.offload && *r->options.compile.remat.offload)
        mx_progress_say(&r->progress, "note: no activation is moved to host memory: %s",
                        mx_session_traits(r->session)->host_memory
                            ? "the memory of the CPU is host memory"
                            : "the model has one layer, whose activations are needed at once");
    mx_str_fini(&line);
    return r->leads ? write_plan(r, kind) : MX_OK;
}

static mx_status build_steps(mx_run *r)
{
    r->accumulates = r->batch.accumulation > 1 || r->comm->size > 1;
    MX_TRY(mx_step_configure(&r->options, r->c, &r->model,
                             r->accumulates ? MX_STEP_ACCUMULATE : MX_STEP_TRAIN,
                             r->batch.microbatch, &r->arena));
    MX_TRY(mx_session_open(&r->session, mx_config_text(r->c, "device"),
                           (int)mx_config_int(r->c, "num_threads")));
    if (!mx_config_bool(r->c, "deterministic"))
        mx_session_allow_any_order(r->session);
    if (mx_config_bool(r->c, "gemm_search"))
        mx_session_search(r->session);
    r->options.compile.n_threads = mx_session_threads(r->session);
    MX_TRY(mx_step_open(&r->step, r->session, &r->model, &r->options));
    if (r->accumulates) {
        mx_step_options o = r->options;
        o.kind = MX_STEP_APPLY;
        MX_TRY(mx_step_open(&r->apply, r->session, &r->model, &o));
    }
    r->evaluates = r->rules.eval_interval > 0;
    double eval_batch = mx_config_float(r->c, "eval_per_device_batch_size");
    r->eval_batch = eval_batch >= 1 ? (int64_t)eval_batch : r->batch.microbatch;
    if (r->evaluates) {
        mx_step_options o = r->options;
        o.kind = MX_STEP_LOSS;
        o.shape.batch = r->eval_batch;
        MX_TRY(mx_step_open(&r->eval, r->session, &r->model, &o));
    }
    r->flops_per_step = r->step.program.bytes.flops * (double)r->batch.accumulation;
    mx_dtype compute = r->options.compile.compute;
    r->measures_peak = mx_session_traits(r->session)->chip.flops_per_second[compute] <= 0;
    mx_run_measure_peak(r);
    return MX_OK;
}

static mx_status find_newest(mx_run *r, const char **path)
{
    mx_str notes = {0};
    mx_ckpt_entry e = {0};
    const char *root = mx_arena_printf(&r->arena, "%s/checkpoints", r->folder);
    mx_status st = mx_ckpt_newest(root, MX_CHECK_HASHES, mx_session_threads(r->session), &r->arena,
                                  &e, &notes);
    if (notes.len)
        mx_progress_say(&r->progress, "%s", mx_str_text(&notes));
    mx_str_fini(&notes);
    *path = e.path;
    return st;
}

/* Rank 0 looks; the others would see the same, unless somebody is at work in the folder. */
mx_status mx_run_newest(mx_run *r, const char **path)
{
    *path = NULL;
    MX_TRY(mx_comm_agree(r->comm, r->leads ? find_newest(r, path) : MX_OK));
    return mx_run_share_text(r, path);
}

static mx_status load_parameters(mx_run *r, const char *path)
{
    mx_hf_dir dir = {0};
    MX_TRY(mx_hf_dir_open(&dir, path, MX_HF_ALL));
    mx_str notes = {0};
    double began = mx_clock_now();
    mx_status st = mx_weights_load(r->session, &r->model, &dir, (mx_load_options){.notes = &notes});
    r->read_seconds = mx_clock_now() - began;
    r->read_bytes = (double)dir.total_bytes;
    if (notes.len)
        mx_progress_say(&r->progress, "%.*s", (int)notes.len - 1, mx_str_text(&notes));
    mx_str_fini(&notes);
    mx_hf_dir_close(&dir);
    if (!st)
        mx_progress_say(&r->progress, "weights: from %s", path);
    return st;
}

static mx_status restore(mx_run *r)
{
    const char *own = NULL;
    if (mx_config_bool(r->c, "enable_checkpointing")) {
        const char *kept;
        MX_TRY(mx_run_newest(r, &own));
        int64_t step = own ? strtoll(strrchr(own, '/') + 1, NULL, 10) : -1;
        MX_TRY(mx_run_refuge_newest(r, step, &kept));
        r->own_step = kept ? -1 : step;
        own = kept ? kept : own;
    }
    const char *full = own ? own : mx_config_text(r->c, "load_full_state_path");
    const char *weights = mx_config_text(r->c, "load_parameters_path");
    if (*full) {
        MX_TRY(mx_state_restore(full, r->session, &r->model, &r->at));
        mx_progress_say(&r->progress, "resuming: step %lld, from %s", (long long)r->at.step, full);
        if (r->at.threads && r->at.threads != mx_session_threads(r->session))
            mx_progress_say(&r->progress,
                            "note: the run used %d threads before and uses %d now; it goes "
                            "on, but not bit for bit",
                            r->at.threads, mx_session_threads(r->session));
        if (r->at.ranks != r->comm->size)
            mx_progress_say(&r->progress,
                            "note: the run used %d ranks before and uses %d now; it goes on, but "
                            "not bit for bit",
                            r->at.ranks, r->comm->size);
    } else if (*weights) {
        MX_TRY(load_parameters(r, weights));
    }
    r->at.threads = mx_session_threads(r->session);
    r->at.ranks = r->comm->size;
    if (*full || *weights) {
        MX_TRY(mx_carried_open(&r->carried, *full ? full : weights, &r->model, r->session));
        r->at.carried = &r->carried;
    }
    return mx_session_init(r->session, (uint64_t)mx_config_int(r->c, "init_weights_seed"));
}

/* Weights that are not trained do not change: their part of the norm is computed once. */
static mx_status measure_frozen(mx_run *r)
{
    for (int i = 0; i < mx_session_count(r->session); i++) {
        const mx_var *v = mx_session_var(r->session, i);
        if (v->attr.kind != MX_VAR_WEIGHT || !v->attr.frozen)
            continue;
        void *host = NULL;
        MX_TRY(mx_alloc(&host, mx_type_bytes(&v->type), v->name));
        mx_status st = mx_var_read(r->session, v, host);
        mx_tensor t = {host, v->type};
        for (int64_t k = 0; !st && k < mx_type_count(&v->type); k++)
            r->frozen_squares += mx_load_f64(&t, k) * mx_load_f64(&t, k);
        mx_free(host);
        MX_TRY(st);
    }
    return MX_OK;
}

mx_status mx_run_open_data(mx_run *r, mx_train_data *d, int64_t rows, bool evaluation)
{
    mx_train_data_request q = {.config = r->c, .model_dir = r->like,
                               .vocab = r->model.summary.vocab, .rows = rows,
                               .rank = r->comm->rank, .n_ranks = r->comm->size,
                               .evaluation = evaluation, .model = &r->model,
                               .images_per_row = r->options.shape.images_per_row};
    if (r->ramp.n_stages && !evaluation) {
        q.rows = mx_ramp_unit(&r->ramp);
        q.pieces = (int)(rows / q.rows);
    }
    return mx_train_data_open_as(d, &q);
}

static mx_status open_data(mx_run *r)
{
    MX_TRY(mx_run_open_data(r, &r->data, r->batch.global_sequences, false));
    if (r->at.loader)
        MX_TRY(mx_loader_seek(r->data.loader, r->at.loader, r->at.loader_bytes));
    if (r->evaluates)
        MX_TRY(mx_run_open_data(r, &r->eval_data, r->eval_batch * r->comm->size, true));
    if (r->options.shape.images_per_row) {
        int64_t rows = r->eval_batch > r->batch.microbatch ? r->eval_batch : r->batch.microbatch;
        int64_t images = rows * r->options.shape.images_per_row;
        size_t floats = (size_t)(images * mx_image_floats(&r->data.images.processor.spec));
        MX_TRY(mx_alloc((void **)&r->pixels, sizeof(float) * floats, "the images of a batch"));
        size_t tokens = (size_t)(rows * r->options.shape.seq);
        MX_TRY(mx_alloc((void **)&r->places, 3 * sizeof(int32_t) * tokens, "places of tokens"));
    }
    return MX_OK;
}

static mx_status open_checkpoints(mx_run *r)
{
    if (!mx_config_bool(r->c, "enable_checkpointing"))
        return MX_OK;
    int64_t keep = mx_config_int(r->c, "max_num_checkpoints_to_keep");
    int64_t every = mx_config_int(r->c, "keep_checkpoint_every");
    mx_ckpt_opts o = {
        .run_dir = r->folder,
        .run_id = mx_config_text(r->c, "run_name"),
        .retention = {.keep_last = keep > 0 ? (int)keep : 0,
                      .keep_every = every > 0 ? every : 0,
                      .keep_best = (int)mx_config_int(r->c, "keep_best_checkpoints")},
        .max_shard_bytes =
            (uint64_t)mx_config_int(r->c, "checkpoint_storage_target_data_file_size_bytes"),
        .synchronous = !mx_config_bool(r->c, "async_checkpointing"),
    };
    if (r->comm->size > 1)
        MX_TRY(mx_comm_split_off(r->comm, &r->writers));
    o.comm = r->writers;
    MX_TRY(mx_ckpt_new(&r->ckpt, &o));
    return mx_state_reserve(r->ckpt, r->session, &r->model, &r->at, r->like);
}

mx_status mx_run_open_metrics(mx_run *r)
{
    const char *copy = mx_config_text(r->c, "metrics_file");
    if (!r->leads)
        return MX_OK;
    return mx_metrics_open(
        &r->metrics, r->folder,
        &(mx_metrics_options){.tensorboard = mx_config_bool(r->c, "enable_tensorboard"),
                              .copy = *copy ? copy : NULL,
                              .start_step = r->at.step + 1});
}

static void read_rules(mx_run *r)
{
    const mx_config *c = r->c;
    r->rules = (mx_run_rules){
        .checkpoint_period = mx_config_int(c, "checkpoint_period"),
        .eval_interval = mx_config_int(c, "eval_interval"),
        .eval_start_step = mx_config_int(c, "eval_start_step"),
        .eval_steps = mx_config_int(c, "eval_steps"),
        .rollback_after_skips = mx_config_int(c, "rollback_after_skips"),
        .max_checkpoint_failures = mx_config_int(c, "max_checkpoint_failures"),
        .abort_on_nan_loss = mx_config_bool(c, "abort_on_nan_loss"),
        .abort_on_inf_loss = mx_config_bool(c, "abort_on_inf_loss"),
        .save_on_start = mx_config_bool(c, "save_checkpoint_on_start"),
        .save_on_completion = mx_config_bool(c, "save_checkpoint_on_completion"),
        .save_on_signal = mx_config_bool(c, "enable_autocheckpoint"),
        .save_always = mx_config_bool(c, "enable_continuous_checkpointing"),
        .target_eval_loss = mx_config_float(c, "target_eval_loss"),
        .step_timeout = mx_config_float(c, "step_timeout_seconds"),
    };
}

/* Configurations of other programs are welcome, but nobody shall think that a key worked. */
static void say_unused(mx_run *r)
{
    mx_str names = {0};
    const char *const *files;
    (void)mx_config_text(r->c, "model_name"); /* these two had their effect: on other keys */
    (void)mx_config_list(r->c, "base_config", &files);
    if (mx_config_unused(r->c, &names))
        mx_progress_say(&r->progress, "note: these keys are set and have no effect on this run: %s",
                        mx_str_text(&names));
    mx_str_fini(&names);
}

/* The folder, locked, with the configuration in it. */
static mx_status open_folder(mx_run *r, const char *command_line)
{
    MX_TRY(make_folders(r));
    MX_TRY(mx_run_lock_take(&r->lock, r->folder));
    MX_TRY(mx_run_check_crashes(r));
    mx_run_log_open(r);
    mx_str report = {0};
    mx_status st = mx_run_config_compare(r->c, r->folder, &report);
    if (report.len)
        mx_progress_say(&r->progress, "%s", mx_str_text(&report));
    mx_str_fini(&report);
    MX_TRY(st);
    return mx_run_config_save(r->c, r->folder, command_line, NULL);
}

static void start_progress(mx_run *r)
{
    mx_progress_init(&r->progress,
                     &(mx_progress_options){.fd = 1,
                                            .interval_s = 0.1,
                                            .plain_every = 10,
                                            .mode = r->leads ? MX_PROGRESS_AUTO : MX_PROGRESS_OFF});
}

mx_status mx_run_open(mx_run *r, const mx_config *c, const char *command_line)
{
    *r = (mx_run){.c = c,
                  .last_eval = NAN,
                  .rolled_to = -1,
                  .own_step = -1,
                  .refuge_step = -1,
                  .opened = mx_run_now(),
                  .start_rss_bytes = mx_run_rss_bytes()};
    r->folder = mx_run_folder(c, &r->arena);
    MX_TRY(mx_run_ranks_open(r));
    start_progress(r);
    read_rules(r);
    MX_TRY(open_model(r));
    MX_TRY(mx_batch_plan_make(&r->batch, c, r->comm->size, r->comm->size));
    MX_TRY(mx_ramp_make(&r->ramp, c, &r->batch));
    MX_TRY(build_steps(r));
    r->compiled = mx_run_now();
    mx_str text = {0};
    mx_run_config_text(c, &text);
    r->config_text = mx_arena_strdup(&r->arena, mx_str_text(&text));
    mx_str_fini(&text);
    MX_TRY(mx_run_ranks_check(r));
    MX_TRY(mx_comm_agree(r->comm, r->leads ? open_folder(r, command_line) : MX_OK));
    if (!r->leads)
        mx_run_log_open(r);
    MX_TRY(mx_run_refuge_open(r));
    r->schedule = mx_schedule_make(c);
    r->steps = mx_schedule_run_steps(c);
    if (mx_config_bool(c, "skip_step_on_spikes")) {
        mx_spikes_init(&r->spikes, &r->arena, mx_config_int(c, "skip_step_interval"),
                       mx_config_float(c, "skip_step_scaling_factor"));
        r->at.spikes = &r->spikes;
    }
    MX_TRY(say_plan(r));
    MX_TRY(restore(r));
    MX_TRY(measure_frozen(r));
    MX_TRY(open_data(r));
    MX_TRY(mx_run_flights_open(r));
    MX_TRY(mx_run_stage_open(r));
    MX_TRY(open_checkpoints(r));
    MX_TRY(mx_run_watch_open(r));
    MX_TRY(mx_run_profile_open(r));
    MX_TRY(mx_run_open_metrics(r));
    say_unused(r);
    return MX_OK;
}

void mx_run_close(mx_run *r)
{
    mx_ckpt_free(r->ckpt);
    mx_status_free(mx_metrics_close(r->metrics));
    mx_progress_fini(&r->progress);
    mx_train_data_close(&r->data);
    mx_train_data_close(&r->eval_data);
    mx_run_flights_close(r);
    mx_free(r->pixels);
    mx_free(r->places);
    mx_carried_close(&r->carried);
    mx_run_stage_close(r);
    mx_session_close(r->session);
    mx_step_close(&r->step);
    mx_step_close(&r->apply);
    mx_step_close(&r->eval);
    mx_model_spec_fini(&r->model);
    mx_run_lock_release(&r->lock);
    mx_comm_close(r->writers);
    mx_comm_close(r->comm);
    mx_free(r->at.loader);
    mx_arena_fini(&r->arena);
}

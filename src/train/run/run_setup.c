/* run_setup.c - a run from its configuration to the moment before its first step.
 *
 * Order: tokenizer and model; folder and lock; data, to the first batch; plan (programs, memory);
 * state, from the first of these that exists: the run's own newest whole checkpoint,
 * load_full_state_path, load_parameters_path, fresh weights; the data's place in it. Only then is
 * the start accepted and written down (run_folder.c).
 */
#include "train/run/run.h"
#include "train/run/run_state.h"

#include "base/clock.h"
#include "ir/placement.h"
#include "ops/load.h"
#include "store/adapter.h"
#include "store/digest.h"
#include "store/quant_encode.h"
#include "store/weights.h"
#include "train/input/data_size.h"
#include "exec/model_ref.h"
#include "train/run/run_config.h"
#include "exec/step_config.h"
#include "train/input/tokenizer_path.h"
#include "train/input/train_sets.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mx_status open_own_model(mx_run *r)
{
    MX_TRY(mx_vocab_from_tokenizer(r->c));
    const char *from = mx_config_text(r->c, "load_parameters_path");
    if (*from)
        MX_TRY(mx_model_place(from, MX_FETCH_MODEL, r->c, &r->arena, &r->weights_dir));
    return mx_model_open(&r->model, r->c, r->weights_dir);
}

/* Virtual ranks one after the other: building a model notes which keys are asked for, and they
 * have one configuration (mx_config_unasked). */
static mx_status open_model(mx_run *r)
{
    if (!r->mesh_rank)
        return open_own_model(r);
    for (int k = 0; k < r->ranks.comm->size; k++)
        MX_TRY(mx_comm_agree(r->ranks.comm, k == r->ranks.comm->rank ? open_own_model(r) : MX_OK));
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
        mx_progress_say(&r->report.progress, "%s", mx_str_text(&notes));
    mx_str_fini(&notes);
    *path = e.path;
    return st;
}

/* Rank 0 looks for all: while another process changes the folder, ranks could see different
 * things. */
mx_status mx_run_newest(mx_run *r, const char **path)
{
    *path = NULL;
    MX_TRY(mx_comm_agree(r->ranks.comm, r->ranks.leads ? find_newest(r, path) : MX_OK));
    return mx_comm_share_path(r->ranks.comm, &r->arena, path);
}

/* The tensors' names and shapes, and the first numbers of some of them. */
static mx_status sample_weights(const mx_hf_dir *dir, uint64_t *hash)
{
    enum { SAMPLED = 64, NUMBERS = 64, WIDEST = 16 };
    char first[NUMBERS * WIDEST];
    int64_t every = dir->n_tensors / SAMPLED + 1;
    mx_status st = MX_OK;
    mx_digest_state *d = mx_digest_start();
    for (int64_t i = 0; i < dir->n_tensors && !st; i++) {
        const mx_st_tensor *t = dir->tensors[i];
        int64_t n = i % every ? 0 : t->n < NUMBERS ? t->n : NUMBERS;
        memset(first, 0, sizeof first);
        st = n ? mx_st_read(t, 0, n, t->dtype, first, NULL) : MX_OK;
        mx_digest_add(d, t->name, strlen(t->name));
        mx_digest_add(d, t->dim, sizeof *t->dim * (size_t)t->ndim);
        mx_digest_add(d, first, sizeof first);
    }
    *hash = mx_digest_end(d).lo;
    return st;
}

/* Ranks may read folders of their own machines. */
static mx_status check_same_weights(mx_run *r, const mx_hf_dir *dir)
{
    uint64_t mine, *all = MX_NEW_N(&r->arena, uint64_t, r->ranks.comm->size);
    if (r->ranks.comm->size == 1 || (r->mesh_rank && r->mesh_rank->world))
        return MX_OK;
    MX_TRY(sample_weights(dir, &mine));
    MX_TRY(mx_comm_gather(r->ranks.comm, &mine, sizeof mine, all));
    for (int k = 1; k < r->ranks.comm->size; k++)
        if (all[k] != all[0])
            return mx_fail(MX_USAGE, "rank %d has other weights in %s than rank 0; give all ranks "
                           "the same folder (load_parameters_path)", k, dir->path);
    return MX_OK;
}

static mx_status read_weights(mx_run *r, mx_hf_dir *dir, mx_str *notes)
{
    MX_TRY(check_same_weights(r, dir));
    return mx_weights_load(r->session, &r->model, dir, (mx_load_options){.notes = notes});
}

static mx_status load_parameters(mx_run *r, const char *path)
{
    mx_hf_dir dir = {0};
    MX_TRY(mx_hf_dir_open(&dir, path, MX_HF_ALL));
    mx_str notes = {0};
    double began = mx_clock_now();
    mx_status st = read_weights(r, &dir, &notes);
    r->watch.read_seconds = mx_clock_now() - began;
    r->watch.read_bytes = (double)dir.total_bytes;
    if (notes.len)
        mx_progress_say(&r->report.progress, "%.*s", (int)notes.len - 1, mx_str_text(&notes));
    mx_str_fini(&notes);
    mx_hf_dir_close(&dir);
    if (!st)
        mx_progress_say(&r->report.progress, "weights: from %s", path);
    return st;
}

/* The model that adapters are for, and, at the beginning, the adapter to start from. */
static mx_status load_base(mx_run *r, bool resumes)
{
    const char *from = mx_config_text(r->c, "lora.lora_restore_path");
    if (!r->weights_dir)
        return mx_fail(MX_USAGE, "adapters are for a model that is there already; set "
                       "load_parameters_path");
    MX_TRY(load_parameters(r, r->weights_dir));
    if (*from && !resumes) {
        mx_adapter a;
        MX_TRY(mx_adapter_open(&a, from));
        mx_status st = mx_adapter_check_tied(r->session, &a);
        if (!st)
            st = mx_adapter_load(r->session, &a.dir);
        mx_adapter_close(&a);
        MX_TRY(st);
        mx_progress_say(&r->report.progress, "adapter: from %s", from);
    }
    return resumes ? MX_OK : mx_adapter_begin(r->session, r->mesh_rank ? r->ranks.comm : NULL);
}

static mx_status restore(mx_run *r)
{
    const char *own = NULL;
    if (mx_config_bool(r->c, "enable_checkpointing")) {
        const char *kept;
        mx_progress_doing(&r->report.progress, "checking the newest checkpoint");
        MX_TRY(mx_run_newest(r, &own));
        int64_t step = own ? strtoll(strrchr(own, '/') + 1, NULL, 10) : -1;
        MX_TRY(mx_run_local_checkpoint_newest(r, step, &kept));
        r->saving.own_step = kept ? -1 : step;
        own = kept ? kept : own;
    }
    const char *full = own ? own : mx_config_text(r->c, "load_full_state_path");
    const char *weights = r->weights_dir ? r->weights_dir : "";
    if (r->at.lora)
        MX_TRY(load_base(r, *full != 0));
    mx_progress_phase(&r->report.progress,
                      *full || *weights ? "loading %s" : "making the first weights",
                      *full ? full : weights);
    if (*full) {
        MX_TRY(mx_state_restore(full, r->session, &r->model, &r->at));
        mx_progress_say(&r->report.progress, "resuming: step %lld, from %s", (long long)r->at.step,
                        full);
        if (r->at.threads && r->at.threads != mx_session_threads(r->session))
            mx_progress_say(&r->report.progress,
                            "note: the run used %d threads before and uses %d now; it goes "
                            "on, but not bit for bit",
                            r->at.threads, mx_session_threads(r->session));
        if (r->at.ranks != r->ranks.comm->size)
            mx_progress_say(&r->report.progress,
                            "note: the run used %d ranks before and uses %d now; it goes on, but "
                            "not bit for bit",
                            r->at.ranks, r->ranks.comm->size);
    } else if (*weights && !r->at.lora) {
        MX_TRY(load_parameters(r, weights));
    }
    r->at.threads = mx_session_threads(r->session);
    r->at.ranks = r->ranks.comm->size;
    if ((*full || *weights) && !r->at.lora) {
        MX_TRY(mx_passthrough_open(&r->saving.passthrough, *full ? full : weights, &r->model,
                                   r->session));
        r->at.passthrough = &r->saving.passthrough;
    }
    return mx_session_init(r->session, (uint64_t)mx_config_int(r->c, "init_weights_seed"));
}

static double squares_of(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += (double)x[k] * x[k];
    return sum;
}

static mx_status add_squares(mx_session *s, mx_var *v, double *sum)
{
    enum { RUN = 4096 };
    int64_t n = mx_type_count(&v->type) * (v->attr.quantized && v->type.dtype == MX_U8 ? 2 : 1);
    size_t stored = mx_type_bytes(&v->type), wide = (size_t)n * sizeof(float);
    void *host = NULL;
    MX_TRY(mx_alloc(&host, stored > wide ? stored : wide, v->name));
    mx_tensor t = {host, v->type};
    mx_status st = v->attr.quantized ? mx_quantized_read(s, v, host) : mx_var_read(s, v, host);
    for (int64_t k = 0; !st && k < n; k += RUN) {
        float run[RUN], *x = (float *)host + k;
        int64_t some = n - k < RUN ? n - k : RUN;
        if (!v->attr.quantized)
            mx_load_run_f32(&t, k, some, x = run);
        *sum += squares_of(x, some);
    }
    mx_free(host);
    return st;
}

/* Weights that are not trained do not change: their part of the norm is computed once. Those that a
 * step adds to have none, so that it is the same wherever a run goes on. */
static mx_status measure_frozen(mx_run *r)
{
    r->loop.frozen_squares = 0;
    for (int i = 0; i < mx_session_count(r->session); i++) {
        mx_var *v = mx_session_var(r->session, i);
        bool fixed = v->attr.kind == MX_VAR_WEIGHT && v->attr.frozen && !v->attr.stepped;
        if (fixed && (!v->box || v->box->first))
            MX_TRY(add_squares(r->session, v, &r->loop.frozen_squares));
    }
    return r->mesh_rank ? mx_comm_sum_f64(r->ranks.comm, &r->loop.frozen_squares, 1) : MX_OK;
}

mx_status mx_run_open_data(mx_run *r, mx_train_data *d, int64_t rows, bool evaluation)
{
    mx_train_data_request q = {.config = r->c, .model_dir = r->weights_dir,
                               .vocab = r->model.summary.vocab, .rows = rows,
                               .rank = r->ranks.data_rank, .n_ranks = r->ranks.data_ranks,
                               .evaluation = evaluation, .model = &r->model,
                               .look = r->ranks.leads && !evaluation,
                               .images_per_row = r->request.options.shape.images_per_row};
    mx_objective_request(r->goal.objective, r->c, &q);
    if (r->batch.ramp.n_stages && !evaluation) {
        q.rows = mx_ramp_unit(&r->batch.ramp);
        q.pieces = (int)(rows / q.rows);
    }
    return mx_train_data_open(d, &q);
}

/* How long the data lasts, and how much of it is not used. */
static void say_data(mx_run *r)
{
    const mx_data_sample *samples = mx_loader_samples(r->data.loader);
    int n = r->data.n_sets;
    double *weights = MX_NEW_N(&r->arena, double, n);
    for (int k = 0; k < n; k++)
        weights[k] = r->data.sets[k].weight > 0 ? r->data.sets[k].weight : 1;
    mx_data_size_request q = {.samples = samples, .weights = weights, .n = samples ? n : 0,
                              .rows = r->request.batch.global_sequences,
                              .length = r->request.batch.length, .steps = r->steps,
                              .epochs = r->data.sets[0].n_epochs};
    mx_str text = {0};
    mx_data_size_print(&q, &text);
    const char *made = mx_data_made_name(r->data.sets[0].kind);
    if (text.len)
        mx_progress_say(&r->report.progress, "%.*s", (int)text.len - 1, text.text);
    else if (made)
        mx_progress_say(&r->report.progress, "data: %s%s", made,
                        *mx_config_text(r->c, "dataset_type")
                            ? ""
                            : "; dataset_path=FILE is text of your own");
    mx_str_fini(&text);
}

/* Notes on a tokenizer that is named, not needed and not there; and on bytes that are used by
 * default in the vocabulary of a model that has another tokenizer. */
static void say_tokenizer(mx_run *r)
{
    const mx_train_data *d = &r->data;
    if (d->only_ids && !d->keeps_tokenizer && mx_config_is_users(r->c, "tokenizer_path"))
        mx_progress_say(&r->report.progress,
                        "note: tokenizer_path=%s is not there; random tokens need no tokenizer, "
                        "and the checkpoints will have none",
                        mx_config_text(r->c, "tokenizer_path"));
    int64_t vocab = r->model.summary.vocab;
    bool asked = *mx_config_text(r->c, "tokenizer_path") || mx_config_is_users(r->c, "vocab_size");
    if (d->only_ids || asked || strcmp(d->tokenizer_at, "byte") != 0 ||
        vocab <= mx_tokenizer_vocab_size(d->tokenizer))
        return;
    mx_progress_say(&r->report.progress,
                    "note: text is read as bytes, in a vocabulary of %lld: no tokenizer is named "
                    "(tokenizer_path)%s",
                    (long long)vocab, r->weights_dir ? " or lies beside the weights" : "");
}

/* Every rank reads files of its own machine. A place in the data says what they are called and how
 * long they are; that, and a sample of what is in them. */
static mx_status check_same_data(mx_run *r, mx_loader *l, const char *keys)
{
    mx_str place = {0};
    uint64_t mine, *all = MX_NEW_N(&r->arena, uint64_t, r->ranks.comm->size);
    if (r->ranks.comm->size == 1)
        return MX_OK;
    MX_TRY(mx_loader_sample(l, &mine));
    mx_loader_position(l, &place);
    mx_str_addf(&place, " %016llx", (unsigned long long)mine);
    mine = mx_digest_of(place.text, place.len).lo;
    mx_str_fini(&place);
    MX_TRY(mx_comm_gather(r->ranks.comm, &mine, sizeof mine, all));
    for (int k = 1; k < r->ranks.comm->size; k++)
        if (all[k] != all[0])
            return mx_fail(MX_USAGE,
                           "rank %d has other data than rank 0: names, sizes or contents of its "
                           "files, or its tokenizer, differ; give all ranks the same files (%s)",
                           k, keys);
    return MX_OK;
}

/* Tokenizer and data, to the first batch: whatever is wrong with them is reported before weights
 * are read. */
static mx_status open_data(mx_run *r)
{
    MX_TRY(mx_run_open_data(r, &r->data, r->request.batch.global_sequences, false));
    if (r->ranks.leads && r->data.loader) {
        say_data(r);
        say_tokenizer(r);
    }
    if (r->data.loader) {
        MX_TRY(mx_loader_ready(r->data.loader));
        MX_TRY(check_same_data(r, r->data.loader, "dataset_path, tokenizer_path"));
    }
    if (!r->request.eval_batch)
        return mx_eval_data_refuse(r->c);
    MX_TRY(mx_run_open_data(r, &r->eval_data, r->request.eval_batch * r->ranks.data_ranks, true));
    MX_TRY(mx_loader_ready(r->eval_data.loader));
    return check_same_data(r, r->eval_data.loader, "eval_dataset_path");
}

static mx_status room_for_images(mx_run *r)
{
    if (r->request.options.shape.images_per_row) {
        int64_t train = r->request.batch.microbatch, eval = r->request.eval_batch;
        int64_t rows = eval > train ? eval : train;
        int64_t images = rows * r->request.options.shape.images_per_row;
        size_t floats = (size_t)(images * mx_image_floats(&r->data.images.processor.spec));
        MX_TRY(
            mx_alloc((void **)&r->batch.pixels, sizeof(float) * floats, "the images of a batch"));
        size_t tokens = (size_t)(rows * r->request.options.shape.seq);
        MX_TRY(
            mx_alloc((void **)&r->batch.places, 3 * sizeof(int32_t) * tokens, "places of tokens"));
    }
    return MX_OK;
}

static mx_status read_files(mx_run *r)
{
    const mx_train_data *d = &r->data;
    mx_model_files_from from = {.tokenizer = d->keeps_tokenizer ? d->tokenizer : NULL,
                                .at = d->tokenizer_at, .chat = d->chat_text,
                                .pattern = mx_config_text(r->c, "tokenizer_pattern"),
                                .model = r->weights_dir};
    return mx_model_files_read(&r->saving.files, &from);
}

static mx_status open_checkpoints(mx_run *r)
{
    if (!mx_config_bool(r->c, "enable_checkpointing"))
        return MX_OK;
    MX_TRY(read_files(r));
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
        .synchronous = !r->saving.snapshots,
        .boxes = r->mesh_rank != NULL,
    };
    if (r->ranks.comm->size > 1)
        MX_TRY(mx_comm_split_off(r->ranks.comm, &r->ranks.writers));
    o.comm = r->ranks.writers;
    MX_TRY(mx_ckpt_new(&r->saving.ckpt, &o));
    return mx_state_reserve(r->saving.ckpt, r->session, &r->model, &r->at, &r->saving.files);
}

mx_status mx_run_open_metrics(mx_run *r)
{
    const char *copy = mx_config_text(r->c, "metrics_file");
    if (!r->ranks.leads)
        return MX_OK;
    return mx_metrics_open(
        &r->report.metrics, r->folder,
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
        .rollback_after_skips = mx_config_int(c, "rollback_after_skips"),
        .max_checkpoint_failures = mx_config_int(c, "max_checkpoint_failures"),
        .abort_on_nan_loss = mx_config_bool(c, "abort_on_nan_loss"),
        .abort_on_inf_loss = mx_config_bool(c, "abort_on_inf_loss"),
        .save_on_start = mx_config_bool(c, "save_checkpoint_on_start"),
        .save_on_completion = mx_config_bool(c, "save_checkpoint_on_completion"),
        .save_on_signal = mx_config_bool(c, "enable_autocheckpoint"),
        .save_always = mx_config_bool(c, "enable_continuous_checkpointing"),
        .step_timeout = mx_config_float(c, "step_timeout_seconds"),
    };
    if (r->rules.eval_interval <= 0) /* keys without effect are not read: they are named */
        return;
    r->rules.eval_start_step = mx_config_int(c, "eval_start_step");
    r->rules.eval_steps = mx_config_int(c, "eval_steps");
    r->rules.target_eval_loss = mx_config_float(c, "target_eval_loss");
}

/* Configurations of other programs are accepted; keys of theirs without effect are named. */
static void say_unused(mx_run *r)
{
    mx_str names = {0};
    if (mx_config_unused(r->c, NULL, NULL, &names))
        mx_progress_say(&r->report.progress,
                        "note: these keys are set and have no effect on this run: %s",
                        mx_str_text(&names));
    mx_str_fini(&names);
}

static void start_progress(mx_run *r)
{
    mx_progress_init(
        &r->report.progress,
        &(mx_progress_options){.fd = 1,
                               .interval_s = 0.1,
                               .plain_every = 10,
                               .plain_seconds = 30,
                               .mode = r->ranks.leads ? MX_PROGRESS_AUTO : MX_PROGRESS_OFF});
}

/* Who runs what, and where. The model is opened here, for it settles keys that nothing set
 * (vocab_size), and those are compared with the ones that the folder holds. */
static mx_status begin(mx_run *r, const mx_run_start *s, const mx_mesh_rank *mesh_rank)
{
    const mx_config *c = s->config;
    *r = (mx_run){.c = c,
                  .goal = {.objective = s->objective, .config = c},
                  .mesh_rank = mesh_rank,
                  .loop.last_eval = NAN,
                  .saving.rolled_to = -1,
                  .saving.own_step = -1,
                  .saving.local_step = -1,
                  .watch.opened = mx_run_now(),
                  .watch.start_rss_bytes = mx_run_rss_bytes()};
    r->folder = mx_run_folder(c, &r->arena);
    MX_TRY(mx_run_ranks_find(r));
    start_progress(r);
    if (s->note && *s->note)
        mx_progress_say(&r->report.progress, "%s", s->note);
    MX_TRY(mx_run_ranks_open(r));
    if (s->refused)
        return mx_comm_agree(r->ranks.comm, mx_fail(mx_status_code(s->refused), "%s",
                                                    mx_status_text(s->refused)));
    read_rules(r);
    bool trl = r->goal.objective && strcmp(mx_config_text(c, "semantics"), "trl") == 0;
    r->schedule = trl ? mx_schedule_make_open(c) : mx_schedule_make(c);
    r->steps = mx_schedule_run_steps(c);
    MX_TRY(open_model(r));
    mx_str text = {0};
    mx_run_config_text(c, &text);
    r->saving.config_text = mx_arena_strdup(&r->arena, mx_str_text(&text));
    mx_str_fini(&text);
    return MX_OK;
}

/* The data and the programs. */
static mx_status open_work(mx_run *r)
{
    if (r->mesh_rank)
        MX_TRY(mx_mesh_check(r->mesh_rank->mesh, r->c));
    mx_programs_ranks by = {r->ranks.comm->size, r->ranks.data_ranks,
                            r->mesh_rank ? &r->mesh_rank->how : NULL};
    MX_TRY(mx_programs_configure(&r->request, r->c, &r->model, by, &r->arena));
    MX_TRY(mx_run_objective_read(r));
    MX_TRY(mx_ramp_make(&r->batch.ramp, r->c, &r->request.batch));
    mx_progress_phase(&r->report.progress, "opening the data");
    MX_TRY(open_data(r));
    mx_progress_phase(&r->report.progress, "compiling");
    MX_TRY(mx_run_programs_open(r));
    r->watch.compiled = mx_run_now();
    MX_TRY(mx_run_ranks_check(r));
    mx_run_say_plan(r);
    return MX_OK;
}

/* Where the run stands, and the data with it. */
static mx_status open_state(mx_run *r)
{
    MX_TRY(mx_run_local_checkpoint_open(r));
    r->at.lora = r->request.options.lora;
    char *real = r->at.lora && r->weights_dir ? realpath(r->weights_dir, NULL) : NULL;
    r->at.base = real ? mx_arena_strdup(&r->arena, real) : "";
    free(real);
    if (mx_config_bool(r->c, "skip_step_on_spikes")) {
        mx_spikes_init(&r->loop.spikes, &r->arena, mx_config_int(r->c, "skip_step_interval"),
                       mx_config_float(r->c, "skip_step_scaling_factor"));
        r->at.spikes = &r->loop.spikes;
    }
    MX_TRY(restore(r));
    MX_TRY(measure_frozen(r));
    if (r->at.loader && r->data.loader)
        MX_TRY(mx_loader_seek(r->data.loader, r->at.loader, r->at.loader_bytes));
    return MX_OK;
}

mx_status mx_run_open(mx_run *r, const mx_run_start *s, const mx_mesh_rank *mesh_rank)
{
    const mx_config *c = s->config;
    MX_TRY(begin(r, s, mesh_rank));
    MX_TRY(mx_comm_agree(r->ranks.comm, r->ranks.leads ? mx_run_folder_open(r) : MX_OK));
    if (!r->ranks.leads && !r->mesh_rank)
        mx_run_log_open(r);
    MX_TRY(mx_run_check_finished(r));
    if (r->claim.finished)
        return MX_OK;
    MX_TRY(open_work(r));
    MX_TRY(open_state(r));
    MX_TRY(mx_run_objective_open(r));
    MX_TRY(room_for_images(r));
    MX_TRY(mx_run_inflight_open(r));
    MX_TRY(mx_run_batch_open(r));
    MX_TRY(open_checkpoints(r));
    MX_TRY(mx_run_watch_open(r));
    MX_TRY(mx_run_profile_open(r));
    MX_TRY(mx_run_open_metrics(r));
    MX_TRY(mx_comm_agree(r->ranks.comm,
                         r->ranks.leads ? mx_run_folder_accept(r, s->command_line) : MX_OK));
    if (mx_config_bool(c, "log_config"))
        mx_progress_say(&r->report.progress, "%s", r->saving.config_text);
    say_unused(r);
    return MX_OK;
}

void mx_run_close(mx_run *r)
{
    mx_ckpt_free(r->saving.ckpt);
    mx_status_free(mx_metrics_close(r->report.metrics));
    mx_progress_fini(&r->report.progress);
    if (r->goal.objective && r->goal.objective->measure_end)
        r->goal.objective->measure_end(&r->goal);
    if (r->goal.objective && r->goal.objective->close)
        r->goal.objective->close(&r->goal);
    mx_train_data_close(&r->data);
    mx_train_data_close(&r->eval_data);
    mx_run_inflight_close(r);
    mx_free(r->batch.pixels);
    mx_free(r->batch.places);
    mx_passthrough_close(&r->saving.passthrough);
    mx_model_files_close(&r->saving.files);
    mx_run_batch_close(r);
    mx_programs_close_pipelines(&r->programs);
    mx_session_close(r->session);
    mx_programs_close(&r->programs);
    mx_model_spec_fini(&r->model);
    mx_run_folder_leave(r); /* while it is locked */
    mx_run_lock_release(&r->claim.lock);
    mx_comm_close(r->ranks.writers);
    mx_comm_groups_free(r->ranks.groups);
    mx_comm_close(r->ranks.comm);
    mx_coord_close(r->ranks.coord);
    mx_free(r->at.loader);
    mx_arena_fini(&r->arena);
}

/* run_step.c - one step: started, and read when the next one is under way.
 *
 *     launch n      batch in, microbatches, update; its numbers are copied out after it
 *     launch n + 1
 *     settle n      the numbers are there: progress, metrics, decisions
 *
 * So an asynchronous device always has the next step queued while the host writes down the last
 * one. Whether a step is skipped is decided on the device, which also counts the skips
 * (optimizer.c), so nothing that step n + 1 is given depends on how step n went. Three things do
 * depend on it, and for them step n is settled first: the limits of skip_step_on_spikes, a skip
 * that would make the run go back (rollback_after_skips), and whatever looks at the whole state: a
 * save, an evaluation, the end (run_loop.c).
 *
 * A program may have further results to log: a root called "metric:NAME", a float32 scalar, is
 * logged as NAME, the mean over the step's microbatches. Nothing else has to know of it.
 */
#include "train/run/run_state.h"

#include "base/clock.h"
#include "base/signals.h"
#include "ir/placement.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char METRIC[] = MX_METRIC_ROOT;

/* Where a number is in a step's readback: first those of the microbatches (loss, lm_loss,
 * metric:...), then those of the update. */
enum { LOSS, LM_LOSS, N_FIXED };

static int each_at(const mx_run *r, int64_t microbatch, int k)
{
    return (int)microbatch * (N_FIXED + r->loop.n_extra) + k;
}

static int update_at(const mx_run *r, int k)
{
    return each_at(r, r->request.batch.accumulation, k);
}

enum { GRAD_NORM, PARAM_NORM, N_UPDATE };

mx_status mx_run_inflight_open(mx_run *r)
{
    const mx_graph *g =
        r->programs.pipelined ? &r->programs.pipeline.joint : &r->programs.step.graph;
    r->loop.extra = MX_NEW_N(&r->arena, const char *, g->n_roots + 1);
    for (int i = 0; i < g->n_roots; i++)
        if (g->root[i]->name && strncmp(g->root[i]->name, METRIC, sizeof METRIC - 1) == 0)
            r->loop.extra[r->loop.n_extra++] = mx_arena_strdup(&r->arena, g->root[i]->name);
    r->loop.has_lm_loss = mx_graph_find_root(g, "lm_loss") != NULL;
    for (int i = 0; i < 2; i++)
        MX_TRY(mx_readback_open(&r->loop.inflight[i].got, r->session, update_at(r, N_UPDATE)));
    r->loop.metric =
        MX_NEW_N(&r->arena, mx_metric, MX_RUN_METRICS + r->loop.n_extra + MX_HOST_METRICS);
    return MX_OK;
}

void mx_run_inflight_close(mx_run *r)
{
    for (int i = 0; i < 2; i++)
        mx_readback_close(&r->loop.inflight[i].got);
}

/* --- starting a step --- */

/* Images begin with their row: pieces do, and on a mesh all. Else they follow each other. */
static bool images_lie_by_row(const mx_run *r)
{
    return !r->data.images.processor.spec.size || r->request.options.shape.images_by_row;
}

/* The images of n rows, at most `most` a row. What is not used stays as it was: no token stands for
 * it. */
static void copy_images(mx_run *r, const mx_batch *b, int64_t row, int64_t n, int64_t most)
{
    const mx_image_spec *s = &r->data.images.processor.spec;
    size_t floats = (size_t)mx_image_floats(s);
    bool by_row = images_lie_by_row(r);
    for (int64_t i = 0; i < n; i++) {
        int64_t from = b->first_image[row + i], count = b->first_image[row + i + 1] - from;
        int64_t to = by_row ? i * most : from - b->first_image[row];
        if (!s->size)
            mx_pieces_clear(s, r->batch.pixels + (size_t)to * floats, most);
        if (count)
            memcpy(r->batch.pixels + (size_t)to * floats, b->pixels + (size_t)from * floats,
                   sizeof(float) * (size_t)count * floats);
    }
}

static mx_status feed_places(mx_run *r, mx_exec *e, const mx_batch *b, int64_t row, int64_t rows)
{
    const mx_image_spec *s = &r->data.images.processor.spec;
    for (int64_t i = 0; i < rows; i++) {
        int64_t from = b->first_image[row + i], at = (row + i) * b->seq_len, next = 0;
        mx_image_places(s, b->tokens + at, b->segments + at, b->seq_len,
                        b->pixels + from * mx_image_floats(s),
                        b->first_image[row + i + 1] - from, &next, r->batch.places + i * b->seq_len,
                        rows * b->seq_len);
    }
    return mx_exec_write_rows_at(e, "places", 1, r->batch.places);
}

static mx_status feed_images(mx_run *r, mx_exec *e, const mx_batch *b, int64_t row)
{
    int64_t rows = r->goal.fed, from = b->first_image[row];
    int64_t n = b->first_image[row + rows] - from;
    int64_t most = r->request.options.shape.images_per_row;
    bool by_row = images_lie_by_row(r), fits = n <= rows * most;
    for (int64_t i = row; i < row + rows && by_row; i++)
        fits = fits && b->first_image[i + 1] - b->first_image[i] <= most;
    if (!fits)
        return mx_fail(MX_INPUT,
                       "%lld rows have %lld images to the model, and there is room for %lld; set "
                       "max_segments_per_seq, or leave max_num_images_per_example out",
                       (long long)rows, (long long)n, (long long)(rows * most));
    copy_images(r, b, row, rows, most);
    if (r->request.options.shape.places)
        MX_TRY(feed_places(r, e, b, row, rows));
    return mx_exec_write(e, "pixels", r->batch.pixels);
}

/* Rows [row, row + microbatch) of a batch into a program's inputs. */
mx_status mx_run_feed(mx_run *r, mx_exec *e, const mx_batch *b, int64_t row, float scale)
{
    if (r->request.options.shape.images_per_row)
        MX_TRY(feed_images(r, e, b, row));
    int64_t at = row * b->seq_len;
    MX_TRY(mx_exec_write_rows(e, "tokens", b->tokens + at));
    MX_TRY(mx_exec_write_rows(e, "labels", b->labels + at));
    MX_TRY(mx_exec_write_rows(e, "segments", b->segments + at));
    MX_TRY(mx_exec_write_rows(e, "positions", b->positions + at));
    if (r->goal.objective && r->goal.objective->feed)
        MX_TRY(r->goal.objective->feed(&r->goal, e, b, row));
    return mx_exec_write(e, "loss_scale", &scale);
}

static float sum_of(const mx_run *r, const mx_inflight_step *f, int k)
{
    float sum = 0;
    for (int64_t i = 0; i < f->microbatches; i++)
        sum += f->got.value[each_at(r, i, k)];
    return sum;
}

/* The microbatches up to the last that has a token. */
static int64_t filled_microbatches(const mx_run *r, const mx_batch *b)
{
    int64_t n = r->request.batch.accumulation, size = r->batch.microbatch * b->seq_len;
    for (; n > 1; n--)
        for (int64_t i = (n - 1) * size; i < n * size; i++)
            if (b->segments[i])
                return n;
    return n;
}

/* An epoch's last batch may not be full: microbatches up to the last that has a token on any rank.
 * A pipeline runs those after it too, and they count for nothing. */
static mx_status count_microbatches(mx_run *r, const mx_batch *b, int64_t *n)
{
    *n = r->request.batch.accumulation;
    if (!r->goal.objective || *n == 1)
        return MX_OK;
    *n = filled_microbatches(r, b);
    return r->ranks.comm->size > 1 ? mx_comm_max(r->ranks.comm, n, 1) : MX_OK;
}

/* What the loss of microbatch k is multiplied by: TRL's means over pairs are means of the
 * microbatches' means, which an epoch's last may have fewer pairs for. */
static float scale_of(const mx_run *r, const mx_batch *b, const mx_inflight_step *f, int64_t k)
{
    const mx_objective *o = r->goal.objective;
    int64_t rows = r->batch.microbatch, at = k * rows * b->seq_len;
    if (!o || !o->mean_of_microbatches || r->ranks.comm->size > 1)
        return f->counted ? 1.0f / (float)f->counted : 0;
    mx_batch some = *b;
    some.rows = rows;
    some.tokens += at;
    some.labels += at;
    some.segments += at;
    some.positions += at;
    int64_t n = o->count(&r->goal, &some);
    return n ? 1.0f / (float)(n * f->microbatches) : 0;
}

/* What the update needs: into the program that updates, just before it runs. */
static mx_status feed_update(const mx_run *r, mx_exec *e, mx_inflight_step *f)
{
    float lr = (float)f->lr, number = (float)f->step, nothing = -1, *limit = &f->norm_limit;
    MX_TRY(mx_exec_write(e, "lr", &lr));
    MX_TRY(mx_exec_write(e, "step", &number));
    if (!r->loop.spikes.cap)
        return MX_OK;
    if (!r->programs.accumulates)
        MX_TRY(mx_exec_write(e, "loss_limit", &f->loss_limit));
    if (r->programs.accumulates) { /* the loss is known before: nothing is below this norm */
        MX_TRY(mx_readback_mark(&f->got));
        MX_TRY(mx_readback_wait(&f->got));
        limit = sum_of(r, f, LOSS) > f->loss_limit ? &nothing : limit;
    }
    return mx_exec_write(e, "norm_limit", limit);
}

static mx_status take_each(const mx_run *r, mx_exec *e, mx_inflight_step *f, int64_t microbatch)
{
    MX_TRY(mx_readback_copy(&f->got, e, "loss", each_at(r, microbatch, LOSS)));
    if (r->loop.has_lm_loss)
        MX_TRY(mx_readback_copy(&f->got, e, "lm_loss", each_at(r, microbatch, LM_LOSS)));
    for (int i = 0; i < r->loop.n_extra; i++)
        MX_TRY(mx_readback_copy(&f->got, e, r->loop.extra[i], each_at(r, microbatch, N_FIXED + i)));
    return MX_OK;
}

/* Another one for every microbatch of the run, whenever it is resumed. Ranks of a mesh share it:
 * what they drop follows from places in the whole batch. */
static int64_t dropout_seed(const mx_run *r, int64_t step, int64_t microbatch)
{
    int64_t ranks = r->mesh_rank ? 1 : r->ranks.comm->size;
    int64_t rank = r->mesh_rank ? 0 : r->ranks.comm->rank;
    int64_t n = r->request.batch.accumulation * ranks;
    int64_t number = (step - 1) * n + microbatch * ranks + rank;
    return number + (mx_config_int(r->c, "init_weights_seed") << 40);
}

/* Ranks of a mesh have one microbatch together. */
static float aux_scale(const mx_run *r, const mx_inflight_step *f)
{
    return 1.0f / (float)(f->microbatches * (r->mesh_rank ? 1 : r->ranks.data_ranks));
}

/* --- as a pipeline --- */

typedef struct {
    mx_run *r;
    const mx_batch *b;
    mx_inflight_step *f;
    float scale;
} stage_feed;

static mx_status write_microbatch(void *ctx, int microbatch, mx_exec *e)
{
    const stage_feed *s = ctx;
    int64_t seed = dropout_seed(s->r, s->f->step, microbatch);
    float aux = microbatch < s->f->microbatches ? aux_scale(s->r, s->f) : 0;
    MX_TRY(mx_exec_write(e, "aux_scale", &aux));
    MX_TRY(mx_exec_write(e, "dropout_seed", &seed));
    return mx_run_feed(s->r, e, s->b, microbatch * s->r->batch.microbatch, s->scale);
}

static mx_status read_microbatch(void *ctx, int microbatch, mx_exec *e)
{
    const stage_feed *s = ctx;
    return take_each(s->r, e, s->f, microbatch);
}

/* The numbers of microbatches are known on the last stage; then all ranks have them. */
static mx_status run_pipeline(mx_run *r, const mx_batch *b, mx_inflight_step *f, float scale)
{
    stage_feed feed = {r, b, f, scale};
    int n = update_at(r, 0);
    if (r->goal.objective && r->goal.objective->ahead)
        MX_TRY(r->goal.objective->ahead(&r->goal, b));
    MX_TRY(mx_pipeline_run(&r->programs.pipeline,
                           &(mx_pipeline_feed){write_microbatch, read_microbatch, &feed}));
    MX_TRY(mx_readback_mark(&f->got));
    MX_TRY(mx_readback_wait(&f->got));
    for (int i = 0; i < n && !mx_run_speaks(r); i++)
        f->got.value[i] = 0;
    MX_TRY(mx_comm_sum_f32(r->ranks.comm, &(mx_span){f->got.value, n}, 1));
    return mx_run_profile_stages_take(r);
}

static mx_status run_programs(mx_run *r, const mx_batch *b, mx_inflight_step *f)
{
    MX_TRY(count_microbatches(r, b, &f->microbatches));
    r->goal.fed = r->batch.microbatch;
    float aux = aux_scale(r, f);
    mx_exec *each = r->batch.now, *last = r->programs.accumulates ? r->programs.apply.exec : each;
    if (r->programs.pipelined)
        MX_TRY(run_pipeline(r, b, f, scale_of(r, b, f, 0)));
    for (int64_t k = 0; each && k < f->microbatches; k++) {
        float first = k == 0;
        MX_TRY(mx_run_feed(r, each, b, k * r->batch.microbatch, scale_of(r, b, f, k)));
        MX_TRY(mx_exec_write(each, "aux_scale", &aux));
        MX_TRY(mx_exec_write(each, "first", &first));
        int64_t seed = dropout_seed(r, f->step, k);
        MX_TRY(mx_exec_write(each, "dropout_seed", &seed));
        if (!r->programs.accumulates)
            MX_TRY(feed_update(r, last, f));
        MX_TRY(mx_exec_run(each));
        mx_run_profile_take(r, each);
        MX_TRY(take_each(r, each, f, k));
    }
    if (r->programs.accumulates) {
        MX_TRY(mx_run_sum_gradients(r, f->got.value, update_at(r, 0)));
        MX_TRY(feed_update(r, last, f));
        MX_TRY(mx_exec_run(last));
        mx_run_profile_take(r, last);
    }
    MX_TRY(mx_readback_copy(&f->got, last, "grad_norm", update_at(r, GRAD_NORM)));
    MX_TRY(mx_readback_copy(&f->got, last, "param_norm", update_at(r, PARAM_NORM)));
    MX_TRY(mx_readback_clock(&f->got));
    return mx_readback_mark(&f->got);
}

mx_status mx_run_launch(mx_run *r, bool *end)
{
    const mx_batch *b;
    mx_inflight_step *f = &r->loop.inflight[r->at.step % 2];
    MX_ASSERT(!f->in_flight, "step %lld was not settled", (long long)f->step);
    MX_TRY(mx_run_batch_enter(r));
    double start = mx_clock_now();
    *f = (mx_inflight_step){.got = f->got, .step = r->at.step + 1, .began = start};
    f->loss_limit = f->norm_limit = INFINITY;
    mx_run_spend(r, MX_GOODPUT_DATA);
    mx_run_step_begins(r);
    mx_run_profile_begin(r);
    MX_TRY(mx_run_next_batch(r, &b));
    f->wait_s = mx_clock_now() - start;
    mx_run_spend(r, MX_GOODPUT_STEP);
    int64_t of_all[4] = {b ? b->n_tokens : 0, b ? b->n_trained : 0, !b,
                         b ? mx_run_counted(r, b) : 0};
    MX_TRY(mx_run_sum_rows(r, of_all, 4));
    *end = of_all[2] > 0;
    if (*end)
        return MX_OK;
    if (r->loop.spikes.cap)
        mx_spikes_limits(&r->loop.spikes, &f->loss_limit, &f->norm_limit);
    f->lr = mx_schedule_rate(&r->schedule, r->at.step);
    f->flops = r->batch.stage_flops;
    f->tokens = of_all[0];
    f->trained = of_all[1];
    f->counted = of_all[3];
    if (r->goal.objective && r->goal.objective->report)
        f->n_host = r->goal.objective->report(&r->goal, f->host);
    if (r->goal.objective && r->goal.objective->repeats)
        f->repeats = r->goal.objective->repeats(&r->goal);
    f->comm_from = mx_session_comm_mark(r->session);
    MX_TRY(run_programs(r, b, f));
    f->comm_to = mx_session_comm_mark(r->session);
    f->done = mx_clock_now();
    f->in_flight = true;
    r->at.step++;
    return MX_OK;
}

/* --- reading it --- */

static void checkpoint_state(mx_run *r, char *out, size_t cap)
{
    *out = 0;
    if (!r->saving.ckpt)
        return;
    mx_ckpt_status s = mx_ckpt_poll(r->saving.ckpt);
    if (s.n_failed)
        snprintf(out, cap, "CHECKPOINT FAILED: %.60s", s.error);
    else if (s.writing)
        snprintf(out, cap, "writing %lld", (long long)s.writing_step);
    else if (s.last_step >= 0)
        snprintf(out, cap, "saved %lld", (long long)s.last_step);
}

/* Over the microbatches that have such a thing: others say NAN. */
static double mean_of(const mx_run *r, const mx_inflight_step *f, int k)
{
    int ranks = r->mesh_rank ? 1 : r->ranks.comm->size;
    double sum = 0, n = 0;
    for (int64_t i = 0; i < f->microbatches; i++) {
        float x = f->got.value[each_at(r, i, k)];
        if (!isnan(x))
            sum += (double)x, n++;
    }
    return sum / (n * ranks);
}

/* Of the time of collectives, what kernels did not wait for. */
static double hidden_share(const mx_inflight_step *f)
{
    double share = f->comm.all > 0 ? 1 - f->comm.waited / f->comm.all : 0;
    return share > 0 ? share : 0;
}

/* The number of the status line. */
static double followed(const mx_objective *o, const mx_inflight_step *f, const char **name)
{
    for (int i = 0; o && o->followed && i < f->n_host; i++)
        if (strcmp(f->host[i].name, o->followed) == 0) {
            *name = o->followed;
            return f->host[i].value;
        }
    return f->loss;
}

static mx_status report(mx_run *r, const mx_inflight_step *f)
{
    char state[96];
    checkpoint_state(r, state, sizeof state);
    double rate = (double)f->tokens / f->step_s, flops = f->flops / f->step_s;
    double lm = r->loop.has_lm_loss ? sum_of(r, f, LM_LOSS) : f->loss;
    double norm = f->got.value[update_at(r, PARAM_NORM)];
    const mx_objective *o = r->goal.objective;
    const char *name = NULL;
    double shown = followed(o, f, &name);
    r->loop.n_timed++;
    r->loop.mean_step_s =
        r->loop.mean_step_s > 0 ? 0.9 * r->loop.mean_step_s + 0.1 * f->step_s : f->step_s;
    mx_progress_update(
        &r->report.progress,
        &(mx_progress_state){.step = f->step,
                             .steps = r->steps,
                             .loss = shown,
                             .loss_name = name,
                             .tokens_per_s = rate,
                             .mfu = flops / r->report.peak_flops,
                             .eta_s = r->loop.mean_step_s * (double)(r->steps - f->step),
                             .checkpoint = *state ? state : NULL});
    const mx_metric m[] = {{"loss", f->loss},
                           {o ? NULL : "lm_loss", lm},
                           {o ? "num_tokens" : NULL, (double)r->at.inputs},
                           {o && !o->is_nll ? NULL : "perplexity", exp(lm)},
                           {"grad_norm", f->grad_norm},
                           {"param_norm", sqrt(norm * norm + r->loop.frozen_squares)},
                           {"learning_rate", f->lr},
                           {"tokens", (double)r->at.tokens},
                           {"tokens_per_second", rate},
                           {"tflops", flops * r->ranks.comm->size / 1e12},
                           {"mfu", flops / r->report.peak_flops},
                           {"step_seconds", f->step_s},
                           {"data_wait_seconds", f->wait_s},
                           {f->comm.all > 0 ? "communication_seconds" : NULL, f->comm.all},
                           {f->comm.all > 0 ? "communication_hidden" : NULL, hidden_share(f)},
                           {"skipped", f->skipped},
                           {"skipped_steps", (double)r->at.skipped},
                           {"rollbacks", (double)r->at.rollbacks},
                           {"host_memory_bytes", mx_run_rss_bytes()}};
    int n = 0, known = (int)(sizeof m / sizeof *m);
    MX_ASSERT(known <= MX_RUN_METRICS, "%d metrics", known);
    for (int i = 0; i < known; i++)
        if (m[i].name)
            r->loop.metric[n++] = m[i];
    for (int i = 0; i < r->loop.n_extra; i++)
        r->loop.metric[n++] =
            (mx_metric){r->loop.extra[i] + sizeof METRIC - 1, mean_of(r, f, N_FIXED + i)};
    memcpy(r->loop.metric + n, f->host, sizeof *f->host * (size_t)f->n_host);
    n += f->n_host;
    if (r->ranks.leads)
        mx_metrics_log(r->report.metrics, f->step, r->loop.metric, n);
    return o && o->check ? o->check(&r->goal, f->step, r->loop.metric, n) : MX_OK;
}

/* The time since the step before was done: by the device's clock where it had this step already
 * while it worked on that one, since the host looks at both late. */
static double seconds_of(const mx_run *r, const mx_inflight_step *f)
{
    if (f->got.mark && f->began <= r->loop.last_done)
        return *f->got.clock - r->loop.last_clock;
    return f->done - (f->began > r->loop.last_done ? f->began : r->loop.last_done);
}

static mx_status arrive(mx_run *r, mx_inflight_step *f)
{
    mx_run_spend(r, MX_GOODPUT_STEP);
    MX_TRY(mx_readback_wait(&f->got));
    if (f->got.mark)
        f->done = mx_clock_now();
    f->step_s = seconds_of(r, f);
    r->loop.last_done = f->done;
    r->loop.last_clock = f->got.mark ? *f->got.clock : 0;
    f->in_flight = false;
    f->comm = mx_session_comm_seconds(r->session, f->comm_from, f->comm_to);
    f->loss = sum_of(r, f, LOSS);
    f->grad_norm = f->got.value[update_at(r, GRAD_NORM)];
    f->skipped =
        !isfinite(f->grad_norm) || f->loss > f->loss_limit || f->grad_norm > f->norm_limit;
    mx_run_spend(r, MX_GOODPUT_OTHER);
    return MX_OK;
}

mx_status mx_run_settle(mx_run *r, int64_t step)
{
    mx_inflight_step *f = &r->loop.inflight[(step + 1) % 2]; /* as mx_run_launch chose it */
    if (step < 1 || !f->in_flight || f->step != step)
        return MX_OK;
    MX_TRY(mx_status_wrap(arrive(r, f), "step %lld", (long long)step));
    r->at.tokens += f->trained;
    r->at.inputs += r->goal.objective && !f->repeats ? f->tokens : 0;
    r->at.skipped += f->skipped;
    r->at.skipped_in_row = f->skipped ? r->at.skipped_in_row + 1 : 0;
    if (r->loop.spikes.cap)
        mx_spikes_add(&r->loop.spikes, f->loss, f->grad_norm);
    /* Now and then, where it takes no noticeable time: the machine may have been busy at first. */
    if (r->report.measures_peak && f->step_s > 1 && (step & (step - 1)) == 0 && step > 1)
        mx_run_measure_peak(r);
    if (r->report.measures_peak && f->flops / f->step_s > r->report.peak_flops)
        r->report.peak_flops = f->flops / f->step_s; /* it was busy, and can do at least this */
    mx_status st = report(r, f);
    mx_run_step_done(r, step);
    mx_run_check_saves(r);
    mx_run_lock_beat(&r->claim.lock);
    MX_TRY(st);
    return f->skipped || !isfinite(f->loss) ? mx_run_after_skip(r, f) : MX_OK;
}

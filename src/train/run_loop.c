/* run_loop.c - the steps of a run.
 *
 * A step reads one global batch, runs its microbatches, updates, and reports. Loss is summed over
 * tokens and divided by the tokens of the whole batch, so accumulation changes nothing but memory.
 * A step whose gradients are not finite changes no weight (the update op sees to that); it is
 * counted. So is a spike, with skip_step_on_spikes: the limits are inputs of the step
 * (optimizer.c), the same numbers decide here.
 *
 * After rollback_after_skips such steps in a row the run goes back to its newest checkpoint but not
 * to that checkpoint's place in the data: the batches that did the damage are passed over. Every
 * decision is a function of what a checkpoint holds, so a run that is killed and resumed takes the
 * same ones.
 */
#include "train/run.h"
#include "train/run_state.h"

#include "base/signals.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_ROLLBACKS = 3 }; /* to one checkpoint, before a run gives up */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct {
    float loss, grad_norm;
    float loss_limit, norm_limit; /* infinite: none */
    bool skipped;
    double lr, wait_s, step_s;
    int64_t tokens, trained;
    bool end; /* the data is over */
} outcome;

/* Rows [row, row + microbatch) of a batch into a program's inputs. */
static mx_status feed(mx_exec *e, const mx_batch *b, int64_t row, float scale)
{
    int64_t at = row * b->seq_len;
    MX_TRY(mx_exec_write(e, "tokens", b->tokens + at));
    MX_TRY(mx_exec_write(e, "labels", b->labels + at));
    MX_TRY(mx_exec_write(e, "segments", b->segments + at));
    MX_TRY(mx_exec_write(e, "positions", b->positions + at));
    return mx_exec_write(e, "loss_scale", &scale);
}

/* What the update needs: into the program that updates, just before it runs. */
static mx_status feed_update(const mx_run *r, mx_exec *e, const outcome *o)
{
    /* Steps that changed nothing do not count in the bias correction of the moments. */
    float lr = (float)o->lr, number = (float)(r->at.step + 1 - r->at.skipped);
    MX_TRY(mx_exec_write(e, "lr", &lr));
    MX_TRY(mx_exec_write(e, "step", &number));
    if (!r->spikes.cap)
        return MX_OK;
    if (!r->accumulates)
        MX_TRY(mx_exec_write(e, "loss_limit", &o->loss_limit));
    /* With accumulation the loss is known before the update: nothing is below this norm. */
    float nothing = -1, *limit = r->accumulates && o->loss > o->loss_limit ? &nothing : NULL;
    return mx_exec_write(e, "norm_limit", limit ? limit : &o->norm_limit);
}

static mx_status one_step(mx_run *r, outcome *o)
{
    const mx_batch *b;
    double start = now();
    *o = (outcome){.loss_limit = INFINITY, .norm_limit = INFINITY};
    mx_run_spend(r, MX_GOODPUT_DATA);
    mx_run_step_begins(r);
    mx_run_profile_begin(r);
    MX_TRY(mx_loader_next(r->data.loader, &b));
    o->wait_s = now() - start;
    mx_run_spend(r, MX_GOODPUT_STEP);
    if (r->spikes.cap)
        mx_spikes_limits(&r->spikes, &o->loss_limit, &o->norm_limit);
    if (!b) {
        o->end = true;
        return MX_OK;
    }
    float scale = b->n_trained ? 1.0f / (float)b->n_trained : 0;
    o->lr = mx_schedule_rate(&r->schedule, r->at.step);
    mx_exec *last = r->accumulates ? r->apply.exec : r->step.exec;
    for (int64_t k = 0; k < r->batch.accumulation; k++) {
        float first = k == 0, loss;
        MX_TRY(feed(r->step.exec, b, k * r->batch.microbatch, scale));
        MX_TRY(mx_exec_write(r->step.exec, "first", &first));
        if (!r->accumulates)
            MX_TRY(feed_update(r, last, o));
        MX_TRY(mx_exec_run(r->step.exec));
        mx_run_profile_take(r, r->step.exec);
        MX_TRY(mx_exec_read(r->step.exec, "loss", &loss));
        o->loss += loss;
    }
    if (r->accumulates) {
        MX_TRY(feed_update(r, last, o));
        MX_TRY(mx_exec_run(last));
        mx_run_profile_take(r, last);
    }
    MX_TRY(mx_exec_read(last, "grad_norm", &o->grad_norm));
    o->skipped = !isfinite(o->grad_norm) || o->loss > o->loss_limit || o->grad_norm > o->norm_limit;
    o->tokens = b->n_tokens;
    o->trained = b->n_trained;
    o->step_s = now() - start;
    return MX_OK;
}

static mx_status save(mx_run *r)
{
    if (!r->ckpt)
        return MX_OK;
    mx_str position = {0};
    mx_run_spend(r, MX_GOODPUT_CHECKPOINT);
    mx_loader_position(r->data.loader, &position);
    mx_run_state st = r->at;
    st.loader = position.text;
    st.loader_bytes = position.len;
    mx_status s = mx_state_save(r->ckpt, r->session, &r->model, &st, r->last_eval, r->like);
    mx_str_fini(&position);
    if (!s)
        mx_run_saved(r);
    return s;
}

static mx_status evaluate(mx_run *r)
{
    int64_t limit = mx_config_int(r->c, "eval_steps"), n = 0;
    double sum = 0, tokens = 0;
    const mx_batch *b;
    mx_run_spend(r, MX_GOODPUT_EVAL);
    /* The same batches every time: evaluation starts from the beginning of its data. */
    mx_train_data_close(&r->eval_data);
    MX_TRY(mx_train_data_open(&r->eval_data, r->c, r->like, r->model.summary.vocab,
                              r->batch.microbatch, true));
    for (; limit < 0 || n < limit; n++) {
        float loss;
        MX_TRY(mx_loader_next(r->eval_data.loader, &b));
        if (!b)
            break;
        MX_TRY(feed(r->eval.exec, b, 0, 1));
        MX_TRY(mx_exec_run(r->eval.exec));
        MX_TRY(mx_exec_read(r->eval.exec, "loss", &loss));
        sum += loss;
        tokens += (double)b->n_trained;
    }
    r->last_eval = tokens > 0 ? sum / tokens : NAN;
    mx_progress_say(&r->progress, "step %lld: evaluation loss %.4f over %.0f tokens",
                    (long long)r->at.step, r->last_eval, tokens);
    mx_metrics_log(r->metrics, r->at.step, (mx_metric[]){{"eval/loss", r->last_eval}}, 1);
    return MX_OK;
}

static void report(mx_run *r, const outcome *o, double mean_step_s)
{
    char state[96] = "";
    if (r->ckpt) {
        mx_ckpt_status s = mx_ckpt_poll(r->ckpt);
        if (s.n_failed)
            snprintf(state, sizeof state, "CHECKPOINT FAILED: %.60s", s.error);
        else if (s.writing)
            snprintf(state, sizeof state, "writing %lld", (long long)s.writing_step);
        else if (s.last_step >= 0)
            snprintf(state, sizeof state, "saved %lld", (long long)s.last_step);
    }
    double rate = (double)o->tokens / o->step_s, flops = r->flops_per_step / o->step_s;
    mx_progress_update(&r->progress,
                       &(mx_progress_state){.step = r->at.step,
                                            .steps = r->steps,
                                            .loss = o->loss,
                                            .tokens_per_s = rate,
                                            .mfu = flops / r->peak_flops,
                                            .eta_s = mean_step_s * (double)(r->steps - r->at.step),
                                            .checkpoint = *state ? state : NULL});
    mx_metric m[] = {{"loss", o->loss},
                     {"perplexity", exp(o->loss)},
                     {"grad_norm", o->grad_norm},
                     {"learning_rate", o->lr},
                     {"tokens", (double)r->at.tokens},
                     {"tokens_per_second", rate},
                     {"tflops", flops / 1e12},
                     {"mfu", flops / r->peak_flops},
                     {"step_seconds", o->step_s},
                     {"data_wait_seconds", o->wait_s},
                     {"skipped", o->skipped},
                     {"skipped_steps", (double)r->at.skipped},
                     {"rollbacks", (double)r->at.rollbacks},
                     {"host_memory_bytes", mx_run_rss_bytes()}};
    mx_metrics_log(r->metrics, r->at.step, m, (int)(sizeof m / sizeof *m));
}

/* Back to the newest checkpoint, but on with the data where it is. */
static mx_status roll_back(mx_run *r)
{
    const char *path = NULL;
    mx_run_spend(r, MX_GOODPUT_LOAD);
    if (r->ckpt) {
        mx_status_free(mx_ckpt_wait(r->ckpt)); /* said already; an older one will do */
        MX_TRY(mx_run_newest(r, &path));
    }
    if (!path) {
        mx_progress_say(&r->progress, "there is no checkpoint to go back to; the run goes on");
        r->at.skipped_in_row = 0;
        return MX_OK;
    }
    int64_t from = r->at.step, rollbacks = r->at.rollbacks + 1;
    mx_free(r->at.loader);
    MX_TRY(mx_state_restore(path, r->session, &r->model, &r->at));
    MX_TRY(mx_session_refresh_copies(r->session));
    r->at.threads = mx_session_threads(r->session);
    r->at.rollbacks = rollbacks;
    r->at.skipped_in_row = 0;
    r->rolled_times = r->rolled_to == r->at.step ? r->rolled_times + 1 : 1;
    r->rolled_to = r->at.step;
    if (r->rolled_times > MAX_ROLLBACKS)
        return mx_fail(MX_CHECK_FAILED,
                       "the run went back to step %lld %d times and does not get past it; "
                       "look at the data with `maxc data`, or lower learning_rate",
                       (long long)r->at.step, MAX_ROLLBACKS);
    mx_progress_say(&r->progress,
                    "going back from step %lld to step %lld (%s); the data between is "
                    "passed over",
                    (long long)from, (long long)r->at.step, path);
    mx_status_free(mx_metrics_close(r->metrics));
    r->metrics = NULL;
    return mx_run_open_metrics(r);
}

/* A step that changed nothing: may the run go on, and from where? */
static mx_status after_skip(mx_run *r, const outcome *o)
{
    bool stop = (isnan(o->loss) && mx_config_bool(r->c, "abort_on_nan_loss")) ||
                (isinf(o->loss) && mx_config_bool(r->c, "abort_on_inf_loss"));
    if (stop)
        return mx_fail(MX_CHECK_FAILED,
                       "step %lld: the loss is %g (gradient norm %g); nothing was updated. "
                       "Lower learning_rate, look at the data with `maxc data`, or set "
                       "abort_on_nan_loss=false to skip such steps",
                       (long long)r->at.step, o->loss, o->grad_norm);
    mx_progress_say(&r->progress, "step %lld: loss %g, gradient norm %g; the update was skipped",
                    (long long)r->at.step, o->loss, o->grad_norm);
    int64_t limit = mx_config_int(r->c, "rollback_after_skips");
    return limit && r->at.skipped_in_row >= limit ? roll_back(r) : MX_OK;
}

static mx_status finish(mx_run *r, bool stopped)
{
    mx_run_spend(r, MX_GOODPUT_CHECKPOINT);
    bool want = stopped || mx_config_bool(r->c, "save_checkpoint_on_completion");
    if (!r->ckpt)
        return stopped ? mx_fail(MX_STOPPED,
                                 "stopped at step %lld; checkpoints are off, nothing was "
                                 "saved",
                                 (long long)r->at.step)
                       : MX_OK;
    mx_ckpt_status s = mx_ckpt_poll(r->ckpt);
    bool have =
        (s.last_step == r->at.step && !s.writing) || (s.writing && s.writing_step == r->at.step);
    if (want && !have)
        MX_TRY(save(r));
    MX_TRY(mx_status_wrap(mx_ckpt_wait(r->ckpt), "the last checkpoint could not be written"));
    if (stopped)
        return mx_fail(MX_STOPPED,
                       "stopped at step %lld; the checkpoint is written, run the same command "
                       "again to go on",
                       (long long)r->at.step);
    if (want)
        mx_progress_say(&r->progress, "model: %s/checkpoints/%lld", r->folder,
                        (long long)r->at.step);
    return MX_OK;
}

mx_status mx_run_loop(mx_run *r)
{
    int64_t period = mx_config_int(r->c, "checkpoint_period");
    int64_t eval_every = r->evaluates ? mx_config_int(r->c, "eval_interval") : 0;
    double mean = 0;
    if (r->ckpt && mx_config_bool(r->c, "save_checkpoint_on_start") && r->at.step == 0)
        MX_TRY(save(r));
    while (r->at.step < r->steps && !mx_stop_signal()) {
        outcome o;
        MX_TRY(mx_status_wrap(one_step(r, &o), "step %lld", (long long)(r->at.step + 1)));
        if (o.end) {
            mx_progress_say(&r->progress, "the data ended after %lld steps", (long long)r->at.step);
            break;
        }
        r->at.step++;
        r->at.tokens += o.trained;
        r->at.skipped += o.skipped;
        r->at.skipped_in_row = o.skipped ? r->at.skipped_in_row + 1 : 0;
        if (r->spikes.cap)
            mx_spikes_add(&r->spikes, o.loss, o.grad_norm);
        mx_run_spend(r, MX_GOODPUT_OTHER);
        mean = mean > 0 ? 0.9 * mean + 0.1 * o.step_s : o.step_s;
        report(r, &o, mean);
        mx_run_step_done(r);
        mx_run_profile_end(r, false);
        mx_run_check_saves(r);
        mx_run_lock_beat(&r->lock);
        if (o.skipped || !isfinite(o.loss)) {
            int64_t before = r->at.step;
            MX_TRY(after_skip(r, &o));
            if (r->at.step != before)
                continue;
        }
        if (eval_every && r->at.step % eval_every == 0)
            MX_TRY(evaluate(r));
        if (r->ckpt && r->at.step % period == 0 && r->at.step < r->steps)
            MX_TRY(save(r));
    }
    return finish(r, mx_stop_signal() && r->at.step < r->steps);
}

mx_status mx_run_train(const mx_config *c, const char *command_line)
{
    mx_run r;
    mx_status st = mx_run_open(&r, c, command_line);
    if (!st)
        st = mx_signals_install();
    if (!st)
        st = mx_run_loop(&r);
    mx_run_profile_end(&r, true);
    mx_run_watch_close(&r, st);
    mx_run_close(&r);
    return st;
}

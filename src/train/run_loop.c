/* run_loop.c - the steps of a run.
 *
 * A step reads one global batch, runs its microbatches, updates, and reports. Loss is summed over
 * tokens and divided by the tokens of the whole batch, so accumulation changes nothing but memory.
 * A step whose gradients are not finite changes no weight (the update op sees to that); it is
 * counted.
 */
#include "train/run.h"
#include "train/run_state.h"

#include "base/signals.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct {
    float loss, grad_norm;
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

static mx_status one_step(mx_run *r, outcome *o)
{
    const mx_batch *b;
    double start = now();
    *o = (outcome){0};
    MX_TRY(mx_loader_next(r->data.loader, &b));
    o->wait_s = now() - start;
    if (!b) {
        o->end = true;
        return MX_OK;
    }
    int64_t step = r->at.step + 1;
    float scale = b->n_trained ? 1.0f / (float)b->n_trained : 0, number = (float)step;
    o->lr = mx_schedule_rate(&r->schedule, r->at.step);
    float lr = (float)o->lr;
    mx_exec *last = r->accumulates ? r->apply.exec : r->step.exec;
    for (int64_t k = 0; k < r->batch.accumulation; k++) {
        float first = k == 0, loss;
        MX_TRY(feed(r->step.exec, b, k * r->batch.microbatch, scale));
        MX_TRY(mx_exec_write(r->step.exec, "first", &first));
        if (!r->accumulates) {
            MX_TRY(mx_exec_write(last, "lr", &lr));
            MX_TRY(mx_exec_write(last, "step", &number));
        }
        MX_TRY(mx_exec_run(r->step.exec));
        MX_TRY(mx_exec_read(r->step.exec, "loss", &loss));
        o->loss += loss;
    }
    if (r->accumulates) {
        MX_TRY(mx_exec_write(last, "lr", &lr));
        MX_TRY(mx_exec_write(last, "step", &number));
        MX_TRY(mx_exec_run(last));
    }
    MX_TRY(mx_exec_read(last, "grad_norm", &o->grad_norm));
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
    mx_loader_position(r->data.loader, &position);
    mx_run_state st = r->at;
    st.loader = position.text;
    st.loader_bytes = position.len;
    mx_status s = mx_state_save(r->ckpt, r->session, &r->model, &st, r->last_eval, r->like);
    mx_str_fini(&position);
    return s;
}

static mx_status evaluate(mx_run *r)
{
    int64_t limit = mx_config_int(r->c, "eval_steps"), n = 0;
    double sum = 0, tokens = 0;
    const mx_batch *b;
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
                       &(mx_progress_state){.step = r->at.step, .steps = r->steps, .loss = o->loss,
                                            .tokens_per_s = rate, .mfu = flops / r->peak_flops,
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
                     {"skipped_steps", (double)r->skipped}};
    mx_metrics_log(r->metrics, r->at.step, m, (int)(sizeof m / sizeof *m));
}

/* Was anything not finite, and does the user want to stop then? */
static mx_status check_finite(mx_run *r, const outcome *o)
{
    if (isfinite(o->loss) && isfinite(o->grad_norm))
        return MX_OK;
    r->skipped++;
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
    return MX_OK;
}

static mx_status finish(mx_run *r, bool stopped)
{
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
        mean = mean > 0 ? 0.9 * mean + 0.1 * o.step_s : o.step_s;
        report(r, &o, mean);
        MX_TRY(check_finite(r, &o));
        mx_run_lock_beat(&r->lock);
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
    mx_run_close(&r);
    return st;
}

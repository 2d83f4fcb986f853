/* run_save.c - checkpoints of a run: when they are written, waited for and gone back to.
 *
 * After rollback_after_skips skipped steps in a row the run goes back to its newest checkpoint but
 * not to that checkpoint's place in the data: the batches that did the damage are passed over.
 * Every decision is a function of what a checkpoint holds, so a run that is killed and resumed
 * takes the same ones.
 */
#include "train/run/run_state.h"

#include <time.h>

enum { STUCK_SECONDS = 60 };
enum { MAX_ROLLBACKS = 3 }; /* to one checkpoint, before a run gives up */

/* Which checkpoints there are must not depend on the disk's speed (a run may go back to one), so a
 * save waits for the one before it. A disk that hangs is reported. */
static void wait_for_writer(mx_run *r)
{
    mx_ckpt_status s = mx_ckpt_poll(r->saving.ckpt);
    double limit = r->rules.step_timeout > 0 ? r->rules.step_timeout : STUCK_SECONDS;
    for (bool said = false; s.writing; s = mx_ckpt_poll(r->saving.ckpt)) {
        if (!said && s.writing_s > limit) {
            mx_progress_say(&r->report.progress,
                            "checkpoint %lld has been written to for %.1f s; the next save waits "
                            "for it. Does the disk hang?",
                            (long long)s.writing_step, s.writing_s);
            said = true;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

mx_status mx_run_save_to(mx_run *r, mx_ckpt *c)
{
    mx_str position = {0};
    if (r->data.loader)
        mx_loader_position(r->data.loader, &position);
    else
        r->goal.objective->position(&r->goal, &position);
    mx_run_state st = r->at;
    st.loader = position.text;
    st.loader_bytes = position.len;
    st.config = r->saving.config_text;
    mx_status s = mx_state_save(c, r->session, &r->model, &st, r->loop.last_eval, &r->saving.files);
    mx_str_fini(&position);
    return s;
}

mx_status mx_run_save(mx_run *r)
{
    if (!r->saving.ckpt)
        return MX_OK;
    mx_run_spend(r, MX_GOODPUT_CHECKPOINT);
    mx_progress_doing(&r->report.progress, "saving");
    wait_for_writer(r);
    MX_TRY(mx_run_save_to(r, r->saving.ckpt));
    mx_run_saved(r);
    mx_progress_begin(&r->report.progress, r->at.step);
    return MX_OK;
}

/* After max_checkpoint_failures failed saves in a row the state is kept elsewhere and the run ends.
 * If that fails too, the run goes on, and tries again after as many more. */
mx_status mx_run_give_up_saving(mx_run *r)
{
    int64_t limit = r->rules.max_checkpoint_failures;
    r->saving.local_failed = r->ranks.failed_saves ? r->saving.local_failed : 0;
    if (!r->saving.ckpt || !limit || r->ranks.failed_saves < limit * (r->saving.local_failed + 1))
        return MX_OK;
    bool kept;
    mx_run_spend(r, MX_GOODPUT_CHECKPOINT);
    MX_TRY(mx_run_settle(r, r->at.step));
    const char *why =
        mx_arena_printf(&r->arena, "%lld checkpoints in a row could not be written: %s",
                        (long long)r->ranks.failed_saves, mx_ckpt_poll(r->saving.ckpt).error);
    mx_status st = mx_run_local_checkpoint_save(r, why, &kept);
    if (kept)
        return st;
    mx_progress_say(&r->report.progress, "ALARM: %s. Training goes on", mx_status_text(st));
    mx_status_free(st);
    return MX_OK;
}

mx_status mx_run_roll_back(mx_run *r)
{
    const char *path = NULL;
    mx_run_spend(r, MX_GOODPUT_LOAD);
    if (r->saving.ckpt) {
        mx_status_free(mx_ckpt_wait(r->saving.ckpt)); /* said already; an older one will do */
        MX_TRY(mx_run_newest(r, &path));
    }
    if (!path) {
        mx_progress_say(&r->report.progress,
                        "there is no checkpoint to go back to; the run goes on");
        r->at.skipped_in_row = 0;
        return MX_OK;
    }
    int64_t from = r->at.step, rollbacks = r->at.rollbacks + 1;
    mx_free(r->at.loader);
    MX_TRY(mx_state_restore(path, r->session, &r->model, &r->at));
    MX_TRY(mx_session_refresh_copies(r->session));
    r->at.threads = mx_session_threads(r->session);
    r->at.ranks = r->ranks.comm->size;
    r->saving.own_step = r->at.step;
    r->at.rollbacks = rollbacks;
    r->at.skipped_in_row = 0;
    r->saving.rolled_times = r->saving.rolled_to == r->at.step ? r->saving.rolled_times + 1 : 1;
    r->saving.rolled_to = r->at.step;
    if (r->saving.rolled_times > MAX_ROLLBACKS)
        return mx_fail(MX_CHECK_FAILED,
                       "the run went back to step %lld %d times and does not get past it; "
                       "look at the data with `maxc data`, or lower learning_rate",
                       (long long)r->at.step, MAX_ROLLBACKS);
    mx_progress_say(&r->report.progress,
                    "going back from step %lld to step %lld (%s); the data between is "
                    "passed over",
                    (long long)from, (long long)r->at.step, path);
    mx_status_free(mx_metrics_close(r->report.metrics));
    r->report.metrics = NULL;
    return mx_run_open_metrics(r);
}

mx_status mx_run_save_last(mx_run *r, bool stopped)
{
    mx_run_spend(r, MX_GOODPUT_CHECKPOINT);
    bool want = stopped ? r->rules.save_on_signal : r->rules.save_on_completion;
    if (!r->saving.ckpt || (stopped && !want))
        return stopped ? mx_fail(MX_STOPPED, "stopped at step %lld; %s, nothing was saved",
                                 (long long)r->at.step,
                                 r->saving.ckpt ? "enable_autocheckpoint is false"
                                         : "checkpoints are off")
                       : MX_OK;
    mx_status st = mx_ckpt_wait(r->saving.ckpt); /* how it went is then known on every rank */
    if (want && mx_ckpt_poll(r->saving.ckpt).last_step != r->at.step &&
        r->saving.own_step != r->at.step) {
        mx_status_free(st);
        MX_TRY(mx_run_save(r));
        st = mx_ckpt_wait(r->saving.ckpt);
    }
    if (st) {
        bool kept;
        const char *why = mx_arena_printf(
            &r->arena, "the last checkpoint could not be written: %s", mx_status_text(st));
        mx_status_free(st);
        return mx_run_local_checkpoint_save(r, why, &kept);
    }
    mx_run_local_checkpoint_clear(r, mx_ckpt_poll(r->saving.ckpt).last_step);
    if (stopped)
        return mx_fail(MX_STOPPED,
                       "stopped at step %lld; the checkpoint is written, run the same command "
                       "again to go on",
                       (long long)r->at.step);
    if (want)
        mx_progress_say(&r->report.progress, "model: %s/checkpoints/%lld", r->folder,
                        (long long)r->at.step);
    return MX_OK;
}

bool mx_run_saves_at(mx_run *r, int64_t step)
{
    if (!r->saving.ckpt || step >= r->steps)
        return false;
    bool busy =
        r->ranks.comm->size > 1 ? r->ranks.writer_busy : mx_ckpt_poll(r->saving.ckpt).writing;
    bool idle = r->rules.save_always && !busy;
    return idle || step % r->rules.checkpoint_period == 0;
}

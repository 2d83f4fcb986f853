/* run_loop.c - the steps of a run.
 *
 * A step reads one global batch, runs its microbatches, updates, and is reported when the next one
 * is under way (run_step.c). Loss is summed over tokens and divided by the tokens of the whole
 * batch, so accumulation changes nothing but memory. A step whose gradients are not finite changes
 * no weight (the update op sees to that); it is counted. So is a spike, with skip_step_on_spikes:
 * the limits are inputs of the step (optimizer.c), the same numbers decide here.
 *
 * After rollback_after_skips such steps in a row the run goes back to its newest checkpoint but not
 * to that checkpoint's place in the data: the batches that did the damage are passed over. Every
 * decision is a function of what a checkpoint holds, so a run that is killed and resumed takes the
 * same ones.
 */
#include "train/run/run.h"
#include "train/run/run_state.h"

#include "base/signals.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { STUCK_SECONDS = 60 };
enum { MAX_ROLLBACKS = 3 }; /* to one checkpoint, before a run gives up */

/* Which checkpoints there are must not depend on the disk's speed (a run may go back to one), so a
 * save waits for the one before it. A disk that hangs is said. */
static void wait_for_writer(mx_run *r)
{
    mx_ckpt_status s = mx_ckpt_poll(r->ckpt);
    double limit = r->rules.step_timeout > 0 ? r->rules.step_timeout : STUCK_SECONDS;
    for (bool said = false; s.writing; s = mx_ckpt_poll(r->ckpt)) {
        if (!said && s.writing_s > limit) {
            mx_progress_say(&r->progress,
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
    st.config = r->config_text;
    mx_status s = mx_state_save(c, r->session, &r->model, &st, r->last_eval, &r->files);
    mx_str_fini(&position);
    return s;
}

static mx_status save(mx_run *r)
{
    if (!r->ckpt)
        return MX_OK;
    mx_run_spend(r, MX_GOODPUT_CHECKPOINT);
    mx_progress_doing(&r->progress, "saving");
    wait_for_writer(r);
    MX_TRY(mx_run_save_to(r, r->ckpt));
    mx_run_saved(r);
    mx_progress_begin(&r->progress, r->at.step);
    return MX_OK;
}

/* After so many failed saves the state is kept elsewhere and the run ends; it goes on where that
 * fails, too, and tries again after as many more. */
static mx_status give_up_saving(mx_run *r)
{
    int64_t limit = r->rules.max_checkpoint_failures;
    r->local_failed = r->failed_saves ? r->local_failed : 0;
    if (!r->ckpt || !limit || r->failed_saves < limit * (r->local_failed + 1))
        return MX_OK;
    bool kept;
    mx_run_spend(r, MX_GOODPUT_CHECKPOINT);
    MX_TRY(mx_run_settle(r, r->at.step));
    const char *why =
        mx_arena_printf(&r->arena, "%lld checkpoints in a row could not be written: %s",
                        (long long)r->failed_saves, mx_ckpt_poll(r->ckpt).error);
    mx_status st = mx_run_local_checkpoint_save(r, why, &kept);
    if (kept)
        return st;
    mx_progress_say(&r->progress, "ALARM: %s. Training goes on", mx_status_text(st));
    mx_status_free(st);
    return MX_OK;
}

/* How often an MTP layer's prediction was the model's own, of those it made. */
static void say_accepted(mx_run *r, double accepted, double asked)
{
    double rate = asked > 0 ? 100 * accepted / asked : 0;
    mx_progress_say(&r->progress,
                    "step %lld: of %.0f tokens that the MTP layer predicted %.2f %% accepted",
                    (long long)r->at.step, asked, rate);
    mx_metric m = {"eval/mtp_acceptance_rate_percent", rate};
    if (r->leads)
        mx_metrics_log(r->metrics, r->at.step, &m, 1);
}

/* A batch under evaluation. */
typedef struct {
    mx_run *r;
    const mx_batch *b;
    bool lm, mtp; /* what there is to read */
    double v[4];      /* sums: loss, tokens, MTP predictions accepted and made */
} evaluation;

static mx_status feed_evaluated(void *ctx, int microbatch, mx_exec *e)
{
    const evaluation *v = ctx;
    (void)microbatch;
    return mx_run_feed(v->r, e, v->b, 0, 1);
}

static mx_status add_evaluated(void *ctx, int microbatch, mx_exec *e)
{
    evaluation *v = ctx;
    float loss, accepted, asked;
    (void)microbatch;
    MX_TRY(mx_exec_read(e, v->lm ? "lm_loss" : "loss", &loss));
    v->v[0] += loss;
    if (v->mtp) {
        MX_TRY(mx_exec_read(e, "mtp_accepted", &accepted));
        MX_TRY(mx_exec_read(e, "mtp_asked", &asked));
        v->v[2] += accepted;
        v->v[3] += asked;
    }
    return MX_OK;
}

static mx_status evaluate_batch(evaluation *v)
{
    mx_programs *p = &v->r->programs;
    mx_pipeline_feed feed = {feed_evaluated, add_evaluated, v};
    if (p->pipelined)
        return mx_pipeline_run(&p->eval_pipeline, &feed);
    MX_TRY(feed_evaluated(v, 0, p->eval.exec));
    MX_TRY(mx_exec_run(p->eval.exec));
    return add_evaluated(v, 0, p->eval.exec);
}

static bool evaluates_to(const mx_run *r, const char *name)
{
    const mx_programs *p = &r->programs;
    const mx_graph *g = p->pipelined ? &p->eval_pipeline.joint : &p->eval.graph;
    return mx_graph_find_root(g, name) != NULL;
}

/* On a mesh the programs have added up everything but the tokens. */
static mx_status sum_evaluated(mx_run *r, double v[4])
{
    int64_t tokens = (int64_t)v[1];
    if (!r->mesh_rank)
        return mx_comm_sum_f64(r->comm, v, 4);
    if (r->programs.pipelined) {
        for (int i = 0; i < 4 && !mx_run_speaks(r); i++)
            v[i] = 0;
        MX_TRY(mx_comm_sum_f64(r->comm, v, 4));
    }
    MX_TRY(mx_run_sum_rows(r, &tokens, 1));
    v[1] = (double)tokens;
    return MX_OK;
}

static mx_status evaluate(mx_run *r)
{
    int64_t limit = r->rules.eval_steps, n = 0;
    evaluation e = {.r = r, .lm = evaluates_to(r, "lm_loss"),
                    .mtp = evaluates_to(r, "mtp_asked")};
    double *v = e.v, *sum = &v[0], *tokens = &v[1];
    mx_run_spend(r, MX_GOODPUT_EVAL);
    mx_progress_doing(&r->progress, "evaluating");
    /* The same batches every time: evaluation starts from the beginning of its data. */
    mx_train_data_close(&r->eval_data);
    MX_TRY(mx_run_open_data(r, &r->eval_data, r->request.eval_batch * r->data_ranks, true));
    for (; limit < 0 || n < limit; n++) {
        MX_TRY(mx_loader_next(r->eval_data.loader, &e.b));
        if (!e.b)
            break;
        MX_TRY(evaluate_batch(&e));
        *tokens += (double)mx_run_counted(r, e.b);
    }
    MX_TRY(sum_evaluated(r, v));
    r->last_eval = *tokens > 0 ? *sum / *tokens : NAN;
    mx_progress_say(&r->progress, "step %lld: evaluation loss %.4f over %.0f tokens",
                    (long long)r->at.step, r->last_eval, *tokens);
    mx_progress_begin(&r->progress, r->at.step);
    if (r->leads)
        mx_metrics_log(r->metrics, r->at.step, (mx_metric[]){{"eval/loss", r->last_eval}}, 1);
    if (e.mtp)
        say_accepted(r, v[2], v[3]);
    return MX_OK;
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
    r->at.ranks = r->comm->size;
    r->own_step = r->at.step;
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
mx_status mx_run_after_skip(mx_run *r, const mx_inflight_step *f)
{
    bool stop = (isnan(f->loss) && r->rules.abort_on_nan_loss) ||
                (isinf(f->loss) && r->rules.abort_on_inf_loss);
    if (stop)
        return mx_fail(MX_CHECK_FAILED,
                       "step %lld: the loss is %g (gradient norm %g); nothing was updated. "
                       "Lower learning_rate, look at the data with `maxc data`, or set "
                       "abort_on_nan_loss=false to skip such steps",
                       (long long)f->step, f->loss, f->grad_norm);
    mx_progress_say(&r->progress, "step %lld: loss %g, gradient norm %g; the update was skipped",
                    (long long)f->step, f->loss, f->grad_norm);
    int64_t limit = r->rules.rollback_after_skips;
    return limit && r->at.skipped_in_row >= limit ? roll_back(r) : MX_OK;
}

static mx_status finish(mx_run *r, bool stopped)
{
    mx_run_spend(r, MX_GOODPUT_CHECKPOINT);
    bool want = stopped ? r->rules.save_on_signal : r->rules.save_on_completion;
    if (!r->ckpt || (stopped && !want))
        return stopped ? mx_fail(MX_STOPPED, "stopped at step %lld; %s, nothing was saved",
                                 (long long)r->at.step,
                                 r->ckpt ? "enable_autocheckpoint is false"
                                         : "checkpoints are off")
                       : MX_OK;
    mx_status st = mx_ckpt_wait(r->ckpt); /* how it went is then known on every rank */
    if (want && mx_ckpt_poll(r->ckpt).last_step != r->at.step && r->own_step != r->at.step) {
        mx_status_free(st);
        MX_TRY(save(r));
        st = mx_ckpt_wait(r->ckpt);
    }
    if (st) {
        bool kept;
        const char *why = mx_arena_printf(
            &r->arena, "the last checkpoint could not be written: %s", mx_status_text(st));
        mx_status_free(st);
        return mx_run_local_checkpoint_save(r, why, &kept);
    }
    mx_run_local_checkpoint_clear(r, mx_ckpt_poll(r->ckpt).last_step);
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

/* Does what the next step is given, or whether there is one, depend on how the last one went? */
static bool must_know(const mx_run *r)
{
    int64_t limit = r->rules.rollback_after_skips;
    return r->spikes.cap || (limit && r->at.skipped_in_row + 1 >= limit);
}

static bool evaluates_at(const mx_run *r, int64_t step)
{
    const mx_run_rules *u = &r->rules;
    return r->programs.evaluates && step % u->eval_interval == 0 && step >= u->eval_start_step;
}

static bool saves_at(mx_run *r, int64_t step)
{
    if (!r->ckpt || step >= r->steps)
        return false;
    bool busy = r->comm->size > 1 ? r->writer_busy : mx_ckpt_poll(r->ckpt).writing;
    bool idle = r->rules.save_always && !busy;
    return idle || step % r->rules.checkpoint_period == 0;
}

mx_status mx_run_loop(mx_run *r)
{
    bool reached = false;
    mx_progress_begin(&r->progress, r->at.step);
    bool is_local = r->local_step >= 0; /* make it durable before anything else */
    if (r->ckpt && ((r->rules.save_on_start && r->at.step == 0) || is_local))
        MX_TRY(save(r));
    for (;;) {
        bool end;
        MX_TRY(mx_run_poll(r));
        MX_TRY(give_up_saving(r));
        if (r->at.step >= r->steps || r->stops || reached)
            break;
        mx_status st = mx_run_launch(r, &end);
        if (st) { /* the step before is reported all the same */
            mx_status_free(mx_run_settle(r, r->at.step));
            return mx_status_wrap(st, "step %lld", (long long)(r->at.step + 1));
        }
        if (end) {
            MX_TRY(mx_run_settle(r, r->at.step));
            mx_progress_say(&r->progress, "the data ended after %lld steps", (long long)r->at.step);
            break;
        }
        int64_t step = r->at.step;
        bool eval = evaluates_at(r, step), saves = saves_at(r, step);
        MX_TRY(mx_run_settle(r, step - 1));
        if (eval || saves || must_know(r))
            MX_TRY(mx_run_settle(r, step));
        mx_run_profile_end(r, false);
        if (r->at.step != step) /* the run went back */
            continue;
        if (eval)
            MX_TRY(evaluate(r));
        reached = eval && r->last_eval <= r->rules.target_eval_loss;
        if (reached)
            mx_progress_say(&r->progress, "the evaluation has reached target_eval_loss=%g",
                            r->rules.target_eval_loss);
        if (saves)
            MX_TRY(save(r));
    }
    MX_TRY(mx_run_settle(r, r->at.step));
    mx_progress_end(&r->progress);
    return finish(r, r->stops && r->at.step < r->steps);
}

/* One rank of a run, or all of it. */
static mx_status run_rank(const mx_run_start *s, const mx_mesh_rank *mesh_rank)
{
    mx_run r;
    mx_status st = mx_run_open(&r, s, mesh_rank);
    if (!st && !r.finished)
        st = mx_run_loop(&r);
    if (st && r.coord && mx_status_code(st) != MX_STOPPED)
        mx_coord_abort(r.coord, mx_status_text(st));
    mx_run_profile_end(&r, true);
    mx_run_watch_close(&r, st);
    mx_run_close(&r);
    return st;
}

static mx_status virtual_rank(void *ctx, const mx_mesh_rank *mesh_rank)
{
    return run_rank(ctx, mesh_rank);
}

/* This process is one rank of the mesh. */
static mx_status run_process(const mx_run_start *s, const mx_mesh_plan *mesh, int rank)
{
    mx_mesh_rank mesh_rank = {.mesh = mesh, .how = mesh->how, .rank = rank,
                        .n_threads = (int)mx_config_int(s->config, "num_threads")};
    mesh_rank.how.rank = rank;
    return run_rank(s, &mesh_rank);
}

mx_status mx_run_train(const mx_config *c, const char *command_line)
{
    return mx_run_objective(c, NULL, command_line);
}

mx_status mx_run_objective(const mx_config *c, const mx_objective *objective,
                           const char *command_line)
{
    mx_launch launch;
    mx_mesh_plan mesh = {0};
    mx_run_start s = {c, objective, command_line};
    MX_TRY(mx_signals_install()); /* before the first line is printed: its reader may be gone */
    MX_TRY(mx_launch_find(&launch, getenv));
    mx_status st = mx_mesh_configure(&mesh, c, launch.size);
    if (!st && mesh.ranks > 1)
        st = launch.size == 1 ? mx_virtual_ranks(&mesh, (int)mx_config_int(c, "num_threads"),
                                                 virtual_rank, &s)
                              : run_process(&s, &mesh, launch.rank);
    else if (!st)
        st = run_rank(&s, NULL);
    mx_mesh_plan_fini(&mesh);
    return st;
}

/* run_loop.c - the steps of a run.
 *
 * A step reads one global batch, runs its microbatches, updates, and is reported when the next one
 * is under way (run_step.c). Loss is summed over tokens and divided by the tokens of the whole
 * batch, so accumulation changes nothing but memory. A step whose gradients are not finite changes
 * no weight (the update op sees to that); it is counted. So is a spike, with skip_step_on_spikes:
 * the limits are inputs of the step (optimizer.c), the same numbers decide here.
 */
#include "train/run/run.h"
#include "train/run/run_state.h"

#include "base/signals.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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
    mx_progress_say(&r->report.progress,
                    "step %lld: loss %g, gradient norm %g; the update was skipped",
                    (long long)f->step, f->loss, f->grad_norm);
    int64_t limit = r->rules.rollback_after_skips;
    return limit && r->at.skipped_in_row >= limit ? mx_run_roll_back(r) : MX_OK;
}

/* Does what the next step is given, or whether there is one, depend on how the last one went? */
static bool must_know(const mx_run *r)
{
    int64_t limit = r->rules.rollback_after_skips;
    return r->loop.spikes.cap || (limit && r->at.skipped_in_row + 1 >= limit);
}

/* Steps, evaluation, checkpoints, until the end or a signal. */
static mx_status loop(mx_run *r)
{
    bool reached = false;
    mx_progress_begin(&r->report.progress, r->at.step);
    bool is_local = r->saving.local_step >= 0; /* make it durable before anything else */
    if (r->saving.ckpt && ((r->rules.save_on_start && r->at.step == 0) || is_local))
        MX_TRY(mx_run_save(r));
    if (r->at.step == 0 && mx_run_measures_at(r, 0))
        MX_TRY(mx_run_measure(r));
    for (;;) {
        bool end;
        MX_TRY(mx_run_poll(r));
        MX_TRY(mx_run_give_up_saving(r));
        if (r->at.step >= r->steps || r->ranks.stops || reached)
            break;
        mx_status st = mx_run_launch(r, &end);
        if (st) { /* the step before is reported all the same */
            mx_status_free(mx_run_settle(r, r->at.step));
            return mx_status_wrap(st, "step %lld", (long long)(r->at.step + 1));
        }
        if (end) {
            MX_TRY(mx_run_settle(r, r->at.step));
            mx_progress_say(&r->report.progress, "the data ended after %lld steps",
                            (long long)r->at.step);
            break;
        }
        int64_t step = r->at.step;
        bool eval = mx_run_evaluates_at(r, step), saves = mx_run_saves_at(r, step);
        bool measures = mx_run_measures_at(r, step);
        MX_TRY(mx_run_settle(r, step - 1));
        if (eval || saves || measures || must_know(r))
            MX_TRY(mx_run_settle(r, step));
        mx_run_profile_end(r, false);
        if (r->at.step != step) /* the run went back */
            continue;
        if (eval)
            MX_TRY(mx_run_evaluate(r));
        reached = eval && r->loop.last_eval <= r->rules.target_eval_loss;
        if (reached)
            mx_progress_say(&r->report.progress, "the evaluation has reached target_eval_loss=%g",
                            r->rules.target_eval_loss);
        if (measures)
            MX_TRY(mx_run_measure(r));
        if (saves)
            MX_TRY(mx_run_save(r));
    }
    MX_TRY(mx_run_settle(r, r->at.step));
    mx_progress_end(&r->report.progress);
    return mx_run_save_last(r, r->ranks.stops && r->at.step < r->steps);
}

/* "rank 3: ...": what another rank has said (mx_comm_agree). */
static bool is_of_another(const char *text)
{
    int rank, n = 0;
    return sscanf(text, "rank %d:%n", &rank, &n) == 1 && n > 0;
}

/* One rank of a run, or all of it. */
static mx_status run_rank(const mx_run_start *s, const mx_mesh_rank *mesh_rank)
{
    mx_run r;
    mx_status st = mx_run_open(&r, s, mesh_rank);
    bool began = !st;
    if (!st && !r.claim.finished)
        st = loop(&r);
    if (st && r.ranks.coord && mx_status_code(st) != MX_STOPPED)
        mx_coord_abort(r.ranks.coord, mx_status_code(st), mx_status_text(st));
    bool joined = r.ranks.coord && !r.ranks.leads; /* settings were compared */
    mx_run_profile_end(&r, true);
    mx_run_watch_close(&r, st);
    mx_run_close(&r);
    bool by_rank0 = r.ranks.rank0_reports;
    /* Ranks have the same settings, so rank 0 has the same error, or was sent this one. */
    bool said = joined && mx_status_code(st) == MX_USAGE && !is_of_another(mx_status_text(st));
    mx_code code = mx_status_code(st);
    if (!st || code == MX_STOPPED || !(said || (by_rank0 && !began)))
        return st;
    mx_status_free(st);
    return mx_fail(code, "%s", "");
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
    mx_run_start s = {c, objective, command_line, NULL, MX_OK};
    mx_str note = {0};
    /* before the first line is printed: its reader may be gone */
    MX_TRY(mx_signals_install("maxc: stopping after this step, with a checkpoint; Ctrl-C twice "
                              "more stops at once\n"));
    MX_TRY(mx_launch_find(&launch, getenv));
    mx_status st = mx_run_choose_mesh(&s, &launch, &note);
    s.note = mx_str_text(&note);
    if (!st)
        st = mx_mesh_configure(&mesh, c, launch.size);
    s.refused = launch.size > 1 ? st : MX_OK; /* for rank 0 to say, when all are there */
    if (s.refused)
        st = run_rank(&s, NULL);
    else if (!st && mesh.ranks > 1)
        st = launch.size == 1 ? mx_virtual_ranks(&mesh, (int)mx_config_int(c, "num_threads"),
                                                 virtual_rank, &s)
                              : run_process(&s, &mesh, launch.rank);
    else if (!st)
        st = run_rank(&s, NULL);
    mx_status_free(s.refused);
    mx_mesh_plan_fini(&mesh);
    mx_str_fini(&note);
    return st;
}

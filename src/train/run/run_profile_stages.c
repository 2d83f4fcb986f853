/* run_profile_stages.c - a pipeline in the profile: what every stage did, and for how long it had
 * nothing to do.
 *
 * Every rank notes when the actions of its list began and ended (exec/pipeline.h); rank 0 gathers
 * them after each measured step and writes one trace, a process of Perfetto's for each stage and a
 * thread for each rank. Clocks of machines are brought together by the time of day.
 *
 * A stage is idle while it runs no F, B or W between the first and the last action of the step. For
 * comparison the schedule is played with stages that all take the mean time.
 */
#include "train/run/run_profile.h"

#include "base/clock.h"
#include <string.h>

static const char *const kinds[MX_DO_KINDS] = {
    [MX_DO_F] = "forward",    [MX_DO_B] = "backward",        [MX_DO_W] = "weight gradients",
    [MX_DO_RECEIVE] = "wait", [MX_DO_RECEIVE_GRAD] = "wait", [MX_DO_AWAIT] = "wait"};
static const char *const letters[] = {[MX_DO_F] = "F", [MX_DO_B] = "B", [MX_DO_W] = "W"};

typedef struct {
    double from, to;         /* of all stages */
    double busy, all[MX_DO_KINDS]; /* seconds, and by kind */
    int64_t n[MX_DO_KINDS];
} step_times;

static int longest_list(const mx_pipeline_schedule *s)
{
    int n = 0;
    for (int i = 0; i < s->stages; i++)
        n = s->list[i].n > n ? s->list[i].n : n;
    return n;
}

void mx_run_profile_stages_begin(mx_run *r)
{
    mx_pipeline *p = &r->programs.pipeline;
    if (!p->took)
        p->took = MX_NEW_N(&r->arena, double, 2 * longest_list(&p->schedule));
}

static void add_up(const mx_action_list *l, const double *took, step_times *t)
{
    for (int i = 0; i < l->n; i++) {
        mx_action_kind kind = l->action[i].kind;
        if (kind > MX_DO_W)
            continue;
        t->from = t->from > 0 && t->from < took[2 * i] ? t->from : took[2 * i];
        t->to = t->to > took[2 * i + 1] ? t->to : took[2 * i + 1];
        t->busy += took[2 * i + 1] - took[2 * i];
        t->all[kind] += took[2 * i + 1] - took[2 * i];
        t->n[kind]++;
    }
}

static void show(mx_run *r, const mx_action_list *l, const double *took, mx_profile_event e)
{
    const mx_pipeline_schedule *s = &r->programs.pipeline.schedule;
    char label[64];
    for (int i = 0; i < l->n; i++) {
        const mx_action *a = &l->action[i];
        if (!kinds[a->kind])
            continue;
        const char *word = a->kind <= MX_DO_W ? letters[a->kind] : kinds[a->kind];
        snprintf(label, sizeof label, s->repeats > 1 ? "%s %d of chunk %d" : "%s %d", word,
                 a->microbatch, a->chunk);
        e.label = label;
        e.kind = e.total = kinds[a->kind];
        e.began = took[2 * i];
        e.ended = took[2 * i + 1];
        mx_run_profile_add(r, &e);
    }
}

static double mean(const step_times *t, mx_action_kind kind)
{
    return t->n[kind] ? t->all[kind] / (double)t->n[kind] : 0;
}

static void count_idle(mx_run *r, const step_times *t)
{
    mx_run_profile *p = r->report.profile;
    mx_pipeline_costs c = {mean(t, MX_DO_F), mean(t, MX_DO_B), mean(t, MX_DO_W), 0};
    mx_pipeline_times equal;
    double span = (t->to - t->from) * r->ranks.comm->size;
    mx_status st = mx_pipeline_simulate(&r->programs.pipeline.schedule, c, &equal);
    if (!st)
        p->share_of_equal = (equal.end - equal.busy) / equal.end;
    mx_status_free(st);
    p->span_s += span;
    p->idle_s += span - t->busy;
}

mx_status mx_run_profile_stages_take(mx_run *r)
{
    mx_pipeline *l = &r->programs.pipeline;
    mx_run_profile *p = r->report.profile;
    if (!p || !l->took)
        return MX_OK;
    int n = 2 * longest_list(&l->schedule), ranks = r->ranks.comm->size;
    double here = mx_clock_wall() - mx_clock_now(), *all;
    for (int i = 0; i < n; i++)
        l->took[i] += here;
    MX_TRY(mx_alloc((void **)&all, sizeof *all * (size_t)n * (size_t)ranks, "a trace of stages"));
    mx_status st = mx_comm_gather(r->ranks.comm, l->took, sizeof *all * (size_t)n, all);
    step_times t = {0};
    for (int pass = 0; pass < 2 && !st && r->ranks.leads; pass++)
        for (int k = 0; k < ranks; k++) {
            int stage = mx_mesh_coordinate(&r->mesh_rank->mesh->mesh, k, MX_AXIS_STAGE);
            double *took = all + (ptrdiff_t)k * n;
            for (int i = 0; i < n && !pass; i++)
                took[i] -= here;
            if (!pass)
                add_up(&l->schedule.list[stage], took, &t);
            else
                show(r, &l->schedule.list[stage], took,
                     (mx_profile_event){.process = 1 + stage, .thread = k});
            if (pass == 0 && !p->trace.len)
                p->began = t.from;
        }
    if (!st && r->ranks.leads)
        count_idle(r, &t);
    mx_free(all);
    return st;
}

void mx_run_profile_stages_end(mx_run *r)
{
    const mx_run_profile *p = r->report.profile;
    r->programs.pipeline.took = NULL;
    if (p->span_s > 0)
        mx_progress_say(&r->report.progress,
                        "stages were idle for %.1f %% of the time; if all took equally long it "
                        "would be %.1f %%",
                        100 * p->idle_s / p->span_s, 100 * p->share_of_equal);
}

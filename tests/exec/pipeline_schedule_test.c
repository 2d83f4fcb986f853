/* pipeline_schedule_test.c - schedules of pipelines: right for all sizes, as short as their
 * formulas say, and within their memory. */
#include "../test.h"
#include "exec/pipeline_schedule.h"
#include <math.h>

static const mx_pipeline_costs equal = {.f = 1, .b = 1, .w = 1};

static mx_pipeline_times simulate(const mx_pipeline_schedule *s, mx_pipeline_costs c)
{
    mx_pipeline_times t;
    MX_CHECK_OK(mx_pipeline_simulate(s, c, &t));
    return t;
}

/* Microbatches in flight on stage i at most, over all of its chunks. */
static int peak(const mx_pipeline_schedule *s, int stage)
{
    int now = 0, most = 0;
    for (int i = 0; i < s->list[stage].n; i++) {
        mx_action_kind k = s->list[stage].action[i].kind;
        now += k == MX_DO_F ? 1 : k == (s->split ? MX_DO_W : MX_DO_B) ? -1 : 0;
        most = now > most ? now : most;
    }
    return most;
}

static int allowed(const mx_pipeline_schedule *s, int stage)
{
    int p = s->stages, m = s->microbatches;
    if (s->kind == MX_PIPELINE_GPIPE)
        return m;
    if (s->kind == MX_PIPELINE_ZB_H1)
        return p;
    if (s->repeats == 1)
        return p - stage;
    int group = m < p ? m : (m + m / p - 1) / (m / p);
    return 2 * (p - stage - 1) + (s->repeats - 1) * group + 1;
}

/* Idle time of a stage by the formula of its kind, for equal chunks and at least as many
 * microbatches as stages. */
static double idle_by_formula(const mx_pipeline_schedule *s, mx_pipeline_costs c)
{
    double turn = c.f + c.b + c.w;
    return (s->stages - 1) * (s->split ? turn - 2 * c.w : turn);
}

static void check(mx_pipeline_kind kind, int stages, int repeats, int microbatches)
{
    mx_pipeline_schedule s;
    MX_CHECK_OK(mx_pipeline_schedule_init(&s, kind, stages, repeats, microbatches));
    mx_pipeline_times t = simulate(&s, equal);
    double idle = idle_by_formula(&s, equal), extra = t.end - t.busy;
    bool fills = microbatches >= stages, exact = repeats == 1 || microbatches % stages == 0;
    MX_CHECK(t.busy == 3.0 * microbatches * repeats, "busy for %g", t.busy);
    MX_CHECK(!fills || (exact ? extra == idle : extra <= idle),
             "%s of %d stages, %d chunks each, %d microbatches: %g idle, the formula says %g",
             mx_pipeline_kind_name(kind), stages, repeats, microbatches, extra, idle);
    for (int i = 0; i < stages; i++)
        MX_CHECK(peak(&s, i) <= allowed(&s, i), "%s: %d in flight on stage %d of %d, %d allowed",
                 mx_pipeline_kind_name(kind), peak(&s, i), i, stages, allowed(&s, i));
    mx_pipeline_schedule_fini(&s);
}

MX_TEST(pipeline_schedules_of_all_sizes)
{
    for (int stages = 2; stages <= 8; stages++)
        for (int m = 1; m <= 24; m++) {
            check(MX_PIPELINE_GPIPE, stages, 1, m);
            check(MX_PIPELINE_1F1B, stages, 1, m);
            check(MX_PIPELINE_ZB_H1, stages, 1, m);
            for (int repeats = 1; repeats <= 4; repeats++)
                check(MX_PIPELINE_INTERLEAVED, stages, repeats, m);
        }
}

MX_TEST(pipeline_schedules_forward)
{
    for (int stages = 2; stages <= 5; stages++)
        for (int repeats = 1; repeats <= 3; repeats++)
            for (int m = 1; m <= 5; m++) {
                mx_pipeline_schedule s;
                MX_CHECK_OK(
                    mx_pipeline_schedule_init(&s, MX_PIPELINE_FORWARD, stages, repeats, m));
                MX_CHECK(simulate(&s, equal).busy == m * repeats, "%d stages", stages);
                for (int k = 0; k < s.chunks; k++)
                    MX_CHECK(s.n_slots[k] == 1, "%d slots", s.n_slots[k]);
                mx_pipeline_schedule_fini(&s);
            }
}

/* The shares of idle time that the literature gives. */
MX_TEST(pipeline_bubbles)
{
    static const struct {
        mx_pipeline_kind kind;
        int repeats;
        double share;
    } known[] = {{MX_PIPELINE_GPIPE, 1, 3.0 / 11}, {MX_PIPELINE_1F1B, 1, 3.0 / 11},
                 {MX_PIPELINE_INTERLEAVED, 2, 3.0 / 19}, {MX_PIPELINE_ZB_H1, 1, 1.0 / 9}};
    for (int i = 0; i < 4; i++) {
        mx_pipeline_schedule s;
        MX_CHECK_OK(mx_pipeline_schedule_init(&s, known[i].kind, 4, known[i].repeats, 8));
        mx_pipeline_times t = simulate(&s, equal);
        double share = (t.end - t.busy) / t.end;
        MX_CHECK(fabs(share - known[i].share) < 1e-12, "%s is idle for %g, expected %g",
                 mx_pipeline_kind_name(known[i].kind), share, known[i].share);
        mx_pipeline_schedule_fini(&s);
    }
}

static void breaks(mx_action_kind kind, int with, const char *says)
{
    mx_pipeline_schedule s;
    mx_pipeline_times t;
    MX_CHECK_OK(mx_pipeline_schedule_init(&s, MX_PIPELINE_1F1B, 3, 1, 5));
    mx_action_list *l = &s.list[1];
    int i = 0;
    while (l->action[i].kind != kind)
        i++;
    mx_action a = l->action[i];
    if (with < 0) { /* left out */
        for (int k = i; k + 1 < l->n; k++)
            l->action[k] = l->action[k + 1];
        l->n--;
    } else {
        int k = i + with;
        l->action[i] = l->action[k];
        l->action[k] = a;
    }
    MX_CHECK_ERROR(mx_pipeline_simulate(&s, equal, &t), says);
    mx_pipeline_schedule_fini(&s);
}

MX_TEST(pipeline_schedules_that_are_wrong_are_found)
{
    breaks(MX_DO_SEND, -1, "waits for ever");
    breaks(MX_DO_RECEIVE, -1, "reads what is not there");
    breaks(MX_DO_RECEIVE_GRAD, -1, "reads what is not there");
    breaks(MX_DO_F, 1, "reads what is not there");
    breaks(MX_DO_AWAIT, -1, "its slot is in use");
    breaks(MX_DO_RECEIVE_GRAD, 2, "reads what is not there");
    mx_pipeline_schedule s;
    MX_CHECK_ERROR(mx_pipeline_schedule_init(&s, MX_PIPELINE_1F1B, 4, 2, 8), "interleaved");
    MX_CHECK_ERROR(mx_pipeline_schedule_init(&s, MX_PIPELINE_GPIPE, 1, 1, 8), "at least 2");
}

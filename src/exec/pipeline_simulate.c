/* pipeline_simulate.c - plays a schedule: is it right, and how long does it take? */
#include "exec/pipeline_schedule.h"

#include <math.h>

typedef struct {
    const mx_pipeline_schedule *s;
    double *done; /* when action kind of (chunk, microbatch) ended; < 0: not yet */
    int *slot_of; /* by (chunk, microbatch): 1 + slot while it is held */
    int *next;    /* by chunk and kind: the microbatch that comes */
    int *at;      /* by stage: its next action */
    double *now, *busy;
    mx_arena scratch;
} player;

/* The last thing that is done with a microbatch. */
static mx_action_kind last_of(const mx_pipeline_schedule *s)
{
    return s->kind == MX_PIPELINE_FORWARD ? MX_DO_F : s->split ? MX_DO_W : MX_DO_B;
}

static double *when(const player *p, mx_action_kind kind, int chunk, int microbatch)
{
    size_t m = (size_t)p->s->microbatches;
    return &p->done[((size_t)kind * (size_t)p->s->chunks + (size_t)chunk) * m + (size_t)microbatch];
}

static const char *const words[MX_DO_KINDS] = {"F", "B", "W", "receive", "send", "post_grad",
                                               "receive_grad", "send_grad", "await"};

static mx_status wrong(const player *p, int stage, const mx_action *a, const char *what)
{
    return mx_fail(MX_USAGE, "stage %d, action %d, %s of chunk %d and microbatch %d: %s", stage,
                   p->at[stage], words[a->kind], a->chunk, a->microbatch, what);
}

/* What must have ended before a begins; NULL: nothing. */
static const double *waits_for(const player *p, const mx_action *a)
{
    switch (a->kind) {
    case MX_DO_RECEIVE:
        return when(p, MX_DO_SEND, a->chunk - 1, a->microbatch);
    case MX_DO_RECEIVE_GRAD:
        return when(p, MX_DO_SEND_GRAD, a->chunk + 1, a->microbatch);
    case MX_DO_AWAIT:
        if (p->s->kind == MX_PIPELINE_FORWARD)
            return a->chunk + 1 < p->s->chunks
                       ? when(p, MX_DO_RECEIVE, a->chunk + 1, a->microbatch) : NULL;
        return a->chunk ? when(p, MX_DO_POST_GRAD, a->chunk - 1, a->microbatch) : NULL;
    default:
        return NULL;
    }
}

/* What the same stage must have done before. */
static bool has_inputs(const player *p, const mx_action *a)
{
    int k = a->chunk, m = a->microbatch;
    bool first = k == 0, last = k == p->s->chunks - 1;
    switch (a->kind) {
    case MX_DO_F:
        return first || *when(p, MX_DO_RECEIVE, k, m) >= 0;
    case MX_DO_B:
        return *when(p, MX_DO_F, k, m) >= 0 && (last || *when(p, MX_DO_RECEIVE_GRAD, k, m) >= 0);
    case MX_DO_W:
    case MX_DO_SEND_GRAD:
        return *when(p, MX_DO_B, k, m) >= 0;
    case MX_DO_SEND:
    case MX_DO_POST_GRAD:
        return *when(p, MX_DO_F, k, m) >= 0;
    case MX_DO_RECEIVE_GRAD:
        return *when(p, MX_DO_POST_GRAD, k, m) >= 0;
    case MX_DO_AWAIT:
        return *when(p, last_of(p->s), k, m) >= 0;
    default:
        return true;
    }
}

static mx_status check_slot(player *p, int stage, const mx_action *a)
{
    size_t m = (size_t)p->s->microbatches;
    int *slot = &p->slot_of[(size_t)a->chunk * m], *mine = &slot[a->microbatch];
    bool begins = a->kind == (a->chunk ? MX_DO_RECEIVE : MX_DO_F);
    if (a->slot < 0 || a->slot >= p->s->n_slots[a->chunk])
        return wrong(p, stage, a, "there is no such slot");
    if (begins) {
        for (int i = 0; i < p->s->microbatches; i++)
            if (slot[i] == a->slot + 1)
                return wrong(p, stage, a, "its slot is in use");
        *mine = a->slot + 1;
    } else if (a->kind != MX_DO_AWAIT && *mine != a->slot + 1) {
        return wrong(p, stage, a, "its values lie in another slot");
    }
    return MX_OK;
}

/* A slot is free once the last reader is through and what leaves from it has been taken. */
static void release(player *p, const mx_action *a)
{
    if (a->kind == MX_DO_AWAIT)
        p->slot_of[(size_t)a->chunk * (size_t)p->s->microbatches + (size_t)a->microbatch] = 0;
}

static mx_status check_order(player *p, int stage, const mx_action *a)
{
    int *next = &p->next[a->chunk * MX_DO_KINDS + (int)a->kind];
    if (a->chunk % p->s->stages != stage)
        return wrong(p, stage, a, "this stage does not have the chunk");
    if (*when(p, a->kind, a->chunk, a->microbatch) >= 0)
        return wrong(p, stage, a, "it was done before");
    if ((a->kind == MX_DO_B || a->kind == MX_DO_W) && *next != a->microbatch)
        return wrong(p, stage, a, "gradients are not summed in the order of microbatches");
    *next = a->microbatch + 1;
    return has_inputs(p, a) ? MX_OK : wrong(p, stage, a, "it reads what is not there yet");
}

static double cost_of(const player *p, const mx_action *a, mx_pipeline_costs c)
{
    switch (a->kind) {
    case MX_DO_F:
        return c.f;
    case MX_DO_B:
        return p->s->split ? c.b : c.b + c.w;
    case MX_DO_W:
        return c.w;
    default:
        return 0;
    }
}

/* The next actions of a stage, as far as it comes; *moved says whether there was one. */
static mx_status play(player *p, int stage, mx_pipeline_costs c, bool *moved)
{
    const mx_action_list *l = &p->s->list[stage];
    for (; p->at[stage] < l->n; p->at[stage]++) {
        const mx_action *a = &l->action[p->at[stage]];
        const double *other = waits_for(p, a);
        if (other && *other < 0)
            return MX_OK;
        MX_TRY(check_order(p, stage, a));
        MX_TRY(check_slot(p, stage, a));
        double took = cost_of(p, a, c);
        if (other)
            p->now[stage] = fmax(p->now[stage], *other + (a->kind == MX_DO_AWAIT ? 0 : c.message));
        p->now[stage] += took;
        p->busy[stage] += took;
        *when(p, a->kind, a->chunk, a->microbatch) = p->now[stage];
        release(p, a);
        *moved = true;
    }
    return MX_OK;
}

static mx_status play_all(player *p, mx_pipeline_costs c)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < p->s->stages; i++)
            MX_TRY(play(p, i, c, &moved));
    }
    for (int i = 0; i < p->s->stages; i++)
        if (p->at[i] < p->s->list[i].n)
            return wrong(p, i, &p->s->list[i].action[p->at[i]], "it waits for ever");
    for (int k = 0; k < p->s->chunks; k++)
        for (int d = MX_DO_F; d <= (int)last_of(p->s); d++)
            if (p->next[k * MX_DO_KINDS + d] < p->s->microbatches)
                return mx_fail(MX_USAGE, "%s of chunk %d is missing for microbatch %d", words[d], k,
                               p->next[k * MX_DO_KINDS + d]);
    return MX_OK;
}

mx_status mx_pipeline_simulate(const mx_pipeline_schedule *s, mx_pipeline_costs c,
                               mx_pipeline_times *out)
{
    player p = {.s = s};
    size_t n = (size_t)s->chunks * (size_t)s->microbatches;
    p.done = MX_NEW_N(&p.scratch, double, n * MX_DO_KINDS);
    for (size_t i = 0; i < n * MX_DO_KINDS; i++)
        p.done[i] = -1;
    p.slot_of = MX_NEW_N(&p.scratch, int, n);
    p.next = MX_NEW_N(&p.scratch, int, s->chunks * MX_DO_KINDS);
    p.at = MX_NEW_N(&p.scratch, int, s->stages);
    p.now = MX_NEW_N(&p.scratch, double, s->stages);
    p.busy = MX_NEW_N(&p.scratch, double, s->stages);
    mx_status st = play_all(&p, c);
    *out = (mx_pipeline_times){0};
    for (int i = 0; i < s->stages; i++) {
        out->end = fmax(out->end, p.now[i]);
        out->busy = fmax(out->busy, p.busy[i]);
    }
    mx_arena_fini(&p.scratch);
    return st;
}

/* pipeline_schedule.c - lists of actions: made, given slots and messages; see pipeline_schedule.h.
 *
 * On stage i of p:
 *     1f1b         p - i - 1 times F, then F and B alternating, then the B that are left
 *     zero_bubble  the same; W of microbatch j follows B of microbatch j + i, so no more than p are
 *                  in flight on any stage
 *     interleaved  microbatches go in groups of at least p; a group passes chunk after chunk.
 *                  2 (p - i - 1) + (r - 1) group times F, then F and B alternating
 */
#include "exec/pipeline_schedule.h"

#include <string.h>

static const char *const names[MX_PIPELINE_KINDS] = {"gpipe", "1f1b", "interleaved", "zero_bubble",
                                                       "forward"};

bool mx_pipeline_kind_parse(const char *name, mx_pipeline_kind *out)
{
    for (int k = 0; k < MX_PIPELINE_KINDS; k++)
        if (strcmp(names[k], name) == 0) {
            *out = (mx_pipeline_kind)k;
            return true;
        }
    return false;
}

const char *mx_pipeline_kind_name(mx_pipeline_kind k)
{
    return names[k];
}

static void add(mx_action_list *l, mx_action_kind kind, int chunk, int microbatch)
{
    MX_GROW(l->action, l->n, l->cap);
    l->action[l->n++] = (mx_action){kind, chunk, microbatch, 0};
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* One chunk for each stage: `ahead` times F, then alternating; W follows B by `delay`. */
static void in_turns(const mx_pipeline_schedule *s, int stage, int ahead, int delay)
{
    mx_action_list *l = &s->list[stage];
    int m = s->microbatches, f = 0, w = 0;
    while (f < least(ahead, m))
        add(l, MX_DO_F, stage, f++);
    for (int b = 0; b < m; b++) {
        if (f < m)
            add(l, MX_DO_F, stage, f++);
        add(l, MX_DO_B, stage, b);
        if (s->split && b >= delay)
            add(l, MX_DO_W, stage, w++);
    }
    while (s->split && w < m)
        add(l, MX_DO_W, stage, w++);
}

/* The i-th F of an interleaved stage, or the i-th B: group by group, in it chunk by chunk. */
static mx_action of_groups(const mx_pipeline_schedule *s, int stage, int i, mx_action_kind kind)
{
    int m = s->microbatches, r = s->repeats, groups = m / s->stages > 0 ? m / s->stages : 1;
    int first = 0, size = 0;
    for (int g = 0; g < groups; g++) {
        size = m / groups + (g < m % groups);
        if (i < size * r)
            break;
        i -= size * r;
        first += size;
    }
    int turn = kind == MX_DO_F ? i / size : r - 1 - i / size;
    return (mx_action){kind, turn * s->stages + stage, first + i % size, 0};
}

static void add_of_groups(const mx_pipeline_schedule *s, int stage, int i, mx_action_kind kind)
{
    mx_action a = of_groups(s, stage, i, kind);
    add(&s->list[stage], kind, a.chunk, a.microbatch);
}

static void interleave(const mx_pipeline_schedule *s, int stage)
{
    int m = s->microbatches, p = s->stages, total = m * s->repeats, f = 0;
    int groups = m / p > 0 ? m / p : 1, group = (m + groups - 1) / groups;
    int ahead = least(total, 2 * (p - stage - 1) + (s->repeats - 1) * group);
    while (f < ahead)
        add_of_groups(s, stage, f++, MX_DO_F);
    for (int b = 0; b < total; b++) {
        if (f < total)
            add_of_groups(s, stage, f++, MX_DO_F);
        add_of_groups(s, stage, b, MX_DO_B);
    }
}

/* One microbatch after the other through all chunks of the stage. */
static void go_forward(const mx_pipeline_schedule *s, int stage)
{
    for (int m = 0; m < s->microbatches; m++)
        for (int k = stage; k < s->chunks; k += s->stages)
            add(&s->list[stage], MX_DO_F, k, m);
}

/* --- slots and messages --- */

typedef struct {
    mx_pipeline_schedule *s;
    mx_action_list *to;
    int *holds; /* of chunk k, slot i: 1 + the microbatch in it, [k * microbatches + i] */
    int *sent;  /* likewise: 1 + the microbatch whose messages may not have been taken */
} lowering;

static void put(lowering *w, mx_action_kind kind, const mx_action *a, int slot)
{
    add(w->to, kind, a->chunk, a->microbatch);
    w->to->action[w->to->n - 1].slot = slot;
}

static void await(lowering *w, int chunk, int slot)
{
    int *sent = &w->sent[(size_t)chunk * (size_t)w->s->microbatches + (size_t)slot];
    if (*sent)
        put(w, MX_DO_AWAIT, &(mx_action){.chunk = chunk, .microbatch = *sent - 1}, slot);
    *sent = 0;
}

static void lower_f(lowering *w, const mx_action *a)
{
    int *holds = &w->holds[(size_t)a->chunk * (size_t)w->s->microbatches], slot = 0;
    while (holds[slot])
        slot++;
    holds[slot] = a->microbatch + 1;
    if (slot >= w->s->n_slots[a->chunk])
        w->s->n_slots[a->chunk] = slot + 1;
    await(w, a->chunk, slot);
    if (a->chunk > 0)
        put(w, MX_DO_RECEIVE, a, slot);
    put(w, MX_DO_F, a, slot);
    bool forward = w->s->kind == MX_PIPELINE_FORWARD;
    if (a->chunk < w->s->chunks - 1) {
        if (!forward)
            put(w, MX_DO_POST_GRAD, a, slot);
        put(w, MX_DO_SEND, a, slot);
    }
    if (forward) {
        holds[slot] = 0;
        w->sent[(size_t)a->chunk * (size_t)w->s->microbatches + (size_t)slot] = a->microbatch + 1;
    }
}

static void lower(lowering *w, const mx_action *a)
{
    size_t base = (size_t)a->chunk * (size_t)w->s->microbatches;
    int *holds = &w->holds[base], slot = 0;
    if (a->kind == MX_DO_F) {
        lower_f(w, a);
        return;
    }
    while (holds[slot] != a->microbatch + 1)
        slot++;
    if (a->kind == MX_DO_B && a->chunk < w->s->chunks - 1)
        put(w, MX_DO_RECEIVE_GRAD, a, slot);
    put(w, a->kind, a, slot);
    if (a->kind == MX_DO_B && a->chunk > 0)
        put(w, MX_DO_SEND_GRAD, a, slot);
    w->sent[base + (size_t)slot] = a->microbatch + 1;
    if (a->kind == MX_DO_W || !w->s->split)
        holds[slot] = 0;
}

static void lower_list(mx_pipeline_schedule *s, int stage)
{
    mx_arena scratch = {0};
    mx_action_list from = s->list[stage];
    size_t n = (size_t)s->chunks * (size_t)s->microbatches;
    s->list[stage] = (mx_action_list){0};
    lowering w = {s, &s->list[stage], MX_NEW_N(&scratch, int, n), MX_NEW_N(&scratch, int, n)};
    for (int i = 0; i < from.n; i++)
        lower(&w, &from.action[i]);
    for (int k = stage; k < s->chunks; k += s->stages)
        for (int i = 0; i < s->n_slots[k]; i++)
            await(&w, k, i);
    mx_free(from.action);
    mx_arena_fini(&scratch);
}

static mx_status check(mx_pipeline_kind kind, int stages, int repeats, int microbatches)
{
    if (stages < 2 || repeats < 1 || microbatches < 1)
        return mx_fail(MX_USAGE,
                       "a pipeline of %d stages with %d chunks each and %d microbatches: expected "
                       "at least 2, 1 and 1",
                       stages, repeats, microbatches);
    if (repeats > 1 && kind != MX_PIPELINE_INTERLEAVED && kind != MX_PIPELINE_FORWARD)
        return mx_fail(MX_USAGE,
                       "a %s pipeline has one chunk of layers for each stage, and "
                       "num_pipeline_repeats asks for %d; use the interleaved schedule",
                       names[kind], repeats);
    return MX_OK;
}

mx_status mx_pipeline_schedule_init(mx_pipeline_schedule *s, mx_pipeline_kind kind, int stages,
                                    int repeats, int microbatches)
{
    *s = (mx_pipeline_schedule){kind, stages, repeats, stages * repeats, microbatches,
                                kind == MX_PIPELINE_ZB_H1, NULL, NULL};
    MX_TRY(check(kind, stages, repeats, microbatches));
    s->list = mx_realloc(NULL, sizeof *s->list * (size_t)stages);
    s->n_slots = mx_realloc(NULL, sizeof *s->n_slots * (size_t)s->chunks);
    memset(s->list, 0, sizeof *s->list * (size_t)stages);
    memset(s->n_slots, 0, sizeof *s->n_slots * (size_t)s->chunks);
    for (int i = 0; i < stages; i++) {
        if (kind == MX_PIPELINE_FORWARD)
            go_forward(s, i);
        else if (kind == MX_PIPELINE_INTERLEAVED && repeats > 1)
            interleave(s, i);
        else
            in_turns(s, i, kind == MX_PIPELINE_GPIPE ? microbatches : stages - i - 1, i);
        lower_list(s, i);
    }
    return MX_OK;
}

void mx_pipeline_schedule_fini(mx_pipeline_schedule *s)
{
    for (int i = 0; i < s->stages && s->list; i++)
        mx_free(s->list[i].action);
    mx_free(s->list);
    mx_free(s->n_slots);
    *s = (mx_pipeline_schedule){0};
}

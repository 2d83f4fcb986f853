/* coord_judge.c - who has fallen silent, does not come to a call, or has left before it.
 *
 * Rank 0 decides. A process that does not answer at all is found by its heartbeat. One that answers
 * may still hang: then others wait for it in a call. Of all waits that are too long the longest
 * came first and led to the others. From it we go from each rank to the one that it waits for, and
 * blame the first that waits for no other: it is in no call, or in one in which its thread does not
 * run. Of a call that waits for all, whichever rank has not come to it is to blame, unless it
 * waits for another one itself.
 */
#include "dist/coord_impl.h"

#include "base/clock.h"
#include "base/str.h"

enum { MOST_NAMES = 8 };
static const double LEFT_S = 1;                            /* of waiting for a rank that has left */
static const uint64_t CALL_MASK = ((uint64_t)1 << 40) - 1; /* of a channel's number */

static mx_coord_channel_state channel_of(const mx_coord *c, int rank, int channel)
{
    return rank == c->rank ? mx_coord_own_channel(c, channel) : c->member[rank].channel[channel];
}

static bool is_late(const mx_coord *c, int rank, int channel, const mx_coord_channel_state *w)
{
    if (w->peer >= 0 && rank != w->peer)
        return false;
    return w->is_message || channel_of(c, rank, channel).number < w->number;
}

/* A thread of it was in a call, as of its last beat, and had not run for half the limit. */
static bool is_still(const mx_coord *c, int rank)
{
    bool still = false;
    double half = c->o.call_timeout_s / 2 - mx_coord_beat_s(c);
    double limit = half > 2 * MX_COORD_WAKE_S ? half : 2 * MX_COORD_WAKE_S;
    for (int i = 0; i < MX_COORD_CHANNELS; i++) {
        mx_coord_channel_state w = channel_of(c, rank, i);
        still |= w.waits_s >= 0 && w.still_s > limit;
    }
    return still && c->member[rank].state == MX_RANK_HERE;
}

/* Where threads of all ranks sleep in a call, that is how its library waits. */
static bool hangs(const mx_coord *c, int rank)
{
    int r = 0;
    while (r < c->size && is_still(c, r))
        r++;
    return r < c->size && is_still(c, rank);
}

static bool waits_for_nobody(const mx_coord *c, int rank)
{
    bool waits = c->member[rank].state != MX_RANK_HERE;
    for (int i = 0; i < MX_COORD_CHANNELS; i++)
        waits |= channel_of(c, rank, i).waits_s >= 0;
    return !waits || hangs(c, rank);
}

/* The rank that hangs, going from each to the one that it waits for; -1: no such way leads there.
 */
static int find_hung(const mx_coord *c, int waiter, int channel)
{
    for (int n = 0; n < c->size; n++) {
        int next = channel_of(c, waiter, channel).peer;
        if (next < 0 || next >= c->size || c->member[next].state != MX_RANK_HERE)
            return -1;
        if (waits_for_nobody(c, next))
            return next;
        waiter = next;
        for (int i = 0, longest = 0; i < MX_COORD_CHANNELS; i++)
            if (channel_of(c, waiter, i).waits_s >= channel_of(c, waiter, longest).waits_s)
                channel = longest = i;
    }
    return -1;
}

/* Whom to blame for a wait: ranks that have not come to the call and wait for no other rank; where
 * all that have not come wait for others, the ranks that wait for none; else all that have not
 * come. */
static bool is_to_blame(const mx_coord *c, int rank, int channel, const mx_coord_channel_state *w)
{
    bool any_idle = false, any_late = false, late = is_late(c, rank, channel, w);
    for (int r = 0; r < c->size; r++) {
        bool idle = waits_for_nobody(c, r);
        any_idle |= idle;
        any_late |= idle && is_late(c, r, channel, w);
    }
    if (!any_idle)
        return late;
    return waits_for_nobody(c, rank) && (late || !any_late);
}

/* A rank that has missed two beats: its heartbeat's limit will name it. */
static bool any_silent(const mx_coord *c, double now)
{
    bool any = false;
    for (int r = 1; r < c->size; r++) {
        const mx_rank *m = &c->member[r];
        any |= m->state == MX_RANK_HERE && m->link->fd >= 0 &&
               now - m->link->heard_at > 2 * mx_coord_beat_s(c);
    }
    return any;
}

static void blame_late(mx_coord *c, int waiter, int channel)
{
    mx_coord_channel_state w = channel_of(c, waiter, channel);
    mx_str who = {0};
    int n = 0, last = -1, hung = find_hung(c, waiter, channel);
    for (int r = 0; r < c->size; r++)
        if ((hung < 0 ? is_to_blame(c, r, channel, &w) : r == hung) && ++n <= MOST_NAMES) {
            mx_str_addf(&who, "%s%s", n > 1 ? ", " : "", c->member[r].who);
            last = r;
        }
    unsigned long long number = w.number & CALL_MASK;
    if (n)
        mx_coord_judge_locked(
            c, MX_DEVICE, n == 1 ? last : -1,
            "nothing heard for %.0f s, in %s number %llu, from %s%s: hung, though "
            "the process is there",
            w.waits_s, w.call, number, mx_str_text(&who), n > MOST_NAMES ? " and others" : "");
    else if (!any_silent(c, mx_clock_now()))
        mx_coord_judge_locked(c, MX_DEVICE, -1,
                              "%s has waited for %.0f s in %s number %llu, to which all ranks have "
                              "come: what ranks send each other does not arrive",
                              c->member[waiter].who, w.waits_s, w.call, number);
    mx_str_fini(&who);
}

/* A rank says in its last beat which calls it has come to. */
void mx_coord_judge_left_locked(mx_coord *c)
{
    for (int r = 0; r < c->size; r++)
        for (int i = 0; i < MX_COORD_CHANNELS; i++) {
            mx_coord_channel_state w = channel_of(c, r, i);
            bool waits = c->member[r].state == MX_RANK_HERE && w.waits_s > LEFT_S;
            for (int k = 0; k < c->size && waits; k++)
                if (c->member[k].state == MX_RANK_LEFT && is_late(c, k, i, &w))
                    mx_coord_judge_locked(
                        c, MX_DEVICE, k,
                        "%s has ended its run, and %s waits for it in %s number %llu: ranks do not "
                        "do the same; were they started with one command?",
                        c->member[k].who, c->member[r].who, w.call,
                        (unsigned long long)(w.number & CALL_MASK));
        }
}

static void judge_calls(mx_coord *c)
{
    double longest = c->o.call_timeout_s;
    int waiter = -1, channel = 0;
    for (int r = 0; r < c->size; r++)
        for (int i = 0; i < MX_COORD_CHANNELS && c->member[r].state == MX_RANK_HERE; i++) {
            double s = channel_of(c, r, i).waits_s;
            if (s > longest && !hangs(c, r)) {
                longest = s;
                waiter = r;
                channel = i;
            }
        }
    if (waiter >= 0)
        blame_late(c, waiter, channel);
}

void mx_coord_judge_silence_locked(mx_coord *c, double now)
{
    for (int r = 1; r < c->size; r++) {
        const mx_rank *m = &c->member[r];
        double silent = m->link->fd < 0 ? 0 : now - m->link->heard_at;
        if (m->state != MX_RANK_LEFT && silent > c->o.heartbeat_timeout_s)
            mx_coord_judge_locked(c, MX_DEVICE, r,
                                  "nothing heard for %.0f s from %s: stopped, hung or cut off",
                                  silent, m->who);
    }
    mx_coord_judge_left_locked(c);
    if (c->started && !c->why[0])
        judge_calls(c);
}

/* coord.c - the coordinator's life, its thread, and what the rest of the program asks it. */
#include "dist/coord_impl.h"

#include "base/clock.h"
#include "base/signals.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const double SLICE_S = 0.1; /* between looks at signals */
static const double ANSWER_S = 3;  /* for rank 0 to make a verdict of a complaint */
static const double END_S = 5;     /* from a verdict to the end of the process */

/* --- small questions ------------------------------------------------------------------------ */

int mx_coord_rank(const mx_coord *c)
{
    return c->rank;
}

int mx_coord_size(const mx_coord *c)
{
    return c->size;
}

const mx_launch *mx_coord_launch(const mx_coord *c)
{
    return &c->launch;
}

double mx_coord_join_timeout(const mx_coord *c)
{
    return c->o.join_timeout_s;
}

const char *mx_coord_who(const mx_coord *c, int rank)
{
    return c->member[rank].who;
}

const struct sockaddr_storage *mx_coord_address(const mx_coord *c, int rank)
{
    return &c->member[rank].at;
}

mx_auth_key mx_coord_key(const mx_coord *c)
{
    return c->session;
}

int mx_coord_alarm(const mx_coord *c)
{
    return c->alarm;
}

double mx_coord_beat_s(const mx_coord *c)
{
    double s = c->o.heartbeat_timeout_s / 6;
    return s > 1 ? 1 : s;
}

void mx_coord_name(mx_coord *c, int rank, const char *host, int32_t pid)
{
    mx_rank *m = &c->member[rank];
    snprintf(m->host, sizeof m->host, "%s", host);
    m->pid = pid;
    snprintf(m->who, sizeof m->who, "rank %d (host %s, process %d)", rank, m->host, pid);
}

/* --- the verdict ---------------------------------------------------------------------------- */

static void wake(int fd)
{
    if (fd >= 0)
        (void)!write(fd, &(uint64_t){1}, sizeof(uint64_t));
}

void mx_coord_wake(mx_coord *c)
{
    wake(c->wake);
}

void mx_coord_judge_locked(mx_coord *c, mx_code code, int culprit, const char *fmt, ...)
{
    va_list ap;
    if (c->why[0])
        return;
    va_start(ap, fmt);
    vsnprintf(c->why, sizeof c->why, fmt, ap);
    va_end(ap);
    c->code = code;
    c->culprit = culprit;
    c->judged_at = mx_clock_now();
    if (c->rank == 0)
        mx_coord_tell_verdict_locked(c);
    wake(c->alarm);
    mx_coord_wake(c);
    pthread_cond_broadcast(&c->changed);
}

mx_status mx_coord_check(mx_coord *c)
{
    pthread_mutex_lock(&c->lock);
    mx_status st = c->why[0] ? mx_fail(c->code, "%s", c->why) : MX_OK;
    pthread_mutex_unlock(&c->lock);
    return st;
}

mx_code mx_coord_code(int64_t code)
{
    return code >= MX_CHECK_FAILED && code <= MX_DEVICE ? (mx_code)code : MX_DEVICE;
}

int mx_coord_culprit(mx_coord *c)
{
    pthread_mutex_lock(&c->lock);
    int culprit = c->why[0] ? c->culprit : -1;
    pthread_mutex_unlock(&c->lock);
    return culprit;
}

void mx_coord_wait_locked(mx_coord *c, double seconds)
{
    struct timespec t = mx_clock_after(seconds);
    pthread_cond_timedwait(&c->changed, &c->lock, &t);
}

typedef struct {
    mx_code code;
    int culprit;
    const char *words;
} complaint;

/* Sends rank 0 a complaint and waits for what it makes of it; its own words when nothing comes. */
static void complain_locked(mx_coord *c, mx_wire_frame *f, const complaint *k)
{
    double until = mx_clock_now() + ANSWER_S;
    mx_coord_link *l = c->member[0].link;
    if (c->rank && l && l->fd >= 0 && c->member[0].state == MX_RANK_HERE && c->has_thread &&
        mx_coord_link_queue(l, f)) {
        mx_coord_wake(c);
        while (!c->why[0] && mx_clock_now() < until)
            mx_coord_wait_locked(c, SLICE_S);
    }
    mx_coord_judge_locked(c, k->code, k->culprit, "%s", k->words);
}

mx_status mx_coord_fail(mx_coord *c, int culprit, const char *fmt, ...)
{
    char words[MX_COORD_WHY];
    mx_wire_frame f;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    mx_wire_begin(&f, MX_WIRE_BLAME);
    mx_wire_put_int(&f, (uint64_t)(int64_t)culprit, 4);
    mx_wire_put_text(&f, words);
    pthread_mutex_lock(&c->lock);
    if (!c->why[0])
        complain_locked(c, &f, &(complaint){MX_DEVICE, culprit, words});
    pthread_mutex_unlock(&c->lock);
    return mx_coord_check(c);
}

void mx_coord_abort(mx_coord *c, mx_code code, const char *why)
{
    char words[MX_COORD_WHY];
    mx_wire_frame f;
    if (!c || c->size == 1)
        return;
    mx_wire_begin(&f, MX_WIRE_ABORT);
    mx_wire_put_int(&f, (uint64_t)code, 1);
    mx_wire_put_text(&f, why);
    snprintf(words, sizeof words, "%s has ended: %s", c->member[c->rank].who, why);
    pthread_mutex_lock(&c->lock);
    if (!c->why[0]) {
        c->alone = c->rank == 0;
        complain_locked(c, &f, &(complaint){code, c->rank, words});
    }
    pthread_mutex_unlock(&c->lock);
}

void mx_coord_note_locked(mx_coord *c, const char *fmt, ...)
{
    va_list ap;
    size_t n = strlen(c->note); /* what was not said yet comes first */
    n += (size_t)snprintf(c->note + n, sizeof c->note - n, n ? "; " : "");
    va_start(ap, fmt);
    if (n < sizeof c->note)
        vsnprintf(c->note + n, sizeof c->note - n, fmt, ap);
    va_end(ap);
}

/* --- the thread ----------------------------------------------------------------------------- */

static bool is_delivered_locked(const mx_coord *c)
{
    for (int r = 0; r < c->size; r++) {
        const mx_coord_link *l = c->member[r].link;
        bool said = l && (l->said_bye || c->why[0] || c->member[r].state == MX_RANK_LEFT);
        if (l && l->fd >= 0 && !(said && mx_coord_link_is_delivered(l)))
            return false;
    }
    return true;
}

/* A process that was itself stopped, or got no processor time, has heard from no rank: they are not
 * to blame.
 */
static void forgive_locked(mx_coord *c, double now)
{
    double gap = now - c->looked_at - mx_coord_beat_s(c);
    bool stood_still = gap > 0 && c->looked_at > 0;
    for (int r = 0; r < c->size && stood_still; r++)
        if (c->member[r].link)
            c->member[r].link->heard_at += gap;
    if (stood_still)
        mx_coord_forgive_waits(c, gap);
    c->looked_at = now;
    mx_coord_look_at_channels(c, now);
}

static void step_locked(mx_coord *c)
{
    double now = mx_clock_now();
    forgive_locked(c, now);
    if (c->rank == 0)
        mx_coord_root_step_locked(c, c->polls + 1, now);
    else
        mx_coord_member_step_locked(c, c->polls + 1, now);
    pthread_cond_broadcast(&c->changed);
}

/* The run has failed, and the thread that should end this process does not get to it. */
static void end_process(mx_coord *c)
{
    char why[MX_COORD_WHY];
    pthread_mutex_lock(&c->lock);
    bool due = c->why[0] && !c->closing && mx_clock_now() - c->judged_at > END_S;
    memcpy(why, c->why, sizeof why);
    pthread_mutex_unlock(&c->lock);
    if (due && c->o.end)
        c->o.end(c->o.ctx, why);
}

void *mx_coord_serve(void *arg)
{
    mx_coord *c = arg;
    uint64_t woken;
    pthread_mutex_lock(&c->lock);
    while (!c->closing || (!is_delivered_locked(c) && mx_clock_now() < c->done_at)) {
        double now = mx_clock_now();
        c->polls[0] = (struct pollfd){c->wake, POLLIN, 0};
        int n = c->rank == 0 ? mx_coord_root_polls_locked(c, c->polls + 1, now)
                             : mx_coord_member_polls_locked(c, c->polls + 1, now);
        int ms = c->closing ? 5 : (int)(mx_coord_beat_s(c) * 500) + 1;
        pthread_mutex_unlock(&c->lock);
        int ready = poll(c->polls, (nfds_t)n + 1, ms);
        if (ready > 0 && c->polls[0].revents)
            (void)!read(c->wake, &woken, sizeof woken);
        for (int i = 0; ready <= 0 && i <= n; i++)
            c->polls[i].revents = 0;
        end_process(c);
        pthread_mutex_lock(&c->lock);
        step_locked(c);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

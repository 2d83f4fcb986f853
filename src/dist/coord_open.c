/* coord_open.c - from a place and options to ranks that know each other, and back. */
#include "dist/coord_impl.h"

#include "base/clock.h"
#include "base/machine.h"
#include "base/signals.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { JOIN_SECONDS = 300, HEARTBEAT_SECONDS = 30, CALL_SECONDS = 600 };
static const double SLICE_S = 0.1;    /* between looks at signals */
static const double GOODBYE_S = 3;    /* for the last frames to be delivered */
static const double FIRST_NOTE_S = 5; /* of waiting; then twice as long, and so on */

static mx_status start_thread(mx_coord *c)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the others */
    int err = pthread_create(&c->thread, NULL, mx_coord_serve, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    c->has_thread = !err;
    return err ? mx_fail(MX_DEVICE, "no thread for the ranks' heartbeat: %s", strerror(err))
               : MX_OK;
}

static double or_else(double v, double fallback)
{
    return v > 0 ? v : fallback;
}

mx_status mx_coord_new(mx_coord **out, const mx_launch *p, const mx_coord_options *o)
{
    mx_coord *c = NULL;
    char host[MX_COORD_HOST] = "";
    MX_ASSERT(o->n_parts <= MX_COORD_PARTS, "%d parts", o->n_parts);
    MX_TRY(mx_alloc((void **)&c, sizeof *c, "the ranks' coordinator"));
    c->rank = p->rank;
    c->size = p->size;
    c->launch = *p;
    c->o = *o;
    c->o.join_timeout_s = or_else(o->join_timeout_s, JOIN_SECONDS);
    c->o.heartbeat_timeout_s = or_else(o->heartbeat_timeout_s, HEARTBEAT_SECONDS);
    c->o.call_timeout_s = or_else(o->call_timeout_s, CALL_SECONDS);
    c->wake = c->alarm = c->acceptor.listener = -1;
    c->culprit = c->n_listed = -1;
    mx_auth_key job = mx_auth_derive(&(mx_auth_key){{0}}, "job", p->job, strlen(p->job));
    memcpy(&c->job, &job, sizeof c->job);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&c->lock, NULL);
    c->member = MX_NEW_N(&c->arena, mx_rank, c->size);
    c->gathered = MX_NEW_N(&c->arena, uint8_t, c->size * MX_COORD_BLOB);
    c->channel[0].open = true; /* the coordinator's own, for mx_coord_gather */
    c->polls = MX_NEW_N(&c->arena, struct pollfd, 1 + MX_ACCEPTOR_POLLS + c->size);
    gethostname(host, sizeof host - 1);
    mx_coord_name(c, c->rank, host, (int32_t)getpid());
    c->member[c->rank].state = MX_RANK_HERE;
    for (int r = 0; r < c->size; r++)
        if ((c->rank == 0) != (r == 0))
            c->member[r].link = mx_coord_link_new(&c->arena);
    *out = c;
    return MX_OK;
}

static mx_status prepare(mx_coord *c)
{
    /* Rank 0 has a connection to each rank, and a communicator may need as many again, twice. */
    mx_machine_allow_files(64 + MX_ACCEPTOR_PENDING + 3 * (int64_t)c->size);
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->alarm = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake < 0 || c->alarm < 0)
        return mx_fail_errno(MX_DEVICE, "no descriptors for the ranks' coordinator");
    c->from_file = !c->o.secret || !*c->o.secret;
    if (!c->from_file)
        return mx_auth_key_of_text(&c->secret, c->o.secret);
    if (!c->o.folder)
        c->o.folder = "";
    if (c->rank)
        return MX_OK; /* rank 0 will say which file it is */
    MX_TRY(mx_auth_random(c->file_id, sizeof c->file_id));
    return mx_auth_file_make(c->o.folder, c->file_id, &c->secret, c->file, sizeof c->file);
}

static void say_waiting(mx_coord *c)
{
    char list[128], text[MX_COORD_NOTE];
    pthread_mutex_lock(&c->lock);
    int n = mx_coord_absent_locked(c, list, sizeof list);
    pthread_mutex_unlock(&c->lock);
    if (c->rank || !n)
        return;
    snprintf(text, sizeof text, "waiting at %s:%d for %d of %d ranks:%s", c->launch.host,
             c->launch.port, n, c->size, list);
    c->o.say(c->o.ctx, text);
}

static void say_note(mx_coord *c)
{
    char text[MX_COORD_NOTE];
    pthread_mutex_lock(&c->lock);
    memcpy(text, c->note, sizeof text);
    c->note[0] = 0;
    pthread_mutex_unlock(&c->lock);
    if (*text)
        c->o.say(c->o.ctx, text);
}

/* Rank 0's patience is over. The verdict tells the ranks that are there. */
static void give_up(mx_coord *c)
{
    char list[128];
    pthread_mutex_lock(&c->lock);
    int n = mx_coord_absent_locked(c, list, sizeof list);
    if (n) /* else the table of ranks is on its way to them */
        mx_coord_judge_locked(
            c, MX_DEVICE, -1,
            "after %.0f s at %s:%d %d of %d ranks have not come:%s; look at their output, or wait "
            "longer with distributed_initialization_timeout%s%s",
            c->o.join_timeout_s, c->launch.host, c->launch.port, n, c->size, list,
            c->acceptor.refused ? ". Connections were refused, the last one " : "",
            c->acceptor.last);
    pthread_mutex_unlock(&c->lock);
}

mx_status mx_coord_stopped(void)
{
    return mx_fail(MX_STOPPED, "stopped while waiting for the other ranks; nothing was begun");
}

/* A rank that was admitted leaves the patience to rank 0. */
static mx_status wait_for_all(mx_coord *c, double deadline)
{
    double begun = mx_clock_now(), next = FIRST_NOTE_S;
    for (;;) {
        pthread_mutex_lock(&c->lock);
        if (!c->started && !c->why[0])
            mx_coord_wait_locked(c, SLICE_S);
        bool started = c->started, over = c->why[0] != 0;
        pthread_mutex_unlock(&c->lock);
        double now = mx_clock_now();
        if (c->o.say)
            say_note(c);
        if (over)
            return mx_coord_check(c);
        if (started)
            return MX_OK;
        if (mx_stop_signal())
            return mx_coord_stopped();
        if (c->rank == 0 && now >= deadline)
            give_up(c);
        if (c->o.say && now - begun > next) {
            say_waiting(c);
            next *= 2;
        }
    }
}

static void forget_secret(mx_coord *c)
{
    if (c->file[0])
        unlink(c->file);
    c->file[0] = 0;
    explicit_bzero(&c->secret, sizeof c->secret);
    c->o.secret = c->o.folder = NULL;
    c->o.parts = NULL;
}

mx_status mx_coord_open(mx_coord **out, const mx_launch *p, const mx_coord_options *o)
{
    mx_coord *c;
    *out = NULL;
    MX_TRY(mx_coord_new(&c, p, o));
    if (c->size == 1) {
        c->started = true;
        *out = c;
        return MX_OK;
    }
    double deadline = mx_clock_now() + c->o.join_timeout_s;
    mx_status st = prepare(c);
    if (!st)
        st = c->rank == 0 ? mx_coord_root_listen(c) : mx_coord_member_connect(c, deadline);
    if (!st)
        st = start_thread(c);
    if (!st)
        st = wait_for_all(c, deadline);
    forget_secret(c);
    if (st)
        mx_coord_close(c);
    else
        *out = c;
    return st;
}

void mx_coord_close(mx_coord *c)
{
    if (!c)
        return;
    if (c->has_thread) {
        pthread_mutex_lock(&c->lock);
        c->closing = true;
        c->done_at = mx_clock_now() + GOODBYE_S;
        pthread_mutex_unlock(&c->lock);
        mx_coord_wake(c);
        pthread_join(c->thread, NULL);
    }
    forget_secret(c);
    explicit_bzero(&c->session, sizeof c->session);
    mx_acceptor_close(&c->acceptor);
    for (int r = 0; r < c->size; r++)
        if (c->member[r].link)
            mx_socket_close(&c->member[r].link->fd);
    mx_socket_close(&c->wake);
    mx_socket_close(&c->alarm);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    mx_arena_fini(&c->arena);
    mx_free(c);
}

/* messenger.c - the queue of messages and the thread that moves them; see messenger.h. How bytes
 * travel is the communicator's (move, rest, drop of its kind). */
#include "dist/messenger.h"

#include "base/arena.h"
#include "base/clock.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct mx_messenger {
    mx_comm *comm; /* owns */
    int channel;
    uint64_t calls;
    int wake; /* eventfd */
    pthread_t thread;
    bool has_thread;
    _Atomic int callers;  /* that want the lock */
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    mx_transfer *transfers, *spare;
    mx_arena arena;
    int waiting; /* callers */
    bool closing, failed;
    char why[512]; /* of the failure */
};

/* --- the thread --- */

static void fail_locked(mx_messenger *m, mx_status st)
{
    snprintf(m->why, sizeof m->why, "%s", mx_status_text(st));
    mx_status_free(st);
    m->failed = true;
    pthread_cond_broadcast(&m->changed);
}

/* A mutex may go to its last holder again and again: who calls has precedence. */
static void let_callers_in(mx_messenger *m)
{
    pthread_mutex_unlock(&m->lock);
    while (atomic_load(&m->callers))
        sched_yield();
    pthread_mutex_lock(&m->lock);
}

static void lock(mx_messenger *m)
{
    atomic_fetch_add(&m->callers, 1);
    pthread_mutex_lock(&m->lock);
    atomic_fetch_sub(&m->callers, 1);
}

static void *serve(void *messenger)
{
    mx_messenger *m = messenger;
    const mx_comm_kind *k = m->comm->kind;
    pthread_mutex_lock(&m->lock);
    while (!m->closing && !m->failed) {
        bool moved = false;
        mx_status st = k->move(m->comm, m->transfers, &moved);
        if (!st)
            st = mx_coord_check(m->comm->coord);
        if (st) {
            fail_locked(m, st);
            break;
        }
        if (moved) {
            if (m->waiting)
                mx_coord_progress(m->comm->coord, m->channel);
            pthread_cond_broadcast(&m->changed);
            let_callers_in(m);
            continue;
        }
        bool urgent = m->waiting > 0;
        pthread_mutex_unlock(&m->lock);
        k->rest(m->comm, m->wake, urgent);
        uint64_t n;
        (void)!read(m->wake, &n, sizeof n);
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static void wake(mx_messenger *m)
{
    (void)!write(m->wake, &(uint64_t){1}, sizeof(uint64_t));
}

/* --- transfers, under the lock --- */

static mx_transfer **find(mx_messenger *m, const mx_message *msg, bool sends)
{
    mx_transfer **l = &m->transfers;
    while (*l && ((*l)->sends != sends || (*l)->m.peer != msg->peer || (*l)->m.tag != msg->tag))
        l = &(*l)->next;
    return l;
}

static void add(mx_messenger *m, const mx_message *msg, bool sends)
{
    mx_transfer *l = m->spare;
    if (l)
        m->spare = l->next;
    else
        l = MX_NEW(&m->arena, mx_transfer);
    *l = (mx_transfer){.m = *msg, .sends = sends, .next = m->transfers};
    m->transfers = l;
    wake(m);
}

static void drop(mx_messenger *m, mx_transfer **at)
{
    mx_transfer *l = *at;
    *at = l->next;
    l->next = m->spare;
    m->spare = l;
}

static mx_status outcome(mx_messenger *m, bool failed)
{
    if (!failed)
        return MX_OK;
    MX_TRY(mx_coord_check(m->comm->coord));
    return mx_fail(MX_DEVICE, "%s", m->why);
}

/* Returns when the message has gone or come. True: it has not, and will not. */
static bool wait_for(mx_messenger *m, const mx_message *msg, bool sends)
{
    mx_coord *c = m->comm->coord;
    mx_coord_enter_with(c, m->channel, sends ? "send" : "receive", ++m->calls, msg->peer);
    m->waiting++;
    wake(m);
    while (!m->failed && !m->closing && !(*find(m, msg, sends))->done) {
        struct timespec t = mx_clock_after(MX_COORD_WAKE_S);
        pthread_cond_timedwait(&m->changed, &m->lock, &t);
    }
    m->waiting--;
    mx_coord_leave(c, m->channel);
    return m->failed || m->closing;
}

/* --- calls --- */

mx_status mx_messenger_send(mx_messenger *m, const mx_message *msg)
{
    lock(m);
    mx_transfer **old = find(m, msg, true);
    MX_ASSERT(!*old || (*old)->done, "two messages of tag %lld", (long long)msg->tag);
    if (*old)
        drop(m, old);
    bool failed = m->failed;
    if (!failed)
        add(m, msg, true);
    pthread_mutex_unlock(&m->lock);
    return outcome(m, failed);
}

mx_status mx_messenger_sent(mx_messenger *m, const mx_message *msg)
{
    lock(m);
    mx_transfer *l = *find(m, msg, true);
    bool failed = m->failed || (l && !l->done && wait_for(m, msg, true));
    if (l && !failed)
        drop(m, find(m, msg, true));
    pthread_mutex_unlock(&m->lock);
    return outcome(m, failed);
}

mx_status mx_messenger_post(mx_messenger *m, const mx_message *msg)
{
    lock(m);
    bool failed = m->failed;
    if (!failed && !*find(m, msg, false))
        add(m, msg, false);
    pthread_mutex_unlock(&m->lock);
    return outcome(m, failed);
}

mx_status mx_messenger_receive(mx_messenger *m, const mx_message *msg)
{
    MX_TRY(mx_messenger_post(m, msg));
    lock(m);
    bool failed = m->failed || (!(*find(m, msg, false))->done && wait_for(m, msg, false));
    if (!failed)
        drop(m, find(m, msg, false));
    pthread_mutex_unlock(&m->lock);
    return outcome(m, failed);
}

/* --- life --- */

mx_status mx_messenger_open(mx_messenger **out, mx_comm *c)
{
    uint32_t number;
    pthread_condattr_t monotonic;
    mx_messenger *m = mx_realloc(NULL, sizeof *m);
    *m = (mx_messenger){.comm = c, .channel = -1};
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    m->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    mx_status st = m->wake < 0 ? mx_fail_errno(MX_DEVICE, "messages between ranks") : MX_OK;
    if (!st)
        st = mx_coord_channel_open(c->coord, &m->channel, &number);
    if (!st) {
        int error = pthread_create(&m->thread, NULL, serve, m);
        m->has_thread = !error;
        st = error ? mx_fail(MX_MEMORY, "no thread for messages between ranks: %s", strerror(error))
                   : MX_OK;
    }
    if (st) {
        mx_messenger_close(m);
        m = NULL;
    }
    *out = m;
    return st;
}

void mx_messenger_stop(mx_messenger *m)
{
    lock(m);
    m->closing = true;
    if (!m->failed)
        snprintf(m->why, sizeof m->why, "this rank sends and receives no more messages");
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    wake(m);
    if (m->has_thread)
        pthread_join(m->thread, NULL);
    m->has_thread = false;
    for (mx_transfer *l = m->transfers; l; l = l->next)
        if (!l->done)
            m->comm->kind->drop(m->comm, l);
    m->transfers = NULL;
}

void mx_messenger_close(mx_messenger *m)
{
    if (!m)
        return;
    mx_messenger_stop(m);
    if (m->channel >= 0)
        mx_coord_channel_close(m->comm->coord, m->channel);
    mx_comm_close(m->comm);
    if (m->wake >= 0)
        close(m->wake);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
    mx_arena_fini(&m->arena);
    mx_free(m);
}

/* tcp_message.c - messages (messenger.h) over the connections of a TCP communicator.
 *
 * The receiver speaks first: ROOM says that a message of this tag may come, DATA that it does, and
 * its bytes follow. So bytes never lie in a connection in front of others that are wanted earlier.
 * A frame's size is compared with what is expected here, never used.
 */
#include "dist/tcp_impl.h"

#include "base/clock.h"
#include "dist/socket.h"
#include <errno.h>
#include <poll.h>
#include <string.h>

enum { ROOM = 1, DATA = 2, MOST_EARLY = 1 << 16 };

typedef struct {
    int64_t kind, tag;
    uint64_t bytes;
} frame;

/* Room that a rank has for a message that is not sent yet. */
typedef struct early {
    int64_t tag;
    uint64_t bytes;
    struct early *next;
} early;

struct mx_tcp_mail {
    frame in, out;
    size_t got, gone;       /* of the frame and the bytes after it */
    mx_transfer *into, *from; /* NULL: no bytes follow the frame */
    bool sending;
    early *early, *spare;
    int n_early;
    double closed_at;
};
typedef struct mx_tcp_mail mail;

static mx_status mismatch(mx_tcp *t, int r, const frame *f, size_t here)
{
    return mx_coord_fail(t->base.coord, -1,
                         "%s has a message of tag %lld with %llu bytes, and %s one with %zu: the "
                         "ranks are doing different things; were they started with one command?",
                         mx_coord_who(t->base.coord, r), (long long)f->tag,
                         (unsigned long long)f->bytes, mx_coord_who(t->base.coord, t->base.rank),
                         here);
}

static mx_transfer *find(mx_transfer *l, int peer, int64_t tag, bool sends)
{
    while (l && (l->done || l->sends != sends || l->m.peer != peer || l->m.tag != tag))
        l = l->next;
    return l;
}

/* --- what comes --- */

static mx_status remember(mx_tcp *t, int r)
{
    mail *m = &t->mail[r];
    if (m->n_early++ == MOST_EARLY)
        return mismatch(t, r, &m->in, 0);
    early *e = m->spare;
    if (e)
        m->spare = e->next;
    else
        e = MX_NEW(&t->arena, early);
    *e = (early){m->in.tag, m->in.bytes, m->early};
    m->early = e;
    return MX_OK;
}

static mx_status take_frame(mx_tcp *t, int r, mx_transfer *transfers)
{
    mail *m = &t->mail[r];
    const frame *f = &m->in;
    mx_transfer *l = find(transfers, r, f->tag, f->kind == ROOM);
    bool sane = (f->kind == ROOM || f->kind == DATA) && (!l || f->bytes == l->m.bytes);
    if (!sane || (f->kind == DATA && (!l || !l->open)))
        return mismatch(t, r, f, l ? l->m.bytes : 0);
    if (f->kind == ROOM && !l)
        return remember(t, r);
    if (f->kind == ROOM)
        l->open = true;
    else
        m->into = l;
    return MX_OK;
}

static void *place_of(mail *m, size_t *n)
{
    size_t h = sizeof m->in;
    *n = m->got < h ? h - m->got : m->into->m.bytes - (m->got - h);
    return m->got < h ? (char *)&m->in + m->got : (char *)m->into->m.data + (m->got - h);
}

/* True: there may be more. */
static bool pull(mx_tcp *t, int r, mx_transfer *transfers, mx_status *st)
{
    mail *m = &t->mail[r];
    size_t n;
    void *to = place_of(m, &n);
    ssize_t k = recv(t->peer[r].fd, to, n, MSG_DONTWAIT);
    t->peer[r].closed |= k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR);
    if (k <= 0)
        return false;
    m->got += (size_t)k;
    if (m->got == sizeof m->in && !m->into)
        *st = take_frame(t, r, transfers);
    if (*st || m->got < sizeof m->in + (m->into ? m->into->m.bytes : 0))
        return !*st;
    if (m->into)
        m->into->done = true;
    m->into = NULL;
    m->got = 0;
    return true;
}

/* --- what goes --- */

static mx_status take_early(mx_tcp *t, int r, mx_transfer *l)
{
    mail *m = &t->mail[r];
    early **e = &m->early;
    while (*e && (*e)->tag != l->m.tag)
        e = &(*e)->next;
    early *found = *e;
    if (!found)
        return MX_OK;
    if (found->bytes != l->m.bytes)
        return mismatch(t, r, &(frame){ROOM, found->tag, found->bytes}, l->m.bytes);
    l->open = true;
    *e = found->next;
    found->next = m->spare;
    m->spare = found;
    m->n_early--;
    return MX_OK;
}

/* The next frame for this rank; false: there is none. */
static bool choose(mx_tcp *t, int r, mx_transfer *transfers, mx_status *st)
{
    mail *m = &t->mail[r];
    for (mx_transfer *l = transfers; l && !m->sending && !*st; l = l->next) {
        if (l->m.peer != r || l->done)
            continue;
        if (l->sends && !l->open)
            *st = take_early(t, r, l);
        if (l->sends ? !l->open : l->open)
            continue;
        l->open = true;
        m->sending = true;
        m->from = l->sends ? l : NULL;
        m->out = (frame){l->sends ? DATA : ROOM, l->m.tag, l->m.bytes};
        m->gone = 0;
    }
    return m->sending;
}

static bool push(mx_tcp *t, int r, mx_transfer *transfers, mx_status *st)
{
    mail *m = &t->mail[r];
    size_t h = sizeof m->out;
    if (!choose(t, r, transfers, st))
        return false;
    bool head = m->gone < h;
    const char *from = head ? (const char *)&m->out + m->gone
                            : (const char *)m->from->m.data + (m->gone - h);
    size_t n = head ? h - m->gone : m->from->m.bytes - (m->gone - h);
    ssize_t k = send(t->peer[r].fd, from, n,
                     MSG_DONTWAIT | MSG_NOSIGNAL | (head && m->from ? MSG_MORE : 0));
    t->peer[r].closed |= k < 0 && errno != EAGAIN && errno != EINTR;
    if (k <= 0)
        return false;
    m->gone += (size_t)k;
    if (m->gone < h + (m->from ? m->from->m.bytes : 0))
        return true;
    if (m->from)
        m->from->done = true;
    m->from = NULL;
    m->sending = false;
    return true;
}

/* --- of a communicator --- */

/* A rank that has closed its connection and still owes something; the coordinator has some time to
 * say what happened. */
static mx_status judge_closed(mx_tcp *t, int r, const mx_transfer *transfers)
{
    mail *m = &t->mail[r];
    double now = mx_clock_now();
    while (transfers && (transfers->done || transfers->m.peer != r))
        transfers = transfers->next;
    m->closed_at = !transfers ? 0 : m->closed_at > 0 ? m->closed_at : now;
    if (!transfers || now - m->closed_at < MX_TCP_OTHERS_S)
        return MX_OK;
    return mx_coord_fail(t->base.coord, r, "%s has closed its connection to %s",
                         mx_coord_who(t->base.coord, r),
                         mx_coord_who(t->base.coord, t->base.rank));
}

mx_status mx_tcp_move(mx_comm *c, mx_transfer *transfers, bool *moved)
{
    mx_tcp *t = (mx_tcp *)c;
    if (!t->mail)
        t->mail = MX_NEW_N(&t->arena, mail, c->size);
    mx_status st = MX_OK;
    for (int r = 0; r < c->size && !st; r++) {
        if (r == c->rank)
            continue;
        if (t->peer[r].closed) {
            st = judge_closed(t, r, transfers);
            continue;
        }
        *moved |= pull(t, r, transfers, &st);
        if (!st && !t->peer[r].closed)
            *moved |= push(t, r, transfers, &st);
    }
    return st;
}

void mx_tcp_rest(mx_comm *c, int wake, bool urgent)
{
    mx_tcp *t = (mx_tcp *)c;
    int n = c->size;
    bool closed = false;
    (void)urgent;
    for (int r = 0; r < n; r++) {
        bool out = r == c->rank || t->peer[r].closed;
        closed |= t->peer[r].closed;
        t->polls[r] = (struct pollfd){out ? -1 : t->peer[r].fd,
                                      (short)(POLLIN | (t->mail[r].sending ? POLLOUT : 0)), 0};
    }
    t->polls[n] = (struct pollfd){mx_coord_alarm(c->coord), POLLIN, 0};
    t->polls[n + 1] = (struct pollfd){wake, POLLIN, 0};
    poll(t->polls, (nfds_t)n + 2, closed ? 100 : 60000);
}

/* A frame that is under way cannot be taken back: the connection goes with it. */
void mx_tcp_drop(mx_comm *c, mx_transfer *l)
{
    mx_tcp *t = (mx_tcp *)c;
    mail *m = t->mail ? &t->mail[l->m.peer] : NULL;
    if (m && (m->into == l || m->from == l))
        mx_socket_close(&t->peer[l->m.peer].fd);
}

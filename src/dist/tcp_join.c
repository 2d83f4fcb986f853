/* tcp_join.c - how ranks find each other.
 *
 *     rank 0       listens at MASTER_ADDR:MASTER_PORT
 *     rank r > 0   opens a listener of its own, connects to rank 0, sends its card (rank, number of
 *                  ranks, its listener's port, host, process)
 *     rank 0       when all cards are there, sends everybody the table: address, host and process
 *                  of each rank, and a random token
 *     every rank   connects twice (data, control) to each lower rank, with a card that has the
 *                  token, and accepts as much from each higher one
 *
 * A connection that does not begin with a card is somebody else's and is closed; a card is of fixed
 * size, so nobody can make a rank allocate. Two ranks of one number, or numbers of ranks that
 * differ, are mistakes and end the start with their names. Integers are in the machine's order:
 * ranks are of one kind, as the bits of their sums have to be.
 */
#include "dist/tcp_impl.h"

#include "base/clock.h"
#include "base/signals.h"
#include "base/str.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { RETRY_MS = 50, MAX_CALLERS = 64, CALLER_SECONDS = 10 };
static const uint32_t MAGIC = 0x6378616d; /* "maxc" */

typedef enum { JOIN = 1, DATA, CONTROL } purpose;

typedef struct {
    uint32_t magic, purpose;
    int32_t rank, size, port, pid;
    uint64_t token;
    char host[MX_TCP_HOST];
} card;

typedef struct {
    struct sockaddr_storage at;
    int32_t pid;
    char host[MX_TCP_HOST];
} entry;

/* --- sockets -------------------------------------------------------------------------------- */

static bool ready(int fd, short events, double deadline)
{
    for (;;) {
        double left = deadline - mx_clock_now();
        struct pollfd p = {fd, events, 0};
        int n = poll(&p, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
        if (n > 0)
            return true;
        if (n == 0 || errno != EINTR)
            return false;
    }
}

bool mx_tcp_send_all(int fd, const void *p, size_t n, double deadline)
{
    for (const char *from = p; n;) {
        ssize_t k = send(fd, from, n, MSG_NOSIGNAL);
        if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!ready(fd, POLLOUT, deadline))
                return false;
            continue;
        }
        if (k <= 0)
            return false;
        from += k;
        n -= (size_t)k;
    }
    return true;
}

bool mx_tcp_receive_all(int fd, void *p, size_t n, double deadline)
{
    for (char *to = p; n;) {
        ssize_t k = recv(fd, to, n, 0);
        if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!ready(fd, POLLIN, deadline))
                return false;
            continue;
        }
        if (k <= 0)
            return false;
        to += k;
        n -= (size_t)k;
    }
    return true;
}

in_port_t *mx_tcp_port(struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)a)->sin6_port
                                    : &((struct sockaddr_in *)a)->sin_port;
}

static socklen_t length_of(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static void tune(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* -1 and errno when nobody answers. */
static int connect_to(const struct sockaddr_storage *a, double deadline)
{
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err = 0;
    socklen_t n = sizeof err;
    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)a, length_of(a)) && errno != EINPROGRESS)
        err = errno;
    else if (!ready(fd, POLLOUT, deadline))
        err = ETIMEDOUT;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n);
    if (err) {
        close(fd);
        errno = err;
        return -1;
    }
    tune(fd);
    return fd;
}

static int listen_at(const struct sockaddr_storage *a, int backlog)
{
    int on = 1, fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)a, length_of(a)) || listen(fd, backlog)) {
        int err = errno;
        close(fd);
        errno = err;
        return -1;
    }
    return fd;
}

static int backlog_of(const mx_tcp *t)
{
    return 2 * t->base.size + MAX_CALLERS;
}

mx_status mx_tcp_listen(mx_tcp *t, int *listener)
{
    struct sockaddr_storage *at = &t->peer[t->base.rank].at, bound;
    socklen_t n = sizeof bound;
    *mx_tcp_port(at) = 0;
    *listener = listen_at(at, backlog_of(t));
    if (*listener < 0 || getsockname(*listener, (struct sockaddr *)&bound, &n))
        return mx_fail_errno(MX_DEVICE, "rank %d cannot listen for the other ranks", t->base.rank);
    *mx_tcp_port(at) = *mx_tcp_port(&bound);
    return MX_OK;
}

static mx_status stopped(void)
{
    return mx_fail(MX_STOPPED, "stopped while waiting for the other ranks; nothing was begun");
}

/* --- cards ---------------------------------------------------------------------------------- */

static card card_of(const mx_tcp *t, purpose why)
{
    card c = {.magic = MAGIC,
              .purpose = why,
              .rank = t->base.rank,
              .size = t->base.size,
              .pid = (int32_t)getpid(),
              .token = t->token};
    gethostname(c.host, sizeof c.host - 1);
    return c;
}

typedef struct {
    int fd;
    size_t got;
    double since;
    card card;
} caller;

/* What is done with a caller's card. False: it is a stranger's, and the connection is closed. */
typedef bool (*take_card)(mx_tcp *t, void *ctx, const caller *c, mx_status *st);

/* One caller may have something to say. True while the connection is still wanted. */
static bool hear(mx_tcp *t, caller *c, take_card take, void *ctx, mx_status *st, bool *taken)
{
    ssize_t n = recv(c->fd, (char *)&c->card + c->got, sizeof c->card - c->got, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    c->got += n > 0 ? (size_t)n : 0;
    if (n > 0 && c->got < sizeof c->card)
        return true;
    c->card.host[sizeof c->card.host - 1] = 0;
    *taken = n > 0 && c->card.magic == MAGIC && take(t, ctx, c, st);
    if (!*taken)
        close(c->fd);
    return false;
}

/* Accepts until `want` cards were taken, an error, or the deadline (then *left cards are missing).
 */
static mx_status collect(mx_tcp *t, int listener, int want, double deadline, take_card take,
                         void *ctx, int *left)
{
    caller in[MAX_CALLERS];
    struct pollfd p[MAX_CALLERS + 1];
    int n = 0;
    mx_status st = MX_OK;
    for (*left = want; *left > 0 && !st && mx_clock_now() < deadline;) {
        if (mx_stop_signal())
            st = stopped();
        p[n] = (struct pollfd){n < MAX_CALLERS ? listener : -1, POLLIN, 0};
        for (int i = 0; i < n; i++)
            p[i] = (struct pollfd){in[i].fd, POLLIN, 0};
        if (poll(p, (nfds_t)n + 1, 100) < 0)
            continue; /* interrupted, perhaps by a signal that asks to stop */
        bool calls = p[n].revents != 0;
        for (int i = n - 1; i >= 0; i--) {
            bool taken = false, late = mx_clock_now() - in[i].since > CALLER_SECONDS;
            if (late)
                close(in[i].fd);
            else if (!p[i].revents || hear(t, &in[i], take, ctx, &st, &taken))
                continue;
            in[i] = in[--n];
            *left -= taken;
        }
        int fd = calls ? accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
        if (fd < 0)
            continue;
        tune(fd);
        in[n++] = (caller){.fd = fd, .since = mx_clock_now()};
    }
    while (n > 0)
        close(in[--n].fd);
    return st;
}

/* --- meeting -------------------------------------------------------------------------------- */

static void name_peer(mx_tcp *t, int rank, const char *host, int pid)
{
    snprintf(t->peer[rank].who, sizeof t->peer[rank].who, "rank %d (host %.60s, process %d)", rank,
             host, pid);
}

typedef struct {
    int *link; /* to each rank, -1: not there yet */
    entry *table;
} meeting;

static bool take_member(mx_tcp *t, void *ctx, const caller *c, mx_status *st)
{
    meeting *m = ctx;
    const card *k = &c->card;
    if (k->purpose != JOIN)
        return false;
    if (k->size != t->base.size || k->rank < 1 || k->rank >= t->base.size) {
        *st = mx_fail(MX_USAGE,
                      "process %d on %s says it is rank %d of %d, and rank 0 was started as one of "
                      "%d; start all ranks with the same number, or choose another MASTER_PORT "
                      "when they belong to another run",
                      k->pid, k->host, k->rank, k->size, t->base.size);
        return false;
    }
    if (m->link[k->rank] >= 0) {
        *st = mx_fail(MX_USAGE,
                      "rank %d is there twice: process %d on %s and process %d on %s; end the "
                      "earlier one, or choose another MASTER_PORT",
                      k->rank, m->table[k->rank].pid, m->table[k->rank].host, k->pid, k->host);
        return false;
    }
    entry *e = &m->table[k->rank];
    socklen_t n = sizeof e->at;
    if (getpeername(c->fd, (struct sockaddr *)&e->at, &n))
        return false;
    *mx_tcp_port(&e->at) = (in_port_t)k->port;
    e->pid = k->pid;
    memcpy(e->host, k->host, sizeof e->host);
    m->link[k->rank] = c->fd;
    return true;
}

static mx_status missing_ranks(const mx_tcp *t, const meeting *m, const mx_place *p)
{
    mx_str who = {0};
    int n = 0;
    for (int r = 1; r < t->base.size; r++)
        if (m->link[r] < 0 && ++n <= 16)
            mx_str_addf(&who, " %d", r);
    mx_status st = mx_fail(MX_DEVICE,
                           "after %.0f s at %s:%d %d of %d ranks have not come:%s%s; look at their "
                           "output, or wait longer with distributed_initialization_timeout",
                           t->join_timeout_s, p->host, p->port, n, t->base.size,
                           mx_str_text(&who), n > 16 ? "..." : "");
    mx_str_fini(&who);
    return st;
}

/* Rank 0: cards in, table out. */
static mx_status host_meeting(mx_tcp *t, const mx_place *p, int door, double deadline, entry *table)
{
    int left;
    meeting m = {.link = MX_NEW_N(&t->arena, int, t->base.size), .table = table};
    for (int r = 0; r < t->base.size; r++)
        m.link[r] = -1;
    mx_status st = collect(t, door, t->base.size - 1, deadline, take_member, &m, &left);
    if (!st && left)
        st = missing_ranks(t, &m, p);
    if (!st && getrandom(&t->token, sizeof t->token, 0) != (ssize_t)sizeof t->token)
        st = mx_fail_errno(MX_DEVICE, "no random number for the ranks' token");
    for (int r = 1; r < t->base.size; r++) {
        if (!st && !(mx_tcp_send_all(m.link[r], &t->token, sizeof t->token, deadline) &&
                     mx_tcp_send_all(m.link[r], table, sizeof *table * (size_t)t->base.size,
                                     deadline)))
            st = mx_fail(MX_DEVICE, "rank %d on %s was there and is gone again", r, table[r].host);
        if (m.link[r] >= 0)
            close(m.link[r]);
    }
    return st;
}

/* Every address of a name in turn, again and again until the deadline: rank 0 may not be there yet,
 * nor its name. */
static mx_status reach(const mx_place *p, bool listening, int backlog, double deadline, int *fd,
                       struct sockaddr_storage *at)
{
    char port[16], why[160] = "";
    snprintf(port, sizeof port, "%d", p->port);
    for (;;) {
        struct addrinfo hint = {.ai_socktype = SOCK_STREAM}, *list = NULL;
        int bad = getaddrinfo(p->host, port, &hint, &list);
        snprintf(why, sizeof why, "%s", bad ? gai_strerror(bad) : "");
        for (struct addrinfo *a = list; a && !bad; a = a->ai_next) {
            memset(at, 0, sizeof *at);
            memcpy(at, a->ai_addr, a->ai_addrlen);
            *fd = listening ? listen_at(at, backlog) : connect_to(at, deadline);
            if (*fd >= 0)
                break;
            snprintf(why, sizeof why, "%.150s", strerror(errno));
        }
        bool found = !bad && *fd >= 0;
        if (list)
            freeaddrinfo(list);
        if (found)
            return MX_OK;
        if (mx_stop_signal())
            return stopped();
        if (mx_clock_now() >= deadline || (listening && !bad))
            return mx_fail(MX_DEVICE, "%s %s:%d: %s%s",
                           listening ? "rank 0 cannot listen on" : "nobody answers at", p->host,
                           p->port, why,
                           listening ? "; MASTER_ADDR must be an address of its machine and "
                                       "MASTER_PORT free"
                                     : "; is rank 0 running there?");
        nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000L}, NULL);
    }
}

static mx_status join_meeting(mx_tcp *t, int link, double deadline, entry *table)
{
    struct sockaddr_storage master;
    socklen_t n = sizeof master;
    card c = card_of(t, JOIN);
    c.port = *mx_tcp_port(&t->peer[t->base.rank].at);
    if (!mx_tcp_send_all(link, &c, sizeof c, deadline) ||
        !mx_tcp_receive_all(link, &t->token, sizeof t->token, deadline) ||
        !mx_tcp_receive_all(link, table, sizeof *table * (size_t)t->base.size, deadline) ||
        getpeername(link, (struct sockaddr *)&master, &n))
        return mx_fail(MX_DEVICE, "rank 0 left before all ranks had come; its output says why");
    /* Rank 0 does not know under which of its addresses it is reached. */
    *mx_tcp_port(&master) = *mx_tcp_port(&table[0].at);
    table[0].at = master;
    return MX_OK;
}

mx_status mx_tcp_meet(mx_tcp *t, const mx_place *p, double deadline, int *listener)
{
    int fd = -1, rank = t->base.rank;
    entry *table = MX_NEW_N(&t->arena, entry, t->base.size);
    socklen_t n = sizeof t->peer[rank].at;
    mx_status st = MX_OK;
    *listener = -1;
    MX_TRY(reach(p, rank == 0, backlog_of(t), deadline, &fd, &t->peer[rank].at));
    if (rank && getsockname(fd, (struct sockaddr *)&t->peer[rank].at, &n))
        MX_TRY_OUT(st, mx_fail_errno(MX_DEVICE, "rank %d has no address", rank));
    MX_TRY_OUT(st, mx_tcp_listen(t, listener));
    table[0] = (entry){.at = t->peer[0].at, .pid = (int32_t)getpid()};
    gethostname(table[0].host, sizeof table[0].host - 1);
    st = rank ? join_meeting(t, fd, deadline, table) : host_meeting(t, p, fd, deadline, table);
    for (int r = 0; !st && r < t->base.size; r++) {
        name_peer(t, r, table[r].host, table[r].pid);
        if (r != rank)
            t->peer[r].at = table[r].at;
    }
out:
    close(fd);
    if (st && *listener >= 0)
        close(*listener);
    return st;
}

/* --- the mesh ------------------------------------------------------------------------------- */

static bool take_peer(mx_tcp *t, void *ctx, const caller *c, mx_status *st)
{
    (void)ctx, (void)st;
    const card *k = &c->card;
    if (k->token != t->token || k->rank <= t->base.rank || k->rank >= t->base.size)
        return false;
    int *slot = k->purpose == DATA ? &t->peer[k->rank].data : &t->peer[k->rank].control;
    if (*slot >= 0 || (k->purpose != DATA && k->purpose != CONTROL))
        return false;
    *slot = c->fd;
    return true;
}

mx_status mx_tcp_mesh(mx_tcp *t, int listener, double deadline)
{
    mx_status st = MX_OK;
    int left = 0;
    for (int r = 0; r < t->base.rank && !st; r++)
        for (int k = 0; k < 2 && !st; k++) {
            card c = card_of(t, k ? CONTROL : DATA);
            int fd = connect_to(&t->peer[r].at, deadline);
            if (fd < 0 || !mx_tcp_send_all(fd, &c, sizeof c, deadline))
                st = mx_fail_errno(MX_DEVICE, "%s does not answer; can machines reach each other?",
                                   t->peer[r].who);
            *(k ? &t->peer[r].control : &t->peer[r].data) = fd;
        }
    if (!st)
        st = collect(t, listener, 2 * (t->base.size - 1 - t->base.rank), deadline, take_peer, NULL,
                     &left);
    for (int r = t->base.rank + 1; r < t->base.size && !st && left; r++)
        if (t->peer[r].data < 0 || t->peer[r].control < 0)
            st = mx_fail(MX_DEVICE, "%s was there and does not connect", t->peer[r].who);
    close(listener);
    return st;
}

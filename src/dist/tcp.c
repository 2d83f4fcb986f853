/* tcp.c - exchanges over TCP, each rank connected with each: what there is without MPI and NCCL.
 *
 * In an exchange a rank sends each rank of it a header (which call this is, its number among those
 * with this rank, how many bytes follow) and its bytes, and receives as much; all at once, in the
 * order in which the sockets are ready. A header that does not fit is a rank that made another
 * call; what a header says is compared, never used.
 *
 * Whether ranks live is the coordinator's business (coord.h): an exchange has no time limit of its
 * own and ends when the coordinator raises its alarm. A rank that leaves behind a call has taken
 * part in it, so what it sent is read first; the next call fails.
 *
 * Not done: trees for many ranks (R^2 connections are fine up to some hundred), encryption. Who
 * connects is known (tcp_mesh.c); what is sent then can be read and changed by whoever owns the
 * network, as with MPI.
 */
#include "dist/tcp_impl.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "dist/socket.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* After an alarm: for what is on its way from the rank to blame, and from the others. */
static const double LAST_BYTES_S = 1, OTHERS_S = MX_TCP_OTHERS_S;

typedef struct {
    char call[16];
    uint64_t number, bytes;
} header;

/* What goes to and comes from one rank in an exchange. */
typedef struct mx_tcp_move {
    header say, heard;
    const char *out;
    char *in;
    size_t out_bytes, in_bytes;
    size_t sent, got; /* header included */
    bool none;        /* this rank is not of the exchange */
} move;

static bool has_gone(const move *m)
{
    return m->none || m->sent == sizeof m->say + m->out_bytes;
}

static bool has_come(const move *m)
{
    return m->none || m->got == sizeof m->heard + m->in_bytes;
}

static bool is_done(const move *m)
{
    return has_gone(m) && has_come(m);
}

/* --- exchange ------------------------------------------------------------------------------- */

static ssize_t push(int fd, move *m)
{
    size_t h = sizeof m->say;
    bool head = m->sent < h;
    const char *from = head ? (const char *)&m->say + m->sent : m->out + (m->sent - h);
    size_t n = head ? h - m->sent : m->out_bytes - (m->sent - h);
    ssize_t k = send(fd, from, n, MSG_NOSIGNAL | (head && m->out_bytes ? MSG_MORE : 0));
    m->sent += k > 0 ? (size_t)k : 0;
    return k;
}

static ssize_t pull(int fd, move *m)
{
    size_t h = sizeof m->heard;
    bool head = m->got < h;
    char *to = head ? (char *)&m->heard + m->got : m->in + (m->got - h);
    size_t n = head ? h - m->got : m->in_bytes - (m->got - h);
    ssize_t k = recv(fd, to, n, 0);
    m->got += k > 0 ? (size_t)k : 0;
    return k;
}

static bool may_retry(ssize_t k)
{
    return k > 0 || (k < 0 && (errno == EAGAIN || errno == EINTR));
}

static mx_status check_header(mx_tcp *t, int r, const char *call)
{
    const header *h = &t->move[r].heard;
    char name[4 * sizeof h->call];
    if (strncmp(h->call, call, sizeof h->call) == 0 && h->number == t->peer[r].calls &&
        h->bytes == t->move[r].in_bytes)
        return MX_OK;
    return mx_coord_fail(
        t->base.coord, -1,
        "%s is at %s number %llu with %llu bytes, and %s at %s number %llu with "
        "%zu: the ranks are doing different things; were they started with one command?",
        mx_coord_who(t->base.coord, r), mx_printable(name, sizeof name, h->call, sizeof h->call),
        (unsigned long long)h->number, (unsigned long long)h->bytes,
        mx_coord_who(t->base.coord, t->base.rank), call, (unsigned long long)t->peer[r].calls,
        t->move[r].in_bytes);
}

/* What is ready at one rank's socket. */
static mx_status serve(mx_tcp *t, int r, short ready, const char *call)
{
    move *m = &t->move[r];
    mx_tcp_peer *p = &t->peer[r];
    size_t before = m->got;
    if ((ready & POLLOUT) && !has_gone(m))
        p->closed |= !may_retry(push(p->fd, m));
    if (ready & ~POLLOUT)
        p->closed |= has_come(m) || !may_retry(pull(p->fd, m));
    if (before < sizeof m->heard && m->got >= sizeof m->heard)
        return check_header(t, r, call);
    return MX_OK;
}

/* Fills in what to wait for, and says so. True: nothing, all is done. */
static bool watch(mx_tcp *t, bool alarmed)
{
    bool done = true;
    int n = t->base.size, owes = -1;
    for (int r = 0; r < n; r++) {
        const move *m = &t->move[r];
        bool over = r == t->base.rank || is_done(m);
        short want = (short)((has_gone(m) ? 0 : POLLOUT) | (has_come(m) ? 0 : POLLIN));
        t->polls[r] = (struct pollfd){over || t->peer[r].closed ? -1 : t->peer[r].fd, want, 0};
        done &= over;
        if (!over && owes < 0)
            owes = r;
    }
    t->polls[n] = (struct pollfd){alarmed ? -1 : mx_coord_alarm(t->base.coord), POLLIN, 0};
    mx_coord_waits_for(t->base.coord, t->channel, owes);
    return done;
}

/* A rank that has closed its connection and still owes something; -1: none. */
static int closed_one(const mx_tcp *t)
{
    for (int r = 0; r < t->base.size; r++)
        if (r != t->base.rank && t->peer[r].closed && !is_done(&t->move[r]))
            return r;
    return -1;
}

/* Seconds without any movement after which this exchange will not end well. */
static double patience(mx_tcp *t, bool alarmed)
{
    int closed = closed_one(t);
    if (!alarmed)
        return closed < 0 ? 1e9 : OTHERS_S; /* the coordinator will say what happened */
    int culprit = mx_coord_culprit(t->base.coord);
    bool owes = culprit < 0 || (culprit != t->base.rank && !is_done(&t->move[culprit]));
    return closed >= 0 ? 0 : owes ? LAST_BYTES_S : OTHERS_S;
}

static mx_status give_up(mx_tcp *t, bool alarmed, const char *call)
{
    mx_coord *c = t->base.coord;
    int r = closed_one(t);
    if (alarmed)
        MX_TRY(mx_coord_check(c));
    return mx_coord_fail(c, r, "%s has closed its connection to %s in %s number %llu",
                         r < 0 ? "a rank" : mx_coord_who(c, r), mx_coord_who(c, t->base.rank), call,
                         (unsigned long long)t->calls);
}

/* So much has been sent and received, and so many have closed: does anything move? */
static size_t movement(const mx_tcp *t, bool closings)
{
    size_t n = 0;
    for (int r = 0; r < t->base.size; r++)
        n += closings ? t->peer[r].closed : t->move[r].sent + t->move[r].got;
    return n;
}

static mx_status exchange_all(mx_tcp *t, const char *call)
{
    int n = t->base.size;
    bool alarmed = false;
    double moved_at = mx_clock_now();
    while (!watch(t, alarmed)) {
        size_t bytes = movement(t, false), closings = movement(t, true);
        double rest = patience(t, alarmed) - (mx_clock_now() - moved_at);
        if (rest <= 0)
            return give_up(t, alarmed, call);
        double nap = rest < MX_COORD_WAKE_S ? rest : MX_COORD_WAKE_S;
        if (poll(t->polls, (nfds_t)n + 1, (int)(nap * 1000) + 1) < 0)
            continue; /* interrupted */
        for (int r = 0; r < n; r++)
            if (t->polls[r].revents)
                MX_TRY(serve(t, r, t->polls[r].revents, call));
        bool rings = t->polls[n].revents != 0, moved = movement(t, false) != bytes;
        if (moved)
            mx_coord_progress(t->base.coord, t->channel);
        if (moved || rings || movement(t, true) != closings)
            moved_at = mx_clock_now();
        alarmed |= rings;
    }
    return MX_OK;
}

static void plan(mx_tcp *t, const char *call, const mx_comm_move *with)
{
    move *m = &t->move[with->rank];
    *m = (move){
        .out = with->out, .in = with->in, .out_bytes = with->out_bytes, .in_bytes = with->in_bytes};
    snprintf(m->say.call, sizeof m->say.call, "%s", call);
    m->say.number = ++t->peer[with->rank].calls;
    m->say.bytes = with->out_bytes;
}

/* No rank completes a call before all have begun it, so the rank to blame has not begun this one.
 */
static mx_status exchange(mx_comm *c, const char *call, const mx_comm_move *moves, int n)
{
    mx_tcp *t = (mx_tcp *)c;
    MX_TRY(mx_coord_check(c->coord));
    t->calls++;
    for (int r = 0; r < c->size; r++)
        t->move[r] = (move){.none = true};
    for (int i = 0; i < n; i++)
        plan(t, call, &moves[i]);
    mx_coord_enter(c->coord, t->channel, call, t->calls);
    mx_status st = exchange_all(t, call);
    mx_coord_leave(c->coord, t->channel);
    return st;
}

/* --- life ----------------------------------------------------------------------------------- */

static void tcp_close(mx_comm *c)
{
    mx_tcp *t = (mx_tcp *)c;
    for (int r = 0; r < c->size; r++)
        mx_socket_close(&t->peer[r].fd);
    mx_coord_channel_close(c->coord, t->channel);
    mx_comm_fini(c);
    mx_arena_fini(&t->arena);
    mx_free(t);
}

static mx_status tcp_split_off(mx_comm *c, mx_comm **out)
{
    return mx_tcp_open(out, c->coord);
}

static const mx_comm_kind kind = {.name = "tcp",
                                  .exchange = exchange,
                                  .split_off = tcp_split_off,
                                  .move = mx_tcp_move,
                                  .rest = mx_tcp_rest,
                                  .drop = mx_tcp_drop,
                                  .close = tcp_close};

mx_status mx_tcp_new(mx_tcp **out, mx_coord *coord)
{
    mx_tcp *t = NULL;
    int channel = -1, size = mx_coord_size(coord);
    uint32_t number;
    MX_TRY(mx_coord_channel_open(coord, &channel, &number));
    mx_status st = mx_alloc((void **)&t, sizeof *t, "a communicator");
    if (!st)
        st = mx_comm_init(&t->base, &kind, coord);
    if (st) {
        mx_coord_channel_close(coord, channel);
        mx_free(t);
        return st;
    }
    t->channel = channel;
    t->number = number;
    t->peer = MX_NEW_N(&t->arena, mx_tcp_peer, size);
    t->move = MX_NEW_N(&t->arena, move, size);
    t->polls = MX_NEW_N(&t->arena, struct pollfd, size + 2);
    for (int r = 0; r < size; r++)
        t->peer[r].fd = -1;
    *out = t;
    return MX_OK;
}

mx_status mx_tcp_open(mx_comm **out, mx_coord *coord)
{
    mx_tcp *t;
    *out = NULL;
    MX_TRY(mx_tcp_new(&t, coord));
    mx_status st = mx_tcp_mesh(t);
    if (st)
        tcp_close(&t->base);
    else
        *out = &t->base;
    return st;
}

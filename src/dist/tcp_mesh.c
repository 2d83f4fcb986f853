/* tcp_mesh.c - the connections of a TCP communicator.
 *
 * Every rank opens a listener and tells all others its port (mx_coord_gather). Then it connects to
 * each lower rank, with one LINK frame that is signed with the key of the run and names the
 * communicator and both ranks, and accepts as much from each higher one. Other connections are
 * closed.
 */
#include "dist/tcp_impl.h"

#include "base/clock.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

static mx_wire_keys keys_of(const mx_coord *c)
{
    mx_auth_key key = mx_coord_key(c);
    return (mx_wire_keys){.agreed = true, .in = key, .out = key};
}

static mx_status listen_here(mx_tcp *t, int *listener, uint16_t *port)
{
    struct sockaddr_storage at = *mx_coord_address(t->base.coord, t->base.rank);
    socklen_t n = sizeof at;
    *mx_socket_port(&at) = 0;
    *listener = mx_socket_listen(&at, t->base.size + MX_ACCEPTOR_PENDING);
    if (*listener < 0 || getsockname(*listener, (struct sockaddr *)&at, &n))
        return mx_fail_errno(MX_DEVICE, "rank %d cannot listen for the other ranks", t->base.rank);
    *port = *mx_socket_port(&at);
    return MX_OK;
}

static mx_status connect_to(mx_tcp *t, int rank, uint16_t port, const mx_wait *w)
{
    mx_coord *c = t->base.coord;
    mx_wire_keys keys = keys_of(c);
    mx_wire_frame f;
    struct sockaddr_storage at = *mx_coord_address(c, rank);
    *mx_socket_port(&at) = port;
    int fd = t->peer[rank].fd = mx_socket_connect(&at, w);
    mx_wire_begin(&f, MX_WIRE_LINK);
    mx_wire_put_int(&f, t->number, 4);
    mx_wire_put_int(&f, (uint64_t)t->base.rank, 4);
    mx_wire_put_int(&f, (uint64_t)rank, 4);
    mx_wire_end(&f, &keys);
    if (fd >= 0 && mx_socket_send(fd, f.bytes, f.n, w))
        return MX_OK;
    MX_TRY(mx_coord_check(c));
    return mx_coord_fail(c, rank, "%s does not answer %s: %s; can machines reach each other?",
                         mx_coord_who(c, rank), mx_coord_who(c, t->base.rank), strerror(errno));
}

mx_pending_result mx_tcp_take_link(void *ctx, mx_pending *p)
{
    mx_tcp *t = ctx;
    mx_wire_keys keys = keys_of(t->base.coord);
    if (p->in.kind != MX_WIRE_LINK)
        return MX_PENDING_ALIEN;
    if (!mx_wire_verify(&p->in, &keys))
        return MX_PENDING_FALSE;
    uint64_t number = mx_wire_get_int(&p->in, 4), from = mx_wire_get_int(&p->in, 4);
    uint64_t to = mx_wire_get_int(&p->in, 4);
    if (number != t->number || to != (uint64_t)t->base.rank || from <= to ||
        from >= (uint64_t)t->base.size || t->peer[from].fd >= 0)
        return MX_PENDING_OTHER;
    t->peer[from].fd = p->fd;
    return MX_PENDING_TAKEN;
}

/* The lowest of the higher ranks that has not connected; -1: all have. */
static int missing(const mx_tcp *t)
{
    for (int r = t->base.rank + 1; r < t->base.size; r++)
        if (t->peer[r].fd < 0)
            return r;
    return -1;
}

static mx_status accept_others(mx_tcp *t, int listener, const mx_wait *w)
{
    mx_coord *c = t->base.coord;
    mx_acceptor a = {.take = mx_tcp_take_link, .ctx = t};
    struct pollfd p[MX_ACCEPTOR_POLLS + 1];
    MX_TRY(mx_acceptor_open(&a, listener));
    while (missing(t) >= 0 && !mx_wait_is_over(w)) {
        int n = mx_acceptor_polls(&a, p, mx_clock_now());
        p[n] = (struct pollfd){w->alarm, POLLIN, 0};
        if (poll(p, (nfds_t)n + 1, 100) >= 0)
            mx_acceptor_serve(&a, p, mx_clock_now());
    }
    mx_acceptor_close(&a);
    int r = missing(t);
    MX_TRY(mx_coord_check(c));
    return r < 0
               ? MX_OK
               : mx_coord_fail(c, r, "%s joined the run but does not connect", mx_coord_who(c, r));
}

mx_status mx_tcp_mesh(mx_tcp *t)
{
    mx_coord *c = t->base.coord;
    int listener = -1;
    uint16_t port = 0, *ports = MX_NEW_N(&t->arena, uint16_t, t->base.size);
    mx_wait w = {.deadline = mx_clock_now() + mx_coord_join_timeout(c), .alarm = mx_coord_alarm(c)};
    mx_status st = listen_here(t, &listener, &port);
    if (!st)
        st = mx_coord_gather(c, &port, sizeof port, ports);
    mx_coord_enter(c, t->channel, "connecting", 0);
    for (int r = 0; r < t->base.rank && !st; r++)
        st = connect_to(t, r, ports[r], &w);
    if (st)
        mx_socket_close(&listener);
    else
        st = accept_others(t, listener, &w);
    mx_coord_leave(c, t->channel);
    return st;
}

/* acceptor.c - see acceptor.h. */
#include "dist/acceptor.h"

#include "base/arena.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const double PATIENCE_S = 5; /* with a connection that has room */
static const double TURN_S = 0.1;   /* with one that others wait for */
static const double DEAF_S = 0.02;
enum { AT_ONCE = 64 }; /* accepted before those that are there are served */

mx_status mx_acceptor_open(mx_acceptor *a, int listener)
{
    a->listener = listener;
    a->n = 0;
    a->refused = 0;
    a->deaf_until = 0;
    a->last[0] = 0;
    mx_status st = mx_alloc((void **)&a->pending, sizeof *a->pending * MX_ACCEPTOR_PENDING,
                            "connections of ranks");
    if (st)
        mx_socket_close(&a->listener);
    return st;
}

void mx_acceptor_close(mx_acceptor *a)
{
    for (int i = 0; a->pending && i < a->n; i++)
        mx_socket_close(&a->pending[i].fd);
    if (a->pending)
        mx_socket_close(&a->listener);
    mx_free(a->pending);
    a->pending = NULL;
    a->n = 0;
}

int mx_acceptor_polls(const mx_acceptor *a, struct pollfd *p, double now)
{
    if (!a->pending)
        return 0;
    for (int i = 0; i < a->n; i++)
        p[i] = (struct pollfd){a->pending[i].fd, POLLIN, 0};
    p[a->n] = (struct pollfd){now < a->deaf_until ? -1 : a->listener, POLLIN, 0};
    return a->n + 1;
}

static void drop(mx_acceptor *a, int i, const char *why)
{
    char from[MX_SOCKET_TEXT];
    if (why) {
        a->refused++;
        snprintf(a->last, sizeof a->last, "from %s: %s", mx_socket_text(&a->pending[i].from, from),
                 why);
        mx_socket_close(&a->pending[i].fd);
    }
    a->pending[i] = a->pending[--a->n];
}

/* False: all that wait have just come, and have their turn first. */
static bool make_room(mx_acceptor *a, double now)
{
    int oldest = 0;
    for (int i = 1; i < a->n; i++)
        oldest = a->pending[i].since < a->pending[oldest].since ? i : oldest;
    if (a->n < MX_ACCEPTOR_PENDING)
        return true;
    if (now - a->pending[oldest].since < TURN_S)
        return false;
    drop(a, oldest, "said nothing, among many");
    return true;
}

void mx_acceptor_add(mx_acceptor *a, int fd, const struct sockaddr_storage *from, double now)
{
    mx_pending *p = &a->pending[a->n++];
    *p = (mx_pending){.fd = fd, .since = now, .from = *from};
}

static void serve_one(mx_acceptor *a, int i, double now)
{
    static const char *const why[] = {
        [MX_PENDING_ALIEN] = "does not speak as a rank does",
        [MX_PENDING_FALSE] = "does not know the secret of this run",
        [MX_PENDING_OTHER] = "belongs to another run",
    };
    mx_pending *p = &a->pending[i];
    mx_pending_result fate = MX_PENDING_WAITS;
    mx_wire_state st = MX_WIRE_WHOLE;
    while (fate == MX_PENDING_WAITS && (st = mx_wire_receive(p->fd, &p->in)) == MX_WIRE_WHOLE)
        fate = a->take(a->ctx, p);
    if (fate == MX_PENDING_TAKEN)
        drop(a, i, NULL);
    else if (fate != MX_PENDING_WAITS)
        drop(a, i, why[fate]);
    else if (st != MX_WIRE_MORE)
        drop(a, i,
             st == MX_WIRE_CLOSED ? "left before it had said who it is" : why[MX_PENDING_ALIEN]);
    else if (now - p->since > PATIENCE_S)
        drop(a, i, "did not say who it is");
}

void mx_acceptor_serve(mx_acceptor *a, const struct pollfd *p, double now)
{
    if (!a->pending)
        return;
    bool calls = p[a->n].revents != 0;
    for (int i = a->n - 1; i >= 0; i--)
        if (p[i].revents || now - a->pending[i].since > PATIENCE_S)
            serve_one(a, i, now);
    for (int k = 0; calls && k < AT_ONCE; k++) {
        struct sockaddr_storage from;
        bool room = make_room(a, now);
        int fd = room ? mx_socket_accept(a->listener, &from) : -1;
        if (!room || (fd < 0 && (errno == EMFILE || errno == ENFILE)))
            a->deaf_until = now + DEAF_S;
        if (fd < 0)
            break;
        mx_acceptor_add(a, fd, &from, now);
    }
}

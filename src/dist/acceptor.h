/* acceptor.h - a listener, and the connections that have not yet proved that they belong to the
 * run.
 *
 * Anybody can connect, so a connection may wait only a few seconds, a limited number wait at a
 * time, and when there are that many the oldest is soon closed in favour of a new one. A peer that
 * knows the secret needs milliseconds. Refused connections are counted.
 */
#ifndef MX_DIST_ACCEPTOR_H
#define MX_DIST_ACCEPTOR_H

#include "dist/socket.h"
#include "dist/wire.h"
#include <poll.h>

enum { MX_ACCEPTOR_PENDING = 256, MX_ACCEPTOR_POLLS = MX_ACCEPTOR_PENDING + 1 };

typedef struct {
    int fd;
    double since;
    struct sockaddr_storage from;
    mx_wire_frame in;
    mx_wire_keys keys;
} mx_pending;

typedef enum {
    MX_PENDING_WAITS, /* for more frames */
    MX_PENDING_TAKEN, /* its descriptor has another owner now */
    MX_PENDING_ALIEN, /* does not speak as a rank does */
    MX_PENDING_FALSE, /* does not know the secret */
    MX_PENDING_OTHER, /* a rank, but not one of this run */
} mx_pending_result;

typedef struct {
    int listener;        /* owns */
    mx_pending *pending; /* owns; MX_ACCEPTOR_PENDING of them */
    int n;
    /* A whole frame has come. */
    mx_pending_result (*take)(void *ctx, mx_pending *p);
    void *ctx;
    double deaf_until; /* no room, or no descriptors left: not a reason to spin */
    int64_t refused;
    char last[160]; /* of the refused: where it came from and why */
} mx_acceptor;

/* Takes the listener, also when it fails. */
mx_status mx_acceptor_open(mx_acceptor *a, int listener) MX_MUST_USE;
/* Zero-initialised, and closed twice, is a no-op. */
void mx_acceptor_close(mx_acceptor *a);
/* What to poll for, at most MX_ACCEPTOR_POLLS; how many. */
int mx_acceptor_polls(const mx_acceptor *a, struct pollfd *p, double now);
/* With what those polls gave. */
void mx_acceptor_serve(mx_acceptor *a, const struct pollfd *p, double now);
/* As if this connection had been accepted; there is room. */
void mx_acceptor_add(mx_acceptor *a, int fd, const struct sockaddr_storage *from, double now);

#endif

/* tcp_impl.h - what connecting (tcp_mesh.c) and talking (tcp.c) share; private to src/dist/tcp*.c
 * and the fuzz targets. */
#ifndef MX_DIST_TCP_IMPL_H
#define MX_DIST_TCP_IMPL_H

#include "base/arena.h"
#include "dist/acceptor.h"
#include "dist/tcp.h"

typedef struct {
    int fd; /* -1: none */
    bool closed;
    uint64_t calls; /* exchanges with this rank */
} mx_tcp_peer;

typedef struct {
    mx_comm base;
    mx_arena arena;
    int channel;          /* of the coordinator */
    uint32_t number;   /* which communicator this is, the same on all ranks */
    mx_tcp_peer *peer; /* one for each rank; none to itself */
    uint64_t calls;
    struct mx_tcp_move *move;
    struct pollfd *polls;
    struct mx_tcp_mail *mail; /* of each rank, where messages are carried (tcp_message.c) */
} mx_tcp;

/* tcp_message.c */
mx_status mx_tcp_move(mx_comm *c, mx_transfer *transfers, bool *moved) MX_MUST_USE;
void mx_tcp_rest(mx_comm *c, int wake, bool urgent);
void mx_tcp_drop(mx_comm *c, mx_transfer *l);
/* After an alarm, for what is on its way from ranks that are not to blame. */
#define MX_TCP_OTHERS_S 5.0

/* An object without connections; mx_comm_close takes it. */
mx_status mx_tcp_new(mx_tcp **out, mx_coord *coord) MX_MUST_USE;
/* Connects every rank with every other one. */
mx_status mx_tcp_mesh(mx_tcp *t) MX_MUST_USE;
mx_pending_result mx_tcp_take_link(void *tcp, mx_pending *p);

#endif

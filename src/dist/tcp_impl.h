/* tcp_impl.h - what joining (tcp_join.c) and talking (tcp.c) share; private to src/dist/tcp*.c. */
#ifndef MX_DIST_TCP_IMPL_H
#define MX_DIST_TCP_IMPL_H

#include "base/arena.h"
#include "dist/tcp.h"
#include <netinet/in.h>
#include <sys/socket.h>

enum { MX_TCP_HOST = 64, MX_TCP_WHY = 640 };

typedef struct {
    int data, control; /* sockets, -1: none; control carries nothing but a rank's last words */
    bool quiet;        /* control has closed */
    char who[128];     /* "rank 2 (host node7, process 4711)" */
    struct sockaddr_storage at;
} mx_tcp_peer;

typedef struct {
    mx_comm base;
    mx_arena arena;
    mx_tcp_peer *peer; /* one for each rank; no sockets to itself */
    double join_timeout_s, call_timeout_s;
    uint64_t token; /* of this communicator; strangers do not know it */
    uint64_t calls;
    char why[MX_TCP_WHY]; /* the first failure; "": none */
    bool told;            /* the others know of it */
    struct mx_tcp_move *move;
    struct pollfd *polls;
    float *stage, *arrived; /* for sums: size slices each */
    int64_t slice;          /* numbers */
} mx_tcp;

/* Connects to every other rank whose address is known: peer[].at, with the port of the listener of
 * each. Takes the listener. */
mx_status mx_tcp_mesh(mx_tcp *t, int listener, double deadline) MX_MUST_USE;
/* A listener on the address that this rank has been reached at; puts its port there. */
mx_status mx_tcp_listen(mx_tcp *t, int *listener) MX_MUST_USE;
/* Meets the others at host:port and fills in every peer's name and address. */
mx_status mx_tcp_meet(mx_tcp *t, const mx_place *p, double deadline, int *listener) MX_MUST_USE;
in_port_t *mx_tcp_port(struct sockaddr_storage *a);
/* Reads or writes all n bytes of a socket that does not block, until the deadline. False: the
 * other side is gone, or time is over. */
bool mx_tcp_send_all(int fd, const void *p, size_t n, double deadline);
bool mx_tcp_receive_all(int fd, void *p, size_t n, double deadline);

#endif

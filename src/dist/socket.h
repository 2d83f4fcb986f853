/* socket.h - TCP sockets that do not block, with deadlines. */
#ifndef MX_DIST_SOCKET_H
#define MX_DIST_SOCKET_H

#include "base/status.h"
#include <netinet/in.h>
#include <sys/socket.h>

enum { MX_SOCKET_TEXT = 64 };

/* What ends a wait. */
typedef struct {
    double deadline; /* clock.h */
    int alarm;       /* a descriptor that becomes readable; -1: none */
    bool stops;      /* a signal that asks to stop (signals.h) */
} mx_wait;

bool mx_wait_is_over(const mx_wait *w);
/* Waits for one of `events`. False: the wait ended first. */
bool mx_socket_wait(int fd, short events, const mx_wait *w);
/* -1 and errno when nothing answers. */
int mx_socket_connect(const struct sockaddr_storage *a, const mx_wait *w);
int mx_socket_listen(const struct sockaddr_storage *a, int backlog);
/* -1: no connection is waiting. */
int mx_socket_accept(int listener, struct sockaddr_storage *from);
/* Writes all n bytes. False: the other side is gone, or the wait ended first. */
bool mx_socket_send(int fd, const void *p, size_t n, const mx_wait *w);

in_port_t *mx_socket_port(struct sockaddr_storage *a);
/* The address without the port, into the caller's buffer, which is returned. */
const char *mx_socket_text(const struct sockaddr_storage *a, char buf[MX_SOCKET_TEXT]);
/* Closes it, when it is one, and leaves -1. */
void mx_socket_close(int *fd);

#endif

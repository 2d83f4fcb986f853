/* socket.c - see socket.h. */
#include "dist/socket.h"

#include "base/clock.h"
#include "base/signals.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { SLICE_MS = 100 }; /* a signal may come between the question and poll */

bool mx_wait_is_over(const mx_wait *w)
{
    struct pollfd p = {w->alarm, POLLIN, 0};
    return mx_clock_now() >= w->deadline || (w->stops && mx_stop_signal()) || poll(&p, 1, 0) > 0;
}

bool mx_socket_wait(int fd, short events, const mx_wait *w)
{
    for (;;) {
        double left = w->deadline - mx_clock_now();
        struct pollfd p[2] = {{fd, events, 0}, {w->alarm, POLLIN, 0}};
        int ms = left <= 0 ? 0 : left * 1000 < SLICE_MS ? (int)(left * 1000) + 1 : SLICE_MS;
        int n = poll(p, 2, ms);
        if (n > 0 && p[0].revents)
            return true;
        if ((n < 0 && errno != EINTR) || mx_wait_is_over(w)) {
            errno = ETIMEDOUT;
            return false;
        }
    }
}

static socklen_t length_of(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

in_port_t *mx_socket_port(struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)a)->sin6_port
                                    : &((struct sockaddr_in *)a)->sin_port;
}

const char *mx_socket_text(const struct sockaddr_storage *a, char buf[MX_SOCKET_TEXT])
{
    const void *at = a->ss_family == AF_INET6
                         ? (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr
                         : (const void *)&((const struct sockaddr_in *)a)->sin_addr;
    return inet_ntop(a->ss_family, at, buf, MX_SOCKET_TEXT) ? buf : "an unknown address";
}

static int new_socket(const struct sockaddr_storage *a)
{
    return socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static void tune(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* Closes it and keeps errno. */
static int give_up(int fd, int err)
{
    close(fd);
    errno = err;
    return -1;
}

int mx_socket_connect(const struct sockaddr_storage *a, const mx_wait *w)
{
    int fd = new_socket(a), err = 0;
    socklen_t n = sizeof err;
    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)a, length_of(a)) && errno != EINPROGRESS)
        err = errno;
    else if (!mx_socket_wait(fd, POLLOUT, w))
        err = ETIMEDOUT;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n);
    if (err)
        return give_up(fd, err);
    tune(fd);
    return fd;
}

int mx_socket_listen(const struct sockaddr_storage *a, int backlog)
{
    int on = 1, fd = new_socket(a);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)a, length_of(a)) || listen(fd, backlog))
        return give_up(fd, errno);
    return fd;
}

int mx_socket_accept(int listener, struct sockaddr_storage *from)
{
    socklen_t n = sizeof *from;
    memset(from, 0, sizeof *from);
    int fd = accept4(listener, (struct sockaddr *)from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        tune(fd);
    return fd;
}

bool mx_socket_send(int fd, const void *p, size_t n, const mx_wait *w)
{
    for (const char *from = p; n;) {
        ssize_t k = send(fd, from, n, MSG_NOSIGNAL);
        if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!mx_socket_wait(fd, POLLOUT, w))
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

void mx_socket_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

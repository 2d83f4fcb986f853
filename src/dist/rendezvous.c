/* rendezvous.c - see rendezvous.h. */
#include "dist/rendezvous.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { RETRY_MS = 50 };

void mx_rendezvous_pause(void)
{
    nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000L}, NULL);
}

/* *known: the name is. -1: no address would do. */
static int try_addresses(const mx_launch *p, int backlog, const mx_wait *w,
                         struct sockaddr_storage *at, bool *known, char why[MX_RENDEZVOUS_WHY])
{
    char port[16];
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int fd = -1;
    snprintf(port, sizeof port, "%d", p->port);
    int bad = getaddrinfo(p->host, port, &hint, &list);
    *known = !bad;
    snprintf(why, MX_RENDEZVOUS_WHY, "%s", bad ? gai_strerror(bad) : "");
    for (struct addrinfo *a = bad ? NULL : list; a && fd < 0; a = a->ai_next) {
        memset(at, 0, sizeof *at);
        memcpy(at, a->ai_addr, a->ai_addrlen);
        fd = backlog ? mx_socket_listen(at, backlog) : mx_socket_connect(at, w);
        if (fd < 0)
            snprintf(why, MX_RENDEZVOUS_WHY, "%.150s", strerror(errno));
    }
    if (list)
        freeaddrinfo(list);
    return fd;
}

mx_status mx_rendezvous_listen(const mx_launch *p, int backlog, const mx_wait *w, int *fd,
                          struct sockaddr_storage *at)
{
    char why[MX_RENDEZVOUS_WHY];
    bool known;
    while ((*fd = try_addresses(p, backlog, w, at, &known, why)) < 0) {
        if (known || mx_wait_is_over(w))
            return mx_fail(MX_DEVICE,
                           "rank 0 cannot listen on %s:%d: %s; MASTER_ADDR must be an address of "
                           "its machine and MASTER_PORT free",
                           p->host, p->port, why);
        mx_rendezvous_pause();
    }
    return MX_OK;
}

int mx_rendezvous_connect(const mx_launch *p, const mx_wait *w, struct sockaddr_storage *at,
                     char why[MX_RENDEZVOUS_WHY])
{
    bool known;
    return try_addresses(p, 0, w, at, &known, why);
}

bool mx_rendezvous_answers(const mx_launch *p, const mx_wait *w)
{
    char why[MX_RENDEZVOUS_WHY];
    struct sockaddr_storage at;
    for (;;) {
        int fd = mx_rendezvous_connect(p, w, &at, why);
        if (fd >= 0) {
            mx_socket_close(&fd);
            return true;
        }
        if (mx_wait_is_over(w))
            return false;
        mx_rendezvous_pause();
    }
}

/* links.c - see links.h. */
#include "serve/links.h"

#include "base/arena.h"
#include <poll.h>
#include <sys/socket.h>

struct mx_link {
    int fd;
    bool receives, ended; /* ended: it was so when it was looked at last */
    mx_link *next, *before;
};

void mx_links_init(mx_links *l)
{
    *l = (mx_links){0};
    pthread_mutex_init(&l->lock, NULL);
}

void mx_links_fini(mx_links *l)
{
    pthread_mutex_destroy(&l->lock);
}

mx_link *mx_link_open(mx_links *l, int fd)
{
    mx_link *k = mx_realloc(NULL, sizeof *k);
    *k = (mx_link){.fd = fd, .receives = true};
    pthread_mutex_lock(&l->lock);
    k->next = l->first;
    if (l->first)
        l->first->before = k;
    l->first = k;
    l->n++;
    pthread_mutex_unlock(&l->lock);
    return k;
}

void mx_link_close(mx_links *l, mx_link *k)
{
    pthread_mutex_lock(&l->lock);
    *(k->before ? &k->before->next : &l->first) = k->next;
    if (k->next)
        k->next->before = k->before;
    l->n--;
    pthread_mutex_unlock(&l->lock);
    mx_free(k);
}

void mx_link_receives(mx_links *l, mx_link *k, bool receives)
{
    pthread_mutex_lock(&l->lock);
    k->receives = receives;
    k->ended = false;
    pthread_mutex_unlock(&l->lock);
}

void mx_links_sweep(mx_links *l)
{
    pthread_mutex_lock(&l->lock);
    struct pollfd *p = mx_realloc(NULL, sizeof *p * (size_t)(l->n + 1));
    int i = 0;
    for (mx_link *k = l->first; k; k = k->next) /* poll passes over what is negative */
        p[i++] = (struct pollfd){.fd = k->receives ? k->fd : -1, .events = POLLRDHUP};
    bool any = poll(p, (nfds_t)l->n, 0) > 0;
    i = 0;
    for (mx_link *k = l->first; k; k = k->next, i++) {
        bool ended = any && p[i].fd >= 0 && p[i].revents & (POLLRDHUP | POLLHUP | POLLERR);
        if (ended && k->ended)
            shutdown(k->fd, SHUT_RDWR); /* an event of which libmicrohttpd hears */
        k->ended = ended;
    }
    pthread_mutex_unlock(&l->lock);
    mx_free(p);
}

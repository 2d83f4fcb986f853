/* links.h - the open connections, to find those whose client left in the middle of a request.
 *
 * libmicrohttpd reads until a socket has given less than was asked for, and then waits for the next
 * event. The end of a connection that arrives with the last bytes has none: the connection stays
 * until it has been idle for a minute, and a few clients that leave so take all there may be.
 */
#ifndef MX_SERVE_LINKS_H
#define MX_SERVE_LINKS_H

#include <pthread.h>
#include <stdbool.h>

typedef struct mx_link mx_link;
typedef struct {
    pthread_mutex_t lock;
    mx_link *first;
    int n;
} mx_links;

void mx_links_init(mx_links *l);
void mx_links_fini(mx_links *l);
mx_link *mx_link_open(mx_links *l, int fd);
void mx_link_close(mx_links *l, mx_link *k); /* before its socket is */
/* A request is being received, or waited for; false: it is there, and its answer is under way. */
void mx_link_receives(mx_links *l, mx_link *k, bool receives);
/* To be called now and then: ends the connections that receive and were at their end last time,
 * too. */
void mx_links_sweep(mx_links *l);

#endif

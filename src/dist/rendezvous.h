/* rendezvous.h - the place where ranks meet, by name: rank 0 listens there, the others call. */
#ifndef MX_DIST_RENDEZVOUS_H
#define MX_DIST_RENDEZVOUS_H

#include "dist/launch.h"
#include "dist/socket.h"

enum { MX_RENDEZVOUS_WHY = 160 };

/* The first address of the name that this machine has. The name may not be known yet: it is looked
 * up again until the wait is over. */
mx_status mx_rendezvous_listen(const mx_launch *p, int backlog, const mx_wait *w, int *fd,
                          struct sockaddr_storage *at) MX_MUST_USE;
/* Every address of the name once; -1: nobody answers at any of them, or the name is not known, as
 * `why` says. */
int mx_rendezvous_connect(const mx_launch *p, const mx_wait *w, struct sockaddr_storage *at,
                     char why[MX_RENDEZVOUS_WHY]);
/* Whether rank 0 listens there before the wait is over. */
bool mx_rendezvous_answers(const mx_launch *p, const mx_wait *w);
/* Between two attempts. */
void mx_rendezvous_pause(void);

#endif

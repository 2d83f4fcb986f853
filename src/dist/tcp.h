/* tcp.h - ranks joined by TCP connections, each with each; see tcp.c. */
#ifndef MX_DIST_TCP_H
#define MX_DIST_TCP_H

#include "dist/comm.h"
#include "dist/place.h"

mx_status mx_tcp_open(mx_comm **out, const mx_place *p, const mx_comm_options *o) MX_MUST_USE;

#endif

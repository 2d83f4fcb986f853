/* tcp.h - ranks joined by TCP connections, each with each; see tcp.c. */
#ifndef MX_DIST_TCP_H
#define MX_DIST_TCP_H

#include "dist/comm.h"

mx_status mx_tcp_open(mx_comm **out, mx_coord *coord) MX_MUST_USE;

#endif

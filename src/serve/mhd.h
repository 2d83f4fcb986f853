/* mhd.h - libmicrohttpd, opened when something is served: it brings a TLS library with it, which no
 * other verb needs. Functions are reached as `mhd->start_daemon(...)`; their types come from the
 * header. */
#ifndef MX_SERVE_MHD_H
#define MX_SERVE_MHD_H

#include "base/status.h"
#include <microhttpd.h>

#define MX_MHD_FUNCTIONS(F)                                                                        \
    F(start_daemon)                                                                                \
    F(stop_daemon)                                                                                 \
    F(quiesce_daemon)                                                                              \
    F(get_daemon_info)                                                                             \
    F(get_connection_info)                                                                         \
    F(queue_response) F(create_response_from_buffer) F(create_response_from_callback)              \
        F(destroy_response) F(add_response_header) F(lookup_connection_value)                      \
            F(get_connection_values) F(suspend_connection) F(resume_connection)

#define MX_MHD_MEMBER(name) __typeof__(&MHD_##name) name;
typedef struct {
    MX_MHD_FUNCTIONS(MX_MHD_MEMBER)
} mx_mhd;

mx_status mx_mhd_open(mx_mhd *mhd) MX_MUST_USE;

#endif

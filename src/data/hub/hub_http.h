/* hub_http.h - one HTTP request for the hub: to memory, or to a file that may already have a
 * part. */
#ifndef MX_DATA_HUB_HTTP_H
#define MX_DATA_HUB_HTTP_H

#include "base/str.h"

typedef struct {
    const char *url, *token; /* token may be NULL */
    int64_t max_bytes;       /* more is an error */
    int fd;                  /* the file to append to; -1: `body` */
    int64_t from;            /* bytes the file has already: asked for as a range */
    void (*progress)(void *ctx, const char *file, int64_t done, int64_t total);
    void *ctx;
    const char *name;        /* of the file, for progress */
    mx_str body;             /* owned by the caller */
    int tries;               /* at most; 0: as many as make sense */
} mx_http;

/* A GET that follows redirects and tries again what may pass: connections, timeouts, 429, 5xx. */
mx_status mx_http_get(mx_http *h) MX_MUST_USE;

#endif

/* server.h - a model behind HTTP.
 *
 * libmicrohttpd's thread receives requests and writes answers; readers (readers.h) parse requests
 * and check them; the thread that calls mx_server_run owns the engine. A request goes from one to
 * the next through queues; its answer comes back as text in the exchange. A connection that waits
 * is suspended, and resumed when there is something for it. docs/design-serving.md says more.
 */
#ifndef MX_SERVE_SERVER_H
#define MX_SERVE_SERVER_H

#include "serve/api_call.h"

typedef struct {
    const char *host;
    int64_t port;        /* 0: any free one */
    const char *api_key; /* NULL or "": none is asked for */
    int64_t most_calls;  /* that wait or run; more get status 429 */
    int64_t body_bytes;  /* of a request at most */
    double drain_s;      /* seconds that calls under way have after a signal to stop */
    double stuck_s;      /* an engine with work that makes no step for this long is unhealthy */
    bool runtime_adapters; /* clients may load and unload adapters */
    double call_s;       /* a call may take this long; 0: any time */
} mx_server_options;

typedef struct mx_server mx_server;

/* Begins to listen. Everything is borrowed until it is closed. */
mx_status mx_server_open(mx_server **out, mx_engine *e, const mx_served *served,
                         const mx_server_options *o) MX_MUST_USE;
void mx_server_close(mx_server *s); /* NULL is a no-op */
int mx_server_port(const mx_server *s);
/* Serves until a signal asks to stop (base/signals.h) and calls under way are done. */
mx_status mx_server_run(mx_server *s) MX_MUST_USE;

#endif

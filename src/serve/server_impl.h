/* server_impl.h - what the files of the server share. */
#ifndef MX_SERVE_SERVER_IMPL_H
#define MX_SERVE_SERVER_IMPL_H

#include "serve/links.h"
#include "serve/metrics.h"
#include "serve/mhd.h"
#include "serve/readers.h"
#include "serve/server.h"
#include <pthread.h>
#include <stdatomic.h>

typedef struct {
    const char *method, *path, *type; /* content type */
    bool open;                        /* to clients without a key */
    /* Sets status and out. That of a POST runs in a thread of the readers, others in
     * libmicrohttpd's. */
    void (*answer)(mx_exchange *x);
} mx_endpoint;
extern const mx_endpoint mx_endpoints[]; /* ends with a NULL path */

/* A request of a client and its answer. One thread at a time has what the lock is not for: that of
 * libmicrohttpd, then a reader, then the engine's. */
struct mx_exchange {
    mx_server *server;
    struct MHD_Connection *connection;
    mx_str body;      /* of the request, until it has been read */
    size_t counted;   /* bytes of it that are in the server's sum */
    const char *path; /* libmicrohttpd's, until the answer is queued */
    bool trusted;     /* the client has the key */
    int refused;      /* status that the body was not kept for; 0: it was */
    const char *allowed; /* methods that the path takes, where another was asked for */
    bool routed;
    const mx_endpoint *endpoint; /* that answers, */
    const mx_api *api;           /* or that of the engine */
    bool is_call;                /* `call` has been read: one for the engine */
    mx_api_call call;
    double began;

    pthread_mutex_t lock; /* of what follows */
    mx_str out;           /* the answer; `given` bytes of it are on their way */
    size_t given;
    int status; /* of the answer; 0: not known yet */
    bool done;  /* there is no more to come */
    bool streams; /* the answer is given as it comes; else once it is whole */
    bool suspended;
    bool gone;         /* the client has disconnected: the answer is not read */
    int holders;       /* reference count: the connection and, for a call, the engine's side */
    mx_exchange *next; /* in the readers' queue, then among new calls, then those under way */
};

/* Something that only the engine's thread may do, for a thread that waits for it. */
typedef struct mx_errand mx_errand;
struct mx_errand {
    mx_status (*run)(void *ctx);
    void *ctx;
    mx_status result;
    bool done;
    mx_errand *next;
};

struct mx_server {
    mx_engine *engine;
    const mx_served *served;
    mx_server_options o;
    mx_mhd mhd;
    struct MHD_Daemon *daemon;
    mx_readers *readers;
    mx_links links;
    atomic_size_t body_bytes; /* of large bodies that are held, together */
    pthread_mutex_t lock;     /* of what follows */
    pthread_cond_t wake, errand_done;
    mx_errand *errands;
    bool closed; /* nobody runs errands any more */
    mx_exchange *fresh, *last_fresh;
    mx_server_metrics metrics;
    mx_engine_counts counts; /* as of the last step */
    double last_step;        /* when the engine last made progress, or had nothing to do */
    bool idle;               /* it has nothing to do */
    char *broken;            /* why the engine does not go on; NULL: it does */
    int64_t n_calls;         /* that wait or run */
    bool draining;
    mx_exchange *calls; /* under way; the engine's thread alone */
};

/* server_http.c: the connection's side. */
/* The endpoint of the engine at this path or above it; NULL: none. */
const mx_api *mx_api_of_path(const char *path);
mx_status mx_http_start(mx_server *s) MX_MUST_USE;
void mx_http_stop(mx_server *s);
/* Drops one reference; the last one frees. */
void mx_exchange_release(mx_exchange *x);
/* More of the answer; `done`: the last of it. Text may be NULL. */
void mx_exchange_give(mx_exchange *x, const mx_str *text, int status, bool done);
/* The answer is a stream, which begins now. */
void mx_exchange_stream(mx_exchange *x);
/* The error is the whole answer. */
void mx_exchange_refuse(mx_exchange *x, const mx_api_error *e);
/* Has the other end closed the connection? While it is suspended, libmicrohttpd does not look. */
bool mx_exchange_hung_up(mx_exchange *x);
/* The body is no longer needed. */
void mx_exchange_drop_body(mx_exchange *x);

/* server_read.c: what the readers do with an exchange. */
void mx_exchange_read(mx_exchange *x);
/* Has the engine's thread do it between two steps; MX_STOPPED: it takes nothing more. */
mx_status mx_server_on_engine(mx_server *s, mx_status (*run)(void *ctx), void *ctx) MX_MUST_USE;

/* Is the engine making progress? Takes the server's lock. */
bool mx_server_healthy(mx_server *s, mx_str *why);

#endif

/* server_impl.h - what the files of the server share. */
#ifndef MX_SERVE_SERVER_IMPL_H
#define MX_SERVE_SERVER_IMPL_H

#include "serve/mhd.h"
#include "serve/metrics.h"
#include "serve/server.h"
#include <pthread.h>
#include <stdatomic.h>

/* A request of a client and its answer. */
typedef struct mx_exchange mx_exchange;
struct mx_exchange {
    mx_server *server;
    struct MHD_Connection *connection;
    mx_str body;      /* of the request */
    const char *path; /* libmicrohttpd's, while it is being routed */
    bool too_large;
    bool is_call; /* `call` has been read: one for the engine */
    void (*task)(mx_exchange *x); /* what the engine's thread answers instead; NULL: nothing */
    mx_api_call call;
    double began;

    pthread_mutex_t lock; /* of what follows */
    mx_str out;           /* the answer; `given` bytes of it are on their way */
    size_t given;
    int status; /* of the answer; 0: not known yet */
    bool done;  /* there is no more to come */
    bool suspended;
    bool gone;         /* the client has disconnected: the answer is not read */
    int holders;       /* reference count: the connection and, for a call, the engine's side */
    mx_exchange *next; /* in the server's list of new calls, then of those under way */
};

struct mx_server {
    mx_engine *engine;
    const mx_served *served;
    mx_server_options o;
    mx_mhd mhd;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
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

/* Answers at once: sets status, out and done. */
typedef struct {
    const char *method, *path, *type; /* content type */
    bool open;                        /* to clients without a key */
    bool on_engine;                   /* answered by the engine's thread */
    void (*answer)(mx_exchange *x);
} mx_endpoint;
extern const mx_endpoint mx_endpoints[]; /* ends with a NULL path */
/* Is the engine making progress? Takes the server's lock. */
bool mx_server_healthy(mx_server *s, mx_str *why);

#endif

/* readers.c - see readers.h. */
#include "serve/readers.h"

#include "serve/server_impl.h"
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 8, MOST_LARGE = 2, LOWER = 5 };

/* Exchanges in the order in which they came. */
typedef struct {
    mx_exchange *first, *last;
} queue;

struct mx_readers {
    void (*read)(mx_exchange *x);
    pthread_t thread[THREADS];
    int n_threads;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    queue small, large;
    int n_large; /* large ones being read */
    bool stopping;
};

static mx_exchange *pop(queue *q)
{
    mx_exchange *x = q->first;
    q->first = x ? x->next : NULL;
    return x;
}

/* The next exchange; NULL: there will be none. The lock is held. */
static mx_exchange *next(mx_readers *r, bool *large)
{
    for (;;) {
        *large = r->large.first && r->n_large < MOST_LARGE;
        mx_exchange *x = pop(*large ? &r->large : &r->small);
        if (x || (r->stopping && !r->large.first))
            return x;
        pthread_cond_wait(&r->wake, &r->lock);
    }
}

static void *work(void *ctx)
{
    mx_readers *r = ctx;
    bool large;
    id_t self = (id_t)syscall(SYS_gettid);
    /* Refused where the priority is the lowest already, which is as good. */
    (void)setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + LOWER);
    pthread_mutex_lock(&r->lock);
    for (mx_exchange *x; (x = next(r, &large));) {
        r->n_large += large;
        pthread_mutex_unlock(&r->lock);
        r->read(x);
        pthread_mutex_lock(&r->lock);
        r->n_large -= large;
        if (large) /* another may begin */
            pthread_cond_broadcast(&r->wake);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

mx_status mx_readers_start(mx_readers **out, void (*read)(mx_exchange *x))
{
    mx_readers *r = *out = mx_realloc(NULL, sizeof *r);
    *r = (mx_readers){.read = read};
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    for (int e = 0; r->n_threads < THREADS; r->n_threads++)
        if ((e = pthread_create(&r->thread[r->n_threads], NULL, work, r)))
            return mx_fail(MX_MEMORY, "a thread that reads requests cannot be started: %s; allow "
                           "more of them (ulimit -u)", strerror(e));
    return MX_OK;
}

bool mx_readers_add(mx_readers *r, mx_exchange *x, bool large)
{
    queue *q = large ? &r->large : &r->small;
    pthread_mutex_lock(&r->lock);
    bool takes = !r->stopping;
    if (takes) {
        x->next = NULL;
        *(q->first ? &q->last->next : &q->first) = x;
        q->last = x;
        pthread_cond_signal(&r->wake);
    }
    pthread_mutex_unlock(&r->lock);
    return takes;
}

void mx_readers_stop(mx_readers *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
    while (r->n_threads > 0)
        pthread_join(r->thread[--r->n_threads], NULL);
}

void mx_readers_close(mx_readers *r)
{
    mx_readers_stop(r);
    if (!r)
        return;
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->lock);
    mx_free(r);
}

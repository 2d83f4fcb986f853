/* comm_thread.c - see comm_thread.h. */
#include "device/cpu/comm_thread.h"

#include "base/clock.h"
#include <omp.h>
#include <pthread.h>

enum { JOBS = 1024 };

typedef struct {
    const mx_exec_step *step;
    double *took;
} job;

struct mx_comm_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job ring[JOBS];
    int64_t asked, done;
    bool closing, broken;
    mx_status failed; /* owns; not yet taken */
    double seconds;
};

static void make(mx_comm_thread *t, const job *j, bool broken)
{
    mx_status failed = MX_OK;
    mx_call call = j->step->call;
    double began = mx_clock_now();
    call.status = &failed;
    if (!broken)
        j->step->op->cpu(&call);
    double ended = mx_clock_now();
    if (j->took) {
        j->took[0] = began;
        j->took[1] = ended;
    }
    pthread_mutex_lock(&t->lock);
    t->seconds += ended - began;
    t->broken |= failed != MX_OK;
    if (failed && !t->failed)
        t->failed = failed;
    t->done++;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static void *serve(void *arg)
{
    mx_comm_thread *t = arg;
    omp_set_num_threads(1); /* the others belong to the kernels beside it */
    for (;;) {
        pthread_mutex_lock(&t->lock);
        while (t->done == t->asked && !t->closing)
            pthread_cond_wait(&t->changed, &t->lock);
        bool over = t->done == t->asked, broken = t->broken;
        job j = t->ring[t->done % JOBS];
        pthread_mutex_unlock(&t->lock);
        if (over)
            return NULL;
        make(t, &j, broken);
    }
}

bool mx_comm_thread_open(mx_comm_thread **out)
{
    mx_comm_thread *t = mx_realloc(NULL, sizeof *t);
    *t = (mx_comm_thread){0};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    bool there = pthread_create(&t->thread, NULL, serve, t) == 0;
    if (!there)
        mx_free(t);
    *out = there ? t : NULL;
    return there;
}

void mx_comm_thread_close(mx_comm_thread *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    t->closing = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    mx_status_free(t->failed);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
    mx_free(t);
}

int64_t mx_comm_thread_start(mx_comm_thread *t, const mx_exec_step *step, double *took)
{
    pthread_mutex_lock(&t->lock);
    while (t->asked - t->done == JOBS)
        pthread_cond_wait(&t->changed, &t->lock);
    t->ring[t->asked % JOBS] = (job){step, took};
    int64_t ticket = ++t->asked;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return ticket;
}

mx_status mx_comm_thread_wait(mx_comm_thread *t, int64_t ticket)
{
    pthread_mutex_lock(&t->lock);
    while (t->done < ticket)
        pthread_cond_wait(&t->changed, &t->lock);
    mx_status st = t->failed;
    t->failed = MX_OK;
    pthread_mutex_unlock(&t->lock);
    return st;
}

void mx_comm_thread_drain(mx_comm_thread *t)
{
    pthread_mutex_lock(&t->lock);
    while (t->done < t->asked)
        pthread_cond_wait(&t->changed, &t->lock);
    mx_status_free(t->failed);
    t->failed = MX_OK;
    t->broken = false;
    pthread_mutex_unlock(&t->lock);
}

double mx_comm_thread_seconds(const mx_comm_thread *t)
{
    return t->seconds;
}

/* queue.c - a ring of jobs between two threads, over the CPU device. Test builds open it as
 * device=cpu when MX_TEST_QUEUE is in the environment (session.c); others do not have it. */
#include "device/cpu/queue.h"

#ifdef MX_TEST_BUILD

#include "ops/load.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { JOBS = 1024, SLOTS = 2, PAGE = 4096 };

typedef struct {
    enum { COPY, RUN, FREIGHT, CLOCK } kind;
    void *dst, *own; /* own: a copy of the source, freed afterwards */
    const void *src;
    size_t bytes;
    mx_exec *exec;
    mx_freight freight;
} job;

typedef struct {
    mx_device device; /* first: what the session sees */
    mx_device *cpu;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job ring[JOBS];
    int64_t asked, done, last_run; /* jobs; last_run: the number of the latest run */
    int64_t ran; /* the worker's: runs that are through */
    bool closing;
} queue;

/* Counted for tests, read by nothing else. */
static atomic_llong n_runs, n_reads, n_waits, n_idle, hosted_bytes;

mx_queue_counts mx_queue_report(void)
{
    return (mx_queue_counts){n_runs, n_reads, n_waits, n_idle, hosted_bytes};
}

/* Afterwards the slot is spoilt: nobody may count on it. */
static void deliver(const mx_freight *f)
{
    mx_tensor from = {(void *)f->src, mx_type_of(f->from, MX_SHAPE(f->n))};
    mx_tensor to = {f->dst, mx_type_of(f->to, MX_SHAPE(f->n))};
    mx_convert_run(&from, 0, &to, 0, f->n);
    memset((void *)f->src, 0xee, (size_t)f->n * mx_dtype_bytes(f->from));
}

/* The clock counts runs, a second each, so that tests know what it will show. */
static void work(queue *q, const job *j)
{
    q->ran += j->kind == RUN;
    if (j->kind == CLOCK)
        *(double *)j->dst = (double)q->ran;
    else if (j->kind == FREIGHT)
        deliver(&j->freight);
    else if (j->kind == COPY)
        memcpy(j->dst, j->own ? j->own : j->src, j->bytes);
    else
        mx_status_free(q->cpu->run(q->cpu, j->exec, NULL)); /* the CPU's never fails */
    mx_free(j->own);
}

static void *worker(void *arg)
{
    queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->done == q->asked && !q->closing)
            pthread_cond_wait(&q->changed, &q->lock);
        if (q->done == q->asked)
            break;
        job j = q->ring[q->done % JOBS];
        pthread_mutex_unlock(&q->lock);
        work(q, &j);
        pthread_mutex_lock(&q->lock);
        q->done++;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* Gives the job's number: what `done` must reach. */
static int64_t ask(queue *q, job j)
{
    pthread_mutex_lock(&q->lock);
    while (q->asked - q->done >= JOBS)
        pthread_cond_wait(&q->changed, &q->lock);
    q->ring[q->asked++ % JOBS] = j;
    if (j.kind == RUN)
        q->last_run = q->asked;
    int64_t number = q->asked;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    return number;
}

static void wait_for(queue *q, int64_t number)
{
    pthread_mutex_lock(&q->lock);
    while (q->done < number)
        pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

static mx_status queue_alloc(mx_device *d, void **out, size_t bytes, const char *what)
{
    (void)d;
    return mx_alloc(out, bytes, what);
}

static mx_status queue_alloc_host(mx_device *d, void **out, size_t bytes, const char *what)
{
    hosted_bytes += (long long)bytes;
    return queue_alloc(d, out, bytes, what);
}

static void queue_release(mx_device *d, void *p)
{
    wait_for((queue *)d, ((queue *)d)->asked);
    mx_free(p);
}

static mx_status queue_write(mx_device *d, void *dst, const void *src, size_t bytes)
{
    void *own = NULL;
    MX_TRY(mx_alloc(&own, bytes, "a queued copy"));
    memcpy(own, src, bytes);
    ask((queue *)d, (job){.kind = COPY, .dst = dst, .own = own, .bytes = bytes});
    return MX_OK;
}

static mx_status queue_read(mx_device *d, void *dst, const void *src, size_t bytes)
{
    queue *q = (queue *)d;
    n_reads++;
    ask(q, (job){.kind = COPY, .dst = dst, .src = src, .bytes = bytes});
    wait_for(q, q->asked);
    return MX_OK;
}

static mx_status queue_prepare(mx_device *d, mx_exec *e, void **state)
{
    return ((queue *)d)->cpu->prepare(((queue *)d)->cpu, e, state);
}

static mx_status queue_run(mx_device *d, mx_exec *e, void *state)
{
    (void)state;
    n_runs++;
    ask((queue *)d, (job){.kind = RUN, .exec = e});
    return MX_OK;
}

static void queue_drop(mx_device *d, void *state)
{
    (void)state;
    wait_for((queue *)d, ((queue *)d)->asked);
}

static void queue_close(mx_device *d)
{
    queue *q = (queue *)d;
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    q->cpu->close(q->cpu);
    mx_free(q);
}

/* --- late copies: the mark is a number of the queue --- */

static mx_status late_open(mx_device *d, size_t bytes, void **host, void **late)
{
    (void)d;
    MX_TRY(mx_alloc(late, sizeof(int64_t), "a mark"));
    return mx_alloc(host, bytes, "late copies");
}

static mx_status late_take(mx_device *d, void *dst, const void *src, size_t bytes)
{
    ask((queue *)d, (job){.kind = COPY, .dst = dst, .src = src, .bytes = bytes});
    return MX_OK;
}

static mx_status late_clock(mx_device *d, double *dst)
{
    ask((queue *)d, (job){.kind = CLOCK, .dst = dst});
    return MX_OK;
}

static mx_status late_mark(mx_device *d, void *late)
{
    *(int64_t *)late = ((queue *)d)->asked;
    return MX_OK;
}

static mx_status late_wait(mx_device *d, void *late)
{
    queue *q = (queue *)d;
    n_waits++;
    n_idle += q->last_run <= *(int64_t *)late;
    wait_for(q, *(int64_t *)late);
    return MX_OK;
}

static void late_close(mx_device *d, void *host, void *late)
{
    wait_for((queue *)d, ((queue *)d)->asked);
    mx_free(host);
    mx_free(late);
}

/* --- lanes: their copies take their turn in the queue --- */

typedef struct {
    char *memory, *slot[SLOTS];
    int64_t through[SLOTS]; /* number in the queue of the slot's last copy */
    int next;
} lane;

static mx_status lane_open(mx_device *d, size_t slot_bytes, void **out)
{
    (void)d;
    lane *l = mx_small_alloc(sizeof *l);
    *l = (lane){0};
    slot_bytes = (slot_bytes + PAGE - 1) / PAGE * PAGE;
    mx_status st = mx_alloc((void **)&l->memory, SLOTS * slot_bytes + PAGE, "a lane");
    char *first = (char *)(((uintptr_t)l->memory + PAGE - 1) / PAGE * PAGE);
    for (int i = 0; i < SLOTS; i++)
        l->slot[i] = first + (size_t)i * slot_bytes;
    *out = st ? NULL : l;
    if (st)
        mx_free(l);
    return st;
}

static mx_status lane_slot(mx_device *d, void *p, void **host)
{
    lane *l = p;
    wait_for((queue *)d, l->through[l->next]);
    *host = l->slot[l->next];
    return MX_OK;
}

static mx_status lane_send(mx_device *d, void *p, const mx_freight *f)
{
    lane *l = p;
    l->through[l->next] = ask((queue *)d, (job){.kind = FREIGHT, .freight = *f});
    l->next = (l->next + 1) % SLOTS;
    return MX_OK;
}

static mx_status lane_close(mx_device *d, void *p)
{
    lane *l = p;
    for (int i = 0; l && i < SLOTS; i++)
        wait_for((queue *)d, l->through[i]);
    mx_free(l ? l->memory : NULL);
    mx_free(l);
    return MX_OK;
}

static const mx_device_traits queue_traits = {.name = "queue"};

mx_status mx_device_open_queue(mx_device **out)
{
    void *memory;
    *out = NULL;
    MX_TRY(mx_alloc(&memory, sizeof(queue), "a queue"));
    queue *q = memory;
    mx_status st = mx_device_open_cpu(&q->cpu);
    q->device = (mx_device){.traits = &queue_traits, .alloc = queue_alloc,
                            .alloc_host = queue_alloc_host, .release = queue_release,
                            .write = queue_write, .read = queue_read, .prepare = queue_prepare,
                            .run = queue_run, .drop = queue_drop, .close = queue_close,
                            .late_open = late_open, .late_take = late_take,
                            .late_clock = late_clock, .late_mark = late_mark,
                            .late_wait = late_wait, .late_close = late_close};
    q->device.lane_open = lane_open;
    q->device.lane_slot = lane_slot;
    q->device.lane_send = lane_send;
    q->device.lane_close = lane_close;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    if (!st && pthread_create(&q->thread, NULL, worker, q))
        st = mx_fail(MX_DEVICE, "a thread could not be started");
    if (st)
        mx_free(q);
    else
        *out = &q->device;
    return st;
}

#endif

/* queue.c - a ring of jobs between two threads, over the CPU device. Test builds open it as
 * device=cpu when MX_TEST_QUEUE is in the environment (session.c); others do not have it. */
#include "device/cpu/queue.h"

#ifdef MX_TEST_BUILD

#include "ops/load.h"
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { JOBS = 1024, BUFFERS = 2, PAGE = 4096 };

typedef struct {
    enum { COPY, RUN, UPLOAD, CLOCK } kind;
    void *dst, *own; /* own: a copy of the source, freed afterwards */
    const void *src;
    size_t bytes;
    mx_exec *exec;
    int threads; /* of a run: those of who asked for it, which its workspace was planned for */
    mx_upload upload;
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

/* A handle is not an address here, so that code which takes it for one fails. */
typedef struct {
    char *memory;
} block;

static void *queue_address(mx_device *d, mx_device_buffer b)
{
    (void)d;
    return b.handle ? ((block *)b.handle)->memory + b.offset : NULL;
}

/* Afterwards the staging buffer is overwritten: its contents must not be relied on. */
static void deliver(const mx_upload *u)
{
    mx_tensor from = {(void *)u->src, mx_type_of(u->from, MX_SHAPE(u->n))};
    mx_tensor to = {queue_address(NULL, u->dst), mx_type_of(u->to, MX_SHAPE(u->n))};
    mx_convert_run(&from, 0, &to, 0, u->n);
    memset((void *)u->src, 0xee, (size_t)u->n * mx_dtype_bytes(u->from));
}

/* The clock counts runs, a second each, so that tests know what it will show. */
static void work(queue *q, const job *j)
{
    q->ran += j->kind == RUN;
    if (j->kind == CLOCK)
        *(double *)j->dst = (double)q->ran;
    else if (j->kind == UPLOAD)
        deliver(&j->upload);
    else if (j->kind == COPY)
        memcpy(j->dst, j->own ? j->own : j->src, j->bytes);
    else {
        omp_set_num_threads(j->threads);
        mx_status_free(q->cpu->run(q->cpu, j->exec, NULL)); /* the CPU's never fails */
    }
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

static mx_status queue_alloc(mx_device *d, mx_memory where, size_t bytes, const char *what,
                             mx_device_buffer *out)
{
    (void)d;
    block *b = mx_small_alloc(sizeof *b);
    mx_status st = mx_alloc((void **)&b->memory, bytes, what);
    hosted_bytes += where == MX_MEMORY_HOST ? (long long)bytes : 0;
    *out = (mx_device_buffer){.handle = st ? NULL : b, .bytes = bytes};
    if (st)
        mx_free(b);
    return st;
}

static void queue_release(mx_device *d, mx_device_buffer b)
{
    wait_for((queue *)d, ((queue *)d)->asked);
    if (b.handle)
        mx_free(((block *)b.handle)->memory);
    mx_free(b.handle);
}

static mx_status queue_write(mx_device *d, mx_device_buffer dst, const void *src)
{
    void *own = NULL;
    MX_TRY(mx_alloc(&own, dst.bytes, "a queued copy"));
    memcpy(own, src, dst.bytes);
    ask((queue *)d, (job){.kind = COPY, .dst = queue_address(d, dst), .own = own,
                          .bytes = dst.bytes});
    return MX_OK;
}

static mx_status queue_read(mx_device *d, void *dst, mx_device_buffer src)
{
    queue *q = (queue *)d;
    n_reads++;
    ask(q, (job){.kind = COPY, .dst = dst, .src = queue_address(d, src), .bytes = src.bytes});
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
    ask((queue *)d, (job){.kind = RUN, .exec = e, .threads = omp_get_max_threads()});
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

/* --- readback: the mark is a number of the queue --- */

static mx_status readback_open(mx_device *d, size_t bytes, void **host, void **mark)
{
    (void)d;
    MX_TRY(mx_alloc(mark, sizeof(int64_t), "a mark"));
    return mx_alloc(host, bytes, "readback");
}

static mx_status readback_copy(mx_device *d, void *dst, mx_device_buffer src)
{
    ask((queue *)d, (job){.kind = COPY, .dst = dst, .src = queue_address(d, src),
                          .bytes = src.bytes});
    return MX_OK;
}

static mx_status readback_clock(mx_device *d, double *dst)
{
    ask((queue *)d, (job){.kind = CLOCK, .dst = dst});
    return MX_OK;
}

static mx_status readback_mark(mx_device *d, void *mark)
{
    *(int64_t *)mark = ((queue *)d)->asked;
    return MX_OK;
}

static mx_status readback_wait(mx_device *d, void *mark)
{
    queue *q = (queue *)d;
    n_waits++;
    n_idle += q->last_run <= *(int64_t *)mark;
    wait_for(q, *(int64_t *)mark);
    return MX_OK;
}

static void readback_close(mx_device *d, void *host, void *mark)
{
    wait_for((queue *)d, ((queue *)d)->asked);
    mx_free(host);
    mx_free(mark);
}

static const mx_device_readback readback = {readback_open, readback_copy, readback_clock,
                                            readback_mark, readback_wait, readback_close};

/* --- staged uploads: copies take their turn in the queue --- */

typedef struct {
    char *memory, *buffer[BUFFERS];
    int64_t through[BUFFERS]; /* number in the queue of the buffer's last copy */
    int next;
} uploader;

static mx_status staging_open(mx_device *d, size_t buffer_bytes, void **out)
{
    (void)d;
    uploader *u = mx_small_alloc(sizeof *u);
    *u = (uploader){0};
    buffer_bytes = (buffer_bytes + PAGE - 1) / PAGE * PAGE;
    mx_status st = mx_alloc((void **)&u->memory, BUFFERS * buffer_bytes + PAGE, "staging buffers");
    char *first = (char *)(((uintptr_t)u->memory + PAGE - 1) / PAGE * PAGE);
    for (int i = 0; i < BUFFERS; i++)
        u->buffer[i] = first + (size_t)i * buffer_bytes;
    *out = st ? NULL : u;
    if (st)
        mx_free(u);
    return st;
}

static mx_status staging_next(mx_device *d, void *p, void **host)
{
    uploader *u = p;
    wait_for((queue *)d, u->through[u->next]);
    *host = u->buffer[u->next];
    return MX_OK;
}

static mx_status staging_send(mx_device *d, void *p, const mx_upload *what)
{
    uploader *u = p;
    u->through[u->next] = ask((queue *)d, (job){.kind = UPLOAD, .upload = *what});
    u->next = (u->next + 1) % BUFFERS;
    return MX_OK;
}

static mx_status staging_close(mx_device *d, void *p)
{
    uploader *u = p;
    for (int i = 0; u && i < BUFFERS; i++)
        wait_for((queue *)d, u->through[i]);
    mx_free(u ? u->memory : NULL);
    mx_free(u);
    return MX_OK;
}

static const mx_device_staging staging = {staging_open, staging_next, staging_send, staging_close};

static const mx_device_traits queue_traits = {.name = "queue"};

mx_status mx_device_open_queue(mx_device **out)
{
    void *memory;
    *out = NULL;
    MX_TRY(mx_alloc(&memory, sizeof(queue), "a queue"));
    queue *q = memory;
    mx_status st = mx_device_open_cpu(&q->cpu);
    q->device = (mx_device){.traits = &queue_traits, .alloc = queue_alloc,
                            .release = queue_release, .write = queue_write, .read = queue_read,
                            .address = queue_address, .prepare = queue_prepare, .run = queue_run,
                            .drop = queue_drop, .close = queue_close, .readback = &readback,
                            .staging = &staging};
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

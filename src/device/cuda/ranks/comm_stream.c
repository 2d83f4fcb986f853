/* comm_stream.c - see comm_stream.h. */
#include "device/cuda/ranks/comm_stream.h"

#include <string.h>

enum { FIRST = 64, MOST = 1 << 14 }; /* calls that are remembered until their times are read */

/* Events of one call. `from` and `to` are on the compute stream, around the wait for it. */
typedef struct {
    cudaEvent_t begin, end, from, to;
    bool aside, joined;
    bool captured; /* in a graph: such events have no times */
} call;

struct mx_cuda_comm {
    cudaStream_t stream, compute; /* compute: c->stream between a begin and its end */
    cudaEvent_t fork;
    call *ring; /* by ticket; events are made when they are first needed */
    int64_t cap, issued, read; /* read: tickets whose times are in `seconds` */
    mx_comm_seconds seconds;
    bool open; /* a call has begun and not ended */
};

static mx_status open_comm(mx_cuda *c)
{
    int least = 0, greatest = 0;
    mx_cuda_comm *m = mx_realloc(NULL, sizeof *m);
    *m = (mx_cuda_comm){.cap = FIRST};
    m->ring = mx_realloc(NULL, sizeof *m->ring * FIRST);
    memset(m->ring, 0, sizeof *m->ring * FIRST);
    c->comm = m;
    /* First: a collective that gets no SM keeps other ranks' waiting. */
    MX_TRY(mx_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "a stream"));
    MX_TRY(mx_cuda_check(cudaStreamCreateWithPriority(&m->stream, cudaStreamNonBlocking, greatest),
                         "a stream for collectives"));
    return mx_cuda_check(cudaEventCreateWithFlags(&m->fork, cudaEventDisableTiming), "an event");
}

static call *call_of(const mx_cuda_comm *m, int64_t ticket)
{
    return &m->ring[ticket % m->cap];
}

static cudaEvent_t *event_of(call *k, int i)
{
    cudaEvent_t *const all[] = {&k->begin, &k->end, &k->from, &k->to};
    return all[i];
}

void mx_cuda_comm_close(mx_cuda *c)
{
    mx_cuda_comm *m = c->comm;
    if (!m)
        return;
    for (int64_t i = 0; i < m->cap; i++)
        for (int k = 0; k < 4; k++)
            if (*event_of(&m->ring[i], k))
                cudaEventDestroy(*event_of(&m->ring[i], k));
    if (m->fork)
        cudaEventDestroy(m->fork);
    if (m->stream)
        cudaStreamDestroy(m->stream);
    mx_free(m->ring);
    mx_free(m);
    c->comm = NULL;
}

/* --- times --- */

static double between(cudaEvent_t a, cudaEvent_t b)
{
    float ms = 0;
    if (cudaEventElapsedTime(&ms, a, b) != cudaSuccess) {
        cudaGetLastError(); /* a run that failed has not come past it */
        return 0;
    }
    return 1e-3 * (double)ms;
}

/* Adds up the times of calls before this ticket. */
static void read_times(mx_cuda_comm *m, int64_t upto)
{
    for (; m->read < upto && m->read < m->issued; m->read++) {
        const call *k = call_of(m, m->read);
        if (k->captured)
            continue;
        double took = between(k->begin, k->end);
        m->seconds.all += took;
        m->seconds.waited += !k->aside ? took : k->joined ? between(k->from, k->to) : 0;
    }
}

mx_comm_mark mx_cuda_comm_mark(const mx_device *d)
{
    const mx_cuda_comm *m = mx_cuda_of((mx_device *)d)->comm;
    return (mx_comm_mark){.calls = m ? m->issued : 0};
}

mx_comm_seconds mx_cuda_comm_seconds(mx_device *d, mx_comm_mark at)
{
    mx_cuda_comm *m = mx_cuda_of(d)->comm;
    if (!m)
        return (mx_comm_seconds){0};
    read_times(m, at.calls);
    return m->seconds;
}

void mx_cuda_comm_times(const mx_cuda *c, int64_t ticket, cudaEvent_t since, float ms[2])
{
    const call *k = call_of(c->comm, ticket);
    ms[0] = (float)(1e3 * between(since, k->begin));
    ms[1] = (float)(1e3 * between(since, k->end));
}

/* --- calls --- */

/* Room for one more: the ring grows, up to a point from which the oldest is read. */
static mx_status make_room(mx_cuda *c)
{
    mx_cuda_comm *m = c->comm;
    if (m->issued - m->read < m->cap)
        return MX_OK;
    if (m->cap == MOST) {
        MX_TRY(mx_cuda_wait(c, call_of(m, m->read)->end));
        read_times(m, m->read + 1);
        return MX_OK;
    }
    call *more = mx_realloc(NULL, sizeof *more * (size_t)(2 * m->cap));
    memset(more, 0, sizeof *more * (size_t)(2 * m->cap));
    for (int64_t t = m->read; t < m->issued; t++)
        more[t % (2 * m->cap)] = *call_of(m, t);
    mx_free(m->ring);
    m->ring = more;
    m->cap *= 2;
    return MX_OK;
}

static mx_status record(cudaEvent_t *event, cudaStream_t stream)
{
    if (!*event)
        MX_TRY(mx_cuda_check(cudaEventCreate(event), "an event"));
    return mx_cuda_check(cudaEventRecord(*event, stream), "an event");
}

static bool is_captured(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus s = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &s) == cudaSuccess && s == cudaStreamCaptureStatusActive;
}

mx_status mx_cuda_comm_begin(mx_cuda *c, bool aside, int64_t *ticket)
{
    if (!c->comm)
        MX_TRY(open_comm(c));
    mx_cuda_comm *m = c->comm;
    MX_ASSERT(!m->open, "a collective inside another");
    MX_TRY(make_room(c));
    *ticket = m->issued++;
    call *k = call_of(m, *ticket);
    k->aside = aside;
    k->joined = false;
    k->captured = is_captured(c->stream);
    m->compute = c->stream;
    m->open = true;
    if (aside) {
        MX_TRY(mx_cuda_check(cudaEventRecord(m->fork, m->compute), "an event"));
        MX_TRY(mx_cuda_check(cudaStreamWaitEvent(m->stream, m->fork, 0), "an event"));
        c->stream = m->stream;
    }
    return record(&k->begin, c->stream);
}

mx_status mx_cuda_comm_end(mx_cuda *c, int64_t ticket)
{
    mx_cuda_comm *m = c->comm;
    if (!m || !m->open)
        return MX_OK;
    mx_status st = record(&call_of(m, ticket)->end, c->stream);
    c->stream = m->compute;
    m->open = false;
    return st;
}

mx_status mx_cuda_comm_join(mx_cuda *c, int64_t ticket)
{
    mx_cuda_comm *m = c->comm;
    call *k = call_of(m, ticket);
    MX_ASSERT(ticket >= m->read && ticket < m->issued, "no call %lld", (long long)ticket);
    if (!k->aside)
        return MX_OK;
    MX_TRY(record(&k->from, c->stream));
    MX_TRY(mx_cuda_check(cudaStreamWaitEvent(c->stream, k->end, 0), "an event"));
    if (k->captured)
        MX_TRY(mx_cuda_follow(c));
    k->joined = true;
    return record(&k->to, c->stream);
}

mx_status mx_cuda_comm_join_all(mx_cuda *c)
{
    mx_cuda_comm *m = c->comm;
    const call *k = m && m->issued ? call_of(m, m->issued - 1) : NULL;
    if (!k || !k->aside || k->joined || !k->end)
        return MX_OK; /* the last one ends last */
    return mx_cuda_check(cudaStreamWaitEvent(c->stream, k->end, 0), "an event");
}

/* kernel_time.c - the time that kernels take when nothing else runs on the GPU.
 *
 * Ranks that are threads share one GPU: events around a step would also count what others run
 * between them, and how long they wait for each other. So ranks take turns (process_group.h): a
 * rank that has the turn issues its kernels between two events, waits for them and hands on. Where
 * a collective waits for the others it gives the turn back (peers.c).
 *
 * Before the first event the stream is kept busy for a moment, so that it is not the host's
 * launches that are measured. Two events with nothing between them are not at the same time; as
 * many intervals as ranks have would add up to several percent of a step, so that much is taken off
 * each.
 */
#include "device/cuda/ranks/group.h"
#include "device/cuda/core/kernels.h"

enum { BUSY_US = 40, TRIES = 9 };

struct mx_cuda_alone {
    mx_process_group *group; /* whose turn */
    cudaEvent_t begin, end;
    bool held; /* this rank has it */
    double ms; /* since it was last asked for */
    double empty_ms; /* between two events and nothing else */
};

static void give_turn(mx_cuda_alone *a)
{
    if (a->held)
        a->group->kind->turn(a->group, false);
    a->held = false;
}

void mx_cuda_kernel_time_close(mx_cuda *c)
{
    if (c->alone)
        give_turn(c->alone);
    if (c->alone && c->alone->begin)
        cudaEventDestroy(c->alone->begin);
    if (c->alone && c->alone->end)
        cudaEventDestroy(c->alone->end);
    mx_free(c->alone);
    c->alone = NULL;
}

mx_status mx_cuda_kernel_time_begin(mx_cuda *c)
{
    mx_cuda_alone *a = c->alone;
    if (!a)
        return MX_OK;
    a->group->kind->turn(a->group, true);
    a->held = true;
    MX_TRY(mx_cuda_check(mx_cuda_stay_busy(BUSY_US, c->stream), "a moment"));
    return mx_cuda_check(cudaEventRecord(a->begin, c->stream), "an event");
}

mx_status mx_cuda_kernel_time_end(mx_cuda *c)
{
    mx_cuda_alone *a = c->alone;
    float ms = 0;
    if (!a)
        return MX_OK;
    mx_status st = mx_cuda_check(cudaEventRecord(a->end, c->stream), "an event");
    if (!st)
        st = mx_cuda_check(cudaEventSynchronize(a->end), "a step on the GPU");
    if (!st)
        st = mx_cuda_check(cudaEventElapsedTime(&ms, a->begin, a->end), "an event");
    double more = (double)ms - a->empty_ms;
    a->ms += more > 0 ? more : 0;
    give_turn(a);
    return st;
}

double mx_cuda_kernel_time_take(mx_cuda *c)
{
    double ms = c->alone->ms;
    c->alone->ms = 0;
    return ms;
}

/* The shortest of some intervals in which nothing runs. */
static mx_status time_nothing(mx_cuda *c)
{
    double least = 1;
    for (int i = 0; i < TRIES; i++) {
        MX_TRY(mx_cuda_kernel_time_begin(c));
        MX_TRY(mx_cuda_kernel_time_end(c));
        double ms = mx_cuda_kernel_time_take(c);
        least = ms < least ? ms : least;
    }
    c->alone->empty_ms = least;
    return MX_OK;
}

mx_status mx_cuda_kernel_time_open(mx_cuda *c, mx_process_group *group)
{
    mx_cuda_alone *a = mx_realloc(NULL, sizeof *a);
    *a = (mx_cuda_alone){.group = group};
    c->alone = a;
    MX_TRY(mx_cuda_check(cudaEventCreate(&a->begin), "an event"));
    MX_TRY(mx_cuda_check(cudaEventCreate(&a->end), "an event"));
    return time_nothing(c);
}

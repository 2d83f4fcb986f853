/* op_offload.c - copies between device and host memory that go on beside the computation.
 *
 * offload and prefetch put their copy on a stream of its own, after what the compute stream has
 * been given so far; wait lets the compute stream wait for it. Both by events, which a capture
 * turns into edges of the graph. There is one such stream: copies run in the order in which they
 * were issued, so that what is prefetched has been offloaded.
 *
 * wait knows its copy by the address it goes to. An address may serve several values of a program
 * one after the other; the copy issued last is the one.
 */
#include "device/cuda/core/context.h"

#include <string.h>

struct mx_cuda_copy {
    cudaEvent_t begin, end;
    const void *to;
    mx_cuda_copy *before; /* the one prepared before this */
};

static void drop_copy(mx_cuda *c, void *state)
{
    mx_cuda_copy *p = state, **link = &c->copy;
    if (!p)
        return;
    while (*link && *link != p)
        link = &(*link)->before;
    if (*link)
        *link = p->before;
    cudaEventDestroy(p->begin);
    cudaEventDestroy(p->end);
    mx_free(p);
}

static mx_status prepare_copy(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work_bytes)
{
    (void)work_bytes;
    if (!c->copies)
        MX_TRY(mx_cuda_check(cudaStreamCreateWithFlags(&c->copies, cudaStreamNonBlocking),
                             "a stream for copies"));
    mx_cuda_copy *p = mx_realloc(NULL, sizeof *p);
    *p = (mx_cuda_copy){.to = s->call.out[0].data, .before = c->copy};
    c->copy = *state = p;
    MX_TRY(mx_cuda_check(cudaEventCreateWithFlags(&p->begin, cudaEventDisableTiming), "an event"));
    return mx_cuda_check(cudaEventCreateWithFlags(&p->end, cudaEventDisableTiming), "an event");
}

static mx_status launch_copy(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const mx_cuda_copy *p = state;
    const mx_tensor *x = &s->call.in[0], *y = &s->call.out[0];
    size_t item = mx_dtype_bytes(x->type.dtype), bytes = mx_type_bytes(&x->type);
    size_t run = (size_t)x->run * item, pitch = (size_t)x->pitch * item;
    MX_TRY(mx_cuda_check(cudaEventRecord(p->begin, c->stream), "an event"));
    MX_TRY(mx_cuda_check(cudaStreamWaitEvent(c->copies, p->begin, 0), "an event"));
    MX_TRY(mx_cuda_check(!pitch ? cudaMemcpyAsync(y->data, x->data, bytes, cudaMemcpyDefault,
                                                  c->copies)
                                : cudaMemcpy2DAsync(y->data, run, x->data, pitch, run, bytes / run,
                                                    cudaMemcpyDefault, c->copies),
                         "a copy between device and host"));
    return mx_cuda_check(cudaEventRecord(p->end, c->copies), "an event");
}

static mx_status prepare_wait(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work_bytes)
{
    (void)work_bytes;
    mx_cuda_copy *p = c->copy;
    while (p && p->to != s->call.in[0].data)
        p = p->before;
    MX_ASSERT(p, "%s: no copy goes there", s->label);
    *state = p;
    return MX_OK;
}

/* Kernels that start early (pdl.h) do so by the end of the kernel before them; what runs on another
 * stream is none. */
mx_status mx_cuda_follow(mx_cuda *c)
{
    return mx_cuda_check(cudaMemsetAsync(c->mark, 0, sizeof(int), c->stream), "a mark");
}

static mx_status launch_wait(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const mx_cuda_copy *p = state;
    (void)s;
    MX_TRY(mx_cuda_check(cudaStreamWaitEvent(c->stream, p->end, 0), "an event"));
    return mx_cuda_follow(c);
}

static void drop_nothing(mx_cuda *c, void *state)
{
    (void)c, (void)state; /* the copy's own step drops it */
}

const mx_cuda_op mx_cuda_op_offload = {"offload", prepare_copy, launch_copy, drop_copy};
const mx_cuda_op mx_cuda_op_prefetch = {"prefetch", prepare_copy, launch_copy, drop_copy};
const mx_cuda_op mx_cuda_op_wait = {"wait", prepare_wait, launch_wait, drop_nothing};

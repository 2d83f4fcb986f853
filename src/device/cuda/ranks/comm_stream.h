/* comm_stream.h - the stream on which a rank's collectives go on beside its kernels, and how long
 * they take.
 *
 * A program with collectives beside other steps has all of its collectives there, in its order:
 * ranks then meet in one order, whatever their kernels do. One that is not beside others is waited
 * for at once. Forks and joins are events, which a capture turns into edges of the graph.
 *
 * Every collective is a call with a ticket; events around it and around the wait for it say, once
 * the GPU is past them, how long it took and for how much of that kernels waited.
 */
#ifndef MX_DEVICE_CUDA_COMM_STREAM_H
#define MX_DEVICE_CUDA_COMM_STREAM_H

#include "device/cuda/core/context.h"

/* Between these two c->stream is where a collective goes: the stream of its own, after what the
 * compute stream was given so far, or, not `aside`, the compute stream. `end` also where a call has
 * failed between them. */
mx_status mx_cuda_comm_begin(mx_cuda *c, bool aside, int64_t *ticket) MX_MUST_USE;
mx_status mx_cuda_comm_end(mx_cuda *c, int64_t ticket) MX_MUST_USE;
/* The compute stream waits for a call that went aside. */
mx_status mx_cuda_comm_join(mx_cuda *c, int64_t ticket) MX_MUST_USE;
/* And for all of them: the end of a program, however it went. */
mx_status mx_cuda_comm_join_all(mx_cuda *c) MX_MUST_USE;

/* When a call began and ended, in milliseconds after an event; its work is over. */
void mx_cuda_comm_times(const mx_cuda *c, int64_t ticket, cudaEvent_t since, float ms[2]);
mx_comm_mark mx_cuda_comm_mark(const mx_device *d);
mx_comm_seconds mx_cuda_comm_seconds(mx_device *d, mx_comm_mark at);
void mx_cuda_comm_close(mx_cuda *c);

#endif

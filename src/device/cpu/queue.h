/* queue.h - the CPU as an asynchronous device, for tests.
 *
 * Every call is put into a queue, which another thread works through: a run returns before it has
 * begun, as on a GPU. What a program forgets to wait for, it then reads too early. Only `read` and
 * the readback's `wait` do. There is one queue in a process.
 */
#ifndef MX_DEVICE_CPU_QUEUE_H
#define MX_DEVICE_CPU_QUEUE_H

#include "device/device.h"

mx_status mx_device_open_queue(mx_device **out) MX_MUST_USE;

typedef struct {
    int64_t runs;      /* asked for */
    int64_t reads;     /* the host stood still for a copy */
    int64_t waits;     /* a readback was waited for */
    int64_t idle_waits; /* ... and no run was queued after the mark */
    int64_t hosted_bytes; /* of variables that were to lie in host memory */
} mx_queue_counts;
mx_queue_counts mx_queue_report(void); /* since the process began */

#endif

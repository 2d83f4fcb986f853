/* comm_thread.h - the thread that runs the collectives of CPU programs beside their other steps.
 *
 * Steps run in the order in which they were started. After one has failed the others do not run,
 * until a wait has taken the failure and nothing is under way.
 */
#ifndef MX_DEVICE_CPU_COMM_THREAD_H
#define MX_DEVICE_CPU_COMM_THREAD_H

#include "device/device.h"

typedef struct mx_comm_thread mx_comm_thread;

bool mx_comm_thread_open(mx_comm_thread **out); /* false: no thread can be had */
void mx_comm_thread_close(mx_comm_thread *t);
/* Gives the number to wait for. `took`: where begin and end are written; NULL: nowhere. */
int64_t mx_comm_thread_start(mx_comm_thread *t, const mx_exec_step *step, double *took);
/* Until that step and all before it are over; the first failure of them. */
mx_status mx_comm_thread_wait(mx_comm_thread *t, int64_t ticket) MX_MUST_USE;
/* Until nothing is under way; what failed is forgotten. */
void mx_comm_thread_drain(mx_comm_thread *t);
double mx_comm_thread_seconds(const mx_comm_thread *t); /* of all steps; while none is under way */

#endif

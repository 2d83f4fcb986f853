/* stack.h - room on the stacks of all threads for what kernels keep there. */
#ifndef MX_BASE_STACK_H
#define MX_BASE_STACK_H

#include "base/status.h"
#include <stdint.h>

/* A GEMM packs its operands into 5 MiB of its thread's stack (ops/cpu/gemm_kernel.inc). */
enum { MX_STACK_BYTES = 8 << 20 };

/* Raises the limit of this process, and what threads started from now on get, to that much. */
mx_status mx_stack_prepare(void) MX_MUST_USE;
int64_t mx_stack_bytes(void); /* of the thread that asks */

#endif

/* reserve.h - memory for small objects when the system has none left.
 *
 * Running out of memory is met in two ways. Memory whose size the user chooses (tensors, files) is
 * asked for with mx_alloc, which returns a status. Small objects (a name, a node, a message, an
 * array that grows) are asked for in hundreds of places that could do nothing sensible about a
 * failure; they never see one. When the system refuses, they get memory from a reserve that was
 * there from the start, and the thread remembers that it is on the reserve: mx_memory_check, which
 * mx_alloc and the main loops call, then says so as a status, and the work unwinds the way it does
 * on any error: buffers freed, files closed, lock released, other ranks informed. What the reserve
 * gave is as good as any memory, so work that ends before it comes to such a place has simply
 * succeeded.
 *
 * Only when the reserve is used up as well can the process not continue: it says so and exits with
 * status 4 on the spot. Folders are then as after kill -9, which loses nothing that was committed,
 * and the kernel lets go of the lock.
 *
 * The reserve lies in the program's zeroed data: it costs address space, and pages when it is used.
 * It is empty again when the last object has been given back.
 */
#ifndef MX_BASE_RESERVE_H
#define MX_BASE_RESERVE_H

#include "base/status.h"
#include <stddef.h>

/* 64-byte aligned, not zeroed; never NULL. Marks this thread. */
void *mx_reserve_take(size_t bytes);
bool mx_reserve_give(void *p); /* false: it is not of the reserve */
bool mx_reserve_holds(const void *p);
/* Bytes that may be read at p, of the reserve or of malloc. */
size_t mx_reserve_size(void *p);
void mx_reserve_exhausted(size_t bytes) __attribute__((noreturn));

/* OK, or MX_MEMORY once for each time this thread came onto the reserve. */
mx_status mx_memory_check(void) MX_MUST_USE;
/* JSON objects count as small ones, too. Once, at the start of a program. */
void mx_memory_install(void);

#endif

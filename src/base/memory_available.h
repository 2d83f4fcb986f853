/* memory_available.h - how much memory this process can still have.
 *
 * The least of what the machine has available (MemAvailable), what the limits of the process's
 * control groups leave (versions 1 and 2, every group up to the root; page cache that a group would
 * give up counts as free), and what `ulimit -v` and `ulimit -d` leave.
 */
#ifndef MX_BASE_MEMORY_AVAILABLE_H
#define MX_BASE_MEMORY_AVAILABLE_H

#include <stdint.h>

typedef struct {
    int64_t bytes;   /* INT64_MAX: nothing is known */
    const char *why; /* whose they are: "the 12 GiB that <this machine has available>" */
} mx_memory_available;

mx_memory_available mx_memory_available_now(void);
/* The same with /proc and /sys below a folder, for tests. */
mx_memory_available mx_memory_available_in(const char *root);

#endif

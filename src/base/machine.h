/* machine.h - the machine the process may use, as the kernel tells it.
 *
 * Limits count, not hardware: cores come from the affinity mask and the cgroup's CPU quota, memory
 * from the cgroup's limit as well as from the machine. Everything is read from /proc and /sys; what
 * cannot be read is 0 or "".
 */
#ifndef MX_BASE_MACHINE_H
#define MX_BASE_MACHINE_H

#include <stdint.h>

typedef struct {
    char cpu[96];         /* "AMD EPYC 9454" */
    char features[160];   /* those of the SIMD features we use that are there: "avx2 fma avx512f" */
    int cores_online;     /* of the machine */
    int cores_usable;     /* by the affinity mask */
    double cpu_quota;     /* cores the cgroup allows; 0: no limit */
    int64_t memory_bytes; /* of the machine */
    int64_t free_bytes;   /* available now */
    int64_t limit_bytes;  /* of the cgroup; 0: no limit */
    int64_t open_files;   /* soft RLIMIT_NOFILE */
    int64_t shm_bytes;    /* free in /dev/shm */
    int nvidia_devices;   /* on the PCI bus, whether or not a driver is loaded */
    char kernel[96];      /* "Linux 6.1.0" */
} mx_machine;

void mx_machine_read(mx_machine *m);
/* Lets the process have `need` files and connections open, as far as the hard limit goes. */
void mx_machine_allow_files(int64_t need);
/* Gives memory that was freed back to the system: the allocator keeps it, for each thread. */
void mx_machine_return_memory(void);

#endif

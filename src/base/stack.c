/* stack.c - stacks of threads have the size of the limit on that of the process, or 2 MiB where
 * there is no limit (`ulimit -s unlimited`, usual on clusters), and limits may be low.
 *
 * The first thread's stack grows as it is used. Where the address space is limited (ulimit -v) and
 * used up by then, growing fails with a signal in the middle of a kernel; so it is grown at the
 * start, once a mapping of that size, which can fail, has shown that there is room.
 */
#include "base/stack.h"

#include <alloca.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { GROWN_BYTES = 6 << 20 }; /* what a GEMM needs, and its callers */

/* The kernel maps everything down to a page that is touched; memory is used for that page alone. */
static __attribute__((noinline)) void touch(size_t bytes)
{
    volatile char *p = alloca(bytes);
    *p = 0;
}

static mx_status grow_first_stack(void)
{
    if (gettid() != getpid())
        return MX_OK;
    void *p = mmap(NULL, GROWN_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0);
    if (p == MAP_FAILED)
        return mx_fail(MX_MEMORY, "out of memory: kernels need %d KiB of stack; raise the limit on "
                                  "the address space (ulimit -v)",
                       GROWN_BYTES >> 10);
    munmap(p, GROWN_BYTES);
    touch(GROWN_BYTES);
    return MX_OK;
}

static mx_status raise_limit(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_STACK, &l) != 0 || l.rlim_cur == RLIM_INFINITY ||
        l.rlim_cur >= MX_STACK_BYTES)
        return MX_OK;
    if (l.rlim_max != RLIM_INFINITY && l.rlim_max < MX_STACK_BYTES)
        return mx_fail(MX_MEMORY,
                       "kernels need %d KiB of stack and the limit is %lld; raise it (ulimit -Hs)",
                       MX_STACK_BYTES >> 10, (long long)l.rlim_max >> 10);
    l.rlim_cur = MX_STACK_BYTES; /* the stack grows as it is used: this takes effect at once */
    setrlimit(RLIMIT_STACK, &l);
    return MX_OK;
}

mx_status mx_stack_prepare(void)
{
    pthread_attr_t a;
    size_t bytes;
    MX_TRY(raise_limit());
    MX_TRY(grow_first_stack());
    if (pthread_getattr_default_np(&a) != 0)
        return MX_OK;
    if (pthread_attr_getstacksize(&a, &bytes) == 0 && bytes < MX_STACK_BYTES &&
        pthread_attr_setstacksize(&a, MX_STACK_BYTES) == 0)
        pthread_setattr_default_np(&a);
    pthread_attr_destroy(&a);
    return MX_OK;
}

int64_t mx_stack_bytes(void)
{
    pthread_attr_t a;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &a) != 0)
        return MX_STACK_BYTES; /* not known: nothing to complain of */
    pthread_attr_getstacksize(&a, &bytes);
    pthread_attr_destroy(&a);
    return (int64_t)bytes;
}

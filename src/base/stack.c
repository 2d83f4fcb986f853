/* stack.c - stacks of threads have the size of the limit on that of the process, or 2 MiB where
 * there is no limit (`ulimit -s unlimited`, usual on clusters), and limits may be low.
 */
#include "base/stack.h"

#include <pthread.h>
#include <sys/resource.h>

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

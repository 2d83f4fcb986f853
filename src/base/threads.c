/* threads.c - OpenMP's threads: how they are started, and how they wait for each other.
 *
 * Left to itself, libgomp's threads spin for milliseconds wherever they wait. On a quiet machine
 * that costs nothing; beside another busy process they hold the very cores that the thread they
 * wait for needs, and a run has a tenth of its speed. So they spin for SPIN_SECONDS, longer than
 * most waits between the loops of a step, and then sleep. libgomp can be told this only by the
 * environment that it finds when it begins: the program links it statically, and begin_short_spins
 * comes before it. OMP_WAIT_POLICY and GOMP_SPINCOUNT of the user's own win.
 */
#include "base/threads.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/stack.h"
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_SLACK = 1 << 20 }; /* what the system keeps of one does not count */
enum { BEFORE_LIBGOMP = 101, TRIALS = 8, TURNS = 32, LEAST_SPINS = 100, MOST_SPINS = 20000 };
static const double SPIN_SECONDS = 50e-6;
static const char SPIN_COUNT[] = "GOMP_SPINCOUNT";

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Processors differ by a factor of ten in how long one turn of a spin takes. The shortest of a few
 * trials counts: another process may have the core in between. */
static double spins_in(double seconds)
{
    double least = INFINITY;
    for (int k = 0; k < TRIALS; k++) {
        double began = mx_clock_now();
        for (int i = 0; i < TURNS; i++)
            relax();
        least = fmin(least, (mx_clock_now() - began) / TURNS);
    }
    return fmin(MOST_SPINS, fmax(LEAST_SPINS, seconds / least));
}

__attribute__((constructor(BEFORE_LIBGOMP))) static void begin_short_spins(void)
{
    char count[32];
    if (getenv("OMP_WAIT_POLICY") || getenv(SPIN_COUNT))
        return;
    snprintf(count, sizeof count, "%.0f", spins_in(SPIN_SECONDS));
    (void)setenv(SPIN_COUNT, count, 0);
}

int mx_threads_offered(void)
{
    return omp_get_max_threads();
}

static void *pass_gate(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* Starts n threads at once, for a moment; gives what pthread_create returned. */
static int try_threads(int n, int *started)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *thread = mx_small_alloc(sizeof *thread * (size_t)n);
    int more = 0, error = 0;
    pthread_mutex_lock(&gate);
    while (more < n - 1 && !(error = pthread_create(&thread[more], NULL, pass_gate, &gate)))
        more++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < more; i++)
        pthread_join(thread[i], NULL);
    mx_free(thread);
    *started = more + 1;
    return error;
}

/* libgomp ends the program when it cannot start a thread. So we first try whether that many can be
 * started, and then let libgomp start them. */
mx_status mx_threads_start(int n, int *started)
{
    if (n > 0)
        omp_set_num_threads(n);
    n = omp_get_max_threads();
    int error = try_threads(n, started);
    if (error)
        return mx_fail(MX_MEMORY,
                       "%d threads were requested and only %d can be started: %s; is memory short, "
                       "or the number of threads limited? num_threads=%d needs fewer",
                       n, *started, strerror(error), *started);
    int64_t stack = MX_STACK_BYTES;
#pragma omp parallel num_threads(n) reduction(min : stack)
    stack = mx_stack_bytes();
    if (stack < MX_STACK_BYTES - STACK_SLACK)
        return mx_fail(MX_MEMORY,
                       "kernels need %d KiB of stack and a thread has %lld; leave OMP_STACKSIZE "
                       "out of the environment, or set it to 8M",
                       MX_STACK_BYTES >> 10, (long long)stack >> 10);
    return MX_OK;
}

void mx_threads_use(int n)
{
    if (n > 0 && !omp_in_parallel() && omp_get_max_threads() != n)
        omp_set_num_threads(n);
}

/* signals.c - the stop flag and its handler. */
#include "base/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { IMPATIENT = 3 };

/* Signals belong to the process, and so does this. */
static struct {
    atomic_int signal, count, interrupts;
    _Atomic int64_t at_ns;
    atomic_bool clears_line;
    const char *_Atomic said;
} stop;

static int64_t monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void say(const char *text)
{
    (void)!write(STDERR_FILENO, text, strlen(text));
}

void mx_stop_request(int sig)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&stop.signal, &none, sig))
        atomic_store(&stop.at_ns, monotonic_ns());
    atomic_fetch_add(&stop.count, 1);
}

static void on_stop(int sig)
{
    int saved = errno;
    mx_stop_request(sig);
    if (sig == SIGINT) {
        int n = atomic_fetch_add(&stop.interrupts, 1) + 1;
        const char *said = atomic_load(&stop.said);
        if (n == 1 && said) {
            if (atomic_load(&stop.clears_line)) /* the terminal's ^C stands there, too */
                say("\r\x1b[K");
            say(said);
        }
        if (n >= IMPATIENT) {
            signal(SIGINT, SIG_DFL);
            raise(SIGINT);
        }
    }
    errno = saved;
}

mx_status mx_signals_install(const char *said)
{
    static const int stops[] = {SIGTERM, SIGINT, SIGUSR1};
    struct sigaction act = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigemptyset(&act.sa_mask);
    atomic_store(&stop.said, said);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        if (sigaction(stops[i], &act, NULL))
            return mx_fail_errno(MX_DEVICE, "cannot handle signal %d", stops[i]);
    /* Whoever was reading, or the terminal, is gone: no reason to stop. */
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR || signal(SIGHUP, SIG_IGN) == SIG_ERR)
        return mx_fail_errno(MX_DEVICE, "cannot ignore SIGPIPE and SIGHUP");
    mx_signals_limit_files();
    return MX_OK;
}

void mx_signals_limit_files(void)
{
    (void)signal(SIGXFSZ, SIG_IGN);
}

void mx_stop_clears_line(bool on)
{
    atomic_store(&stop.clears_line, on);
}

int mx_stop_signal(void)
{
    return atomic_load(&stop.signal);
}

int mx_stop_count(void)
{
    return atomic_load(&stop.count);
}

double mx_stop_age(void)
{
    return mx_stop_signal() ? 1e-9 * (double)(monotonic_ns() - atomic_load(&stop.at_ns)) : 0;
}

void mx_stop_clear(void)
{
    atomic_store(&stop.signal, 0);
    atomic_store(&stop.count, 0);
    atomic_store(&stop.interrupts, 0);
}

/* signals_test.c - a stop is a flag, more signals are safe, a third Ctrl-C means it. */
#include "base/signals.h"

#include "../test.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

MX_TEST(signals_ask_to_stop)
{
    static const int stops[] = {SIGTERM, SIGINT, SIGUSR1};
    MX_CHECK_OK(mx_signals_install("maxc: stopping after this step\n"));
    MX_CHECK(mx_stop_signal() == 0 && mx_stop_count() == 0 && mx_stop_age() == 0);
    for (int i = 0; i < 3; i++) {
        mx_stop_clear();
        raise(stops[i]);
        MX_CHECK(mx_stop_signal() == stops[i] && mx_stop_count() == 1, "signal %d", stops[i]);
        usleep(2000);
        MX_CHECK(mx_stop_age() >= 0.002 && mx_stop_age() < 60, "%g", mx_stop_age());
        raise(SIGUSR1);
        raise(SIGTERM);
        MX_CHECK(mx_stop_signal() == stops[i] && mx_stop_count() == 3, "the first is kept");
    }
    for (int i = 0; i < 1000; i++)
        raise(SIGTERM);
    MX_CHECK(mx_stop_count() == 1003, "%d", mx_stop_count());
}

MX_TEST(signals_broken_pipes_are_errors)
{
    int fd[2];
    MX_CHECK_OK(mx_signals_install("maxc: stopping after this step\n"));
    MX_CHECK(pipe(fd) == 0);
    close(fd[0]);
    MX_CHECK(write(fd[1], "x", 1) == -1 && errno == EPIPE, "errno %d", errno);
    close(fd[1]);
}

MX_TEST(signals_files_that_may_not_grow_are_errors)
{
    char path[] = "/tmp/maxc-limit-XXXXXX", text[8192] = "";
    int fd = mkstemp(path);
    struct rlimit limit = {4096, 4096};
    MX_CHECK(fd >= 0 && setrlimit(RLIMIT_FSIZE, &limit) == 0);
    unlink(path);
    mx_signals_limit_files();
    MX_CHECK(write(fd, text, sizeof text) == 4096, "errno %d", errno);
    MX_CHECK(write(fd, text, sizeof text) == -1 && errno == EFBIG, "errno %d", errno);
    close(fd);
}

static int child_of_interrupts(int n)
{
    int st = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(9);
        mx_status_free(mx_signals_install("maxc: stopping after this step\n"));
        for (int i = 0; i < n; i++)
            raise(SIGINT);
        _exit(mx_stop_signal() == SIGINT ? 75 : 1);
    }
    waitpid(pid, &st, 0);
    return WIFSIGNALED(st) ? WTERMSIG(st) : 1000 + WEXITSTATUS(st);
}

MX_TEST(signals_third_interrupt_ends_at_once)
{
    MX_CHECK(child_of_interrupts(1) == 1075);
    MX_CHECK(child_of_interrupts(2) == 1075);
    MX_CHECK(child_of_interrupts(3) == SIGINT);
}

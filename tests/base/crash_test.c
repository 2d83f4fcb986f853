/* crash_test.c - a dying process says where, in file and line, and dies of the same signal. */
#include "base/crash.h"

#include "../test.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* The sanitizers would speak first. The fault's line is that of the return. */
#define UNCHECKED __attribute__((noinline, no_sanitize("undefined"), no_sanitize("address")))
enum { FAULT_LINE = __LINE__ + 3 };
UNCHECKED static int touch(volatile int *p)
{
    return *p + 1;
}

__attribute__((noinline)) static int divide(volatile int *zero)
{
    __asm__ volatile("" ::: "memory");
    raise(SIGFPE); /* a division by zero is undefined, and the sanitizer would speak first */
    return *zero;
}

__attribute__((noinline)) static int overflow(int depth)
{
    volatile char room[4096];
    if (depth < 0)
        return 0;
    room[depth % 4096] = (char)depth;
    return overflow(depth + 1) + room[(depth + 1) % 4096];
}

static void *in_thread(void *arg)
{
    touch(arg);
    return NULL;
}

typedef enum { NULL_POINTER, ASSERTION, DIVISION, STACK, THREAD } death;

static void die(death how)
{
    pthread_t t;
    switch (how) {
    case NULL_POINTER:
        touch(NULL);
        break;
    case ASSERTION:
        MX_ASSERT(how == STACK, "how=%d", (int)how);
        break;
    case DIVISION:
        divide(&(volatile int){0});
        break;
    case STACK:
        overflow(0);
        break;
    case THREAD:
        pthread_create(&t, NULL, in_thread, NULL);
        pthread_join(t, NULL);
        break;
    }
}

/* Runs the death in a child; what it printed, and the signal it died of. */
static int watch(death how, char *text, size_t cap, char *log, size_t log_cap)
{
    int err[2], to_log[2], st = 0;
    MX_CHECK(pipe(err) == 0 && pipe(to_log) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        dup2(err[1], 2);
        close(err[0]);
        mx_status_free(mx_crash_install());
        mx_crash_set_log(to_log[1]);
        mx_crash_set_step(1200);
        mx_crash_set_node("model.layers.3.mlp");
        die(how);
        _exit(0);
    }
    close(err[1]);
    close(to_log[1]);
    size_t n = 0;
    for (ssize_t k; n < cap - 1 && (k = read(err[0], text + n, cap - 1 - n)) > 0;)
        n += (size_t)k;
    text[n] = 0;
    n = 0;
    for (ssize_t k; n < log_cap - 1 && (k = read(to_log[0], log + n, log_cap - 1 - n)) > 0;)
        n += (size_t)k;
    log[n] = 0;
    close(err[0]);
    close(to_log[0]);
    waitpid(pid, &st, 0);
    return WIFSIGNALED(st) ? WTERMSIG(st) : -WEXITSTATUS(st);
}

static char text[65536], log_text[65536];

MX_TEST(crash_names_function_file_line_step_and_node)
{
    char want[64];
    snprintf(want, sizeof want, "#0 touch at tests/base/crash_test.c:%d\n", FAULT_LINE);
    int sig = watch(NULL_POINTER, text, sizeof text, log_text, sizeof log_text);
    MX_CHECK(sig == SIGSEGV, "died of %d", sig);
    MX_CHECK(strstr(text, "maxc: SIGSEGV (address 0x0) in thread ") != NULL, "%s", text);
    MX_CHECK(strstr(text, ", step 1200, node model.layers.3.mlp\n") != NULL, "%s", text);
    MX_CHECK(strstr(text, want) != NULL, "expected %s in\n%s", want, text);
    MX_CHECK(strstr(text, "#1 die at tests/base/crash_test.c:") != NULL, "%s", text);
    MX_CHECK(strstr(log_text, want) != NULL, "the log has it too: %s", log_text);
}

MX_TEST(crash_of_an_assertion_is_reported)
{
    int sig = watch(ASSERTION, text, sizeof text, log_text, sizeof log_text);
    MX_CHECK(sig == SIGABRT, "died of %d", sig);
    MX_CHECK(strstr(text, "how=1") && strstr(text, "maxc: SIGABRT in thread"), "%s", text);
    MX_CHECK(strstr(text, "die at tests/base/crash_test.c:") != NULL, "%s", text);
    MX_CHECK(strstr(log_text, "die at tests/base/crash_test.c:") != NULL, "%s", log_text);
}

MX_TEST(crash_other_signals_keep_their_status)
{
    int sig = watch(DIVISION, text, sizeof text, log_text, sizeof log_text);
    MX_CHECK(sig == SIGFPE, "died of %d", sig);
    MX_CHECK(strstr(text, "SIGFPE") && strstr(text, "divide at tests/base/crash_test.c:"), "%s",
             text);
}

MX_TEST(crash_of_an_overflowing_stack_is_reported)
{
    int sig = watch(STACK, text, sizeof text, log_text, sizeof log_text);
    MX_CHECK(sig == SIGSEGV, "died of %d", sig);
    MX_CHECK(strstr(text, "overflow at tests/base/crash_test.c:") != NULL, "%s", text);
    int frames = 0;
    for (char *p = text; (p = strstr(p, "overflow at")); p++)
        frames++;
    MX_CHECK(frames > 10 && frames <= 64, "%d frames are printed of millions", frames);
}

MX_TEST(crash_in_another_thread_is_reported)
{
    int sig = watch(THREAD, text, sizeof text, log_text, sizeof log_text);
    MX_CHECK(sig == SIGSEGV, "died of %d", sig);
    MX_CHECK(strstr(text, "in_thread at tests/base/crash_test.c:") != NULL, "%s", text);
}

/* --- the stacks of all threads --- */
static atomic_int ready, quit;

__attribute__((noinline)) static void idle_in_a_loop(void)
{
    while (!atomic_load(&quit))
        usleep(1000);
    __asm__ volatile("" ::: "memory");
}

static void *sleeper(void *arg)
{
    if (arg) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, NULL);
    }
    pthread_setname_np(pthread_self(), arg ? "deaf" : "loader");
    atomic_fetch_add(&ready, 1);
    idle_in_a_loop();
    return NULL;
}

MX_TEST(stacks_of_every_thread_are_printed)
{
    pthread_t t[3];
    int fd[2];
    MX_CHECK(pipe(fd) == 0);
    pthread_create(&t[0], NULL, sleeper, NULL);
    pthread_create(&t[1], NULL, sleeper, NULL);
    pthread_create(&t[2], NULL, sleeper, &ready);
    while (atomic_load(&ready) < 3)
        usleep(1000);
    int answered = mx_stack_print_all(fd[1]);
    MX_CHECK(answered == 3, "%d answered", answered);
    close(fd[1]);
    size_t n = 0;
    for (ssize_t k; n < sizeof text - 1 && (k = read(fd[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)k;
    text[n] = 0;
    int loops = 0;
    for (char *p = text; (p = strstr(p, "idle_in_a_loop at tests/base/crash_test.c:")); p++)
        loops++;
    MX_CHECK(loops == 2, "%d of the loops: %s", loops, text);
    MX_CHECK(strstr(text, "(loader):") && strstr(text, ", this one:"), "%s", text);
    MX_CHECK(strstr(text, "(deaf):\n  does not answer; the kernel says: state ") != NULL, "%s",
             text);
    atomic_store(&quit, 1);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    close(fd[0]);
}

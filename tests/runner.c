/* runner.c - runs the scanned tests, one process each.
 *
 *     tests_run [PATTERN ...]     shell patterns of test names; all when none is given
 *     tests_run --list
 * Each test gets MX_TEST_SECONDS (default 300). The last line is "N passed, N failed".
 */
#include "test.h"

#include "base/str.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int n_bad_checks; /* of this test's own process */

void mx_check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
{
    if (++n_bad_checks > 20)
        return;
    printf("    %s:%d: %s", file, line, cond);
    if (*fmt) {
        va_list ap;
        va_start(ap, fmt);
        printf(": ");
        vprintf(fmt, ap);
        va_end(ap);
    }
    printf("\n");
}

void mx_check_ok(const char *file, int line, mx_status s)
{
    if (s)
        mx_check_failed(file, line, "status is OK", "%s", mx_status_text(s));
    mx_status_free(s);
}

void mx_check_error(const char *file, int line, mx_status s, const char *part)
{
    if (!s)
        mx_check_failed(file, line, "status is an error", "expected one with \"%s\"", part);
    else if (!strstr(mx_status_text(s), part))
        mx_check_failed(file, line, "error text", "expected \"%s\" in \"%s\"", part,
                        mx_status_text(s));
    mx_status_free(s);
}

static bool selected(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (mx_glob_match(argv[i], name))
            return true;
    return argc < 2;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool run_one(const mx_test_entry *t, unsigned seconds)
{
    fflush(stdout);
    double start = now();
    pid_t pid = fork();
    if (pid == 0) {
        alarm(seconds);
        t->run();
        fflush(stdout);
        exit(n_bad_checks ? 1 : 0); /* exit, not _exit: the leak check runs at exit */
    }
    int st = 0;
    waitpid(pid, &st, 0);
    bool ok = WIFEXITED(st) && WEXITSTATUS(st) == 0;
    const char *how = ok ? "ok" : WIFSIGNALED(st) && WTERMSIG(st) == SIGALRM ? "TIMEOUT" : "FAIL";
    printf("%-7s %s (%.2f s)\n", how, t->name, now() - start);
    return ok;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const mx_test_entry *t = mx_test_table; t->name; t++)
            puts(t->name);
        return 0;
    }
    const char *limit = getenv("MX_TEST_SECONDS");
    int64_t seconds = 300;
    if (limit && !mx_parse_i64(limit, &seconds))
        fprintf(stderr, "MX_TEST_SECONDS=%s is not a number; using 300\n", limit);
    int passed = 0, failed = 0;
    for (const mx_test_entry *t = mx_test_table; t->name; t++)
        if (selected(t->name, argc, argv)) {
            if (run_one(t, (unsigned)seconds))
                passed++;
            else
                failed++;
        }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}

/* run_lock_test.c - one run per folder: the lock, its note, and locks of the dead. */
#include "../test.h"
#include "store/run_lock.h"
#include "test_dir.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

MX_TEST(run_lock_second_is_refused)
{
    test_dir d;
    test_dir_make(&d);
    mx_run_lock a, b;
    MX_CHECK_OK(mx_run_lock_take(&a, d.path));
    mx_run_lock_beat(&a);
    char owner[40];
    snprintf(owner, sizeof owner, "locked by process %ld", (long)getpid());
    MX_CHECK_ERROR(mx_run_lock_take(&b, d.path), owner);
    mx_run_lock_release(&a);
    mx_run_lock_release(&a);
    MX_CHECK_OK(mx_run_lock_take(&b, d.path));
    mx_run_lock_release(&b);
    /* A process that died holding it does not hold it. */
    pid_t pid = fork();
    if (pid == 0) {
        mx_status st = mx_run_lock_take(&a, d.path);
        _exit(st ? 1 : 0);
    }
    int st;
    waitpid(pid, &st, 0);
    MX_CHECK(st == 0);
    MX_CHECK_OK(mx_run_lock_take(&b, d.path));
    mx_run_lock_release(&b);
    /* Another host's fresh note counts although no lock is seen; an old one does not. */
    const char *path = test_dir_file(&d, "run.lock");
    test_put_text(path, "{\"host\":\"elsewhere\",\"pid\":7,\"started\":\"2026-01-01T00:00:00Z\"}");
    MX_CHECK_ERROR(mx_run_lock_take(&b, d.path), "process 7 on elsewhere");
    struct timespec old[2] = {{1000, 0}, {1000, 0}};
    utimensat(AT_FDCWD, path, old, 0);
    MX_CHECK_OK(mx_run_lock_take(&b, d.path));
    mx_run_lock_release(&b);
    test_put_text(path, "garbage");
    MX_CHECK_OK(mx_run_lock_take(&b, d.path));
    mx_run_lock_release(&b);
    MX_CHECK_ERROR(mx_run_lock_take(&b, "/nonexistent"), "cannot open");
    test_dir_remove(&d);
}

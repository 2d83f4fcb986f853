/* memory_available_test.c - the least of what machine, control groups and limits leave, from
 * folders that look like /proc and /sys. */
#include "base/memory_available.h"

#include "../test.h"
#include "base/io.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char root[64];

static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0755);
            *p = '/';
        }
    MX_CHECK_OK(mx_io_write_file(NULL, path, text, strlen(text)));
}

static void begin(void)
{
    snprintf(root, sizeof root, "/tmp/maxc-memory-XXXXXX");
    MX_CHECK(mkdtemp(root) != NULL);
    put("/proc/meminfo", "MemTotal:  9000 kB\nMemFree: 10 kB\nMemAvailable:    8000 kB\n");
}

static void check(int64_t bytes, const char *why)
{
    mx_memory_available r = mx_memory_available_in(root);
    MX_CHECK(r.bytes == bytes && strstr(r.why, why), "%lld, %s; expected %lld, %s",
             (long long)r.bytes, r.why, (long long)bytes, why);
}

static void end(void)
{
    MX_CHECK_OK(mx_io_remove_tree(NULL, root));
}

MX_TEST(memory_available_of_the_machine)
{
    begin();
    check(8000 * 1024, "this machine has");
    end();
    snprintf(root, sizeof root, "/nonexistent");
    check(INT64_MAX, "");
    int64_t bytes = mx_memory_available_now().bytes;
    MX_CHECK(bytes > 1 << 20 && bytes < INT64_MAX);
}

/* Any group up to the root may have the least left. Cache that it would give up is free. */
MX_TEST(memory_available_of_groups)
{
    begin();
    put("/proc/self/cgroup", "0::/jobs/one\n");
    put("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
    put("/sys/fs/cgroup/jobs/one/memory.current", "500000\n");
    check(8000 * 1024, "this machine has");
    put("/sys/fs/cgroup/jobs/memory.max", "1000000\n");
    put("/sys/fs/cgroup/jobs/memory.current", "700000\n");
    put("/sys/fs/cgroup/jobs/memory.stat", "anon 1\nactive_file 1000\ninactive_file 20000\n");
    check(321000, "control group");
    put("/sys/fs/cgroup/jobs/one/memory.max", "600000\n");
    check(100000, "control group");
    put("/sys/fs/cgroup/jobs/one/memory.current", "700000\n");
    check(0, "control group");
    end();
}

MX_TEST(memory_available_of_groups_of_version_1)
{
    begin();
    put("/proc/self/cgroup", "9:pids:/\n4:memory:/a/b\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "123456\n");
    check(8000 * 1024, "this machine has");
    /* counted a moment later, the page cache may be more than all that was used */
    put("/sys/fs/cgroup/memory/memory.stat",
        "total_inactive_file 120000\ntotal_active_file 90000\n");
    check(8000 * 1024, "this machine has");
    put("/sys/fs/cgroup/memory/memory.stat", "cache 1\n");
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "2000000\n");
    put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1900000\n");
    put("/sys/fs/cgroup/memory/a/b/memory.stat", "cache 1\ntotal_inactive_file 50000\n");
    check(150000, "control group");
    /* a container whose own group is the root of what it sees */
    put("/proc/self/cgroup", "4:memory:/somewhere/else\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1123456\n");
    check(1000000, "control group");
    end();
}

MX_TEST(memory_available_of_limits)
{
    struct rlimit l, low;
    begin();
    MX_CHECK(getrlimit(RLIMIT_AS, &l) == 0);
    put("/proc/self/status", "Name: x\nVmSize:     1000 kB\nVmData: 7 kB\n");
    low = (struct rlimit){l.rlim_max == RLIM_INFINITY ? (rlim_t)1 << 46 : l.rlim_max, l.rlim_max};
    put("/proc/meminfo", "MemAvailable: 900000000000 kB\n");
    MX_CHECK(setrlimit(RLIMIT_AS, &low) == 0);
    check((int64_t)low.rlim_cur - 1000 * 1024, "ulimit -v");
    end();
}

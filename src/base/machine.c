/* machine.c - reads /proc, /sys and a few system calls into an mx_machine. */
#include "base/machine.h"

#include "base/str.h"
#include <dirent.h>
#include <malloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Calls `take` with the name and value of each "name : value" or "name value" line of a file. */
static void each_line(const char *path, mx_machine *m,
                      void (*take)(mx_machine *m, const char *name, const char *value))
{
    FILE *f = fopen(path, "r");
    char line[4096];
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        char *end = colon;
        while (end > line && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        *end = 0;
        take(m, line, colon + 1 + strspn(colon + 1, " \t"));
    }
    if (f)
        fclose(f);
}

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *s = words; (s = strstr(s, word)); s += n)
        if ((s == words || s[-1] == ' ') && (s[n] == ' ' || !s[n]))
            return true;
    return false;
}

/* x86 says "flags" and "model name", arm64 "Features"; the first core speaks for all. */
static void take_cpu(mx_machine *m, const char *name, const char *value)
{
    static const char *const used[] = {"sse4_2",      "avx",         "avx2",     "fma",
                                       "f16c",        "avx512f",     "avx512bw", "avx512vl",
                                       "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8",
                                       "asimd",       "bf16",        "sve",      "sve2"};
    if (strcmp(name, "model name") == 0 && !*m->cpu)
        snprintf(m->cpu, sizeof m->cpu, "%s", value);
    if ((strcmp(name, "flags") != 0 && strcmp(name, "Features") != 0) || *m->features)
        return;
    size_t n = 0;
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        if (has_word(value, used[i]) && n + strlen(used[i]) + 2 < sizeof m->features)
            n += (size_t)snprintf(m->features + n, sizeof m->features - n, "%s%s", n ? " " : "",
                                  used[i]);
}

static void take_memory(mx_machine *m, const char *name, const char *value)
{
    int64_t bytes = strtoll(value, NULL, 10) * 1024;
    if (strcmp(name, "MemTotal") == 0)
        m->memory_bytes = bytes;
    if (strcmp(name, "MemAvailable") == 0)
        m->free_bytes = bytes;
}

/* The first line of a small file, or "". */
static void read_line(const char *path, char *buf, size_t cap)
{
    FILE *f = fopen(path, "r");
    *buf = 0;
    if (f && !fgets(buf, (int)cap, f))
        *buf = 0;
    if (f)
        fclose(f);
    buf[strcspn(buf, "\n")] = 0;
}

/* Version 2 first, then version 1. "max" and absurdly large numbers mean no limit. */
static void read_cgroup(mx_machine *m)
{
    char buf[128];
    read_line("/sys/fs/cgroup/memory.max", buf, sizeof buf);
    if (!*buf)
        read_line("/sys/fs/cgroup/memory/memory.limit_in_bytes", buf, sizeof buf);
    int64_t limit = 0;
    if (mx_parse_i64(buf, &limit) && limit > 0 && limit < m->memory_bytes)
        m->limit_bytes = limit;
    read_line("/sys/fs/cgroup/cpu.max", buf, sizeof buf);
    long long quota = 0, period = 0;
    if (sscanf(buf, "%lld %lld", &quota, &period) == 2 && period > 0)
        m->cpu_quota = (double)quota / (double)period;
}

static int count_nvidia(void)
{
    static const char root[] = "/sys/bus/pci/devices";
    DIR *d = opendir(root);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512], vendor[32], class[32];
        snprintf(path, sizeof path, "%s/%.200s/vendor", root, e->d_name);
        read_line(path, vendor, sizeof vendor);
        snprintf(path, sizeof path, "%s/%.200s/class", root, e->d_name);
        read_line(path, class, sizeof class);
        n += strcmp(vendor, "0x10de") == 0 && mx_starts_with(class, "0x03"); /* displays */
    }
    if (d)
        closedir(d);
    return n;
}

void mx_machine_read(mx_machine *m)
{
    *m = (mx_machine){0};
    each_line("/proc/cpuinfo", m, take_cpu);
    each_line("/proc/meminfo", m, take_memory);
    read_cgroup(m);
    m->nvidia_devices = count_nvidia();
    m->cores_online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;
    m->cores_usable =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : m->cores_online;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        m->open_files = files.rlim_cur == RLIM_INFINITY ? INT64_MAX : (int64_t)files.rlim_cur;
    struct statvfs shm;
    if (statvfs("/dev/shm", &shm) == 0)
        m->shm_bytes = (int64_t)shm.f_bavail * (int64_t)shm.f_frsize;
    struct utsname u;
    if (uname(&u) == 0)
        snprintf(m->kernel, sizeof m->kernel, "%.40s %.50s", u.sysname, u.release);
}

void mx_machine_return_memory(void)
{
    malloc_trim(0);
}

void mx_machine_allow_files(int64_t need)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur >= (rlim_t)need)
        return;
    l.rlim_cur = (rlim_t)need < l.rlim_max ? (rlim_t)need : l.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &l);
}

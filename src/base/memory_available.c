/* memory_available.c - see memory_available.h. */
#include "base/memory_available.h"

#include "base/str.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Where versions 2 and 1 of control groups keep what. A process is in one group of each hierarchy;
 * in a container that group may be the root of what can be seen. */
static const struct {
    const char *mark; /* of its line in /proc/self/cgroup */
    const char *mount, *limit, *used, *cache[2];
} hierarchies[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     {"total_inactive_file ", "total_active_file "}},
};

static void lower(mx_memory_available *room, int64_t bytes, const char *why)
{
    bytes = bytes < 0 ? 0 : bytes;
    if (bytes < room->bytes)
        *room = (mx_memory_available){bytes, why};
}

/* The number after `name` at the beginning of a line ("" for the first line); -1: none. */
static int64_t number_in(const char *path, const char *name)
{
    char line[512];
    int64_t value = -1;
    size_t n = strlen(name);
    FILE *f = fopen(path, "r");
    while (f && value < 0 && fgets(line, sizeof line, f)) {
        char *text = line + n;
        if (strncmp(line, name, n) != 0)
            continue;
        text += strspn(text, " \t");
        text[strspn(text, "0123456789")] = 0; /* "max": no number */
        if (!mx_parse_i64(text, &value))
            value = -1;
    }
    if (f)
        fclose(f);
    return value;
}

static void look_at_group(mx_memory_available *room, const char *folder, int k)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.3900s/%s", folder, hierarchies[k].limit);
    int64_t limit = number_in(path, "");
    snprintf(path, sizeof path, "%.3900s/%s", folder, hierarchies[k].used);
    int64_t used = number_in(path, "");
    if (limit < 0 || used < 0)
        return;
    snprintf(path, sizeof path, "%.3900s/memory.stat", folder);
    for (int i = 0; i < 2; i++) {
        int64_t cache = number_in(path, hierarchies[k].cache[i]);
        used -= cache > 0 ? cache : 0;
    }
    used = used < 0 ? 0 : used; /* the three are read one after the other */
    lower(room, limit - used, "the limit of its control group (container) leaves");
}

/* The group of this process and those above it. */
static void look_at_groups(mx_memory_available *room, const char *root, int k)
{
    char line[2048], path[PATH_MAX];
    snprintf(path, sizeof path, "%.1000s%s", root, hierarchies[k].mount);
    size_t top = strlen(path);
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%.1000s/proc/self/cgroup", root);
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *own = strstr(line, hierarchies[k].mark);
        if (!own || (k == 0 && own != line))
            continue;
        own += strlen(hierarchies[k].mark);
        snprintf(path + top, sizeof path - top, "%.*s", (int)strcspn(own, "\n"), own);
        break;
    }
    if (f)
        fclose(f);
    for (;;) {
        look_at_group(room, path, k);
        char *slash = strrchr(path, '/');
        if (strlen(path) <= top)
            return;
        *slash = 0;
    }
}

static void look_at_limits(mx_memory_available *room, const char *root)
{
    static const struct {
        int resource;
        const char *used, *why;
    } limits[] = {{RLIMIT_AS, "VmSize:", "the limit on its address space (ulimit -v) leaves"},
                  {RLIMIT_DATA, "VmData:", "the limit on its data (ulimit -d) leaves"}};
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.1000s/proc/self/status", root);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct rlimit l;
        int64_t used = number_in(path, limits[i].used);
        if (getrlimit(limits[i].resource, &l) == 0 && l.rlim_cur != RLIM_INFINITY && used >= 0 &&
            l.rlim_cur < INT64_MAX)
            lower(room, (int64_t)l.rlim_cur - 1024 * used, limits[i].why);
    }
}

mx_memory_available mx_memory_available_in(const char *root)
{
    char path[PATH_MAX];
    mx_memory_available room = {INT64_MAX, "there is"};
    snprintf(path, sizeof path, "%.1000s/proc/meminfo", root);
    int64_t available = number_in(path, "MemAvailable:");
    if (available >= 0)
        lower(&room, 1024 * available, "this machine has available");
    for (int k = 0; k < (int)(sizeof hierarchies / sizeof *hierarchies); k++)
        look_at_groups(&room, root, k);
    look_at_limits(&room, root);
    return room;
}

mx_memory_available mx_memory_available_now(void)
{
    return mx_memory_available_in("");
}

/* process_state.h - what tests look at to see what a server has left behind: open files, memory. */
#ifndef MX_TESTS_SERVE_PROCESS_STATE_H
#define MX_TESTS_SERVE_PROCESS_STATE_H

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

static inline int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static inline long resident_kb(void)
{
    long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &all, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) >> 10);
}

#endif

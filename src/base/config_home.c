/* config_home.c - where the program's own configuration files are.
 *
 *     $MAXC_HOME/configs            when MAXC_HOME is set; nothing else is tried then
 *     PROGRAM/../../configs         the program in build/release or build/test of a source tree
 *     PROGRAM/../share/maxc/configs installed
 * The program is what /proc/self/exe points to, so links to it (build/maxc) work.
 */
#include "base/config.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *mx_config_home(char *buf, size_t cap)
{
    const char *home = getenv("MAXC_HOME");
    if (home && *home) {
        snprintf(buf, cap, "%s/configs", home);
        return buf;
    }
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    *buf = 0;
    if (n <= 0)
        return buf;
    program[n] = 0;
    *strrchr(program, '/') = 0;
    static const char *const place[] = {"../../configs", "../share/maxc/configs"};
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        char path[4200], real[4096];
        snprintf(path, sizeof path, "%s/%s", program, place[i]);
        if (!realpath(path, real) || strlen(real) >= cap)
            continue;
        memcpy(buf, real, strlen(real) + 1);
        return buf;
    }
    return buf;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int mx_config_models(mx_arena *a, const char *home, char ***names)
{
    enum { MAX_MODELS = 1000 };
    *names = MX_NEW_N(a, char *, MAX_MODELS);
    char path[4200];
    snprintf(path, sizeof path, "%s/models", home);
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *e; d && n < MAX_MODELS && (e = readdir(d));)
        if (mx_ends_with(e->d_name, ".yml") && e->d_name[0] != '.')
            (*names)[n++] = mx_arena_printf(a, "%.*s", (int)strlen(e->d_name) - 4, e->d_name);
    if (d)
        closedir(d);
    qsort(*names, (size_t)n, sizeof **names, by_text);
    return n;
}

/* config_home.c - where the program's own configuration files are.
 *
 *     $MAXC_CONFIGS                 when it is set; nothing else is tried then
 *     PROGRAM/../../configs         the program in build/release or build/test of a source tree
 *     PROGRAM/../share/maxc/configs installed
 *     /usr/local/share/maxc/configs, /usr/share/maxc/configs   another program, with libmaxc.a
 * The program is what /proc/self/exe points to, so links to it (build/maxc) work. A folder counts
 * when it holds base.yml.
 */
#include "base/config.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_home(const char *path, char *buf, size_t cap)
{
    char base[4300], real[4096];
    snprintf(base, sizeof base, "%s/base.yml", path);
    if (access(base, R_OK) != 0 || !realpath(path, real) || strlen(real) >= cap)
        return false;
    memcpy(buf, real, strlen(real) + 1);
    return true;
}

const char *mx_config_home(char *buf, size_t cap)
{
    static const char *const near[] = {"../../configs", "../share/maxc/configs"};
    static const char *const far[] = {"/usr/local/share/maxc/configs", "/usr/share/maxc/configs"};
    const char *given = getenv("MAXC_CONFIGS");
    if (given && *given) {
        snprintf(buf, cap, "%s", given);
        return buf;
    }
    char program[4096], path[4200];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    char *slash = strrchr(program, '/');
    for (size_t i = 0; slash && i < sizeof near / sizeof *near; i++) {
        snprintf(path, sizeof path, "%.*s/%s", (int)(slash - program), program, near[i]);
        if (is_home(path, buf, cap))
            return buf;
    }
    for (size_t i = 0; i < sizeof far / sizeof *far; i++)
        if (is_home(far[i], buf, cap))
            return buf;
    *buf = 0;
    return buf;
}

const char *mx_config_find(mx_arena *a, const char *home, const char *file)
{
    static const char *const folder[] = {"", "recipes/"};
    if (access(file, F_OK) == 0 || file[0] == '/' || !home)
        return file;
    const char *name = mx_starts_with(file, "configs/") ? file + strlen("configs/") : file;
    for (size_t i = 0; i < sizeof folder / sizeof *folder; i++) {
        const char *path = mx_arena_printf(a, "%s/%s%s", home, folder[i], name);
        if (access(path, F_OK) == 0)
            return path;
    }
    return file;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_folder(mx_arena *a, const char *home, const char *folder, char ***names)
{
    enum { MAX_NAMES = 1000 };
    *names = MX_NEW_N(a, char *, MAX_NAMES);
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", home, folder);
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *e; d && n < MAX_NAMES && (e = readdir(d));)
        if (mx_ends_with(e->d_name, ".yml") && e->d_name[0] != '.')
            (*names)[n++] = mx_arena_printf(a, "%.*s", (int)strlen(e->d_name) - 4, e->d_name);
    if (d)
        closedir(d);
    qsort(*names, (size_t)n, sizeof **names, by_text);
    return n;
}

int mx_config_models(mx_arena *a, const char *home, char ***names)
{
    return list_folder(a, home, "models", names);
}

int mx_config_recipes(mx_arena *a, const char *home, char ***names)
{
    return list_folder(a, home, "recipes", names);
}

/* folder.c - see folder.h. */
#include "data/load/folder.h"

#include "base/str.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH = 8 };

typedef struct {
    mx_arena *a;
    const char *root;
    char **v;
    int n, cap;
} walk;

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static mx_status add_below(walk *w, const char *below, int depth)
{
    const char *dir = *below ? mx_arena_printf(w->a, "%s/%s", w->root, below) : w->root;
    DIR *d = opendir(dir);
    mx_status st = MX_OK;
    if (!d)
        return mx_fail_errno(MX_INPUT, "%s: this folder cannot be read", dir);
    for (struct dirent *e; !st && (e = readdir(d));) {
        struct stat s;
        if (e->d_name[0] == '.' || stat(mx_arena_printf(w->a, "%s/%s", dir, e->d_name), &s) != 0)
            continue;
        char *name = mx_arena_printf(w->a, "%s%s%s", below, *below ? "/" : "", e->d_name);
        if (S_ISDIR(s.st_mode) && depth < DEPTH)
            st = add_below(w, name, depth + 1);
        if (!S_ISREG(s.st_mode))
            continue;
        MX_GROW(w->v, w->n, w->cap);
        w->v[w->n++] = name;
    }
    closedir(d);
    return st;
}

mx_status mx_folder_files(const char *dir, mx_arena *a, char ***names, int *n)
{
    walk w = {.a = a, .root = dir};
    mx_status st = add_below(&w, "", 0);
    if (w.n)
        qsort(w.v, (size_t)w.n, sizeof *w.v, by_name);
    *names = w.n ? mx_arena_copy(a, w.v, sizeof *w.v * (size_t)w.n) : NULL;
    *n = w.n;
    mx_free(w.v);
    return st;
}

bool mx_is_dataset_card(const char *path)
{
    static const char *const cards[] = {"dataset_info.json", "dataset_infos.json",
                                        "dataset_dict.json", "features.json", "state.json",
                                        "config.json", "_SUCCESS"};
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        if (strcmp(base, cards[i]) == 0)
            return true;
    return mx_starts_with(base, "README") || mx_starts_with(base, "LICENSE") ||
           mx_ends_with(base, ".md") || mx_ends_with(base, ".labels.txt");
}

const char *mx_folder_latest_version(const char *dir, mx_arena *a)
{
    DIR *d = opendir(dir);
    const char *best = NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        int major, minor, patch, end = 0;
        if (sscanf(e->d_name, "%d.%d.%d%n", &major, &minor, &patch, &end) != 3 || e->d_name[end])
            continue;
        if (!best || strverscmp(e->d_name, best) > 0)
            best = mx_arena_strdup(a, e->d_name);
    }
    if (d)
        closedir(d);
    return best ? mx_arena_printf(a, "%s/%s", dir, best) : NULL;
}

/* corpus.h - the files of a fuzz target's corpus, for tests that replay them. */
#ifndef MX_TESTS_FUZZ_CORPUS_H
#define MX_TESTS_FUZZ_CORPUS_H

#include "base/arena.h"
#include "base/file.h"

#include <dirent.h>
#include <string.h>

/* The bytes of a file, in memory of just that size: an overrun is seen. They may be changed. */
typedef void corpus_fn(void *ctx, uint8_t *p, size_t n);

/* Calls `each` for every file of the folder; how many there were. */
static inline int corpus_each(const char *folder, corpus_fn *each, void *ctx)
{
    DIR *d = opendir(folder);
    int files = 0;
    MX_CHECK(d != NULL, "%s is missing", folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        mx_arena a = {0};
        char *text = NULL;
        size_t n = 0;
        const char *path = mx_arena_printf(&a, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') {
            MX_CHECK_OK(mx_file_read(&a, path, 1 << 26, &text, &n));
            uint8_t *p = mx_realloc(NULL, n ? n : 1);
            memcpy(p, text, n);
            each(ctx, p, n);
            mx_free(p);
            files++;
        }
        mx_arena_fini(&a);
    }
    if (d)
        closedir(d);
    return files;
}

#endif

/* test_dir.c - scratch directories under $TMPDIR or /tmp. */
#include "test_dir.h"

#include "../test.h"
#include "base/arena.h"
#include "base/io.h"
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void test_dir_make(test_dir *d)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(d->path, sizeof d->path, "%s/maxc-test-XXXXXX", tmp ? tmp : "/tmp");
    MX_ASSERT(mkdtemp(d->path), "cannot create %s", d->path);
}

void test_dir_remove(test_dir *d)
{
    MX_CHECK_OK(mx_io_remove_tree(NULL, d->path));
}

const char *test_dir_file(const test_dir *d, const char *name)
{
    static char buf[64][1024];
    static int next;
    char *p = buf[next++ % 64];
    snprintf(p, sizeof buf[0], "%s/%s", d->path, name);
    return p;
}

void test_put(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    MX_ASSERT(f, "cannot write %s", path);
    MX_ASSERT(fwrite(data, 1, n, f) == n);
    fclose(f);
}

void test_put_text(const char *path, const char *text)
{
    test_put(path, text, strlen(text));
}

void test_put_st(const char *path, const char *header, size_t data_bytes)
{
    uint64_t n = strlen(header);
    FILE *f = fopen(path, "wb");
    MX_ASSERT(f, "cannot write %s", path);
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, n, f);
    fclose(f);
    MX_ASSERT(truncate(path, (off_t)(8 + n + data_bytes)) == 0);
}

char *test_get(const char *path, size_t *n)
{
    char *text = NULL;
    MX_CHECK_OK(mx_io_read_file(NULL, path, (size_t)1 << 30, &text, n));
    return text;
}

bool test_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

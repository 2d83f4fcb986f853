/* files.c - see files.h. */
#include "files.h"

#include "../test.h"
#include "base/arena.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64];
static pid_t owner;

static void remove_dir(void)
{
    char command[128];
    if (getpid() != owner)
        return;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0)
        fprintf(stderr, "%s was left behind\n", dir);
}

const char *temp_path(const char *name)
{
    static char paths[4][512];
    static int next;
    if (!dir[0] || owner != getpid()) {
        snprintf(dir, sizeof dir, "/tmp/maxc-data-XXXXXX");
        if (!mkdtemp(dir))
            abort();
        owner = getpid();
        atexit(remove_dir);
    }
    char *p = paths[next++ % 4];
    snprintf(p, 512, "%s/%s", dir, name);
    return p;
}

const char *temp_file(const char *name, const void *data, size_t n)
{
    const char *path = temp_path(name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0)
        abort();
    return path;
}

const char *temp_text(const char *name, const char *text)
{
    return temp_file(name, text, strlen(text));
}

const char *fixture(const char *name)
{
    static char paths[4][512];
    static int next;
    char *p = paths[next++ % 4];
    snprintf(p, 512, "tests/data/fixtures/%s", name);
    return p;
}

char *read_whole(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        printf("%s is missing\n", path);
        exit(1);
    }
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = mx_realloc(NULL, *n + 1);
    if (fread(p, 1, *n, f) != *n)
        abort();
    p[*n] = 0;
    fclose(f);
    return p;
}

int replay_corpus(const char *folder, size_t places, int (*target)(const uint8_t *p, size_t n))
{
    DIR *d = opendir(folder);
    int files = 0;
    MX_CHECK(d != NULL, "%s is missing", folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        size_t n;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s%s", folder, e->d_name);
        char *p = read_whole(path, &n);
        target((const uint8_t *)p, n);
        for (size_t i = 1; i < n; i += 1 + n / places) {
            char old = p[i];
            p[i] = (char)(old ^ (1 << i % 8));
            target((const uint8_t *)p, n);
            p[i] = (char)0xff;
            target((const uint8_t *)p, n);
            p[i] = old;
            target((const uint8_t *)p, i);
        }
        mx_free(p);
        files++;
    }
    if (d)
        closedir(d);
    return files;
}

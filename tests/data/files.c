/* files.c - see files.h. */
#include "files.h"

#include "../test.h"

#include "../fuzz/corpus.h"
#include "base/arena.h"
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

typedef struct {
    size_t places;
    int (*target)(const uint8_t *p, size_t n);
} replay;

static void damage(void *ctx, uint8_t *p, size_t n)
{
    const replay *r = ctx;
    r->target(p, n);
    for (size_t i = 1; i < n; i += 1 + n / r->places) {
        uint8_t old = p[i];
        p[i] = (uint8_t)(old ^ (1 << i % 8));
        r->target(p, n);
        p[i] = 0xff;
        r->target(p, n);
        p[i] = old;
        r->target(p, i);
    }
}

int replay_corpus(const char *folder, size_t places, int (*target)(const uint8_t *p, size_t n))
{
    return corpus_each(folder, damage, &(replay){places, target});
}

/* power_test.c - the power fails at every call of a save, and the disk forgets what it may forget.
 *
 * An mx_io that does everything for real and writes down what is not durable yet: bytes of a file
 * since its last fsync, and names made, changed or removed in a directory since that directory's
 * last fsync. From call N on nothing is done any more. Then each byte range and name that was not
 * durable is, by a throw of the dice, lost: files are cut, zeroed or garbled; names go back to what
 * they were. Whatever comes out, a whole checkpoint must be found, holding what its step says; and
 * a save that had been reported done must be the one.
 */
#include "../test.h"
#include "base/arena.h"
#include "base/str.h"
#include "faulty_io.h"
#include "small_state.h"
#include "store/checkpoint_read.h"
#include "test_dir.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_OPS = 400, MAX_PATH_BYTES = 300 };

typedef enum { MADE, RENAMED, REMOVED, WRITTEN } change;

typedef struct {
    change what;
    char path[MAX_PATH_BYTES], from[MAX_PATH_BYTES]; /* from: RENAMED; the kept copy: REMOVED */
    bool durable;
} disk_op;

typedef struct {
    int calls, stop_at; /* 0: never */
    disk_op ops[MAX_OPS];
    int n_ops;
    char names[256][MAX_PATH_BYTES]; /* of descriptors */
    const char *attic;               /* where removed files are kept */
    unsigned seed;
} disk;

static bool is_off(disk *d)
{
    errno = EIO;
    return ++d->calls >= d->stop_at && d->stop_at;
}

static void note(disk *d, change what, const char *path, const char *from)
{
    MX_ASSERT(d->n_ops < MAX_OPS, "%d operations", d->n_ops);
    disk_op *op = &d->ops[d->n_ops++];
    *op = (disk_op){.what = what};
    MX_ASSERT(strlen(path) < sizeof op->path && strlen(from) < sizeof op->from, "%s", path);
    memmove(op->path, path, strlen(path) + 1);
    memmove(op->from, from, strlen(from) + 1);
}

static bool is_in(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/' && !strchr(path + n + 1, '/');
}

static int d_open(void *ctx, const char *path, int flags, unsigned mode)
{
    disk *d = ctx;
    if (is_off(d))
        return -1;
    int fd = open(path, flags, (mode_t)mode);
    if (fd >= 0 && fd < 256)
        snprintf(d->names[fd], sizeof d->names[fd], "%s", path);
    if (fd >= 0 && flags & O_CREAT)
        note(d, MADE, path, "");
    return fd;
}

static ssize_t d_pread(void *ctx, int fd, void *buf, size_t n, off_t at)
{
    return is_off(ctx) ? -1 : pread(fd, buf, n, at);
}

static ssize_t d_write(void *ctx, int fd, const void *buf, size_t n)
{
    disk *d = ctx;
    if (is_off(d))
        return -1;
    note(d, WRITTEN, d->names[fd], "");
    return write(fd, buf, n);
}

static int d_none(void *ctx, int fd, off_t bytes)
{
    (void)fd, (void)bytes;
    return is_off(ctx) ? -1 : 0;
}

static int d_flush(void *ctx, int fd, off_t at, off_t n)
{
    (void)ctx, (void)fd, (void)at, (void)n;
    return 0;
}

/* A file's bytes, or the names in a directory. Names of the file itself stay as they are. */
static int d_fsync(void *ctx, int fd)
{
    disk *d = ctx;
    if (is_off(d))
        return -1;
    for (int i = 0; i < d->n_ops; i++) {
        disk_op *op = &d->ops[i];
        op->durable |= op->what == WRITTEN ? strcmp(op->path, d->names[fd]) == 0
                                           : is_in(op->path, d->names[fd]);
    }
    return 0;
}

static int d_close(void *ctx, int fd)
{
    bool off = is_off(ctx);
    close(fd);
    return off ? -1 : 0;
}

/* A path below `from`, or (for bytes) `from` itself, goes by its new name. */
static void follow(char path[MAX_PATH_BYTES], const char *from, const char *to, bool itself)
{
    size_t n = strlen(from);
    if (strncmp(path, from, n) || !(path[n] == '/' || (itself && !path[n])))
        return;
    char moved[2 * MAX_PATH_BYTES];
    snprintf(moved, sizeof moved, "%s%s", to, path + n);
    snprintf(path, MAX_PATH_BYTES, "%.299s", moved);
}

static int d_rename(void *ctx, const char *from, const char *to)
{
    disk *d = ctx;
    if (is_off(d) || rename(from, to))
        return -1;
    note(d, RENAMED, to, from);
    for (int i = 0; i < d->n_ops - 1; i++) {
        follow(d->ops[i].path, from, to, d->ops[i].what == WRITTEN);
        follow(d->ops[i].from, from, to, false);
    }
    return 0;
}

static int d_unlink(void *ctx, const char *path)
{
    disk *d = ctx;
    char kept[MAX_PATH_BYTES];
    if (is_off(d))
        return -1;
    snprintf(kept, sizeof kept, "%s/%d", d->attic, d->calls);
    if (link(path, kept) == 0)
        note(d, REMOVED, path, kept);
    return unlink(path);
}

static int d_mkdir(void *ctx, const char *path, unsigned mode)
{
    disk *d = ctx;
    if (is_off(d) || mkdir(path, (mode_t)mode))
        return -1;
    note(d, MADE, path, "");
    return 0;
}

static int d_rmdir(void *ctx, const char *path)
{
    return is_off(ctx) ? -1 : rmdir(path);
}

static int d_free_bytes(void *ctx, const char *path, uint64_t *out)
{
    (void)path;
    *out = UINT64_MAX;
    return is_off(ctx) ? -1 : 0;
}

static void damage_file(disk *d, const char *path)
{
    struct stat s;
    if (stat(path, &s) || !S_ISREG(s.st_mode) || !s.st_size)
        return;
    off_t at = rand_r(&d->seed) % s.st_size;
    int how = rand_r(&d->seed) % 4;
    char bytes[64];
    memset(bytes, how == 1 ? 0 : rand_r(&d->seed), sizeof bytes);
    if (how == 0 && truncate(path, at))
        return;
    int fd = open(path, O_WRONLY);
    if (fd >= 0 && (how == 1 || how == 2))
        (void)!pwrite(fd, bytes, (size_t)(s.st_size - at < 64 ? s.st_size - at : 64), at);
    if (fd >= 0)
        close(fd);
}

/* Loses what was not durable; later changes first, as each was made upon the earlier ones. */
static void lose_power(disk *d)
{
    for (int i = d->n_ops - 1; i >= 0; i--) {
        disk_op *op = &d->ops[i];
        if (op->durable || rand_r(&d->seed) % 2)
            continue;
        struct stat s;
        if (op->what == WRITTEN)
            damage_file(d, op->path);
        else if (op->what == RENAMED)
            (void)!rename(op->path, op->from);
        else if (op->what == REMOVED)
            (void)!link(op->from, op->path);
        else if (lstat(op->path, &s) == 0 && S_ISDIR(s.st_mode))
            mx_status_free(mx_io_remove_tree(NULL, op->path));
        else
            (void)unlink(op->path);
    }
}

static small_state state;

/* Step 1 is there; step 2 is saved over a disk that stops at call `stop_at`. True: reported done.
 */
static bool save_until(disk *d, const char *run, int keep_last)
{
    mx_io io = {.ctx = d,
                .open = d_open,
                .pread = d_pread,
                .write = d_write,
                .allocate = d_none,
                .flush = d_flush,
                .fsync = d_fsync,
                .close = d_close,
                .rename = d_rename,
                .unlink = d_unlink,
                .mkdir = d_mkdir,
                .rmdir = d_rmdir,
                .free_bytes = d_free_bytes};
    mx_ckpt *c = NULL;
    mx_ckpt_opts o = {.run_dir = run,
                      .run_id = "r",
                      .io = &io,
                      .n_threads = 1,
                      .synchronous = true,
                      .retention = {.keep_last = keep_last}};
    mx_status st = mx_ckpt_new(&c, &o);
    if (!st) {
        small_state_fill(&state, 16, 2);
        st = mx_ckpt_save(c, &state.request);
    }
    if (!st)
        st = mx_ckpt_wait(c);
    bool done = !st;
    mx_status_free(st);
    mx_ckpt_free(c);
    return done;
}

static void one_loss(int stop_at, int round, int keep_last, int *n_calls)
{
    test_dir t;
    test_dir_make(&t);
    MX_CHECK(mkdir(test_dir_file(&t, "run"), 0755) == 0 &&
             mkdir(test_dir_file(&t, "attic"), 0755) == 0);
    mx_ckpt *c;
    const char *run = test_dir_file(&t, "run"), *root = test_dir_file(&t, "run/checkpoints");
    static faulty_io quick; /* does not wait for the disk: step 1 counts as durable */
    mx_io io = faulty_io_make(&quick);
    mx_ckpt_opts o = {
        .run_dir = run, .run_id = "r", .n_threads = 1, .synchronous = true, .io = &io};
    MX_CHECK_OK(mx_ckpt_new(&c, &o));
    small_state_fill(&state, 16, 1);
    MX_CHECK_OK(mx_ckpt_save(c, &state.request));
    mx_ckpt_free(c);

    static disk d;
    d = (disk){.stop_at = stop_at,
               .attic = test_dir_file(&t, "attic"),
               .seed = (unsigned)(stop_at * 1000 + round)};
    bool done = save_until(&d, run, keep_last);
    *n_calls = d.calls;
    lose_power(&d);

    mx_arena a = {0};
    mx_ckpt_entry e = {0};
    MX_CHECK_OK(mx_ckpt_newest(root, MX_CHECK_HASHES, 1, &a, &e, NULL));
    MX_CHECK(e.path && (e.step == 2 || (e.step == 1 && !done)),
             "power lost at call %d, round %d: %s, found step %d", stop_at, round,
             done ? "saved" : "not saved", e.path ? (int)e.step : -1);
    if (e.path)
        MX_CHECK(small_state_matches(&state, 16, e.path, e.step), "call %d, round %d", stop_at,
                 round);
    mx_arena_fini(&a);
    test_dir_remove(&t);
}

MX_TEST(checkpoint_power_loss)
{
    int n_calls = 0, n_losses = 0;
    const char *more = getenv("MX_POWER_ROUNDS");
    int64_t rounds = 2;
    MX_CHECK(!more || mx_parse_i64(more, &rounds));
    for (int keep_last = 1; keep_last <= 2; keep_last++)
        for (int stop_at = 0; stop_at == 0 || stop_at <= n_calls; stop_at++)
            for (int r = 0; r < rounds; r++, n_losses++) {
                int calls;
                one_loss(stop_at, r, keep_last, &calls);
                if (stop_at == 0)
                    n_calls = calls;
            }
    MX_CHECK(n_calls > 40);
    printf("    %d losses of power\n", n_losses);
}

/* faulty_io.c - the table of calls, each counted and perhaps refused. */
#include "faulty_io.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fcntl.h>

/* True: fail now, errno is set. */
static bool fails(faulty_io *f, const char *what, const char *a, const char *b)
{
    pthread_mutex_lock(&f->lock);
    f->calls++;
    if (f->log && f->n_log < f->max_log)
        snprintf(f->log[f->n_log++], sizeof *f->log, "%s %s%s%s", what, a, *b ? " " : "", b);
    bool now = f->fail_at && (f->calls == f->fail_at || (f->for_ever && f->calls > f->fail_at));
    f->failed += now;
    pthread_mutex_unlock(&f->lock);
    if (now && f->error)
        errno = f->error;
    return now;
}

static const char *name_of(faulty_io *f, int fd)
{
    return fd >= 0 && fd < 64 ? f->names[fd] : "?";
}

static int f_open(void *ctx, const char *path, int flags, unsigned mode)
{
    faulty_io *f = ctx;
    if (fails(f, flags & O_CREAT ? "create" : "open", path, "") && f->error)
        return -1;
    int fd = open(path, flags, (mode_t)mode);
    if (fd >= 0 && fd < 64)
        snprintf(f->names[fd], sizeof f->names[fd], "%s", path);
    return fd;
}

static ssize_t f_pread(void *ctx, int fd, void *buf, size_t n, off_t at)
{
    faulty_io *f = ctx;
    if (fails(f, "pread", name_of(f, fd), "")) {
        if (f->error)
            return -1;
        n = n > 1 ? 1 : n;
    }
    return pread(fd, buf, n, at);
}

static ssize_t f_write(void *ctx, int fd, const void *buf, size_t n)
{
    faulty_io *f = ctx;
    if (fails(f, "write", name_of(f, fd), "")) {
        if (f->error)
            return -1;
        n = n > 1 ? 1 : n;
    }
    return write(fd, buf, n);
}

static int f_allocate(void *ctx, int fd, off_t bytes)
{
    faulty_io *f = ctx;
    if (fails(f, "allocate", name_of(f, fd), "") && f->error)
        return -1;
    return fallocate(fd, 0, 0, bytes);
}

static int f_flush(void *ctx, int fd, off_t at, off_t n)
{
    (void)ctx, (void)fd, (void)at, (void)n;
    return 0;
}

static int f_fsync(void *ctx, int fd)
{
    faulty_io *f = ctx;
    return fails(f, "fsync", name_of(f, fd), "") && f->error ? -1 : 0;
}

static int f_close(void *ctx, int fd)
{
    faulty_io *f = ctx;
    bool bad = fails(f, "close", name_of(f, fd), "") && f->error;
    int e = errno;
    close(fd); /* as on Linux: a close that fails has closed */
    errno = e;
    return bad ? -1 : 0;
}

static int f_rename(void *ctx, const char *from, const char *to)
{
    return fails(ctx, "rename", from, to) && ((faulty_io *)ctx)->error ? -1 : rename(from, to);
}

static int f_unlink(void *ctx, const char *path)
{
    return fails(ctx, "unlink", path, "") && ((faulty_io *)ctx)->error ? -1 : unlink(path);
}

static int f_mkdir(void *ctx, const char *path, unsigned mode)
{
    return fails(ctx, "mkdir", path, "") && ((faulty_io *)ctx)->error ? -1
                                                                      : mkdir(path, (mode_t)mode);
}

static int f_rmdir(void *ctx, const char *path)
{
    return fails(ctx, "rmdir", path, "") && ((faulty_io *)ctx)->error ? -1 : rmdir(path);
}

static int f_free_bytes(void *ctx, const char *path, uint64_t *out)
{
    faulty_io *f = ctx;
    if (fails(f, "free_bytes", path, "") && f->error)
        return -1;
    *out = f->room ? f->room : UINT64_MAX;
    return 0;
}

mx_io faulty_io_make(faulty_io *f)
{
    pthread_mutex_init(&f->lock, NULL);
    return (mx_io){.ctx = f,
                   .open = f_open,
                   .pread = f_pread,
                   .write = f_write,
                   .allocate = f_allocate,
                   .flush = f_flush,
                   .fsync = f_fsync,
                   .close = f_close,
                   .rename = f_rename,
                   .unlink = f_unlink,
                   .mkdir = f_mkdir,
                   .rmdir = f_rmdir,
                   .free_bytes = f_free_bytes};
}

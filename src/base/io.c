/* io.c - the system's own calls behind mx_io, and the loops that make them whole.
 *
 * A file becomes durable in four steps: write, fsync(file), rename, fsync(directory). A failed
 * fsync means the data may be gone from the page cache although a second fsync would succeed, so
 * nothing here ever repeats one: the caller writes the file again under a new inode.
 */
#include "base/io.h"

#include "base/arena.h"
#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MAX_STALLS = 1000, MAX_TREE_DEPTH = 16 };
static const size_t MAX_CALL_BYTES = (size_t)1
                                     << 30; /* the kernel's own limit is just under 2 GiB */

static int sys_open(void *ctx, const char *path, int flags, unsigned mode)
{
    (void)ctx;
    return open(path, flags, (mode_t)mode);
}

static ssize_t sys_pread(void *ctx, int fd, void *buf, size_t n, off_t at)
{
    (void)ctx;
    return pread(fd, buf, n, at);
}

static ssize_t sys_write(void *ctx, int fd, const void *buf, size_t n)
{
    (void)ctx;
    return write(fd, buf, n);
}

static int sys_allocate(void *ctx, int fd, off_t bytes)
{
    (void)ctx;
    return fallocate(fd, 0, 0, bytes);
}

static int sys_flush(void *ctx, int fd, off_t at, off_t n)
{
    (void)ctx;
    return sync_file_range(fd, at, n, SYNC_FILE_RANGE_WRITE);
}

static int sys_fsync(void *ctx, int fd)
{
    (void)ctx;
    return fsync(fd);
}

static int sys_close(void *ctx, int fd)
{
    (void)ctx;
    return close(fd);
}

static int sys_rename(void *ctx, const char *from, const char *to)
{
    (void)ctx;
    return rename(from, to);
}

static int sys_unlink(void *ctx, const char *path)
{
    (void)ctx;
    return unlink(path);
}

static int sys_mkdir(void *ctx, const char *path, unsigned mode)
{
    (void)ctx;
    return mkdir(path, (mode_t)mode);
}

static int sys_rmdir(void *ctx, const char *path)
{
    (void)ctx;
    return rmdir(path);
}

static int sys_free_bytes(void *ctx, const char *path, uint64_t *out)
{
    (void)ctx;
    struct statvfs v;
    if (statvfs(path, &v))
        return -1;
    *out = (uint64_t)v.f_bavail * v.f_frsize;
    return 0;
}

const mx_io mx_io_system = {
    .open = sys_open,
    .pread = sys_pread,
    .write = sys_write,
    .allocate = sys_allocate,
    .flush = sys_flush,
    .fsync = sys_fsync,
    .close = sys_close,
    .rename = sys_rename,
    .unlink = sys_unlink,
    .mkdir = sys_mkdir,
    .rmdir = sys_rmdir,
    .free_bytes = sys_free_bytes,
};

static const mx_io *or_system(const mx_io *io)
{
    return io ? io : &mx_io_system;
}

mx_status mx_io_write_all(const mx_io *io, int fd, const void *buf, size_t n, const char *path)
{
    io = or_system(io);
    const char *p = buf;
    int stalls = 0;
    while (n) {
        ssize_t w = io->write(io->ctx, fd, p, n < MAX_CALL_BYTES ? n : MAX_CALL_BYTES);
        if (w > 0) {
            p += w;
            n -= (size_t)w;
            stalls = 0;
            continue;
        }
        if (w == 0)
            errno = EIO;
        if ((w < 0 && errno != EINTR && errno != EAGAIN) || ++stalls > MAX_STALLS)
            return mx_fail_errno(MX_DEVICE, "%s: cannot write %zu more bytes", path, n);
        if (stalls > 16)
            usleep(100);
    }
    return MX_OK;
}

mx_status mx_io_read_at(const mx_io *io, int fd, void *buf, size_t n, uint64_t at, const char *path)
{
    io = or_system(io);
    char *p = buf;
    int stalls = 0;
    while (n) {
        size_t ask = n < MAX_CALL_BYTES ? n : MAX_CALL_BYTES;
        ssize_t r = io->pread(io->ctx, fd, p, ask, (off_t)at);
        if (r > 0) {
            p += r;
            n -= (size_t)r;
            at += (uint64_t)r;
            stalls = 0;
            continue;
        }
        if (r == 0)
            return mx_fail(MX_INPUT,
                           "%s: the file ends at byte %llu and %zu more bytes were "
                           "expected: it was truncated; copy or download it again",
                           path, (unsigned long long)at, n);
        if ((errno != EINTR && errno != EAGAIN) || ++stalls > MAX_STALLS)
            return mx_fail_errno(MX_DEVICE, "%s: cannot read %zu bytes at byte %llu", path, n,
                                 (unsigned long long)at);
    }
    return MX_OK;
}

mx_status mx_io_sync_dir(const mx_io *io, const char *dir)
{
    io = or_system(io);
    int fd = io->open(io->ctx, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return mx_fail_errno(MX_DEVICE, "%s: cannot open the directory to make it durable", dir);
    mx_status st = MX_OK;
    if (io->fsync(io->ctx, fd))
        st = mx_fail_errno(MX_DEVICE, "%s: cannot make the directory durable", dir);
    if (io->close(io->ctx, fd) && !st)
        st = mx_fail_errno(MX_DEVICE, "%s: closing the directory failed", dir);
    return st;
}

mx_status mx_io_write_file(const mx_io *io, const char *path, const void *data, size_t n)
{
    io = or_system(io);
    mx_str tmp = {0};
    mx_str_addf(&tmp, "%s.tmp", path);
    mx_status st = MX_OK;
    bool renamed = false;
    /* A leftover from a killed run is removed, not reused: its inode may have lost pages. */
    if (io->unlink(io->ctx, tmp.text) && errno != ENOENT) {
        st = mx_fail_errno(MX_DEVICE, "%s: cannot remove the leftover", tmp.text);
        mx_str_fini(&tmp);
        return st;
    }
    int fd = io->open(io->ctx, tmp.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
        st = mx_fail_errno(MX_DEVICE, "%s: cannot create", tmp.text);
        mx_str_fini(&tmp);
        return st;
    }
    MX_TRY_OUT(st, mx_io_write_all(io, fd, data, n, tmp.text));
    if (io->fsync(io->ctx, fd)) {
        st = mx_fail_errno(MX_DEVICE, "%s: fsync failed; the data may be lost", tmp.text);
        goto out;
    }
    int bad = io->close(io->ctx, fd);
    fd = -1;
    if (bad) {
        st = mx_fail_errno(MX_DEVICE, "%s: close failed; the data may be lost", tmp.text);
        goto out;
    }
    if (io->rename(io->ctx, tmp.text, path))
        st = mx_fail_errno(MX_DEVICE, "%s: cannot rename to %s", tmp.text, path);
    else
        renamed = true;
out:
    if (fd >= 0)
        io->close(io->ctx, fd);
    if (!renamed)
        io->unlink(io->ctx, tmp.text);
    mx_str_fini(&tmp);
    return st;
}

static mx_status write_into(const char *path, const void *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return mx_fail_errno(MX_DEVICE, "%s: cannot open for writing", path);
    mx_status st = mx_io_write_all(NULL, fd, data, n, path);
    if (close(fd) && !st)
        st = mx_fail_errno(MX_DEVICE, "%s: close failed, the data must be taken as lost", path);
    return st;
}

mx_status mx_io_write_output(const char *path, const void *data, size_t n)
{
    struct stat s;
    if (stat(path, &s))
        return mx_io_write_file(NULL, path, data, n);
    if (S_ISDIR(s.st_mode))
        return mx_fail(MX_DEVICE, "%s: expected the name of a file to write and found a directory",
                       path);
    if (!S_ISREG(s.st_mode))
        return write_into(path, data, n);
    char *there = realpath(path, NULL);
    mx_status st = mx_io_write_file(NULL, there ? there : path, data, n);
    free(there);
    return st;
}

mx_status mx_io_make_dir(const mx_io *io, const char *path)
{
    io = or_system(io);
    struct stat s;
    if (io->mkdir(io->ctx, path, 0755) == 0)
        return MX_OK;
    if (errno == EEXIST && stat(path, &s) == 0) {
        if (S_ISDIR(s.st_mode))
            return MX_OK;
        return mx_fail(MX_DEVICE, "%s: a directory is needed here and something else has this name",
                       path);
    }
    return mx_fail_errno(MX_DEVICE, "%s: cannot create the directory", path);
}

mx_status mx_io_open_read(const mx_io *io, const char *path, int *fd, uint64_t *size_bytes)
{
    io = or_system(io);
    *fd = io->open(io->ctx, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (*fd < 0) {
        if (errno == EMFILE)
            return mx_fail_errno(MX_DEVICE,
                                 "%s: cannot open; raise the limit with `ulimit -n 4096`", path);
        return mx_fail_errno(MX_INPUT, "%s: cannot open", path);
    }
    struct stat s;
    mx_status st = MX_OK;
    if (fstat(*fd, &s))
        st = mx_fail_errno(MX_DEVICE, "%s: cannot stat", path);
    else if (!S_ISREG(s.st_mode))
        st = mx_fail(MX_INPUT, "%s: expected a regular file and found a %s", path,
                     S_ISDIR(s.st_mode) ? "directory" : "special file");
    if (st) {
        io->close(io->ctx, *fd);
        *fd = -1;
        return st;
    }
    *size_bytes = (uint64_t)s.st_size;
    return MX_OK;
}

mx_status mx_io_read_file(const mx_io *io, const char *path, size_t max_bytes, char **text,
                          size_t *n)
{
    io = or_system(io);
    int fd;
    uint64_t size = 0;
    *text = NULL;
    MX_TRY(mx_io_open_read(io, path, &fd, &size));
    mx_status st = MX_OK;
    if (size > max_bytes)
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: %llu bytes, and at most %zu are accepted here", path,
                               (unsigned long long)size, max_bytes));
    MX_TRY_OUT(st, mx_alloc((void **)text, (size_t)size + 1, path));
    MX_TRY_OUT(st, mx_io_read_at(io, fd, *text, (size_t)size, 0, path));
    (*text)[size] = 0;
    *n = (size_t)size;
out:
    io->close(io->ctx, fd);
    if (st) {
        mx_free(*text);
        *text = NULL;
    }
    return st;
}

static mx_status remove_level(const mx_io *io, const char *path, int depth)
{
    if (depth > MAX_TREE_DEPTH)
        return mx_fail(MX_DEVICE, "%s: more than %d directories deep; remove it by hand", path,
                       MAX_TREE_DEPTH);
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT ? MX_OK : mx_fail_errno(MX_DEVICE, "%s: cannot list", path);
    mx_status st = MX_OK;
    mx_str child = {0};
    for (struct dirent *e; !st && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        mx_str_clear(&child);
        mx_str_addf(&child, "%s/%s", path, e->d_name);
        struct stat s;
        if (lstat(child.text, &s) == 0 && S_ISDIR(s.st_mode))
            st = remove_level(io, child.text, depth + 1);
        else if (io->unlink(io->ctx, child.text) && errno != ENOENT)
            st = mx_fail_errno(MX_DEVICE, "%s: cannot remove", child.text);
    }
    mx_str_fini(&child);
    closedir(d);
    if (!st && io->rmdir(io->ctx, path) && errno != ENOENT)
        st = mx_fail_errno(MX_DEVICE, "%s: cannot remove the directory", path);
    return st;
}

mx_status mx_io_remove_tree(const mx_io *io, const char *path)
{
    return remove_level(or_system(io), path, 0);
}

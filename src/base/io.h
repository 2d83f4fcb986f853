/* io.h - the system calls through which anything durable is written.
 *
 * Writers (safetensors, checkpoints) never call write, fsync, rename... themselves: they go through
 * an mx_io, a table of the calls with one context pointer. The program uses mx_io_system; a test
 * hands in its own table and makes the n-th call fail with ENOSPC, EIO, EINTR or a short write.
 * Each call behaves as its namesake: -1 and errno on failure.
 *
 * The helpers below are the only loops over short and interrupted writes in the program.
 * An mx_io given as NULL means mx_io_system.
 */
#ifndef MX_BASE_IO_H
#define MX_BASE_IO_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct mx_io {
    void *ctx; /* borrowed; passed to every call */
    int (*open)(void *ctx, const char *path, int flags, unsigned mode);
    ssize_t (*pread)(void *ctx, int fd, void *buf, size_t n, off_t at);
    ssize_t (*write)(void *ctx, int fd, const void *buf, size_t n);
    int (*allocate)(void *ctx, int fd,
                    off_t bytes); /* reserves disk space; ENOTSUP is no failure */
    int (*flush)(void *ctx, int fd, off_t at, off_t n); /* starts writing pages out; a hint */
    int (*fsync)(void *ctx, int fd);
    int (*close)(void *ctx, int fd);
    int (*rename)(void *ctx, const char *from, const char *to);
    int (*unlink)(void *ctx, const char *path);
    int (*mkdir)(void *ctx, const char *path, unsigned mode);
    int (*rmdir)(void *ctx, const char *path);
    int (*free_bytes)(void *ctx, const char *path, uint64_t *out); /* left on the file system */
} mx_io;

extern const mx_io mx_io_system;

/* Writes all n bytes, through short writes and interruptions; errno is kept on failure. */
mx_status mx_io_write_all(const mx_io *io, int fd, const void *buf, size_t n,
                          const char *path) MX_MUST_USE;
/* Reads exactly n bytes at `at`; a file that ends earlier is an error that says so. */
mx_status mx_io_read_at(const mx_io *io, int fd, void *buf, size_t n, uint64_t at,
                        const char *path) MX_MUST_USE;
/* Opens a directory and fsyncs it, so that names created in it survive a power loss. */
mx_status mx_io_sync_dir(const mx_io *io, const char *dir) MX_MUST_USE;
/* path.tmp, fsync, rename to path. The caller syncs the directory. Nothing is left on failure. */
mx_status mx_io_write_file(const mx_io *io, const char *path, const void *data,
                           size_t n) MX_MUST_USE;
/* The same for a file that the user names: /dev/stdout, a pipe or a terminal is written to, not
 * replaced, and so is what a link leads to. */
mx_status mx_io_write_output(const char *path, const void *data, size_t n) MX_MUST_USE;
/* Like mkdir -p for the last component only; an existing directory is fine. */
mx_status mx_io_make_dir(const mx_io *io, const char *path) MX_MUST_USE;
/* Opens a regular file for reading: never blocks on a FIFO or device, refuses directories. */
mx_status mx_io_open_read(const mx_io *io, const char *path, int *fd,
                          uint64_t *size_bytes) MX_MUST_USE;
/* The whole file, at most max_bytes, with a NUL added after it. Release with mx_free. */
mx_status mx_io_read_file(const mx_io *io, const char *path, size_t max_bytes, char **text,
                          size_t *n) MX_MUST_USE;
/* Removes a directory and what is in it; symbolic links are removed, not followed. */
mx_status mx_io_remove_tree(const mx_io *io, const char *path) MX_MUST_USE;

#endif

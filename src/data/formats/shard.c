/* shard.c - pread with a window. A random read takes what was asked for and a little more; every
 * read that continues the last one takes twice as much, up to a mebibyte, so that readers in order
 * make few calls and readers at random do not read what they throw away. */
#include "data/formats/shard.h"

#include "base/arena.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANDOM_BYTES = 4096, SEQUENTIAL_BYTES = 1 << 20 };

static int64_t mtime_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

static mx_status open_fd(const char *path, int *fd, struct stat *st)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO must not hang us */
    if (*fd < 0)
        return mx_fail_errno(MX_INPUT, "%s: cannot open this data file", path);
    if (fstat(*fd, st) != 0 || !S_ISREG(st->st_mode)) {
        close(*fd);
        *fd = -1;
        return mx_fail(
            MX_INPUT, "%s: not a regular file; give a file or a pattern such as DIR/*.jsonl", path);
    }
    return MX_OK;
}

mx_status mx_shard_open(mx_shard_file *f, const char *path)
{
    struct stat st;
    *f = (mx_shard_file){.fd = -1};
    MX_TRY(open_fd(path, &f->fd, &st));
    f->path = mx_strdup(path);
    f->size_bytes = st.st_size;
    f->mtime_ns = mtime_ns(&st);
    return MX_OK;
}

static mx_status wake(mx_shard_file *f)
{
    struct stat st;
    if (f->fd >= 0)
        return MX_OK;
    MX_TRY(open_fd(f->path, &f->fd, &st));
    if (st.st_size != f->size_bytes || mtime_ns(&st) != f->mtime_ns)
        return mx_fail(MX_INPUT, "%s: the file changed while it was in use (%lld bytes, was %lld); "
                       "data files must not be rewritten during a run", f->path,
                       (long long)st.st_size, (long long)f->size_bytes);
    return MX_OK;
}

mx_status mx_shard_read(mx_shard_file *f, int64_t at, void *buf, size_t n)
{
    if (at < 0 || at > f->size_bytes || (uint64_t)n > (uint64_t)(f->size_bytes - at))
        return mx_fail(MX_INPUT,
                       "%s: %zu bytes are expected at offset %lld, but the file ends at %lld: "
                       "it is truncated or damaged; fetch it again",
                       f->path, n, (long long)at, (long long)f->size_bytes);
    MX_TRY(wake(f));
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(f->fd, (char *)buf + done, n - done, at + (int64_t)done);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return mx_fail_errno(MX_DEVICE, "%s: reading %zu bytes at offset %lld", f->path, n,
                                 (long long)at);
        if (k == 0)
            return mx_fail(MX_INPUT, "%s: the file became shorter while it was read (offset %lld); "
                           "data files must not be rewritten during a run", f->path,
                           (long long)(at + (int64_t)done));
        done += (size_t)k;
    }
    return MX_OK;
}

mx_status mx_shard_peek(mx_shard_file *f, int64_t at, size_t n, const uint8_t **p, size_t *got)
{
    if (at < 0 || at > f->size_bytes)
        return mx_fail(MX_INPUT, "%s: offset %lld is past the end (%lld): the file is damaged",
                       f->path, (long long)at, (long long)f->size_bytes);
    uint64_t left = (uint64_t)(f->size_bytes - at);
    size_t need = n < left ? n : (size_t)left;
    bool inside = at >= f->at && (uint64_t)(at - f->at) + need <= f->n;
    if (!inside) {
        bool follows = f->n && at >= f->at && (uint64_t)(at - f->at) <= f->n + RANDOM_BYTES;
        f->run = follows ? f->run + 1 : 0;
        size_t want = f->run < 8 ? (size_t)RANDOM_BYTES << f->run : SEQUENTIAL_BYTES;
        want = want < need ? need : want;
        want = want < left ? want : (size_t)left;
        if (want > f->cap) {
            mx_free(f->window);
            f->window = NULL;
            f->cap = 0;
            void *w;
            MX_TRY(mx_alloc(&w, want, f->path));
            f->window = w;
            f->cap = want;
        }
        f->n = 0;
        MX_TRY(mx_shard_read(f, at, f->window, want));
        f->at = at;
        f->n = want;
    }
    *p = f->window ? f->window + (at - f->at) : (const uint8_t *)"";
    *got = f->window ? f->n - (size_t)(at - f->at) : 0;
    return MX_OK;
}

void mx_shard_park(mx_shard_file *f)
{
    if (f->path && f->fd >= 0) {
        close(f->fd);
        f->fd = -1;
    }
}

void mx_shard_close(mx_shard_file *f)
{
    mx_shard_park(f);
    mx_free(f->path);
    mx_free(f->window);
    *f = (mx_shard_file){.fd = -1};
}

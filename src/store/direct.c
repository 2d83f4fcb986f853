/* direct.c - elements as they are stored, past the page cache where that pays.
 *
 * A checkpoint is read once. Through the page cache every byte is copied by the processor once more
 * and pushes something else out; a read with O_DIRECT goes from the disk to where it is wanted. It
 * takes whole blocks of the file, at addresses of whole blocks: the blocks around the elements are
 * read, and the elements lie somewhere inside.
 *
 * What lies in the page cache already (the file was just downloaded, or loaded by another program)
 * is taken from there, which is faster than any disk. mincore tells; a read that must not wait
 * (RWF_NOWAIT) would tell as well, but makes the system read ahead: everything would be read
 * twice. The mapping that mincore needs is never read through: a file cut short
 * meanwhile would be a signal and not an error.
 * A file system without O_DIRECT, and a read that comes back short or wrong, end in a plain read,
 * whose errors name the file and the byte.
 */
#include "base/io.h"
#include "store/safetensors.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

void mx_st_go_direct(mx_st_file *f)
{
    char path[64];
    MX_ASSERT(f->is_open, "a file that is not open");
    if (f->is_direct)
        return;
    /* The same file again, whatever its path leads to by now. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", f->fd);
    f->direct_fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    f->is_direct = f->direct_fd >= 0;
}

static bool is_cached(int fd, uint64_t at, size_t n)
{
    enum { MOST = 8192 }; /* pages */
    unsigned char in[MOST];
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = at / page * page;
    size_t bytes = (size_t)(at + n - begin), pages = (bytes + (size_t)page - 1) / (size_t)page;
    void *map = pages <= MOST ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)begin)
                              : MAP_FAILED;
    if (map == MAP_FAILED)
        return false;
    bool all = mincore(map, bytes, in) == 0;
    for (size_t i = 0; i < pages && all; i++)
        all = in[i] & 1;
    munmap(map, bytes);
    return all;
}

static bool past_cache(int fd, void *room, size_t n, uint64_t at)
{
    uint64_t begin = at / MX_ST_BLOCK * MX_ST_BLOCK;
    uint64_t end = (at + n + MX_ST_BLOCK - 1) / MX_ST_BLOCK * MX_ST_BLOCK;
    ssize_t got = pread(fd, room, (size_t)(end - begin), (off_t)begin);
    return got >= 0 && begin + (uint64_t)got >= at + n; /* the file may end inside a block */
}

mx_status mx_st_fetch(const mx_st_tensor *t, int64_t first, int64_t count, void *room,
                      const void **out)
{
    const mx_st_file *f = t->file;
    MX_ASSERT(f->is_open && first >= 0 && count >= 0 && first <= t->n && count <= t->n - first,
              "%s: elements %" PRId64 "+%" PRId64 " of %" PRId64, t->name, first, count, t->n);
    int64_t size = mx_st_dtype_bytes(t->dtype);
    uint64_t at = t->at + (uint64_t)(first * size);
    size_t n = (size_t)(count * size), inside = (size_t)(at % MX_ST_BLOCK);
    /* Elements across the boundaries of their size would lie so in memory, too. */
    bool direct = f->is_direct && n && inside % (size_t)size == 0 && !is_cached(f->fd, at, n);
    *out = room;
    if (!direct || !past_cache(f->direct_fd, room, n, at))
        return mx_io_read_at(NULL, f->fd, room, n, at, f->path);
    *out = (const char *)room + inside;
    return MX_OK;
}

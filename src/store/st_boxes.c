/* st_boxes.c - one safetensors file, written by many ranks: each puts its parts of the tensors
 * where they belong, and none has a whole tensor.
 *
 *     begin   one rank: path.tmp with its header and its full size
 *     put     every rank: its parts; of ranks that have the same part the first
 *     end     one rank: the digests, by reading the file back, and the rename
 *
 * All ranks must be done with one before any begins the next.
 */
#include "store/st_write_impl.h"

#include "base/str.h"
#include "ir/placement.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20 };

typedef struct {
    mx_arena arena;
    mx_str header;
    mx_st_layout l;
    const mx_io *io;
    const mx_st_writer *w;
    const char *path;
} box_file;

static mx_status describe(box_file *f, const char *path, const mx_st_file_of *of,
                          const mx_st_writer *w)
{
    *f = (box_file){.l = {.t = of->tensors, .n = of->n, .digests = of->digests},
                    .io = w->io ? w->io : &mx_io_system, .w = w};
    f->path = mx_arena_printf(&f->arena, "%s.tmp", path);
    mx_st_layout_plan(&f->arena, &f->l);
    f->l.image = NULL; /* the same bytes on every rank, wherever its data lies */
    return mx_st_layout_header(path, &f->l, w, &f->header);
}

static void forget(box_file *f)
{
    mx_str_fini(&f->header);
    mx_arena_fini(&f->arena);
}

static mx_status close_durably(const box_file *f, int fd, mx_status st)
{
    if (!st && f->io->fsync(f->io->ctx, fd))
        st = mx_fail_errno(MX_DEVICE, "%s: fsync failed; its data may be lost", f->path);
    if (f->io->close(f->io->ctx, fd) && !st)
        st = mx_fail_errno(MX_DEVICE, "%s: close failed; its data may be lost", f->path);
    return st;
}

mx_status mx_st_boxes_begin(const char *path, const mx_st_file_of *of, const mx_st_writer *w)
{
    box_file f;
    mx_status st = describe(&f, path, of, w);
    if (!st) {
        off_t size = (off_t)(f.header.len + f.l.body_bytes);
        int fd = f.io->open(f.io->ctx, f.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd < 0)
            st = mx_fail_errno(MX_DEVICE, "%s: cannot create", f.path);
        else if (f.io->allocate(f.io->ctx, fd, size) &&
                 (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO))
            st = mx_fail_errno(MX_DEVICE, "%s: cannot reserve %.1f MiB", f.path,
                               (double)size / (1 << 20));
        else if (ftruncate(fd, size))
            st = mx_fail_errno(MX_DEVICE, "%s: cannot be given %.1f MiB", f.path,
                               (double)size / (1 << 20));
        if (fd >= 0 && !st)
            st = mx_io_write_all(f.io, fd, f.header.text, f.header.len, f.path);
        if (fd >= 0)
            st = close_durably(&f, fd, st);
    }
    forget(&f);
    return st;
}

/* Bytes [from, from + n) of what this rank has, to `at` of the file. */
static mx_status put_bytes(const box_file *f, int fd, const mx_st_source *s, uint64_t from,
                           uint64_t n, uint64_t at)
{
    char piece[1 << 14];
    if (lseek(fd, (off_t)at, SEEK_SET) < 0)
        return mx_fail_errno(MX_DEVICE, "%s: cannot go to byte %llu", f->path,
                             (unsigned long long)at);
    if (s->data)
        return mx_io_write_all(f->io, fd, (const char *)s->data + from, (size_t)n, f->path);
    for (uint64_t i = 0; i < n; i += sizeof piece) {
        size_t k = n - i < sizeof piece ? (size_t)(n - i) : sizeof piece;
        MX_TRY(f->w->fetch(f->w->fetch_ctx, s, from + i, piece, k));
        MX_TRY(mx_io_write_all(f->io, fd, piece, k, f->path));
    }
    return MX_OK;
}

/* The tensor is bytes [skip, skip + bytes) of what the box is a part of: one of a stack, or all. */
static mx_status put_box(const box_file *f, int fd, const mx_st_source *s, uint64_t at)
{
    uint64_t item = (uint64_t)mx_st_dtype_bytes(s->dtype), end = s->skip + mx_st_source_bytes(s);
    mx_box_span p;
    for (mx_box_walk w = mx_box_begin(s->box, s->local); mx_box_next(&w, &p);) {
        uint64_t from = (uint64_t)p.whole * item, to = from + (uint64_t)p.n * item;
        uint64_t a = from > s->skip ? from : s->skip, b = to < end ? to : end;
        if (a < b)
            MX_TRY(put_bytes(f, fd, s, (uint64_t)p.local * item + (a - from), b - a,
                             at + (a - s->skip)));
    }
    return MX_OK;
}

mx_status mx_st_boxes_put(const char *path, const mx_st_file_of *of, const mx_st_writer *w)
{
    box_file f;
    int fd = -1;
    mx_status st = describe(&f, path, of, w);
    uint64_t at = f.header.len;
    if (!st && (fd = f.io->open(f.io->ctx, f.path, O_WRONLY | O_CLOEXEC, 0)) < 0)
        st = mx_fail_errno(MX_DEVICE, "%s: cannot be written to; all ranks must have the run's "
                           "folder in common", f.path);
    for (int64_t i = 0; i < f.l.n && !st; i++) {
        const mx_st_source *s = f.l.t[f.l.order[i]];
        uint64_t bytes = mx_st_source_bytes(s);
        if (s->box && s->box->first)
            st = put_box(&f, fd, s, at);
        else if (!s->box && of->mine)
            st = put_bytes(&f, fd, s, s->data ? 0 : s->skip, bytes, at);
        at += bytes;
    }
    if (fd >= 0)
        st = close_durably(&f, fd, st);
    forget(&f);
    return st;
}

mx_status mx_st_boxes_end(const char *path, const mx_st_file_of *of, const mx_st_writer *w,
                          mx_st_written *out)
{
    box_file f;
    int fd = -1;
    uint64_t size = 0;
    mx_status st = describe(&f, path, of, w);
    uint64_t at = f.header.len;
    if (!st)
        st = mx_io_open_read(f.io, f.path, &fd, &size);
    for (int64_t i = 0; i < f.l.n && !st; i++) {
        uint64_t bytes = mx_st_source_bytes(f.l.t[f.l.order[i]]);
        st = mx_digest_of_file(fd, f.path, at, bytes, &f.l.digests[f.l.order[i]]);
        at += bytes;
    }
    if (fd >= 0)
        f.io->close(f.io->ctx, fd);
    if (!st && f.io->rename(f.io->ctx, f.path, path))
        st = mx_fail_errno(MX_DEVICE, "%s: cannot rename to %s", f.path, path);
    if (!st)
        *out = (mx_st_written){.size_bytes = at, .header_bytes = f.header.len,
                               .header = mx_digest_of(f.header.text, f.header.len)};
    forget(&f);
    return st;
}

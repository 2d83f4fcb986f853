/* st_write.c - header, then the tensors, in pieces: hash, write, start the write-back.
 *
 * The pieces are hashed from the source buffer before the kernel sees them, so a bit that flips
 * between there and the disk is found on load. Write-back is started piece by piece: the final
 * fsync then waits for the last pieces only, and the disk is busy from the beginning.
 */
#include "store/st_write.h"

#include "base/json_doc.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 4 << 20, HEADER_ALIGN = 64, ATTEMPTS = 2 };

uint64_t mx_st_source_bytes(const mx_st_source *s)
{
    uint64_t n = (uint64_t)mx_st_dtype_bytes(s->dtype);
    for (int i = 0; i < s->ndim; i++)
        MX_ASSERT(!__builtin_mul_overflow(n, (uint64_t)s->dim[i], &n), "%s is too large", s->name);
    return n;
}

static json_t *entry_json(const mx_st_source *s, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    for (int i = 0; i < s->ndim; i++)
        json_array_append_new(shape, json_integer(s->dim[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", mx_st_dtype_name(s->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* The length and the header, padded with spaces so that the data begins on 64 bytes. */
static mx_status make_header(const char *path, const mx_st_source *const *t, const int64_t *order,
                             int64_t n, const mx_st_writer *w, mx_str *out)
{
    json_t *root = json_object();
    mx_status st = MX_OK;
    if (w->n_metadata) {
        json_t *meta = json_object();
        for (int i = 0; i < w->n_metadata; i++)
            json_object_set_new(meta, w->metadata[i].key, json_string(w->metadata[i].value));
        json_object_set_new(root, "__metadata__", meta);
    }
    uint64_t at = 0;
    for (int64_t i = 0; i < n && !st; i++) {
        const mx_st_source *s = t[order[i]];
        uint64_t end = at + mx_st_source_bytes(s);
        if (json_object_get(root, s->name))
            st = mx_fail(MX_USAGE, "%s: two tensors are called %s", path, s->name);
        else if (json_object_set_new(root, s->name, entry_json(s, at, end)))
            st = mx_fail(MX_USAGE, "%s: the tensor name \"%s\" is not valid UTF-8", path, s->name);
        at = end;
    }
    if (!st) {
        char *text = json_dumps(root, JSON_COMPACT);
        MX_ASSERT(text, "a header could not be written");
        size_t len = strlen(text),
               whole = (8 + len + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
        uint64_t header = whole - 8;
        mx_str_add_n(out, (const char *)&header, 8); /* little-endian, as this machine is */
        mx_str_add_n(out, text, len);
        while (out->len < whole)
            mx_str_add_n(out, " ", 1);
        mx_free(text);
    }
    json_decref(root);
    return st;
}

typedef struct {
    const mx_io *io;
    const mx_st_writer *w;
    const char *path;
    int fd;
    uint64_t at; /* bytes written */
    void *piece; /* for fetched tensors; NULL until needed */
} out_file;

static mx_status put(out_file *o, const void *p, size_t n)
{
    MX_TRY(mx_io_write_all(o->io, o->fd, p, n, o->path));
    if (n >= PIECE_BYTES / 2)
        (void)o->io->flush(o->io->ctx, o->fd, (off_t)o->at, (off_t)n); /* a hint: may fail */
    o->at += n;
    return MX_OK;
}

static mx_status put_tensor(out_file *o, const mx_st_source *s, mx_digest *digest)
{
    uint64_t total = mx_st_source_bytes(s);
    mx_digest_state *h = mx_digest_start();
    mx_status st = MX_OK;
    for (uint64_t at = 0; at < total && !st; at += PIECE_BYTES) {
        size_t k = total - at < PIECE_BYTES ? (size_t)(total - at) : PIECE_BYTES;
        const void *p = s->data ? (const char *)s->data + at : o->piece;
        if (!s->data) {
            MX_ASSERT(o->w->fetch, "%s has neither data nor a fetch function", s->name);
            if (!o->piece)
                st = mx_alloc(&o->piece, PIECE_BYTES, "a piece of a tensor");
            if (!st)
                st = o->w->fetch(o->w->fetch_ctx, s, at, o->piece, k);
            p = o->piece;
        }
        if (!st) {
            mx_digest_add(h, p, k);
            st = put(o, p, k);
        }
    }
    mx_digest d = mx_digest_end(h);
    if (digest)
        *digest = d;
    return st;
}

static mx_status write_once(out_file *o, const mx_str *header, const mx_st_source *const *t,
                            const int64_t *order, int64_t n, mx_digest *digests)
{
    const mx_io *io = o->io;
    if (io->unlink(io->ctx, o->path) && errno != ENOENT)
        return mx_fail_errno(MX_DEVICE, "%s: cannot remove the leftover", o->path);
    o->at = 0;
    o->fd = io->open(io->ctx, o->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (o->fd < 0)
        return mx_fail_errno(MX_DEVICE, "%s: cannot create", o->path);
    mx_status st = MX_OK;
    uint64_t size = header->len;
    for (int64_t i = 0; i < n; i++)
        size += mx_st_source_bytes(t[i]);
    /* Space is claimed before the first byte, so a full disk is known at once. File systems that
     * cannot do it (EOPNOTSUPP, ENOSYS, EINVAL) find out while writing. */
    if (io->allocate(io->ctx, o->fd, (off_t)size) &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO))
        MX_TRY_OUT(st, mx_fail_errno(MX_DEVICE, "%s: cannot reserve %.1f MiB", o->path,
                                     (double)size / (1 << 20)));
    MX_TRY_OUT(st, put(o, header->text, header->len));
    for (int64_t i = 0; i < n; i++)
        MX_TRY_OUT(st, put_tensor(o, t[order[i]], digests ? &digests[order[i]] : NULL));
    if (io->fsync(io->ctx, o->fd))
        MX_TRY_OUT(st, mx_fail_errno(MX_DEVICE, "%s: fsync failed, its data must be taken as lost",
                                     o->path));
out:
    if (io->close(io->ctx, o->fd) && !st)
        st = mx_fail_errno(MX_DEVICE, "%s: close failed, its data must be taken as lost", o->path);
    return st;
}

/* Widest element first, else as given: every tensor is then aligned to its element. */
static int64_t *layout(mx_arena *a, const mx_st_source *const *t, int64_t n)
{
    int64_t *order = MX_NEW_N(a, int64_t, n + 1), k = 0;
    for (int bytes = 8; bytes; bytes /= 2)
        for (int64_t i = 0; i < n; i++)
            if (mx_st_dtype_bytes(t[i]->dtype) == bytes)
                order[k++] = i;
    MX_ASSERT(k == n, "a tensor without a dtype");
    return order;
}

mx_status mx_st_write(const char *path, const mx_st_source *const *tensors, int64_t n,
                      const mx_st_writer *w, mx_digest *digests, mx_st_written *out)
{
    mx_arena arena = {0};
    mx_str header = {0};
    int64_t *order = layout(&arena, tensors, n);
    out_file o = {.io = w->io ? w->io : &mx_io_system,
                  .w = w,
                  .path = mx_arena_printf(&arena, "%s.tmp", path)};
    mx_status st = MX_OK;
    MX_TRY_OUT(st, make_header(path, tensors, order, n, w, &header));
    for (int attempt = 1; attempt <= ATTEMPTS; attempt++) {
        mx_status_free(st);
        st = write_once(&o, &header, tensors, order, n, digests);
        if (!st || mx_status_code(st) != MX_DEVICE)
            break;
    }
    if (!st && o.io->rename(o.io->ctx, o.path, path))
        st = mx_fail_errno(MX_DEVICE, "%s: cannot rename to %s", o.path, path);
    if (st)
        o.io->unlink(o.io->ctx, o.path);
    else if (out)
        *out = (mx_st_written){.size_bytes = o.at,
                               .header_bytes = header.len,
                               .header = mx_digest_of(header.text, header.len)};
out:
    mx_free(o.piece);
    mx_str_fini(&header);
    mx_arena_fini(&arena);
    return st;
}

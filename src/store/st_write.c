/* st_write.c - header, then the tensors: hash, copy into a stage, write the stage.
 *
 * Bytes are hashed in the source buffer before anything copies them, so a bit that flips between
 * there and the disk is found on load. Full stages go to the disk past the page cache (O_DIRECT):
 * on a fast disk the kernel's own copy would be the slowest part, and a checkpoint has no business
 * evicting the training data from memory. Where the file system refuses O_DIRECT, for small files,
 * and in the second attempt after a failure, the same stages are written through the cache, with
 * write-back started at once so that the final fsync finds little left to do.
 *
 * When the tensors already lie in memory as they will lie in the file (one after the other, from a
 * disk-block boundary on, as a checkpoint's snapshot does) nothing is copied at all: the header is
 * padded to a block, the body is written from where it is, and another thread hashes meanwhile.
 */
#include "store/st_write_impl.h"

#include "base/json_doc.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>

enum {
    STAGE_BYTES = 8 << 20,
    PIECE_BYTES = 256 << 10, /* hashed, then copied while it is in the cache */
    DISK_ALIGN = 4096,       /* what O_DIRECT asks of addresses, lengths and offsets */
    HEADER_ALIGN = 64,
    ATTEMPTS = 2,
};

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

mx_status mx_st_layout_header(const char *path, const mx_st_layout *l, const mx_st_writer *w,
                              mx_str *out)
{
    const size_t align = l->image ? DISK_ALIGN : HEADER_ALIGN;
    json_t *root = json_object();
    mx_status st = MX_OK;
    if (w->n_metadata) {
        json_t *meta = json_object();
        for (int i = 0; i < w->n_metadata; i++)
            json_object_set_new(meta, w->metadata[i].key, json_string(w->metadata[i].value));
        json_object_set_new(root, "__metadata__", meta);
    }
    uint64_t at = 0;
    for (int64_t i = 0; i < l->n && !st; i++) {
        const mx_st_source *s = l->t[l->order[i]];
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
        size_t len = strlen(text), whole = (8 + len + align - 1) / align * align;
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
    bool direct;
    uint64_t at;  /* bytes written */
    void *memory; /* owns: the stage, and room to align it */
    char *stage;
    size_t stage_bytes, used;
} out_file;

/* Writes the stage. Its last part, not a whole number of disk blocks, goes through the cache. */
static mx_status flush_stage(out_file *o)
{
    size_t n = o->used;
    if (o->direct && n % DISK_ALIGN) {
        int flags = fcntl(o->fd, F_GETFL);
        if (flags < 0 || fcntl(o->fd, F_SETFL, flags & ~O_DIRECT))
            return mx_fail_errno(MX_DEVICE, "%s: cannot leave direct writing", o->path);
        o->direct = false;
    }
    MX_TRY(mx_io_write_all(o->io, o->fd, o->stage, n, o->path));
    if (!o->direct)
        (void)o->io->flush(o->io->ctx, o->fd, (off_t)o->at, (off_t)n); /* a hint: may fail */
    o->at += n;
    o->used = 0;
    return MX_OK;
}

static mx_status put(out_file *o, const void *p, size_t n)
{
    while (n) {
        size_t room = o->stage_bytes - o->used, k = n < room ? n : room;
        memcpy(o->stage + o->used, p, k);
        o->used += k;
        p = (const char *)p + k;
        n -= k;
        if (o->used == o->stage_bytes)
            MX_TRY(flush_stage(o));
    }
    return MX_OK;
}

/* The tensor's next bytes, straight into the stage. */
static mx_status put_piece(out_file *o, const mx_st_source *s, uint64_t at, size_t k,
                           mx_digest_state *h)
{
    char *to = o->stage + o->used;
    if (s->data) {
        mx_digest_add(h, (const char *)s->data + at, k);
        memcpy(to, (const char *)s->data + at, k);
    } else {
        MX_ASSERT(o->w->fetch, "%s has neither data nor a fetch function", s->name);
        MX_TRY(o->w->fetch(o->w->fetch_ctx, s, s->skip + at, to, k));
        mx_digest_add(h, to, k);
    }
    o->used += k;
    return o->used == o->stage_bytes ? flush_stage(o) : MX_OK;
}

static mx_status put_tensor(out_file *o, const mx_st_source *s, mx_digest *digest)
{
    uint64_t total = mx_st_source_bytes(s);
    mx_digest_state *h = mx_digest_start();
    mx_status st = MX_OK;
    for (uint64_t at = 0; at < total && !st;) {
        size_t k = o->stage_bytes - o->used;
        k = k < PIECE_BYTES ? k : PIECE_BYTES;
        k = total - at < k ? (size_t)(total - at) : k;
        st = put_piece(o, s, at, k, h);
        at += k;
    }
    mx_digest d = mx_digest_end(h);
    if (digest)
        *digest = d;
    return st;
}

static mx_status create(out_file *o, uint64_t size, bool want_direct)
{
    const mx_io *io = o->io;
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    if (io->unlink(io->ctx, o->path) && errno != ENOENT)
        return mx_fail_errno(MX_DEVICE, "%s: cannot remove the leftover", o->path);
    o->at = o->used = 0;
    o->direct = want_direct && size >= STAGE_BYTES;
    o->fd = io->open(io->ctx, o->path, flags | (o->direct ? O_DIRECT : 0), 0644);
    if (o->fd < 0 && o->direct && errno == EINVAL) { /* this file system has no O_DIRECT */
        o->direct = false;
        (void)io->unlink(io->ctx, o->path); /* some kernels create the file before they refuse */
        o->fd = io->open(io->ctx, o->path, flags, 0644);
    }
    if (o->fd < 0)
        return mx_fail_errno(MX_DEVICE, "%s: cannot create", o->path);
    return MX_OK;
}

typedef struct {
    const mx_st_layout *l;
    pthread_t thread;
    bool started;
} hasher;

static void *hash_tensors(void *arg)
{
    const mx_st_layout *l = ((hasher *)arg)->l;
    for (int64_t i = 0; i < l->n; i++)
        l->digests[i] = mx_digest_of(l->t[i]->data, (size_t)mx_st_source_bytes(l->t[i]));
    return NULL;
}

static mx_status put_image(out_file *o, const mx_st_layout *l)
{
    hasher h = {.l = l};
    h.started = l->digests && !pthread_create(&h.thread, NULL, hash_tensors, &h);
    uint64_t left = l->body_bytes;
    const char *p = l->image;
    mx_status st = MX_OK;
    if (o->used) /* the header: whole blocks */
        st = flush_stage(o);
    for (; left >= DISK_ALIGN && !st;) {
        size_t k = left < STAGE_BYTES ? (size_t)left / DISK_ALIGN * DISK_ALIGN : STAGE_BYTES;
        st = mx_io_write_all(o->io, o->fd, p, k, o->path);
        if (!o->direct)
            (void)o->io->flush(o->io->ctx, o->fd, (off_t)o->at, (off_t)k);
        o->at += k;
        p += k;
        left -= k;
    }
    if (!st)
        st = put(o, p, (size_t)left);
    if (h.started)
        pthread_join(h.thread, NULL);
    else if (l->digests)
        hash_tensors(&h);
    return st;
}

static mx_status put_body(out_file *o, const mx_st_layout *l)
{
    if (l->image)
        return put_image(o, l);
    for (int64_t i = 0; i < l->n; i++)
        MX_TRY(put_tensor(o, l->t[l->order[i]], l->digests ? &l->digests[l->order[i]] : NULL));
    return MX_OK;
}

static mx_status write_once(out_file *o, const mx_str *header, const mx_st_layout *l,
                            bool want_direct)
{
    const mx_io *io = o->io;
    mx_status st = MX_OK;
    uint64_t size = header->len + l->body_bytes;
    MX_TRY(create(o, size, want_direct));
    /* Space is claimed before the first byte, so a full disk is known at once. File systems that
     * cannot do it (EOPNOTSUPP, ENOSYS, EINVAL) find out while writing. */
    if (io->allocate(io->ctx, o->fd, (off_t)size) &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO))
        MX_TRY_OUT(st, mx_fail_errno(MX_DEVICE, "%s: cannot reserve %.1f MiB", o->path,
                                     (double)size / (1 << 20)));
    MX_TRY_OUT(st, put(o, header->text, header->len));
    MX_TRY_OUT(st, put_body(o, l));
    if (o->used)
        MX_TRY_OUT(st, flush_stage(o));
    if (io->fsync(io->ctx, o->fd))
        MX_TRY_OUT(st, mx_fail_errno(MX_DEVICE, "%s: fsync failed; its data may be lost",
                                     o->path));
out:
    if (io->close(io->ctx, o->fd) && !st)
        st = mx_fail_errno(MX_DEVICE, "%s: close failed; its data may be lost", o->path);
    return st;
}

/* Widest element first, else as given: every tensor is then aligned to its element. */
void mx_st_layout_plan(mx_arena *a, mx_st_layout *l)
{
    int64_t *order = MX_NEW_N(a, int64_t, l->n + 1), k = 0;
    for (int bytes = 8; bytes; bytes /= 2)
        for (int64_t i = 0; i < l->n; i++)
            if (mx_st_dtype_bytes(l->t[i]->dtype) == bytes)
                order[k++] = i;
    MX_ASSERT(k == l->n, "a tensor without a dtype");
    l->order = order;
    const char *next = l->n ? l->t[order[0]]->data : NULL;
    bool in_place = next && (uintptr_t)next % DISK_ALIGN == 0;
    l->image = next;
    for (int64_t i = 0; i < l->n; i++) {
        const mx_st_source *s = l->t[order[i]];
        uint64_t bytes = mx_st_source_bytes(s);
        in_place = in_place && s->data == next;
        next = in_place ? next + bytes : next;
        l->body_bytes += bytes;
    }
    if (!in_place || l->body_bytes < STAGE_BYTES)
        l->image = NULL;
}

mx_status mx_st_write(const char *path, const mx_st_source *const *tensors, int64_t n,
                      const mx_st_writer *w, mx_digest *digests, mx_st_written *out)
{
    mx_arena arena = {0};
    mx_str header = {0};
    mx_st_layout l = {.t = tensors, .n = n, .digests = digests};
    mx_st_layout_plan(&arena, &l);
    out_file o = {.io = w->io ? w->io : &mx_io_system,
                  .w = w,
                  .path = mx_arena_printf(&arena, "%s.tmp", path)};
    mx_status st = MX_OK;
    MX_TRY_OUT(st, mx_st_layout_header(path, &l, w, &header));
    uint64_t size = (header.len + l.body_bytes) / DISK_ALIGN * DISK_ALIGN + DISK_ALIGN;
    o.stage_bytes = size < STAGE_BYTES ? (size_t)size : STAGE_BYTES;
    MX_TRY_OUT(st, mx_alloc(&o.memory, o.stage_bytes + DISK_ALIGN, "a checkpoint writer's stage"));
    o.stage = (char *)(((uintptr_t)o.memory + DISK_ALIGN - 1) / DISK_ALIGN * DISK_ALIGN);
    for (int attempt = 1; attempt <= ATTEMPTS; attempt++) {
        mx_status_free(st);
        st = write_once(&o, &header, &l, attempt == 1);
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
    mx_free(o.memory);
    mx_str_fini(&header);
    mx_arena_fini(&arena);
    return st;
}

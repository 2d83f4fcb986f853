/* st_write.h - one safetensors file, written durably and hashed on the way. */
#ifndef MX_STORE_ST_WRITE_H
#define MX_STORE_ST_WRITE_H

#include "base/io.h"
#include "ir/type.h"
#include "store/digest.h"
#include "store/safetensors.h"

/* A tensor to be written. Its bytes lie at `data`, or, when data is NULL, come from the writer's
 * `fetch` (a device buffer, a tensor dequantized on the way). */
typedef struct {
    const char *name;
    mx_st_dtype dtype;
    int ndim;
    int64_t dim[MX_ST_MAX_DIM];
    const void *data; /* borrows */
    void *user;       /* for fetch */
    uint64_t skip;    /* for fetch: where its bytes begin in what `user` stands for */
    /* What lies at `data`, or comes from `fetch`, is a rank's part of a tensor, `local` its type;
     * this one is bytes [skip, ...) of that tensor (st_boxes.c). NULL: it is whole. */
    const struct mx_box *box;
    const mx_type *local;
} mx_st_source;

uint64_t mx_st_source_bytes(const mx_st_source *s);

typedef struct {
    const mx_io *io; /* NULL: the system's */
    const mx_st_pair *metadata;
    int n_metadata;
    /* Gives bytes [at, at + n) of what s->user stands for. Called in order of `at`. */
    mx_status (*fetch)(void *ctx, const mx_st_source *s, uint64_t at, void *dst, size_t n);
    void *fetch_ctx;
} mx_st_writer;

/* What was written, for a manifest. The header's digest covers every byte before the data and the
 * tensors' digests cover the rest, so together they cover the file. */
typedef struct {
    uint64_t size_bytes;
    uint64_t header_bytes; /* the 8-byte length included */
    mx_digest header;
} mx_st_written;

/* Writes path.tmp, fsyncs it and renames it to path; the caller syncs the directory. A failed
 * write, fsync or close is tried once more from the start, under a new inode. Tensors are laid out
 * widest element first, so that each is aligned; digests[i] (may be NULL) belongs to tensors[i]. */
mx_status mx_st_write(const char *path, const mx_st_source *const *tensors, int64_t n,
                      const mx_st_writer *w, mx_digest *digests, mx_st_written *out) MX_MUST_USE;

/* --- by many ranks, each its parts (st_boxes.c) --- */
typedef struct {
    const mx_st_source *const *tensors;
    int64_t n;
    mx_digest *digests; /* for end */
    bool mine;          /* this rank begins and ends it, and writes what every rank has whole */
} mx_st_file_of;
mx_status mx_st_boxes_begin(const char *path, const mx_st_file_of *of,
                            const mx_st_writer *w) MX_MUST_USE;
mx_status mx_st_boxes_put(const char *path, const mx_st_file_of *of,
                          const mx_st_writer *w) MX_MUST_USE;
mx_status mx_st_boxes_end(const char *path, const mx_st_file_of *of, const mx_st_writer *w,
                          mx_st_written *out) MX_MUST_USE;

#endif

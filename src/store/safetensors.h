/* safetensors.h - one safetensors file, opened and read.
 *
 *     file   = u64 header length (little-endian) | header | data
 *     header = JSON object, beginning with '{' and padded with spaces:
 *              name -> {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end]}
 *              "__metadata__" -> {string: string}
 *     data   = the tensors back to back: by offset they cover it without hole or overlap
 *
 * Opening reads and checks the header alone: after it every tensor's bytes are known to lie in the
 * file, to have the size its shape and dtype say, and to share no byte with another tensor.
 *
 * Data is read with pread, never mapped: a file that is truncated while it is read gives a clean
 * error where a mapping gives SIGBUS, network file systems included; loading converts or copies
 * every byte once anyway, so a mapping would save nothing.
 */
#ifndef MX_STORE_SAFETENSORS_H
#define MX_STORE_SAFETENSORS_H

#include "base/arena.h"
#include "base/status.h"
#include "store/element.h"

enum { MX_ST_MAX_DIM = 8, MX_ST_BLOCK = 4096 };

typedef struct mx_st_file mx_st_file;

typedef struct {
    const char *name;
    mx_st_dtype dtype;
    int ndim;
    int64_t dim[MX_ST_MAX_DIM];
    int64_t n;   /* elements; 1 for ndim 0 */
    uint64_t at; /* byte of the file where its data begins */
    uint64_t n_bytes;
    mx_st_file *file; /* borrows */
} mx_st_tensor;

typedef struct {
    const char *key, *value;
} mx_st_pair;

/* Zero-initialise, open, close. Closing a zero file is a no-op. */
struct mx_st_file {
    mx_arena arena; /* owns names, records, metadata */
    const char *path;
    int fd; /* valid when open */
    bool is_open;
    int direct_fd; /* valid when direct: the same file, read past the page cache */
    bool is_direct;
    uint64_t size_bytes;    /* of the whole file */
    uint64_t data_at;       /* byte where the data begins */
    mx_st_tensor *tensors;  /* in the order of their data */
    mx_st_tensor **by_name; /* the same, sorted by name */
    int64_t n_tensors;
    mx_st_pair *metadata;
    int n_metadata;
};

mx_status mx_st_open(mx_st_file *f, const char *path) MX_MUST_USE;
void mx_st_close(mx_st_file *f);

const mx_st_tensor *mx_st_find(const mx_st_file *f, const char *name); /* NULL when absent */
const char *mx_st_metadata(const mx_st_file *f, const char *key);      /* NULL when absent */
/* "BF16 (2048, 512)" into the caller's buffer, which is returned. */
const char *mx_st_describe(const mx_st_tensor *t, char *buf, size_t cap);

/* Elements [first, first + count) of the tensor, converted to `to`, into dst. Safe to call from
 * many threads at once. `scan` may be NULL. */
mx_status mx_st_read(const mx_st_tensor *t, int64_t first, int64_t count, mx_st_dtype to, void *dst,
                     mx_st_scan *scan) MX_MUST_USE;

/* These elements will be read soon: the system may fetch them meanwhile. */
void mx_st_expect(const mx_st_tensor *t, int64_t first, int64_t count);

/* From now on mx_st_fetch reads past the page cache, where the file system can. */
void mx_st_go_direct(mx_st_file *f);
/* Elements [first, first + count) as they are stored, somewhere in `room`: it begins at a multiple
 * of MX_ST_BLOCK and has room for two blocks more than the elements. Thread-safe. */
mx_status mx_st_fetch(const mx_st_tensor *t, int64_t first, int64_t count, void *room,
                      const void **out) MX_MUST_USE;

/* What was seen of a tensor when it was read. */
typedef struct {
    const mx_st_tensor *tensor;
    int64_t count; /* elements */
    mx_st_scan scan;
} mx_st_seen;
/* An error naming every one whose scan is not zero ("lm_head.weight: 3 NaN, 1 Inf"), else OK. */
mx_status mx_st_check_finite(const mx_st_seen *seen, int64_t n) MX_MUST_USE;


#endif

/* shard.h - one data file, read at offsets.
 *
 * Data files are read with pread and never mapped: a file that is truncated or replaced while a run
 * uses it gives an error with its name, not a SIGBUS. A shard can be parked (its descriptor closed)
 * and wakes by itself on the next read, so a dataset of ten thousand files needs few descriptors;
 * waking checks that size and modification time are what they were.
 * A zero-initialised shard may be closed.
 */
#ifndef MX_DATA_SHARD_H
#define MX_DATA_SHARD_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *path; /* owns */
    int fd;     /* -1 while parked */
    int64_t size_bytes, mtime_ns;
    /* The window: bytes [at, at + n) of the file, kept because reads are mostly sequential. */
    uint8_t *window; /* owns */
    size_t cap;
    int64_t at;
    size_t n;
    int run; /* refills in a row that continued the one before: reads grow with it */
} mx_shard_file;

mx_status mx_shard_open(mx_shard_file *f, const char *path) MX_MUST_USE;
/* Exactly n bytes at `at`, past the window. A file that ends earlier is an error. */
mx_status mx_shard_read(mx_shard_file *f, int64_t at, void *buf, size_t n) MX_MUST_USE;
/* Points *p at the bytes from `at` on: at least n of them, or as many as the file has. *got says
 * how many. Valid until the next call. */
mx_status mx_shard_peek(mx_shard_file *f, int64_t at, size_t n, const uint8_t **p,
                        size_t *got) MX_MUST_USE;
void mx_shard_park(mx_shard_file *f);
void mx_shard_close(mx_shard_file *f);

static inline uint32_t mx_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t mx_le64(const uint8_t *p)
{
    return (uint64_t)mx_le32(p) | (uint64_t)mx_le32(p + 4) << 32;
}

#endif

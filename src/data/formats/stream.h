/* stream.h - the decompressed bytes of a .gz or .zst file, in order.
 *
 * Memory is bounded whatever the file holds: a zstd window of at most 128 MiB, and a buffer of at
 * most one record. A file that grows more than 2,000-fold past the first 64 MiB is refused as a
 * bomb.
 */
#ifndef MX_DATA_STREAM_H
#define MX_DATA_STREAM_H

#include "data/formats/shard.h"

typedef enum { MX_STREAM_GZIP, MX_STREAM_ZSTD } mx_stream_codec;
typedef struct {
    mx_shard_file *file; /* borrowed */
    mx_stream_codec codec;
    void *decoder;  /* owns: z_stream or ZSTD_DCtx */
    int64_t in_at;  /* next compressed byte */
    bool mid_frame, end;
    char *buf;      /* owns: decompressed bytes [from, to) not yet taken */
    size_t cap, from, to;
    int64_t out_at; /* decompressed offset of buf[from] */
} mx_stream;

mx_status mx_stream_open(mx_stream *s, mx_shard_file *file, mx_stream_codec codec) MX_MUST_USE;
/* At least `need` bytes at buf + from, or all that are left. */
mx_status mx_stream_fill(mx_stream *s, size_t need) MX_MUST_USE;
/* The next line without its line end; *end when there is none. Borrowed until the next call. */
mx_status mx_stream_line(mx_stream *s, size_t max_bytes, const char **text, size_t *n,
                         int64_t *offset, bool *end) MX_MUST_USE;
void mx_stream_take(mx_stream *s, size_t n);
/* Compressed bytes that what was taken so far came from, about. */
int64_t mx_stream_consumed(const mx_stream *s);
void mx_stream_close(mx_stream *s);

#endif

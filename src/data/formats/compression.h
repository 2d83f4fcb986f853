/* compression.h - blocks that are decompressed whole, to a size that is known beforehand. */
#ifndef MX_DATA_COMPRESSION_H
#define MX_DATA_COMPRESSION_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

typedef enum {
    MX_COMPRESSION_NONE,
    MX_COMPRESSION_SNAPPY,
    MX_COMPRESSION_GZIP,
    MX_COMPRESSION_BROTLI,
    MX_COMPRESSION_ZSTD,
    MX_COMPRESSION_LZ4_RAW,
    MX_COMPRESSION_LZ4_HADOOP, /* blocks with big-endian sizes before them */
    MX_COMPRESSION_LZ4_FRAME,
} mx_compression;

/* Decoder memory that is kept from block to block; zero-initialise. */
typedef struct {
    void *zstd;
} mx_decompressor;
void mx_decompressor_fini(mx_decompressor *c);

/* Exactly n_out bytes into `out`; anything else is an error. Never writes past n_out.
 * `c` may be NULL. */
mx_status mx_decompress(mx_decompressor *c, mx_compression codec, const uint8_t *in, size_t n_in,
                        uint8_t *out, size_t n_out) MX_MUST_USE;
/* Whether n_in bytes can honestly become n_out: no format here reaches a ratio of 2,000 on data
 * worth training on, and small blocks may be anything. */
mx_status mx_compression_plausible(size_t n_in, uint64_t n_out) MX_MUST_USE;

#endif

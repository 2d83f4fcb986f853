/* codec.h - blocks that are decompressed whole, to a size that is known beforehand. */
#ifndef MX_DATA_CODEC_H
#define MX_DATA_CODEC_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

typedef enum {
    MX_CODEC_NONE,
    MX_CODEC_SNAPPY,
    MX_CODEC_GZIP,
    MX_CODEC_BROTLI,
    MX_CODEC_ZSTD,
    MX_CODEC_LZ4_RAW,
    MX_CODEC_LZ4_HADOOP, /* blocks with big-endian sizes before them */
    MX_CODEC_LZ4_FRAME,
} mx_codec;

/* Decoder memory that is kept from block to block; zero-initialise. */
typedef struct {
    void *zstd;
} mx_codec_scratch;
void mx_codec_scratch_fini(mx_codec_scratch *c);

/* Exactly n_out bytes into `out`; anything else is an error. Never writes past n_out.
 * `c` may be NULL. */
mx_status mx_codec_decompress(mx_codec_scratch *c, mx_codec codec, const uint8_t *in, size_t n_in,
                              uint8_t *out, size_t n_out) MX_MUST_USE;
/* Whether n_in bytes can honestly become n_out: no format here reaches a ratio of 2,000 on data
 * worth training on, and small blocks may be anything. */
mx_status mx_codec_plausible(size_t n_in, uint64_t n_out) MX_MUST_USE;

#endif

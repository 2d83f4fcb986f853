/* compression.c - one call per library; each gets the size of the output and must fill it
 * exactly. */
#include "data/formats/compression.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <lz4frame.h>
#include <snappy-c.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

enum { SMALL_BYTES = 64 << 20, MAX_RATIO = 2000 };

mx_status mx_compression_plausible(size_t n_in, uint64_t n_out)
{
    if (n_out > SMALL_BYTES && n_out / MAX_RATIO > n_in)
        return mx_fail(
            MX_INPUT,
            "%zu compressed bytes that claim to become %llu are refused as a compression bomb",
            n_in, (unsigned long long)n_out);
    return MX_OK;
}

static bool gunzip(const uint8_t *in, size_t n_in, uint8_t *out, size_t n_out)
{
    z_stream z = {0};
    if (n_in > UINT32_MAX || n_out > UINT32_MAX || inflateInit2(&z, 15 + 32) != Z_OK)
        return false;
    z.next_in = (unsigned char *)in;
    z.avail_in = (unsigned)n_in;
    z.next_out = out;
    z.avail_out = (unsigned)n_out;
    int rc = inflate(&z, Z_FINISH);
    bool ok = rc == Z_STREAM_END && z.avail_out == 0;
    inflateEnd(&z);
    return ok;
}

/* Making a decoder costs more than a small block. */
static bool unzstd(mx_decompressor *c, const uint8_t *in, size_t n_in, uint8_t *out, size_t n_out)
{
    if (!c)
        return ZSTD_decompress(out, n_out, in, n_in) == n_out;
    if (!c->zstd)
        c->zstd = ZSTD_createDCtx();
    return c->zstd && ZSTD_decompressDCtx(c->zstd, out, n_out, in, n_in) == n_out;
}

void mx_decompressor_fini(mx_decompressor *c)
{
    ZSTD_freeDCtx(c->zstd);
    c->zstd = NULL;
}

static bool lz4_frame(const uint8_t *in, size_t n_in, uint8_t *out, size_t n_out)
{
    LZ4F_dctx *c = NULL;
    if (LZ4F_isError(LZ4F_createDecompressionContext(&c, LZ4F_VERSION)))
        return false;
    size_t made = 0, used = 0, left = 1;
    while (left && used < n_in) {
        size_t o = n_out - made, i = n_in - used;
        left = LZ4F_decompress(c, out + made, &o, in + used, &i, NULL);
        if (LZ4F_isError(left) || (o == 0 && i == 0))
            break;
        made += o;
        used += i;
    }
    LZ4F_freeDecompressionContext(c);
    return left == 0 && made == n_out;
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool lz4_raw(const uint8_t *in, size_t n_in, uint8_t *out, size_t n_out)
{
    return n_in <= INT32_MAX && n_out <= INT32_MAX &&
           LZ4_decompress_safe((const char *)in, (char *)out, (int)n_in, (int)n_out) == (int)n_out;
}

static bool lz4_hadoop(const uint8_t *in, size_t n_in, uint8_t *out, size_t n_out)
{
    const uint8_t *from = in;
    size_t left = n_in, made = 0;
    while (left >= 8) {
        uint32_t raw = be32(from), packed = be32(from + 4);
        if (packed > left - 8 || raw > n_out - made || !lz4_raw(from + 8, packed, out + made, raw))
            break;
        made += raw;
        from += 8 + packed;
        left -= 8 + packed;
    }
    /* some writers put a bare block under this codec's number */
    return (left == 0 && made == n_out) || lz4_raw(in, n_in, out, n_out);
}

mx_status mx_decompress(mx_decompressor *c, mx_compression codec, const uint8_t *in, size_t n_in,
                        uint8_t *out, size_t n_out)
{
    static const char *const names[] = {"plain", "snappy", "gzip", "brotli",
                                        "zstd",  "lz4",    "lz4",  "lz4"};
    bool ok = false;
    size_t n = n_out;
    switch (codec) {
    case MX_COMPRESSION_NONE:
        ok = n_in == n_out;
        if (ok && n_out)
            memcpy(out, in, n_out);
        break;
    case MX_COMPRESSION_SNAPPY:
        /* the library trusts the length in the block for its writes: it must be ours */
        ok = snappy_uncompressed_length((const char *)in, n_in, &n) == SNAPPY_OK && n == n_out &&
             snappy_uncompress((const char *)in, n_in, (char *)out, &n) == SNAPPY_OK && n == n_out;
        break;
    case MX_COMPRESSION_GZIP:
        ok = gunzip(in, n_in, out, n_out);
        break;
    case MX_COMPRESSION_BROTLI:
        ok = BrotliDecoderDecompress(n_in, in, &n, out) == BROTLI_DECODER_RESULT_SUCCESS &&
             n == n_out;
        break;
    case MX_COMPRESSION_ZSTD:
        ok = unzstd(c, in, n_in, out, n_out);
        break;
    case MX_COMPRESSION_LZ4_RAW:
        ok = lz4_raw(in, n_in, out, n_out);
        break;
    case MX_COMPRESSION_LZ4_HADOOP:
        ok = lz4_hadoop(in, n_in, out, n_out);
        break;
    case MX_COMPRESSION_LZ4_FRAME:
        ok = lz4_frame(in, n_in, out, n_out);
        break;
    }
    if (!ok)
        return mx_fail(
            MX_INPUT,
            "a %s block of %zu bytes does not decompress to the %zu bytes it should: the "
            "file is damaged, fetch it again",
            names[codec], n_in, n_out);
    return MX_OK;
}

/* parquet_decode.c - value encodings.
 *   0 PLAIN                    2, 8 dictionary indices     3 RLE (booleans)
 *   5 DELTA_BINARY_PACKED      6 DELTA_LENGTH_BYTE_ARRAY   7 DELTA_BYTE_ARRAY
 *   9 BYTE_STREAM_SPLIT
 * Byte arrays are not copied: values point into the page, which lives as long as the column.
 * Every read is bounded by the page's end, every count by the number of values asked for.
 */
#include "data/formats/parquet.h"

#include "base/varint.h"

#include <string.h>

static mx_status damaged(const char *what)
{
    return mx_fail(MX_INPUT, "%s: the page is damaged", what);
}

/* `width` bits at bit position `bit` of p, least significant first; width <= 64. */
static uint64_t bits_at(const uint8_t *p, size_t n_bytes, uint64_t bit, int width)
{
    uint64_t v = 0;
    size_t at = (size_t)(bit >> 3);
    int shift = (int)(bit & 7);
    for (int got = 0, i = 0; got < width + shift && at + (size_t)i < n_bytes; i++, got += 8)
        if (i < 8)
            v |= (uint64_t)p[at + (size_t)i] << (8 * i) >> (i == 0 ? shift : 0)
                                                               << (i == 0 ? shift : 0);
        else /* the ninth byte */
            return ((v >> shift) | (uint64_t)p[at + 8] << (64 - shift)) &
                   (width == 64 ? ~(uint64_t)0 : ((uint64_t)1 << width) - 1);
    v >>= shift;
    return width == 64 ? v : v & (((uint64_t)1 << width) - 1);
}

/* n values of `width` <= 32 bits; the caller has checked that the bytes are there. */
static void unpack(const uint8_t *p, size_t n_bytes, int width, uint32_t *out, int64_t n)
{
    uint64_t mask = ((uint64_t)1 << width) - 1, bit = 0;
    int64_t i = 0;
    for (; i < n && (bit >> 3) + 8 <= n_bytes; i++, bit += (uint64_t)width) {
        uint64_t w;
        memcpy(&w, p + (bit >> 3), 8);
        out[i] = (uint32_t)(w >> (bit & 7) & mask);
    }
    for (; i < n; i++, bit += (uint64_t)width)
        out[i] = (uint32_t)bits_at(p, n_bytes, bit, width);
}

mx_status mx_pq_hybrid(const uint8_t *p, size_t n_bytes, int width, uint32_t *out, int64_t n,
                       size_t *used)
{
    const uint8_t *start = p, *end = p + n_bytes;
    if (width < 0 || width > 32)
        return damaged("a bit width above 32");
    size_t value_bytes = (size_t)(width + 7) / 8;
    for (int64_t done = 0; done < n;) {
        uint64_t head;
        if (!mx_varint_read(&p, end, &head))
            return damaged("levels or indices end early");
        uint64_t count = head >> 1;
        if (count == 0 || count > (uint64_t)1 << 31)
            return damaged("a run of no values");
        int64_t left = n - done;
        if (head & 1) { /* groups of eight, bit-packed */
            int64_t k = (int64_t)count * 8 < left ? (int64_t)count * 8 : left;
            uint64_t bytes =
                count * (uint64_t)width; /* the last group may be cut at the page's end */
            uint64_t need = ((uint64_t)k * (uint64_t)width + 7) / 8, have = (uint64_t)(end - p);
            if (need > have)
                return damaged("packed levels or indices end early");
            unpack(p, (size_t)(bytes < have ? bytes : have), width, out + done, k);
            p += bytes < have ? bytes : have;
            done += k;
        } else {
            uint32_t v = 0;
            int64_t k = (int64_t)count < left ? (int64_t)count : left;
            if ((size_t)(end - p) < value_bytes)
                return damaged("a run has no value");
            for (size_t i = 0; i < value_bytes; i++)
                v |= (uint32_t)*p++ << (8 * i);
            for (int64_t i = 0; i < k; i++)
                out[done + i] = v;
            done += k;
        }
    }
    *used = (size_t)(p - start);
    return MX_OK;
}

/* --- PLAIN --- */

static mx_status plain_bytes(const uint8_t *p, size_t n_bytes, mx_pq_value *out, int64_t n)
{
    const uint8_t *end = p + n_bytes;
    for (int64_t i = 0; i < n; i++) {
        if (end - p < 4 || mx_le32(p) > (size_t)(end - p) - 4)
            return damaged("a string is longer than its page");
        out[i].bytes.n = mx_le32(p);
        out[i].bytes.p = p + 4;
        p += 4 + out[i].bytes.n;
    }
    return MX_OK;
}

static int fixed_width(const mx_pq_node *leaf)
{
    switch (leaf->type) {
    case MX_PQ_INT32:
    case MX_PQ_FLOAT: return 4;
    case MX_PQ_INT64:
    case MX_PQ_DOUBLE: return 8;
    case MX_PQ_INT96: return 12;
    case MX_PQ_FIXED: return leaf->type_length;
    default: return 0;
    }
}

static void set_fixed(const mx_pq_node *leaf, const uint8_t *p, mx_pq_value *v)
{
    float f;
    switch (leaf->type) {
    case MX_PQ_INT32: v->i = (int32_t)mx_le32(p); break;
    case MX_PQ_INT64: v->i = (int64_t)mx_le64(p); break;
    case MX_PQ_FLOAT: memcpy(&f, p, 4), v->f = (double)f; break;
    case MX_PQ_DOUBLE: memcpy(&v->f, p, 8); break;
    default: v->bytes.p = p, v->bytes.n = (size_t)fixed_width(leaf);
    }
}

static mx_status plain(const mx_pq_decoder *d, const uint8_t *p, size_t n_bytes, mx_pq_value *out,
                       int64_t n)
{
    if (d->leaf->type == MX_PQ_BYTES)
        return plain_bytes(p, n_bytes, out, n);
    if (d->leaf->type == MX_PQ_BOOLEAN) {
        if ((uint64_t)n > (uint64_t)n_bytes * 8)
            return damaged("booleans end early");
        for (int64_t i = 0; i < n; i++)
            out[i].i = p[i >> 3] >> (i & 7) & 1;
        return MX_OK;
    }
    size_t w = (size_t)fixed_width(d->leaf);
    if (w == 0 || (uint64_t)n > n_bytes / w)
        return damaged("values end early");
    for (int64_t i = 0; i < n; i++)
        set_fixed(d->leaf, p + (size_t)i * w, &out[i]);
    return MX_OK;
}

static mx_status byte_stream_split(const mx_pq_decoder *d, const uint8_t *p, size_t n_bytes,
                                   mx_pq_value *out, int64_t n)
{
    size_t w = (size_t)fixed_width(d->leaf);
    if (w == 0 || (uint64_t)n > n_bytes / w)
        return damaged("values end early");
    uint8_t *all = mx_arena_alloc(d->arena, w * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        for (size_t k = 0; k < w; k++)
            all[(size_t)i * w + k] = p[k * (size_t)n + (size_t)i];
        set_fixed(d->leaf, all + (size_t)i * w, &out[i]);
    }
    return MX_OK;
}

/* --- dictionary --- */

static mx_status dictionary(const mx_pq_decoder *d, const uint8_t *p, size_t n_bytes,
                            mx_pq_value *out, int64_t n)
{
    uint32_t index[1024];
    size_t used;
    if (!d->dictionary || n_bytes < 1)
        return damaged("a dictionary page is missing");
    if (n > 1024) { /* whole runs must be decoded at once: their state is not kept */
        uint32_t *all = mx_arena_alloc(d->arena, sizeof *all * (size_t)n);
        MX_TRY(mx_pq_hybrid(p + 1, n_bytes - 1, p[0], all, n, &used));
        for (int64_t i = 0; i < n; i++) {
            if (all[i] >= (uint64_t)d->n_dictionary)
                return damaged("a dictionary index is too large");
            out[i] = d->dictionary[all[i]];
        }
        return MX_OK;
    }
    MX_TRY(mx_pq_hybrid(p + 1, n_bytes - 1, p[0], index, n, &used));
    for (int64_t i = 0; i < n; i++) {
        if (index[i] >= (uint64_t)d->n_dictionary)
            return damaged("a dictionary index is too large");
        out[i] = d->dictionary[index[i]];
    }
    return MX_OK;
}

/* --- DELTA_* --- */

/* Header: block size, miniblocks per block, count, first value; then per block: smallest delta, a
 * bit width per miniblock, the miniblocks. */
static mx_status delta_ints(const uint8_t *p, size_t n_bytes, int64_t *out, int64_t n, size_t *used)
{
    const uint8_t *start = p, *end = p + n_bytes;
    uint64_t block, minis, total, z;
    if (!mx_varint_read(&p, end, &block) || !mx_varint_read(&p, end, &minis) ||
        !mx_varint_read(&p, end, &total) || !mx_varint_read(&p, end, &z) || minis == 0 ||
        minis > 4096 || block == 0 || block > 1 << 20 || block % minis || block / minis % 8 ||
        total != (uint64_t)n)
        return damaged("the head of delta-coded numbers is wrong");
    uint64_t per_mini = block / minis, value = (z >> 1) ^ -(z & 1);
    int64_t i = 0;
    if (n)
        out[i++] = (int64_t)value;
    while (i < n) {
        if (!mx_varint_read(&p, end, &z) || (uint64_t)(end - p) < minis)
            return damaged("delta-coded numbers end early");
        uint64_t smallest = (z >> 1) ^ -(z & 1);
        const uint8_t *widths = p;
        p += minis;
        for (uint64_t m = 0; m < minis && i < n; m++) {
            int w = widths[m];
            uint64_t bytes = per_mini * (uint64_t)w / 8;
            if (w > 64 || bytes > (uint64_t)(end - p))
                return damaged("delta-coded numbers end early");
            for (uint64_t k = 0; k < per_mini && i < n; k++) {
                value += smallest + (w ? bits_at(p, (size_t)bytes, k * (uint64_t)w, w) : 0);
                out[i++] = (int64_t)value;
            }
            p += bytes;
        }
    }
    *used = (size_t)(p - start);
    return MX_OK;
}

static mx_status delta_length(const mx_pq_decoder *d, const uint8_t *p, size_t n_bytes,
                              mx_pq_value *out, int64_t n)
{
    int64_t *lengths = mx_arena_alloc(d->arena, sizeof *lengths * (size_t)n);
    size_t at;
    MX_TRY(delta_ints(p, n_bytes, lengths, n, &at));
    for (int64_t i = 0; i < n; i++) {
        if (lengths[i] < 0 || (uint64_t)lengths[i] > n_bytes - at)
            return damaged("a string is longer than its page");
        out[i].bytes.p = p + at;
        out[i].bytes.n = (size_t)lengths[i];
        at += (size_t)lengths[i];
    }
    return MX_OK;
}

/* Each string is a prefix of the one before and a suffix of its own. What they unfold to is
 * bounded, as a small page can name a long prefix again and again. */
static mx_status delta_bytes(const mx_pq_decoder *d, const uint8_t *p, size_t n_bytes,
                             mx_pq_value *out, int64_t n)
{
    int64_t *prefix = mx_arena_alloc(d->arena, sizeof *prefix * (size_t)n);
    size_t at;
    uint64_t total = 0;
    MX_TRY(delta_ints(p, n_bytes, prefix, n, &at));
    MX_TRY(delta_length(d, p + at, n_bytes - at, out, n));
    for (int64_t i = 0; i < n; i++) {
        size_t before = i ? out[i - 1].bytes.n : 0, suffix = out[i].bytes.n;
        if (prefix[i] < 0 || (uint64_t)prefix[i] > before)
            return damaged("a string's prefix is longer than the string before");
        total += (uint64_t)prefix[i] + suffix;
        MX_TRY(mx_compression_plausible(n_bytes, total));
        uint8_t *s = mx_arena_alloc(d->arena, (size_t)prefix[i] + suffix);
        if (prefix[i])
            memcpy(s, out[i - 1].bytes.p, (size_t)prefix[i]);
        if (suffix)
            memcpy(s + prefix[i], out[i].bytes.p, suffix);
        out[i].bytes.p = s;
        out[i].bytes.n = (size_t)prefix[i] + suffix;
    }
    return MX_OK;
}

static mx_status delta_numbers(const mx_pq_decoder *d, const uint8_t *p, size_t n_bytes,
                               mx_pq_value *out, int64_t n)
{
    int64_t *v = mx_arena_alloc(d->arena, sizeof *v * (size_t)n);
    size_t used;
    MX_TRY(delta_ints(p, n_bytes, v, n, &used));
    for (int64_t i = 0; i < n; i++)
        out[i].i = d->leaf->type == MX_PQ_INT32 ? (int32_t)v[i] : v[i];
    return MX_OK;
}

static mx_status rle_booleans(const mx_pq_decoder *d, const uint8_t *p, size_t n_bytes,
                              mx_pq_value *out, int64_t n)
{
    size_t used;
    if (n_bytes < 4 || mx_le32(p) > n_bytes - 4)
        return damaged("booleans end early");
    uint32_t *v = mx_arena_alloc(d->arena, sizeof *v * (size_t)n);
    MX_TRY(mx_pq_hybrid(p + 4, mx_le32(p), 1, v, n, &used));
    for (int64_t i = 0; i < n; i++)
        out[i].i = v[i];
    return MX_OK;
}

mx_status mx_pq_decode(const mx_pq_decoder *d, const uint8_t *p, size_t n_bytes, mx_pq_value *out,
                       int64_t n)
{
    mx_pq_type t = d->leaf->type;
    bool is_int = t == MX_PQ_INT32 || t == MX_PQ_INT64;
    if (n == 0)
        return MX_OK;
    if (d->encoding == 0)
        return plain(d, p, n_bytes, out, n);
    if (d->encoding == 2 || d->encoding == 8)
        return dictionary(d, p, n_bytes, out, n);
    if (d->encoding == 3 && t == MX_PQ_BOOLEAN)
        return rle_booleans(d, p, n_bytes, out, n);
    if (d->encoding == 5 && is_int)
        return delta_numbers(d, p, n_bytes, out, n);
    if (d->encoding == 6 && t == MX_PQ_BYTES)
        return delta_length(d, p, n_bytes, out, n);
    if (d->encoding == 7 && (t == MX_PQ_BYTES || t == MX_PQ_FIXED))
        return delta_bytes(d, p, n_bytes, out, n);
    if (d->encoding == 9)
        return byte_stream_split(d, p, n_bytes, out, n);
    return mx_fail(MX_INPUT,
                   "values of column \"%s\" use encoding %d, which is not supported for its type; "
                   "write the file again with plain or dictionary encoding",
                   d->leaf->name, d->encoding);
}

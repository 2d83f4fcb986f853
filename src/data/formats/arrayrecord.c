/* arrayrecord.c - ArrayRecord files: Riegeli chunks with an index at the end, for random access.
 *
 * Blocks  at every multiple of 64 KiB stands a block header of 24 bytes that interrupts whatever
 *         is there.
 * Chunk   header_hash 8 | data_size 8 | data_hash 8 | type 1, num_records 7 | decoded_size 8 |
 *         data. Both hashes are HighwayHash64 under the key "Riegeli/records\n" twice. Types that
 *         occur: 's' signature (the first chunk), 'r' records, 'p' padding, 'm' metadata.
 * 'r'     compression byte (0, 'b' brotli, 'z' zstd, 's' snappy) | varint size of the sizes
 *         block | sizes block | values block. A compressed block begins with its decompressed
 *         size. Sizes are varints; values are the records end to end.
 * Index   the last 64 KiB hold the postscript, a chunk with copies of {1: footer offset, 2:
 *         magic}. The footer chunk's first record is metadata {1: {1 version, 2 chunks,
 *         3 records, 4 options}}, then {1: chunk offset, 2: decoded size, 3: records} per chunk.
 * A record is found by binary search over chunks, one read and one decompression; the last chunk
 * is kept, so reading in order decompresses each once. Transposed chunks ('t') are not supported.
 */
#include "data/formats/compression.h"
#include "data/formats/highway.h"
#include "data/formats/payload.h"
#include "data/formats/source.h"

#include <string.h>

enum { BLOCK = 1 << 16, BLOCK_HEADER = 24, CHUNK_HEADER = 40 };
#define MAGIC 0x71930e704fdae05eu

static const uint64_t hash_key[4] = {0x2f696c6567656952u, 0x0a7364726f636572u, 0x2f696c6567656952u,
                                     0x0a7364726f636572u};

typedef struct {
    uint8_t *p;
    size_t n, cap;
} buffer;

typedef struct {
    int64_t *chunk_at,
        *chunk_first; /* offsets; number of each chunk's first record, n_chunks + 1 */
    int64_t n_chunks;
    char options[128];
    /* the chunk decoded last */
    int64_t chunk; /* -1: none */
    buffer raw, values, sizes;
    mx_decompressor codec;
    size_t *record_at; /* (records + 1) in values */
    int64_t cap_record_at, n_in_chunk;
    const uint8_t *data; /* the values: decompressed, or inside raw */
} state;

static void grow(buffer *b, size_t n)
{
    if (n > b->cap) {
        b->cap = n > 2 * b->cap ? n : 2 * b->cap;
        b->p = mx_realloc(b->p, b->cap);
    }
    b->n = n;
}

/* --- chunks --- */

/* n bytes of chunk from file position *at, without block headers; *at moves past them. */
static mx_status read_logical(mx_source *s, int64_t *at, uint8_t *out, size_t n)
{
    while (n) {
        if (*at % BLOCK == 0)
            *at += BLOCK_HEADER;
        size_t k = (size_t)(BLOCK - *at % BLOCK);
        k = k < n ? k : n;
        const uint8_t *p;
        size_t got;
        MX_TRY(mx_shard_peek(&s->file, *at, k, &p, &got));
        if (got < k)
            return mx_fail(MX_INPUT,
                           "the file ends inside a chunk: it is truncated, fetch it again");
        memcpy(out, p, k);
        out += k;
        n -= k;
        *at += (int64_t)k;
    }
    return MX_OK;
}

/* Header and data of the chunk at `at` into t->raw; hashes verified. */
static mx_status read_chunk(mx_source *s, int64_t at, int64_t *n_records, uint64_t *decoded_bytes)
{
    state *t = s->state;
    uint8_t h[CHUNK_HEADER];
    int64_t pos = at;
    MX_TRY(read_logical(s, &pos, h, CHUNK_HEADER));
    if (mx_highway64(hash_key, h + 8, CHUNK_HEADER - 8) != mx_le64(h))
        return mx_fail(MX_INPUT,
                       "the hash of the chunk header at offset %lld is wrong: the file is damaged",
                       (long long)at);
    uint64_t n = mx_le64(h + 8);
    *n_records = (int64_t)(mx_le64(h + 24) >> 8);
    *decoded_bytes = mx_le64(h + 32);
    if (n > (uint64_t)s->file.size_bytes || n > s->options.max_record_bytes + (1 << 20))
        return mx_fail(MX_INPUT, "a chunk of %llu bytes at offset %lld: the file is truncated, or "
                       "max_record_bytes is too small", (unsigned long long)n, (long long)at);
    if (h[24] != 'r')
        return mx_fail(MX_INPUT,
                       "the chunk at offset %lld is of type '%c', expected records ('r')%s",
                       (long long)at, h[24] >= ' ' && h[24] < 127 ? h[24] : '?',
                       h[24] == 't' ? "; write the file without transpose" : "");
    grow(&t->raw, n);
    MX_TRY(read_logical(s, &pos, t->raw.p, n));
    if (mx_highway64(hash_key, t->raw.p, n) != mx_le64(h + 16))
        return mx_fail(
            MX_INPUT,
            "the hash of the chunk at offset %lld is wrong: the file is damaged, fetch it "
            "again",
            (long long)at);
    return MX_OK;
}

/* One compressed block; without compression *out is the block itself. */
static mx_status unfold(mx_decompressor *c, uint8_t kind, const uint8_t *p, size_t n, buffer *b,
                        const uint8_t **out, size_t *n_out, uint64_t limit)
{
    mx_proto m = {p, p + n, false};
    uint64_t raw;
    *out = p;
    *n_out = n;
    if (kind == 0)
        return MX_OK;
    mx_compression codec = kind == 'z'   ? MX_COMPRESSION_ZSTD
                           : kind == 'b' ? MX_COMPRESSION_BROTLI
                                         : MX_COMPRESSION_SNAPPY;
    if (kind != 'z' && kind != 'b' && kind != 's')
        return mx_fail(MX_INPUT, "a chunk is compressed by an unknown method (byte %d)", kind);
    if (!mx_proto_varint(&m, &raw) || raw > limit)
        return mx_fail(MX_INPUT, "a chunk decompresses to more bytes than its header says");
    MX_TRY(mx_compression_plausible((size_t)(m.end - m.p), raw));
    grow(b, raw);
    *out = b->p;
    *n_out = raw;
    return raw || m.p < m.end ? mx_decompress(c, codec, m.p, (size_t)(m.end - m.p), b->p, raw)
                              : MX_OK;
}

static mx_status load_chunk(mx_source *s, int64_t at)
{
    state *t = s->state;
    int64_t n_records;
    uint64_t decoded;
    t->chunk = -1;
    MX_TRY(read_chunk(s, at, &n_records, &decoded));
    mx_proto m = {t->raw.p, t->raw.p + t->raw.n, false};
    uint64_t sizes_bytes, limit = (uint64_t)s->options.max_record_bytes * 4;
    if (t->raw.n < 2)
        return mx_fail(MX_INPUT, "a chunk of %zu bytes", t->raw.n);
    uint8_t kind = *m.p++;
    if (!mx_proto_varint(&m, &sizes_bytes) || sizes_bytes > (uint64_t)(m.end - m.p) ||
        decoded > limit)
        return mx_fail(MX_INPUT, "the sizes in the chunk at offset %lld do not fit", (long long)at);
    const uint8_t *sizes, *values;
    size_t n_sizes, n_values;
    MX_TRY(unfold(&t->codec, kind, m.p, sizes_bytes, &t->sizes, &sizes, &n_sizes, limit));
    m.p += sizes_bytes;
    MX_TRY(unfold(&t->codec, kind, m.p, (size_t)(m.end - m.p), &t->values, &values, &n_values,
                  decoded));
    if (n_records < 0 || (uint64_t)n_records > n_sizes || n_values != decoded)
        return mx_fail(
            MX_INPUT,
            "the chunk at offset %lld holds %zu bytes for %lld records, its header says %llu",
            (long long)at, n_values, (long long)n_records, (unsigned long long)decoded);
    if (n_records + 1 > t->cap_record_at) {
        t->cap_record_at = n_records + 1;
        t->record_at = mx_realloc(t->record_at, sizeof *t->record_at * (size_t)t->cap_record_at);
    }
    mx_proto z = {sizes, sizes + n_sizes, false};
    size_t end = 0;
    t->record_at[0] = 0;
    for (int64_t i = 0; i < n_records; i++) {
        uint64_t k;
        if (!mx_proto_varint(&z, &k) || k > n_values - end)
            return mx_fail(MX_INPUT,
                           "the records of the chunk at offset %lld are longer than the chunk",
                           (long long)at);
        end += k;
        t->record_at[i + 1] = end;
    }
    t->data = values;
    t->n_in_chunk = n_records;
    return MX_OK;
}

/* --- the index --- */

static bool fields(const uint8_t *p, size_t n, uint64_t out[4])
{
    mx_proto m = {p, p + n, false}, bytes;
    int number, wire;
    uint64_t v;
    memset(out, 0, 4 * sizeof *out);
    while (mx_proto_next(&m, &number, &wire, &v, &bytes))
        if (number >= 1 && number <= 4)
            out[number - 1] = v;
    return !m.bad;
}

static void read_options(state *t, const uint8_t *p, size_t n)
{
    mx_proto m = {p, p + n, false}, inner, text;
    int number, wire;
    uint64_t v;
    while (mx_proto_next(&m, &number, &wire, &v, &inner))
        while (wire == 2 && mx_proto_next(&inner, &number, &wire, &v, &text))
            if (number == 4 && wire == 2 && v < sizeof t->options)
                memcpy(t->options, text.p, v), t->options[v] = 0;
}

static mx_status read_index(mx_source *s)
{
    state *t = s->state;
    uint64_t f[4];
    int64_t size = s->file.size_bytes;
    if (size < 2 * BLOCK || size % BLOCK)
        return mx_fail(
            MX_INPUT,
            "an ArrayRecord file is a whole number of 64 KiB blocks, at least two; this one has "
            "%lld bytes: it is truncated or something else",
            (long long)size);
    MX_TRY(load_chunk(s, size - BLOCK));
    if (t->n_in_chunk < 1 || !fields(t->data, t->record_at[1], f) || f[1] != MAGIC)
        return mx_fail(MX_INPUT,
                       "the postscript in the last 64 KiB is not that of an ArrayRecord file");
    if (f[0] >= (uint64_t)size)
        return mx_fail(MX_INPUT, "the index is at offset %llu of a file of %lld bytes",
                       (unsigned long long)f[0], (long long)size);
    MX_TRY(mx_status_wrap(load_chunk(s, (int64_t)f[0]), "the index"));
    t->n_chunks = t->n_in_chunk > 0 ? t->n_in_chunk - 1 : 0;
    t->chunk_at = mx_realloc(NULL, sizeof *t->chunk_at * (size_t)(t->n_chunks + 1));
    t->chunk_first = mx_realloc(NULL, sizeof *t->chunk_first * (size_t)(t->n_chunks + 1));
    t->chunk_first[0] = 0;
    if (t->n_in_chunk > 0)
        read_options(t, t->data, t->record_at[1]);
    for (int64_t i = 0; i < t->n_chunks; i++) {
        const uint8_t *p = t->data + t->record_at[i + 1];
        size_t n = t->record_at[i + 2] - t->record_at[i + 1];
        if (!fields(p, n, f) || f[0] >= (uint64_t)size || f[2] > (uint64_t)1 << 40)
            return mx_fail(MX_INPUT, "entry %lld of the index is damaged", (long long)i);
        t->chunk_at[i] = (int64_t)f[0];
        t->chunk_first[i + 1] = t->chunk_first[i] + (int64_t)f[2];
    }
    s->n_records = t->chunk_first[t->n_chunks];
    return MX_OK;
}

static mx_status arrayrecord_open(mx_source *s)
{
    state *t = mx_realloc(NULL, sizeof *t);
    *t = (state){.chunk = -1};
    s->state = t;
    mx_status st = read_index(s);
    t->chunk = -1;
    return mx_status_wrap(st, "%s", s->file.path);
}

static mx_status arrayrecord_read(mx_source *s, int64_t i, mx_record *r)
{
    state *t = s->state;
    int64_t at = mx_block_of(t->chunk_first, t->n_chunks, i);
    r->offset = t->chunk_at[at];
    if (t->chunk != at) {
        MX_TRY(load_chunk(s, t->chunk_at[at]));
        if (t->n_in_chunk != t->chunk_first[at + 1] - t->chunk_first[at])
            return mx_fail(MX_INPUT, "the chunk has %lld records and the index says %lld",
                           (long long)t->n_in_chunk,
                           (long long)(t->chunk_first[at + 1] - t->chunk_first[at]));
        t->chunk = at;
    }
    int64_t k = i - t->chunk_first[at];
    return mx_payload_decode(s, t->data + t->record_at[k], t->record_at[k + 1] - t->record_at[k],
                             r);
}

static void arrayrecord_inspect(mx_source *s, mx_str *out)
{
    const state *t = s->state;
    mx_str_addf(out, "chunks: %lld\n", (long long)t->n_chunks);
    if (t->options[0])
        mx_str_addf(out, "writer options: %s\n", t->options);
}

static void arrayrecord_close(mx_source *s)
{
    state *t = s->state;
    if (t) {
        mx_free(t->chunk_at);
        mx_free(t->chunk_first);
        mx_free(t->raw.p);
        mx_free(t->values.p);
        mx_free(t->sizes.p);
        mx_free(t->record_at);
        mx_decompressor_fini(&t->codec);
    }
    mx_free(t);
}

/* The signature chunk, without its hashes: a block header that says nothing, then an empty 's'
 * chunk. */
static bool arrayrecord_sniff(const uint8_t *head, size_t n)
{
    return n >= 64 && mx_le64(head) == 0x3f4a880dd170af83u && head[48] == 's';
}

const mx_source_kind mx_source_kind_arrayrecord = {
    .name = "arrayrecord", .doc = "ArrayRecord of tf.train.Example, JSON or text",
    .suffixes = " .arrayrecord .array_record .ar ",
    .sniff = arrayrecord_sniff, .open = arrayrecord_open, .read = arrayrecord_read,
    .inspect = arrayrecord_inspect, .close = arrayrecord_close,
};

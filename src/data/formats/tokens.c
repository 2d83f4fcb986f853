/* tokens.c - files of token ids: NumPy .npy, and raw .bin.
 *
 *   .npy   "\x93NUMPY", version, header length, a Python dictionary in text, then the array.
 *          Integers of 2, 4 or 8 bytes, little-endian, C order. The header is matched, never
 *          evaluated. Two dims: every row is a record. One dim: a stream of tokens, cut as below.
 *   .bin   a bare array of uint16 (token_type=uint32 or int32 for others); a header of 256 int32
 *          that starts with 20240520 (version 1, number of tokens) is recognised and skipped.
 * A stream is cut into records of record_tokens + 1 that overlap by one token: each record trains
 * record_tokens predictions, and together they train every one once.
 */
#include "data/formats/source.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    int64_t at, n_tokens; /* where the array begins; its elements */
    int64_t row;          /* tokens of a row, 0: a stream */
    int width;            /* bytes of an element */
    bool is_signed;
} state;

static bool npy_sniff(const uint8_t *head, size_t n)
{
    return n >= 10 && memcmp(head, "\x93NUMPY", 6) == 0;
}

static bool set_type(state *t, const char *type)
{
    static const struct {
        const char *name;
        int width;
        bool is_signed;
    } types[] = {{"uint16", 2, false}, {"uint32", 4, false}, {"int32", 4, true}, {"int64", 8, true},
                 {"<u2", 2, false},    {"<u4", 4, false},    {"<i4", 4, true},   {"<i8", 8, true},
                 {"<i2", 2, true},     {"<u8", 8, true}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, type) == 0) {
            t->width = types[i].width;
            t->is_signed = types[i].is_signed;
            return true;
        }
    return false;
}

static mx_status open_npy(mx_source *s, state *t, const uint8_t *p, size_t got)
{
    char header[1024] = {0}, descr[16] = {0}, order[8] = {0};
    bool v1 = p[6] == 1;
    size_t at = v1 ? 10 : 12,
           n = v1 ? (size_t)(p[8] | p[9] << 8) : (got >= 12 ? mx_le32(p + 8) : 0);
    if (p[6] < 1 || p[6] > 3 || n == 0 || n >= sizeof header)
        return mx_fail(MX_INPUT,
                       "%s: not a NumPy file of token ids: version %d, a header of %zu bytes",
                       s->file.path, p[6], n);
    MX_TRY(mx_shard_read(&s->file, (int64_t)at, header, n));
    const char *d = strstr(header, "'descr':"), *o = strstr(header, "'fortran_order':"),
               *sh = strstr(header, "'shape':");
    long long a = -1, b = -1;
    int dims = sh ? sscanf(sh, "'shape': (%lld, %lld", &a, &b) : 0;
    if (!d || !o || sscanf(d, "'descr': '%15[^']'", descr) != 1 ||
        sscanf(o, "'fortran_order': %7[a-zA-Z]", order) != 1 || dims < 1 || a < 0 ||
        (dims == 2 && b <= 0) || strcmp(order, "False") != 0 || !set_type(t, descr))
        return mx_fail(MX_INPUT,
                       "%s: expected a C-order array of one or two dims of little-endian integers "
                       "(<u2, <u4, <i4, <i8); the NumPy header says %.200s",
                       s->file.path, header);
    t->row = dims == 2 ? b : 0;
    t->at = (int64_t)(at + n);
    if (__builtin_mul_overflow(a, dims == 2 ? b : 1, &t->n_tokens))
        return mx_fail(MX_INPUT, "%s: the NumPy header's shape overflows", s->file.path);
    return MX_OK;
}

static mx_status open_bin(mx_source *s, state *t, const uint8_t *p, size_t got)
{
    const char *type = s->options.token_type ? s->options.token_type : "uint16";
    if (!set_type(t, type))
        return mx_fail(MX_USAGE, "token_type=%s: expected uint16, uint32, int32 or int64", type);
    if (got >= 12 && s->file.size_bytes >= 1024 && mx_le32(p) == 20240520 && mx_le32(p + 4) == 1) {
        t->at = 1024;
        t->n_tokens = mx_le32(p + 8);
        return MX_OK;
    }
    if (s->file.size_bytes % t->width)
        return mx_fail(MX_INPUT,
                       "%s: %lld bytes are not a whole number of %s tokens; is token_type right?",
                       s->file.path, (long long)s->file.size_bytes, type);
    t->n_tokens = s->file.size_bytes / t->width;
    return MX_OK;
}

static mx_status tokens_open(mx_source *s)
{
    state *t = mx_realloc(NULL, sizeof *t);
    *t = (state){0};
    s->state = t;
    const uint8_t *p;
    size_t got;
    MX_TRY(mx_shard_peek(&s->file, 0, 12, &p, &got));
    MX_TRY(npy_sniff(p, got) ? open_npy(s, t, p, got) : open_bin(s, t, p, got));
    int64_t bytes;
    if (__builtin_mul_overflow(t->n_tokens, t->width, &bytes) || bytes > s->file.size_bytes - t->at)
        return mx_fail(
            MX_INPUT,
            "%s: the header promises %lld tokens of %d bytes, but only %lld bytes follow: "
            "the file is truncated; fetch it again",
            s->file.path, (long long)t->n_tokens, t->width,
            (long long)(s->file.size_bytes - t->at));
    int64_t step = s->options.record_tokens;
    s->n_records = t->row ? t->n_tokens / t->row : t->n_tokens > 1 ? (t->n_tokens - 2) / step + 1
                                                                   : t->n_tokens;
    return MX_OK;
}

static int64_t element(const state *t, const uint8_t *p)
{
    if (t->width == 2)
        return t->is_signed ? (int16_t)(p[0] | p[1] << 8) : p[0] | p[1] << 8;
    if (t->width == 4)
        return t->is_signed ? (int32_t)mx_le32(p) : (int64_t)mx_le32(p);
    return (int64_t)mx_le64(p);
}

static mx_status tokens_read(mx_source *s, int64_t i, mx_record *r)
{
    state *t = s->state;
    int64_t step = t->row ? t->row : s->options.record_tokens;
    int64_t first = i * step, n = t->row ? step : step + 1;
    n = n < t->n_tokens - first ? n : t->n_tokens - first;
    r->offset = t->at + first * t->width;
    const uint8_t *p;
    size_t got, need = (size_t)(n * t->width);
    MX_TRY(mx_shard_peek(&s->file, r->offset, need, &p, &got));
    int32_t *ids = (int32_t *)mx_record_reserve(r, "ids", 3, MX_CELL_IDS, (size_t)n * 4);
    int64_t limit = s->options.vocab_size ? s->options.vocab_size : INT32_MAX;
    for (int64_t k = 0; k < n; k++) {
        int64_t id = element(t, p + k * t->width);
        if (id < 0 || id >= limit)
            return mx_fail(MX_INPUT,
                           "token %lld of the record is %lld, outside the vocabulary of %lld; is "
                           "this the file's tokenizer, and token_type right?",
                           (long long)k, (long long)id, (long long)limit);
        ids[k] = (int32_t)id;
    }
    mx_record_commit(r, (size_t)n * 4);
    return MX_OK;
}

static void tokens_inspect(mx_source *s, mx_str *out)
{
    const state *t = s->state;
    mx_str_addf(out, "tokens: %lld, %d bytes each\n", (long long)t->n_tokens, t->width);
    if (t->row)
        mx_str_addf(out, "row: %lld tokens\n", (long long)t->row);
}

static void tokens_close(mx_source *s)
{
    mx_free(s->state);
}

const mx_source_kind mx_source_kind_tokens = {
    .name = "tokens", .doc = "token ids: .npy, or raw .bin", .suffixes = " .npy .bin ",
    .sniff = npy_sniff, .open = tokens_open, .read = tokens_read, .inspect = tokens_inspect,
    .close = tokens_close,
};

/* arrow_array.c - record batches: buffers in field order, and values out of them.
 *
 *   RecordBatch  0 length, 1 nodes {length, nulls}, 2 buffers {offset, bytes}, 3 compression {0
 *                codec: 0 lz4 frame, 1 zstd}, 4 number of data buffers of each view column
 *   a field has  validity bits (none for null type), then: fixed width: values; text and binary:
 *                offsets, bytes; lists: offsets; views: 16-byte views, data buffers; structs:
 *                nothing
 * A compressed buffer begins with its size as i64, or -1 when it is stored as it is.
 * Buffers are checked against the array's length when it is built; offsets when a value is read.
 */
#include "data/formats/arrow.h"
#include "data/formats/data_url.h"

#include "data/formats/json_scan.h"
#include <string.h>

typedef struct {
    const mx_arrow_batch *b;
    size_t nodes, buffers, variadic;
    int64_t n_nodes, n_buffers, n_variadic, at_node, at_buffer, at_variadic;
    int codec; /* -1: none */
} ctx;

static mx_status damaged(const mx_arrow_field *f, const char *what)
{
    return mx_fail(MX_INPUT, "column \"%s\": %s: the record batch is damaged", f->name, what);
}

/* The next buffer; decompressed unless it is to be skipped. */
static mx_status next_buffer(ctx *c, const mx_arrow_field *f, bool skip, mx_arrow_buffer *out)
{
    *out = (mx_arrow_buffer){0};
    if (c->at_buffer >= c->n_buffers)
        return damaged(f, "a buffer is missing");
    size_t at = c->buffers + 16 * (size_t)c->at_buffer++;
    int64_t offset = mx_flatbuf_i64(c->b->meta, at), n = mx_flatbuf_i64(c->b->meta, at + 8);
    if (offset < 0 || n < 0 || offset > c->b->body_bytes || n > c->b->body_bytes - offset)
        return damaged(f, "a buffer lies outside the body");
    const uint8_t *p = c->b->body + offset;
    if (skip || n == 0)
        return MX_OK;
    *out = (mx_arrow_buffer){p, n};
    if (c->codec < 0)
        return MX_OK;
    if (n < 8)
        return damaged(f, "a compressed buffer has no size");
    int64_t raw = (int64_t)mx_le64(p);
    *out = (mx_arrow_buffer){p + 8, n - 8};
    if (raw == -1)
        return MX_OK;
    if (raw < 0)
        return damaged(f, "a compressed buffer has a size below 0");
    MX_TRY(mx_compression_plausible((size_t)n - 8, (uint64_t)raw));
    uint8_t *q = mx_arena_alloc(c->b->arena, (size_t)raw + 1);
    *out = (mx_arrow_buffer){q, raw};
    return mx_decompress(NULL, c->codec == 0 ? MX_COMPRESSION_LZ4_FRAME : MX_COMPRESSION_ZSTD,
                         p + 8, (size_t)n - 8, q, (size_t)raw);
}

static bool holds(const mx_arrow_buffer *b, int64_t count, int64_t bits)
{
    __int128 need = ((__int128)count * bits + 7) / 8;
    return need <= b->n;
}

static int offset_bits(mx_arrow_type t)
{
    return t == MX_ARROW_LARGE_UTF8 || t == MX_ARROW_LARGE_BINARY || t == MX_ARROW_LARGE_LIST ? 64
                                                                                              : 32;
}

static mx_status read_array(ctx *c, const mx_arrow_field *f, bool skip, mx_arrow_array *a);

static mx_status read_views(ctx *c, const mx_arrow_field *f, bool skip, mx_arrow_array *a)
{
    MX_TRY(next_buffer(c, f, skip, &a->data));
    if (c->at_variadic >= c->n_variadic)
        return damaged(f, "the number of data buffers is missing");
    a->n_more = mx_flatbuf_i64(c->b->meta, c->variadic + 8 * (size_t)c->at_variadic++);
    if (a->n_more < 0 || a->n_more > c->n_buffers - c->at_buffer)
        return damaged(f, "data buffers are missing");
    a->more = MX_NEW_N(c->b->arena, mx_arrow_buffer, a->n_more ? a->n_more : 1);
    for (int64_t i = 0; i < a->n_more; i++)
        MX_TRY(next_buffer(c, f, skip, &a->more[i]));
    return skip || holds(&a->data, a->length, 128) ? MX_OK : damaged(f, "views are missing");
}

/* The buffers after the validity bits. */
static mx_status read_values(ctx *c, const mx_arrow_field *f, bool skip, mx_arrow_array *a)
{
    bool ok = true;
    switch (f->type) {
    case MX_ARROW_UTF8:
    case MX_ARROW_BINARY:
    case MX_ARROW_LARGE_UTF8:
    case MX_ARROW_LARGE_BINARY:
        MX_TRY(next_buffer(c, f, skip, &a->offsets));
        MX_TRY(next_buffer(c, f, skip, &a->data));
        ok = a->length == 0 || holds(&a->offsets, a->length + 1, offset_bits(f->type));
        break;
    case MX_ARROW_LIST:
    case MX_ARROW_LARGE_LIST:
    case MX_ARROW_MAP:
        MX_TRY(next_buffer(c, f, skip, &a->offsets));
        ok = a->length == 0 || holds(&a->offsets, a->length + 1, offset_bits(f->type));
        break;
    case MX_ARROW_UTF8_VIEW:
    case MX_ARROW_BINARY_VIEW: return read_views(c, f, skip, a);
    case MX_ARROW_STRUCT:
    case MX_ARROW_FIXED_LIST: break;
    case MX_ARROW_FIXED_BINARY:
    case MX_ARROW_DECIMAL:
        MX_TRY(next_buffer(c, f, skip, &a->data));
        ok = holds(&a->data, a->length, 8 * f->fixed);
        break;
    default:
        MX_TRY(next_buffer(c, f, skip, &a->data));
        ok = holds(&a->data, a->length, f->bits);
    }
    return ok || skip ? MX_OK : damaged(f, "a buffer is too short");
}

static mx_status read_array(ctx *c, const mx_arrow_field *f, bool skip, mx_arrow_array *a)
{
    if (c->at_node >= c->n_nodes)
        return damaged(f, "a node is missing");
    *a = (mx_arrow_array){.field = f, .skipped = skip};
    a->length = mx_flatbuf_i64(c->b->meta, c->nodes + 16 * (size_t)c->at_node++);
    if (a->length < 0 || a->length > (int64_t)1 << 40)
        return damaged(f, "its length is wrong");
    if (f->type == MX_ARROW_NULL)
        return MX_OK;
    MX_TRY(next_buffer(c, f, skip, &a->valid));
    if (a->valid.n && !holds(&a->valid, a->length, 1))
        return damaged(f, "validity bits are missing");
    MX_TRY(read_values(c, f, skip, a));
    a->children = MX_NEW_N(c->b->arena, mx_arrow_array, f->n_children ? f->n_children : 1);
    for (int i = 0; i < f->n_children; i++) {
        MX_TRY(read_array(c, &f->children[i], skip, &a->children[i]));
        int64_t need = f->type == MX_ARROW_STRUCT       ? a->length
                       : f->type == MX_ARROW_FIXED_LIST ? a->length * f->fixed
                                                        : 0;
        if (a->children[i].length < need)
            return damaged(f, "a child is too short");
    }
    if (f->has_dictionary && !skip) {
        for (int i = 0; i < c->b->n_dictionaries; i++)
            if (c->b->dictionaries[i]->id == f->dictionary_id)
                a->dictionary = &c->b->dictionaries[i]->array;
        if (!a->dictionary)
            return damaged(f, "its dictionary is missing");
    }
    return MX_OK;
}

mx_status mx_arrow_batch_read(const mx_arrow_batch *b, const mx_arrow_field *fields, int n_fields,
                              mx_arrow_array *out, int64_t *n_rows)
{
    ctx c = {.b = b, .codec = -1};
    c.nodes = mx_flatbuf_vector(b->meta, b->batch, 1, 16, &c.n_nodes);
    c.buffers = mx_flatbuf_vector(b->meta, b->batch, 2, 16, &c.n_buffers);
    c.variadic = mx_flatbuf_vector(b->meta, b->batch, 4, 8, &c.n_variadic);
    size_t compression = mx_flatbuf_table(b->meta, b->batch, 3);
    if (compression)
        c.codec = (int)mx_flatbuf_int(b->meta, compression, 0, 1, 0);
    *n_rows = mx_flatbuf_int(b->meta, b->batch, 0, 8, 0);
    if (b->meta->bad || *n_rows < 0 || c.codec > 1)
        return mx_fail(MX_INPUT, "the head of a record batch is damaged");
    for (int i = 0; i < n_fields; i++) {
        MX_TRY(read_array(&c, &fields[i], b->wanted && !b->wanted[i], &out[i]));
        if (out[i].length != *n_rows)
            return damaged(&fields[i], "its length is not the batch's");
    }
    return MX_OK;
}

/* --- values --- */

bool mx_arrow_is_text(const mx_arrow_field *f)
{
    const mx_arrow_field *v = f->has_dictionary ? f->values : f;
    return v->type == MX_ARROW_UTF8 || v->type == MX_ARROW_LARGE_UTF8 ||
           v->type == MX_ARROW_BINARY || v->type == MX_ARROW_LARGE_BINARY ||
           v->type == MX_ARROW_UTF8_VIEW || v->type == MX_ARROW_BINARY_VIEW ||
           v->type == MX_ARROW_FIXED_BINARY || v->type == MX_ARROW_DECIMAL;
}

static int64_t integer(const mx_arrow_array *a, int64_t i)
{
    const uint8_t *p = a->data.p + i * (a->field->bits / 8);
    uint64_t v = 0;
    for (int k = 0; k < a->field->bits / 8; k++)
        v |= (uint64_t)p[k] << (8 * k);
    int unused = 64 - a->field->bits;
    return a->field->is_signed ? (int64_t)(v << unused) >> unused : (int64_t)v;
}

/* The dictionary, or the later part of it, that holds value *k; *k becomes its place there. NULL:
 * there is no such value. */
static const mx_arrow_array *dictionary_part(const mx_arrow_array *a, int64_t *k)
{
    const mx_arrow_array *d = a->dictionary;
    for (; d && *k >= d->length; d = d->extension)
        *k -= d->length;
    return *k >= 0 ? d : NULL;
}

bool mx_arrow_is_null(const mx_arrow_array *a, int64_t i)
{
    if (a->field->type == MX_ARROW_NULL)
        return true;
    if (a->valid.n && !(a->valid.p[i >> 3] >> (i & 7) & 1))
        return true;
    if (!a->dictionary)
        return false;
    int64_t k = integer(a, i);
    const mx_arrow_array *d = dictionary_part(a, &k);
    return d && mx_arrow_is_null(d, k);
}

static int64_t offset(const mx_arrow_array *a, int64_t i)
{
    return offset_bits(a->field->type) == 64 ? (int64_t)mx_le64(a->offsets.p + 8 * i)
                                             : (int32_t)mx_le32(a->offsets.p + 4 * i);
}

/* A view: length u32, then up to 12 bytes of the value, or 4 bytes of it, buffer u32, offset u32.
 * */
static bool view(const mx_arrow_array *a, int64_t i, const char **p, size_t *n)
{
    const uint8_t *v = a->data.p + 16 * i;
    *n = mx_le32(v);
    *p = (const char *)v + 4;
    if (*n <= 12)
        return true;
    uint32_t buffer = mx_le32(v + 8), at = mx_le32(v + 12);
    if (buffer >= a->n_more || at > (uint64_t)a->more[buffer].n ||
        *n > (uint64_t)a->more[buffer].n - at)
        return false;
    *p = (const char *)a->more[buffer].p + at;
    return true;
}

bool mx_arrow_bytes(const mx_arrow_array *a, int64_t i, const char **p, size_t *n)
{
    if (a->dictionary) {
        int64_t k = integer(a, i);
        const mx_arrow_array *d = dictionary_part(a, &k);
        return d && mx_arrow_bytes(d, k, p, n);
    }
    mx_arrow_type t = a->field->type;
    if (t == MX_ARROW_UTF8_VIEW || t == MX_ARROW_BINARY_VIEW)
        return view(a, i, p, n);
    if (t == MX_ARROW_FIXED_BINARY || t == MX_ARROW_DECIMAL) {
        *p = (const char *)a->data.p + i * a->field->fixed;
        *n = (size_t)a->field->fixed;
        return true;
    }
    int64_t from = offset(a, i), to = offset(a, i + 1);
    if (from < 0 || to < from || to > a->data.n)
        return false;
    *p = a->data.n ? (const char *)a->data.p + from : "";
    *n = (size_t)(to - from);
    return true;
}

static double half(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 0 ? m / 16777216.0 : e == 31 ? (m ? __builtin_nan("") : __builtin_inf()) : 0;
    if (e > 0 && e < 31)
        v = __builtin_ldexp(1 + m / 1024.0, e - 15);
    return h >> 15 ? -v : v;
}

static double floating(const mx_arrow_array *a, int64_t i)
{
    float f;
    double d;
    const uint8_t *p = a->data.p + i * (a->field->bits / 8);
    if (a->field->bits == 16)
        return half((uint16_t)(p[0] | p[1] << 8));
    if (a->field->bits == 32)
        return memcpy(&f, p, 4), (double)f;
    return memcpy(&d, p, 8), d;
}

static const char *write_list(const mx_arrow_array *a, int64_t i, size_t max_bytes, mx_str *out)
{
    bool fixed = a->field->type == MX_ARROW_FIXED_LIST;
    int64_t from = fixed ? i * a->field->fixed : offset(a, i);
    int64_t to = fixed ? from + a->field->fixed : offset(a, i + 1);
    const char *bad = NULL;
    if (from < 0 || to < from || to > a->children[0].length)
        return "the offsets of a list are damaged";
    mx_str_add(out, "[");
    for (int64_t k = from; k < to && !bad; k++) {
        if (k > from)
            mx_str_add(out, ", ");
        bad = mx_arrow_write(&a->children[0], k, max_bytes, out);
    }
    mx_str_add(out, "]");
    return bad;
}

static const char *write_struct(const mx_arrow_array *a, int64_t i, size_t max_bytes, mx_str *out)
{
    const char *bad = NULL;
    mx_str_add(out, "{");
    for (int k = 0; k < a->field->n_children && !bad; k++) {
        const mx_arrow_array *c = &a->children[k];
        mx_str_add(out, k ? ", " : "");
        mx_json_write_string(out, c->field->name, strlen(c->field->name));
        mx_str_add(out, ": ");
        bad = mx_arrow_write(c, i, max_bytes, out);
    }
    mx_str_add(out, "}");
    return bad;
}

static bool holds_bytes(const mx_arrow_field *f)
{
    const mx_arrow_field *v = f->has_dictionary ? f->values : f;
    return v->type == MX_ARROW_BINARY || v->type == MX_ARROW_LARGE_BINARY ||
           v->type == MX_ARROW_BINARY_VIEW;
}

const char *mx_arrow_write(const mx_arrow_array *a, int64_t i, size_t max_bytes, mx_str *out)
{
    const char *p;
    size_t n;
    if (out->len > max_bytes)
        return "a nested value is longer than max_record_bytes";
    if (mx_arrow_is_null(a, i)) {
        mx_str_add(out, "null");
        return NULL;
    }
    if (mx_arrow_is_text(a->field)) {
        if (!mx_arrow_bytes(a, i, &p, &n))
            return "the offsets of a text are damaged";
        if (n <= max_bytes && mx_utf8_valid(p, n) < n && holds_bytes(a->field)) {
            mx_data_url_write(out, p, n);
            return NULL;
        }
        if (n > max_bytes || mx_utf8_valid(p, n) < n)
            return "text inside a nested column is not UTF-8, or too long";
        mx_json_write_string(out, p, n);
        return NULL;
    }
    if (a->dictionary) {
        int64_t k = integer(a, i);
        const mx_arrow_array *d = dictionary_part(a, &k);
        return d ? mx_arrow_write(d, k, max_bytes, out) : "a dictionary index is too large";
    }
    switch (a->field->type) {
    case MX_ARROW_BOOL:
        mx_str_add(out, a->data.p[i >> 3] >> (i & 7) & 1 ? "true" : "false");
        return NULL;
    case MX_ARROW_FLOAT: mx_json_write_double(out, floating(a, i)); return NULL;
    case MX_ARROW_LIST:
    case MX_ARROW_LARGE_LIST:
    case MX_ARROW_FIXED_LIST:
    case MX_ARROW_MAP: return write_list(a, i, max_bytes, out);
    case MX_ARROW_STRUCT: return write_struct(a, i, max_bytes, out);
    default: mx_str_addf(out, "%lld", (long long)integer(a, i)); return NULL;
    }
}

/* arrow_schema.c - message heads and the schema. Field numbers, from the format's definition:
 *   Message    1 header type, 2 header, 3 body length
 *   Schema     0 endianness, 1 fields
 *   Field      0 name, 2 type's type, 3 type, 4 dictionary, 5 children
 *   types      Int {0 bits, 1 signed}  Float {0 precision}  FixedBinary {0 bytes}  FixedList {0 n}
 *              Date, Time, Timestamp, Duration {0 unit}  Time {1 bits}
 *   Dictionary {0 id, 1 index type}
 */
#include "data/formats/arrow.h"

#include <string.h>

enum { MAX_META = 256 << 20, MAX_FIELDS = 10000, MAX_DEPTH = 32 };

mx_status mx_arrow_message_at(mx_shard_file *f, int64_t at, mx_arrow_message *m)
{
    const uint8_t *p;
    size_t got;
    *m = (mx_arrow_message){0};
    MX_TRY(mx_shard_peek(f, at, 8, &p, &got));
    if (got < 4)
        return MX_OK; /* streams may end without a mark */
    bool marked = mx_le32(p) == 0xffffffffu; /* files of before 2019 have the size alone */
    if (marked && got < 8)
        return mx_fail(MX_INPUT, "the file ends inside a message: it is truncated");
    uint32_t n = mx_le32(p + (marked ? 4 : 0));
    m->meta_at = at + (marked ? 8 : 4);
    if (n == 0)
        return MX_OK;
    if (n > MAX_META || (int64_t)n > f->size_bytes - m->meta_at)
        return mx_fail(MX_INPUT, "a message of %u bytes at offset %lld of a file of %lld: it is "
                       "truncated or no Arrow file", n, (long long)at, (long long)f->size_bytes);
    m->meta_bytes = n;
    MX_TRY(mx_shard_peek(f, m->meta_at, n, &p, &got));
    mx_flatbuf b = {p, n, false};
    size_t root = mx_flatbuf_root(&b);
    m->type = (int)mx_flatbuf_int(&b, root, 1, 1, 0);
    m->body_bytes = mx_flatbuf_int(&b, root, 3, 8, 0);
    m->body_at = m->meta_at + m->meta_bytes;
    if (b.bad || m->type < 1 || m->body_bytes < 0 || m->body_bytes > f->size_bytes - m->body_at)
        return mx_fail(MX_INPUT, "the message at offset %lld is damaged or its body is cut off: "
                       "fetch the file again", (long long)at);
    m->next = m->body_at + m->body_bytes;
    return MX_OK;
}

/* --- types --- */

static mx_status set_type(mx_arrow_field *f, mx_flatbuf *b, size_t type)
{
    static const int float_bits[3] = {16, 32, 64};
    int64_t first = mx_flatbuf_int(b, type, 0, f->type == MX_ARROW_INT ? 4 : 2, 0);
    f->is_signed = true;
    switch (f->type) {
    case MX_ARROW_NULL:
    case MX_ARROW_BINARY:
    case MX_ARROW_UTF8:
    case MX_ARROW_LIST:
    case MX_ARROW_STRUCT:
    case MX_ARROW_MAP:
    case MX_ARROW_LARGE_BINARY:
    case MX_ARROW_LARGE_UTF8:
    case MX_ARROW_LARGE_LIST:
    case MX_ARROW_BINARY_VIEW:
    case MX_ARROW_UTF8_VIEW: return MX_OK;
    case MX_ARROW_BOOL: f->bits = 1; return MX_OK;
    case MX_ARROW_INT:
        f->bits = (int)first;
        f->is_signed = mx_flatbuf_int(b, type, 1, 1, 0);
        break;
    case MX_ARROW_FLOAT: f->bits = first >= 0 && first < 3 ? float_bits[first] : 0; break;
    case MX_ARROW_DATE: f->bits = mx_flatbuf_int(b, type, 0, 2, 1) == 0 ? 32 : 64; break;
    case MX_ARROW_TIME: f->bits = (int)mx_flatbuf_int(b, type, 1, 4, 32); break;
    case MX_ARROW_TIMESTAMP:
    case MX_ARROW_DURATION: f->bits = 64; break;
    case MX_ARROW_FIXED_BINARY:
    case MX_ARROW_FIXED_LIST:
        f->fixed = mx_flatbuf_int(b, type, 0, 4, 0);
        return f->fixed >= 0 ? MX_OK : mx_fail(MX_INPUT, "a fixed size below 0");
    case MX_ARROW_DECIMAL:
        f->fixed = mx_flatbuf_int(b, type, 2, 4, 128) / 8;
        return f->fixed > 0 ? MX_OK : mx_fail(MX_INPUT, "a decimal of no bits");
    default:
        return mx_fail(MX_INPUT,
                       "column \"%s\" has Arrow type %d, which is not supported; leave it "
                       "out or convert it",
                       f->name, f->type);
    }
    bool ok = f->bits == 8 || f->bits == 16 || f->bits == 32 || f->bits == 64;
    return ok ? MX_OK : mx_fail(MX_INPUT, "column \"%s\" has values of %d bits", f->name, f->bits);
}

static bool is_nested(mx_arrow_type t, int *n_children)
{
    bool list = t == MX_ARROW_LIST || t == MX_ARROW_LARGE_LIST || t == MX_ARROW_FIXED_LIST ||
                t == MX_ARROW_MAP;
    *n_children = list ? 1 : -1; /* -1: any number */
    return list || t == MX_ARROW_STRUCT;
}

static mx_status read_field(mx_arrow_schema *s, mx_flatbuf *b, size_t table, mx_arrow_field *f,
                            int depth)
{
    size_t len;
    int64_t n;
    int want;
    const char *name = mx_flatbuf_string(b, table, 0, &len);
    f->name = mx_arena_alloc(&s->arena, len + 1);
    memcpy(f->name, name, len);
    f->type = (mx_arrow_type)mx_flatbuf_int(b, table, 2, 1, 0);
    if (b->bad || depth > MAX_DEPTH || ++s->n_fields > MAX_FIELDS)
        return mx_fail(MX_INPUT, "the schema is damaged, or has too many or too deep fields");
    MX_TRY(set_type(f, b, mx_flatbuf_table(b, table, 3)));
    size_t children = mx_flatbuf_vector(b, table, 5, 4, &n);
    if (n > MAX_FIELDS)
        return mx_fail(MX_INPUT, "a field with %lld children", (long long)n);
    f->children = MX_NEW_N(&s->arena, mx_arrow_field, n ? n : 1);
    f->n_children = (int)n;
    for (int64_t i = 0; i < n; i++) {
        size_t child = mx_flatbuf_follow(b, children + 4 * (size_t)i);
        MX_TRY(read_field(s, b, child, &f->children[i], depth + 1));
    }
    bool nested = is_nested(f->type, &want);
    if (nested ? want >= 0 && n != want : n != 0)
        return mx_fail(MX_INPUT, "field \"%s\" has %lld children", f->name, (long long)n);
    size_t dictionary = mx_flatbuf_table(b, table, 4);
    if (dictionary && !b->bad) { /* the field is indices; what it said so far is about the values */
        f->values = mx_arena_copy(&s->arena, f, sizeof *f);
        size_t index = mx_flatbuf_table(b, dictionary, 1);
        f->dictionary_id = mx_flatbuf_int(b, dictionary, 0, 8, 0);
        f->has_dictionary = true;
        f->type = MX_ARROW_INT;
        f->bits = index ? (int)mx_flatbuf_int(b, index, 0, 4, 0) : 32;
        f->is_signed = index ? mx_flatbuf_int(b, index, 1, 1, 0) : true;
        f->children = NULL;
        f->n_children = 0;
        if (f->bits != 8 && f->bits != 16 && f->bits != 32 && f->bits != 64)
            return mx_fail(MX_INPUT, "dictionary indices of %d bits", f->bits);
    }
    return MX_OK;
}

mx_status mx_arrow_schema_read(mx_arrow_schema *s, mx_flatbuf *b, size_t table)
{
    int64_t n;
    size_t fields = mx_flatbuf_vector(b, table, 1, 4, &n);
    if (mx_flatbuf_int(b, table, 0, 2, 0) != 0)
        return mx_fail(MX_INPUT, "the file is big-endian, which is not supported");
    if (b->bad || n < 1 || n > MAX_FIELDS)
        return mx_fail(MX_INPUT, "a schema of %lld fields", (long long)n);
    s->fields = MX_NEW_N(&s->arena, mx_arrow_field, n);
    for (int64_t i = 0; i < n; i++)
        MX_TRY(read_field(s, b, mx_flatbuf_follow(b, fields + 4 * (size_t)i), &s->fields[i], 0));
    s->n_fields = (int)n;
    return b->bad ? mx_fail(MX_INPUT, "the schema is damaged") : MX_OK;
}

/* payload.c - records without a schema of their own.
 *
 * tf.train.Example:  Example { 1: Features { 1: map entry { 1: key, 2: Feature } } }
 *   Feature { 1: BytesList { 1: bytes } | 2: FloatList { 1: float } | 3: Int64List { 1: int64 } }
 * with numbers packed or not. A feature with one value becomes that value; with more, or none, a
 * list. Anything that is not exactly such a message is a JSON object when it begins with '{', and
 * text when it is UTF-8; protobuf-c is not used because a record is walked once and copied into
 * cells, not into a tree.
 */
#include "data/formats/payload.h"

#include "base/varint.h"
#include "data/formats/json_scan.h"
#include <string.h>

bool mx_proto_varint(mx_proto *m, uint64_t *value)
{
    m->bad = !mx_varint_read(&m->p, m->end, value);
    return !m->bad;
}

bool mx_proto_next(mx_proto *m, int *number, int *wire, uint64_t *value, mx_proto *bytes)
{
    uint64_t tag;
    if (m->p == m->end || m->bad || !mx_proto_varint(m, &tag))
        return false;
    *number = (int)(tag >> 3 & 0x1fffffff);
    *wire = (int)(tag & 7);
    size_t left = (size_t)(m->end - m->p);
    switch (*wire) {
    case 0: return mx_proto_varint(m, value);
    case 1:
        m->bad = left < 8;
        if (!m->bad)
            *value = mx_le64(m->p), m->p += 8;
        return !m->bad;
    case 2:
        if (!mx_proto_varint(m, value))
            return false;
        m->bad = *value > (size_t)(m->end - m->p);
        if (m->bad)
            return false;
        *bytes = (mx_proto){m->p, m->p + *value, false};
        m->p += *value;
        return true;
    case 5:
        m->bad = left < 4;
        if (!m->bad)
            *value = mx_le32(m->p), m->p += 4;
        return !m->bad;
    default: m->bad = true; return false;
    }
}

/* --- features --- */

static void add_bytes(mx_record *r, const char *name, size_t name_len, const mx_proto *v)
{
    size_t n = (size_t)(v->end - v->p);
    bool text = mx_utf8_valid((const char *)v->p, n) == n;
    char *out = mx_record_reserve(r, name, name_len, text ? MX_CELL_TEXT : MX_CELL_BYTES, n);
    if (n)
        memcpy(out, v->p, n);
    mx_record_commit(r, n);
}

/* Numbers and control characters grow on their way to JSON: such a record is refused as a whole. */
static bool is_too_long(const mx_record *r, size_t limit)
{
    return r->bytes.len > limit + 4096; /* names are among its bytes */
}

static bool bytes_list(mx_proto list, size_t limit, mx_record *r, const char *name, size_t name_len)
{
    int number, wire, n = 0;
    uint64_t v;
    mx_proto item, one = {0}, count = list;
    while (mx_proto_next(&count, &number, &wire, &v, &item)) {
        if (number != 1 || wire != 2)
            return false;
        one = item;
        n++;
    }
    if (count.bad)
        return false;
    if (n == 1) {
        add_bytes(r, name, name_len, &one);
        return true;
    }
    mx_record_reserve(r, name, name_len, MX_CELL_JSON, 0);
    size_t from = r->bytes.len;
    mx_str_add(&r->bytes, "[");
    for (n = 0; !is_too_long(r, limit) && mx_proto_next(&list, &number, &wire, &v, &item); n++) {
        size_t len = (size_t)(item.end - item.p);
        mx_str_add(&r->bytes, n ? ", " : "");
        if (mx_utf8_valid((const char *)item.p, len) == len)
            mx_json_write_string(&r->bytes, (const char *)item.p, len);
        else
            mx_str_add(&r->bytes, "null");
    }
    mx_str_add(&r->bytes, "]");
    mx_record_commit(r, r->bytes.len - from);
    return true;
}

static void add_number(mx_str *out, bool is_float, uint64_t v, int index)
{
    mx_str_add(out, index ? ", " : "");
    if (is_float) {
        uint32_t bits = (uint32_t)v;
        float f;
        memcpy(&f, &bits, 4);
        mx_json_write_double(out, (double)f);
    } else {
        mx_str_addf(out, "%lld", (long long)v);
    }
}

static bool number_list(mx_proto list, bool is_float, size_t limit, mx_record *r, const char *name,
                        size_t name_len)
{
    int number, wire, n = 0;
    uint64_t v;
    mx_proto packed;
    mx_record_reserve(r, name, name_len, MX_CELL_JSON, 0);
    size_t from = r->bytes.len;
    mx_str_add(&r->bytes, "[");
    while (!is_too_long(r, limit) && mx_proto_next(&list, &number, &wire, &v, &packed)) {
        if (number != 1 || (wire != 2 && wire != (is_float ? 5 : 0)))
            return false;
        if (wire != 2) {
            add_number(&r->bytes, is_float, v, n++);
            continue;
        }
        while (packed.p < packed.end && !is_too_long(r, limit)) {
            if (is_float) {
                if (packed.end - packed.p < 4)
                    return false;
                v = mx_le32(packed.p);
                packed.p += 4;
            } else if (!mx_proto_varint(&packed, &v)) {
                return false;
            }
            add_number(&r->bytes, is_float, v, n++);
        }
    }
    mx_str_add(&r->bytes, "]");
    size_t len = r->bytes.len - from;
    if (n == 1) { /* a scalar: without its brackets */
        memmove(r->bytes.text + from, r->bytes.text + from + 1, len - 2);
        len -= 2;
    }
    mx_record_commit(r, len);
    return !list.bad;
}

static bool feature(mx_proto f, size_t limit, mx_record *r, const char *name, size_t name_len)
{
    int number, wire;
    uint64_t v;
    mx_proto list;
    if (f.p == f.end) {
        mx_record_reserve(r, name, name_len, MX_CELL_NULL, 0);
        mx_record_commit(r, 0);
        return true;
    }
    if (!mx_proto_next(&f, &number, &wire, &v, &list) || wire != 2 || f.p != f.end)
        return false;
    if (number == 1)
        return bytes_list(list, limit, r, name, name_len);
    return (number == 2 || number == 3) &&
           number_list(list, number == 2, limit, r, name, name_len);
}

static bool map_entry(const mx_source *s, mx_proto entry, mx_record *r)
{
    int number, wire;
    uint64_t v;
    mx_proto item, key = {0}, value = {0};
    while (mx_proto_next(&entry, &number, &wire, &v, &item)) {
        if (wire != 2 || (number != 1 && number != 2))
            return false;
        *(number == 1 ? &key : &value) = item;
    }
    size_t n = (size_t)(key.end - key.p);
    if (entry.bad || !key.p || memchr(key.p, 0, n) || mx_utf8_valid((const char *)key.p, n) < n)
        return false;
    if (!mx_source_wants(s, (const char *)key.p, n))
        return true;
    return feature(value, s->options.max_record_bytes, r, (const char *)key.p, n);
}

/* Exactly an Example, nothing around it. */
static bool example(const mx_source *s, const uint8_t *p, size_t n, mx_record *r)
{
    int number, wire;
    uint64_t v;
    mx_proto m = {p, p + n, false}, features, entry;
    if (n == 0)
        return false;
    while (mx_proto_next(&m, &number, &wire, &v, &features)) {
        if (number != 1 || wire != 2)
            return false;
        while (mx_proto_next(&features, &number, &wire, &v, &entry))
            if (number != 1 || wire != 2 || !map_entry(s, entry, r))
                return false;
        if (features.bad)
            return false;
    }
    return !m.bad;
}

mx_status mx_payload_decode(const mx_source *s, const uint8_t *p, size_t n, mx_record *r)
{
    int64_t offset = r->offset;
    if (n > s->options.max_record_bytes)
        return mx_fail(MX_INPUT, "the record has %zu bytes, max_record_bytes is %zu", n,
                       s->options.max_record_bytes);
    if (example(s, p, n, r)) {
        if (is_too_long(r, s->options.max_record_bytes))
            return mx_fail(MX_INPUT, "the record has %zu bytes, but its values are more than "
                           "max_record_bytes, %zu, when they are written out", n,
                           s->options.max_record_bytes);
        return MX_OK;
    }
    mx_record_clear(r);
    r->offset = offset;
    if (n && p[0] == '{') {
        mx_status st = mx_json_scan_object(s, (const char *)p, n, r);
        if (!st)
            return MX_OK;
        mx_status_free(st); /* text may begin with a brace, too */
        mx_record_clear(r);
        r->offset = offset;
    }
    if (mx_utf8_valid((const char *)p, n) < n)
        return mx_fail(MX_INPUT,
                       "the record is neither a tf.train.Example nor JSON nor UTF-8 text");
    mx_record_add(r, "text", MX_CELL_TEXT, p, n);
    return MX_OK;
}

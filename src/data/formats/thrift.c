/* thrift.c - see thrift.h. Element counts are bounded by the bytes left: every element but a
 * boolean takes at least one, so a list cannot promise more than the input holds. */
#include "data/formats/thrift.h"

#include "base/varint.h"

void mx_thrift_init(mx_thrift *r, const void *data, size_t n)
{
    *r = (mx_thrift){.start = data, .p = data, .end = (const uint8_t *)data + n, .depth = -1};
}

static void *fail(mx_thrift *r, const char *what)
{
    if (!r->bad)
        r->bad = what;
    r->p = r->end;
    return NULL;
}

static uint8_t byte(mx_thrift *r)
{
    if (r->p == r->end) {
        fail(r, "the metadata ends in the middle");
        return 0;
    }
    return *r->p++;
}

static uint64_t varint(mx_thrift *r)
{
    uint64_t v = 0;
    if (!mx_varint_read(&r->p, r->end, &v)) {
        fail(r, r->p == r->end ? "the metadata ends in the middle"
                               : "a number of more than ten bytes");
        return 0;
    }
    return v;
}

static int64_t zigzag(mx_thrift *r)
{
    uint64_t v = varint(r);
    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

void mx_thrift_begin(mx_thrift *r)
{
    if (r->depth + 1 >= MX_THRIFT_DEPTH)
        fail(r, "structs are nested too deep");
    else
        r->last[++r->depth] = 0;
}

bool mx_thrift_field(mx_thrift *r, int *id, mx_thrift_type *type)
{
    if (r->bad || r->depth < 0)
        return false;
    uint8_t b = byte(r);
    if ((b & 15) == 0) {
        r->depth--;
        return false;
    }
    int delta = b >> 4;
    *id = delta ? r->last[r->depth] + delta : (int)(int16_t)zigzag(r);
    r->last[r->depth] = *id;
    *type = (mx_thrift_type)(b & 15);
    if (*type > MX_T_STRUCT)
        fail(r, "an unknown type");
    return !r->bad;
}

int64_t mx_thrift_int(mx_thrift *r, mx_thrift_type type)
{
    switch (type) {
    case MX_T_TRUE: return 1;
    case MX_T_FALSE: return 0;
    case MX_T_BYTE: return (int8_t)byte(r);
    case MX_T_I16:
    case MX_T_I32:
    case MX_T_I64: return zigzag(r);
    default: fail(r, "a number was expected"); return 0;
    }
}

const char *mx_thrift_binary(mx_thrift *r, mx_thrift_type type, size_t *n)
{
    *n = 0;
    if (type != MX_T_BINARY)
        return fail(r, "a string was expected");
    uint64_t len = varint(r);
    if (len > (uint64_t)(r->end - r->p))
        return fail(r, "a string is longer than the metadata");
    const char *p = (const char *)r->p;
    r->p += len;
    *n = len;
    return p;
}

int64_t mx_thrift_list(mx_thrift *r, mx_thrift_type type, mx_thrift_type *element)
{
    *element = MX_T_BYTE;
    if (type != MX_T_LIST && type != MX_T_SET) {
        fail(r, "a list was expected");
        return 0;
    }
    uint8_t b = byte(r);
    uint64_t n = b >> 4;
    if (n == 15)
        n = varint(r);
    *element = (mx_thrift_type)(b & 15);
    if (n > (uint64_t)(r->end - r->p) || *element > MX_T_STRUCT) {
        fail(r, "a list is longer than the metadata");
        return 0;
    }
    return (int64_t)n;
}

static void skip_struct(mx_thrift *r)
{
    int id;
    mx_thrift_type t;
    for (mx_thrift_begin(r); mx_thrift_field(r, &id, &t);)
        mx_thrift_skip(r, t);
}

static void skip_map(mx_thrift *r)
{
    uint64_t n = varint(r);
    if (n > (uint64_t)(r->end - r->p))
        fail(r, "a map is longer than the metadata");
    uint8_t kinds = n && !r->bad ? byte(r) : 0;
    for (uint64_t i = 0; i < n && !r->bad; i++) {
        mx_thrift_skip(r, (mx_thrift_type)(kinds >> 4));
        mx_thrift_skip(r, (mx_thrift_type)(kinds & 15));
    }
}

/* Depth: structs count in r->depth; lists of lists are not in any Parquet metadata and are
 * refused. */
void mx_thrift_skip(mx_thrift *r, mx_thrift_type type)
{
    size_t n;
    mx_thrift_type e;
    switch (type) {
    case MX_T_TRUE:
    case MX_T_FALSE: return;
    case MX_T_BYTE: byte(r); return;
    case MX_T_I16:
    case MX_T_I32:
    case MX_T_I64: varint(r); return;
    case MX_T_DOUBLE:
        for (int i = 0; i < 8; i++)
            byte(r);
        return;
    case MX_T_BINARY: mx_thrift_binary(r, type, &n); return;
    case MX_T_STRUCT: skip_struct(r); return;
    case MX_T_MAP: skip_map(r); return;
    case MX_T_LIST:
    case MX_T_SET: {
        int64_t count = mx_thrift_list(r, type, &e);
        if (e == MX_T_LIST || e == MX_T_SET || e == MX_T_MAP)
            fail(r, "lists of lists");
        for (int64_t i = 0; i < count && !r->bad; i++)
            if (e == MX_T_TRUE || e == MX_T_FALSE)
                byte(r); /* inside a list a boolean is a byte */
            else
                mx_thrift_skip(r, e);
        return;
    }
    default: fail(r, "an unknown type");
    }
}

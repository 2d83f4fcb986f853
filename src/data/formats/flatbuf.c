/* flatbuf.c - see flatbuf.h. */
#include "data/formats/flatbuf.h"

#include <string.h>

static bool inside(mx_flatbuf *f, size_t at, size_t bytes)
{
    bool ok = at <= f->n && bytes <= f->n - at;
    f->bad = f->bad || !ok;
    return ok;
}

static uint64_t load(mx_flatbuf *f, size_t at, int bytes)
{
    uint64_t v = 0;
    if (inside(f, at, (size_t)bytes))
        for (int i = 0; i < bytes; i++)
            v |= (uint64_t)f->p[at + (size_t)i] << (8 * i);
    return v;
}

size_t mx_flatbuf_follow(mx_flatbuf *f, size_t at)
{
    uint64_t to = at + load(f, at, 4);
    return !f->bad && to > at && inside(f, (size_t)to, 4) ? (size_t)to : 0;
}

size_t mx_flatbuf_root(mx_flatbuf *f)
{
    return mx_flatbuf_follow(f, 0);
}

/* Place of a field's inline value, 0 when absent; `bytes` of it must be inside. */
static size_t flatbuf_field(mx_flatbuf *f, size_t table, int field, size_t bytes)
{
    if (!table || f->bad)
        return 0;
    int64_t vtable = (int64_t)table - (int32_t)(uint32_t)load(f, table, 4);
    if (vtable < 0 || !inside(f, (size_t)vtable, 4)) {
        f->bad = true;
        return 0;
    }
    size_t size = (size_t)load(f, (size_t)vtable, 2), at = 4 + 2 * (size_t)field;
    if (at + 2 > size)
        return 0;
    size_t offset = (size_t)load(f, (size_t)vtable + at, 2);
    return offset && inside(f, table + offset, bytes) ? table + offset : 0;
}

int64_t mx_flatbuf_int(mx_flatbuf *f, size_t table, int field, int bytes, int64_t otherwise)
{
    size_t at = flatbuf_field(f, table, field, (size_t)bytes);
    if (!at)
        return otherwise;
    uint64_t v = load(f, at, bytes);
    int unused = 64 - 8 * bytes;
    return (int64_t)(v << unused) >> unused;
}

size_t mx_flatbuf_table(mx_flatbuf *f, size_t table, int field)
{
    size_t at = flatbuf_field(f, table, field, 4);
    return at ? mx_flatbuf_follow(f, at) : 0;
}

size_t mx_flatbuf_vector(mx_flatbuf *f, size_t table, int field, size_t bytes, int64_t *n)
{
    size_t at = mx_flatbuf_table(f, table, field);
    *n = 0;
    if (!at)
        return 0;
    uint64_t count = load(f, at, 4);
    if (f->bad || count * bytes > f->n || !inside(f, at + 4, (size_t)count * bytes))
        return f->bad = true, 0;
    *n = (int64_t)count;
    return at + 4;
}

int64_t mx_flatbuf_i64(mx_flatbuf *f, size_t at)
{
    return (int64_t)load(f, at, 8);
}

const char *mx_flatbuf_string(mx_flatbuf *f, size_t table, int field, size_t *n)
{
    int64_t len;
    size_t at = mx_flatbuf_vector(f, table, field, 1, &len);
    *n = (size_t)len;
    return at ? (const char *)f->p + at : "";
}

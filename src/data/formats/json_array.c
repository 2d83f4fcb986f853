/* json_array.c - see json_array.h. Datasets of instructions and conversations are often published
 * as one array of objects in one file, over many lines or in a single one. */
#include "data/formats/json_array.h"

#include "base/arena.h"
#include <string.h>

enum { LOOK = 1 << 20 };

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* The offset of the first byte that is no blank; the file's size when there is none near. */
static mx_status first_byte(mx_shard_file *f, int64_t *at, uint8_t *byte)
{
    const uint8_t *p;
    size_t got, i;
    MX_TRY(mx_shard_peek(f, 0, 4096, &p, &got));
    i = got >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (i < got && is_blank(p[i]))
        i++;
    *at = i < got ? (int64_t)i : f->size_bytes;
    *byte = i < got ? p[i] : 0;
    return MX_OK;
}

mx_status mx_json_array_is(mx_shard_file *f, bool *yes)
{
    int64_t at;
    uint8_t c;
    MX_TRY(first_byte(f, &at, &c));
    *yes = c == '[';
    return MX_OK;
}

typedef struct {
    mx_json_array *a;
    int64_t begin, end; /* of the element under way; begin < 0: none */
    int64_t depth;      /* brackets open inside the array */
    bool string, escaped, closed, comma;
} scan;

static void add(scan *s)
{
    mx_json_array *a = s->a;
    MX_GROW(a->at, 2 * a->n, a->cap); /* two at a time, and the room is even */
    a->at[2 * a->n] = s->begin;
    a->at[2 * a->n + 1] = s->end;
    a->n++;
    s->begin = -1;
    s->comma = false;
}

/* One byte; false: it cannot be there. */
static bool step(scan *s, uint8_t c, int64_t at)
{
    if (s->string) {
        s->string = s->escaped || c != '"';
        s->escaped = !s->escaped && c == '\\';
        s->end = at + 1;
        return true;
    }
    if (is_blank(c))
        return true;
    if (s->closed)
        return false;
    if (s->depth == 0 && (c == ',' || c == ']')) {
        bool had = s->begin >= 0, empty = s->a->n == 0 && !s->comma && c == ']';
        if (!had && !empty)
            return false;
        if (had)
            add(s);
        s->comma = c == ',';
        s->closed = c == ']';
        return true;
    }
    s->string = c == '"';
    s->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (s->begin < 0)
        s->begin = at;
    s->end = at + 1;
    return s->depth >= 0;
}

mx_status mx_json_array_index(mx_json_array *a, mx_shard_file *f)
{
    scan s = {.a = a, .begin = -1};
    int64_t at;
    uint8_t c;
    *a = (mx_json_array){0};
    MX_TRY(first_byte(f, &at, &c));
    for (at++; at < f->size_bytes;) {
        const uint8_t *p;
        size_t got;
        MX_TRY(mx_shard_peek(f, at, LOOK, &p, &got));
        for (size_t i = 0; i < got; i++)
            if (!step(&s, p[i], at + (int64_t)i))
                return mx_fail(MX_INPUT,
                               "%s: a JSON array with something out of place at offset %lld (after "
                               "%lld elements); correct the file",
                               f->path, (long long)(at + (int64_t)i), (long long)a->n);
        at += (int64_t)got;
    }
    if (!s.closed)
        return mx_fail(MX_INPUT,
                       "%s: a JSON array that is never closed (%lld elements, then the file ends "
                       "inside one); the file is truncated, fetch it again",
                       f->path, (long long)a->n);
    return MX_OK;
}

void mx_json_array_fini(mx_json_array *a)
{
    mx_free(a->at);
    *a = (mx_json_array){0};
}

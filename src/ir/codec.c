/* codec.c - see codec.h. */
#include "ir/codec.h"

#include "base/varint.h"
#include <limits.h>
#include <string.h>

void mx_codec_refuse(mx_codec *c, const char *why)
{
    if (!c->bad)
        c->bad = why;
    c->at = c->end;
}

size_t mx_codec_left(const mx_codec *c)
{
    return (size_t)(c->end - c->at);
}

/* The next n bytes; NULL: there are fewer. */
static const uint8_t *take(mx_codec *c, size_t n)
{
    if (c->bad || mx_codec_left(c) < n) {
        mx_codec_refuse(c, "it ends in the middle of something");
        return NULL;
    }
    c->at += n;
    return c->at - n;
}

void mx_code_i64(mx_codec *c, int64_t *v)
{
    uint64_t z = ((uint64_t)*v << 1) ^ (*v < 0 ? ~0ull : 0);
    char bytes[MX_VARINT_BYTES];
    if (c->out) {
        mx_str_add_n(c->out, bytes, mx_varint_write(bytes, z));
        return;
    }
    *v = 0;
    if (c->bad || !mx_varint_read(&c->at, c->end, &z))
        mx_codec_refuse(c, "it ends in the middle of a number");
    else
        *v = (int64_t)(z >> 1 ^ (z & 1 ? ~0ull : 0));
}

void mx_code_range(mx_codec *c, int64_t *v, int64_t lo, int64_t hi)
{
    mx_code_i64(c, v);
    if (c->out || (*v >= lo && *v <= hi))
        return;
    mx_codec_refuse(c, "a number is out of its range");
    *v = 0;
}

void mx_code_int(mx_codec *c, int *v, int lo, int hi)
{
    int64_t wide = *v;
    mx_code_range(c, &wide, lo, hi);
    *v = (int)wide;
}

void mx_code_count(mx_codec *c, int *n)
{
    size_t left = mx_codec_left(c);
    mx_code_int(c, n, 0, left < INT_MAX ? (int)left : INT_MAX);
}

void mx_code_bool(mx_codec *c, bool *v)
{
    int64_t wide = *v;
    mx_code_range(c, &wide, 0, 1);
    *v = wide != 0;
}

void mx_code_f64(mx_codec *c, double *v)
{
    if (c->out) {
        mx_str_add_n(c->out, (const char *)v, sizeof *v);
        return;
    }
    const uint8_t *p = take(c, sizeof *v);
    *v = 0;
    if (p)
        memcpy(v, p, sizeof *v);
}

void mx_code_bytes(mx_codec *c, const void **p, size_t *n)
{
    int64_t wide = c->out ? (int64_t)*n : 0;
    mx_code_range(c, &wide, 0, INT64_MAX);
    if (c->out) {
        mx_str_add_n(c->out, *p, *n);
        return;
    }
    *p = take(c, (size_t)wide);
    *n = *p ? (size_t)wide : 0;
}

void mx_code_text(mx_codec *c, const char **text)
{
    size_t n = c->out ? strlen(*text) : 0;
    const void *p = c->out ? *text : NULL;
    mx_code_bytes(c, &p, &n);
    if (c->out)
        return;
    if (p && memchr(p, 0, n))
        mx_codec_refuse(c, "a text has a zero in it");
    char *copy = mx_arena_alloc(c->arena, n + 1);
    if (p && n)
        memcpy(copy, p, n);
    *text = copy;
}

void mx_code_name(mx_codec *c, const char **text)
{
    bool there = c->out && *text;
    mx_code_bool(c, &there);
    if (there)
        mx_code_text(c, text);
    else if (!c->out)
        *text = NULL;
}

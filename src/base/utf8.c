/* utf8.c - UTF-8 by the table of well-formed byte sequences (Unicode 3-7). ASCII goes 8 bytes a
 * step. */
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* The allowed range of the second byte, which is where overlong forms and surrogates are excluded.
 */
static bool second_ok(uint8_t a, uint8_t b)
{
    switch (a) {
    case 0xE0:
        return b >= 0xA0 && b <= 0xBF;
    case 0xED:
        return b >= 0x80 && b <= 0x9F;
    case 0xF0:
        return b >= 0x90 && b <= 0xBF;
    case 0xF4:
        return b >= 0x80 && b <= 0x8F;
    default:
        return b >= 0x80 && b <= 0xBF;
    }
}

static int expected_length(uint8_t a)
{
    if (a < 0x80)
        return 1;
    if (a >= 0xC2 && a <= 0xDF)
        return 2;
    if (a >= 0xE0 && a <= 0xEF)
        return 3;
    if (a >= 0xF0 && a <= 0xF4)
        return 4;
    return 0;
}

/* How many of the bytes at p continue a character of `want` bytes that starts there. */
static int good_bytes(const uint8_t *p, const uint8_t *end, int want)
{
    if (want < 2 || end - p < 2 || !second_ok(p[0], p[1]))
        return 1;
    int k = 2;
    while (k < want && k < end - p && (p[k] & 0xC0) == 0x80)
        k++;
    return k;
}

int mx_utf8_decode(const uint8_t *p, const uint8_t *end, uint32_t *cp)
{
    int want = expected_length(*p);
    if (want == 0 || good_bytes(p, end, want) != want)
        return 0;
    return mx_utf8_next(p, cp);
}

int mx_utf8_bad_length(const uint8_t *p, const uint8_t *end)
{
    return good_bytes(p, end, expected_length(*p));
}

int mx_utf8_encode(uint32_t cp, uint8_t *out)
{
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xC0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xE0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (cp & 0x3F));
    return 4;
}

size_t mx_utf8_valid_prefix(const uint8_t *p, size_t n)
{
    const uint8_t *start = p, *end = p + n;
    while (p < end) {
        while (end - p >= 32) {
            uint64_t w[4];
            memcpy(w, p, 32);
            if ((w[0] | w[1] | w[2] | w[3]) & 0x8080808080808080u)
                break;
            p += 32;
        }
        while (p < end && *p < 0x80)
            p++;
        while (p < end && *p >= 0x80) {
            uint32_t cp;
            int k = mx_utf8_decode(p, end, &cp);
            if (!k)
                return (size_t)(p - start);
            p += k;
        }
    }
    return n;
}

size_t mx_utf8_incomplete_tail(const uint8_t *p, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        const uint8_t *q = p + n - k;
        int want = expected_length(*q);
        if (want > (int)k)
            return good_bytes(q, p + n, want) == (int)k ? k : 0;
        if (want)
            return 0;
    }
    return 0;
}

static bool has_shape(uint32_t c)
{
    static const uint32_t hidden[][2] = {
        {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},     {0x61c, 0x61c},
        {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff},
    };
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (c >= hidden[i][0] && c <= hidden[i][1])
            return false;
    return true;
}

char *mx_printable(char *out, size_t cap, const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + (n ? strnlen(text, n) : 0);
    size_t len = 0;
    while (p < end) {
        uint32_t c = 0;
        char piece[20] = "";
        int k = mx_utf8_decode(p, end, &c);
        size_t room = 0;
        if (k && has_shape(c)) {
            memcpy(piece, p, (size_t)k);
            room = (size_t)k;
        } else if (*p == '\n' || *p == '\t') {
            room = (size_t)snprintf(piece, sizeof piece, *p == '\n' ? "\\n" : "\\t");
        } else {
            for (int i = 0; i < (k ? k : 1); i++)
                room += (size_t)snprintf(piece + room, sizeof piece - room, "\\x%02x", p[i]);
        }
        if (len + room >= cap)
            break;
        memcpy(out + len, piece, room);
        len += room;
        p += k ? k : 1;
    }
    out[len] = 0;
    return out;
}

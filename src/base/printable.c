/* printable.c - see printable.h. */
#include "base/printable.h"

#include "base/utf8.h"
#include <stdio.h>
#include <string.h>

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

/* font.c - finding glyphs; the table is made when the program is built. */
#include "train/report/font.h"

#include "base/utf8.h"
#include <string.h>

enum { UNKNOWN = 0xfffd };

const mx_glyph *mx_font_find(const mx_font *f, uint32_t code)
{
    int low = 0, high = f->n - 1;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (f->glyph[mid].code < code)
            low = mid + 1;
        else
            high = mid;
    }
    return f->glyph[low].code == code || code == UNKNOWN ? &f->glyph[low]
                                                         : mx_font_find(f, UNKNOWN);
}

int mx_font_width(const mx_font *f, const char *text)
{
    int w = 0;
    const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);
    for (uint32_t code; p < end;) {
        int k = mx_utf8_decode(p, end, &code);
        w += mx_font_find(f, k ? code : UNKNOWN)->advance;
        p += k ? k : 1;
    }
    return w;
}

/* font.h - letters for pictures: DejaVu Sans in two sizes, rendered by FreeType when the program is
 * built (tools/font.c), so that neither is needed where it runs. */
#ifndef MX_TRAIN_FONT_H
#define MX_TRAIN_FONT_H

#include <stdint.h>

typedef struct {
    uint32_t code; /* Unicode; glyphs are in this order */
    uint8_t w, h;
    int8_t left, top; /* from the pen: to the right, and up */
    uint8_t advance;
    uint32_t at; /* of its w * h bytes of coverage */
} mx_glyph;

typedef struct {
    const mx_glyph *glyph;
    int n;
    const unsigned char *alpha;
    int pixels; /* of an em */
} mx_font;

extern const mx_font mx_font_small, mx_font_large;

/* The glyph of a code point; of U+FFFD where the font has none. */
const mx_glyph *mx_font_find(const mx_font *f, uint32_t code);
/* Width of UTF-8 text, in pixels. */
int mx_font_width(const mx_font *f, const char *text);

#endif

/* image_orient.c - which way up a picture is, from its EXIF data, and turning it.
 *
 * Where EXIF data lies:  JPEG  segment FF E1, length u16 (big-endian, itself included), "Exif\0\0"
 *                        PNG   chunk eXIf: length u32, type, data, crc
 *                        WebP  chunk EXIF: type, length u32 (little-endian), data, even length
 * It is a TIFF header, "II*\0" or "MM\0*" for the byte order, u32 offset of the first directory:
 * u16 entries of 12 bytes, tag u16, type u16, count u32, value. Tag 0x0112 is the orientation:
 *     1 upright   2 mirrored   3 upside down   4 mirrored, upside down
 *     5 mirrored, then turned left   6 turn right   7 mirrored, then turned right   8 turn left
 * Every offset is compared with what is there; anything odd means "not said".
 */
#include "data/image/image.h"

#include "base/arena.h"
#include <string.h>

static uint32_t number(const uint8_t *p, int bytes, bool big)
{
    uint32_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint32_t)p[i] << 8 * (big ? bytes - 1 - i : i);
    return v;
}

static int from_tiff(const uint8_t *p, size_t n)
{
    if (n < 8 || (memcmp(p, "II*\0", 4) != 0 && memcmp(p, "MM\0*", 4) != 0))
        return 1;
    bool big = *p == 'M';
    size_t at = number(p + 4, 4, big);
    if (at > n - 2)
        return 1;
    size_t entries = number(p + at, 2, big);
    for (at += 2; entries-- && n - at >= 12 && at <= n; at += 12)
        if (number(p + at, 2, big) == 0x0112) {
            uint32_t v = number(p + at + 8, 2, big);
            return v >= 1 && v <= 8 ? (int)v : 1;
        }
    return 1;
}

static int from_jpeg(const uint8_t *p, size_t n)
{
    for (size_t at = 2; at + 4 <= n && p[at] == 0xff;) {
        size_t len = number(p + at + 2, 2, true);
        if (p[at + 1] == 0xda || len < 2 || len > n - at - 2)
            return 1; /* the scan: no segment follows that matters */
        if (p[at + 1] == 0xe1 && len >= 8 && memcmp(p + at + 4, "Exif\0\0", 6) == 0)
            return from_tiff(p + at + 10, len - 8);
        at += 2 + len;
    }
    return 1;
}

static int from_png(const uint8_t *p, size_t n)
{
    for (size_t at = 8; n - at >= 12 && at <= n;) {
        size_t len = number(p + at, 4, true);
        if (len > n - at - 12)
            return 1;
        if (memcmp(p + at + 4, "eXIf", 4) == 0)
            return from_tiff(p + at + 8, len);
        at += 12 + len;
    }
    return 1;
}

static int from_webp(const uint8_t *p, size_t n)
{
    for (size_t at = 12; at <= n && n - at >= 8;) {
        size_t len = number(p + at + 4, 4, false);
        if (len > n - at - 8)
            return 1;
        if (memcmp(p + at, "EXIF", 4) == 0) {
            bool headed = len >= 6 && memcmp(p + at + 8, "Exif\0\0", 6) == 0;
            return from_tiff(p + at + 8 + 6 * headed, len - 6 * headed);
        }
        at += 8 + len + (len & 1);
    }
    return 1;
}

int mx_image_orientation(const uint8_t *data, size_t n)
{
    if (n >= 12 && data[0] == 0xff)
        return from_jpeg(data, n);
    if (n >= 12 && data[0] == 0x89)
        return from_png(data, n);
    return n >= 12 && data[0] == 'R' ? from_webp(data, n) : 1;
}

mx_status mx_image_orient(mx_image *m, int orientation)
{
    if (orientation <= 1)
        return MX_OK;
    bool swap = orientation >= 5; /* rows become columns */
    /* Which end of the old width and height the new picture begins at. */
    bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    bool from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    int64_t w = swap ? m->height : m->width, h = swap ? m->width : m->height;
    uint8_t *to = NULL;
    MX_TRY(mx_alloc((void **)&to, 3 * (size_t)w * (size_t)h, "an image"));
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++) {
            int64_t ox = swap ? y : x, oy = swap ? x : y;
            ox = from_right ? m->width - 1 - ox : ox;
            oy = from_below ? m->height - 1 - oy : oy;
            memcpy(to + 3 * (y * w + x), m->rgb + 3 * (oy * m->width + ox), 3);
        }
    mx_free(m->rgb);
    *m = (mx_image){w, h, to};
    return MX_OK;
}

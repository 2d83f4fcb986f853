/* image.h - pictures from files: JPEG, PNG and WebP as rows of red, green, blue.
 *
 * What comes out is what the reference's loader makes of a file: the picture turned as its EXIF
 * orientation says, in RGB; grey and palettes spread out, transparency left away (not blended), 16
 * bits cut to their upper 8. Of an animation the file is refused, not its first picture taken.
 *
 * A picture's size is read and judged before memory is taken for it, so a few bytes that claim
 * 65,535 x 65,535 pixels cost nothing. The limit is the number of pixels at which Pillow refuses,
 * and 65,535 on a side, which is JPEG's own.
 */
#ifndef MX_DATA_IMAGE_H
#define MX_DATA_IMAGE_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

enum {
    MX_IMAGE_MAX_PIXELS = 178956970,
    MX_IMAGE_MAX_SIDE = 65535,
    MX_IMAGE_MAX_FILE = 1 << 28
};

/* Zero-initialise; closing a zero object is a no-op. */
typedef struct {
    int64_t width, height;
    uint8_t *rgb; /* (height, width, 3); owns */
    int64_t max_pixels; /* while it is decoded: more are refused */
} mx_image;

/* `where` names the data in errors. */
mx_status mx_image_decode(mx_image *out, const void *data, size_t n, const char *where) MX_MUST_USE;
/* The same, of at most max_pixels pixels: MX_IMAGE_MAX_PIXELS or fewer. */
mx_status mx_image_decode_within(mx_image *out, const void *data, size_t n, int64_t max_pixels,
                                 const char *where) MX_MUST_USE;
mx_status mx_image_read(mx_image *out, const char *path) MX_MUST_USE;
void mx_image_fini(mx_image *m);

/* By the numbers that configurations use for them, which are Pillow's. */
typedef enum { MX_FILTER_LANCZOS = 1, MX_FILTER_BILINEAR = 2, MX_FILTER_BICUBIC = 3 } mx_filter;
/* image_resize.c: the picture at another size. */
mx_status mx_image_resize(mx_image *out, const mx_image *in, int64_t width, int64_t height,
                          mx_filter filter) MX_MUST_USE;

/* image_orient.c: the EXIF orientation of a JPEG, PNG or WebP file, 1 to 8; 1 where none is said.
 * Broken EXIF data says none. */
int mx_image_orientation(const uint8_t *data, size_t n);
/* Turns and mirrors the picture to what an orientation means. */
mx_status mx_image_orient(mx_image *m, int orientation) MX_MUST_USE;

#endif

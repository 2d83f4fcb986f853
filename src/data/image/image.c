/* image.c - JPEG through libjpeg-turbo, PNG through libpng, WebP through libwebp: see image.h.
 *
 * The kind is recognised by the first bytes, never by the file's name. Decoders write into the
 * picture's own memory, so the largest is held once (JPEG's progressive form needs its coefficients
 * besides, which is the library's business and bounded by the same size). JPEG is decoded with the
 * accurate inverse transform and smooth chroma, as Pillow does; a progressive file with more than
 * 500 scans is refused, as it can be made to take hours.
 *
 * libpng reports errors by longjmp: everything it may leave behind lives in `png_job`, outside the
 * function that calls setjmp.
 */
#include "data/image/image.h"

#include "base/file.h"
#include "base/str.h"
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <turbojpeg.h>
#include <webp/decode.h>

static mx_status make_room(mx_image *m, int64_t width, int64_t height, const char *where)
{
    if (width < 1 || height < 1)
        return mx_fail(MX_INPUT, "%s: an image of %lld x %lld pixels", where, (long long)width,
                       (long long)height);
    if (width > MX_IMAGE_MAX_SIDE || height > MX_IMAGE_MAX_SIDE ||
        width * height > m->max_pixels)
        return mx_fail(MX_INPUT,
                       "%s: an image of %lld x %lld pixels is too large, at most %d on a side and "
                       "%lld in all are taken; make it smaller first",
                       where, (long long)width, (long long)height, MX_IMAGE_MAX_SIDE,
                       (long long)m->max_pixels);
    m->width = width;
    m->height = height;
    return mx_alloc((void **)&m->rgb, 3 * (size_t)width * (size_t)height, "an image");
}

/* --- JPEG --- */

/* Printers' colours, as Adobe's programs write them: each is the light that is left. */
static void join_cmyk(mx_image *m, const uint8_t *cmyk)
{
    for (int64_t i = 0; i < m->width * m->height; i++)
        for (int c = 0; c < 3; c++) {
            unsigned v = (unsigned)cmyk[4 * i + c] * cmyk[4 * i + 3] + 128;
            m->rgb[3 * i + c] = (uint8_t)((v + (v >> 8)) >> 8);
        }
}

static mx_status jpeg_error(tjhandle h, const char *where)
{
    return mx_fail(MX_INPUT, "%s: the JPEG image is damaged: %s", where, tjGetErrorStr2(h));
}

/* Stray bytes between segments are a warning that every reader passes over; a file that ends before
 * its last row is one too, but half a picture is not what was meant. */
static bool is_harmless(tjhandle h)
{
    const char *text = tjGetErrorStr2(h);
    return tjGetErrorCode(h) == TJERR_WARNING && !strstr(text, "Premature end");
}

static mx_status decompress(tjhandle h, mx_image *m, const uint8_t *data, size_t n,
                            const char *where)
{
    int width, height, sampling, colours;
    if (tjDecompressHeader3(h, data, (unsigned long)n, &width, &height, &sampling, &colours))
        return jpeg_error(h, where);
    MX_TRY(make_room(m, width, height, where));
    bool printed = colours == TJCS_CMYK || colours == TJCS_YCCK;
    void *cmyk = NULL;
    if (printed)
        MX_TRY(mx_alloc(&cmyk, 4 * (size_t)width * (size_t)height, "an image"));
    int rc = tjDecompress2(h, data, (unsigned long)n, printed ? cmyk : m->rgb, width, 0, height,
                           printed ? TJPF_CMYK : TJPF_RGB, TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS);
    mx_status st = rc && !is_harmless(h) ? jpeg_error(h, where) : MX_OK;
    if (printed && !st)
        join_cmyk(m, cmyk);
    mx_free(cmyk);
    return st;
}

static mx_status decode_jpeg(mx_image *m, const uint8_t *data, size_t n, const char *where)
{
    tjhandle h = tjInitDecompress();
    if (!h)
        return mx_fail(MX_DEVICE, "libjpeg-turbo could not be started: %s", tjGetErrorStr());
    mx_status st = decompress(h, m, data, n, where);
    tjDestroy(h);
    return st;
}

/* --- PNG --- */

typedef struct {
    const uint8_t *data;
    size_t n, at;
    const char *where;
    jmp_buf back;
    char message[160];
    png_structp png;
    png_infop info;
    int passes; /* of an interlaced image */
} png_job;

static void png_failed(png_structp png, png_const_charp message)
{
    png_job *j = png_get_error_ptr(png);
    snprintf(j->message, sizeof j->message, "%s", message);
    longjmp(j->back, 1);
}

static void png_warned(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void png_more(png_structp png, png_bytep out, size_t n)
{
    png_job *j = png_get_io_ptr(png);
    if (n > j->n - j->at)
        png_error(png, "the file ends before the image does");
    memcpy(out, j->data + j->at, n);
    j->at += n;
}

/* Everything becomes 8 bits of red, green and blue. */
static void convert_to_rgb(png_job *j)
{
    int type = png_get_color_type(j->png, j->info);
    png_set_expand(j->png);
    png_set_strip_16(j->png);
    png_set_strip_alpha(j->png);
    if (!(type & PNG_COLOR_MASK_COLOR))
        png_set_gray_to_rgb(j->png);
    j->passes = png_set_interlace_handling(j->png);
    png_read_update_info(j->png, j->info);
}

static mx_status run_png(png_job *j, mx_image *m)
{
    if (setjmp(j->back))
        return mx_fail(MX_INPUT, "%s: the PNG image is damaged: %s", j->where, j->message);
    png_set_user_limits(j->png, 0x7fffffff, 0x7fffffff); /* the product is what is judged */
    png_set_read_fn(j->png, j, png_more);
    png_read_info(j->png, j->info);
    MX_TRY(make_room(m, png_get_image_width(j->png, j->info),
                     png_get_image_height(j->png, j->info), j->where));
    convert_to_rgb(j);
    if (png_get_rowbytes(j->png, j->info) != 3 * (size_t)m->width)
        return mx_fail(MX_INPUT, "%s: the PNG image has rows of %zu bytes for %lld pixels",
                       j->where, png_get_rowbytes(j->png, j->info), (long long)m->width);
    for (int pass = 0; pass < j->passes; pass++)
        for (int64_t y = 0; y < m->height; y++)
            png_read_row(j->png, m->rgb + 3 * m->width * y, NULL);
    png_read_end(j->png, NULL);
    return MX_OK;
}

static mx_status decode_png(mx_image *m, const uint8_t *data, size_t n, const char *where)
{
    png_job *j = mx_realloc(NULL, sizeof *j);
    *j = (png_job){.data = data, .n = n, .where = where};
    j->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, j, png_failed, png_warned);
    j->info = j->png ? png_create_info_struct(j->png) : NULL;
    mx_status st =
        j->info ? run_png(j, m) : mx_fail(MX_DEVICE, "libpng %s could not be started",
                                          PNG_LIBPNG_VER_STRING);
    if (j->png)
        png_destroy_read_struct(&j->png, &j->info, NULL);
    mx_free(j);
    return st;
}

/* --- WebP --- */

static mx_status decode_webp(mx_image *m, const uint8_t *data, size_t n, const char *where)
{
    WebPBitstreamFeatures f;
    if (WebPGetFeatures(data, n, &f) != VP8_STATUS_OK)
        return mx_fail(MX_INPUT, "%s: the WebP image is damaged: its header cannot be read", where);
    if (f.has_animation)
        return mx_fail(MX_INPUT,
                       "%s is an animated WebP; save the frame that is meant as a file of its own",
                       where);
    MX_TRY(make_room(m, f.width, f.height, where));
    size_t bytes = 3 * (size_t)m->width * (size_t)m->height;
    if (!WebPDecodeRGBInto(data, n, m->rgb, bytes, (int)(3 * m->width)))
        return mx_fail(MX_INPUT, "%s: the WebP image is damaged or cut off after %zu bytes", where,
                       n);
    return MX_OK;
}

/* --- any --- */

static const struct {
    const char *magic;
    size_t at, n;
    mx_status (*decode)(mx_image *m, const uint8_t *data, size_t n, const char *where);
} kinds[] = {{"\xff\xd8\xff", 0, 3, decode_jpeg},
             {"\x89PNG\r\n\x1a\n", 0, 8, decode_png},
             {"WEBP", 8, 4, decode_webp}};

mx_status mx_image_decode(mx_image *out, const void *data, size_t n, const char *where)
{
    return mx_image_decode_within(out, data, n, MX_IMAGE_MAX_PIXELS, where);
}

mx_status mx_image_decode_within(mx_image *out, const void *data, size_t n, int64_t max_pixels,
                                 const char *where)
{
    *out = (mx_image){.max_pixels = max_pixels};
    mx_status st = mx_fail(MX_INPUT, "%s is not a JPEG, PNG or WebP image (%zu bytes)", where, n);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (n >= kinds[i].at + kinds[i].n &&
            memcmp((const char *)data + kinds[i].at, kinds[i].magic, kinds[i].n) == 0) {
            mx_status_free(st);
            st = kinds[i].decode(out, data, n, where);
            break;
        }
    if (!st)
        st = mx_image_orient(out, mx_image_orientation(data, n));
    if (st)
        mx_image_fini(out);
    return st;
}

mx_status mx_image_read(mx_image *out, const char *path)
{
    *out = (mx_image){0};
    mx_arena a = {0};
    char *data;
    size_t n;
    mx_status st = mx_file_read(&a, path, MX_IMAGE_MAX_FILE, &data, &n);
    if (!st)
        st = mx_image_decode(out, data, n, path);
    mx_arena_fini(&a);
    return st;
}

void mx_image_fini(mx_image *m)
{
    mx_free(m->rgb);
    *m = (mx_image){0};
}

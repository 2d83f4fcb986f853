/* image_pieces.c - pictures that keep their proportions, cut into pieces: see nn/vision.h.
 *
 * A piece is side x side patches and becomes one token; its pixels are a square of patch side on a
 * side, here the unit u. How large a picture becomes, width x height in pixels, multiples of u:
 *   with min_pixels 0 (Gemma 4)   as large as max_pixels allow, each side rounded down; a side that
 *                                 would be 0 is one u, and the other the proportion in whole
 *                                 numbers, at most max_pixels / u
 *   else (Qwen3-VL)               each side to the nearest multiple (halves to the even one); and
 *                                 below min_pixels scaled to them and rounded up, above max_pixels
 *                                 to those and down. Sides more than 200 times apart are refused.
 * The arithmetic is float64, as the references'.
 */
#include "data/image/image_process.h"
#include "nn/vision.h"

#include <math.h>

enum { MAX_PIECES = 1 << 16, MAX_PROPORTION = 200 };

static int64_t unit_of(const mx_image_spec *s)
{
    return s->patch * s->side;
}

static int64_t whole(double x, int64_t unit)
{
    return (int64_t)floor(x / (double)unit) * unit;
}

static void fill(const mx_image_spec *s, int64_t width, int64_t height, mx_image_cut *c)
{
    int64_t u = unit_of(s), most = s->max_pixels / (u * u) * u;
    double scale = sqrt((double)s->max_pixels / ((double)width * (double)height));
    c->width = whole(scale * (double)width, u);
    c->height = whole(scale * (double)height, u);
    int64_t *thin = c->height ? &c->width : &c->height, *wide = c->height ? &c->height : &c->width;
    if (*thin)
        return;
    int64_t ratio = c->height ? height / width : width / height;
    *thin = u;
    *wide = ratio * u < most ? ratio * u : most;
}

static void keep_within(const mx_image_spec *s, int64_t width, int64_t height, mx_image_cut *c)
{
    int64_t u = unit_of(s);
    double w = (double)width, h = (double)height, step = (double)u;
    c->width = (int64_t)rint(w / step) * u;
    c->height = (int64_t)rint(h / step) * u;
    if (c->width * c->height > s->max_pixels) {
        double shrink = sqrt(w * h / (double)s->max_pixels);
        c->width = whole(w / shrink, u);
        c->height = whole(h / shrink, u);
        c->width = c->width ? c->width : u;
        c->height = c->height ? c->height : u;
    } else if (c->width * c->height < s->min_pixels) {
        double grow = sqrt((double)s->min_pixels / (w * h));
        c->width = (int64_t)ceil(w * grow / step) * u;
        c->height = (int64_t)ceil(h * grow / step) * u;
    }
}

mx_status mx_pieces_of(const mx_image_processor *p, int64_t width, int64_t height,
                       mx_image_cut *out)
{
    const mx_image_spec *s = &p->spec;
    int64_t u = unit_of(s), longer = width > height ? width : height;
    int64_t shorter = width > height ? height : width;
    if (s->min_pixels && longer > MAX_PROPORTION * shorter)
        return mx_fail(MX_INPUT,
                       "%lld x %lld pixels: one side is more than %d times the other, which the "
                       "family does not take; cut the picture",
                       (long long)width, (long long)height, MAX_PROPORTION);
    if (s->min_pixels)
        keep_within(s, width, height, out);
    else
        fill(s, width, height, out);
    out->across = out->width / u;
    out->down = out->height / u;
    out->images = out->across * out->down;
    int64_t grid = (out->across > out->down ? out->across : out->down) * s->side;
    if (s->max_grid && grid > s->max_grid)
        return mx_fail(MX_INPUT,
                       "%lld x %lld pixels become %lld patches on a side, and the model has "
                       "places for %lld",
                       (long long)width, (long long)height, (long long)grid,
                       (long long)s->max_grid);
    return MX_OK;
}

/* The patch whose first pixel is (left, top), as numbers. */
static float *take_patch(const mx_image_spec *s, const mx_image *m, float values[3][256],
                         int64_t left, int64_t top, float *out)
{
    int64_t n = s->patch;
    const uint8_t *from = m->rgb + 3 * (top * m->width + left);
    if (s->channels_last) {
        for (int64_t y = 0; y < n; y++)
            for (int64_t x = 0; x < 3 * n; x++)
                *out++ = values[x % 3][from[3 * y * m->width + x]];
        return out;
    }
    for (int c = 0; c < 3; c++)
        for (int64_t f = 0; f < s->frames; f++)
            for (int64_t y = 0; y < n; y++)
                for (int64_t x = 0; x < n; x++)
                    *out++ = values[c][from[3 * (y * m->width + x) + c]];
    return out;
}

void mx_pieces_take(const mx_image_processor *p, const mx_image *m, float *pixels)
{
    const mx_image_spec *s = &p->spec;
    int64_t u = unit_of(s), across = m->width / u, down = m->height / u;
    float values[3][256];
    for (int c = 0; c < 3; c++)
        mx_image_values(p, c, values[c]);
    for (int64_t i = 0; i < across * down; i++) {
        int64_t column = i % across * s->side, row = i / across * s->side;
        pixels[MX_PIECE_INDEX] = (float)i;
        pixels[MX_PIECE_COLUMN] = (float)column;
        pixels[MX_PIECE_ROW] = (float)row;
        pixels[MX_PIECE_WIDTH] = (float)(across * s->side);
        pixels[MX_PIECE_HEIGHT] = (float)(down * s->side);
        pixels += MX_PIECE_PLACE;
        for (int64_t k = 0; k < s->side * s->side; k++)
            pixels = take_patch(s, m, values, (column + k % s->side) * s->patch,
                                (row + k / s->side) * s->patch, pixels);
    }
}

int64_t mx_image_run(const mx_image_spec *s, const float *pixels)
{
    if (s->size)
        return 1;
    return (int64_t)(pixels[MX_PIECE_WIDTH] * pixels[MX_PIECE_HEIGHT]) / (s->side * s->side);
}

int64_t mx_image_run_tokens(const mx_image_spec *s, const float *pixels)
{
    return s->tokens * mx_image_run(s, pixels);
}

int64_t mx_image_longest(const mx_image_spec *s, const float *pixels, int64_t n)
{
    int64_t most = 0, floats = mx_image_floats(s);
    for (int64_t i = 0; i < n; i += mx_image_run(s, pixels + i * floats)) {
        int64_t tokens = mx_image_run_tokens(s, pixels + i * floats);
        most = tokens > most ? tokens : most;
    }
    return most;
}

void mx_pieces_clear(const mx_image_spec *s, float *pixels, int64_t n)
{
    for (int64_t i = 0; i < n; i++, pixels += mx_image_floats(s)) {
        for (int k = 0; k < MX_PIECE_PLACE; k++)
            pixels[k] = 0;
        pixels[MX_PIECE_INDEX] = -1;
    }
}

/* An image begins where the text before it ends; its pieces stand still in time. */
void mx_image_places(const mx_image_spec *s, const int32_t *tokens, const int32_t *segments,
                     int64_t n, const float *pixels, int64_t n_images, int64_t *next, int32_t *out,
                     int64_t step)
{
    int64_t floats = mx_image_floats(s), image = 0;
    for (int64_t i = 0; i < n; i++, out++) {
        if (segments && i > 0 && segments[i] != segments[i - 1])
            *next = 0;
        bool piece = tokens[i] == s->token && image < n_images;
        const float *p = piece ? pixels + image++ * floats : NULL;
        int64_t down = piece ? (int64_t)p[MX_PIECE_ROW] / s->side : 0;
        int64_t across = piece ? (int64_t)p[MX_PIECE_COLUMN] / s->side : 0;
        out[0] = (int32_t)*next;
        out[step] = (int32_t)(*next + down);
        out[2 * step] = (int32_t)(*next + across);
        if (!piece)
            ++*next;
        else if ((int64_t)p[MX_PIECE_INDEX] + 1 == mx_image_run(s, p))
            *next += (int64_t)fmaxf(p[MX_PIECE_WIDTH], p[MX_PIECE_HEIGHT]) / s->side;
    }
}

/* --- configuration --- */

/* A number that must be the model's own. */
static mx_status must_be(const json_t *o, const char *key, int64_t want, const char *where)
{
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_null(v) && json_integer_value(v) != want)
        return mx_fail(MX_INPUT, "%s: \"%s\" must be the model's, %lld", where, key,
                       (long long)want);
    return MX_OK;
}

static void read_int(const json_t *o, const char *key, int64_t *out)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_integer(v))
        *out = json_integer_value(v);
}

mx_status mx_pieces_read_config(mx_image_processor *p, const json_t *o, const char *where)
{
    mx_image_spec *s = &p->spec;
    int64_t area = unit_of(s) * unit_of(s), tokens = s->max_pixels / area;
    MX_TRY(must_be(o, "patch_size", s->patch, where));
    MX_TRY(must_be(o, "pooling_kernel_size", s->side, where));
    MX_TRY(must_be(o, "merge_size", s->side, where));
    MX_TRY(must_be(o, "temporal_patch_size", s->frames, where));
    if (!s->min_pixels) {
        read_int(o, "max_soft_tokens", &tokens);
        if (tokens < 1 || tokens > MAX_PIECES)
            return mx_fail(MX_INPUT, "%s: \"max_soft_tokens\" is %lld, expected 1 to %d", where,
                           (long long)tokens, MAX_PIECES);
        s->max_pixels = tokens * area;
        return MX_OK;
    }
    const json_t *size = json_object_get(o, "size");
    read_int(size, "shortest_edge", &s->min_pixels);
    read_int(size, "longest_edge", &s->max_pixels);
    read_int(o, "min_pixels", &s->min_pixels);
    read_int(o, "max_pixels", &s->max_pixels);
    if (s->min_pixels < 1 || s->max_pixels < s->min_pixels || s->max_pixels < area ||
        s->max_pixels / area > MAX_PIECES)
        return mx_fail(MX_INPUT,
                       "%s: a picture has %lld (shortest_edge) to %lld (longest_edge) pixels; "
                       "expected at least 1, and %lld to %lld",
                       where, (long long)s->min_pixels, (long long)s->max_pixels, (long long)area,
                       (long long)(area * MAX_PIECES));
    return MX_OK;
}

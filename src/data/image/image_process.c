/* image_process.c - see image_process.h.
 *
 * Canvases: all a x b with a b <= max_tiles. A picture fits a canvas at the scale that its tighter
 * side allows. Of the canvases that do not shrink it the one with the smallest scale is taken
 * (largest_canvas: the largest), else the one that shrinks it least; among equals the smallest
 * area, then the first in order of falling a b and rising a, ratios seen before first. The
 * reference compares scales as float32, and so does this. On its canvas a picture grows to the side
 * of a tile at most.
 *
 * Crops (Gemma 3's pan and scan): a picture whose longer side is min_ratio times the shorter or
 * more is cut along it, into as many equal parts as come closest to squares, 2 to max_crops, if
 * they are min_crop pixels at least; the last may be a few pixels short. The whole comes first.
 *
 * Scaling: the reference folds factor into mean and std where both are used, in float32. Llama 4's
 * computes in bfloat16 step by step.
 */
#include "data/image/image_process.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/vmath.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TILES = 256 };

/* --- configuration --- */

static mx_status read_numbers(const json_t *o, const char *key, double *out, const char *where)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return MX_OK;
    for (int i = 0; i < 3; i++) {
        const json_t *x = json_is_array(v) ? json_array_get(v, (size_t)i) : v;
        if (!json_is_number(x) || (json_is_array(v) && json_array_size(v) != 3))
            return mx_fail(MX_INPUT, "%s: \"%s\" must be three numbers", where, key);
        out[i] = json_number_value(x);
        if (!isfinite(out[i]) || (strcmp(key, "image_std") == 0 && out[i] == 0))
            return mx_fail(MX_INPUT, "%s: \"%s\" has a value of %g", where, key, out[i]);
    }
    return MX_OK;
}

static bool flag(const json_t *o, const char *key, bool fallback)
{
    const json_t *v = json_object_get(o, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

/* {"height": 896, "width": 896}, or a number. Another size than the model's cannot be meant. */
static mx_status check_size(const mx_image_processor *p, const json_t *o, const char *where)
{
    const json_t *v = json_object_get(o, "size"), *h = json_object_get(v, "height");
    const json_t *w = json_object_get(v, "width");
    if (!v || json_is_null(v))
        return MX_OK;
    int64_t side = json_integer_value(json_is_object(v) ? h : v);
    if (side != p->spec.size || (json_is_object(v) && json_integer_value(w) != side))
        return mx_fail(MX_INPUT,
                       "%s: \"size\" must be the model's image_size, %lld in height and width",
                       where, (long long)p->spec.size);
    return MX_OK;
}

mx_status mx_image_processor_crops(mx_image_processor *p)
{
    if (!p->spec.crop_texts[0])
        return mx_fail(MX_INPUT, "do_pan_and_scan: the family does not show pictures in crops; "
                       "set it to false");
    p->crops = true;
    return MX_OK;
}

static mx_status read_crops(mx_image_processor *p, const json_t *o, const char *where)
{
    const json_t *least = json_object_get(o, "pan_and_scan_min_crop_size");
    const json_t *most = json_object_get(o, "pan_and_scan_max_num_crops");
    const json_t *ratio = json_object_get(o, "pan_and_scan_min_ratio_to_activate");
    if (json_is_integer(least))
        p->min_crop = json_integer_value(least);
    if (json_is_integer(most))
        p->max_crops = json_integer_value(most);
    if (json_is_number(ratio))
        p->min_ratio = json_number_value(ratio);
    if (p->min_crop < 1 || p->max_crops < 2 || p->max_crops > MAX_TILES || !(p->min_ratio >= 1))
        return mx_fail(MX_INPUT,
                       "%s: \"pan_and_scan_min_crop_size\" is %lld, \"..._max_num_crops\" %lld and "
                       "\"..._min_ratio_to_activate\" %g; expected at least 1, 2 to %d, and at "
                       "least 1",
                       where, (long long)p->min_crop, (long long)p->max_crops, p->min_ratio,
                       MAX_TILES);
    if (flag(o, "do_pan_and_scan", false))
        return mx_status_wrap(mx_image_processor_crops(p), "%s", where);
    return MX_OK;
}

static mx_status read_config(mx_image_processor *p, const json_t *o, const char *where)
{
    const json_t *resample = json_object_get(o, "resample");
    const json_t *factor = json_object_get(o, "rescale_factor");
    const json_t *tiles = json_object_get(o, "max_patches");
    MX_TRY(read_crops(p, o, where));
    if (!flag(o, "do_resize", true))
        return mx_fail(MX_INPUT, "%s: \"do_resize\" is false, but the model takes images of one "
                       "size", where);
    MX_TRY(p->spec.size ? check_size(p, o, where) : mx_pieces_read_config(p, o, where));
    MX_TRY(read_numbers(o, "image_mean", p->mean, where));
    MX_TRY(read_numbers(o, "image_std", p->std, where));
    if (json_is_integer(resample)) {
        json_int_t f = json_integer_value(resample);
        if (f < MX_FILTER_LANCZOS || f > MX_FILTER_BICUBIC)
            return mx_fail(MX_INPUT, "%s: \"resample\" is %lld; 1 (lanczos), 2 (bilinear) and 3 "
                           "(bicubic) are supported", where, (long long)f);
        p->filter = (mx_filter)f;
    }
    if (json_is_number(factor))
        p->factor = json_number_value(factor);
    if (p->spec.max_tiles > 1 && json_is_integer(tiles))
        p->spec.max_tiles = json_integer_value(tiles);
    if (p->spec.max_tiles < 1 || p->spec.max_tiles > MAX_TILES)
        return mx_fail(MX_INPUT, "%s: \"max_patches\" is %lld, expected 1 to %d", where,
                       (long long)p->spec.max_tiles, MAX_TILES);
    p->rescale = flag(o, "do_rescale", true);
    p->normalize = flag(o, "do_normalize", p->normalize);
    p->largest_canvas = flag(o, "resize_to_max_canvas", false);
    return MX_OK;
}

static mx_status read_file(mx_image_processor *p, const char *path, bool nested, bool *found)
{
    mx_arena a = {0};
    char *text;
    size_t n;
    json_error_t err;
    mx_status st = mx_file_read(&a, path, 1 << 20, &text, &n);
    json_t *o = st ? NULL : json_loadb(text, n, JSON_REJECT_DUPLICATES, &err);
    if (!st && !json_is_object(o))
        st = mx_fail(MX_INPUT, "%s: expected a JSON object: %s", path, o ? "found another"
                                                                         : err.text);
    const json_t *part = nested ? json_object_get(o, "image_processor") : o;
    if (!st && part) {
        *found = true;
        st = read_config(p, part, path);
    }
    json_decref(o);
    mx_arena_fini(&a);
    return st;
}

mx_status mx_image_processor_open(mx_image_processor *p, const mx_image_spec *s, const char *dir)
{
    *p = (mx_image_processor){.spec = *s, .factor = 1.0 / 255, .rescale = true,
                              .filter = s->bicubic ? MX_FILTER_BICUBIC : MX_FILTER_BILINEAR,
                              .mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5},
                              .normalize = !s->plain, .min_crop = 256, .max_crops = 4,
                              .min_ratio = 1.2};
    if (s->channels != 3)
        return mx_fail(MX_INPUT, "the model takes images of %lld channels, pictures have 3",
                       (long long)s->channels);
    static const char *const names[2] = {"processor_config.json", "preprocessor_config.json"};
    bool found = false;
    for (int i = 0; i < 2 && dir && !found; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (mx_file_exists(path))
            MX_TRY(read_file(p, path, i == 0, &found));
    }
    return MX_OK;
}

/* --- cutting --- */

typedef struct {
    int64_t w, h;
} canvas;

/* In the reference's order: by falling area, but a proportion seen before keeps its place. */
static int all_canvases(int64_t max_tiles, canvas *out)
{
    int n = 0;
    for (int64_t area = max_tiles; area > 0; area--)
        for (int64_t h = 1; h <= area; h++) {
            if (area % h)
                continue;
            canvas c = {area / h, h};
            int at = n;
            for (int i = 0; i < n; i++)
                if (out[i].h * c.w == c.h * out[i].w)
                    at = i + 1;
            memmove(out + at + 1, out + at, sizeof *out * (size_t)(n++ - at));
            out[at] = c;
        }
    return n;
}

static canvas best_canvas(const mx_image_processor *p, int64_t width, int64_t height)
{
    canvas all[MAX_TILES * 16], best = {1, 1};
    int n = all_canvases(p->spec.max_tiles, all);
    float chosen = 0;
    for (int i = 0; i < n; i++) {
        float x = (float)(all[i].w * p->spec.size) / (float)width;
        float y = (float)(all[i].h * p->spec.size) / (float)height, s = y > x ? x : y;
        bool closer = s != chosen && (s < chosen) != p->largest_canvas;
        bool better = i == 0                  ? true
                      : s >= 1 && chosen >= 1 ? closer
                      : s >= 1 || chosen >= 1 ? s >= 1
                                              : s > chosen;
        if (better || (s == chosen && all[i].w * all[i].h < best.w * best.h)) {
            best = all[i];
            chosen = s;
        }
    }
    return best;
}

/* side / length, and what it makes of another length: in float32 where `side` is the canvas's own,
 * as the reference's number then is a tensor, else in float64. */
static double scaled(int64_t side, int64_t length, bool narrow, int64_t other, int64_t *out)
{
    double s = (double)side / (double)length;
    if (narrow)
        s = (float)side / (float)length;
    *out = (int64_t)(narrow ? floorf((float)other * (float)s) : floor((double)other * s));
    return s;
}

/* The size of the picture on its canvas: proportions kept, and grown to the side of a tile at most.
 */
static void fit(const mx_image_processor *p, int64_t width, int64_t height, mx_image_cut *c)
{
    int64_t side = p->spec.size, by_x, by_y;
    int64_t most_w = width > side ? width : side, most_h = height > side ? height : side;
    bool own_w = p->largest_canvas || c->width < most_w;
    bool own_h = p->largest_canvas || c->height < most_h;
    int64_t w = own_w ? c->width : most_w, h = own_h ? c->height : most_h;
    double x = scaled(w, width, own_w, height, &by_x), y = scaled(h, height, own_h, width, &by_y);
    bool wide = own_w || own_h ? (float)x < (float)y : x < y; /* the width is the tighter */
    c->width = wide || by_y > w ? w : by_y;
    c->height = !wide || by_x > h ? h : by_x;
    c->width = c->width < 1 ? 1 : c->width;
    c->height = c->height < 1 ? 1 : c->height;
}

/* How many crops a side of `longer` pixels is cut into; 1: none. */
static int64_t crops_of(const mx_image_processor *p, int64_t longer, int64_t shorter)
{
    if (!p->crops || (double)longer / (double)shorter < p->min_ratio)
        return 1;
    int64_t n = (int64_t)floor((double)longer / (double)shorter + 0.5);
    n = longer / p->min_crop < n ? longer / p->min_crop : n;
    n = n < 2 ? 2 : n;
    n = n > p->max_crops ? p->max_crops : n;
    int64_t length = (longer + n - 1) / n;
    return length < p->min_crop || shorter < p->min_crop || length * (n - 1) >= longer ? 1 : n;
}

mx_status mx_image_cut_of(const mx_image_processor *p, int64_t width, int64_t height,
                          mx_image_cut *out)
{
    int64_t side = p->spec.size;
    if (!side)
        return mx_pieces_of(p, width, height, out);
    bool wide = width >= height;
    int64_t crops = wide ? crops_of(p, width, height) : crops_of(p, height, width);
    *out = (mx_image_cut){wide ? crops : 1, wide ? 1 : crops, crops + (crops > 1), side, side};
    if (p->spec.max_tiles == 1)
        return MX_OK;
    canvas c = best_canvas(p, width, height);
    *out = (mx_image_cut){c.w, c.h, c.w * c.h + (c.w * c.h > 1), c.w * side, c.h * side};
    fit(p, width, height, out);
    return MX_OK;
}

/* --- numbers --- */

static float bf16(float x)
{
    return mx_float_of_bf16(mx_bf16_of_float(x));
}

void mx_image_values(const mx_image_processor *p, int channel, float *table)
{
    float factor = (float)p->factor, mean = (float)p->mean[channel], std = (float)p->std[channel];
    bool both = p->rescale && p->normalize;
    for (int v = 0; v < 256; v++) {
        float x = (float)v;
        if (p->spec.in_bf16 && both) {
            x = bf16(x * factor);
            x = bf16(bf16(x - bf16(mean)) / bf16(std));
        } else if (both) {
            x = (x - (float)(p->mean[channel] / p->factor)) / (float)(p->std[channel] / p->factor);
        } else if (p->rescale) {
            x *= factor;
        } else if (p->normalize) {
            x = (x - mean) / std;
        }
        table[v] = x;
    }
}

/* The size x size pixels of m that begin at (left, top), black where it has none, as (3, size,
 * size). */
static void take_tile(const mx_image_processor *p, const mx_image *m, int64_t left, int64_t top,
                      float *out)
{
    int64_t side = p->spec.size;
    for (int c = 0; c < 3; c++) {
        float table[256];
        mx_image_values(p, c, table);
        for (int64_t y = 0; y < side; y++)
            for (int64_t x = 0; x < side; x++) {
                bool inside = top + y < m->height && left + x < m->width;
                int64_t at = (top + y) * m->width + left + x;
                *out++ = table[inside ? m->rgb[3 * at + c] : 0];
            }
    }
}

/* Crop i of a picture, resized. */
static mx_status take_crop(const mx_image_processor *p, const mx_image *m, const mx_image_cut *cut,
                           int64_t i, float *out)
{
    int64_t w = (m->width + cut->across - 1) / cut->across;
    int64_t h = (m->height + cut->down - 1) / cut->down, side = p->spec.size;
    int64_t left = i % cut->across * w, top = i / cut->across * h;
    mx_image crop = {.width = m->width - left < w ? m->width - left : w,
                     .height = m->height - top < h ? m->height - top : h};
    mx_image small;
    MX_TRY(mx_alloc((void **)&crop.rgb, (size_t)(3 * crop.width * crop.height), "a crop"));
    for (int64_t y = 0; y < crop.height; y++)
        memcpy(crop.rgb + 3 * y * crop.width, m->rgb + 3 * ((top + y) * m->width + left),
               (size_t)(3 * crop.width));
    mx_status st = mx_image_resize(&small, &crop, side, side, p->filter);
    if (!st) {
        take_tile(p, &small, 0, 0, out);
        mx_image_fini(&small);
    }
    mx_image_fini(&crop);
    return st;
}

mx_status mx_image_process(const mx_image_processor *p, const mx_image *m, float *pixels)
{
    int64_t side = p->spec.size, n = mx_image_floats(&p->spec);
    mx_image_cut cut;
    mx_image small;
    MX_TRY(mx_image_cut_of(p, m->width, m->height, &cut));
    if (!side) {
        MX_TRY(mx_image_resize(&small, m, cut.width, cut.height, p->filter));
        mx_pieces_take(p, &small, pixels);
        mx_image_fini(&small);
        return MX_OK;
    }
    if (p->spec.max_tiles > 1) {
        MX_TRY(mx_image_resize(&small, m, cut.width, cut.height, p->filter));
        for (int64_t y = 0; y < cut.down; y++)
            for (int64_t x = 0; x < cut.across; x++, pixels += n)
                take_tile(p, &small, x * side, y * side, pixels);
        mx_image_fini(&small);
        if (cut.images == 1)
            return MX_OK;
    }
    MX_TRY(mx_image_resize(&small, m, side, side, p->filter));
    take_tile(p, &small, 0, 0, pixels);
    mx_image_fini(&small);
    for (int64_t i = 0; p->spec.max_tiles == 1 && i + 1 < cut.images; i++)
        MX_TRY(take_crop(p, m, &cut, i, pixels + (i + 1) * n));
    return MX_OK;
}

/* image_resize.c - resampling with a filter that widens when a picture shrinks, as Pillow does.
 *
 * Along one axis, with s = in / out and w = max(s, 1), the value at out's place i is the mean of
 * in's places j around (i + 1/2) s, each with weight f((j + 1/2 - (i + 1/2) s) / w), which sum
 * to 1:
 *     bilinear  f(x) = 1 - |x|                           up to 1
 *     bicubic   f(x) = Keys' cubic with a = -1/2         up to 2
 *     lanczos   f(x) = sinc(x) sinc(x / 3)               up to 3
 * First along rows, then along columns, with 8 bits between them. Weights are whole numbers of
 * 2^-22, so that sums are exact and equal Pillow's to the bit.
 *
 * Rows of the picture go through one after the other: each is resampled along its length and added
 * to the sums of those rows of the result that it is near to. Besides the result's sums, one row is
 * all that is held, however large the picture is.
 */
#include "data/image/image.h"

#include "base/arena.h"
#include <math.h>
#include <string.h>

enum { BITS = 22 };

typedef struct {
    int64_t first, count; /* places of the input */
    int32_t *weight;      /* (count) */
} tap;

static double sinc(double x)
{
    return x == 0 ? 1 : sin(M_PI * x) / (M_PI * x);
}

static double value(mx_filter f, double x)
{
    x = fabs(x);
    switch (f) {
    case MX_FILTER_LANCZOS: return x < 3 ? sinc(x) * sinc(x / 3) : 0;
    case MX_FILTER_BICUBIC:
        return x < 1   ? (1.5 * x - 2.5) * x * x + 1
               : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2
                       : 0;
    case MX_FILTER_BILINEAR: break;
    }
    return x < 1 ? 1 - x : 0;
}

/* Which places of `in` each of `out` is made of. */
static tap *make_taps(mx_arena *a, int64_t in, int64_t out, mx_filter f)
{
    double scale = (double)in / (double)out, wide = scale > 1 ? scale : 1;
    double reach = wide * (f == MX_FILTER_LANCZOS ? 3 : f == MX_FILTER_BICUBIC ? 2 : 1);
    tap *taps = MX_NEW_N(a, tap, out);
    double *raw = MX_NEW_N(a, double, 2 * (int64_t)ceil(reach) + 2);
    for (int64_t i = 0; i < out; i++) {
        tap *t = &taps[i];
        double centre = ((double)i + 0.5) * scale, sum = 0;
        double from = centre - reach + 0.5, to = centre + reach + 0.5;
        t->first = from < 0 ? 0 : (int64_t)from;
        int64_t end = to > (double)in ? in : (int64_t)to;
        t->count = end - t->first;
        for (int64_t j = 0; j < t->count; j++)
            sum += raw[j] = value(f, ((double)(t->first + j) - centre + 0.5) / wide);
        t->weight = MX_NEW_N(a, int32_t, t->count);
        for (int64_t j = 0; j < t->count; j++)
            t->weight[j] = (int32_t)lround(raw[j] / sum * (1 << BITS));
    }
    return taps;
}

static uint8_t whole(int32_t sum)
{
    int32_t v = (sum + (1 << (BITS - 1))) >> BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* One row (in, 3) -> (out, 3). */
static void across(const uint8_t *in, const tap *taps, int64_t out, uint8_t *to)
{
    for (int64_t i = 0; i < out; i++) {
        const tap *t = &taps[i];
        const uint8_t *p = in + 3 * t->first;
        int32_t r = 0, g = 0, b = 0;
        for (int64_t j = 0; j < t->count; j++, p += 3) {
            r += t->weight[j] * p[0];
            g += t->weight[j] * p[1];
            b += t->weight[j] * p[2];
        }
        to[3 * i] = whole(r);
        to[3 * i + 1] = whole(g);
        to[3 * i + 2] = whole(b);
    }
}

static void add_row(int32_t *sum, const uint8_t *row, int32_t weight, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += weight * row[i];
}

mx_status mx_image_resize(mx_image *out, const mx_image *in, int64_t width, int64_t height,
                          mx_filter filter)
{
    *out = (mx_image){.width = width, .height = height};
    int64_t n = 3 * width;
    int32_t *sums = NULL;
    mx_arena a = {0};
    mx_status st;
    MX_TRY_OUT(st, mx_alloc((void **)&out->rgb, (size_t)(n * height), "a resized image"));
    if (width == in->width && height == in->height) {
        memcpy(out->rgb, in->rgb, (size_t)(n * height));
        return MX_OK;
    }
    MX_TRY_OUT(st, mx_alloc((void **)&sums, 4 * (size_t)(n * height), "a resized image"));
    tap *x = make_taps(&a, in->width, width, filter);
    tap *y = make_taps(&a, in->height, height, filter);
    uint8_t *row = MX_NEW_N(&a, uint8_t, n);
    for (int64_t r = 0, first = 0; r < in->height; r++) {
        while (first < height && y[first].first + y[first].count <= r)
            first++;
        across(in->rgb + 3 * in->width * r, x, width, row);
        for (int64_t i = first; i < height && y[i].first <= r; i++)
            if (r - y[i].first < y[i].count)
                add_row(sums + n * i, row, y[i].weight[r - y[i].first], n);
    }
    for (int64_t i = 0; i < n * height; i++)
        out->rgb[i] = whole(sums[i]);
out:
    mx_free(sums);
    mx_arena_fini(&a);
    if (st)
        mx_image_fini(out);
    return st;
}

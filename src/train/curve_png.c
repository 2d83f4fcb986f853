/* curve_png.c - the curve as pixels, and pixels as PNG.
 *
 * Lines are drawn by distance: a pixel is covered by as much as its centre is inside the line's
 * width. A whole series is gathered in one layer of coverage, the largest of its segments' at each
 * pixel, and laid over the picture once, so that joints do not show.
 *
 * A PNG is a signature and chunks: length, type, data, CRC-32 of type and data, numbers big-endian.
 * IHDR says size and format; IDAT is one zlib stream of the rows, each behind a byte that names its
 * filter (0: none); IEND ends it.
 */
#include "train/curve_impl.h"

#include "base/arena.h"
#include <math.h>
#include <string.h>
#include <zlib.h>

typedef struct {
    int w, h;
    unsigned char *rgb; /* rows of w pixels */
    float *cover;       /* of the series being drawn, 0..1 */
    double left, top, plot_w, plot_h;
    mx_curve_range r;
    mx_arena arena;
} canvas;

/* Rows of five dots, the leftmost the highest bit. */
static const struct {
    char c;
    unsigned char row[7];
} font[] = {
    {'0', {14, 17, 19, 21, 25, 17, 14}}, {'1', {4, 12, 4, 4, 4, 4, 14}},
    {'2', {14, 17, 1, 2, 4, 8, 31}}, {'3', {14, 17, 1, 6, 1, 17, 14}},
    {'4', {2, 6, 10, 18, 31, 2, 2}}, {'5', {31, 16, 30, 1, 1, 17, 14}},
    {'6', {6, 8, 16, 30, 17, 17, 14}}, {'7', {31, 1, 2, 4, 4, 8, 8}},
    {'8', {14, 17, 17, 14, 17, 17, 14}}, {'9', {14, 17, 17, 15, 1, 2, 12}},
    {'.', {0, 0, 0, 0, 0, 12, 12}}, {'-', {0, 0, 0, 14, 0, 0, 0}}, {'+', {0, 4, 4, 31, 4, 4, 0}},
    {'/', {1, 2, 2, 4, 8, 8, 16}}, {'a', {0, 0, 14, 1, 15, 17, 15}},
    {'b', {16, 16, 22, 25, 17, 17, 30}}, {'c', {0, 0, 14, 16, 16, 17, 14}},
    {'d', {1, 1, 13, 19, 17, 17, 15}}, {'e', {0, 0, 14, 17, 31, 16, 14}},
    {'f', {6, 9, 8, 28, 8, 8, 8}}, {'g', {0, 15, 17, 17, 15, 1, 14}},
    {'h', {16, 16, 22, 25, 17, 17, 17}}, {'i', {4, 0, 12, 4, 4, 4, 14}},
    {'j', {2, 0, 6, 2, 2, 18, 12}}, {'k', {16, 16, 18, 20, 24, 20, 18}},
    {'l', {12, 4, 4, 4, 4, 4, 14}}, {'m', {0, 0, 26, 21, 21, 17, 17}},
    {'n', {0, 0, 22, 25, 17, 17, 17}}, {'o', {0, 0, 14, 17, 17, 17, 14}},
    {'p', {0, 0, 30, 17, 30, 16, 16}}, {'q', {0, 0, 13, 19, 15, 1, 1}},
    {'r', {0, 0, 22, 25, 16, 16, 16}}, {'s', {0, 0, 14, 16, 14, 1, 30}},
    {'t', {8, 8, 28, 8, 8, 9, 6}}, {'u', {0, 0, 17, 17, 17, 19, 13}},
    {'v', {0, 0, 17, 17, 17, 10, 4}}, {'w', {0, 0, 17, 17, 21, 21, 10}},
    {'x', {0, 0, 17, 10, 4, 10, 17}}, {'y', {0, 0, 17, 17, 15, 1, 14}},
    {'z', {0, 0, 31, 2, 4, 8, 31}},
};
enum { LETTER_W = 6, LETTER_H = 7 };

static const unsigned char colors[6][3] = {{0x2f, 0x6f, 0xde}, {0xd9, 0x64, 0x2a},
                                           {0x2c, 0x9c, 0x5f}, {0x9a, 0x4f, 0xd0},
                                           {0xc8, 0xa0, 0x13}, {0xd1, 0x42, 0x7f}};

static void blend(canvas *k, int x, int y, const unsigned char *color, double part)
{
    if (x < 0 || y < 0 || x >= k->w || y >= k->h)
        return;
    unsigned char *p = k->rgb + 3 * ((size_t)y * (size_t)k->w + (size_t)x);
    for (int i = 0; i < 3; i++)
        p[i] = (unsigned char)lround(p[i] + part * (color[i] - p[i]));
}

/* --- text --- */

static void text(canvas *k, double x, double y, const char *s, double anchor)
{
    static const unsigned char ink[3] = {0x33, 0x33, 0x33};
    int at = (int)lround(x - anchor * LETTER_W * (double)strlen(s)), top = (int)lround(y);
    for (; *s; s++, at += LETTER_W)
        for (size_t g = 0; g < sizeof font / sizeof *font; g++)
            for (int i = 0; font[g].c == *s && i < LETTER_H * 5; i++)
                if (font[g].row[i / 5] >> (4 - i % 5) & 1)
                    blend(k, at + i % 5, top + i / 5, ink, 1);
}

/* --- lines --- */

static void segment(canvas *k, const double a[2], const double b[2], double width)
{
    double dx = b[0] - a[0], dy = b[1] - a[1], length2 = dx * dx + dy * dy;
    double reach = width / 2 + 1;
    int x0 = (int)fmax(0, floor(fmin(a[0], b[0]) - reach));
    int x1 = (int)fmin(k->w - 1, ceil(fmax(a[0], b[0]) + reach));
    int y0 = (int)fmax(0, floor(fmin(a[1], b[1]) - reach));
    int y1 = (int)fmin(k->h - 1, ceil(fmax(a[1], b[1]) + reach));
    for (int y = y0; y <= y1; y++)
        for (int x = x0; x <= x1; x++) {
            double u = x - a[0], v = y - a[1];
            double t = length2 > 0 ? fmin(1, fmax(0, (u * dx + v * dy) / length2)) : 0;
            double part = width / 2 + 0.5 - hypot(u - t * dx, v - t * dy);
            float *c = &k->cover[(size_t)y * (size_t)k->w + (size_t)x];
            *c = fmaxf(*c, (float)fmin(1, fmax(0, part)));
        }
}

static void lay(canvas *k, const unsigned char *color, double opacity)
{
    for (int y = 0; y < k->h; y++)
        for (int x = 0; x < k->w; x++) {
            float *c = &k->cover[(size_t)y * (size_t)k->w + (size_t)x];
            if (*c > 0)
                blend(k, x, y, color, opacity * (double)*c);
            *c = 0;
        }
}

static void place(const canvas *k, double x, double y, double out[2])
{
    const mx_curve_range *r = &k->r;
    out[0] = k->left + (x - r->x0) / (r->x1 - r->x0) * k->plot_w;
    out[1] = k->top + (r->y1 - (r->log_y ? log10(y) : y)) / (r->y1 - r->y0) * k->plot_h;
}

/* The values, or with `smooth` their exponential mean, which starts unbiased. */
static void series(canvas *k, const mx_curve_series *s, double smooth, double width)
{
    double mean = 0, weight = 0, from[2] = {0}, to[2];
    bool pen = false;
    for (int64_t i = 0; i < s->n; i++) {
        if (!mx_curve_drawable(s->x[i], s->y[i], k->r.log_y)) {
            pen = false;
            continue;
        }
        mean = smooth * mean + (1 - smooth) * s->y[i];
        weight = smooth * weight + (1 - smooth);
        place(k, s->x[i], mean / weight, to);
        segment(k, pen ? from : to, to, width);
        memcpy(from, to, sizeof from);
        pen = true;
    }
}

static void rule(canvas *k, double x0, double y0, double x1, double y1)
{
    static const unsigned char gray[3] = {0xe4, 0xe4, 0xe4};
    segment(k, (double[]){x0, y0}, (double[]){x1, y1}, 1);
    lay(k, gray, 1);
}

static void axes(canvas *k)
{
    const mx_curve_range *r = &k->r;
    double first, step;
    char label[32];
    int n;
    mx_curve_ticks(r->y0, r->y1, 7, &first, &step, &n);
    for (int t = 0; t < n; t++) {
        double v = first + t * step;
        double y = round(k->top + (r->y1 - v) / (r->y1 - r->y0) * k->plot_h);
        rule(k, k->left, y, k->left + k->plot_w, y);
        mx_curve_tick_label(label, sizeof label, v, step, r->log_y);
        text(k, k->left - 6, y - 3, label, 1);
    }
    mx_curve_ticks(r->x0, r->x1, 8, &first, &step, &n);
    for (int t = 0; t < n; t++) {
        double v = first + t * step;
        double x = round(k->left + (v - r->x0) / (r->x1 - r->x0) * k->plot_w);
        rule(k, x, k->top, x, k->top + k->plot_h);
        mx_curve_tick_label(label, sizeof label, v, step, false);
        text(k, x, k->top + k->plot_h + 8, label, 0.5);
    }
}

static void draw(canvas *k, const mx_curve *c)
{
    double room = (k->r.y1 - k->r.y0) * 0.04;
    k->r.y0 -= room;
    k->r.y1 += room;
    axes(k);
    for (int s = 0; s < c->n_series; s++) {
        bool both = c->smooth > 0 && c->smooth < 1;
        series(k, &c->series[s], 0, both ? 1 : 2);
        lay(k, colors[s % 6], both ? 0.35 : 1);
        if (both) {
            series(k, &c->series[s], c->smooth, 2);
            lay(k, colors[s % 6], 1);
        }
        double x = k->left + k->plot_w - 10, y = k->top + 14 + 18 * s;
        if (c->series[s].name) {
            segment(k, (double[]){x - 20, y}, (double[]){x, y}, 2);
            lay(k, colors[s % 6], 1);
            text(k, x - 26, y - 3, c->series[s].name, 1);
        }
    }
}

/* --- the file --- */

static void put_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> (24 - 8 * i));
}

static void chunk(mx_str *out, const char *type, const unsigned char *data, size_t n)
{
    unsigned char word[4];
    uLong crc = crc32(0, (const Bytef *)type, 4);
    put_u32(word, (uint32_t)n);
    mx_str_add_n(out, (const char *)word, 4);
    mx_str_add_n(out, type, 4);
    mx_str_add_n(out, (const char *)data, n);
    put_u32(word, (uint32_t)(n ? crc32(crc, data, (uInt)n) : crc));
    mx_str_add_n(out, (const char *)word, 4);
}

static void encode(canvas *k, mx_str *out)
{
    size_t row = 3 * (size_t)k->w, n = (row + 1) * (size_t)k->h;
    unsigned char *raw = mx_arena_alloc(&k->arena, n), head[13] = {0};
    uLongf packed = compressBound(n);
    unsigned char *data = mx_arena_alloc(&k->arena, packed);
    for (int y = 0; y < k->h; y++)
        memcpy(raw + (row + 1) * (size_t)y + 1, k->rgb + row * (size_t)y, row);
    int rc = compress2(data, &packed, raw, n, 9);
    MX_ASSERT(rc == Z_OK, "zlib says %d", rc);
    put_u32(head, (uint32_t)k->w);
    put_u32(head + 4, (uint32_t)k->h);
    head[8] = 8; /* bits a colour */
    head[9] = 2; /* red, green, blue */
    mx_str_add_n(out, "\x89PNG\r\n\x1a\n", 8);
    chunk(out, "IHDR", head, sizeof head);
    chunk(out, "IDAT", data, packed);
    chunk(out, "IEND", NULL, 0);
}

void mx_curve_png(const mx_curve *c, int width, int height, mx_str *out)
{
    canvas k = {.w = width < 200 ? 200 : width, .h = height < 120 ? 120 : height};
    size_t n = (size_t)k.w * (size_t)k.h;
    k.rgb = memset(mx_arena_alloc(&k.arena, 3 * n), 255, 3 * n);
    k.cover = MX_NEW_N(&k.arena, float, n);
    k.left = 62;
    k.top = c->title ? 36 : 14;
    k.plot_w = k.w - k.left - 18;
    k.plot_h = k.h - k.top - (c->x_label ? 44 : 26);
    k.r = mx_curve_find_range(c);
    if (c->title)
        text(&k, k.w / 2.0, 14, c->title, 0.5);
    if (c->x_label)
        text(&k, k.left + k.plot_w / 2, k.h - 16, c->x_label, 0.5);
    if (k.r.empty)
        text(&k, k.w / 2.0, k.h / 2.0, "no finite values", 0.5);
    else
        draw(&k, c);
    encode(&k, out);
    mx_arena_fini(&k.arena);
}

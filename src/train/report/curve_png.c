/* curve_png.c - the curve as pixels, and pixels as PNG.
 *
 * Lines are drawn by distance: a pixel is covered by as much as its centre is inside the line's
 * width. A whole series is gathered in one layer of coverage, the largest of its segments' at each
 * pixel, and laid over the picture once, so that joints do not show.
 *
 * A PNG is a signature and chunks: length, type, data, CRC-32 of type and data, numbers big-endian.
 * IHDR says size and format; IDAT is one zlib stream of the rows, each after a byte that names its
 * filter (0: none); IEND ends it.
 */
#include "train/report/curve_impl.h"

#include "base/utf8.h"
#include "train/report/font.h"
#include <math.h>
#include <string.h>
#include <zlib.h>

/* The colours of everything but the series. */
typedef struct {
    unsigned char ground[3], ink[3], rule[3];
} theme;
static const theme light = {{0xff, 0xff, 0xff}, {0x33, 0x33, 0x33}, {0xe4, 0xe4, 0xe4}};
static const theme dark = {{0x16, 0x18, 0x1d}, {0xcc, 0xcc, 0xcc}, {0x2b, 0x2f, 0x38}};

enum { MARGIN = 20, THICK = 2, DOT = 7 }; /* pixels */

typedef struct {
    int w, h;
    unsigned char *rgb; /* rows of w pixels */
    float *cover;       /* of the series being drawn, 0..1 */
    double left, top, plot_w, plot_h;
    mx_curve_range r;
    const theme *theme;
    mx_arena arena;
} canvas;

static void blend(canvas *k, int x, int y, const unsigned char *color, double part)
{
    if (x < 0 || y < 0 || x >= k->w || y >= k->h)
        return;
    unsigned char *p = k->rgb + 3 * ((size_t)y * (size_t)k->w + (size_t)x);
    for (int i = 0; i < 3; i++)
        p[i] = (unsigned char)lround(p[i] + part * (color[i] - p[i]));
}

/* --- text --- */

static void letter(canvas *k, const mx_font *f, const mx_glyph *g, int x, int y)
{
    for (int i = 0; i < g->w * g->h; i++)
        if (f->alpha[g->at + (uint32_t)i])
            blend(k, x + g->left + i % g->w, y - g->top + i / g->w, k->theme->ink,
                  f->alpha[g->at + (uint32_t)i] / 255.0);
}

/* Beside x: 0 begins there, 0.5 is in the middle, 1 ends there. y is the base line. */
static void text(canvas *k, const mx_font *f, double x, double y, const char *s, double anchor)
{
    const uint8_t *p = (const uint8_t *)s, *end = p + strlen(s);
    int at = (int)lround(x - anchor * mx_font_width(f, s)), base = (int)lround(y);
    for (uint32_t code; p < end;) {
        int n = mx_utf8_decode(p, end, &code);
        const mx_glyph *g = mx_font_find(f, n ? code : 0xfffd);
        letter(k, f, g, at, base);
        at += g->advance;
        p += n ? n : 1;
    }
}

/* As much of it as fits, in the middle. */
static void title(canvas *k, const char *s)
{
    char *cut = mx_arena_strdup(&k->arena, s);
    const char *shown = cut;
    for (size_t n = strlen(cut); n && mx_font_width(&mx_font_large, shown) > k->w - 2 * MARGIN;) {
        do
            cut[--n] = 0;
        while (n && ((unsigned char)s[n] & 0xc0) == 0x80); /* whole characters */
        shown = mx_arena_printf(&k->arena, "%s…", cut);
    }
    text(k, &mx_font_large, k->w / 2.0, 30, shown, 0.5);
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

static void series(canvas *k, const mx_curve_series *s, const double *y, double width)
{
    double from[2] = {0}, to[2];
    bool pen = false;
    for (int64_t i = 0; i < s->n; i++) {
        if (!mx_curve_drawable(s->x[i], y[i], k->r.log_y)) {
            pen = false;
            continue;
        }
        place(k, s->x[i], y[i], to);
        segment(k, pen ? from : to, to, width);
        memcpy(from, to, sizeof from);
        pen = true;
    }
}

static void dots(canvas *k, const mx_curve_series *s)
{
    double at[2];
    for (int64_t i = 0; i < s->n; i++)
        if (mx_curve_drawable(s->x[i], s->y[i], k->r.log_y)) {
            place(k, s->x[i], s->y[i], at);
            segment(k, at, at, DOT);
        }
}

static void rule(canvas *k, double x0, double y0, double x1, double y1)
{
    segment(k, (double[]){x0, y0}, (double[]){x1, y1}, 1);
    lay(k, k->theme->rule, 1);
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
        text(k, &mx_font_small, k->left - 8, y + 5, label, 1);
    }
    mx_curve_ticks(r->x0, r->x1, 8, &first, &step, &n);
    for (int t = 0; t < n; t++) {
        double v = first + t * step;
        double x = round(k->left + (v - r->x0) / (r->x1 - r->x0) * k->plot_w);
        rule(k, x, k->top, x, k->top + k->plot_h);
        mx_curve_tick_label(label, sizeof label, v, step, false);
        text(k, &mx_font_small, x, k->top + k->plot_h + 20, label, 0.5);
    }
}

static void legend(canvas *k, const char *name, int i)
{
    double x = k->left + k->plot_w - 12, y = k->top + 20 + 24 * i;
    segment(k, (double[]){x - 24, y}, (double[]){x, y}, THICK);
    lay(k, mx_curve_colors[i % MX_CURVE_COLORS], 1);
    text(k, &mx_font_small, x - 32, y + 5, name, 1);
}

static void draw(canvas *k, const mx_curve *c)
{
    double room = (k->r.y1 - k->r.y0) * 0.04;
    k->r.y0 -= room;
    k->r.y1 += room;
    axes(k);
    for (int i = 0; i < c->n_series; i++) {
        const mx_curve_series *s = &c->series[i];
        const unsigned char *color = mx_curve_colors[i % MX_CURVE_COLORS];
        if (s->window > 0) {
            series(k, s, s->y, 1);
            lay(k, color, c->dark ? 0.5 : 0.35);
        }
        series(k, s, mx_curve_means(s, k->r.log_y, &k->arena), THICK);
        if (s->dots)
            dots(k, s);
        lay(k, color, 1);
        if (s->name)
            legend(k, s->name, i);
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

static void fill(canvas *k)
{
    for (size_t i = 0; i < (size_t)k->w * (size_t)k->h; i++)
        memcpy(k->rgb + 3 * i, k->theme->ground, 3);
}

void mx_curve_png(const mx_curve *c, int width, int height, mx_str *out)
{
    canvas k = {.w = width < 200 ? 200 : width, .h = height < 120 ? 120 : height,
                .theme = c->dark ? &dark : &light};
    size_t n = (size_t)k.w * (size_t)k.h;
    k.rgb = mx_arena_alloc(&k.arena, 3 * n);
    k.cover = MX_NEW_N(&k.arena, float, n);
    fill(&k);
    k.left = 72;
    k.top = c->title ? 48 : MARGIN;
    k.plot_w = k.w - k.left - MARGIN;
    k.plot_h = k.h - k.top - (c->x_label ? 56 : 32);
    k.r = mx_curve_find_range(c);
    if (c->title)
        title(&k, c->title);
    if (c->x_label)
        text(&k, &mx_font_small, k.left + k.plot_w / 2, k.h - 12, c->x_label, 0.5);
    if (k.r.empty)
        text(&k, &mx_font_small, k.w / 2.0, k.h / 2.0, "no finite values", 0.5);
    else
        draw(&k, c);
    encode(&k, out);
    mx_arena_fini(&k.arena);
}

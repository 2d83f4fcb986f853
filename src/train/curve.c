/* curve.c - ranges and ticks, the Braille canvas, the SVG writer. */
#include "train/curve.h"

#include "base/arena.h"
#include "train/curve_impl.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef mx_curve_range range;

static double y_of(const range *r, double y)
{
    return r->log_y ? log10(y) : y;
}

bool mx_curve_drawable(double x, double y, bool log_y)
{
    return isfinite(x) && isfinite(y) && (!log_y || y > 0);
}

mx_curve_range mx_curve_find_range(const mx_curve *c)
{
    range r = {INFINITY, -INFINITY, INFINITY, -INFINITY, true, c->log_y};
    for (int s = 0; s < c->n_series; s++)
        for (int64_t i = 0; i < c->series[s].n; i++) {
            double x = c->series[s].x[i], y = c->series[s].y[i];
            if (!mx_curve_drawable(x, y, c->log_y))
                continue;
            y = y_of(&r, y);
            r.empty = false;
            r.x0 = fmin(r.x0, x);
            r.x1 = fmax(r.x1, x);
            r.y0 = fmin(r.y0, y);
            r.y1 = fmax(r.y1, y);
        }
    if (r.empty)
        return r;
    if (r.x1 <= r.x0)
        r.x1 = r.x0 + 1;
    if (r.y1 - r.y0 <= 1e-12 * fmax(fabs(r.y0), fabs(r.y1))) { /* a flat line gets some room */
        double room = r.y0 != 0 ? fabs(r.y0) * 0.1 : 1;
        r.y0 -= room;
        r.y1 += room;
    }
    return r;
}

void mx_curve_ticks(double low, double high, int max, double *first, double *step, int *n)
{
    double raw = (high - low) / (max > 1 ? max - 1 : 1);
    double unit = pow(10, floor(log10(raw)));
    double times = raw / unit;
    *step = unit * (times <= 1.0000001 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
    *first = ceil(low / *step - 1e-9) * *step;
    *n = (int)floor((high - *first) / *step + 1e-9) + 1;
}

void mx_curve_tick_label(char *buf, size_t cap, double v, double step, bool log_y)
{
    if (log_y)
        v = pow(10, v);
    double size = fabs(v);
    if (fabs(v) < 1e-9 * step && !log_y)
        v = 0;
    if (size >= 1e6 || (size > 0 && size < 1e-3)) {
        snprintf(buf, cap, "%.2g", v);
    } else if (size >= 10000) {
        snprintf(buf, cap, "%gk", v / 1000);
    } else {
        int digits = log_y ? (size < 1    ? 3
                              : size < 10 ? 2
                                          : 1)
                           : (int)fmax(0, ceil(-log10(step) - 1e-9));
        snprintf(buf, cap, "%.*f", digits > 6 ? 6 : digits, v);
    }
}

/* --- terminal --- */
enum { LABEL = 9 }; /* columns of the scale at the left */

typedef struct {
    unsigned char *cell; /* one byte of dots a character */
    int w, h;            /* characters */
    bool ascii;
} canvas;

/* A dot; y grows downwards. Braille numbers its dots 1 4 / 2 5 / 3 6 / 7 8. */
static void dot(canvas *k, int x, int y)
{
    static const unsigned char bit[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    int sx = k->ascii ? 1 : 2, sy = k->ascii ? 1 : 4;
    if (x < 0 || y < 0 || x >= k->w * sx || y >= k->h * sy)
        return;
    k->cell[y / sy * k->w + x / sx] |= k->ascii ? 1 : bit[y % 4][x % 2];
}

static void column(canvas *k, int x, int a, int b)
{
    for (int y = a < b ? a : b; y <= (a < b ? b : a); y++)
        dot(k, x, y);
}

/* Each column of dots spans the values in it, and is joined to the column before. */
static void plot(canvas *k, const mx_curve_series *s, const range *r)
{
    int w = k->w * (k->ascii ? 1 : 2), h = k->h * (k->ascii ? 1 : 4), last_x = -2, last_y = 0;
    for (int64_t i = 0; i < s->n;) {
        if (!mx_curve_drawable(s->x[i], s->y[i], r->log_y)) {
            last_x = -2;
            i++;
            continue;
        }
        int x = (int)((s->x[i] - r->x0) / (r->x1 - r->x0) * (w - 1) + 0.5), low = h, high = -1,
            y = 0;
        for (; i < s->n && mx_curve_drawable(s->x[i], s->y[i], r->log_y); i++) {
            if ((int)((s->x[i] - r->x0) / (r->x1 - r->x0) * (w - 1) + 0.5) != x)
                break;
            y = (int)((r->y1 - y_of(r, s->y[i])) / (r->y1 - r->y0) * (h - 1) + 0.5);
            low = y < low ? y : low;
            high = y > high ? y : high;
        }
        for (int gap = last_x + 1; last_x >= 0 && gap < x;
             gap++) { /* a sparse curve is joined by a line */
            int g = last_y + (low + (high - low) / 2 - last_y) * (gap - last_x) / (x - last_x);
            dot(k, gap, g);
        }
        if (last_x == x - 1 && last_y < low)
            low = last_y + 1;
        if (last_x == x - 1 && last_y > high)
            high = last_y - 1;
        column(k, x, low, high);
        last_x = x;
        last_y = y;
    }
}

static void put_cell(const canvas *k, int x, int y, mx_str *out)
{
    unsigned char d = k->cell[y * k->w + x];
    if (k->ascii || !d) {
        mx_str_add(out, d ? "*" : " ");
        return;
    }
    char b[3] = {(char)0xe2, (char)(0xa0 | d >> 6), (char)(0x80 | (d & 63))}; /* U+2800 + dots */
    mx_str_add_n(out, b, 3);
}

static void x_axis(const range *r, int w, bool ascii, const char *label, mx_str *out)
{
    mx_str_addf(out, "%*s %s", LABEL - 1, "", ascii ? "+" : "└");
    for (int x = 0; x < w; x++)
        mx_str_add(out, ascii ? "-" : "─");
    char left[32], right[64];
    mx_curve_tick_label(left, sizeof left, r->x0, 1, false);
    mx_curve_tick_label(right, sizeof right, r->x1, 1, false);
    if (label)
        snprintf(right + strlen(right), sizeof right - strlen(right), " %.24s", label);
    int gap = w - (int)strlen(left) - (int)strlen(right);
    mx_str_addf(out, "\n%*s  %s%*s%s\n", LABEL - 1, "", left, gap > 1 ? gap : 1, "", right);
}

void mx_curve_text(const mx_curve *c, int width, int height, mx_str *out)
{
    range r = mx_curve_find_range(c);
    mx_arena a = {0};
    if (c->title)
        mx_str_addf(out, "%*s  %s\n", LABEL - 1, "", c->title);
    if (r.empty) {
        mx_str_add(out, "(nothing to draw: no finite values)\n");
        return;
    }
    canvas k = {.w = (width < 24 ? 24 : width) - LABEL - 1, .ascii = c->ascii};
    k.h = (height < 4 ? 4 : height) - 2 - (c->title != NULL);
    k.h = k.h < 2 ? 2 : k.h;
    k.cell = mx_arena_alloc(&a, (size_t)(k.w * k.h));
    for (int s = 0; s < c->n_series; s++)
        plot(&k, &c->series[s], &r);
    double first, step;
    int n;
    mx_curve_ticks(r.y0, r.y1, k.h / 3 + 2, &first, &step, &n);
    for (int y = 0; y < k.h; y++) {
        char label[32] = "";
        for (int t = 0; t < n; t++)
            if ((int)((r.y1 - (first + t * step)) / (r.y1 - r.y0) * (k.h - 1) + 0.5) == y)
                mx_curve_tick_label(label, sizeof label, first + t * step, step, c->log_y);
        mx_str_addf(out, "%*s %s", LABEL - 1, label,
                    c->ascii ? (*label ? "+" : "|")
                    : *label ? "┤"
                             : "│");
        for (int x = 0; x < k.w; x++)
            put_cell(&k, x, y, out);
        while (out->len && out->text[out->len - 1] == ' ')
            out->text[--out->len] = 0;
        mx_str_add(out, "\n");
    }
    x_axis(&r, k.w, c->ascii, c->x_label, out);
    mx_arena_fini(&a);
}

/* --- SVG --- */
static void escaped(mx_str *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            mx_str_add(out, "&lt;");
        else if (*text == '&')
            mx_str_add(out, "&amp;");
        else if ((unsigned char)*text >= 0x20)
            mx_str_add_n(out, text, 1);
    }
}

typedef struct {
    double left, top, w, h; /* of the plot, in pixels */
    range r;
} frame;

static double px(const frame *f, double x)
{
    return f->left + (x - f->r.x0) / (f->r.x1 - f->r.x0) * f->w;
}

static double py(const frame *f, double y)
{
    return f->top + (f->r.y1 - y_of(&f->r, y)) / (f->r.y1 - f->r.y0) * f->h;
}

static void svg_axes(const frame *f, mx_str *out)
{
    double first, step;
    char label[32];
    int n;
    mx_curve_ticks(f->r.y0, f->r.y1, 7, &first, &step, &n);
    for (int t = 0; t < n; t++) {
        double v = first + t * step, y = f->top + (f->r.y1 - v) / (f->r.y1 - f->r.y0) * f->h;
        mx_curve_tick_label(label, sizeof label, v, step, f->r.log_y);
        mx_str_addf(out,
                    "<path class=\"g\" d=\"M%.1f %.1fh%.1f\"/><text x=\"%.1f\" y=\"%.1f\" "
                    "text-anchor=\"end\">%s</text>\n",
                    f->left, y, f->w, f->left - 6, y + 4, label);
    }
    mx_curve_ticks(f->r.x0, f->r.x1, 8, &first, &step, &n);
    for (int t = 0; t < n; t++) {
        double v = first + t * step;
        mx_curve_tick_label(label, sizeof label, v, step, false);
        mx_str_addf(out,
                    "<path class=\"g\" d=\"M%.1f %.1fv%.1f\"/><text x=\"%.1f\" y=\"%.1f\" "
                    "text-anchor=\"middle\">%s</text>\n",
                    px(f, v), f->top, f->h, px(f, v), f->top + f->h + 16, label);
    }
}

/* At most two points a pixel: the lowest and highest of those that share it. */
static void svg_path(const frame *f, const mx_curve_series *s, double smooth, const char *class,
                     int color, mx_str *out)
{
    bool pen = false;
    double mean = 0, weight = 0;
    mx_str_addf(out, "<path class=\"%s c%d\" d=\"", class, color % 6);
    for (int64_t i = 0; i < s->n;) {
        if (!mx_curve_drawable(s->x[i], s->y[i], f->r.log_y)) {
            pen = false;
            i++;
            continue;
        }
        int column = (int)px(f, s->x[i]);
        double low = INFINITY, high = -INFINITY, x = px(f, s->x[i]);
        bool low_first = true;
        for (; i < s->n && (int)px(f, s->x[i]) == column; i++) {
            if (!mx_curve_drawable(s->x[i], s->y[i], f->r.log_y))
                break;
            /* a mean that starts unbiased: divided by the weight it has gathered */
            mean = smooth * mean + (1 - smooth) * s->y[i];
            weight = smooth * weight + (1 - smooth);
            double y = py(f, smooth > 0 ? mean / weight : s->y[i]);
            low_first = y < low ? false : y > high ? true : low_first;
            low = fmin(low, y);
            high = fmax(high, y);
        }
        mx_str_addf(out, "%s%.1f %.1f", pen ? "L" : "M", x, low_first ? low : high);
        if (high - low > 0.05)
            mx_str_addf(out, "L%.1f %.1f", x, low_first ? high : low);
        pen = true;
    }
    mx_str_add(out, "\"/>\n");
}

static void svg_head(const mx_curve *c, int w, int h, mx_str *out)
{
    mx_str_addf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                "height=\"%d\">\n"
                "<style>svg{background:#fff}text{font:12px sans-serif;fill:#333}"
                ".t{font-size:15px}.g{stroke:#e4e4e4}.raw,.mean{fill:none;stroke-linejoin:round}"
                ".raw{stroke-width:1;opacity:.35}.mean{stroke-width:2}"
                ".c0{stroke:#2f6fde}.c1{stroke:#d9642a}.c2{stroke:#2c9c5f}.c3{stroke:#9a4fd0}"
                ".c4{stroke:#c8a013}.c5{stroke:#d1427f}"
                "@media(prefers-color-scheme:dark){svg{background:#16181d}text{fill:#ccc}"
                ".g{stroke:#2b2f38}}</style>\n",
                w, h, w, h);
    if (c->title) {
        mx_str_addf(out, "<text class=\"t\" x=\"%d\" y=\"22\" text-anchor=\"middle\">", w / 2);
        escaped(out, c->title);
        mx_str_add(out, "</text>\n");
    }
}

static void svg_labels(const mx_curve *c, const frame *f, int h, mx_str *out)
{
    if (c->x_label) {
        mx_str_addf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">", f->left + f->w / 2,
                    h - 8);
        escaped(out, c->x_label);
        mx_str_add(out, "</text>\n");
    }
    if (c->y_label) {
        mx_str_addf(out,
                    "<text transform=\"translate(14 %.1f) rotate(-90)\" text-anchor=\"middle\">",
                    f->top + f->h / 2);
        escaped(out, c->y_label);
        mx_str_add(out, "</text>\n");
    }
    for (int s = 0; s < c->n_series && (c->n_series > 1 || c->series[0].name); s++) {
        double y = f->top + 14 + 18 * s, x = f->left + f->w - 10;
        mx_str_addf(out,
                    "<path class=\"mean c%d\" d=\"M%.1f %.1fh-20\"/><text x=\"%.1f\" y=\"%.1f\" "
                    "text-anchor=\"end\">",
                    s % 6, x, y, x - 26, y + 4);
        escaped(out, c->series[s].name ? c->series[s].name : "");
        mx_str_add(out, "</text>\n");
    }
}

void mx_curve_svg(const mx_curve *c, int width, int height, mx_str *out)
{
    int w = width < 200 ? 200 : width, h = height < 120 ? 120 : height;
    frame f = {.left = 62, .top = c->title ? 36 : 14, .r = mx_curve_find_range(c)};
    f.w = w - f.left - 18;
    f.h = h - f.top - (c->x_label ? 44 : 26);
    svg_head(c, w, h, out);
    if (f.r.empty) {
        mx_str_addf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">no finite values</text>\n",
                    w / 2, h / 2);
    } else {
        double room = (f.r.y1 - f.r.y0) * 0.04;
        f.r.y0 -= room;
        f.r.y1 += room;
        svg_axes(&f, out);
        for (int s = 0; s < c->n_series; s++) {
            bool both = c->smooth > 0 && c->smooth < 1;
            svg_path(&f, &c->series[s], 0, both ? "raw" : "mean", s, out);
            if (both)
                svg_path(&f, &c->series[s], c->smooth, "mean", s, out);
        }
        svg_labels(c, &f, h, out);
    }
    mx_str_add(out, "</svg>\n");
}

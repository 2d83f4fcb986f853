/* curve_text.c - a curve in the terminal: a canvas of Braille dots, or of asterisks. */
#include "train/report/curve_impl.h"

#include "base/arena.h"
#include <stdio.h>
#include <string.h>

typedef mx_curve_range range;

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
            y = (int)((r->y1 - mx_curve_height(r, s->y[i])) / (r->y1 - r->y0) * (h - 1) + 0.5);
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

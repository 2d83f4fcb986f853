/* curve_svg.c - a curve as SVG: self-contained, light or dark as the reader's screen is. */
#include "train/report/curve_impl.h"

#include <math.h>

typedef mx_curve_range range;

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
    return f->top + (f->r.y1 - mx_curve_height(&f->r, y)) / (f->r.y1 - f->r.y0) * f->h;
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
static void svg_path(const frame *f, const mx_curve_series *s, const double *y, const char *class,
                     int color, mx_str *out)
{
    bool pen = false;
    mx_str_addf(out, "<path class=\"%s c%d\" d=\"", class, color % MX_CURVE_COLORS);
    for (int64_t i = 0; i < s->n;) {
        if (!mx_curve_drawable(s->x[i], y[i], f->r.log_y)) {
            pen = false;
            i++;
            continue;
        }
        int column = (int)px(f, s->x[i]);
        double low = INFINITY, high = -INFINITY, x = px(f, s->x[i]);
        bool low_first = true;
        for (; i < s->n && (int)px(f, s->x[i]) == column; i++) {
            if (!mx_curve_drawable(s->x[i], y[i], f->r.log_y))
                break;
            double at = py(f, y[i]);
            low_first = at < low ? false : at > high ? true : low_first;
            low = fmin(low, at);
            high = fmax(high, at);
        }
        mx_str_addf(out, "%s%.1f %.1f", pen ? "L" : "M", x, low_first ? low : high);
        if (high - low > 0.05)
            mx_str_addf(out, "L%.1f %.1f", x, low_first ? high : low);
        pen = true;
    }
    mx_str_add(out, "\"/>\n");
}

/* The values thin and their mean thick; or the values themselves, few enough to have dots. */
static void svg_series(const frame *f, const mx_curve_series *s, int color, mx_str *out)
{
    mx_arena a = {0};
    if (s->window > 0)
        svg_path(f, s, s->y, "raw", color, out);
    svg_path(f, s, mx_curve_means(s, f->r.log_y, &a), "mean", color, out);
    for (int64_t i = 0; s->dots && i < s->n; i++)
        if (mx_curve_drawable(s->x[i], s->y[i], f->r.log_y))
            mx_str_addf(out, "<circle class=\"d%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n",
                        color % MX_CURVE_COLORS, px(f, s->x[i]), py(f, s->y[i]));
    mx_arena_fini(&a);
}

/* The colours of series, as lines and as dots. */
static void svg_colors(mx_str *out)
{
    for (int i = 0; i < MX_CURVE_COLORS; i++) {
        const unsigned char *c = mx_curve_colors[i];
        mx_str_addf(out, ".c%d{stroke:#%02x%02x%02x}.d%d{fill:#%02x%02x%02x}", i, c[0], c[1], c[2],
                    i, c[0], c[1], c[2]);
    }
}

static void svg_head(const mx_curve *c, int w, int h, mx_str *out)
{
    mx_str_addf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                "height=\"%d\">\n"
                "<style>svg{background:#fff}text{font:12px sans-serif;fill:#333}"
                ".t{font-size:15px}.g{stroke:#e4e4e4}.raw,.mean{fill:none;stroke-linejoin:round}"
                ".raw{stroke-width:1;opacity:.35}.mean{stroke-width:2}"
                "@media(prefers-color-scheme:dark){svg{background:#16181d}text{fill:#ccc}"
                ".g{stroke:#2b2f38}}",
                w, h, w, h);
    svg_colors(out);
    mx_str_add(out, "</style>\n");
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
                    s % MX_CURVE_COLORS, x, y, x - 26, y + 4);
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
        for (int s = 0; s < c->n_series; s++)
            svg_series(&f, &c->series[s], s, out);
        svg_labels(c, &f, h, out);
    }
    mx_str_add(out, "</svg>\n");
}

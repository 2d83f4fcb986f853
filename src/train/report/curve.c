/* curve.c - what all drawings of a curve share: ranges, ticks, means. */
#include "train/report/curve.h"

#include "train/report/curve_impl.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef mx_curve_range range;

/* Distinguishable on light and on dark ground. */
const unsigned char mx_curve_colors[MX_CURVE_COLORS][3] = {{0x2f, 0x6f, 0xde}, {0xd9, 0x64, 0x2a},
                                                           {0x2c, 0x9c, 0x5f}, {0x9a, 0x4f, 0xd0},
                                                           {0xc8, 0xa0, 0x13}, {0xd1, 0x42, 0x7f}};

double mx_curve_height(const mx_curve_range *r, double y)
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
            y = mx_curve_height(&r, y);
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

double *mx_curve_means(const mx_curve_series *s, bool log_y, mx_arena *a)
{
    double *sum = MX_NEW_N(a, double, s->n + 1), *mean = MX_NEW_N(a, double, s->n);
    int64_t *count = MX_NEW_N(a, int64_t, s->n + 1);
    for (int64_t i = 0; i < s->n; i++) {
        bool ok = mx_curve_drawable(s->x[i], s->y[i], log_y);
        sum[i + 1] = sum[i] + (ok ? s->y[i] : 0);
        count[i + 1] = count[i] + ok;
    }
    for (int64_t i = 0; i < s->n; i++) {
        int64_t h = s->window < i ? s->window : i;
        int64_t from = i - h, to = i + h + 1 < s->n ? i + h + 1 : s->n;
        bool ok = count[i + 1] > count[i];
        double many = (sum[to] - sum[from]) / (double)(count[to] - count[from]);
        mean[i] = !ok ? NAN : h ? many : s->y[i];
    }
    return mean;
}

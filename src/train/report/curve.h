/* curve.h - a curve in the terminal, as SVG and as PNG: the loss of a run, for `maxc inspect`.
 *
 * In the terminal a cell is a Braille character of 2 x 4 dots (or one '*' in ASCII), with a scale
 * at the left and steps below. A run has more steps than a screen has dots, so each column of dots
 * shows the range of the values that fall into it, and spikes stay visible. In pictures a series is
 * a thin line and the thick line of its mean, or the values alone. The SVG is light or dark as the
 * reader's screen is; a PNG is what it is told. Values that are NaN or infinite leave a gap.
 */
#ifndef MX_TRAIN_CURVE_H
#define MX_TRAIN_CURVE_H

#include "base/str.h"

typedef struct {
    const char *name;
    const double *x, *y; /* n values, x ascending; borrowed */
    int64_t n;
    int64_t window; /* pictures: values on either side in the mean; 0: no mean */
    bool dots;      /* pictures: few values, each with a dot */
} mx_curve_series;

typedef struct {
    const char *title, *x_label, *y_label; /* NULL leaves it out */
    const mx_curve_series *series;
    int n_series;
    bool ascii;    /* terminal: no Braille */
    bool log_y;    /* where every value is positive */
    bool dark;     /* PNG: light on dark */
} mx_curve;

/* `width` x `height` characters, each line ended by a newline; at least 24 x 4 are used. */
void mx_curve_text(const mx_curve *c, int width, int height, mx_str *out);
/* A whole SVG document, width x height pixels. */
void mx_curve_svg(const mx_curve *c, int width, int height, mx_str *out);

/* A PNG of width x height pixels, 24-bit colour. */
void mx_curve_png(const mx_curve *c, int width, int height, mx_str *out);

/* Round numbers that cover [low, high]: first tick, distance, how many (2 to max). */
void mx_curve_ticks(double low, double high, int max, double *first, double *step, int *n);

#endif

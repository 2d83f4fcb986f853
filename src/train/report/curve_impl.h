/* curve_impl.h - what the drawings of a curve share; private to src/train/report. */
#ifndef MX_TRAIN_CURVE_IMPL_H
#define MX_TRAIN_CURVE_IMPL_H

#include "base/arena.h"
#include "train/report/curve.h"

typedef struct {
    double x0, x1, y0, y1; /* y as its logarithm to 10 where log_y */
    bool empty, log_y;
} mx_curve_range;

mx_curve_range mx_curve_find_range(const mx_curve *c);
bool mx_curve_drawable(double x, double y, bool log_y);
double mx_curve_height(const mx_curve_range *r, double y); /* y, or its logarithm */
void mx_curve_tick_label(char *buf, size_t cap, double v, double step, bool log_y);
/* The mean of up to `window` values on either side of each. At the beginning, where losses fall, as
 * many on one side as on the other: it begins with the first value and lags behind nothing. At the
 * end those that there are. In the arena. */
double *mx_curve_means(const mx_curve_series *s, bool log_y, mx_arena *a);

enum { MX_CURVE_COLORS = 6 };
extern const unsigned char mx_curve_colors[MX_CURVE_COLORS][3];

#endif

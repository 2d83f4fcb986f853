/* curve_impl.h - what the drawers of a curve share; private to src/train/curve*.c. */
#ifndef MX_TRAIN_CURVE_IMPL_H
#define MX_TRAIN_CURVE_IMPL_H

#include "train/curve.h"

typedef struct {
    double x0, x1, y0, y1; /* y as its logarithm to 10 where log_y */
    bool empty, log_y;
} mx_curve_range;

mx_curve_range mx_curve_find_range(const mx_curve *c);
bool mx_curve_drawable(double x, double y, bool log_y);
void mx_curve_tick_label(char *buf, size_t cap, double v, double step, bool log_y);

#endif

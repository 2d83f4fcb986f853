/* smooth.h - SmoothQuant's step: the range of a tensor goes over into the matrices that read it. */
#ifndef MX_TRAIN_SMOOTH_H
#define MX_TRAIN_SMOOTH_H

#include "compile/uses.h"
#include "train/check/calibrate.h"

/* What a tensor's channels are multiplied by last, and so can be divided by: a norm's weight (d),
 * or the rows of a matrix (d, k). */
typedef struct {
    const char *name; /* NULL: none; the tensor stays as it is */
    double offset;    /* the norm multiplies by its weight plus this */
} mx_smooth_source;

/* Of x, if nothing but matrices to be quantized read it. The name lives in the arena. */
mx_smooth_source mx_smooth_source_of(const mx_uses *u, const mx_node *x, const mx_calibrate_of *of,
                                     mx_arena *a);

typedef struct {
    int64_t n;
    const float *most; /* (n) largest magnitudes */
    const char **weight;
    int n_weights;
    mx_smooth_source source;
    double exponent;
} mx_smooth_input;

/* Changes the numbers of source and matrices. */
mx_status mx_smooth(mx_calibrated *out, mx_session *s, const mx_smooth_input *x) MX_MUST_USE;

/* The weight that the matmul n multiplies by, if it is to be quantized; NULL otherwise. */
const mx_node *mx_calibrate_weight(const mx_node *n, const mx_calibrate_of *of);
/* The change of this weight, made where there is none yet. */
mx_quant_change *mx_calibrated_change(mx_calibrated *c, const char *name);

#endif

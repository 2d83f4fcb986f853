/* affine.h - the constants of affine, for passes that look through it: y = scale x + shift. */
#ifndef MX_OPS_AFFINE_H
#define MX_OPS_AFFINE_H

typedef struct {
    double scale, shift;
} mx_affine_attr;

#endif

/* held_clock.h - holding the GPU's clock at one frequency. */
#ifndef MX_DEVICE_CUDA_HELD_CLOCK_H
#define MX_DEVICE_CUDA_HELD_CLOCK_H

#include "device/cuda/plugin/libs.h"

typedef struct mx_held_clock mx_held_clock;

mx_status mx_held_clock_open(mx_held_clock **out) MX_MUST_USE;
mx_status mx_held_clock_set(mx_held_clock *h, int mhz) MX_MUST_USE; /* 0: left alone */
/* At this moment: MHz, and the share of the power limit that is drawn. */
mx_status mx_held_clock_see(const mx_held_clock *h, int *mhz, double *power) MX_MUST_USE;
void mx_held_clock_close(mx_held_clock *h); /* lets the clock go; NULL is a no-op */

#endif

/* calibrate.h - kernels alone, timed as programs of one op, for maxc bench calibrate. */
#ifndef MX_CMD_CALIBRATE_H
#define MX_CMD_CALIBRATE_H

#include "base/str.h"
#include "device/device.h"

typedef struct {
    mx_session *session;
    mx_dtype dtype;
    double enough; /* seconds of one measurement */
    bool accelerator; /* with memory of its own: larger shapes, and kernels that the CPU lacks */
} mx_calibration;

/* Each adds its entry of a chip's row, where the device has the kernels in question. */
mx_status mx_calibrate_gemms(const mx_calibration *m, mx_str *out, double *best) MX_MUST_USE;
/* FLOP/s of GEMMs of 8-bit numbers, without making them and without scaling int32 sums, which
 * stream: "float8: 1200, ...". */
mx_status mx_calibrate_narrow(const mx_calibration *m, double bytes_per_second,
                              mx_str *out) MX_MUST_USE;
mx_status mx_calibrate_grouped(const mx_calibration *m, mx_str *out) MX_MUST_USE;
mx_status mx_calibrate_attention(const mx_calibration *m, mx_str *out) MX_MUST_USE;
mx_status mx_calibrate_recurrence(const mx_calibration *m, mx_str *out) MX_MUST_USE;
/* Bytes per second of an elementwise kernel. */
mx_status mx_calibrate_stream(const mx_calibration *m, double *out) MX_MUST_USE;

#endif

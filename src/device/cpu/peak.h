/* peak.h - what this CPU could do: the denominators of MFU and of bandwidth shares. */
#ifndef MX_DEVICE_CPU_PEAK_H
#define MX_DEVICE_CPU_PEAK_H

#include "ir/type.h"

/* FLOP/s of a loop of fused multiply-adds on all threads, best of a few short tries (about 60
 * ms). */
double mx_cpu_peak_flops(int n_threads);
/* The highest rate ever measured on this kind of CPU with this number of threads, `now` included: a
 * machine that is busy while it is measured looks slower than it is. Kept in the user's cache
 * folder, in peak-CPU-THREADS; where that cannot be used, `now`. */
double mx_cpu_peak_remember(int n_threads, double now);
/* The most that was seen, now or before, for operands of this dtype. */
double mx_cpu_peak_of(mx_dtype dtype, int n_threads);

#endif

/* lane_sum.h - a sum in double by sixteen partial sums, added in order: the same bits whatever the
 * width of the machine's vectors. MX_LANE_SUM(float, name, v * v) makes name(x, n), which sums
 * v * v over the elements v of x.
 */
#ifndef MX_OPS_CPU_LANE_SUM_H
#define MX_OPS_CPU_LANE_SUM_H

#include "base/simd.h"
#include <stdint.h>

#define MX_LANE_SUM(T, name, term)                                                                 \
    static MX_CLONES double name(const T *x, int64_t n)                                            \
    {                                                                                              \
        double lane[16] = {0}, total = 0;                                                          \
        int64_t i = 0;                                                                             \
        for (; i + 16 <= n; i += 16)                                                               \
            for (int j = 0; j < 16; j++) {                                                         \
                double v = (double)x[i + j];                                                       \
                lane[j] += term;                                                                   \
            }                                                                                      \
        for (int j = 0; i < n; i++, j++) {                                                         \
            double v = (double)x[i];                                                               \
            lane[j] += term;                                                                       \
        }                                                                                          \
        for (int j = 0; j < 16; j++)                                                               \
            total += lane[j];                                                                      \
        return total;                                                                              \
    }

#endif

/* peak.c - measured peaks. Twenty independent chains hide the latency of the multiply-add (4
 * cycles, 2 units); the loop touches no memory. */
#include "device/cpu/peak.h"

#include "base/simd.h"
#include <omp.h>
#include <stdint.h>

enum { CHAINS = 20, LANES = 16, ROUNDS = 100000 };

typedef float lanes __attribute__((vector_size(4 * LANES)));

#define CHAIN_LOOP(name, target)                                                                   \
    target static float name(float seed)                                                           \
    {                                                                                              \
        lanes x[CHAINS], a = {0}, b = {0};                                                         \
        for (int i = 0; i < LANES; i++)                                                            \
            a[i] = 0.999f, b[i] = 1e-6f * seed;                                                    \
        for (int k = 0; k < CHAINS; k++)                                                           \
            x[k] = a + (float)k;                                                                   \
        for (int r = 0; r < ROUNDS; r++)                                                           \
            _Pragma("GCC unroll 20") for (int k = 0; k < CHAINS; k++) x[k] = x[k] * a + b;         \
        lanes sum = x[0];                                                                          \
        for (int k = 1; k < CHAINS; k++)                                                           \
            sum += x[k];                                                                           \
        return sum[0];                                                                             \
    }
CHAIN_LOOP(chains_v4, MX_TARGET_V4)
CHAIN_LOOP(chains_v3, MX_TARGET_V3)
CHAIN_LOOP(chains_base, )

double mx_cpu_peak_flops(int n_threads)
{
    float (*run)(float) = mx_simd_level() >= MX_SIMD_V4   ? chains_v4
                          : mx_simd_level() >= MX_SIMD_V3 ? chains_v3
                                                          : chains_base;
    double best = 0;
    volatile float sink = 0;
    for (int again = 0; again < 8; again++) {
        double start = omp_get_wtime();
#pragma omp parallel num_threads(n_threads)
        {
            float r = run((float)omp_get_thread_num());
#pragma omp critical
            sink = sink + r;
        }
        double rate = 2.0 * CHAINS * LANES * ROUNDS * n_threads / (omp_get_wtime() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

/* VDPBF16PS does two products where the float unit does one; it issues at the same rate. */
double mx_cpu_peak_bf16_flops(int n_threads)
{
    return mx_simd_level() >= MX_SIMD_BF16 ? 2 * mx_cpu_peak_flops(n_threads) : 0;
}

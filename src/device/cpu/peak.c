/* peak.c - measured peaks. Twenty independent chains hide the latency of the multiply-add (4
 * cycles, 2 units); the loop touches no memory. */
#include "device/cpu/peak.h"

#include "base/arena.h"
#include "base/io.h"
#include "base/machine.h"
#include "base/simd.h"
#include "base/str.h"
#include <ctype.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* "$XDG_CACHE_HOME/maxc/peak-AMD-EPYC-9454-2"; false: there is no such folder. */
static bool cache_path(int n_threads, char *path, size_t cap)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    mx_machine m;
    char dir[2048];
    if (!(xdg && *xdg) && !(home && *home))
        return false;
    snprintf(dir, sizeof dir, "%.1900s%s", xdg && *xdg ? xdg : home, xdg && *xdg ? "" : "/.cache");
    for (int i = 0; i < 2; i++) {
        mx_status st = mx_io_make_dir(NULL, dir);
        bool failed = st != MX_OK;
        mx_status_free(st);
        if (failed)
            return false;
        if (i == 0)
            snprintf(dir + strlen(dir), sizeof dir - strlen(dir), "/maxc");
    }
    mx_machine_read(&m);
    for (char *p = m.cpu; *p; p++)
        *p = isalnum((unsigned char)*p) ? *p : '-';
    return snprintf(path, cap, "%s/peak-%s-%d", dir, m.cpu, n_threads) < (int)cap;
}

double mx_cpu_peak_remember(int n_threads, double now)
{
    char path[2400], *text = NULL, number[40];
    size_t n;
    double best = 0;
    if (!cache_path(n_threads, path, sizeof path))
        return now;
    mx_status_free(mx_io_read_file(NULL, path, 64, &text, &n)); /* none yet, most likely */
    bool known = text && mx_parse_f64(text, &best) && best > 0 && best < 1e18;
    mx_free(text);
    if (known && best >= now)
        return best;
    snprintf(number, sizeof number, "%.6g", now);
    mx_status_free(mx_io_write_file(NULL, path, number, strlen(number))); /* next time, then */
    return now;
}

/* VDPBF16PS does two multiply-adds where the float unit does one; it issues at the same rate.
 * TDPBF16PS does 8,192 in 16 cycles, in which two float units of 16 lanes do 512. */
double mx_cpu_peak_of(mx_dtype dtype, int n_threads)
{
    mx_simd level = dtype == MX_BF16 ? mx_simd_level() : MX_SIMD_BASE;
    int times = level >= MX_SIMD_AMX ? 16 : level >= MX_SIMD_BF16 ? 2 : 1;
    return times * mx_cpu_peak_remember(n_threads, mx_cpu_peak_flops(n_threads));
}

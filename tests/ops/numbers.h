/* numbers.h - arrays of random numbers of any kind, for tests of CPU kernels. */
#ifndef TESTS_OPS_NUMBERS_H
#define TESTS_OPS_NUMBERS_H

#include "base/arena.h"
#include "base/vmath.h"
#include "ops/cpu/gemm.h"

static inline uint32_t next(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static inline double get(const void *p, int64_t i, mx_num t)
{
    return t == MX_NUM_F64   ? ((const double *)p)[i]
           : t == MX_NUM_F32 ? ((const float *)p)[i]
                             : mx_float_of_bf16(((const uint16_t *)p)[i]);
}

static inline void put(void *p, int64_t i, mx_num t, double v)
{
    if (t == MX_NUM_F64)
        ((double *)p)[i] = v;
    else if (t == MX_NUM_F32)
        ((float *)p)[i] = (float)v;
    else
        ((uint16_t *)p)[i] = mx_bf16_of_float((float)v);
}

/* n numbers from -1 to 1, in the arena. */
static inline void *random_array(mx_arena *a, int64_t n, mx_num t, uint32_t *s)
{
    void *p = mx_arena_alloc(a, (size_t)(n * MX_NUM_BYTES(t)) + 1);
    for (int64_t i = 0; i < n; i++)
        put(p, i, t, (double)next(s) * 0x1p-23 - 1.0);
    return p;
}

#endif

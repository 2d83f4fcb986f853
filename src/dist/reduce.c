/* reduce.c - see reduce.h. A tile at a time, so that a long vector is summed in cache. */
#include "dist/reduce.h"

#include "base/simd.h"
#include "ops/load.h"

enum { TILE = 1024 };

#define FOLD(T, name)                                                                              \
    static MX_CLONES void name(T *restrict sum, const T *restrict x, int64_t n, bool max)          \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++)                                                            \
            sum[i] = max ? (x[i] > sum[i] ? x[i] : sum[i]) : sum[i] + x[i];                        \
    }
FOLD(float, fold_f32)
FOLD(double, fold_f64)

static mx_tensor view(const void *data, mx_dtype dtype)
{
    return (mx_tensor){.data = (void *)data, .type = {.dtype = dtype}};
}

static void reduce_f64(const mx_reduce_args *a, const void *const *in, int size, int64_t at)
{
    bool max = a->how == MX_REDUCE_MAX;
    double sum[TILE], x[TILE];
    mx_tensor out = view(a->out, a->dtype);
    for (int64_t i = 0; i < a->n; i += TILE) {
        int64_t m = a->n - i < TILE ? a->n - i : TILE;
        for (int k = 0; k < size; k++) {
            mx_tensor from = view(in[k], a->dtype);
            mx_load_run_f64(&from, at + i, m, k ? x : sum);
            if (k)
                fold_f64(sum, x, m, max);
        }
        mx_store_run_f64(&out, i, m, sum);
    }
}

void mx_reduce_from(const mx_reduce_args *a, const void *const *in, int size, int64_t at)
{
    /* Integers are exact in float64 as far as counts go. */
    if (a->dtype == MX_F64 || !mx_dtype_is_float(a->dtype)) {
        reduce_f64(a, in, size, at);
        return;
    }
    bool max = a->how == MX_REDUCE_MAX;
    mx_tensor out = view(a->out, a->dtype);
#pragma omp parallel for schedule(static) if (a->n > 16 * TILE)
    for (int64_t i = 0; i < a->n; i += TILE) {
        float sum[TILE], x[TILE];
        int64_t m = a->n - i < TILE ? a->n - i : TILE;
        for (int k = 0; k < size; k++) {
            mx_tensor from = view(in[k], a->dtype);
            mx_load_run_f32(&from, at + i, m, k ? x : sum);
            if (k)
                fold_f32(sum, x, m, max);
        }
        mx_store_run_f32(&out, i, m, sum);
    }
}

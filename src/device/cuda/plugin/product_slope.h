/* product_slope.h - a product times the slope of GELU, and sums of its rows.
 *
 *     du = (A B) gelu_tanh'(u)     parts = the sum of du's rows from ROWS i to ROWS (i + 1)
 *
 * A (m, k), B (n, k) or (k, n), u and du (m, n), parts (rows, n) float, all dense. The same bits on
 * every run.
 */
#ifndef MX_DEVICE_CUDA_PRODUCT_SLOPE_H
#define MX_DEVICE_CUDA_PRODUCT_SLOPE_H

#include "device/cuda/plugin/ended_product.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const void *a, *b, *u;
    void *du;
    float *parts;
} mx_product_slope_args;

/* One kernel, bf16, on Hopper; a few tiles are left to others. */
bool mx_product_slope_is_possible(const mx_ended_product *s);
int64_t mx_product_slope_rows(int64_t m); /* of parts */
cudaError_t mx_product_slope_launch(const mx_ended_product *s, const mx_product_slope_args *a,
                                    cudaStream_t stream);

/* A kernel behind the product: du holds A B, and is replaced. n is a multiple of 4. */
int64_t mx_gelu_slope_rows(int64_t m);
cudaError_t mx_gelu_slope_launch(const mx_ended_product *s, const mx_product_slope_args *a,
                                 bool f32, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif

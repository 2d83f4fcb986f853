/* ended_product.h - the shape of a product that ends in something else: a GELU, a slope, a SwiGLU.
 * A (m, k), B (n, k) or (k, n), the result (m, n), all dense. */
#ifndef MX_DEVICE_CUDA_ENDED_PRODUCT_H
#define MX_DEVICE_CUDA_ENDED_PRODUCT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t m, n, k;
    bool b_outside; /* B is (k, n) */
} mx_ended_product;

#endif

/* gemm_epilogue.h - the shape of a GEMM with a fused epilogue: GELU, SwiGLU, their derivatives.
 * A (m, k), B (n, k) or (k, n), the result (m, n), all dense. */
#ifndef MX_DEVICE_CUDA_GEMM_EPILOGUE_H
#define MX_DEVICE_CUDA_GEMM_EPILOGUE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t m, n, k;
    bool b_outside; /* B is (k, n) */
} mx_epilogue_gemm;

#endif

/* adamw8.h - AdamW with moments of 8 bits (ops/adamw.c) as a kernel over device pointers. Rules as
 * in kernels.h. */
#ifndef MX_DEVICE_CUDA_ADAMW8_H
#define MX_DEVICE_CUDA_ADAMW8_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    void *w; /* float, or bf16: rounded at random */
    const void *g;
    uint8_t *m, *v;
    float *m_most, *v_most; /* of blocks of 256 */
    const float *hyper;     /* lr, clip scale, step, - */
    const float *map;       /* (2, 256), ascending: of m, and of v */
    uint16_t *copy;         /* NULL: none */
    int64_t n;
    uint64_t salt;
    double b1, b2;
    float eps, eps_root, decay;
    bool w_f32, g_f32;
} mx_cuda_adamw8_args;
cudaError_t mx_cuda_adamw8(const mx_cuda_adamw8_args *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

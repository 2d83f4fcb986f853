/* flash_list.cu - a query's list of keys as a row of bits. A list may name a key twice, and in any
 * order; the attention kernels, which go over keys by tiles, ask for one key at a time. */
#include "device/cuda/attention/flash.h"
#include "ops/gpu_work.h"

__global__ void flash_list_kernel(const int32_t *selected, int n, uint32_t *listed, int words,
                                  int keys)
{
    const int32_t *list = selected + (int64_t)blockIdx.x * n;
    uint32_t *row = listed + (int64_t)blockIdx.x * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x)
        row[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        if (list[i] >= 0 && list[i] < keys)
            atomicOr(row + (list[i] >> 5), 1u << (list[i] & 31));
}

size_t mx_flash_list_bytes(const mx_flash_shape *s)
{
    return mx_gpu_list_bytes(s->batch, s->seq_q, s->seq_kv);
}

cudaError_t mx_flash_list(const mx_flash_shape *s, const int32_t *selected, int n, uint32_t *listed,
                          cudaStream_t stream)
{
    unsigned rows = (unsigned)(s->batch * s->seq_q);
    flash_list_kernel<<<rows, 256, 0, stream>>>(selected, n, listed, (s->seq_kv + 31) / 32,
                                                s->seq_kv);
    return cudaGetLastError();
}

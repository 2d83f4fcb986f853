/* embed.cu - the gradient of an embedding table, without atomics.
 *
 * (token, row) pairs are sorted by token with a stable radix sort, so the rows of one
 * token lie together in row order; one block then adds a token's rows in f32, in that order, and
 * adds the sum to the table's row once. Every run gives the same bits. Bytes: dy once, the touched
 * table rows twice. A token that fills the batch makes one long segment; its columns are split over
 * blocks.
 *
 * Only the bits that tell the table's rows apart are sorted by. A token of no row, as other ranks'
 * are where each has some rows of the table, may have those bits in common with one that has a row
 * and would come between its rows: two blocks would then write that row of the table. So all such
 * tokens are sorted as the number after the last row.
 */
#include "device/cuda/core/kernels.h"
#include "device/cuda/core/vec.cuh"
#include "ops/gpu_work.h"
#include <cub/device/device_radix_sort.cuh>

__global__ void keys_kernel(int32_t *key, int32_t *order, const int32_t *tokens, int64_t n,
                            int32_t vocab)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int32_t t = tokens[i];
    key[i] = t < 0 || t >= vocab ? vocab : t;
    order[i] = (int32_t)i;
}

size_t mx_cuda_embed_scratch_bytes(int64_t rows)
{
    return mx_gpu_embed_bytes(rows);
}

/* (token, row) pairs sorted by token into *token and *row, which lie in scratch; token: vocab where
 * the table has no such row. */
static cudaError_t sort_rows(const int32_t *tokens, int64_t rows, int64_t vocab, void *scratch,
                             int32_t **token_out, int32_t **row_out, cudaStream_t stream)
{
    if (rows > INT32_MAX || vocab >= INT32_MAX)
        return cudaErrorInvalidValue;
    size_t part = mx_gpu_aligned_bytes(rows, sizeof(int32_t));
    int32_t *order = (int32_t *)scratch, *token = (int32_t *)((char *)scratch + part);
    int32_t *row = (int32_t *)((char *)scratch + 2 * part);
    int32_t *key = (int32_t *)((char *)scratch + 3 * part);
    void *temp = (char *)scratch + MX_GPU_EMBED_LISTS * part;
    int bits = 1;
    while (bits < 31 && ((int64_t)1 << bits) <= vocab)
        bits++;
    size_t need = 0;
    cudaError_t e = cub::DeviceRadixSort::SortPairs(nullptr, need, key, token, order, row,
                                                    (int)rows, 0, bits, stream);
    if (e == cudaSuccess && need > mx_gpu_sort_bytes(rows))
        e = cudaErrorMemoryAllocation;
    if (e != cudaSuccess)
        return e;
    keys_kernel<<<grid_for(rows, 256, INT32_MAX), 256, 0, stream>>>(key, order, tokens, rows,
                                                                    (int32_t)vocab);
    e = cub::DeviceRadixSort::SortPairs(temp, need, key, token, order, row, (int)rows, 0, bits,
                                        stream);
    *token_out = token;
    *row_out = row;
    return e;
}

/* Block (i, y): the segment that starts at sorted position i, columns of slice y. */
template <typename T>
__global__ void embed_grad_kernel(float *dtable, const T *dy, const int32_t *token,
                                  const int32_t *row, int64_t n, int64_t d, int64_t vocab)
{
    int64_t i = blockIdx.x, c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    int32_t t = token[i];
    if ((i > 0 && token[i - 1] == t) || c >= d || t >= vocab)
        return;
    float acc = 0.f;
    for (int64_t j = i; j < n && token[j] == t; j++)
        acc += as_float(dy[(int64_t)row[j] * d + c]);
    dtable[(int64_t)t * d + c] += acc;
}

cudaError_t mx_cuda_embed_grad(float *dtable, const void *dy, bool dy_f32, const int32_t *tokens,
                               int64_t rows, int64_t d, int64_t vocab, void *scratch,
                               cudaStream_t stream)
{
    int32_t *token, *row;
    cudaError_t e = sort_rows(tokens, rows, vocab, scratch, &token, &row, stream);
    if (e != cudaSuccess)
        return e;
    dim3 grid((unsigned)rows, (unsigned)((d + 255) / 256));
    if (dy_f32)
        embed_grad_kernel<<<grid, 256, 0, stream>>>(dtable, (const float *)dy, token, row, rows, d,
                                                    vocab);
    else
        embed_grad_kernel<<<grid, 256, 0, stream>>>(dtable, (const uint16_t *)dy, token, row, rows,
                                                    d, vocab);
    return cudaGetLastError();
}

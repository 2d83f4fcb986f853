/* documents.cu - see documents.h. */
#include "device/cuda/plugin/documents.h"

enum { THREADS = 1024 };

/* One block walks over the tokens, THREADS at a time: a token that begins a document gets the
 * number of those before it as its slot. */
__global__ void find_kernel(mx_cuda_documents d)
{
    __shared__ int warp_sum[THREADS / 32], before;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t total = d.rows * d.cols;
    if (threadIdx.x == 0)
        before = 0;
    __syncthreads();
    for (int64_t base = 0; base < total; base += THREADS) {
        int64_t i = base + threadIdx.x;
        bool begins = i < total && (i % d.cols == 0 || d.ids[i] != d.ids[i - 1]);
        unsigned votes = __ballot_sync(~0u, begins);
        if (lane == 0)
            warp_sum[warp] = __popc(votes);
        __syncthreads();
        int slot = before + __popc(votes & ((1u << lane) - 1)), sum = 0;
        for (int w = 0; w < THREADS / 32; w++) {
            slot += w < warp ? warp_sum[w] : 0;
            sum += warp_sum[w];
        }
        if (begins && slot < d.slots)
            d.start[slot] = (int32_t)i;
        __syncthreads();
        if (threadIdx.x == 0)
            before += sum;
        __syncthreads();
    }
    int found = before < d.slots ? before : d.slots;
    for (int s = found + threadIdx.x; s <= d.slots; s += THREADS)
        d.start[s] = (int32_t)total;
    __syncthreads();
    for (int s = threadIdx.x; s < d.slots; s += THREADS)
        d.length[s] = d.start[s + 1] - d.start[s];
}

cudaError_t mx_cuda_documents_find(const mx_cuda_documents *d, cudaStream_t stream)
{
    find_kernel<<<1, THREADS, 0, stream>>>(*d);
    return cudaGetLastError();
}

struct offsets {
    int32_t *out[MX_CUDA_OFFSETS];
    int64_t step[MX_CUDA_OFFSETS];
};

__global__ void offsets_kernel(mx_cuda_documents d, offsets o)
{
    int s = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < MX_CUDA_OFFSETS && s <= d.slots; k++)
        o.out[k][s] = (int32_t)(d.start[s] * o.step[k]);
}

cudaError_t mx_cuda_documents_offsets(const mx_cuda_documents *d,
                                      int32_t *const out[MX_CUDA_OFFSETS],
                                      const int64_t step[MX_CUDA_OFFSETS], cudaStream_t stream)
{
    offsets o;
    for (int k = 0; k < MX_CUDA_OFFSETS; k++)
        o.out[k] = out[k], o.step[k] = step[k];
    offsets_kernel<<<(unsigned)(d->slots / 256 + 1), 256, 0, stream>>>(*d, o);
    return cudaGetLastError();
}

/* Block (slot, head). Rows past a document's end are not looked at, but must be numbers. */
__global__ void stats_kernel(mx_cuda_documents d, float *by_row, float *by_slot, bool to_slots)
{
    int length = d.length[blockIdx.x], heads = gridDim.y;
    int64_t row = d.start[blockIdx.x] / d.cols, col = d.start[blockIdx.x] % d.cols;
    float *a = by_row + (row * heads + blockIdx.y) * d.cols + col;
    float *b = by_slot + ((int64_t)blockIdx.x * heads + blockIdx.y) * d.cols;
    if (!length)
        return;
    for (int i = threadIdx.x; i < (to_slots ? (int)d.cols : length); i += blockDim.x) {
        if (to_slots)
            b[i] = i < length ? a[i] : 0.f;
        else
            a[i] = b[i];
    }
}

cudaError_t mx_cuda_documents_stats(const mx_cuda_documents *d, float *by_row, float *by_slot,
                                    int heads, bool to_slots, cudaStream_t stream)
{
    stats_kernel<<<dim3((unsigned)d->slots, (unsigned)heads), 256, 0, stream>>>(*d, by_row, by_slot,
                                                                               to_slots);
    return cudaGetLastError();
}

/* paged_single.cu - paged attention of tokens that stand alone: how many warps and stages. */
#include "device/cuda/attention/paged_single.cuh"

/* Few tokens are few units of work, which a block each spreads over the chip; of many, blocks of
 * several warps keep more loads in flight. The bits are the same. */
template <int D> static cudaError_t launch(const mx_cuda_paged &p, cudaStream_t stream)
{
    enum { MANY = 32 };
    int device = 0, sms = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = p.queries < MANY ? launch_single<D, 1, 5>(p, 4 * sms, stream)
                             : launch_single<D, 4, 3>(p, 2 * sms, stream);
    return e == cudaSuccess ? launch_merge<D>(p, stream) : e;
}

cudaError_t mx_cuda_paged_singles(const mx_cuda_paged *p, cudaStream_t stream)
{
    return p->qk_dim == 64 ? launch<64>(*p, stream) : launch<128>(*p, stream);
}

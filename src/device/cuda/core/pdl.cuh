/* pdl.cuh - programmatic dependent launch (pdl.h) in kernels: the two calls, and a launch. GPUs
 * before Hopper have none of it; the calls are nothing there. */
#ifndef MX_DEVICE_CUDA_PDL_CUH
#define MX_DEVICE_CUDA_PDL_CUH

#include "device/cuda/core/pdl.h"
#include <cuda_runtime.h>

__device__ __forceinline__ void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* `cluster` neighbours of x are a cluster; 1: none. */
template <typename... P, typename... A>
static inline cudaError_t launch_config(cudaLaunchConfig_t c, unsigned cluster,
                                        void (*kernel)(P...), A... args)
{
    cudaLaunchAttribute attr[2] = {};
    c.attrs = attr;
    c.numAttrs = mx_pdl_attribute(attr, c.stream);
    if (cluster > 1) {
        cudaLaunchAttribute *a = &attr[c.numAttrs++];
        a->id = cudaLaunchAttributeClusterDimension;
        a->val.clusterDim = {cluster, 1, 1};
    }
    return cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...);
}

template <typename... P, typename... A>
static inline cudaError_t launch_pdl(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                       cudaStream_t stream, A... args)
{
    return launch_config({grid, block, shared, stream}, 1, kernel, args...);
}

#endif

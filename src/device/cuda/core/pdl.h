/* pdl.h - programmatic dependent launch: kernels of a step that start before the one ahead of them
 * has ended.
 *
 * In a CUDA graph a kernel launched with this attribute may be put on the chip as soon as every
 * block of the kernel ahead has asked for it (or has ended). It must wait (pdl.cuh) before it
 * touches anything that a kernel of the same graph writes, and every block does: then its own end
 * implies the end of all kernels ahead. What it may do before that is to set up, and to load what
 * no kernel of the graph writes (weights). Outside of a capture the launch is an ordinary one: a
 * kernel of the step before might write weights.
 */
#ifndef MX_DEVICE_CUDA_PDL_H
#define MX_DEVICE_CUDA_PDL_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

/* Zero or one attribute, for cudaLaunchConfig_t. */
static inline unsigned mx_pdl_attribute(cudaLaunchAttribute *a, cudaStream_t stream)
{
    enum cudaStreamCaptureStatus s = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &s) != cudaSuccess || s != cudaStreamCaptureStatusActive)
        return 0;
    a->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a->val.programmaticStreamSerializationAllowed = 1;
    return 1;
}

#endif

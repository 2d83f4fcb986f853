/* clock.cu - the GPU's own clock, written into host memory when the stream comes by.
 *
 * The host reads a step's numbers while the next one runs, at times that say when it looked, not
 * when the step was done. The difference of two such clocks is the step's time.
 */
#include "device/cuda/core/kernels.h"

__global__ void clock_kernel(double *seconds)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    *seconds = (double)ns * 1e-9;
}

cudaError_t mx_cuda_clock(double *pinned, cudaStream_t stream)
{
    clock_kernel<<<1, 1, 0, stream>>>(pinned);
    return cudaGetLastError();
}

__global__ void busy_kernel(uint64_t ns)
{
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begin < ns);
}

cudaError_t mx_cuda_stay_busy(int microseconds, cudaStream_t stream)
{
    busy_kernel<<<1, 1, 0, stream>>>((uint64_t)microseconds * 1000);
    return cudaGetLastError();
}

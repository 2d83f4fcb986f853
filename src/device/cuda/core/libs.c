/* libs.c - opening cuBLASLt, cuDNN and NVRTC. See libs.h. */
#include "device/cuda/core/libs.h"
#include "device/cuda/core/op.h"

#include "base/library.h"

static mx_status open_once(mx_library_id id, void **so)
{
    return *so ? MX_OK : mx_library_open(id, so);
}

#define RESOLVE_LT(name)                                                                           \
    MX_TRY(mx_library_find(MX_LIBRARY_CUBLASLT, libs->lt.so, #name, &libs->lt.name));
#define RESOLVE_DNN(name)                                                                          \
    MX_TRY(mx_library_find(MX_LIBRARY_CUDNN, libs->dnn.so, #name, &libs->dnn.name));
#define RESOLVE_RTC(name)                                                                          \
    MX_TRY(mx_library_find(MX_LIBRARY_NVRTC, libs->rtc.so, #name, &libs->rtc.name));

mx_status mx_cuda_libs_open_lt(mx_cuda_libs *libs)
{
    MX_TRY(open_once(MX_LIBRARY_CUBLASLT, &libs->lt.so));
    MX_LT_FUNCTIONS(RESOLVE_LT)
    return MX_OK;
}

mx_status mx_cuda_libs_open_dnn(mx_cuda_libs *libs)
{
    MX_TRY(open_once(MX_LIBRARY_CUDNN, &libs->dnn.so));
    MX_DNN_FUNCTIONS(RESOLVE_DNN)
    return MX_OK;
}

mx_status mx_cuda_libs_open_rtc(mx_cuda_libs *libs)
{
    MX_TRY(open_once(MX_LIBRARY_NVRTC, &libs->rtc.so));
    MX_RTC_FUNCTIONS(RESOLVE_RTC)
    return MX_OK;
}

void mx_cuda_libs_close(mx_cuda_libs *libs)
{
    *libs = (mx_cuda_libs){0};
}

mx_status mx_cuda_check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return MX_OK;
    const char *next = "see the driver's log (dmesg, nvidia-smi -q) and `maxc doctor`";
    if (e == cudaErrorMemoryAllocation)
        return mx_fail(MX_MEMORY,
                       "%s: the GPU is out of memory; `maxc plan` shows what is needed "
                       "and which settings lower it",
                       what);
    if (e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver)
        next = "this machine has no usable NVIDIA GPU or its driver is too old; use device=cpu";
    return mx_fail(MX_DEVICE, "%s: %s (%s); %s", what, cudaGetErrorName(e), cudaGetErrorString(e),
                   next);
}

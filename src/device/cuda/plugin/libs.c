/* libs.c - opening cuBLASLt, cuDNN and NVRTC. See libs.h. */
#include "device/cuda/plugin/libs.h"

#include "base/str.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *open_one(const char *soname, mx_str *tried)
{
    const char *dirs[] = {getenv("MX_CUDA_LIBS"), "", "/usr/local/cuda/lib64"};
    for (int i = 0; i < 3; i++) {
        if (!dirs[i])
            continue;
        char path[4096];
        snprintf(path, sizeof path, "%s%s%s", dirs[i], *dirs[i] ? "/" : "", soname);
        void *so = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (so)
            return so;
        mx_str_addf(tried, "\n  %s: %s", path, dlerror());
    }
    return NULL;
}

static mx_status open_named(void **so, const char *const *sonames, const char *what,
                            const char *hint)
{
    if (*so)
        return MX_OK;
    mx_str tried = {0};
    for (; *sonames && !*so; sonames++)
        *so = open_one(*sonames, &tried);
    mx_status st = MX_OK;
    if (!*so)
        st = mx_fail(MX_DEVICE, "%s was not found; tried:%s\n%s", what, mx_str_text(&tried), hint);
    mx_str_fini(&tried);
    return st;
}

static mx_status resolve(void *so, const char *name, void *slot)
{
    *(void **)slot = dlsym(so, name);
    return *(void **)slot
               ? MX_OK
               : mx_fail(MX_DEVICE, "the library found has no function %s: it is too old", name);
}

#define RESOLVE_LT(name) MX_TRY(resolve(libs->lt.so, #name, &libs->lt.name));
#define RESOLVE_DNN(name) MX_TRY(resolve(libs->dnn.so, #name, &libs->dnn.name));
#define RESOLVE_RTC(name) MX_TRY(resolve(libs->rtc.so, #name, &libs->rtc.name));

mx_status mx_cuda_libs_open_lt(mx_cuda_libs *libs)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    MX_TRY(open_named(&libs->lt.so, names, "cuBLASLt",
                      "install CUDA's cuBLAS or point MX_CUDA_LIBS at its directory"));
    MX_LT_FUNCTIONS(RESOLVE_LT)
    return MX_OK;
}

mx_status mx_cuda_libs_open_dnn(mx_cuda_libs *libs)
{
    static const char *const names[] = {"libcudnn.so.9", NULL};
    MX_TRY(open_named(&libs->dnn.so, names, "cuDNN 9",
                      "attention falls back to maxc's own kernels; install cuDNN 9 or point "
                      "MX_CUDA_LIBS at its directory for the faster ones"));
    MX_DNN_FUNCTIONS(RESOLVE_DNN)
    return MX_OK;
}

mx_status mx_cuda_libs_open_rtc(mx_cuda_libs *libs)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};
    MX_TRY(open_named(&libs->rtc.so, names, "NVRTC",
                      "install CUDA's run-time compiler or point MX_CUDA_LIBS at its directory"));
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

/* libs.h - the NVIDIA libraries this plug-in opens at run time.
 *
 * cuBLASLt, cuDNN and NVRTC are not linked: each is opened with dlopen when first asked for, so a
 * machine without cuDNN still trains (our own attention kernels) and `maxc doctor` can say what is
 * missing. Their functions are reached as `libs->lt.cublasLtMatmul(...)`; the member types come
 * from the headers, so a call is checked like a direct one. Where they are looked for:
 * base/library.h. One mx_cuda_libs serves a process; it is not thread-safe while opening.
 */
#ifndef MX_DEVICE_CUDA_LIBS_H
#define MX_DEVICE_CUDA_LIBS_H

#include "base/status.h"
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn_graph.h>
#include <nvrtc.h>

#define MX_LT_FUNCTIONS(F)                                                                         \
    F(cublasLtCreate)                                                                              \
    F(cublasLtDestroy) F(cublasLtGetVersion) F(cublasLtGetStatusString) F(cublasLtMatmul)          \
        F(cublasLtMatmulDescCreate) F(cublasLtMatmulDescDestroy) F(cublasLtMatmulDescSetAttribute) \
            F(cublasLtMatrixLayoutCreate) F(cublasLtMatrixLayoutDestroy)                           \
                F(cublasLtMatrixLayoutSetAttribute) F(cublasLtMatmulPreferenceCreate)              \
                    F(cublasLtMatmulPreferenceDestroy) F(cublasLtMatmulPreferenceSetAttribute)     \
                        F(cublasLtMatmulAlgoGetHeuristic) F(cublasLtMatmulAlgoCheck)
#define MX_DNN_FUNCTIONS(F)                                                                        \
    F(cudnnGetVersion)                                                                             \
    F(cudnnGetErrorString) F(cudnnGetLastErrorString) F(cudnnCreate) F(cudnnDestroy)               \
        F(cudnnSetStream) F(cudnnBackendCreateDescriptor) F(cudnnBackendDestroyDescriptor)         \
            F(cudnnBackendFinalize) F(cudnnBackendSetAttribute) F(cudnnBackendGetAttribute)        \
                F(cudnnBackendExecute)
#define MX_RTC_FUNCTIONS(F)                                                                        \
    F(nvrtcVersion)                                                                                \
    F(nvrtcGetErrorString) F(nvrtcCreateProgram) F(nvrtcDestroyProgram) F(nvrtcCompileProgram)     \
        F(nvrtcGetProgramLogSize) F(nvrtcGetProgramLog) F(nvrtcGetCUBINSize) F(nvrtcGetCUBIN)

#define MX_LIB_MEMBER(name) __typeof__(&name) name;
typedef struct {
    struct {
        void *so;
        MX_LT_FUNCTIONS(MX_LIB_MEMBER)
    } lt;
    struct {
        void *so;
        MX_DNN_FUNCTIONS(MX_LIB_MEMBER)
    } dnn;
    struct {
        void *so;
        MX_RTC_FUNCTIONS(MX_LIB_MEMBER)
    } rtc;
} mx_cuda_libs;

/* Each opens its library once; a second call is a no-op. The error names the paths tried. */
mx_status mx_cuda_libs_open_lt(mx_cuda_libs *libs) MX_MUST_USE;
mx_status mx_cuda_libs_open_dnn(mx_cuda_libs *libs) MX_MUST_USE;
mx_status mx_cuda_libs_open_rtc(mx_cuda_libs *libs) MX_MUST_USE;
/* Forgets the libraries. They stay mapped: unloading CUDA libraries while a context lives crashes.
 */
void mx_cuda_libs_close(mx_cuda_libs *libs);

#endif

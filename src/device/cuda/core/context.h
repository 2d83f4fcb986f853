/* context.h - the CUDA device as its own files see it: libraries, streams, memory. */
#ifndef MX_DEVICE_CUDA_CONTEXT_H
#define MX_DEVICE_CUDA_CONTEXT_H

#include "device/cuda/gemm/gemm_lt.h"
#include "device/cuda/fused/nvrtc_cache.h"
#include "device/cuda/attention/sdpa_cudnn.h"
#include "device/cuda/core/op.h"

enum { MX_CUDA_HOSTED = 8 };

typedef struct mx_cuda_copy mx_cuda_copy;   /* op_offload.c */
typedef struct mx_cuda_group mx_cuda_group; /* group.h */
typedef struct mx_cuda_alone mx_cuda_alone; /* kernel_time.c */
typedef struct mx_nccl mx_nccl;             /* nccl.h */
typedef struct mx_cuda_comm mx_cuda_comm;   /* comm_stream.h */

struct mx_cuda {
    mx_cuda_libs libs;
    mx_gemm_lt *lt;
    mx_sdpa *sdpa;       /* NULL: cuDNN is not there */
    cudaStream_t stream;
    cudaStream_t copies; /* between device and host, beside it; NULL: none so far */
    mx_cuda_copy *copy;  /* those of all programs, the last prepared first */
    mx_nccl *nccl;         /* NULL: not opened */
    mx_cuda_group *groups; /* that collectives of its programs have used */
    mx_cuda_alone *alone; /* NULL: kernels are not timed alone */
    mx_cuda_comm *comm;    /* NULL: no collective so far */
    void *mark;          /* a word that is never read (op_offload.c) */
    void *gemm_work;     /* MX_GPU_GEMM_WORK bytes */
    size_t work_bytes;   /* of the program that is being prepared: what any launch of it gets */
    char *stage;         /* pinned: inputs on their way to the GPU; NULL: none could be had */
    size_t stage_at;     /* bytes handed out since the stream was last waited for */
    struct {
        char *at; /* NULL: none */
        size_t bytes;
    } hosted[MX_CUDA_HOSTED]; /* blocks of pinned host memory (hosted.c) */
    bool any_order;      /* equal runs need not give equal bits */
    bool search;         /* GEMMs are timed when they are planned */
    char name[256];      /* "NVIDIA H200" */
    char arch[16];       /* "sm_90a" */
    char cache_dir[512]; /* compiled kernels and algorithm choices */
    char choices[544];   /* the file with those of GEMMs */
};

/* Programs (program.c), as struct mx_device asks for them. */
mx_status mx_cuda_program_prepare(mx_device *d, mx_exec *e, void **state) MX_MUST_USE;
mx_status mx_cuda_program_run(mx_device *d, mx_exec *e, void *state) MX_MUST_USE;
void mx_cuda_program_drop(mx_device *d, void *state);
/* Its graph has addresses of workspace that is no longer there. */
void mx_cuda_program_forget(mx_device *d, void *state);

/* After a wait for another stream: something for the next kernel to follow (op_offload.c). */
mx_status mx_cuda_follow(mx_cuda *c) MX_MUST_USE;

/* A plan for a GEMM (gemm_search.c). */
mx_status mx_cuda_plan_gemm(mx_cuda *c, const mx_gemm_shape *s, mx_gemm_plan **out) MX_MUST_USE;

mx_cuda *mx_cuda_of(mx_device *d);
/* Until the stream has come past the event, or, NULL, is through. Where ranks of other processes
 * take part it looks at whether they are still there (group.c). */
mx_status mx_cuda_wait(mx_cuda *c, cudaEvent_t event) MX_MUST_USE;

/* hosted.c: pinned host memory: variables that kernels use from there, activations that wait. */
mx_status mx_cuda_hosted_alloc(mx_cuda *c, void **out, size_t bytes, const char *what) MX_MUST_USE;
bool mx_cuda_is_hosted(const mx_cuda *c, const void *p);
bool mx_cuda_hosted_release(mx_cuda *c, void *p); /* false: it is none */
mx_status mx_cuda_hosted_copy(mx_cuda *c, void *dst, const void *src, size_t bytes) MX_MUST_USE;

/* staging.c: large data on its way to the GPU. */
extern const mx_device_staging mx_cuda_staging;
typedef struct {
    void *at;
    mx_dtype dtype;
} mx_cuda_values;
/* n values, both on the GPU; float32 and bfloat16, or the same type. */
cudaError_t mx_cuda_convert(mx_cuda_values to, mx_cuda_values from, int64_t n,
                            cudaStream_t stream);

/* compile_check.c */
mx_status mx_cuda_compile_kernels(const mx_program *p, const char *arch, const char *cache_dir,
                                  int *n_kernels) MX_MUST_USE;

#endif

/* context.h - what the CUDA device's ops share, and what an op is here.
 *
 * An op's CUDA side is one const struct, found by the graph op's name in a table scanned out of
 * this directory. It sees a step's tensors and attributes, never the graph. prepare plans (library
 * algorithms, generated kernels, scratch size) when a program is added; launch enqueues on the
 * stream and nothing else, so that a whole step can be captured as one CUDA graph. An op without an
 * entry runs its CPU kernel on copies of its tensors: right everywhere, slow, and said.
 */
#ifndef MX_DEVICE_CUDA_CONTEXT_H
#define MX_DEVICE_CUDA_CONTEXT_H

#include "device/cuda/gemm/gemm_lt.h"
#include "device/cuda/fused/nvrtc_cache.h"
#include "device/cuda/attention/sdpa_cudnn.h"
#include "device/device.h"

enum { MX_CUDA_HOSTED = 8 };

typedef struct mx_cuda_copy mx_cuda_copy; /* op_offload.c */

typedef struct {
    mx_cuda_libs libs;
    mx_gemm_lt *lt;
    mx_sdpa *sdpa;       /* NULL: cuDNN is not there */
    cudaStream_t stream;
    cudaStream_t copies; /* between device and host, beside it; NULL: none so far */
    mx_cuda_copy *copy;  /* those of all programs, the last prepared first */
    void *mark;          /* a word that nobody reads (op_offload.c) */
    void *gemm_work;     /* MX_GPU_GEMM_WORK bytes */
    size_t work_bytes;   /* of the program that is being prepared: what any launch of it gets */
    char *stage;         /* pinned: inputs on their way to the GPU; NULL: none could be had */
    size_t stage_at;     /* bytes handed out since the stream was last waited for */
    struct {
        char *at; /* NULL: none */
        size_t bytes;
    } hosted[MX_CUDA_HOSTED]; /* blocks of pinned host memory (hosted.c) */
    bool any_order;      /* equal runs need not give equal bits */
    bool search;         /* products are timed when they are planned */
    char name[256];      /* "NVIDIA H200" */
    char arch[16];       /* "sm_90a" */
    char cache_dir[512]; /* compiled kernels and algorithm choices */
    char choices[544];   /* the file with those of products */
} mx_cuda;

typedef struct mx_cuda_op {
    const char *op;
    /* *work_bytes: what launch uses of s->call.work, no more than the op's gpu_work_bytes unless
     * cuda->work_bytes allows it. An error means "not this shape": the device then falls back to
     * the CPU kernel and says why. */
    mx_status (*prepare)(mx_cuda *cuda, const mx_exec_step *s, void **state, size_t *work_bytes);
    mx_status (*launch)(mx_cuda *cuda, const mx_exec_step *s, void *state);
    void (*drop)(mx_cuda *cuda, void *state); /* NULL: mx_free */
    /* How many of n neighbouring steps of this op, from the first on, go together; asked once, when
     * the program is prepared. NULL: one by one. */
    int (*together)(const mx_exec_step *s, void *const *state, int n);
    /* Launches that many at once; they find the sum of their workspace (op->gpu_work_adds). */
    mx_status (*launch_many)(mx_cuda *cuda, const mx_exec_step *s, int n);
    /* Several entries may serve one op, told apart by attributes. NULL: it takes any step. */
    bool (*takes)(const mx_exec_step *s);
} mx_cuda_op;

extern const mx_cuda_op *const mx_cuda_op_table[];

/* A plan for a product (gemm_search.c). */
mx_status mx_cuda_plan_gemm(mx_cuda *c, const mx_gemm_shape *s, mx_gemm_plan **out) MX_MUST_USE;

mx_cuda *mx_cuda_of(mx_device *d);

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

/* attr.c: an attribute of a step's node, by the name its op gave it; a bug where it has none. */
const void *mx_attr(const mx_exec_step *s, const char *name);
int64_t mx_attr_int(const mx_exec_step *s, const char *name);
double mx_attr_f64(const mx_exec_step *s, const char *name);

/* float32, or one of the dtypes of numbers that kernels are written for. */
static inline bool mx_is_f32(const mx_tensor *t)
{
    return t->type.dtype == MX_F32;
}
static inline bool mx_is_float(const mx_tensor *t)
{
    return mx_is_f32(t) || t->type.dtype == MX_BF16;
}

/* Not this dtype or shape: for prepare. */
#define MX_CUDA_NEEDS(cond, what)                                                                  \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return mx_fail(MX_DEVICE, "%s", what);                                                 \
    } while (0)

#endif

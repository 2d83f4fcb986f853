/* op.h - what an op is on the CUDA device; of C and CUDA C alike.
 *
 * An op's CUDA side is one const struct, found by the graph op's name in a table scanned out of
 * src/device/cuda. It sees a step's tensors and attributes, never the graph. prepare plans (library
 * algorithms, generated kernels, scratch size) when a program is added; launch enqueues on the
 * stream and nothing else, so that a whole step can be captured as one CUDA graph. An op without an
 * entry runs its CPU kernel on copies of its tensors: right everywhere, slow, and said.
 */
#ifndef MX_DEVICE_CUDA_OP_H
#define MX_DEVICE_CUDA_OP_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "device/device.h"
#include "ops/group.h"

typedef struct mx_cuda mx_cuda; /* context.h */

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
    /* Several entries may serve one op, distinguished by attributes. NULL: it takes any step. */
    bool (*takes)(const mx_exec_step *s);
} mx_cuda_op;

extern const mx_cuda_op *const mx_cuda_op_table[];

/* Neighbouring steps of several ops that are one launch: in decoding a launch costs as much as many
 * of them do. Each writes what its steps write. */
typedef struct {
    /* How many of n steps, from the first on; 0: none. Asked once, when the program is prepared. */
    int (*match)(const mx_exec_step *s, int n);
    mx_status (*launch)(mx_cuda *cuda, const mx_exec_step *s, int n);
} mx_cuda_chain;

extern const mx_cuda_chain mx_cuda_chain_swiglu; /* gemm/op_chain_swiglu.c */
extern const mx_cuda_chain mx_cuda_chain_rope;   /* attention/op_chain_rope.c */

/* op_chain.c, for match: a fused group of just these n ops, in this order; NULL: it is not. */
const mx_group *mx_chain_group(const mx_exec_step *s, const mx_op *const *ops, int n);
/* Dense, of this dtype. */
bool mx_chain_is_dense(const mx_tensor *t, mx_dtype dtype);
/* No byte of one is the other's. */
bool mx_chain_apart(const mx_tensor *a, const mx_tensor *b);

cudaStream_t mx_cuda_stream(const mx_cuda *c);
/* OK for cudaSuccess; otherwise names `what` and CUDA's own words, and says what to do. */
mx_status mx_cuda_check(cudaError_t e, const char *what) MX_MUST_USE;

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

#ifdef __cplusplus
}
#endif
#endif

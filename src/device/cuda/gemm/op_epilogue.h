/* op_epilogue.h - what GEMMs with large epilogues share: a kernel of our own where it is possible,
 * or a GEMM through cuBLASLt with a kernel over its result after it. */
#ifndef MX_DEVICE_CUDA_OP_EPILOGUE_H
#define MX_DEVICE_CUDA_OP_EPILOGUE_H

#include "device/cuda/core/context.h"
#include "device/cuda/gemm/gemm_epilogue.h"
#include "ops/matmul.h"

typedef struct {
    mx_epilogue_gemm shape;
    bool f32;
    mx_gemm_plan *plan; /* NULL: our own kernel */
} mx_epilogue_plan;

/* Has the matmul just these epilogues? */
bool mx_cuda_has_epilogues(const mx_exec_step *s, mx_epilogues list);
mx_epilogue_gemm mx_epilogue_gemm_of(const mx_matmul_gemm *p);
/* Of a matmul step. `own`: can our kernel (bf16) do it? */
mx_status mx_epilogue_prepare(mx_cuda *c, const mx_exec_step *step,
                              bool (*own)(const mx_epilogue_gemm *),
                              mx_epilogue_plan **out) MX_MUST_USE;
void mx_epilogue_drop(mx_cuda *c, void *state);

#endif

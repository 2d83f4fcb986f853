/* op_ended.h - what ops of products that end in something else share: a kernel of our own where it
 * is possible, or a product through cuBLASLt, with a kernel over its result behind it. */
#ifndef MX_DEVICE_CUDA_OP_ENDED_H
#define MX_DEVICE_CUDA_OP_ENDED_H

#include "device/cuda/plugin/context.h"
#include "device/cuda/plugin/ended_product.h"
#include "ops/matmul.h"

typedef struct {
    mx_ended_product shape;
    bool f32;
    mx_gemm_plan *plan; /* NULL: our own kernel */
} mx_ended;

mx_ended_product mx_ended_product_of(const mx_product *p);
/* Of a step whose first two inputs are the factors. `own`: can our kernel (bf16) do it? */
mx_status mx_ended_prepare(mx_cuda *c, const mx_exec_step *step,
                           bool (*own)(const mx_ended_product *), mx_ended **out) MX_MUST_USE;
void mx_ended_drop(mx_cuda *c, void *state);

#endif

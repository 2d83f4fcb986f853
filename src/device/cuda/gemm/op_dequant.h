/* op_dequant.h - the weight of a dequant_matmul step. */
#ifndef MX_DEVICE_CUDA_OP_DEQUANT_H
#define MX_DEVICE_CUDA_OP_DEQUANT_H

#include "device/cuda/core/op.h"
#include "device/cuda/gemm/dequant.h"

mx_cuda_codes mx_cuda_codes_of(const mx_exec_step *s);

#endif

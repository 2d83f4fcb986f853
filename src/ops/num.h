/* num.h - graph dtypes in the terms of the CPU kernels. */
#ifndef MX_OPS_NUM_H
#define MX_OPS_NUM_H

#include "ir/type.h"
#include "ops/cpu/gemm.h"

static inline mx_num mx_num_of(mx_dtype d)
{
    MX_ASSERT(mx_dtype_is_computed(d), "no kernel for %s", mx_dtype_name(d));
    return d == MX_F64 ? MX_NUM_F64 : d == MX_BF16 ? MX_NUM_BF16 : MX_NUM_F32;
}

#endif

/* recurrent.h - what ops with a state that decoding carries from run to run have in common.
 *
 * A run feeds some tokens of every sequence. positions (B, S) say which: those of a sequence come
 * first, in order, and -1 follows. Position 0 begins a sequence anew, whatever the state holds; a
 * sequence without tokens keeps its state.
 */
#ifndef MX_OPS_RECURRENT_H
#define MX_OPS_RECURRENT_H

#include "ir/op.h"

static inline int64_t mx_row_tokens(const int32_t *positions, int64_t row, int64_t len)
{
    int64_t n = 0;
    while (n < len && positions[row * len + n] >= 0)
        n++;
    return n;
}

/* The dtype a kernel computes in: float64 for float64, float32 for float32 and bfloat16. */
static inline mx_dtype mx_arithmetic(mx_dtype d)
{
    MX_ASSERT(d == MX_F64 || d == MX_BF16 || d == MX_F32, "no kernel for %s", mx_dtype_name(d));
    return d == MX_F64 ? MX_F64 : MX_F32;
}

static inline size_t mx_round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

#endif

/* recurrent.h - what ops with a state that decoding carries from run to run have in common.
 *
 * A run feeds some tokens of every sequence. positions (B, S) say which: those of a sequence come
 * first, in order, and -1 follows. Position 0 starts a new sequence, whatever the state holds; a
 * sequence without tokens keeps its state.
 *
 * Where rows (B) are given, S is 1: a token is a row of the batch, rows[b] is the state that it
 * goes on from; its tokens come in order.
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

/* Tokens of one state that stand side by side. */
typedef struct {
    int64_t first, n; /* in the batch's B S tokens */
    int64_t room;     /* tokens from there to the next run */
    int64_t state;
} mx_token_run;

/* The run that begins with token `first`; n 0: no tokens, and nothing of a state. */
static inline mx_token_run mx_token_run_at(const int32_t *positions, const int32_t *rows,
                                           const int64_t dims[2], int64_t states, int64_t first)
{
    int64_t B = dims[0], S = dims[1], n = 1;
    if (!rows)
        return (mx_token_run){first, mx_row_tokens(positions, first / S, S), S, first / S};
    if (positions[first] < 0 || rows[first] < 0 || rows[first] >= states)
        return (mx_token_run){first, 0, 1, 0};
    while (first + n < B && rows[first + n] == rows[first] && positions[first + n] > 0)
        n++;
    return (mx_token_run){first, n, n, rows[first]};
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

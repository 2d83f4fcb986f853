/* gemm_prefetch.h - what a register tile of the GEMM prefetches for later tiles.
 *
 * Memory has nothing to do while a tile is computed, and a loop that packs the operands of the next
 * tiles would wait for them. So every step of a tile prefetches one line into L2, a part of a
 * `stream`: a few rows of one operand, over the words of k of a block.
 *
 *     k contiguous in memory     a part is some whole rows, from line to line along them
 *     k is the row               a part is one column of lines, from row to row (with two elements
 *                                of k in a word: of every other row)
 *
 * A prefetch loop of its own between two tiles is slower: the machine keeps some 24 lines on their
 * way and then waits (docs/log/cpu.md).
 */
#ifndef MX_OPS_CPU_GEMM_PREFETCH_H
#define MX_OPS_CPU_GEMM_PREFETCH_H

#include "base/simd.h"
#include "ops/cpu/gemm.h"

/* The lines of one tile: one each step, `step` bytes apart, and `jump` more after `run` of them. */
typedef struct {
    const char *at;
    int64_t step, run, jump;
} mx_gemm_prefetch;

typedef struct {
    mx_gemm_prefetch first; /* part 0; the next ones follow `across` bytes apart, */
    int64_t parts;       /* or, of two elements in a word, the second `along` from the first */
    int64_t across, along;
} mx_gemm_stream;

/* One operand of a GEMM, and the part of k that is prefetched. */
typedef struct {
    const void *x;
    mx_num type;
    bool k_inside; /* k is contiguous */
    int64_t ld, k0, kc, words;
} mx_gemm_source;

/* Rows r0 to r1 (columns, where they lie along memory) of s, to be prefetched by `tiles` tiles. */
MX_INLINE mx_gemm_stream mx_gemm_stream_of(const mx_gemm_source *s, int64_t r0, int64_t r1,
                                           int64_t tiles, int pair)
{
    const int64_t bytes = MX_NUM_BYTES(s->type), row = s->ld * bytes;
    const char *x = s->x;
    if (r1 <= r0 || tiles <= 0)
        return (mx_gemm_stream){.parts = 0};
    if (!s->k_inside) /* a line from its end: where it begins before r0, it is there already */
        return (mx_gemm_stream){{x + s->k0 * row + r0 * bytes + 60, row * pair, s->words, 0},
                                pair * (((r1 - r0) * bytes + 63) / 64), 64, row};
    const int64_t each = (r1 - r0 + tiles - 1) / tiles; /* rows of a part */
    const int64_t run = s->words > each ? s->words / each : 1, step = (s->kc * bytes - 1) / run + 1;
    mx_gemm_prefetch first = {x + r0 * row + s->k0 * bytes, step < 64 ? step : 64, run, 0};
    first.jump = row - run * first.step;
    return (mx_gemm_stream){first, (r1 - r0 + each - 1) / each, pair * each * row, each * row};
}

/* Part i; where there is none, `near` again and again, which is in the cache already. */
MX_INLINE mx_gemm_prefetch mx_gemm_prefetch_at(const mx_gemm_stream *s, int64_t i, int pair,
                                         const void *near, int64_t words)
{
    if (i >= s->parts)
        return (mx_gemm_prefetch){.at = near, .run = words};
    mx_gemm_prefetch a = s->first;
    a.at += i / pair * s->across + i % pair * s->along;
    return a;
}

#endif

/* nf4.h - NF4, bitsandbytes' 4-bit numbers: two of a map of sixteen in a byte, the first in the
 * high half, over a tensor's elements in order; blocks of 64 have one absmax.
 *
 * The absmax of block b is a float, or (double quantization) map[code[b]] * nested[b / 256] +
 * offset, with the signed dynamic map of 256 numbers (ops/adamw8.h). Products and sums are rounded
 * one by one, as there: every reader has the same bits.
 */
#ifndef MX_OPS_CPU_NF4_H
#define MX_OPS_CPU_NF4_H

#include <stdint.h>

enum { MX_NF4_BLOCK = 64, MX_NF4_NEST = 256, MX_NF4_VALUES = 16, MX_NF4_CODES = 256 };

/* Quantiles of a normal distribution, ascending. */
#define MX_NF4_LIST                                                                                \
    -1.f, -.6961928009986877f, -.5250730514526367f, -.39491748809814453f, -.28444138169288635f,    \
        -.18477343022823334f, -.09105003625154495f, 0.f, .07958029955625534f,                      \
        .16093020141124725f, .24611230194568634f, .33791524171829224f, .44070982933044434f,        \
        .5626170039176941f, .7229568362236023f, 1.f
extern const float mx_nf4_values[MX_NF4_VALUES];

typedef struct {
    const uint8_t *codes;
    int64_t n;           /* elements */
    const float *absmax; /* NULL: it is nested */
    const uint8_t *absmax_codes;
    const float *nested, *map;
    float offset;
} mx_nf4;

/* Blocks of a tensor of n elements, and nested blocks of those. */
int64_t mx_nf4_blocks(int64_t n);
int64_t mx_nf4_nests(int64_t blocks);

/* Blocks [first, first + count) as floats; the last block of the tensor may be short. */
void mx_nf4_decode(const mx_nf4 *w, int64_t first, int64_t count, float *out);

/* n numbers, from the first of a block on, as codes and their blocks' absmax. */
void mx_nf4_encode(const float *x, int64_t n, uint8_t *codes, float *absmax);
/* Double quantization of the absmax of `blocks` blocks: codes, nested, and the offset. */
float mx_nf4_nest(const float *absmax, int64_t blocks, uint8_t *codes, float *nested);
/* The numbers that codes of an absmax stand for. */
void mx_nf4_map(double map[MX_NF4_CODES]);

#endif

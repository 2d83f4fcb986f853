/* nf4.c - see nf4.h. */
#include "ops/cpu/nf4.h"

#include "base/simd.h"
#include "ops/adamw8.h"
#include <math.h>

const float mx_nf4_values[MX_NF4_VALUES] = {MX_NF4_LIST};

static int64_t parts(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

int64_t mx_nf4_blocks(int64_t n)
{
    return parts(n, MX_NF4_BLOCK);
}

int64_t mx_nf4_nests(int64_t blocks)
{
    return parts(blocks, MX_NF4_NEST);
}

void mx_nf4_map(double map[MX_NF4_CODES])
{
    mx_adamw8_map(true, map);
}

/* --- numbers --- */

static float absmax_of(const mx_nf4 *w, int64_t block)
{
    if (w->absmax)
        return w->absmax[block];
    volatile float part = w->map[w->absmax_codes[block]] * w->nested[block / MX_NF4_NEST];
    return part + w->offset; /* a fused multiply-add would round once */
}

MX_CLONES static void decode_block(const uint8_t *codes, int64_t n, float most, float *out)
{
    float value[MX_NF4_VALUES];
    for (int i = 0; i < MX_NF4_VALUES; i++)
        value[i] = mx_nf4_values[i] * most;
    for (int64_t i = 0; i + 1 < n; i += 2) {
        out[i] = value[codes[i / 2] >> 4];
        out[i + 1] = value[codes[i / 2] & 15];
    }
    if (n % 2)
        out[n - 1] = value[codes[n / 2] >> 4];
}

void mx_nf4_decode(const mx_nf4 *w, int64_t first, int64_t count, float *out)
{
    for (int64_t b = first; b < first + count; b++) {
        int64_t at = b * MX_NF4_BLOCK, n = w->n - at < MX_NF4_BLOCK ? w->n - at : MX_NF4_BLOCK;
        decode_block(w->codes + at / 2, n, absmax_of(w, b), out + (at - first * MX_NF4_BLOCK));
    }
}

/* --- codes --- */

/* How many of the borders between ascending numbers lie below x. */
static int place_of(const float *numbers, int n, float x)
{
    int low = 0, high = n - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (x > (numbers[middle] + numbers[middle + 1]) / 2)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static float most_of(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

void mx_nf4_encode(const float *x, int64_t n, uint8_t *codes, float *absmax)
{
    for (int64_t b = 0; b < n; b += MX_NF4_BLOCK) {
        int64_t k = n - b < MX_NF4_BLOCK ? n - b : MX_NF4_BLOCK;
        float most = most_of(x + b, k), factor = 1 / (most > 1e-38f ? most : 1e-38f);
        absmax[b / MX_NF4_BLOCK] = most;
        for (int64_t i = b; i < b + k; i++) {
            int code = place_of(mx_nf4_values, MX_NF4_VALUES, x[i] * factor);
            codes[i / 2] = (uint8_t)(i % 2 ? codes[i / 2] | code : code << 4);
        }
    }
}

float mx_nf4_nest(const float *absmax, int64_t blocks, uint8_t *codes, float *nested)
{
    double map[MX_NF4_CODES], sum = 0;
    float value[MX_NF4_CODES];
    mx_nf4_map(map);
    for (int i = 0; i < MX_NF4_CODES; i++)
        value[i] = (float)map[i];
    for (int64_t i = 0; i < blocks; i++)
        sum += absmax[i];
    float offset = (float)(sum / (double)blocks);
    for (int64_t b = 0; b < blocks; b += MX_NF4_NEST) {
        int64_t end = blocks - b < MX_NF4_NEST ? blocks : b + MX_NF4_NEST;
        float most = 0;
        for (int64_t i = b; i < end; i++)
            most = fmaxf(most, fabsf(absmax[i] - offset));
        nested[b / MX_NF4_NEST] = most;
        for (int64_t i = b; i < end; i++)
            codes[i] = (uint8_t)place_of(value, MX_NF4_CODES,
                                         most > 0 ? (absmax[i] - offset) / most : 0);
    }
    return offset;
}

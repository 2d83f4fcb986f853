/* dequant.c - see dequant.h. Decoding reads every weight once, so what counts is that codes come
 * from memory at its full rate and few instructions are spent on each.
 *
 * VPDPBUSD multiplies bytes, unsigned by signed. An activation is rounded to 16 bits, with one
 * scale a row, and lies as two signed bytes: q = 256 hi + lo. A code is the unsigned factor: int4
 * as it is, int8 with its sign bit flipped, which adds 128. What that offset adds to a sum is known
 * before any weight is read, and the sums begin at minus that ("base"). Sums are exact; only the
 * rounding of x and the scales' products are not.
 *
 * Prepared x, for each row: a head of 64 bytes (its scale), two planes of k bytes in the order in
 * which a vector of codes has them, then bases of 16 lanes for each segment, for hi and for lo. A
 * segment ends where scales change: for int8 and fp8 a group, for int4 128 columns, whose lanes
 * have up to four scales. The order of int4 and of fp8: even columns, then odd ones, of a block.
 */
#include "ops/cpu/dequant.h"

#include "base/fp8.h"
#include "base/simd.h"
#include "ops/cpu/lanes.h"
#include <math.h>
#include <string.h>

enum { VECTOR = 64, HEAD = 64, TOP = 32512 /* 256 * 127: hi and lo are bytes then */ };

static int64_t round_up(int64_t k, int64_t to)
{
    return (k + to - 1) / to * to;
}

static int64_t block_of(const mx_codes *w)
{
    return w->kind == MX_CODES_INT4 ? 2 * VECTOR : VECTOR;
}

/* --- rows as floats --- */

MX_CLONES static void widen_int8(const uint8_t *codes, int64_t n, float s, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(int8_t)codes[i] * s;
}

MX_CLONES static void widen_fp8(const uint8_t *codes, int64_t n, float s, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = mx_float_of_e4m3(codes[i]) * s;
}

MX_CLONES static void widen_int4(const uint8_t *codes, int64_t n, float s, float *out)
{
    for (int64_t i = 0; i < n / 2; i++) {
        out[2 * i] = (float)((codes[i] & 15) - 8) * s;
        out[2 * i + 1] = (float)((codes[i] >> 4) - 8) * s;
    }
}

void mx_dequant_row(const mx_codes *w, int64_t row, bool scaled, float *out)
{
    int64_t group = scaled ? w->group : w->k;
    for (int64_t c = 0; c < w->k; c += group) {
        float s = scaled ? w->scale[row * (w->k / w->group) + c / group] : 1;
        if (w->kind == MX_CODES_INT8)
            widen_int8(w->codes + row * w->k + c, group, s, out + c);
        else if (w->kind == MX_CODES_FP8)
            widen_fp8(w->codes + row * w->k + c, group, s, out + c);
        else
            widen_int4(w->codes + (row * w->k + c) / 2, group, s, out + c);
    }
}

/* --- prepared x --- */

bool mx_dequant_can_prepare(const mx_codes *w)
{
    int64_t block = block_of(w);
    bool lanes_of_a_block = w->kind == MX_CODES_INT4 && (w->group == 32 || w->group == 64);
    return mx_simd_has_bytes() &&
           (w->group == w->k || w->group % block == 0 || lanes_of_a_block);
}

static int64_t row_bytes(int64_t k)
{
    return HEAD + 4 * round_up(k, 2 * VECTOR) + 4 * VECTOR;
}

size_t mx_dequant_prepared_bytes(int64_t m, int64_t k)
{
    return (size_t)(m * row_bytes(k));
}

/* Columns of a segment. */
static int64_t segment_of(const mx_codes *w)
{
    return w->kind == MX_CODES_INT4 ? 2 * VECTOR : w->group == w->k ? round_up(w->k, VECTOR)
                                                                    : w->group;
}

/* 64 numbers of a block of x, every step-th, as bytes; base loses what the codes' offset adds. */
MX_CLONES static void split_bytes(const float *x, int step, float factor, int8_t *hi, int8_t *lo)
{
    for (int i = 0; i < VECTOR; i++) {
        int32_t q = (int32_t)rintf(x[i * step] * factor), h = (q + 128) >> 8;
        hi[i] = (int8_t)h;
        lo[i] = (int8_t)(q - 256 * h);
    }
}

MX_CLONES static void lower_base(const int8_t *bytes, int32_t offset, int32_t *base)
{
    for (int i = 0; i < LANES; i++)
        base[i] -= offset * (bytes[4 * i] + bytes[4 * i + 1] + bytes[4 * i + 2] + bytes[4 * i + 3]);
}

MX_CLONES static void round_pairs(const float *x, uint16_t *even, uint16_t *odd)
{
    for (int i = 0; i < VECTOR / 2; i++) {
        even[i] = mx_bf16_of_float(x[2 * i]);
        odd[i] = mx_bf16_of_float(x[2 * i + 1]);
    }
}

MX_CLONES float mx_dequant_most(const float *x, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = mx_bits_of_float(x[i]) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return mx_float_of_bits(most);
}

/* Columns [c, c + n) of x; where they end sooner, zeros follow. */
static const float *block_at(const float *x, int64_t c, int64_t k, int64_t n, float *room)
{
    if (c + n <= k)
        return x + c;
    memset(room, 0, sizeof *room * (size_t)n);
    memcpy(room, x + c, sizeof *room * (size_t)(k - c));
    return room;
}

static void prepare_bf16(const mx_codes *w, const float *x, char *to)
{
    float room[VECTOR];
    *(float *)to = 1;
    for (int64_t c = 0; c < w->k; c += VECTOR) {
        uint16_t *plane = (uint16_t *)(to + HEAD) + c;
        round_pairs(block_at(x, c, w->k, VECTOR, room), plane, plane + VECTOR / 2);
    }
}

static void prepare_bytes(const mx_codes *w, const float *x, char *to)
{
    int64_t wide = round_up(w->k, 2 * VECTOR), segment = segment_of(w), block = block_of(w);
    int8_t *hi = (int8_t *)to + HEAD, *lo = hi + wide;
    float room[2 * VECTOR], most = mx_dequant_most(x, w->k), factor = most > 0 ? TOP / most : 0;
    int32_t offset = w->kind == MX_CODES_INT4 ? 8 : 128;
    int halves = (int)(block / VECTOR);
    *(float *)to = isfinite(most) ? most / TOP : NAN;
    if (!isfinite(most) || !isfinite(factor)) /* not numbers, or so small that all of it is 0 */
        factor = 0;
    memset(lo + wide, 0, (size_t)((w->k + segment - 1) / segment * 2 * VECTOR));
    for (int64_t c = 0; c < w->k; c += block) {
        const float *from = block_at(x, c, w->k, block, room);
        int32_t *base = (int32_t *)(lo + wide) + c / segment * 2 * LANES;
        for (int h = 0; h < halves && factor > 0; h++) {
            int64_t at = c + h * VECTOR;
            split_bytes(from + h, halves, factor, hi + at, lo + at);
            lower_base(hi + at, offset, base);
            lower_base(lo + at, offset, base + LANES);
        }
    }
    if (!(factor > 0))
        memset(hi, 0, (size_t)(2 * wide));
}

void mx_dequant_prepare(const mx_codes *w, const float *x, int64_t m, void *prepared)
{
    for (int64_t i = 0; i < m; i++) {
        char *to = (char *)prepared + i * row_bytes(w->k);
        (w->kind == MX_CODES_FP8 ? prepare_bf16 : prepare_bytes)(w, x + i * w->k, to);
    }
}

/* --- rows of codes times a few of x --- */

/* Rows of x together; times rows of w: sums in registers; bytes of w that are prefetched. */
enum { ROWS_X = 4, AT_ONCE = 8, AHEAD = 8192 };

typedef struct {
    const mx_codes *w;
    const char *x; /* prepared, of the first of the rows */
    int64_t stride, wide, groups;
} operand;

/* v[r]: the next codes of row r, `left` to its end, which may be fewer than 64. Where they are used
 * for one row of x alone, memory is what is waited for, and later rows are prefetched. */
MX_INLINE MX_TARGET_BYTES void take(mx_v64u8 *v, const uint8_t *codes, int64_t row_bytes,
                                    const int rows, int64_t left, const int m)
{
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++) {
        if (m == 1) /* into L2: few lines can be on their way to L1 */
            __builtin_prefetch(codes + r * row_bytes + AHEAD, 0, 2);
        if (left >= VECTOR)
            v[r] = *(const mx_v64u8_any *)(codes + r * row_bytes);
        else
            MX_BYTES_FIRST(v[r], codes + r * row_bytes, left);
    }
}

/* 64 codes of each row of w times x. */
MX_INLINE MX_TARGET_BYTES void int8_step(const operand *o, int64_t c, mx_v64u8 *v, const int m,
                                         const int rows, mx_v16i32 (*acc)[2])
{
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
        v[r] ^= 0x80;
#pragma GCC unroll 4
    for (int i = 0; i < m; i++) {
        const char *x = o->x + i * o->stride + HEAD + c;
        mx_v16i32 hi = *(const mx_v16i32 *)x, lo = *(const mx_v16i32 *)(x + o->wide);
        MX_KEEP(hi);
        MX_KEEP(lo);
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++) {
            acc[r * m + i][0] = MX_BYTE_DOT(acc[r * m + i][0], v[r], hi);
            acc[r * m + i][1] = MX_BYTE_DOT(acc[r * m + i][1], v[r], lo);
        }
    }
}

/* sum[r * m + i] = row r of w times row i of x, in lanes; m and rows are constants. */
MX_INLINE MX_TARGET_BYTES void int8_rows(const operand *o, int64_t row, const int m,
                                         const int rows, lanes *sum)
{
    const mx_codes *w = o->w;
    int64_t k = w->k;
    const uint8_t *codes = w->codes + row * k;
    lanes total[AT_ONCE] = {0};
    for (int64_t g = 0; g < o->groups; g++) {
        mx_v16i32 acc[AT_ONCE][2];
        mx_v64u8 v[AT_ONCE];
        int64_t c = g * w->group, end = c + w->group;
#pragma GCC unroll 8
        for (int i = 0; i < m * rows; i++) {
            const char *base = o->x + i % m * o->stride + HEAD + 2 * o->wide + 2 * VECTOR * g;
            acc[i][0] = *(const mx_v16i32 *)base;
            acc[i][1] = *(const mx_v16i32 *)(base + VECTOR);
        }
        for (; c + VECTOR <= end; c += VECTOR) {
            take(v, codes + c, k, rows, VECTOR, m);
            int8_step(o, c, v, m, rows, acc);
        }
        if (c < end) {
            take(v, codes + c, k, rows, end - c, m);
            int8_step(o, c, v, m, rows, acc);
        }
#pragma GCC unroll 8
        for (int i = 0; i < m * rows; i++)
            total[i] += (__builtin_convertvector(acc[i][0], lanes) * 256.f +
                         __builtin_convertvector(acc[i][1], lanes)) *
                        w->scale[(row + i / m) * o->groups + g];
    }
#pragma GCC unroll 8
    for (int i = 0; i < m * rows; i++)
        sum[i] = total[i];
}

/* Scales of the lanes of a block of 128 columns: 1, 2 or 4 of them. */
MX_INLINE MX_TARGET_BYTES void lane_scales(lanes *s, const float *scale, const int per)
{
    if (per == 1) {
        *s = (lanes){0} + scale[0];
        return;
    }
    float a = scale[0], b = scale[1], c = per == 4 ? scale[2] : b, d = per == 4 ? scale[3] : b;
    b = per == 4 ? b : a;
    *s = (lanes){a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d};
}

MX_INLINE MX_TARGET_BYTES void int4_step(const operand *o, int64_t c, const mx_v64u8 *v,
                                         const lanes *scale, const int m, const int rows,
                                         lanes *total)
{
#pragma GCC unroll 4
    for (int i = 0; i < m; i++) {
        const mx_v16i32 *x = (const mx_v16i32 *)(o->x + i * o->stride + HEAD + c);
        const mx_v16i32 *low = x + o->wide / VECTOR, *base = low + o->wide / VECTOR;
        mx_v16i32 part[6] = {x[0], x[1], low[0], low[1], base[0], base[1]};
#pragma GCC unroll 6
        for (int p = 0; p < 6; p++)
            MX_KEEP(part[p]);
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++) {
            mx_v64u8 even = v[r] & 15, odd = (mx_v64u8)((words)v[r] >> 4) & 15;
            mx_v16i32 hi = MX_BYTE_DOT(part[4], even, part[0]);
            mx_v16i32 lo = MX_BYTE_DOT(part[5], even, part[2]);
            hi = MX_BYTE_DOT(hi, odd, part[1]);
            lo = MX_BYTE_DOT(lo, odd, part[3]);
            total[r * m + i] += __builtin_convertvector((hi << 8) + lo, lanes) * scale[r];
        }
    }
}

/* per: scales of a block of 128 columns; 1 also where a scale is for several blocks. */
MX_INLINE MX_TARGET_BYTES void int4_rows(const operand *o, int64_t row, const int m,
                                         const int rows, const int per, lanes *sum)
{
    const mx_codes *w = o->w;
    int64_t k = w->k, c = 0, blocks = per > 1 ? 1 : round_up(w->group, 2 * VECTOR) / (2 * VECTOR);
    int64_t left = blocks;
    const uint8_t *codes = w->codes + row * k / 2;
    const float *scale = w->scale + row * o->groups;
    lanes total[AT_ONCE] = {0}, s[AT_ONCE];
    mx_v64u8 v[AT_ONCE];
    for (; c + 2 * VECTOR <= k; c += 2 * VECTOR) {
        take(v, codes + c / 2, k / 2, rows, VECTOR, m);
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
            lane_scales(&s[r], scale + r * o->groups, per);
        int4_step(o, c, v, s, m, rows, total);
        if (--left == 0) {
            scale += per;
            left = blocks;
        }
    }
    if (c < k) {
        take(v, codes + c / 2, k / 2, rows, (k - c) / 2, m);
        for (int r = 0; r < rows; r++) {
            float some[4];
            for (int i = 0; i < per; i++) /* a block that ends sooner has fewer */
                some[i] = scale[r * o->groups + (i * w->group < k - c ? i : 0)];
            lane_scales(&s[r], some, per);
        }
        int4_step(o, c, v, s, m, rows, total);
    }
#pragma GCC unroll 8
    for (int i = 0; i < m * rows; i++)
        sum[i] = total[i];
}

/* bfloat16's upper and lower bytes of the 128 E4M3 numbers that are not negative. */
typedef struct {
    mx_v64u8 high[2], low[2];
} fp8_tables;

static void make_tables(fp8_tables *t)
{
    uint8_t *high = (uint8_t *)t->high, *low = (uint8_t *)t->low;
    for (int i = 0; i < 128; i++) {
        uint16_t b = mx_bf16_of_float(mx_float_of_e4m3((uint8_t)i));
        high[i] = (uint8_t)(b >> 8);
        low[i] = (uint8_t)b;
    }
}

MX_INLINE MX_TARGET_BYTES void fp8_step(const operand *o, const fp8_tables *t, int64_t c,
                                        mx_v64u8 v, const int m, lanes *even, lanes *odd)
{
    words high = (words)(MX_BYTES_OF(t->high[0], t->high[1], v) | (v & 0x80));
    words low = (words)MX_BYTES_OF(t->low[0], t->low[1], v);
    words a = (low & 0x00ff00ff) | ((high & 0x00ff00ff) << 8);
    words b = (high & 0xff00ff00) | (low >> 8 & 0x00ff00ff);
#pragma GCC unroll 8
    for (int i = 0; i < m; i++) {
        const char *x = o->x + i * o->stride + HEAD + 2 * c;
        even[i] = MX_BF16_DOT(even[i], *(const pairs_any *)x, a);
        odd[i] = MX_BF16_DOT(odd[i], *(const pairs_any *)(x + VECTOR), b);
    }
}

MX_INLINE MX_TARGET_BYTES void fp8_rows(const operand *o, const fp8_tables *tables, int64_t row,
                                        const int m, const int rows, lanes *sum)
{
    const mx_codes *w = o->w;
    int64_t k = w->k;
    const fp8_tables t = *tables;
    const uint8_t *codes = w->codes + row * k;
    lanes total[AT_ONCE] = {0};
    for (int64_t g = 0; g < o->groups; g++) {
        lanes even[AT_ONCE] = {0}, odd[AT_ONCE] = {0};
        mx_v64u8 v[AT_ONCE];
        int64_t c = g * w->group, end = c + w->group;
        for (; c < end; c += VECTOR) {
            take(v, codes + c, k, rows, end - c, m);
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++)
                fp8_step(o, &t, c, v[r], m, even + r * m, odd + r * m);
        }
#pragma GCC unroll 8
        for (int i = 0; i < m * rows; i++)
            total[i] += (even[i] + odd[i]) * w->scale[(row + i / m) * o->groups + g];
    }
#pragma GCC unroll 8
    for (int i = 0; i < m * rows; i++)
        sum[i] = total[i];
}

/* --- rows of y --- */

typedef struct {
    const mx_dequant_rows *r;
    int64_t from, to, first; /* rows of w, and the first of x's */
} panel;

/* Sums of n <= 4 rows of w, (4, m), into y. */
MX_INLINE MX_TARGET_BYTES void put(const operand *o, const panel *p, int64_t row, int n,
                                   const int m, const lanes *sum)
{
    for (int i = 0; i < m; i++) {
        float four[4], s = *(const float *)(o->x + i * o->stride);
        lanes of[4];
        for (int r = 0; r < 4; r++)
            of[r] = sum[r * m + i];
        fold4(four, of);
        for (int r = 0; r < n; r++)
            p->r->y[(p->first + i) * p->r->ldy + row + r - p->from] = four[r] * s;
    }
}

/* R rows of w at a time; CODE(row, R, where sums go) computes them. */
#define PANEL(name, M, R, CODE)                                                                    \
    MX_TARGET_BYTES static void name(const operand *o, const fp8_tables *t, const panel *p)        \
    {                                                                                              \
        (void)t;                                                                                   \
        for (int64_t j = p->from; j < p->to; j += 4) {                                             \
            lanes sum[4 * (M)];                                                                    \
            int n = p->to - j < 4 ? (int)(p->to - j) : 4, at = 0;                                  \
            if (n < 4)                                                                             \
                memset(sum, 0, sizeof sum);                                                        \
            for (; at + (R) <= n; at += (R))                                                       \
                CODE(M, R, j + at, sum + at * (M));                                                \
            for (; at < n; at++)                                                                   \
                CODE(M, 1, j + at, sum + at * (M));                                                \
            put(o, p, j, n, M, sum);                                                               \
        }                                                                                          \
    }
#define PANELS(kind, ROWS, CODE)                                                                   \
    PANEL(kind##_1, 1, ROWS, CODE)                                                                 \
    PANEL(kind##_4, ROWS_X, 2, CODE)
#define INT8(m, rows, row, sum) int8_rows(o, row, m, rows, sum)
#define FP8(m, rows, row, sum) fp8_rows(o, t, row, m, rows, sum)
#define INT4_1(m, rows, row, sum) int4_rows(o, row, m, rows, 1, sum)
#define INT4_2(m, rows, row, sum) int4_rows(o, row, m, rows, 2, sum)
#define INT4_4(m, rows, row, sum) int4_rows(o, row, m, rows, 4, sum)
/* One row after the other, as memory is read fastest, unless arithmetic takes longer. */
PANELS(int8_panel, 1, INT8)
PANELS(fp8_panel, 2, FP8)
PANEL(fp8_panel_8, 8, 1, FP8)
PANELS(int4_whole, 2, INT4_1)
PANELS(int4_halves, 2, INT4_2)
PANELS(int4_quarters, 2, INT4_4)

typedef void panel_fn(const operand *o, const fp8_tables *t, const panel *p);

/* For m rows of x: 1, 4, or, of fp8, whose codes take longest to widen, 8. */
static panel_fn *choose(const mx_codes *w, int m)
{
    bool four = m > 1;
    if (w->kind == MX_CODES_INT8)
        return four ? int8_panel_4 : int8_panel_1;
    if (w->kind == MX_CODES_FP8)
        return m == 8 ? fp8_panel_8 : four ? fp8_panel_4 : fp8_panel_1;
    if (w->group != w->k && w->group == 32)
        return four ? int4_quarters_4 : int4_quarters_1;
    if (w->group != w->k && w->group == 64)
        return four ? int4_halves_4 : int4_halves_1;
    return four ? int4_whole_4 : int4_whole_1;
}

void mx_dequant_gemv(const mx_codes *w, const mx_dequant_rows *r, int64_t from, int64_t to)
{
    fp8_tables t;
    if (w->kind == MX_CODES_FP8)
        make_tables(&t);
    operand o = {.w = w, .stride = row_bytes(w->k), .wide = round_up(w->k, 2 * VECTOR),
                 .groups = w->k / w->group};
    panel p = {r, from, to, 0};
    for (int64_t i = 0; i < r->m;) {
        int64_t left = r->m - i;
        int m = left >= 8 && w->kind == MX_CODES_FP8 ? 8 : left >= ROWS_X ? ROWS_X : 1;
        o.x = (const char *)r->prepared + i * o.stride;
        p.first = i;
        choose(w, m)(&o, &t, &p);
        i += m;
    }
}

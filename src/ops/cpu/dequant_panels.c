/* dequant_panels.c - see dequant_panels.h. VPDPBUSD multiplies bytes, unsigned by signed, as in
 * dequant.c: a number of x is 256 hi + lo, two signed bytes; a code is the unsigned factor, with an
 * offset (int8: its sign bit flipped, 128; int4: 8) whose part of a sum is known before any weight
 * is read: sums begin at minus that.
 *
 * A tile of r rows of prepared x: r times room for a scale; for each word of k and each row, hi and
 * lo; for each group and each row, where the sums of hi and of lo begin.
 */
#include "ops/cpu/dequant_panels.h"

#include "ops/cpu/lanes.h"
#include <math.h>
#include <string.h>

enum { HEAD = 64, TOP = 32512 /* 256 * 127: hi and lo are bytes then */, PIECE = 512 };
enum { NEAR = 12 * 128, FAR = 16384 }; /* bytes of w that are prefetched, to L1 and to L2 */

static int word_numbers(mx_codes_kind kind)
{
    return kind == MX_CODES_INT4 ? 8 : 4;
}

bool mx_code_panels_fit(mx_codes_kind kind, int64_t n, int64_t bytes)
{
    return kind != MX_CODES_FP8 && mx_simd_has_bytes() && n % MX_CODE_COLS == 0 && bytes % 4 == 0;
}

bool mx_code_panels_take(mx_codes_kind kind, int64_t k, int64_t groups)
{
    return k % groups == 0 && k / groups % word_numbers(kind) == 0;
}

void mx_code_panel_lay(const uint32_t *rows, int64_t length, bool int4, uint32_t *to)
{
    for (int64_t k = 0; k < length; k++)
        for (int64_t r = 0; r < MX_CODE_COLS; r++) {
            uint32_t x = rows[r * length + k], low = 0, high = 0;
            for (int i = 0; i < 4 && int4; i++) {
                low |= (x >> 4 * i & 15) << 8 * i;
                high |= (x >> (16 + 4 * i) & 15) << 8 * i;
            }
            to[k * MX_CODE_COLS + r] = int4 ? low | high << 4 : x;
        }
}

int64_t mx_code_tiles(int64_t m)
{
    return (m + MX_CODE_ROWS - 1) / MX_CODE_ROWS;
}

/* Tiles of nearly equal size. */
int64_t mx_code_tile_row(int64_t m, int64_t tile)
{
    return tile * m / mx_code_tiles(m);
}

int64_t mx_code_row_bytes(int64_t k)
{
    return HEAD + (2 * k + 2 * k /* bases, at most */ + 63) / 64 * 64;
}

/* --- prepared x --- */

MX_CLONES static void split_bytes(const float *x, int64_t n, float factor, int8_t *hi, int8_t *lo)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t q = (int32_t)rintf(x[i] * factor), h = (q + 128) >> 8;
        hi[i] = (int8_t)h;
        lo[i] = (int8_t)(q - 256 * h);
    }
}

MX_CLONES static int32_t sum_of(const int8_t *x, int64_t n)
{
    int32_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

/* Words of hi and lo from `to` on, `step` of them from one to the next. */
static void store_words(const int8_t *hi, const int8_t *lo, int64_t n, int32_t *to, int64_t step)
{
    for (int64_t i = 0; i < n; i += 4, to += step) {
        memcpy(to, hi + i, 4);
        memcpy(to + 1, lo + i, 4);
    }
}

void mx_code_prepare(const mx_codes *w, const float *x, int64_t row, int64_t m, void *prepared)
{
    int64_t tile = ((row + 1) * mx_code_tiles(m) - 1) / m, k = w->k;
    int64_t first = mx_code_tile_row(m, tile), r = mx_code_tile_row(m, tile + 1) - first;
    char *to = (char *)prepared + first * mx_code_row_bytes(k);
    int32_t *pairs = (int32_t *)(to + r * HEAD) + 2 * (row - first);
    int32_t *base = pairs + r * (k / 2), offset = w->kind == MX_CODES_INT4 ? 8 : 128;
    int8_t hi[PIECE], lo[PIECE];
    float most = mx_dequant_most(x, k), factor = most > 0 ? TOP / most : 0;
    ((float *)to)[row - first] = isfinite(most) ? most / TOP : NAN;
    if (!isfinite(most) || !isfinite(factor)) /* not numbers, or so small that all of it is 0 */
        factor = 0;
    for (int64_t g = 0; g < k; g += w->group, base += 2 * r) {
        base[0] = base[1] = 0;
        for (int64_t c = g, n; c < g + w->group; c += n) {
            n = g + w->group - c < PIECE ? g + w->group - c : PIECE;
            if (factor > 0)
                split_bytes(x + c, n, factor, hi, lo);
            else
                memset(hi, 0, sizeof hi), memset(lo, 0, sizeof lo);
            base[0] -= offset * sum_of(hi, n);
            base[1] -= offset * sum_of(lo, n);
            store_words(hi, lo, n, pairs + c / 2 * r, 2 * r);
        }
    }
}

/* --- a tile times a panel --- */

typedef struct {
    const uint8_t *codes; /* the next word of the panel */
    const int32_t *x;     /* and of the tile */
} place;

/* 64 codes of each half of the panel, times four numbers of each of r rows. */
MX_INLINE MX_TARGET_BYTES void multiply_bytes(mx_v16i32 (*acc)[2][2], const mx_v64u8 *v,
                                              const int32_t *x, const int r)
{
#pragma GCC unroll 6
    for (int i = 0; i < r; i++) {
        mx_v16i32 hi = (mx_v16i32){0} + x[2 * i], lo = (mx_v16i32){0} + x[2 * i + 1];
#pragma GCC unroll 2
        for (int c = 0; c < 2; c++) {
            acc[i][c][0] = MX_BYTE_DOT(acc[i][c][0], v[c], hi);
            acc[i][c][1] = MX_BYTE_DOT(acc[i][c][1], v[c], lo);
        }
    }
}

MX_INLINE MX_TARGET_BYTES void multiply_word(mx_v16i32 (*acc)[2][2], place *p, const int r,
                                             const bool int4)
{
    mx_v64u8 v[2] = {*(const mx_v64u8_any *)p->codes, *(const mx_v64u8_any *)(p->codes + 64)};
#pragma GCC unroll 2
    for (int c = 0; c < 2; c++) { /* for one row of x memory is what is waited for */
        if (r > 1)
            __builtin_prefetch(p->codes + NEAR + 64 * c);
        else
            __builtin_prefetch(p->codes + FAR + 64 * c, 0, 2);
    }
    p->codes += 128;
    if (!int4) {
        v[0] ^= 0x80;
        v[1] ^= 0x80;
        multiply_bytes(acc, v, p->x, r);
        p->x += 2 * r;
        return;
    }
    mx_v64u8 low[2] = {v[0] & 15, v[1] & 15};
    mx_v64u8 high[2] = {(mx_v64u8)((words)v[0] >> 4) & 15, (mx_v64u8)((words)v[1] >> 4) & 15};
    multiply_bytes(acc, low, p->x, r);
    multiply_bytes(acc, high, p->x + 2 * r, r);
    p->x += 4 * r;
}

MX_INLINE MX_TARGET_BYTES void multiply_tile(const mx_codes *w, const char *tile, int64_t panel,
                                             const int r, const bool int4, float *y)
{
    const int64_t k = w->k, groups = k / w->group, each = w->group / (int4 ? 8 : 4);
    const float *scale = w->scale + panel * MX_CODE_COLS * groups;
    place p = {w->codes + panel * MX_CODE_COLS * (int4 ? k / 2 : k),
               (const int32_t *)(tile + r * HEAD)};
    const int32_t *base = p.x + r * (k / 2);
    lanes total[MX_CODE_ROWS][2] = {0};
    for (int64_t g = 0; g < groups; g++, base += 2 * r, scale += MX_CODE_COLS) {
        mx_v16i32 acc[MX_CODE_ROWS][2][2];
#pragma GCC unroll 24
        for (int i = 0; i < 4 * r; i++)
            acc[i / 4][i / 2 % 2][i % 2] = (mx_v16i32){0} + base[i / 4 * 2 + i % 2];
        for (int64_t n = each; n > 0; n--)
            multiply_word(acc, &p, r, int4);
#pragma GCC unroll 12
        for (int i = 0; i < 2 * r; i++) {
            const mx_v16i32 *a = acc[i / 2][i % 2];
            total[i / 2][i % 2] += (__builtin_convertvector(a[0], lanes) * 256.f +
                                    __builtin_convertvector(a[1], lanes)) *
                                   *(const lanes_any *)(scale + i % 2 * LANES);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < 2 * r; i++)
        *(lanes_any *)(y + i * LANES) = total[i / 2][i % 2] * ((const float *)tile)[i / 2];
}

#define TILE_CASE(r)                                                                               \
    case r:                                                                                        \
        if (w->kind == MX_CODES_INT4)                                                              \
            multiply_tile(w, tile, panel, r, true, y);                                             \
        else                                                                                       \
            multiply_tile(w, tile, panel, r, false, y);                                            \
        break;
MX_TARGET_BYTES static void multiply_any(const mx_codes *w, const char *tile, int64_t rows,
                                         int64_t panel, float *y)
{
    switch (rows) {
        TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) TILE_CASE(6)
    }
}

void mx_code_multiply(const mx_codes *w, const void *prepared, int64_t m, int64_t tile,
                      int64_t panel, float *y)
{
    int64_t first = mx_code_tile_row(m, tile), rows = mx_code_tile_row(m, tile + 1) - first;
    multiply_any(w, (const char *)prepared + first * mx_code_row_bytes(w->k), rows, panel, y);
}

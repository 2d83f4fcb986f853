/* quant_form.c - see quant_form.h. */
#include "store/quant_form.h"

#include "base/fp8.h"
#include "ops/cpu/nf4.h"
#include "ops/quantize.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = MX_QUANT_BLOCK };

/* --- rows of 8 bits --- */

static float most_of(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

static void add_error(mx_quant_made *m, float x, double value)
{
    m->error += (x - value) * (x - value);
    m->squares += (double)x * x;
}

static int row_dims(const mx_quant_made *m, int i, int64_t dim[2])
{
    dim[0] = m->rows;
    dim[1] = i ? 1 : m->cols;
    return 2;
}

static bool any_size(int64_t rows, int64_t cols, int64_t group)
{
    (void)group;
    return rows > 0 && cols > 0;
}

/* A row, or a group of one, as a byte each: those that are given, or the nearest. The grid. */
static mx_code_grid codes_of(mx_quant_made *m, mx_code_kind kind, int64_t at, int64_t n, uint8_t *q)
{
    const mx_quant_change *c = m->given;
    mx_code_grid g = {0};
    if (c) {
        memcpy(q, c->codes + at, (size_t)n);
        g = (mx_code_grid){c->scale[at / n], c->zero ? c->zero[at / n] : 0};
    } else if (m->zeros) {
        g = mx_code_fit(kind, m->x + at, NULL, n, true);
        for (int64_t i = 0; i < n; i++)
            q[i] = mx_grid_code(kind, g, m->x[at + i]);
    } else {
        g.scale = mx_encode(kind, m->x + at, n, q);
    }
    for (int64_t i = 0; i < n; i++)
        add_error(m, m->x[at + i], (mx_code_value(kind, q[i]) - g.zero) * (double)g.scale);
    return g;
}

static uint16_t bf16_of(float s)
{
    return (uint16_t)(mx_bits_of_float(s) >> 16);
}

static void make_rows(mx_quant_made *m, mx_code_kind kind)
{
    for (int64_t r = 0; r < m->rows; r++)
        ((uint16_t *)m->part[1])[r] = bf16_of(
            codes_of(m, kind, r * m->cols, m->cols, (uint8_t *)m->part[0] + r * m->cols).scale);
}

static void make_fp8(mx_quant_made *m)
{
    make_rows(m, MX_CODE_E4M3);
}

static void make_int8(mx_quant_made *m)
{
    make_rows(m, MX_CODE_INT8);
}

/* Codes in words, as loaders expect weights whose activations are not quantized. */
static int word_dims(const mx_quant_made *m, int i, int64_t dim[2])
{
    dim[0] = i == 2 ? 2 : m->rows;
    dim[1] = i ? 1 : m->cols / 4;
    return i == 2 ? 1 : 2;
}

static bool whole_words(int64_t rows, int64_t cols, int64_t group)
{
    (void)group;
    return rows > 0 && cols > 0 && cols % 4 == 0;
}

static void make_words(mx_quant_made *m)
{
    uint8_t *q = m->part[0];
    make_rows(m, MX_CODE_INT8);
    for (int64_t i = 0; i < m->rows * m->cols; i++)
        q[i] ^= 0x80;
    memcpy(m->part[2], (int64_t[]){m->rows, m->cols}, 2 * sizeof(int64_t));
}

/* --- blocks of 128 x 128 --- */

static int block_dims(const mx_quant_made *m, int i, int64_t dim[2])
{
    dim[0] = i ? (m->rows + BLOCK - 1) / BLOCK : m->rows;
    dim[1] = i ? (m->cols + BLOCK - 1) / BLOCK : m->cols;
    return 2;
}

static void make_blocks(mx_quant_made *m)
{
    int64_t wide = (m->cols + BLOCK - 1) / BLOCK;
    float *scale = m->part[1];
    for (int64_t r0 = 0; r0 < m->rows; r0 += BLOCK)
        for (int64_t c0 = 0; c0 < m->cols; c0 += BLOCK) {
            int64_t r1 = r0 + BLOCK < m->rows ? r0 + BLOCK : m->rows;
            int64_t n = m->cols - c0 < BLOCK ? m->cols - c0 : BLOCK;
            float amax = 0;
            for (int64_t r = r0; r < r1; r++)
                amax = fmaxf(amax, most_of(m->x + r * m->cols + c0, n));
            float s = amax > 0 ? amax / MX_E4M3_MAX : 1;
            scale[r0 / BLOCK * wide + c0 / BLOCK] = s;
            for (int64_t i = 0; i < (r1 - r0) * n; i++) {
                int64_t at = (r0 + i / n) * m->cols + c0 + i % n;
                uint8_t q = mx_e4m3_of_float(m->x[at] / s);
                ((uint8_t *)m->part[0])[at] = q;
                add_error(m, m->x[at], mx_float_of_e4m3(q) * (double)s);
            }
        }
}

/* --- groups of 4 bits --- */

enum { PACKED, SCALE, SHAPE, ZERO }; /* parts */

static int packed_dims(const mx_quant_made *m, int i, int64_t dim[2])
{
    dim[0] = i == SHAPE ? 2 : i == ZERO ? (m->rows + 7) / 8 : m->rows;
    dim[1] = i == PACKED ? m->cols / 8 : m->cols / m->group;
    return i == SHAPE ? 1 : 2;
}

static bool whole_groups(int64_t rows, int64_t cols, int64_t group)
{
    return rows > 0 && cols % 8 == 0 && cols % group == 0;
}

/* Zero points are packed over rows, 8 in a word, with 8 added to each. */
static void make_packed(mx_quant_made *m)
{
    int64_t n = m->group, groups = m->cols / n;
    uint8_t *one = mx_realloc(NULL, (size_t)n), *q = m->part[PACKED];
    uint32_t *zero = m->part[ZERO];
    if (m->zeros)
        memset(zero, 0, m->bytes[ZERO]);
    for (int64_t g = 0; g < m->rows * groups; g++, q += n / 2) {
        mx_code_grid grid = codes_of(m, MX_CODE_INT4, g * n, n, one);
        ((uint16_t *)m->part[SCALE])[g] = bf16_of(grid.scale);
        int64_t row = g / groups;
        if (m->zeros)
            zero[row / 8 * groups + g % groups] |= (uint32_t)(grid.zero + 8) << row % 8 * 4;
        for (int64_t k = 0; k < n; k += 2)
            q[k / 2] = (uint8_t)(one[k] | one[k + 1] << 4);
    }
    mx_free(one);
    memcpy(m->part[SHAPE], (int64_t[]){m->rows, m->cols}, 2 * sizeof(int64_t));
}

/* --- NF4 --- */

static void nf4_state(const mx_quant_made *m, char *text, size_t cap)
{
    snprintf(text, cap, "{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"%s\", "
             "\"shape\": [%" PRId64 ", %" PRId64 "]}", MX_NF4_BLOCK, m->dtype, m->rows, m->cols);
}

static int nf4_dims(const mx_quant_made *m, int i, int64_t dim[2])
{
    int64_t n = m->rows * m->cols;
    char text[160];
    nf4_state(m, text, sizeof text);
    dim[0] = i == 0 ? n / 2 : i == 1 ? (n + MX_NF4_BLOCK - 1) / MX_NF4_BLOCK
             : i == 2 ? 16 : (int64_t)strlen(text);
    dim[1] = 1;
    return i == 0 ? 2 : 1;
}

static bool even_size(int64_t rows, int64_t cols, int64_t group)
{
    (void)group;
    return rows > 0 && rows * cols % 2 == 0;
}

static void make_nf4(mx_quant_made *m)
{
    int64_t n = m->rows * m->cols;
    uint8_t *q = m->part[0];
    float *absmax = m->part[1];
    char text[160];
    mx_nf4_encode(m->x, n, q, absmax);
    for (int64_t i = 0; i < n; i++) {
        int code = i % 2 ? q[i / 2] & 15 : q[i / 2] >> 4;
        add_error(m, m->x[i], mx_nf4_values[code] * (double)absmax[i / MX_NF4_BLOCK]);
    }
    memcpy(m->part[2], mx_nf4_values, sizeof mx_nf4_values);
    nf4_state(m, text, sizeof text);
    memcpy(m->part[3], text, strlen(text));
}

#define NOT_EMPTY "one number or more"
#define WHOLE_GROUPS "a multiple of 8 and of group_size"
static const mx_quant_form forms[] = {
    {"fp8", "compressed-tensors", "float-quantized",
     {{"", MX_ST_F8_E4M3}, {"_scale", MX_ST_BF16}}, 2, 8, true, row_dims, any_size, make_fp8,
     .needs = NOT_EMPTY},
    {"int8", "compressed-tensors", "pack-quantized",
     {{"_packed", MX_ST_I32}, {"_scale", MX_ST_BF16}, {"_shape", MX_ST_I64}}, 3, 8, false,
     word_dims, whole_words, make_words, .needs = "a multiple of 4"},
    {"int8_w8a8", "compressed-tensors", "int-quantized", {{"", MX_ST_I8}, {"_scale", MX_ST_BF16}},
     2, 8, false, row_dims, any_size, make_int8, .needs = NOT_EMPTY},
    {"int4", "compressed-tensors", "pack-quantized",
     {{"_packed", MX_ST_I32}, {"_scale", MX_ST_BF16}, {"_shape", MX_ST_I64}}, 3, 4, false,
     packed_dims, whole_groups, make_packed, .needs = WHOLE_GROUPS},
    {"int4_asymmetric", "compressed-tensors", "pack-quantized",
     {{"_packed", MX_ST_I32}, {"_scale", MX_ST_BF16}, {"_shape", MX_ST_I64},
      {"_zero_point", MX_ST_I32}}, 4, 4, false, packed_dims, whole_groups, make_packed,
     .needs = WHOLE_GROUPS},
    {"fp8_blockwise", "fp8", NULL, {{"", MX_ST_F8_E4M3}, {"_scale_inv", MX_ST_F32}}, 2, 8, true,
     block_dims, any_size, make_blocks, .needs = NOT_EMPTY},
    {"nf4", "bitsandbytes", NULL,
     {{"", MX_ST_U8}, {".absmax", MX_ST_F32}, {".quant_map", MX_ST_F32},
      {".quant_state.bitsandbytes__nf4", MX_ST_U8}}, 4, 4, true, nf4_dims, even_size, make_nf4,
     .needs = "an even number", .no_experts = true},
};

const mx_quant_form *mx_quant_form_find(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, name) == 0)
            return &forms[i];
    return NULL;
}

mx_code_kind mx_quant_form_codes(const mx_quant_form *f)
{
    return f->bits == 4 ? MX_CODE_INT4 : f->is_float ? MX_CODE_E4M3 : MX_CODE_INT8;
}

bool mx_quant_form_zeros(const mx_quant_form *f)
{
    return f->make == make_packed && f->n_parts > ZERO;
}

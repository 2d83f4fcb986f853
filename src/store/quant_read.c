/* quant_read.c - quantized weights as plain numbers, panel by panel.
 *
 * A panel is a run of rows of one matrix, as the weight is meant (R, C) or, transposed, (C, R),
 * small enough for the cache. Stored rows are contiguous, so a panel of a scaled or packed weight
 * is one read; a transposed one needs a little of every stored row, so the matrix's blocks are read
 * whole once and kept while its panels are made. Panels are float32 and are converted to the
 * destination by the same code that converts plain tensors.
 */
#include "store/quant.h"
#include "store/quant_gptq.h"
#include "store/quant_nf4.h"

#include "base/arena.h"
#include "base/simd.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { PANEL_BYTES = 256 << 10 };

/* What a run of panels of one matrix needs. Zero-initialised; freed by finish. */
typedef struct {
    const mx_quant_tensor *t;
    int64_t matrix; /* whose scales (and blocks) are held; -1: none */
    float *scale;   /* (scale_rows, scale_cols) */
    uint8_t *raw;   /* the stored bytes of a panel, or of the matrix when transposed */
    size_t raw_bytes;
    uint32_t *zero; /* packed along the rows: (ceil(rows * bits / 32), scale_cols) */
    int8_t *minus;  /* of bytes: (scale_rows, scale_cols) */
    int32_t *group_of; /* (cols); NULL: groups lie side by side */
    float *panel;
} reader;

static void finish(reader *r)
{
    mx_free(r->scale);
    mx_free(r->raw);
    mx_free(r->zero);
    mx_free(r->minus);
    mx_free(r->group_of);
    mx_free(r->panel);
}

static float exponent_value(uint8_t b)
{
    return b == 255 ? NAN : ldexpf(1.0f, b - 127);
}

static mx_status read_scales(reader *r, int64_t matrix)
{
    const mx_quant_tensor *t = r->t;
    int64_t n = t->scale_rows * t->scale_cols;
    if (!r->scale)
        MX_TRY(mx_alloc((void **)&r->scale, (size_t)n * sizeof *r->scale, t->scale->name));
    MX_TRY(mx_st_read(t->scale, matrix * n, n, MX_ST_F32, r->scale, NULL));
    for (int64_t i = 0; t->scale->dtype == MX_ST_U8 && i < n; i++)
        r->scale[i] = exponent_value((uint8_t)r->scale[i]);
    for (int64_t i = 0; t->scale_unit > 0 && i < n; i++)
        r->scale[i] *= t->scale_unit;
    if (t->group_of && !r->group_of) {
        MX_TRY(mx_alloc((void **)&r->group_of, (size_t)t->cols * 4, t->group_of->name));
        MX_TRY(mx_st_read(t->group_of, 0, t->cols, MX_ST_I32, r->group_of, NULL));
    }
    if (t->zero && t->kind == MX_QUANT_SCALED) {
        if (!r->minus)
            MX_TRY(mx_alloc((void **)&r->minus, (size_t)n, t->zero->name));
        return mx_st_read(t->zero, matrix * n, n, MX_ST_I8, r->minus, NULL);
    }
    if (t->zero && !r->zero) {
        MX_TRY(mx_alloc((void **)&r->zero, (size_t)t->zero->n * 4, t->zero->name));
        MX_TRY(mx_st_read(t->zero, 0, t->zero->n, MX_ST_I32, r->zero, NULL));
    }
    return MX_OK;
}

static mx_status raw_room(reader *r, int64_t n_bytes)
{
    if ((size_t)n_bytes <= r->raw_bytes)
        return MX_OK;
    mx_free(r->raw);
    r->raw = NULL;
    MX_TRY(mx_alloc((void **)&r->raw, (size_t)n_bytes, r->t->data->name));
    r->raw_bytes = (size_t)n_bytes;
    return MX_OK;
}

static int64_t row_elements(const mx_quant_tensor *t) /* of the stored tensor */
{
    return t->kind == MX_QUANT_PACKED  ? t->data->dim[t->data->ndim - 1]
           : t->kind == MX_QUANT_MXFP4 ? t->cols / 2
                                       : t->cols;
}

/* Stored rows [row, row + n) of the matrix into raw. */
static mx_status read_rows(reader *r, int64_t row, int64_t n)
{
    const mx_st_tensor *d = r->t->data;
    int64_t k = row_elements(r->t);
    MX_TRY(raw_room(r, n * k * mx_st_dtype_bytes(d->dtype)));
    return mx_st_read(d, (r->matrix * r->t->rows + row) * k, n * k, d->dtype, r->raw, NULL);
}

/* --- runs of values under one scale --------------------------------------------------------- */
MX_INLINE void scale_run(float *x, int64_t n, float s)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= s;
}

MX_INLINE void minus_run(float *x, int64_t n, float zero)
{
    for (int64_t i = 0; i < n; i++)
        x[i] -= zero;
}

MX_INLINE void int8_run(const uint8_t *raw, int64_t n, int minus, float s, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(raw[i] - minus) * s;
}

/* n bytes of two values each, low nibble first. */
MX_INLINE void int4_run(const uint8_t *raw, int64_t n, int minus, float s, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[2 * i] = (float)((raw[i] & 15) - minus) * s;
        out[2 * i + 1] = (float)((raw[i] >> 4) - minus) * s;
    }
}

/* E2M1 without a table: exponent 0 is 0 or 0.5; else (2 + m) 2^(e - 2). */
MX_INLINE float e2m1_value(uint32_t q)
{
    uint32_t e = q >> 1 & 3, m = q & 1;
    uint32_t normal = (e + 126) << 23 | m << 22, half = m ? 0x3f000000u : 0;
    uint32_t u = (e ? normal : half) | (q & 8) << 28;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

MX_INLINE void fp4_run(const uint8_t *raw, int64_t n, float s, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[2 * i] = e2m1_value(raw[i] & 15) * s;
        out[2 * i + 1] = e2m1_value(raw[i] >> 4) * s;
    }
}

/* --- one row of each kind ------------------------------------------------------------------- */
MX_CLONES static void scaled_row(const reader *r, const uint8_t *raw, int64_t row, float *out)
{
    const mx_quant_tensor *t = r->t;
    int64_t first = row / t->block_rows * t->scale_cols, bad = 0;
    if (t->data->dtype == MX_ST_I8)
        for (int64_t c = 0; c < t->cols; c++)
            out[c] = (float)(int8_t)raw[c];
    else
        (void)!mx_st_convert(t->data->dtype, raw, MX_ST_F32, out, t->cols, NULL, &bad);
    for (int64_t c = 0, k = 0; c < t->cols; c += t->block_cols, k++) {
        int64_t left = t->cols - c, n = left < t->block_cols ? left : t->block_cols;
        if (r->minus)
            minus_run(out + c, n, r->minus[first + k]);
        scale_run(out + c, n, r->scale[first + k]);
    }
}

MX_CLONES static void mxfp4_row(const reader *r, const uint8_t *raw, int64_t row, float *out)
{
    const mx_quant_tensor *t = r->t;
    for (int64_t g = 0; g < t->scale_cols; g++)
        fp4_run(raw + g * 16, 16, r->scale[row * t->scale_cols + g], out + g * 32);
}

/* What is subtracted from a packed value: half the range, and the zero point where there is one. */
static int packed_minus(const reader *r, int64_t row, int64_t group)
{
    const mx_quant_tensor *t = r->t;
    int half = 1 << (t->bits - 1);
    if (!r->zero)
        return half;
    int64_t bit = row * t->bits;
    uint32_t word = r->zero[bit / 32 * t->scale_cols + group];
    return (int)(word >> (bit % 32) & ((1u << t->bits) - 1)); /* stored with half added to it */
}

/* The little-endian words hold the row's values from the low bits up, so they are bytes in order.
 */
MX_CLONES static void packed_row(const reader *r, const uint8_t *raw, int64_t row, float *out)
{
    const mx_quant_tensor *t = r->t;
    const float *scale = r->scale + row / t->block_rows * t->scale_cols;
    for (int64_t c = 0, k = 0; c < t->cols; c += t->block_cols, k++) {
        int64_t n = t->cols - c < t->block_cols ? t->cols - c : t->block_cols, i = 0;
        int minus = packed_minus(r, row, k);
        if (t->bits == 8) {
            int8_run(raw + c, n, minus, scale[k], out + c);
            continue;
        }
        if (c % 2) { /* a group that begins inside a byte */
            out[c] = (float)((raw[c / 2] >> 4) - minus) * scale[k];
            i = 1;
        }
        int4_run(raw + (c + i) / 2, (n - i) / 2, minus, scale[k], out + c + i);
        if ((n - i) % 2)
            out[c + n - 1] = (float)((raw[(c + n - 1) / 2] & 15) - minus) * scale[k];
    }
}

/* The same where columns of a group are anywhere. */
static void reordered_row(const reader *r, const uint8_t *raw, int64_t row, float *out)
{
    const mx_quant_tensor *t = r->t;
    for (int64_t c = 0; c < t->cols; c++) {
        int32_t g = r->group_of[c];
        int q = t->bits == 8 ? raw[c] : raw[c / 2] >> c % 2 * 4 & 15;
        out[c] = (float)(q - packed_minus(r, row, g)) *
                 r->scale[row / t->block_rows * t->scale_cols + g];
    }
}

static void one_row(const reader *r, const uint8_t *raw, int64_t row, float *out)
{
    if (r->t->kind == MX_QUANT_SCALED)
        scaled_row(r, raw, row, out);
    else if (r->t->kind == MX_QUANT_MXFP4)
        mxfp4_row(r, raw, row, out);
    else if (r->group_of)
        reordered_row(r, raw, row, out);
    else
        packed_row(r, raw, row, out);
}

/* --- panels --------------------------------------------------------------------------------- */
/* Columns [32 first, 32 (first + n)) of the matrix, each a row of the panel: (32 n, rows). Tiles of
 * 16 rows: what is written then fills whole cache lines. */
MX_CLONES static void transposed_panel(const reader *r, int64_t first, int64_t n)
{
    enum { TILE = 16 };
    const mx_quant_tensor *t = r->t;
    float tile[TILE][32];
    for (int64_t row = 0; row < t->rows; row += TILE) {
        int64_t k = t->rows - row < TILE ? t->rows - row : TILE;
        for (int64_t g = first; g < first + n; g++) {
            for (int64_t i = 0; i < k; i++)
                fp4_run(r->raw + ((row + i) * t->scale_cols + g) * 16, 16,
                        r->scale[(row + i) * t->scale_cols + g], tile[i]);
            float *to = r->panel + (g - first) * 32 * t->rows + row;
            for (int64_t c = 0; c < 32; c++, to += t->rows)
                for (int64_t i = 0; i < k; i++)
                    to[i] = tile[i][c];
        }
    }
}

/* Rows [first, first + n), as the weight is meant, of `matrix` into the panel. */
static mx_status make_panel(reader *r, int64_t matrix, int64_t first, int64_t n)
{
    const mx_quant_tensor *t = r->t;
    if (r->matrix != matrix) {
        r->matrix = matrix;
        MX_TRY(read_scales(r, matrix));
        if (t->transposed)
            MX_TRY(read_rows(r, 0, t->rows));
    }
    if (t->transposed) {
        transposed_panel(r, first / 32, n / 32);
        return MX_OK;
    }
    MX_TRY(read_rows(r, first, n));
    int64_t stride = row_elements(t) * mx_st_dtype_bytes(t->data->dtype);
    for (int64_t i = 0; i < n; i++)
        one_row(r, r->raw + i * stride, first + i, r->panel + i * t->cols);
    return MX_OK;
}

static mx_status read_panels(reader *r, int64_t first, int64_t count, mx_st_dtype to, char *dst,
                             mx_st_scan *scan)
{
    const mx_quant_tensor *t = r->t;
    int64_t height = t->transposed ? t->cols : t->rows, width = t->transposed ? t->rows : t->cols;
    int64_t unit = t->transposed ? 32 : 1, bad = 0; /* a panel is whole blocks of columns there */
    int64_t most = PANEL_BYTES / (width * 4) / unit * unit;
    most = most > 0 ? most : unit;
    MX_TRY(mx_alloc((void **)&r->panel, (size_t)(most * width * 4), t->name));
    for (int64_t at = first; at < first + count;) {
        int64_t row = at / width, matrix = row / height, k = row % height / unit * unit;
        int64_t start = (matrix * height + k) * width; /* element where the panel begins */
        int64_t need = (first + count - start + width * unit - 1) / (width * unit) * unit;
        int64_t n = need < most ? need : most;
        n = n < height - k ? n : height - k;
        MX_TRY(make_panel(r, matrix, k, n));
        int64_t end = start + n * width < first + count ? start + n * width : first + count;
        if (!mx_st_convert(MX_ST_F32, r->panel + (at - start), to, dst, end - at, scan, &bad))
            return mx_fail(MX_INPUT, "%s cannot be read as %s", t->name, mx_st_dtype_name(to));
        dst += (end - at) * mx_st_dtype_bytes(to);
        at = end;
    }
    return MX_OK;
}

static mx_status read_stack(const mx_quant_tensor *t, int64_t first, int64_t count, mx_st_dtype to,
                            char *dst, mx_st_scan *scan)
{
    int64_t each = t->parts[0]->n;
    while (count > 0) {
        int64_t skip = first % each, take = each - skip < count ? each - skip : count;
        MX_TRY(mx_quant_read(t->parts[first / each], skip, take, to, dst, scan));
        dst += take * mx_st_dtype_bytes(to);
        first += take;
        count -= take;
    }
    return MX_OK;
}

static mx_status read_nf4(const mx_quant_tensor *t, int64_t first, int64_t count, mx_st_dtype to,
                          char *dst, mx_st_scan *scan)
{
    enum { STEP = 1 << 18 };
    float *panel;
    int64_t bad = 0;
    MX_TRY(mx_alloc((void **)&panel, sizeof *panel * STEP, t->name));
    mx_status st = MX_OK;
    for (int64_t i = 0; i < count && !st; i += STEP) {
        int64_t n = count - i < STEP ? count - i : STEP;
        st = mx_quant_nf4_read(t, first + i, n, panel);
        if (!st && !mx_st_convert(MX_ST_F32, panel, to, dst + i * mx_st_dtype_bytes(to), n, scan,
                                  &bad))
            st = mx_fail(MX_INPUT, "%s cannot be read as %s", t->name, mx_st_dtype_name(to));
    }
    mx_free(panel);
    return st;
}

mx_status mx_quant_read(const mx_quant_tensor *t, int64_t first, int64_t count, mx_st_dtype to,
                        void *dst, mx_st_scan *scan)
{
    if (t->kind == MX_QUANT_STACK)
        return read_stack(t, first, count, to, dst, scan);
    if (t->kind == MX_QUANT_PLAIN)
        return mx_st_read(t->data, first, count, to, dst, scan);
    MX_ASSERT(first >= 0 && count >= 0 && count <= t->n - first, "%s: %" PRId64 "+%" PRId64,
              t->name, first, count);
    if (!mx_st_convertible(MX_ST_F32, to))
        return mx_fail(MX_INPUT, "%s: tensor %s is quantized and cannot be loaded as %s",
                       t->data->file->path, t->name, mx_st_dtype_name(to));
    if (!count)
        return MX_OK;
    if (t->kind == MX_QUANT_NF4)
        return read_nf4(t, first, count, to, dst, scan);
    if (t->kind == MX_QUANT_GPTQ)
        return mx_quant_gptq_read(t, first, count, to, dst, scan);
    reader r = {.t = t, .matrix = -1};
    mx_status st = read_panels(&r, first, count, to, dst, scan);
    finish(&r);
    return st;
}

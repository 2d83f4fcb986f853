/* quant_read.c - quantised weights as plain numbers, panel by panel.
 *
 * A panel is a run of rows of one matrix, as the weight is meant (R, C) or, transposed, (C, R),
 * small enough for the cache. Stored rows are contiguous, so a panel of a scaled or packed weight
 * is one read; a transposed one needs a little of every stored row, so the matrix's blocks are read
 * whole once and kept while its panels are made. Panels are float32 and are converted to the
 * destination by the same code that converts plain tensors.
 */
#include "store/quant.h"

#include "base/arena.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { PANEL_BYTES = 256 << 10, PIECE_ELEMENTS = 4 << 20 };

static const float e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* What a run of panels of one matrix needs. Zero-initialised; freed by finish. */
typedef struct {
    const mx_quant_tensor *t;
    int64_t matrix; /* whose scales (and blocks) are held; -1: none */
    float *scale;   /* (scale_rows, scale_cols) */
    uint8_t *raw;   /* the stored bytes of a panel, or of the matrix when transposed */
    size_t raw_bytes;
    uint32_t *zero; /* packed along the rows: (ceil(rows * bits / 32), scale_cols) */
    float *panel;
} reader;

static void finish(reader *r)
{
    mx_free(r->scale);
    mx_free(r->raw);
    mx_free(r->zero);
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

/* --- one row of each kind ------------------------------------------------------------------- */
static void scaled_row(const reader *r, const uint8_t *raw, int64_t row, float *out)
{
    const mx_quant_tensor *t = r->t;
    const float *scale = r->scale + row / t->block_rows * t->scale_cols;
    int64_t bad = 0;
    if (t->data->dtype == MX_ST_I8)
        for (int64_t c = 0; c < t->cols; c++)
            out[c] = (float)(int8_t)raw[c];
    else
        (void)!mx_st_convert(t->data->dtype, raw, MX_ST_F32, out, t->cols, NULL, &bad);
    for (int64_t c = 0, k = 0; c < t->cols; k++) {
        int64_t end = c + t->block_cols < t->cols ? c + t->block_cols : t->cols;
        for (float s = scale[k]; c < end; c++)
            out[c] *= s;
    }
}

static void mxfp4_row(const reader *r, const uint8_t *raw, int64_t row, float *out)
{
    const mx_quant_tensor *t = r->t;
    const float *scale = r->scale + row * t->scale_cols;
    for (int64_t c = 0; c < t->cols; c += 2) {
        float s = scale[c / 32];
        out[c] = e2m1[raw[c / 2] & 15] * s;
        out[c + 1] = e2m1[raw[c / 2] >> 4] * s;
    }
}

/* The little-endian words hold the row's values from the low bits up, so they are bytes in order.
 */
static void packed_row(const reader *r, const uint8_t *raw, int64_t row, float *out)
{
    const mx_quant_tensor *t = r->t;
    const float *scale = r->scale + row / t->block_rows * t->scale_cols;
    int half = 1 << (t->bits - 1), mask = (1 << t->bits) - 1;
    for (int64_t c = 0; c < t->cols; c++) {
        int q = t->bits == 8 ? raw[c] : raw[c / 2] >> (c % 2 * 4) & 15;
        int64_t k = c / t->block_cols;
        int zero = 0;
        if (r->zero) {
            int64_t bit = row * t->bits;
            zero =
                (int)(r->zero[bit / 32 * t->scale_cols + k] >> (bit % 32) & (uint32_t)mask) - half;
        }
        out[c] = (float)(q - half - zero) * scale[k];
    }
}

static void one_row(const reader *r, const uint8_t *raw, int64_t row, float *out)
{
    if (r->t->kind == MX_QUANT_SCALED)
        scaled_row(r, raw, row, out);
    else if (r->t->kind == MX_QUANT_MXFP4)
        mxfp4_row(r, raw, row, out);
    else
        packed_row(r, raw, row, out);
}

/* --- panels --------------------------------------------------------------------------------- */
/* Columns [first, first + n) of the matrix, each a row of the panel: (n, rows). */
static void transposed_panel(const reader *r, int64_t first, int64_t n)
{
    const mx_quant_tensor *t = r->t;
    for (int64_t row = 0; row < t->rows; row++) {
        const uint8_t *raw = r->raw + row * (t->cols / 2);
        const float *scale = r->scale + row * t->scale_cols;
        for (int64_t i = 0; i < n; i++) {
            int64_t c = first + i;
            r->panel[i * t->rows + row] = e2m1[raw[c / 2] >> (c % 2 * 4) & 15] * scale[c / 32];
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
        transposed_panel(r, first, n);
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
    int64_t most = PANEL_BYTES / (width * 4) > 0 ? PANEL_BYTES / (width * 4) : 1, bad = 0;
    if (t->transposed && most < 32)
        most = 32; /* whole blocks of columns, or every byte of raw would be visited too often */
    MX_TRY(mx_alloc((void **)&r->panel, (size_t)(most * width * 4), t->name));
    for (int64_t at = first; at < first + count;) {
        int64_t row = at / width, matrix = row / height, k = row % height;
        int64_t last = (first + count - 1) / width - matrix * height;
        int64_t n = last - k + 1 < most ? last - k + 1 : most;
        n = n < height - k ? n : height - k;
        MX_TRY(make_panel(r, matrix, k, n));
        int64_t skip = at - row * width, take = n * width - skip;
        take = take < first + count - at ? take : first + count - at;
        if (!mx_st_convert(MX_ST_F32, r->panel + skip, to, dst, take, scan, &bad))
            return mx_fail(MX_INPUT, "%s cannot be read as %s", t->name, mx_st_dtype_name(to));
        dst += take * mx_st_dtype_bytes(to);
        at += take;
    }
    return MX_OK;
}

mx_status mx_quant_read(const mx_quant_tensor *t, int64_t first, int64_t count, mx_st_dtype to,
                        void *dst, mx_st_scan *scan)
{
    if (t->kind == MX_QUANT_PLAIN)
        return mx_st_read(t->data, first, count, to, dst, scan);
    MX_ASSERT(first >= 0 && count >= 0 && count <= t->n - first, "%s: %" PRId64 "+%" PRId64,
              t->name, first, count);
    if (!mx_st_convertible(MX_ST_F32, to))
        return mx_fail(MX_INPUT, "%s: tensor %s is quantised and cannot be loaded as %s",
                       t->data->file->path, t->name, mx_st_dtype_name(to));
    if (!count)
        return MX_OK;
    reader r = {.t = t, .matrix = -1};
    mx_status st = read_panels(&r, first, count, to, dst, scan);
    finish(&r);
    return st;
}

mx_status mx_quant_load(const mx_quant_tensor *t, mx_st_dtype to, void *dst, int n_threads,
                        mx_st_scan *scan)
{
    /* A piece is one matrix when transposed (its blocks are read once), else whole rows. */
    int64_t width = t->kind == MX_QUANT_PLAIN ? 1 : t->transposed ? t->rows * t->cols : t->cols;
    width = width > 0 ? width : 1;
    int64_t step = PIECE_ELEMENTS / width > 0 ? PIECE_ELEMENTS / width * width : width;
    int64_t n_pieces = (t->n + step - 1) / step;
    mx_status first_bad = MX_OK;
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads < 1 ? 1 : n_threads)
    for (int64_t i = 0; i < n_pieces; i++) {
        int64_t first = i * step, left = t->n - first;
        mx_st_scan mine = {0};
        mx_status st = mx_quant_read(t, first, left < step ? left : step, to,
                                     (char *)dst + first * mx_st_dtype_bytes(to), &mine);
#pragma omp critical(mx_quant_load)
        {
            if (scan) {
                scan->n_nan += mine.n_nan;
                scan->n_inf += mine.n_inf;
            }
            if (st && first_bad)
                mx_status_free(st);
            else if (st)
                first_bad = st;
        }
    }
    return first_bad;
}

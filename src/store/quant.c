/* quant.c - which stored tensors make up one weight.
 *
 * Pairing goes by name and by dtype, and the shapes must then agree to the last element; what the
 * configuration says (block size, bits) only decides where shapes leave a choice. A tensor that
 * ends in a suffix used here but has no partner of the kind described is a weight of its own: a
 * model may well have a parameter called "router_scales".
 */
#include "store/quant.h"
#include "store/quant_gptq.h"
#include "store/quant_hints.h"
#include "store/quant_nf4.h"

#include "base/str.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LISTED = 20, MAX_NAME = 4200 };

typedef struct {
    const mx_hf_dir *dir;
    mx_quant_hints hints;
    mx_quant_set *q;
    mx_str wrong;
    int n_wrong;
} pairing;

static void complain(pairing *p, const char *name, const char *fmt, ...) MX_PRINTF(3, 4);
static void complain(pairing *p, const char *name, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (p->n_wrong++ < MAX_LISTED)
        mx_str_addf(&p->wrong, "\n  %s: %s", name, text);
}

/* base + suffix, or NULL when there is no such tensor. */
static const mx_st_tensor *sibling(const pairing *p, const char *base, const char *suffix)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    return mx_hf_dir_find(p->dir, name);
}

/* The name without its suffix, in the set's arena; NULL when it does not end so. */
static const char *stem_of(pairing *p, const char *name, const char *suffix)
{
    if (!mx_ends_with(name, suffix))
        return NULL;
    return mx_arena_printf(&p->q->arena, "%.*s", (int)(strlen(name) - strlen(suffix)), name);
}

static bool is_fp8(const mx_st_tensor *t)
{
    return t->dtype == MX_ST_F8_E4M3 || t->dtype == MX_ST_F8_E5M2;
}

static bool is_scale_dtype(mx_st_dtype d)
{
    return d == MX_ST_F32 || d == MX_ST_BF16 || d == MX_ST_F16 || d == MX_ST_F8_E8M0 ||
           d == MX_ST_U8;
}

/* The block along one dim of `n` elements with `k` scales: what the configuration says when it
 * fits, else an even division, unless the weight `must` be as it says. 0: neither. */
static int64_t block_of(int64_t n, int64_t k, int64_t hint, bool must)
{
    hint = hint == MX_WHOLE_DIM ? n : hint;
    if (k <= 0)
        return 0;
    if (hint > 0 && n / hint + (n % hint != 0) == k)
        return hint;
    if (must)
        return 0;
    if (n % k == 0)
        return n ? n / k : 1;
    return (n + 127) / 128 == k ? 128 : 0;
}

static bool same_leading(const mx_st_tensor *a, const mx_st_tensor *b, int n)
{
    for (int i = 0; i < n; i++)
        if (a->dim[i] != b->dim[i])
            return false;
    return true;
}

/* Does the configuration speak of this weight? weight_block_size is of X_scale_inv: files have
 * other float8 beside it. A file that was cut would else be read with blocks of another size. */
static bool is_described(const pairing *p, const mx_quant_tensor *w)
{
    if (!p->hints.block_rows)
        return false;
    return strcmp(p->hints.method, "compressed-tensors") == 0 ||
           (is_fp8(w->data) && !mx_ends_with(w->scale->name, "_scale"));
}

/* The grid of scales over matrices (rows, cols): dims (..., scale_rows, scale_cols), or one scale a
 * row (..., rows), or one for all. */
static bool fit_scales(pairing *p, mx_quant_tensor *w)
{
    const mx_st_tensor *s = w->scale;
    char have[160];
    if (!is_scale_dtype(s->dtype)) {
        complain(p, s->name, "scales of dtype %s", mx_st_dtype_name(s->dtype));
        return false;
    }
    if (s->n == 1 && w->n_matrices == 1) {
        w->scale_rows = w->scale_cols = 1;
    } else if (s->ndim == w->data->ndim && s->ndim >= 2 && same_leading(s, w->data, s->ndim - 2)) {
        w->scale_rows = s->dim[s->ndim - 2];
        w->scale_cols = s->dim[s->ndim - 1];
    } else if (s->ndim == w->data->ndim - 1 && same_leading(s, w->data, s->ndim)) {
        w->scale_rows = w->rows;
        w->scale_cols = 1;
    }
    bool must = is_described(p, w);
    w->block_rows = block_of(w->rows, w->scale_rows, p->hints.block_rows, must);
    w->block_cols = block_of(w->cols, w->scale_cols, p->hints.block_cols, must);
    if (w->block_rows && w->block_cols)
        return true;
    complain(p, s->name, "%s do not fit %" PRId64 " matrices of %" PRId64 " x %" PRId64 "%s",
             mx_st_describe(s, have, sizeof have), w->n_matrices, w->rows, w->cols,
             must ? " in the blocks that quantization_config names" : "");
    return false;
}

/* Sets rows, cols and n_matrices from a shape. */
static bool as_matrices(mx_quant_tensor *w, int ndim, const int64_t *dim)
{
    if (ndim < 1)
        return false;
    w->cols = dim[ndim - 1];
    w->rows = ndim > 1 ? dim[ndim - 2] : 1;
    w->n_matrices = 1;
    for (int i = 0; i < ndim - 2; i++)
        w->n_matrices *= dim[i];
    return true;
}

static void set_shape(mx_quant_tensor *w, int ndim, const int64_t *dim)
{
    w->ndim = ndim;
    w->n = 1;
    for (int i = 0; i < ndim; i++) {
        w->dim[i] = dim[i];
        w->n *= dim[i];
    }
}

/* Products of the dims below cannot overflow once no dim is 0: each is at most the file's size. */
static bool is_empty(pairing *p, const mx_st_tensor *t, const mx_st_tensor *scale)
{
    if (t->n && scale->n)
        return false;
    complain(p, t->n ? scale->name : t->name, "is empty");
    return true;
}

/* compressed-tensors' "int-quantized" with zero points: one beside each scale. */
static bool fit_zeros(pairing *p, mx_quant_tensor *w)
{
    w->zero = w->data->dtype == MX_ST_I8 ? sibling(p, w->name, "_zero_point") : NULL;
    if (!w->zero || (w->zero->dtype == MX_ST_I8 && w->zero->n == w->scale->n))
        return true;
    complain(p, w->zero->name, "expected %" PRId64 " zero points, I8, one for each scale",
             w->scale->n);
    return false;
}

static bool pair_scaled(pairing *p, const mx_st_tensor *t, mx_quant_tensor *w)
{
    w->kind = MX_QUANT_SCALED;
    set_shape(w, t->ndim, t->dim);
    if (!as_matrices(w, t->ndim, t->dim)) {
        complain(p, t->name, "a quantized scalar");
        return false;
    }
    return fit_scales(p, w) && fit_zeros(p, w);
}

/* Two E2M1 in a byte, a scale for 32 of them: (rows, cols / 2) I8, (rows, cols / 32) F8_E8M0. */
static bool is_fp4_pair(const mx_st_tensor *t, const mx_st_tensor *s)
{
    return t->dtype == MX_ST_I8 && s->dtype == MX_ST_F8_E8M0 && t->ndim == 2 && s->ndim == 2 &&
           t->dim[0] == s->dim[0] && t->dim[1] % 16 == 0 && t->dim[1] / 16 == s->dim[1];
}

static bool pair_fp4(const mx_st_tensor *t, mx_quant_tensor *w)
{
    int64_t dim[2] = {t->dim[0], 2 * t->dim[1]};
    w->kind = MX_QUANT_MXFP4;
    set_shape(w, 2, dim);
    as_matrices(w, 2, dim);
    w->scale_rows = w->rows;
    w->scale_cols = w->cols / 32;
    w->block_rows = 1;
    w->block_cols = 32;
    return true;
}

static bool pair_mxfp4(pairing *p, const mx_st_tensor *t, mx_quant_tensor *w)
{
    const mx_st_tensor *s = w->scale;
    char have[160], other[160];
    w->kind = MX_QUANT_MXFP4;
    bool fits = t->ndim >= 3 && t->ndim <= 5 && t->dim[t->ndim - 1] == 16 &&
                s->ndim == t->ndim - 1 && s->dtype == MX_ST_U8;
    for (int i = 0; fits && i < s->ndim; i++)
        fits = s->dim[i] == t->dim[i];
    if (!fits) {
        complain(p, t->name,
                 "blocks %s and scales %s do not belong together (expected U8 (..., rows, "
                 "groups, 16) and U8 (..., rows, groups))",
                 mx_st_describe(t, have, sizeof have), mx_st_describe(s, other, sizeof other));
        return false;
    }
    int64_t dim[MX_ST_MAX_DIM];
    int ndim = t->ndim - 1;
    for (int i = 0; i < ndim; i++)
        dim[i] = t->dim[i];
    dim[ndim - 1] *= 32; /* t->n >= 16 * dim: no overflow that parsing has not seen */
    as_matrices(w, ndim, dim);
    w->transposed = ndim == 3;
    if (w->transposed) {
        dim[1] = w->cols;
        dim[2] = w->rows;
    }
    set_shape(w, ndim, dim);
    w->scale_rows = w->rows;
    w->scale_cols = w->cols / 32;
    w->block_rows = 1;
    w->block_cols = 32;
    return true;
}

/* X_shape: the weight's own dims, since packing rounds the columns up. */
static bool read_shape(pairing *p, const mx_st_tensor *t, const mx_st_tensor *shape, int64_t *dim)
{
    if (shape->n != t->ndim || shape->n > MX_ST_MAX_DIM) {
        complain(p, shape->name, "%" PRId64 " numbers for the shape of %d dims", shape->n, t->ndim);
        return false;
    }
    mx_status st = mx_st_read(shape, 0, shape->n, MX_ST_I64, dim, NULL);
    if (st)
        complain(p, shape->name, "%s", mx_status_text(st));
    bool good = !st;
    mx_status_free(st);
    for (int i = 0; good && i < t->ndim - 1; i++)
        good = dim[i] == t->dim[i];
    if (!st && (!good || dim[t->ndim - 1] < 0 || dim[t->ndim - 1] > t->dim[t->ndim - 1] * 32)) {
        complain(p, shape->name, "does not fit the packed tensor");
        return false;
    }
    return good;
}

/* A weight that its own file has opened, or has said why not. */
static bool opened(pairing *p, const mx_st_tensor *t, mx_status st)
{
    bool fine = !st;
    if (st)
        complain(p, t->name, "%s", mx_status_text(st));
    mx_status_free(st);
    return fine;
}

/* X_g_idx: the group of each column, whatever its place (llm-compressor's actorder "group"). */
static bool read_groups(pairing *p, mx_quant_tensor *w)
{
    const mx_st_tensor *t = w->group_of;
    mx_arena scratch = {0};
    bool good = t->dtype == MX_ST_I32 && t->n == w->cols && w->n_matrices == 1;
    int32_t *at = MX_NEW_N(&scratch, int32_t, good ? w->cols : 1);
    mx_status st = good ? mx_st_read(t, 0, w->cols, MX_ST_I32, at, NULL) : MX_OK;
    for (int64_t c = 0; good && !st && c < w->cols; c++)
        good = at[c] >= 0 && at[c] < w->scale_cols;
    if (!good)
        complain(p, t->name, "expected an I32 for each of %" PRId64 " columns, below %" PRId64,
                 w->cols, w->scale_cols);
    mx_arena_fini(&scratch);
    return opened(p, t, st) && good;
}

static int find_bits(const pairing *p, int64_t words, int64_t cols)
{
    static const int known[] = {4, 8};
    for (int i = 0; i < 2; i++)
        if ((cols * known[i] + 31) / 32 == words && (!p->hints.bits || p->hints.bits == known[i]))
            return known[i];
    return 0;
}

static bool pair_packed(pairing *p, const mx_st_tensor *t, mx_quant_tensor *w)
{
    const mx_st_tensor *shape = sibling(p, w->name, "_shape");
    int64_t dim[MX_ST_MAX_DIM], words = t->ndim ? t->dim[t->ndim - 1] : 0;
    w->kind = MX_QUANT_PACKED;
    if (t->ndim < 2 || t->dtype != MX_ST_I32 || !shape) {
        complain(p, t->name, !shape ? "its _shape is missing" : "expected an I32 matrix");
        return false;
    }
    if (!read_shape(p, t, shape, dim))
        return false;
    set_shape(w, t->ndim, dim);
    as_matrices(w, t->ndim, dim);
    w->bits = find_bits(p, words, w->cols);
    if (!w->bits) {
        complain(p, t->name, "%" PRId64 " words hold no row of %" PRId64 " values of 4 or 8 bits",
                 words, w->cols);
        return false;
    }
    w->zero = sibling(p, w->name, "_zero_point");
    if (!fit_scales(p, w))
        return false;
    int64_t zero_words = (w->rows * w->bits + 31) / 32 * w->scale_cols;
    if (w->zero && (w->zero->dtype != MX_ST_I32 || w->n_matrices != 1 || w->block_rows != 1 ||
                    w->zero->n != zero_words)) {
        complain(p, w->zero->name, "zero points that do not fit their weight");
        return false;
    }
    w->group_of = sibling(p, w->name, "_g_idx");
    return !w->group_of || read_groups(p, w);
}

/* DeepSeek V4's: the scales of X.weight are X.scale. */
static const mx_st_tensor *scale_beside(pairing *p, const char *weight)
{
    const char *stem = stem_of(p, weight, ".weight");
    return stem ? sibling(p, stem, ".scale") : NULL;
}

/* bitsandbytes' int8: what is beside X.weight is X.SCB and X.weight_format. */
static const mx_st_tensor *row_maxima(pairing *p, const char *weight)
{
    const char *stem = stem_of(p, weight, ".weight");
    return stem ? sibling(p, stem, ".SCB") : NULL;
}

static bool is_part_of_int8(pairing *p, const mx_st_tensor *t)
{
    const char *stem = stem_of(p, t->name, ".SCB");
    stem = stem ? stem : stem_of(p, t->name, ".weight_format");
    const mx_st_tensor *w = stem ? sibling(p, stem, ".weight") : NULL;
    return w && w->dtype == MX_ST_I8;
}

static bool pair_int8(pairing *p, const mx_st_tensor *t, mx_quant_tensor *w)
{
    const char *stem = stem_of(p, t->name, ".weight");
    const mx_st_tensor *format = sibling(p, stem, ".weight_format");
    uint8_t order = 0; /* 0: rows as they are; others are GPUs' tiles of old versions */
    if (format && !opened(p, t, mx_st_read(format, 0, 1, MX_ST_U8, &order, NULL)))
        return false;
    if (order != 0 || w->scale->n != (t->ndim == 2 ? t->dim[0] : -1)) {
        complain(p, t->name, order ? "its .weight_format is %d; rows as they are (0) are read"
                                   : "its .SCB does not have a number for each row", order);
        return false;
    }
    w->scale_unit = 1 / 127.f;
    return pair_scaled(p, t, w);
}

/* Is t a scale that loaders quantize activations or caches with? No number of a weight depends on
 * it. */
static bool is_of_activations(pairing *p, const mx_st_tensor *t)
{
    static const char *const of_caches[] = {".k_scale", ".v_scale", ".kv_scale", ".q_scale"};
    static const char *const of_module[] = {".input_scale", ".input_scale_ub", ".output_scale",
                                            ".input_zero_point", ".output_zero_point"};
    for (size_t i = 0; p->hints.method && i < sizeof of_caches / sizeof *of_caches; i++)
        if (mx_ends_with(t->name, of_caches[i]))
            return true;
    for (size_t i = 0; p->hints.method && i < sizeof of_module / sizeof *of_module; i++) {
        const char *stem = stem_of(p, t->name, of_module[i]);
        if (stem && (sibling(p, stem, ".weight") || sibling(p, stem, ".weight_packed")))
            return true;
    }
    return false;
}

/* Whether t is a part of a weight that another tensor stands for. */
static bool is_part(pairing *p, const mx_st_tensor *t)
{
    static const char *const of_packed[] = {"_scale", "_shape", "_zero_point", "_g_idx"};
    const char *stem;
    if (mx_quant_nf4_is_part(p->dir, t->name) || is_part_of_int8(p, t) ||
        (p->hints.has_gptq && mx_quant_gptq_is_part(p->dir, t->name)))
        return true;
    for (size_t i = 0; i < sizeof of_packed / sizeof *of_packed; i++)
        if ((stem = stem_of(p, t->name, of_packed[i])) && sibling(p, stem, "_packed"))
            return true;
    if ((stem = stem_of(p, t->name, "_scales")) && sibling(p, stem, "_blocks"))
        return true;
    if ((stem = stem_of(p, t->name, "_scale_inv")) || (stem = stem_of(p, t->name, "_scale"))) {
        const mx_st_tensor *w = mx_hf_dir_find(p->dir, stem);
        return w && (is_fp8(w) || w->dtype == MX_ST_I8);
    }
    if ((stem = stem_of(p, t->name, "_zero_point"))) {
        const mx_st_tensor *w = mx_hf_dir_find(p->dir, stem);
        return w && w->dtype == MX_ST_I8 && sibling(p, stem, "_scale");
    }
    if ((stem = stem_of(p, t->name, ".scale"))) {
        const mx_st_tensor *w = sibling(p, stem, ".weight");
        return w && (is_fp8(w) || w->dtype == MX_ST_I8);
    }
    return false;
}

/* Makes the weight that t stands for, or complains. False: t is no weight or is wrong. */
static bool pair_one(pairing *p, const mx_st_tensor *t, mx_quant_tensor *w)
{
    const char *stem;
    *w = (mx_quant_tensor){.name = t->name, .data = t};
    if (is_part(p, t) || is_of_activations(p, t))
        return false;
    if (mx_quant_nf4_state(p->dir, t->name))
        return opened(p, t, mx_quant_nf4_open(p->dir, &p->q->arena, w));
    if (p->hints.has_gptq && (stem = stem_of(p, t->name, ".qweight"))) {
        w->name = mx_arena_printf(&p->q->arena, "%s.weight", stem);
        return opened(p, t, mx_quant_gptq_open(p->dir, &p->hints.gptq, &p->q->arena, w));
    }
    if ((stem = stem_of(p, t->name, "_blocks")) && t->dtype == MX_ST_U8) {
        w->name = stem;
        w->scale = sibling(p, stem, "_scales");
        if (w->scale)
            return !is_empty(p, t, w->scale) && pair_mxfp4(p, t, w);
        complain(p, t->name, "its scales (%s_scales) are missing", stem);
        return false;
    }
    if ((stem = stem_of(p, t->name, "_packed"))) {
        w->name = stem;
        w->scale = sibling(p, stem, "_scale");
        if (w->scale)
            return !is_empty(p, t, w->scale) && pair_packed(p, t, w);
        complain(p, t->name, "its scales (%s_scale) are missing", stem);
        return false;
    }
    w->scale = sibling(p, t->name, "_scale_inv");
    if (!w->scale)
        w->scale = sibling(p, t->name, "_scale");
    if (!w->scale)
        w->scale = scale_beside(p, t->name);
    if (w->scale && is_fp4_pair(t, w->scale))
        return !is_empty(p, t, w->scale) && pair_fp4(t, w);
    if (is_fp8(t) || (t->dtype == MX_ST_I8 && w->scale)) {
        if (w->scale)
            return !is_empty(p, t, w->scale) && pair_scaled(p, t, w);
        complain(p, t->name, "%s without scales (%s_scale_inv is missing)",
                 mx_st_dtype_name(t->dtype), t->name);
        return false;
    }
    w->scale = t->dtype == MX_ST_I8 ? row_maxima(p, t->name) : NULL;
    if (w->scale)
        return !is_empty(p, t, w->scale) && pair_int8(p, t, w);
    set_shape(w, t->ndim, t->dim);
    if (t->dtype != MX_ST_I8 || t->ndim != 2 || !stem_of(p, t->name, ".weight"))
        return true;
    complain(p, t->name, "I8 without scales (%s_scale or .SCB is missing)", t->name);
    return false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mx_quant_tensor *)a)->name, ((const mx_quant_tensor *)b)->name);
}

mx_status mx_quant_open(mx_quant_set *q, const mx_hf_dir *dir)
{
    *q = (mx_quant_set){0};
    pairing p = {.dir = dir, .q = q};
    char where[MAX_NAME];
    snprintf(where, sizeof where, "%s/config.json", dir->path);
    MX_TRY(mx_quant_hints_read(&p.hints, dir->config, where));
    q->tensors = MX_NEW_N(&q->arena, mx_quant_tensor, dir->n_tensors);
    for (int64_t i = 0; i < dir->n_tensors; i++)
        if (pair_one(&p, dir->tensors[i], &q->tensors[q->n_tensors])) {
            q->n_quantized += q->tensors[q->n_tensors].kind != MX_QUANT_PLAIN;
            q->n_tensors++;
        }
    qsort(q->tensors, (size_t)q->n_tensors, sizeof *q->tensors, by_name);
    for (int64_t i = 1; i < q->n_tensors; i++)
        if (strcmp(q->tensors[i - 1].name, q->tensors[i].name) == 0)
            complain(&p, q->tensors[i].name, "is there twice, plain and quantized");
    mx_status st = MX_OK;
    if (p.n_wrong)
        st = mx_fail(MX_INPUT, "%s: %d quantized tensors cannot be read:%s%s", dir->path, p.n_wrong,
                     p.wrong.text, p.n_wrong > MAX_LISTED ? "\n  ..." : "");
    mx_str_fini(&p.wrong);
    if (st)
        mx_quant_close(q);
    return st;
}

void mx_quant_close(mx_quant_set *q)
{
    mx_arena_fini(&q->arena);
    *q = (mx_quant_set){0};
}

const mx_quant_tensor *mx_quant_find(const mx_quant_set *q, const char *name)
{
    mx_quant_tensor key = {.name = name};
    if (!q->n_tensors)
        return NULL;
    return bsearch(&key, q->tensors, (size_t)q->n_tensors, sizeof *q->tensors, by_name);
}

static const char *dims_text(const mx_quant_tensor *t, char *buf, size_t cap)
{
    int k = snprintf(buf, cap, "(");
    for (int i = 0; i < t->ndim && k < (int)cap; i++)
        k += snprintf(buf + k, cap - (size_t)k, "%s%" PRId64, i ? ", " : "", t->dim[i]);
    if (k < (int)cap)
        snprintf(buf + k, cap - (size_t)k, ")");
    return buf;
}

static mx_status resolve_stack(const mx_quant_set *q, const char *name, const char *star,
                               mx_arena *a, mx_quant_tensor *out)
{
    char part[MAX_NAME], here[160], first[160];
    const mx_quant_tensor **parts = NULL, *t;
    int64_t n = 0, cap = 0;
    for (;; n++) {
        snprintf(part, sizeof part, "%.*s%" PRId64 "%s", (int)(star - name), name, n, star + 1);
        if (!(t = mx_quant_find(q, part)))
            break;
        MX_GROW(parts, n, cap);
        parts[n] = t;
    }
    mx_status st = MX_OK;
    for (int64_t i = 1; i < n && !st; i++)
        if (parts[i]->ndim != parts[0]->ndim ||
            memcmp(parts[i]->dim, parts[0]->dim, sizeof parts[0]->dim[0] * (size_t)parts[0]->ndim))
            st = mx_fail(MX_INPUT, "%s has dims %s and %s has %s; they should be alike",
                         parts[i]->name, dims_text(parts[i], here, sizeof here), parts[0]->name,
                         dims_text(parts[0], first, sizeof first));
    if (n && !st && parts[0]->ndim == MX_ST_MAX_DIM)
        st = mx_fail(MX_INPUT, "%s has too many dims to be stacked", parts[0]->name);
    if (n && !st) {
        out->name = mx_arena_strdup(a, name);
        out->kind = MX_QUANT_STACK;
        out->data = parts[0]->data;
        out->parts = mx_arena_copy(a, parts, sizeof *parts * (size_t)n);
        out->ndim = parts[0]->ndim + 1;
        out->n = n * parts[0]->n;
        out->dim[0] = n;
        memcpy(out->dim + 1, parts[0]->dim, sizeof out->dim[0] * (size_t)parts[0]->ndim);
    }
    mx_free(parts);
    return st;
}

mx_status mx_quant_resolve(const mx_quant_set *q, const char *name, mx_arena *a,
                           mx_quant_tensor *out)
{
    const char *star = strchr(name, '*');
    *out = (mx_quant_tensor){0};
    if (star)
        return resolve_stack(q, name, star, a, out);
    const mx_quant_tensor *t = mx_quant_find(q, name);
    if (t)
        *out = *t;
    return MX_OK;
}

const char *mx_quant_describe(const mx_quant_tensor *t, char *buf, size_t cap)
{
    char dims[160], how[100] = "";
    const mx_quant_tensor *one = t->kind == MX_QUANT_STACK ? t->parts[0] : t;
    if (one->kind == MX_QUANT_SCALED)
        snprintf(how, sizeof how, ", a scale for each %" PRId64 " x %" PRId64, one->block_rows,
                 one->block_cols);
    else if (one->kind == MX_QUANT_PACKED || one->kind == MX_QUANT_GPTQ)
        snprintf(how, sizeof how, ", %d bits, groups of %" PRId64, one->bits, one->block_cols);
    snprintf(buf, cap, "%s %s%s",
             one->kind == MX_QUANT_MXFP4 ? "MXFP4"
             : one->kind == MX_QUANT_NF4 ? "NF4"
                                         : mx_st_dtype_name(one->data->dtype),
             dims_text(t, dims, sizeof dims), how);
    return buf;
}

/* quantized_vars.c - quantized weights of a session: NF4 is written here, any is read. */
#include "store/quant_encode.h"

#include "compile/quantize_frozen.h"
#include "compile/quantize_weights.h"
#include "ops/cpu/dequant.h"
#include "ops/cpu/nf4.h"
#include "store/quant_nf4.h"
#include <stdio.h>
#include <string.h>

mx_var *mx_quantized_part(mx_session *s, const mx_var *v, const char *end)
{
    char name[640];
    snprintf(name, sizeof name, "%s%s", v->name, end);
    return mx_session_find(s, name);
}

/* --- NF4 --- */

/* A weight that becomes NF4, and the variables beside it; nested and offset NULL: not nested. */
typedef struct {
    mx_session *session;
    mx_var *v, *absmax, *nested, *offset;
    int64_t n, blocks;
    const mx_quantized_source *from;
    mx_st_scan *scan;
} nf4;

static nf4 nf4_of(mx_session *s, mx_var *v)
{
    int64_t n = 2 * mx_type_count(&v->type);
    return (nf4){.session = s, .v = v, .absmax = mx_quantized_part(s, v, MX_NF4_ABSMAX), .n = n,
                 .nested = mx_quantized_part(s, v, MX_NF4_NESTED), .blocks = mx_nf4_blocks(n),
                 .offset = mx_quantized_part(s, v, MX_NF4_OFFSET)};
}

/* Blocks [first, first + some) of codes; x and q have room for them. */
static mx_status encode_some(const nf4 *w, int64_t first, int64_t some, float *x, uint8_t *q,
                             float *absmax)
{
    int64_t at = first * MX_NF4_BLOCK, n = some * MX_NF4_BLOCK;
    n = w->n - at < n ? w->n - at : n;
    MX_TRY(mx_quantized_numbers(w->from, at, n, x, w->scan));
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < some; b++) {
        int64_t from = b * MX_NF4_BLOCK, k = n - from < MX_NF4_BLOCK ? n - from : MX_NF4_BLOCK;
        mx_nf4_encode(x + from, k, q + from / 2, absmax + b);
    }
    return mx_var_write_part(w->session, w->v, at / 2, n / 2, q);
}

static mx_status write_absmax(const nf4 *w, const float *absmax, mx_arena *scratch)
{
    if (!w->nested)
        return mx_var_write(w->session, w->absmax, absmax);
    uint8_t *codes = MX_NEW_N(scratch, uint8_t, w->blocks);
    float *nested = MX_NEW_N(scratch, float, mx_nf4_nests(w->blocks));
    float offset = mx_nf4_nest(absmax, w->blocks, codes, nested);
    MX_TRY(mx_var_write(w->session, w->absmax, codes));
    MX_TRY(mx_var_write(w->session, w->nested, nested));
    return mx_var_write(w->session, w->offset, &offset);
}

/* Does the checkpoint have NF4 in this form? Its codes are taken then: double quantization of what
 * was quantized so would not give the same again. */
static bool is_stored(const nf4 *w)
{
    const mx_quant_tensor *t = w->from->t;
    return !w->from->numbers && t->kind == MX_QUANT_NF4 && t->nf4->block == MX_NF4_BLOCK &&
           mx_quant_nf4_is_standard(t) && (t->nf4->absmax->dtype == MX_ST_U8) == !!w->nested &&
           (!w->nested || t->nf4->nested_block == MX_NF4_NEST);
}

static mx_status take_stored(const nf4 *w, mx_arena *scratch)
{
    const struct mx_quant_nf4 *t = w->from->t->nf4;
    uint8_t *codes = MX_NEW_N(scratch, uint8_t, w->n / 2);
    float *absmax = MX_NEW_N(scratch, float, w->blocks), offset = t->offset;
    MX_TRY(mx_st_read(w->from->t->data, 0, w->n / 2, MX_ST_U8, codes, NULL));
    MX_TRY(mx_var_write(w->session, w->v, codes));
    MX_TRY(mx_st_read(t->absmax, 0, w->blocks, w->nested ? MX_ST_U8 : MX_ST_F32, absmax, NULL));
    MX_TRY(mx_var_write(w->session, w->absmax, absmax));
    if (!w->nested)
        return MX_OK;
    MX_TRY(mx_st_read(t->nested_absmax, 0, mx_nf4_nests(w->blocks), MX_ST_F32, absmax, NULL));
    MX_TRY(mx_var_write(w->session, w->nested, absmax));
    return mx_var_write(w->session, w->offset, &offset);
}

static mx_status make_stored(const nf4 *w, mx_arena *scratch)
{
    enum { AT_ONCE = 1 << 16 }; /* blocks */
    int64_t most = w->blocks < AT_ONCE ? w->blocks : AT_ONCE;
    float *absmax = MX_NEW_N(scratch, float, w->blocks), *x = NULL;
    uint8_t *q = MX_NEW_N(scratch, uint8_t, most * MX_NF4_BLOCK / 2);
    mx_status st = mx_alloc((void **)&x, sizeof *x * (size_t)(most * MX_NF4_BLOCK), w->v->name);
    for (int64_t b = 0; b < w->blocks && !st; b += AT_ONCE)
        st = encode_some(w, b, w->blocks - b < AT_ONCE ? w->blocks - b : AT_ONCE, x, q,
                         absmax + b);
    mx_free(x);
    return st ? st : write_absmax(w, absmax, scratch);
}

mx_status mx_nf4_load(mx_session *s, mx_var *v, const mx_quantized_source *from, mx_st_scan *scan)
{
    nf4 w = nf4_of(s, v);
    mx_arena scratch = {0};
    w.from = from;
    w.scan = scan;
    mx_status st = (is_stored(&w) ? take_stored : make_stored)(&w, &scratch);
    mx_arena_fini(&scratch);
    if (st)
        return st;
    v->written = w.absmax->written = true;
    if (w.nested)
        w.nested->written = w.offset->written = true;
    return MX_OK;
}

/* --- numbers again --- */

static mx_status read_nf4(mx_session *s, mx_var *v, const uint8_t *codes, mx_arena *scratch,
                          float *out)
{
    nf4 w = nf4_of(s, v);
    double map[MX_NF4_CODES];
    float value[MX_NF4_CODES], *absmax = MX_NEW_N(scratch, float, w.blocks);
    mx_nf4 as = {.codes = codes, .n = w.n, .absmax = w.nested ? NULL : absmax, .map = value,
                 .absmax_codes = (const uint8_t *)absmax};
    MX_TRY(mx_var_read(s, w.absmax, absmax));
    if (w.nested) {
        float *nested = MX_NEW_N(scratch, float, mx_nf4_nests(w.blocks));
        MX_TRY(mx_var_read(s, w.nested, nested));
        MX_TRY(mx_var_read(s, w.offset, &as.offset));
        as.nested = nested;
    }
    mx_nf4_map(map);
    for (int i = 0; i < MX_NF4_CODES; i++)
        value[i] = (float)map[i];
    mx_nf4_decode(&as, 0, w.blocks, out);
    return MX_OK;
}

static mx_status read_rows(mx_session *s, mx_var *v, const uint8_t *codes, mx_arena *scratch,
                           float *out)
{
    mx_var *scales = mx_quantized_part(s, v, MX_CODE_SCALES);
    int64_t k = v->type.dim[v->type.ndim - 1], rows = mx_type_count(&v->type) / k;
    float *scale = MX_NEW_N(scratch, float, mx_type_count(&scales->type));
    MX_TRY(mx_var_read(s, scales, scale));
    mx_codes w = {.kind = v->type.dtype == MX_I8 ? MX_CODES_INT8 : MX_CODES_FP8, .codes = codes,
                  .scale = scale, .n = rows, .k = k, .group = k};
    for (int64_t r = 0; r < rows; r++)
        mx_dequant_row(&w, r, true, out + r * k);
    return MX_OK;
}

mx_status mx_quantized_read(mx_session *s, mx_var *v, float *out)
{
    mx_arena scratch = {0};
    uint8_t *codes = MX_NEW_N(&scratch, uint8_t, mx_type_count(&v->type));
    mx_status st = mx_var_read(s, v, codes);
    if (!st)
        st = (v->type.dtype == MX_U8 ? read_nf4 : read_rows)(s, v, codes, &scratch, out);
    mx_arena_fini(&scratch);
    return st;
}

/* quant_encode.c - see quant_encode.h. */
#include "store/quant_encode.h"

#include "compile/quantize_weights.h"
#include "ops/cpu/encode.h"
#include <string.h>

/* Some rows of a weight: numbers, codes and scales. */
typedef struct {
    mx_var *v, *scales;
    const mx_quantized_source *from;
    int64_t cols, groups;
    float *x, *scale;
    uint8_t *q;
} rows;

/* Does the checkpoint have these codes, with these scales? */
static bool has_codes(const rows *r)
{
    const mx_quant_tensor *t = r->from->t;
    mx_dtype d = r->v->type.dtype;
    if (r->from->numbers || t->n_matrices != 1 || t->transposed || t->scale_cols != r->groups ||
        t->block_rows != 1 || t->group_of || t->zero || (t->scale && t->scale->dtype == MX_ST_U8))
        return false;
    if (t->kind == MX_QUANT_PACKED)
        return (d == MX_U8 && t->bits == 4) || (d == MX_I8 && t->bits == 8 && t->cols % 4 == 0);
    return t->kind == MX_QUANT_SCALED && ((d == MX_I8 && t->data->dtype == MX_ST_I8) ||
                                          (d == MX_F8_E4M3 && t->data->dtype == MX_ST_F8_E4M3));
}

static mx_status take_codes(const rows *r, int64_t from, int64_t n)
{
    const mx_st_tensor *d = r->from->t->data;
    int64_t each = d->dim[d->ndim - 1];
    MX_TRY(mx_st_read(d, from * each, n * each, d->dtype, r->q, NULL));
    bool raised = r->from->t->kind == MX_QUANT_PACKED && r->from->t->bits == 8; /* by 128 */
    for (int64_t i = 0; raised && i < n * r->cols; i++)
        r->q[i] ^= 0x80;
    MX_TRY(mx_st_read(r->from->t->scale, from * r->groups, n * r->groups, MX_ST_F32, r->scale,
                      NULL));
    for (int64_t i = 0; r->from->t->scale_unit > 0 && i < n * r->groups; i++)
        r->scale[i] *= r->from->t->scale_unit;
    return MX_OK;
}

mx_status mx_quantized_numbers(const mx_quantized_source *from, int64_t first, int64_t n,
                               float *out, mx_st_scan *scan)
{
    if (!from->numbers)
        return mx_quant_read(from->t, first, n, MX_ST_F32, out, scan);
    memcpy(out, from->numbers + first, sizeof *out * (size_t)n);
    return MX_OK;
}

static mx_status make_codes(const rows *r, int64_t from, int64_t n, mx_st_scan *scan)
{
    int64_t group = r->cols / r->groups;
    mx_dtype d = r->v->type.dtype;
    MX_TRY(mx_quantized_numbers(r->from, from * r->cols, n * r->cols, r->x, scan));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n * r->groups; i++)
        r->scale[i] = d == MX_U8 ? mx_encode4(r->x + i * group, group, r->q + i * group / 2)
                                 : mx_encode(d == MX_I8 ? MX_CODE_INT8 : MX_CODE_E4M3,
                                             r->x + i * group, group, r->q + i * group);
    return MX_OK;
}

mx_status mx_quantized_load(mx_session *s, mx_var *v, const mx_quantized_source *from,
                            mx_st_scan *scan)
{
    enum { AT_ONCE = 64 };
    rows r = {.v = v, .scales = mx_quantized_part(s, v, MX_CODE_SCALES), .from = from};
    int64_t n_own = mx_type_count(&v->type);
    if (!n_own) { /* it is another stage's */
        v->written = true;
        return MX_OK;
    }
    MX_ASSERT(n_own == mx_type_count(mx_var_whole(v)), "%s is cut", v->name);
    if (!r.scales)
        return mx_nf4_load(s, v, from, scan);
    int64_t bytes = v->type.dim[v->type.ndim - 1], n_rows = mx_type_count(&v->type) / bytes;
    r.cols = v->type.dtype == MX_U8 ? 2 * bytes : bytes;
    r.groups = r.scales->type.dim[1];
    mx_status st;
    MX_TRY_OUT(st, mx_alloc((void **)&r.x, sizeof *r.x * (size_t)(AT_ONCE * r.cols), v->name));
    MX_TRY_OUT(st, mx_alloc((void **)&r.q, (size_t)(AT_ONCE * r.cols), v->name));
    MX_TRY_OUT(st, mx_alloc((void **)&r.scale, sizeof *r.scale * (size_t)(AT_ONCE * r.groups),
                            v->name));
    for (int64_t at = 0; at < n_rows; at += AT_ONCE) {
        int64_t n = n_rows - at < AT_ONCE ? n_rows - at : AT_ONCE;
        MX_TRY_OUT(st, has_codes(&r) ? take_codes(&r, at, n) : make_codes(&r, at, n, scan));
        MX_TRY_OUT(st, mx_var_write_part(s, v, at * bytes, n * bytes, r.q));
        MX_TRY_OUT(st, mx_var_write_part(s, r.scales, at * r.groups, n * r.groups, r.scale));
    }
    v->written = r.scales->written = true;
out:
    mx_free(r.x);
    mx_free(r.q);
    mx_free(r.scale);
    return st;
}

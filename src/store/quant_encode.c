/* quant_encode.c - see quant_encode.h. */
#include "store/quant_encode.h"

#include "base/fp8.h"
#include "compile/weight_codes.h"
#include <math.h>
#include <string.h>

static float round_up(float s)
{
    uint32_t u = mx_bits_of_float(s);
    return mx_float_of_bits((u + 0xffff) & 0xffff0000u);
}

static float most_of(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

MX_CLONES static void fp8_codes(const float *x, int64_t n, float s, uint8_t *q)
{
    for (int64_t i = 0; i < n; i++)
        q[i] = mx_e4m3_of_float(x[i] / s);
}

MX_CLONES static void int8_codes(const float *x, int64_t n, float s, uint8_t *q)
{
    for (int64_t i = 0; i < n; i++)
        q[i] = (uint8_t)(int8_t)rintf(x[i] / s);
}

float mx_encode8(const float *x, int64_t n, bool is_float, uint8_t *q)
{
    float amax = most_of(x, n), s = 1;
    if (amax > 0)
        s = round_up(amax / (is_float ? MX_E4M3_MAX : 127));
    (is_float ? fp8_codes : int8_codes)(x, n, s, q);
    return s;
}

/* -8 to 7 */
static float nearest4(float x, float scale)
{
    float q = rintf(x / scale);
    return q < -8 ? -8 : q > 7 ? 7 : q;
}

MX_CLONES static float squared_error(const float *x, int64_t n, float s)
{
    float error = 0, factor = 1 / s;
    for (int64_t i = 0; i < n; i++) {
        float q = rintf(x[i] * factor);
        q = q < -8 ? -8 : q > 7 ? 7 : q;
        error += (x[i] - q * s) * (x[i] - q * s);
    }
    return error;
}

static float scale4(const float *x, int64_t n)
{
    float amax = most_of(x, n), best = 1, least = INFINITY;
    for (int i = 0; i < 12 && amax > 0; i++) {
        float s = round_up(amax * (1 - 0.03f * (float)i) / 7.5f);
        float error = squared_error(x, n, s);
        if (error < least) {
            least = error;
            best = s;
        }
    }
    return best;
}

float mx_encode4(const float *x, int64_t n, uint8_t *q)
{
    float s = scale4(x, n);
    for (int64_t k = 0; k < n; k += 2) {
        int low = (int)nearest4(x[k], s) + 8, high = (int)nearest4(x[k + 1], s) + 8;
        q[k / 2] = (uint8_t)(low | high << 4);
    }
    return s;
}

/* --- loading --- */

/* Some rows of a weight: numbers, codes and scales. */
typedef struct {
    mx_var *v, *scales;
    const mx_codes_source *from;
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
        t->block_rows != 1 || (t->scale && t->scale->dtype == MX_ST_U8))
        return false;
    if (t->kind == MX_QUANT_PACKED)
        return d == MX_U8 && t->bits == 4 && !t->zero;
    return t->kind == MX_QUANT_SCALED && ((d == MX_I8 && t->data->dtype == MX_ST_I8) ||
                                          (d == MX_F8_E4M3 && t->data->dtype == MX_ST_F8_E4M3));
}

static mx_status take_codes(const rows *r, int64_t from, int64_t n)
{
    const mx_st_tensor *d = r->from->t->data;
    int64_t each = d->dim[d->ndim - 1];
    MX_TRY(mx_st_read(d, from * each, n * each, d->dtype, r->q, NULL));
    return mx_st_read(r->from->t->scale, from * r->groups, n * r->groups, MX_ST_F32, r->scale,
                      NULL);
}

mx_status mx_codes_numbers(const mx_codes_source *from, int64_t first, int64_t n, float *out,
                           mx_st_scan *scan)
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
    MX_TRY(mx_codes_numbers(r->from, from * r->cols, n * r->cols, r->x, scan));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n * r->groups; i++)
        r->scale[i] = d == MX_U8 ? mx_encode4(r->x + i * group, group, r->q + i * group / 2)
                                 : mx_encode8(r->x + i * group, group, d == MX_F8_E4M3,
                                              r->q + i * group);
    return MX_OK;
}

mx_status mx_codes_load(mx_session *s, mx_var *v, const mx_codes_source *from, mx_st_scan *scan)
{
    enum { AT_ONCE = 64 };
    rows r = {.v = v, .scales = mx_codes_part(s, v, MX_CODE_SCALES), .from = from};
    if (!r.scales)
        return mx_nf4_load(s, v, from, scan);
    MX_ASSERT(!v->box, "%s", v->name);
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

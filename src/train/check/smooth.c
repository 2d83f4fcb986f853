/* smooth.c - see smooth.h. */
#include "train/check/smooth.h"

#include "ops.h"
#include "ops/affine.h"
#include <math.h>

mx_smooth_source mx_smooth_source_of(const mx_uses *u, const mx_node *x, const mx_calibrate_of *of,
                                     mx_arena *a)
{
    const mx_smooth_source none = {0};
    int64_t n = x->type.dim[x->type.ndim - 1];
    const mx_use_list *readers = mx_uses_of(u, x);
    for (int i = 0; i < readers->n; i++)
        if (readers->use[i].input != 0 || !mx_calibrate_weight(readers->use[i].by, of))
            return none;
    if (x->op != &mx_op_mul || readers->n_roots)
        return none;
    const mx_node *last = x->in[1], *w = last;
    double offset = 0;
    if (w->op == &mx_op_affine) {
        const mx_affine_attr *attr = w->attr;
        if (attr->scale != 1)
            return none;
        offset = attr->shift;
        w = w->in[0];
    }
    if (w->op == &mx_op_variable && w->type.ndim == 1 && w->type.dim[0] == n &&
        mx_uses_count(u, last) == 1)
        return (mx_smooth_source){mx_arena_strdup(a, w->name), offset};
    w = mx_calibrate_weight(last, of);
    if (!w || w->type.dim[0] != n || mx_uses_count(u, last) != 1)
        return none;
    return (mx_smooth_source){mx_arena_strdup(a, w->name), 0};
}

static mx_status numbers_of(mx_calibrated *out, mx_session *s, const char *name, float **x,
                            const mx_type **t)
{
    const mx_var *v = mx_session_find(s, name);
    MX_ASSERT(v && v->type.dtype == MX_F32, "%s", name);
    mx_quant_change *c = mx_calibrated_change(out, name);
    *t = &v->type;
    if (!c->numbers) {
        MX_TRY(mx_alloc((void **)&c->numbers, mx_type_bytes(&v->type), name));
        MX_TRY(mx_var_read(s, v, c->numbers));
    }
    *x = c->numbers;
    return MX_OK;
}

/* s: the largest magnitudes of columns, over all matrices that read the tensor. */
static mx_status find_most(mx_calibrated *out, mx_session *s, const mx_smooth_input *x, float *most)
{
    for (int i = 0; i < x->n_weights; i++) {
        float *w;
        const mx_type *t;
        MX_TRY(numbers_of(out, s, x->weight[i], &w, &t));
        for (int64_t r = 0; r < t->dim[0]; r++)
            for (int64_t c = 0; c < x->n; c++)
                most[c] = fmaxf(most[c], fabsf(w[r * x->n + c]));
    }
    return MX_OK;
}

/* A channel that is 0 everywhere, on either side, stays as it is. */
static void factors_of(const mx_smooth_input *x, float *s)
{
    for (int64_t i = 0; i < x->n; i++) {
        double f = pow(x->most[i], x->exponent) / pow(s[i], 1 - x->exponent);
        s[i] = x->most[i] > 0 && s[i] > 0 && isfinite(f) && f > 0 ? (float)f : 1;
    }
}

static mx_status divide_source(mx_calibrated *out, mx_session *s, const mx_smooth_input *x,
                               const float *by)
{
    float *w;
    const mx_type *t;
    MX_TRY(numbers_of(out, s, x->source.name, &w, &t));
    int64_t each = t->ndim == 1 ? 1 : t->dim[1];
    for (int64_t i = 0; i < x->n; i++)
        for (int64_t k = 0; k < each; k++) {
            float *v = &w[i * each + k];
            *v = (float)((*v + x->source.offset) / by[i] - x->source.offset);
        }
    return MX_OK;
}

mx_status mx_smooth(mx_calibrated *out, mx_session *s, const mx_smooth_input *x)
{
    float *by = NULL, *w;
    const mx_type *t;
    mx_status st = MX_OK;
    if (!x->source.name)
        return MX_OK;
    MX_TRY_OUT(st, mx_alloc((void **)&by, sizeof *by * (size_t)x->n, x->source.name));
    MX_TRY_OUT(st, find_most(out, s, x, by));
    factors_of(x, by);
    MX_TRY_OUT(st, divide_source(out, s, x, by));
    for (int i = 0; i < x->n_weights; i++) {
        MX_TRY_OUT(st, numbers_of(out, s, x->weight[i], &w, &t));
        for (int64_t r = 0; r < t->dim[0]; r++)
            for (int64_t c = 0; c < x->n; c++)
                w[r * x->n + c] *= by[c];
        out->n_calibrated++;
    }
out:
    mx_free(by);
    return st;
}

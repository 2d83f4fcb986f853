/* adapter_merge.c - adapters in the host's memory: DoRA's first lengths, merging. */
#include "ops/load.h"
#include "store/adapter_names.h"
#include "store/quant_encode.h"
#include <math.h>

/* One weight's numbers; m NULL: no DoRA. */
typedef struct {
    float *w, *b, *m;
    double scale;
} merging;

static mx_status read_floats(mx_session *s, mx_var *v, mx_arena *a, float **out)
{
    int64_t n = mx_type_count(&v->type);
    if (v->attr.quantized) {
        *out = MX_NEW_N(a, float, v->type.dtype == MX_U8 ? 2 * n : n);
        return mx_quantized_read(s, v, *out);
    }
    mx_tensor t = {MX_NEW_N(a, char, (int64_t)mx_type_bytes(&v->type)), v->type};
    MX_TRY(mx_var_read(s, v, t.data));
    *out = MX_NEW_N(a, float, n);
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = (float)mx_load_f64(&t, i);
    return MX_OK;
}

static mx_status write_floats(mx_session *s, mx_var *v, mx_arena *a, const float *x)
{
    mx_tensor t = {MX_NEW_N(a, char, (int64_t)mx_type_bytes(&v->type)), v->type};
    for (int64_t i = 0; i < mx_type_count(&v->type); i++)
        mx_store_f64(&t, i, x[i]);
    return mx_var_write(s, v, t.data);
}

/* W (out, in) as rows, whatever the order in memory: index of row o, column i. */
static int64_t at(const mx_adapter_parts *p, int64_t o, int64_t i)
{
    return p->w->attr.in_out || p->table ? i * p->out + o : o * p->in + i;
}

static mx_status begin_lengths(mx_session *s, const mx_adapter_parts *p, mx_arena *scratch)
{
    float *w;
    int64_t out = p->out, in = p->in;
    MX_TRY(read_floats(s, p->w, scratch, &w));
    float *m = MX_NEW_N(scratch, float, out);
    for (int64_t o = 0; o < out; o++) {
        double sum = 0;
        for (int64_t i = 0; i < in; i++)
            sum += (double)w[at(p, o, i)] * w[at(p, o, i)];
        m[o] = (float)sqrt(sum);
    }
    return write_floats(s, p->m, scratch, m);
}

mx_status mx_adapter_begin(mx_session *s)
{
    mx_adapter_parts p;
    mx_status st = MX_OK;
    for (int i = 0; i < mx_session_count(s) && !st; i++) {
        mx_arena scratch = {0};
        if (mx_adapter_parts_of(s, i, &p) && p.m && !p.m->written)
            st = begin_lengths(s, &p, &scratch);
        mx_arena_fini(&scratch);
    }
    return st;
}

/* Where expert e's A[k, 0] and B[o, k] are. */
static int64_t a_at(const mx_adapter_parts *p, int64_t e, int64_t k)
{
    return (e * p->rank + k) * p->in;
}

static int64_t b_at(const mx_adapter_parts *p, int64_t e, int64_t o, int64_t k)
{
    if (p->stacked)
        return ((p->from + o) * p->rank + k) * p->experts + e;
    return (e * p->out + o) * p->rank + k;
}

/* Row o of expert e's W + s B A; with m of that length. */
static void merge_row(const mx_adapter_parts *p, int64_t e, int64_t o, const float *a,
                      const merging *f)
{
    double squares = 0;
    float *w = f->w + e * p->out * p->in;
    for (int64_t i = 0; i < p->in; i++) {
        double more = 0;
        for (int64_t k = 0; k < p->rank; k++)
            more += (double)f->b[b_at(p, e, o, k)] * a[a_at(p, e, k) + i];
        float sum = (float)(w[at(p, o, i)] + f->scale * more);
        w[at(p, o, i)] = sum;
        squares += (double)sum * sum;
    }
    for (int64_t i = 0; f->m && i < p->in; i++)
        w[at(p, o, i)] *= (float)(f->m[o] / sqrt(squares));
}

static mx_status merge_one(mx_session *s, const mx_adapter_parts *p, double scale,
                           mx_arena *scratch)
{
    merging f = {.scale = scale};
    float *a;
    int64_t matrices = p->experts ? p->experts : 1;
    MX_TRY(read_floats(s, p->w, scratch, &f.w));
    MX_TRY(read_floats(s, p->a, scratch, &a));
    MX_TRY(read_floats(s, p->b, scratch, &f.b));
    if (p->m)
        MX_TRY(read_floats(s, p->m, scratch, &f.m));
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < matrices * p->out; row++)
        merge_row(p, row / p->out, row % p->out, a, &f);
    return write_floats(s, p->w, scratch, f.w);
}

static mx_status clear(mx_session *s, mx_var *v, mx_arena *scratch)
{
    return write_floats(s, v, scratch, MX_NEW_N(scratch, float, mx_type_count(&v->type)));
}

/* Gate and up may share a B: it becomes zero when both have been merged. */
/* An adapter changes what the embedding looks up; a head that is tied to it stays. */
static mx_status check_tables(mx_session *s)
{
    mx_adapter_parts p;
    for (int i = 0; i < mx_session_count(s); i++)
        if (mx_adapter_parts_of(s, i, &p) && mx_adapter_is_tied(s, mx_session_var(s, i)->name))
            return mx_fail(MX_USAGE, "%s has an adapter, and the head, which is tied to it, has "
                           "none: no merged model is the same. Use the adapter beside the model",
                           p.module);
    return MX_OK;
}

mx_status mx_adapter_merge(mx_session *s, const mx_lora *l)
{
    mx_adapter_parts p;
    mx_status st = check_tables(s);
    for (int i = 0; i < 2 * mx_session_count(s) && !st; i++) {
        mx_arena scratch = {0};
        bool merges = i < mx_session_count(s);
        if (mx_adapter_parts_of(s, i % mx_session_count(s), &p))
            st = merges ? merge_one(s, &p, mx_lora_scale(l, p.module, p.stacked ? p.experts : 0),
                                    &scratch)
                        : clear(s, p.b, &scratch);
        mx_arena_fini(&scratch);
    }
    return st;
}

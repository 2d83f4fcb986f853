/* adapter_merge.c - adapters in the host's memory: DoRA's first lengths, merging. */
#include "dist/comm.h"
#include "ir/placement.h"
#include "ops/load.h"
#include "store/adapter_names.h"
#include "store/quant_encode.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* --- DoRA's first lengths --- */

/* Adds the squares of what this rank has of W to those of its rows, so that all ranks together add
 * each element once. */
static mx_status add_squares(mx_session *s, const mx_adapter_parts *p, int64_t out, int64_t in,
                             double *sum)
{
    const mx_box *box = p->w->attr.quantized ? NULL : p->w->box; /* blocks are not cut */
    mx_arena scratch = {0};
    float *w;
    if (!mx_type_count(&p->w->type) || (p->w->box && !p->w->box->first))
        return MX_OK;
    mx_status st = read_floats(s, p->w, &scratch, &w);
    for (int64_t i = 0, n = box ? mx_type_count(&p->w->type) : out * in; !st && i < n; i++) {
        int64_t k = box ? mx_box_element(box, &p->w->type, i) : i;
        if (k >= 0)
            sum[p->w->attr.in_out ? k % out : k / in] += (double)w[i] * w[i];
    }
    mx_arena_fini(&scratch);
    return st;
}

static mx_status begin_lengths(mx_session *s, const mx_adapter_parts *p, mx_comm *ranks)
{
    enum { AT_ONCE = MX_COMM_SMALL / sizeof(double) };
    mx_arena scratch = {0};
    int64_t out = mx_var_whole(p->m)->dim[0], in = mx_var_whole(p->a)->dim[1];
    double *sum = MX_NEW_N(&scratch, double, out);
    float *m = MX_NEW_N(&scratch, float, out);
    mx_status st = add_squares(s, p, out, in, sum);
    for (int64_t o = 0; ranks && !st && o < out; o += AT_ONCE)
        st = mx_comm_sum_f64(ranks, sum + o, (int)(out - o < AT_ONCE ? out - o : AT_ONCE));
    for (int64_t o = 0; o < out; o++)
        m[o] = (float)sqrt(sum[o]);
    if (!st)
        st = write_floats(s, p->m, &scratch, m);
    mx_arena_fini(&scratch);
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mx_adapter_parts *)a)->module, ((const mx_adapter_parts *)b)->module);
}

mx_status mx_adapter_begin(mx_session *s, mx_comm *ranks)
{
    mx_arena scratch = {0};
    int n = 0;
    mx_adapter_parts *p = MX_NEW_N(&scratch, mx_adapter_parts, mx_session_count(s));
    for (int i = 0; i < mx_session_count(s); i++)
        if (mx_adapter_parts_of(s, i, &p[n]) && p[n].m && !p[n].m->written)
            n++;
    qsort(p, (size_t)n, sizeof *p, by_name); /* stages have them in orders of their own */
    mx_status st = MX_OK;
    for (int i = 0; i < n && !st; i++)
        st = begin_lengths(s, &p[i], ranks);
    mx_arena_fini(&scratch);
    return st;
}

/* --- merging --- */

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

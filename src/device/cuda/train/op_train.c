/* op_train.c - updates, sums, lookups and caches: the graph's ops on the kernels of
 * train_kernels.h. */
#include "device/cuda/core/context.h"
#include "device/cuda/core/kernels.h"
#include "device/cuda/train/train_kernels.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"

#include <string.h>

enum { MX_INPUTS_ACCUMULATE };
enum { MX_INPUTS_CACHE_WRITE };
enum { MX_INPUTS_EMBED };
enum { MX_INPUTS_ADAMW };
enum { MX_INPUTS_SGD };
enum { MX_INPUTS_EMBED_GRAD };

/* Updates of different weights, and sums of different tensors, never depend on each other. */
static int all(const mx_exec_step *s, void *const *state, int n)
{
    (void)s, (void)state;
    return n;
}

/* Of accumulate: what is updated comes first, the gradient second. */
static mx_status prepare_update(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    MX_CUDA_NEEDS(mx_is_f32(&s->call.in[0]) && mx_is_float(&s->call.in[1]),
                  "an update of this dtype");
    return MX_OK;
}

static mx_status prepare_adamw(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    const mx_tensor *in = s->call.in;
    MX_CUDA_NEEDS(mx_is_float(&in[ADAMW_W]) && mx_is_float(&in[ADAMW_G]) &&
                      mx_is_float(&in[ADAMW_M]) &&
                      in[ADAMW_M].type.dtype == in[ADAMW_V].type.dtype &&
                      (!in[ADAMW_COPY].data || in[ADAMW_COPY].type.dtype == MX_BF16),
                  "an update of these dtypes");
    *work = mx_cuda_adamw_bytes(mx_type_count(&in[ADAMW_W].type));
    return MX_OK;
}

static mx_adamw_one update_of(const mx_exec_step *s)
{
    const mx_tensor *in = s->call.in;
    return (mx_adamw_one){.w = in[ADAMW_W].data,
                          .g = in[ADAMW_G].data,
                          .m = in[ADAMW_M].data,
                          .v = in[ADAMW_V].data,
                          .copy = in[ADAMW_COPY].data,
                          .squares = s->call.out[4].data,
                          .n = mx_type_count(&in[ADAMW_W].type),
                          .salt = (uint64_t)mx_attr_int(s, "salt"),
                          .decay = (float)mx_attr_f64(s, "weight_decay"),
                          .w_f32 = mx_is_f32(&in[ADAMW_W]),
                          .g_f32 = mx_is_f32(&in[ADAMW_G]),
                          .moments_f32 = mx_is_f32(&in[ADAMW_M]),
                          .wide = s->call.out[4].type.dtype == MX_F64};
}

static mx_adamw_rule rule_of(const mx_exec_step *s)
{
    return (mx_adamw_rule){.hyper = s->call.in[ADAMW_HYPER].data, .b1 = (float)mx_attr_f64(s, "b1"),
                           .b2 = (float)mx_attr_f64(s, "b2"), .eps = (float)mx_attr_f64(s, "eps"),
                           .eps_root = (float)mx_attr_f64(s, "eps_root")};
}

/* All of a step's updates have the same rule; only decay differs. */
static mx_status adamw_many(mx_cuda *c, const mx_exec_step *s, int n)
{
    enum { AT_ONCE = 64 };
    mx_adamw_one one[AT_ONCE];
    double *partial = s->call.work;
    for (int at = 0; at < n;) {
        mx_adamw_rule rule = rule_of(&s[at]);
        size_t bytes = 0;
        int k = 0;
        for (; k < AT_ONCE && at + k < n; k++) {
            mx_adamw_rule other = rule_of(&s[at + k]);
            if (memcmp(&other, &rule, sizeof rule) != 0)
                break;
            one[k] = update_of(&s[at + k]);
            bytes += mx_cuda_adamw_bytes(one[k].n);
        }
        MX_TRY(mx_cuda_check(mx_cuda_adamw_many(one, k, &rule, partial, c->stream), "adamw"));
        partial += bytes / sizeof *partial;
        at += k;
    }
    return MX_OK;
}

static mx_status adamw(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    return adamw_many(c, s, 1);
}

static mx_status prepare_sgd(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    MX_CUDA_NEEDS(!s->call.in[SGD_COPY].data || s->call.in[SGD_COPY].type.dtype == MX_BF16,
                  "a copy of this dtype");
    (void)c, (void)state, (void)work;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[SGD_W]) && mx_is_float(&s->call.in[SGD_G]),
                  "an update of this dtype");
    return MX_OK;
}

static mx_status sgd(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *in = s->call.in;
    mx_cuda_sgd of = {.w = in[SGD_W].data, .g = in[SGD_G].data, .w_f32 = mx_is_f32(&in[SGD_W]),
                      .g_f32 = mx_is_f32(&in[SGD_G]), .copy = in[SGD_COPY].data,
                      .hyper = in[SGD_HYPER].data, .decay = (float)mx_attr_f64(s, "weight_decay"),
                      .n = mx_type_count(&in[SGD_W].type)};
    return mx_cuda_check(mx_cuda_sgd_one(&of, c->stream), "sgd");
}

static mx_status accumulate(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *in = s->call.in;
    return mx_cuda_check(mx_cuda_accumulate(in[ACCUMULATE_SUM].data, in[ACCUMULATE_G].data,
                                            mx_is_f32(&in[ACCUMULATE_G]), in[ACCUMULATE_FIRST].data,
                                            mx_type_count(&in[ACCUMULATE_SUM].type), c->stream),
                         "accumulate");
}

static mx_status prepare_squares(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    *work = mx_cuda_squares_bytes(mx_type_count(&s->call.in[0].type));
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[0]), "squares of this dtype");
    return MX_OK;
}

static mx_status squares_many(mx_cuda *c, const mx_exec_step *s, int n)
{
    enum { AT_ONCE = 64 };
    mx_squares_one one[AT_ONCE];
    double *partial = s->call.work;
    for (int at = 0; at < n; at += AT_ONCE) {
        size_t bytes = 0;
        int k = 0;
        for (; k < AT_ONCE && at + k < n; k++) {
            const mx_tensor *x = &s[at + k].call.in[0];
            one[k] = (mx_squares_one){x->data, s[at + k].call.out[0].data, mx_type_count(&x->type),
                                      mx_is_f32(x), s[at + k].call.out[0].type.dtype == MX_F64};
            bytes += mx_cuda_squares_bytes(one[k].n);
        }
        MX_TRY(mx_cuda_check(mx_cuda_sum_squares(one, k, partial, c->stream), "sum_squares"));
        partial += bytes / sizeof *partial;
    }
    return MX_OK;
}

static mx_status sum_squares(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    return squares_many(c, s, 1);
}

/* (rows, d) -> (d): the target, leading ones aside, is the end of the input's shape. */
static bool is_sum_of_rows(const mx_type *x, const mx_type *o)
{
    int skip = 0;
    while (skip < o->ndim && o->dim[skip] == 1)
        skip++;
    for (int i = skip; i < o->ndim; i++)
        if (o->dim[i] != x->dim[x->ndim - o->ndim + i])
            return false;
    return true;
}

/* Sums of rows are floats; those that are kept in 16 bits are made in front of the scratch. */
static size_t float_sums_bytes(const mx_type *o)
{
    return mx_gpu_aligned_bytes(o->dtype == MX_F32 ? 0 : mx_type_count(o), sizeof(float));
}

static void add_dim(mx_dims *d, int64_t size, int64_t stride, bool joined)
{
    if (joined) { /* with the dim before, which lies outside of this one */
        d->size[d->n - 1] *= size;
        d->stride[d->n - 1] = stride;
    } else {
        d->size[d->n] = size;
        d->stride[d->n++] = stride;
    }
}

static mx_sum_dims sum_dims_of(const mx_exec_step *s)
{
    const mx_tensor *x = &s->call.in[0], *o = &s->call.out[0];
    mx_sum_dims r = {.out = o->data, .x = x->data, .x_f32 = mx_is_f32(x), .out_f32 = mx_is_f32(o),
                     .outputs = mx_type_count(&o->type)};
    int ndim = x->type.ndim, lead = ndim - o->type.ndim, last = -1;
    int64_t stride = mx_type_count(&x->type);
    for (int i = 0; i < ndim; i++) {
        int64_t size = x->type.dim[i];
        bool sum = i < lead || o->type.dim[i - lead] != size;
        if (size == 1)
            continue;
        stride /= size;
        add_dim(sum ? &r.sum : &r.keep, size, stride, last == sum);
        last = sum;
    }
    for (mx_dims *d = &r.keep; d; d = d == &r.keep ? &r.sum : NULL)
        if (!d->n)
            *d = (mx_dims){.n = 1, .size = {1}};
    r.terms = r.outputs ? mx_type_count(&x->type) / r.outputs : 0;
    return r;
}

static mx_status prepare_sum_to(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    const mx_type *x = &s->call.in[0].type, *o = &s->call.out[0].type;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[0]) && mx_is_float(&s->call.out[0]) &&
                      x->ndim <= MX_SUM_DIMS && mx_type_count(x) > 0,
                  "a sum of this dtype or shape");
    int64_t d = mx_type_count(o);
    if (is_sum_of_rows(x, o))
        *work = mx_gpu_sum_rows_bytes(d, !mx_is_f32(&s->call.out[0]));
    return MX_OK;
}

static mx_status sum_to(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *x = &s->call.in[0], *o = &s->call.out[0];
    int64_t d = mx_type_count(&o->type);
    if (!is_sum_of_rows(&x->type, &o->type)) {
        mx_sum_dims dims = sum_dims_of(s);
        return mx_cuda_check(mx_cuda_sum_dims(&dims, c->stream), "sum_to");
    }
    size_t before = float_sums_bytes(&o->type);
    float *sums = before ? s->call.work : o->data;
    MX_TRY(mx_cuda_check(mx_cuda_sum_rows(sums, x->data, mx_is_f32(x),
                                          mx_type_count(&x->type) / d, d,
                                          (char *)s->call.work + before, c->stream), "sum_to"));
    return before ? mx_cuda_check(mx_cuda_cast_f32_bf16(o->data, sums, d, c->stream), "sum_to")
                  : MX_OK;
}

static mx_status prepare_embed(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_type *t = &s->call.in[EMBED_TABLE].type;
    bool codes = t->dtype == MX_I8 && t->dim[1] % 2 == 0;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[EMBED_TABLE]) || t->dtype == MX_I32 || codes,
                  "a lookup of this dtype");
    return MX_OK;
}

static mx_status embed(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_type *t = &s->call.in[EMBED_TABLE].type;
    return mx_cuda_check(mx_cuda_gather(s->call.out[0].data, s->call.in[EMBED_TABLE].data,
                                        s->call.in[EMBED_IDS].data,
                                        mx_type_count(&s->call.in[EMBED_IDS].type), t->dim[1],
                                        t->dim[0], (int)mx_dtype_bytes(t->dtype), c->stream),
                         "embed");
}

static mx_status prepare_embed_grad(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    MX_CUDA_NEEDS(mx_is_f32(&s->call.out[0]) && mx_is_float(&s->call.in[EMBED_GRAD_DY]),
                  "a lookup of this dtype");
    *work = mx_cuda_embed_scratch_bytes(mx_type_count(&s->call.in[EMBED_GRAD_IDS].type));
    return MX_OK;
}

static mx_status embed_grad(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_type *o = &s->call.out[0].type;
    if (!s->call.in[EMBED_GRAD_BASE].data)
        MX_TRY(mx_cuda_check(cudaMemsetAsync(s->call.out[0].data, 0, mx_type_bytes(o), c->stream),
                             "embed_grad"));
    return mx_cuda_check(mx_cuda_embed_grad(s->call.out[0].data, s->call.in[EMBED_GRAD_DY].data,
                                            mx_is_f32(&s->call.in[EMBED_GRAD_DY]),
                                            s->call.in[EMBED_GRAD_IDS].data,
                                            mx_type_count(&s->call.in[EMBED_GRAD_IDS].type),
                                            o->dim[1], o->dim[0], s->call.work, c->stream),
                         "embed_grad");
}

static int cache_type(mx_dtype d)
{
    return d == MX_F32    ? MX_CACHE_F32
           : d == MX_BF16 ? MX_CACHE_BF16
           : d == MX_I32  ? MX_CACHE_I32
                          : -1;
}

static mx_status prepare_cache(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    int a = cache_type(s->call.in[CACHE_OLD].type.dtype),
        b = cache_type(s->call.in[CACHE_NEW].type.dtype);
    MX_CUDA_NEEDS(a >= 0 && b >= 0 && (a == b || (a == MX_CACHE_BF16 && b == MX_CACHE_F32)),
                  "a cache of these dtypes");
    return MX_OK;
}

static mx_cache_one cache_of(const mx_exec_step *s)
{
    const mx_type *k = &s->call.in[CACHE_OLD].type, *f = &s->call.in[CACHE_NEW].type;
    return (mx_cache_one){.cache = s->call.in[CACHE_OLD].data, .fresh = s->call.in[CACHE_NEW].data,
                          .slots = s->call.in[CACHE_SLOTS].data, .cache_type = cache_type(k->dtype),
                          .fresh_type = cache_type(f->dtype), .batch = k->dim[0], .s = k->dim[1],
                          .t = f->dim[1],
                          .entry = mx_type_count(k) / (k->dim[0] * k->dim[1])};
}

static mx_status cache_write(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    mx_cache_one one = cache_of(s);
    return mx_cuda_check(mx_cuda_cache_write(&one, 1, c->stream), "cache_write");
}

/* Keys and values of a layer: alike, and of different memory. */
static int alike(const mx_exec_step *s, void *const *state, int n)
{
    (void)state;
    mx_cache_one first = cache_of(s);
    int k = 1;
    for (; k < n && k < MX_CACHE_MOST; k++) {
        mx_cache_one o = cache_of(&s[k]);
        if (o.cache_type != first.cache_type || o.fresh_type != first.fresh_type ||
            o.batch != first.batch || o.t != first.t || o.cache == first.cache)
            break;
    }
    return k;
}

static mx_status cache_write_many(mx_cuda *c, const mx_exec_step *s, int n)
{
    mx_cache_one one[MX_CACHE_MOST];
    for (int i = 0; i < n; i++)
        one[i] = cache_of(&s[i]);
    return mx_cuda_check(mx_cuda_cache_write(one, n, c->stream), "cache_write");
}

const mx_cuda_op mx_cuda_op_adamw = {"adamw", prepare_adamw, adamw, NULL, all, adamw_many};
const mx_cuda_op mx_cuda_op_sgd = {"sgd", prepare_sgd, sgd, NULL};
const mx_cuda_op mx_cuda_op_accumulate = {"accumulate", prepare_update, accumulate, NULL};
const mx_cuda_op mx_cuda_op_sum_squares = {"sum_squares", prepare_squares, sum_squares, NULL, all,
                                               squares_many};
const mx_cuda_op mx_cuda_op_sum_to = {"sum_to", prepare_sum_to, sum_to, NULL};
const mx_cuda_op mx_cuda_op_embed = {"embed", prepare_embed, embed, NULL};
const mx_cuda_op mx_cuda_op_embed_grad = {"embed_grad", prepare_embed_grad, embed_grad, NULL};
const mx_cuda_op mx_cuda_op_cache_write = {"cache_write", prepare_cache, cache_write, NULL, alike,
                                               cache_write_many};

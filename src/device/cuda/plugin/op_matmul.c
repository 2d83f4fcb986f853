/* op_matmul.c - contractions through cuBLASLt: one plan per product of the node. A weight times a
 * few vectors, as in decoding, goes through our own kernel, which reads the weight at memory speed.
 */
#include "device/cuda/plugin/context.h"
#include "device/cuda/plugin/kernels.h"
#include "ir/source.h"
#include "ops/matmul.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PRODUCTS = 64 };

typedef struct {
    struct {
        mx_gemm_plan *plan; /* NULL: a few vectors */
        mx_product at;
    } product[MAX_PRODUCTS];
    int n;
    mx_cuda *cuda;
    const mx_exec_step *step;
} matmul;

static mx_gemm_type type_of(mx_dtype d)
{
    return d == MX_BF16 ? MX_GEMM_BF16 : MX_GEMM_F32;
}

/* y (m, n) = x (m, k) w (n, k)^T, everything dense. */
static bool is_few_vectors(const matmul *m, const mx_product *p)
{
    const mx_call *c = &m->step->call;
    return p->m <= 8 && c->n_in == 2 && p->batch == 1 && !p->accumulate && !p->trans_a &&
           p->trans_b && p->lda == p->k && p->ldb == p->k && p->ldc == p->n && p->k % 8 == 0 &&
           p->a == 0 && p->b == 1 && p->a_at == 0 && p->b_at == 0 && p->c_at == 0 &&
           c->in[0].type.dtype == MX_BF16;
}

static mx_status plan_product(void *ctx, const mx_product *p)
{
    matmul *m = ctx;
    MX_CUDA_NEEDS(m->n < MAX_PRODUCTS, "too many products in one contraction");
    if (is_few_vectors(m, p)) {
        m->product[m->n].plan = NULL;
        m->product[m->n++].at = *p;
        return MX_OK;
    }
    mx_gemm_shape s = {.m = p->m, .n = p->n, .k = p->k, .trans_a = p->trans_a,
                       .trans_b = p->trans_b, .lda = p->lda, .ldb = p->ldb, .ldc = p->ldc,
                       .batch = p->batch, .stride_a = p->a_step, .stride_b = p->b_step,
                       .stride_c = p->c_step, .in = type_of(m->step->call.in[0].type.dtype),
                       .out = type_of(m->step->call.out[0].type.dtype), .alpha = 1,
                       .beta = p->accumulate ? 1 : 0, .bias = m->step->call.n_in > 2};
    /* A bias goes with rows of the result as it lies, and once. */
    MX_CUDA_NEEDS(!s.bias || (p->a == 0 && !p->accumulate && p->batch <= 1 &&
                              p->n == mx_type_count(&m->step->call.in[2].type)),
                  "a bias of this product");
    m->product[m->n].at = *p;
    MX_TRY(mx_cuda_plan_gemm(m->cuda, &s, &m->product[m->n].plan));
    m->n++;
    return MX_OK;
}

/* One vector times one weight, which no kernel of the program writes (the kernel reads it before
 * those ahead have ended), and nothing else. */
static const mx_product *single_vector(const matmul *m)
{
    const mx_node *w = m->step->node->in[1];
    if (m->n != 1 || m->product[0].plan || m->product[0].at.m != 1 ||
        strcmp(w->op->name, "variable") != 0)
        return NULL;
    return ((const mx_var_attr *)w->attr)->kind != MX_VAR_CACHE ? &m->product[0].at : NULL;
}

static void *at(const mx_tensor *t, int64_t i)
{
    return (char *)t->data + i * (int64_t)mx_dtype_bytes(t->type.dtype);
}

static const void *vector_of(const mx_exec_step *s, const mx_product *p)
{
    return at(&s->call.in[p->a], p->a_at);
}

/* Neighbours that multiply the same vector: q, k and v; gate and up. */
static int together(const mx_exec_step *s, void *const *state, int n)
{
    const mx_product *first = single_vector(state[0]);
    int k = 1;
    for (; first && k < n && k < MX_GEMV_MOST; k++) {
        const mx_product *p = single_vector(state[k]);
        if (!p || p->k != first->k || vector_of(&s[k], p) != vector_of(s, first))
            break;
    }
    return k;
}

static mx_gemv_one gemv_of(const mx_exec_step *s)
{
    const mx_tensor *out = &s->call.out[0];
    bool f32 = out->type.dtype == MX_F32;
    return (mx_gemv_one){.w = s->call.in[1].data, .y = f32 ? NULL : out->data,
                         .y32 = f32 ? out->data : NULL, .n = mx_type_count(&out->type)};
}

static mx_status launch_many(mx_cuda *c, const mx_exec_step *s, int n)
{
    mx_gemv_one one[MX_GEMV_MOST];
    for (int i = 0; i < n; i++)
        one[i] = gemv_of(&s[i]);
    return mx_cuda_check(mx_cuda_gemv_many(one, n, s->call.in[0].data,
                                           mx_type_count(&s->call.in[0].type), c->stream),
                         "products with one vector");
}

static void drop(mx_cuda *c, void *state)
{
    (void)c;
    matmul *m = state;
    for (int i = 0; m && i < m->n; i++)
        mx_gemm_plan_free(m->product[i].plan);
    mx_free(m);
}

static bool is_supported(mx_dtype d)
{
    return d == MX_F32 || d == MX_BF16;
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work_bytes)
{
    (void)work_bytes;
    const mx_type *a = &s->call.in[0].type, *b = &s->call.in[1].type, *o = &s->call.out[0].type;
    MX_CUDA_NEEDS(a->dtype == b->dtype && is_supported(a->dtype) && is_supported(o->dtype),
                  "products of these dtypes");
    matmul *m = mx_realloc(NULL, sizeof *m);
    *m = (matmul){.cuda = c, .step = s};
    mx_status st = mx_matmul_products(s->node->attr, a, b, o, plan_product, m);
    if (st)
        drop(c, m);
    else
        *state = m;
    return st;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    matmul *m = state;
    if (single_vector(m))
        return launch_many(c, s, 1);
    for (int i = 0; i < m->n; i++) {
        const mx_product *p = &m->product[i].at;
        void *a = at(&s->call.in[p->a], p->a_at), *b = at(&s->call.in[p->b], p->b_at);
        void *y = at(&s->call.out[0], p->c_at);
        bool f32 = s->call.out[0].type.dtype == MX_F32;
        if (m->product[i].plan && s->call.n_in > 2)
            MX_TRY(mx_gemm_plan_bias(m->product[i].plan, s->call.in[2].data));
        if (m->product[i].plan)
            MX_TRY(mx_gemm_plan_launch(m->product[i].plan, a, b, y, c->gemm_work, c->stream));
        else
            MX_TRY(mx_cuda_check(mx_cuda_gemv(f32 ? NULL : y, f32 ? y : NULL, a, b, (int)p->m, p->n,
                                              p->k, c->stream), "a product of few rows"));
    }
    return MX_OK;
}

const mx_cuda_op mx_cuda_op_matmul = {"matmul", prepare, launch, drop, together, launch_many};

/* op_matmul.c - contractions through cuBLASLt: one plan per GEMM of the step. Our own kernels are
 * for a weight times a few vectors, as in decoding, which read the weight at memory speed, and for
 * large GEMMs with a GELU epilogue, where cuBLASLt's own is slower.
 */
#include "device/cuda/core/context.h"
#include "device/cuda/gemm/gemm_gelu.h"
#include "device/cuda/core/kernels.h"
#include "device/cuda/gemm/op_epilogue.h"

enum { MAX_GEMMS = 64 };

typedef struct {
    struct {
        mx_gemm_plan *plan; /* NULL: a kernel of ours */
        mx_matmul_gemm at;
    } gemm[MAX_GEMMS];
    int n;
    mx_cuda *cuda;
    const mx_exec_step *step;
    mx_gemm_epilogue epilogue;
    bool residual; /* the result is a copy of it first, and added to */
} matmul;

/* What each list of epilogues is to cuBLASLt. Others have entries of their own. */
static const struct {
    mx_epilogues list;
    mx_gemm_epilogue epilogue;
    bool residual;
} known[] = {{{{MX_EPILOGUE_NONE}}, MX_GEMM_PLAIN, false},
             {{{MX_EPILOGUE_RESIDUAL}}, MX_GEMM_PLAIN, true},
             {{{MX_EPILOGUE_BIAS}}, MX_GEMM_BIAS, false},
             {{{MX_EPILOGUE_BIAS, MX_EPILOGUE_GELU}}, MX_GEMM_GELU, false}};
enum { N_KNOWN = sizeof known / sizeof *known };

static int find_known(const mx_exec_step *s)
{
    int i = 0;
    while (i < N_KNOWN && !mx_cuda_has_epilogues(s, known[i].list))
        i++;
    return i;
}

static bool takes(const mx_exec_step *s)
{
    return find_known(s) < N_KNOWN;
}

static mx_gemm_type type_of(mx_dtype d)
{
    MX_ASSERT(d == MX_BF16 || d == MX_F32, "GEMMs of %s", mx_dtype_name(d));
    return d == MX_BF16 ? MX_GEMM_BF16 : MX_GEMM_F32;
}

/* y (m, n) = x (m, k) w (n, k)^T, everything dense. */
static bool is_few_vectors(const matmul *m, const mx_matmul_gemm *p)
{
    const mx_call *c = &m->step->call;
    return p->m <= 8 && m->epilogue == MX_GEMM_PLAIN && !m->residual &&
           mx_matmul_gemm_is_dense(p) && p->trans_b && p->k % 8 == 0 &&
           c->in[MX_MATMUL_A].type.dtype == MX_BF16;
}

static bool is_own_gelu(const matmul *m, const mx_matmul_gemm *p)
{
    mx_epilogue_gemm g = mx_epilogue_gemm_of(p);
    return m->epilogue == MX_GEMM_GELU && mx_matmul_gemm_is_dense(p) &&
           !mx_is_f32(&m->step->call.in[MX_MATMUL_A]) && !mx_is_f32(&m->step->call.out[0]) &&
           mx_gemm_gelu_is_possible(&g);
}

static mx_status launch_gelu(const mx_matmul_gemm *p, const mx_exec_step *s, cudaStream_t stream)
{
    mx_epilogue_gemm g = mx_epilogue_gemm_of(p);
    const mx_tensor *in = s->call.in, *out = s->call.out;
    mx_gemm_gelu_args a = {.a = in[MX_MATMUL_A].data, .b = in[MX_MATMUL_B].data,
                           .bias = in[MX_MATMUL_REST].data, .y = out[0].data, .u = out[1].data};
    return mx_cuda_check(mx_gemm_gelu_launch(&g, &a, stream), "a GEMM with GELU");
}

static mx_status plan_gemm(void *ctx, const mx_matmul_gemm *p)
{
    matmul *m = ctx;
    MX_CUDA_NEEDS(m->n < MAX_GEMMS, "too many GEMMs in one contraction");
    if (is_few_vectors(m, p) || is_own_gelu(m, p)) {
        m->gemm[m->n].plan = NULL;
        m->gemm[m->n++].at = *p;
        return MX_OK;
    }
    mx_gemm_shape s = {.m = p->m, .n = p->n, .k = p->k, .trans_a = p->trans_a,
                       .trans_b = p->trans_b, .lda = p->lda, .ldb = p->ldb, .ldc = p->ldc,
                       .batch = p->batch, .stride_a = p->a_step, .stride_b = p->b_step,
                       .stride_c = p->c_step,
                       .in = type_of(m->step->call.in[MX_MATMUL_A].type.dtype),
                       .out = type_of(m->step->call.out[0].type.dtype), .alpha = 1,
                       .beta = p->accumulate || m->residual ? 1 : 0, .epilogue = m->epilogue};
    /* An epilogue goes with rows of the result as it lies, and once. */
    const mx_type *out = &m->step->call.out[0].type;
    MX_CUDA_NEEDS(!s.epilogue || (p->a == 0 && !p->accumulate && p->batch <= 1 &&
                                  p->n == out->dim[out->ndim - 1]),
                  "this epilogue of a GEMM of this shape");
    m->gemm[m->n].at = *p;
    MX_TRY(mx_cuda_plan_gemm(m->cuda, &s, &m->gemm[m->n].plan));
    m->n++;
    return MX_OK;
}

/* One vector times one weight, which no kernel of the program writes (the kernel reads it before
 * those ahead have ended), and nothing else. */
static const mx_matmul_gemm *single_vector(const matmul *m)
{
    bool single = m->n == 1 && !m->gemm[0].plan && m->gemm[0].at.m == 1 &&
                  m->epilogue == MX_GEMM_PLAIN;
    return single && m->step->call.in[MX_MATMUL_B].fixed ? &m->gemm[0].at : NULL;
}

static void *at(const mx_tensor *t, int64_t i)
{
    return (char *)t->data + i * (int64_t)mx_dtype_bytes(t->type.dtype);
}

static const void *vector_of(const mx_exec_step *s, const mx_matmul_gemm *p)
{
    return at(&s->call.in[p->a], p->a_at);
}

/* Neighbours that multiply the same vector: q, k and v; gate and up. */
static int together(const mx_exec_step *s, void *const *state, int n)
{
    const mx_matmul_gemm *first = single_vector(state[0]);
    int k = 1;
    for (; first && k < n && k < MX_GEMV_MOST; k++) {
        const mx_matmul_gemm *p = single_vector(state[k]);
        if (!p || p->k != first->k || vector_of(&s[k], p) != vector_of(s, first))
            break;
    }
    return k;
}

static mx_gemv_one gemv_of(const mx_exec_step *s)
{
    const mx_tensor *out = &s->call.out[0];
    bool f32 = out->type.dtype == MX_F32;
    return (mx_gemv_one){.w = s->call.in[MX_MATMUL_B].data, .y = f32 ? NULL : out->data,
                         .y32 = f32 ? out->data : NULL, .n = mx_type_count(&out->type)};
}

static mx_status launch_many(mx_cuda *c, const mx_exec_step *s, int n)
{
    mx_gemv_one one[MX_GEMV_MOST];
    for (int i = 0; i < n; i++)
        one[i] = gemv_of(&s[i]);
    return mx_cuda_check(mx_cuda_gemv_many(one, n, s->call.in[MX_MATMUL_A].data,
                                           mx_type_count(&s->call.in[MX_MATMUL_A].type), c->stream),
                         "GEMMs with one vector");
}

static void drop(mx_cuda *c, void *state)
{
    (void)c;
    matmul *m = state;
    for (int i = 0; m && i < m->n; i++)
        mx_gemm_plan_free(m->gemm[i].plan);
    mx_free(m);
}

/* What the epilogue reads beside the sums, and what it writes beside the result. */
static mx_status give_epilogue(matmul *m, mx_gemm_plan *plan, const mx_exec_step *s)
{
    return mx_gemm_plan_epilogue(
        plan, m->epilogue == MX_GEMM_PLAIN ? NULL : s->call.in[MX_MATMUL_REST].data,
        m->epilogue == MX_GEMM_GELU ? s->call.out[1].data : NULL);
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work_bytes)
{
    (void)work_bytes;
    const mx_type *a = &s->call.in[MX_MATMUL_A].type, *b = &s->call.in[MX_MATMUL_B].type,
                  *o = &s->call.out[0].type;
    MX_CUDA_NEEDS(a->dtype == b->dtype && mx_is_float(&s->call.in[MX_MATMUL_A]) &&
                      mx_is_float(&s->call.out[0]), "GEMMs of these dtypes");
    MX_CUDA_NEEDS(s->call.n_in < 3 || s->call.in[MX_MATMUL_REST].type.dtype == o->dtype,
                  "an epilogue that reads another dtype");
    int k = find_known(s);
    matmul *m = mx_realloc(NULL, sizeof *m);
    *m = (matmul){.cuda = c, .step = s, .epilogue = known[k].epilogue,
                  .residual = known[k].residual};
    mx_status st = mx_matmul_gemms(s->call.attr, a, b, o, plan_gemm, m);
    if (st)
        drop(c, m);
    else
        *state = m;
    return st;
}

static mx_status launch_gemm(mx_cuda *c, const mx_exec_step *s, matmul *m, int i)
{
    const mx_matmul_gemm *p = &m->gemm[i].at;
    mx_gemm_plan *plan = m->gemm[i].plan;
    void *a = at(&s->call.in[p->a], p->a_at), *b = at(&s->call.in[p->b], p->b_at);
    void *y = at(&s->call.out[0], p->c_at);
    if (plan) {
        MX_TRY(give_epilogue(m, plan, s));
        return mx_gemm_plan_launch(plan, a, b, y, c->gemm_work, c->stream);
    }
    if (m->epilogue == MX_GEMM_GELU)
        return launch_gelu(p, s, c->stream);
    bool f32 = mx_is_f32(&s->call.out[0]);
    return mx_cuda_check(mx_cuda_gemv(f32 ? NULL : y, f32 ? y : NULL, a, b, (int)p->m, p->n, p->k,
                                      c->stream), "a GEMM of few rows");
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    matmul *m = state;
    if (single_vector(m))
        return launch_many(c, s, 1);
    if (m->residual)
        MX_TRY(mx_cuda_check(cudaMemcpyAsync(s->call.out[0].data, s->call.in[MX_MATMUL_REST].data,
                                             mx_type_bytes(&s->call.out[0].type),
                                             cudaMemcpyDeviceToDevice, c->stream),
                             "a residual"));
    for (int i = 0; i < m->n; i++)
        MX_TRY(launch_gemm(c, s, m, i));
    return MX_OK;
}

const mx_cuda_op mx_cuda_op_matmul = {"matmul", prepare,  launch,      drop,
                                      together, launch_many, .takes = takes};

/* op_xent_slice.c - the projection on a slice of the vocabulary with what it contributes to the
 * cross-entropy, a chunk of rows at a time.
 *
 * Per chunk: logits = x w^T, in float32, into scratch; forward one kernel makes lse and the label's
 * logit of them, backward one makes their gradient, of which dx = dlogits w and dw += dlogits^T x.
 */
#include "device/cuda/train/op_xent_chunks.h"
#include "device/cuda/train/xent_slice.h"
#include "ops/gpu_work.h"
#include "ops/linear_xent.h"

enum { X = MX_SLICE_X, W, LABELS, LSE, DLSE, DPICKED };

typedef struct {
    mx_xent_chunks of; /* first */
    mx_gpu_xent shape;
    int64_t ld;
    float scale;
} slice;

static mx_status plan_chunk(mx_cuda *c, const mx_xent_chunks *of, mx_xent_plans *p, int64_t rows)
{
    const slice *x = (const slice *)of;
    mx_gemm_type t = x->shape.f32 ? MX_GEMM_F32 : MX_GEMM_BF16;
    int64_t d = x->shape.d, vocab = x->shape.vocab;
    mx_gemm_shape project = {.m = rows, .n = vocab, .k = d, .trans_b = true, .ldc = x->ld, .in = t,
                             .out = MX_GEMM_F32, .alpha = x->scale};
    MX_TRY(mx_cuda_plan_gemm(c, &project, &p->project));
    if (!x->shape.grad)
        return MX_OK;
    mx_gemm_shape input = {.m = rows, .n = d, .k = vocab, .lda = x->ld, .in = t, .out = t,
                           .alpha = x->scale};
    MX_TRY(mx_cuda_plan_gemm(c, &input, &p->input));
    mx_gemm_shape dw = {.m = vocab, .n = d, .k = rows, .trans_a = true, .lda = x->ld, .in = t,
                        .out = MX_GEMM_F32, .alpha = x->scale};
    return mx_xent_plan_dw(c, dw, p);
}

static mx_status prepare_any(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work,
                             bool grad)
{
    const mx_xent_slice *a = s->call.attr;
    const mx_type *tx = &s->call.in[X].type, *tw = &s->call.in[W].type;
    MX_CUDA_NEEDS(tx->dtype == tw->dtype && mx_is_float(&s->call.in[X]),
                  "cross-entropy of these dtypes");
    slice *x = mx_realloc(NULL, sizeof *x);
    *x = (slice){.shape = mx_gpu_slice_of(tx->dim[0], tx->dim[1],
                                          mx_xent_vocab_here(a, tw->dim[0])),
                 .scale = (float)a->scale};
    x->shape.f32 = tx->dtype == MX_F32;
    x->shape.grad = grad;
    x->of.rows = x->shape.rows;
    x->of.chunk = mx_gpu_xent_chunk(&x->shape, c->work_bytes);
    x->ld = mx_gpu_xent_width(&x->shape);
    *work = mx_gpu_xent_bytes(&x->shape, x->of.chunk);
    return mx_xent_chunks_plan(c, &x->of, x->shape.vocab ? plan_chunk : NULL, state);
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    return prepare_any(c, s, state, work, false);
}

static mx_status prepare_grad(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    return prepare_any(c, s, state, work, true);
}

/* The logits of rows [from, from + n), in the workspace. */
static mx_status project(mx_cuda *c, const mx_exec_step *s, const slice *x, int64_t from, int64_t n,
                         mx_xent_slice_rows *out)
{
    const mx_xent_slice *a = s->call.attr;
    *out = (mx_xent_slice_rows){.rows = n, .vocab = x->shape.vocab, .ld = x->ld, .first = a->first,
                                .softcap = (float)a->softcap, .logits = s->call.work,
                                .labels = mx_cuda_row(&s->call.in[LABELS], from, 1)};
    if (!x->shape.vocab)
        return MX_OK;
    return mx_gemm_plan_launch(x->of.plans[n < x->of.chunk].project,
                               mx_cuda_row(&s->call.in[X], from, x->shape.d), s->call.in[W].data,
                               s->call.work, c->gemm_work, c->stream);
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const slice *x = state;
    mx_xent_slice_rows r;
    for (int64_t from = 0; from < x->shape.rows; from += x->of.chunk) {
        int64_t n = x->shape.rows - from < x->of.chunk ? x->shape.rows - from : x->of.chunk;
        MX_TRY(project(c, s, x, from, n, &r));
        MX_TRY(mx_cuda_check(mx_cuda_xent_slice(&r, mx_cuda_row(&s->call.out[0], from, 1),
                                                mx_cuda_row(&s->call.out[1], from, 1), c->stream),
                             "cross-entropy"));
    }
    return MX_OK;
}

static mx_status launch_grad(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const slice *x = state;
    const mx_tensor *in = s->call.in;
    mx_xent_slice_rows r;
    char *apart = (char *)s->call.work + mx_gpu_xent_part(&x->shape, x->of.chunk, 0);
    void *d = x->shape.f32 ? s->call.work : apart;
    MX_TRY(mx_xent_clear(c, &s->call.out[0], &s->call.out[1], x->shape.vocab));
    for (int64_t from = 0; from < x->shape.rows && x->shape.vocab; from += x->of.chunk) {
        int64_t n = x->shape.rows - from < x->of.chunk ? x->shape.rows - from : x->of.chunk;
        const mx_xent_plans *p = &x->of.plans[n < x->of.chunk];
        mx_xent_slice_back g = {.lse = mx_cuda_row(&in[LSE], from, 1),
                                .dlse = mx_cuda_row(&in[DLSE], from, 1),
                                .dpicked = mx_cuda_row(&in[DPICKED], from, 1), .out = d,
                                .f32 = x->shape.f32};
        MX_TRY(project(c, s, x, from, n, &r));
        MX_TRY(mx_cuda_check(mx_cuda_xent_slice_grad(&r, &g, c->stream), "cross-entropy"));
        MX_TRY(mx_gemm_plan_launch(p->input, d, in[W].data,
                                   mx_cuda_row(&s->call.out[0], from, x->shape.d), c->gemm_work,
                                   c->stream));
        MX_TRY(mx_gemm_plan_launch(p->dw[from > 0], d, mx_cuda_row(&in[X], from, x->shape.d),
                                   s->call.out[1].data, c->gemm_work, c->stream));
    }
    return MX_OK;
}

const mx_cuda_op mx_cuda_op_linear_xent_slice = {"linear_xent_slice", prepare, launch,
                                                 mx_xent_chunks_drop};
const mx_cuda_op mx_cuda_op_linear_xent_slice_grad = {"linear_xent_slice_grad", prepare_grad,
                                                      launch_grad, mx_xent_chunks_drop};

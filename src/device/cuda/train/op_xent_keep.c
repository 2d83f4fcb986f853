/* op_xent_keep.c - a slice of the vocabulary whose logits are kept for the gradient: no projection
 * is computed twice (xent_keep.h). Where the GEMM of xent_exp.h cannot be had, logits go through
 * float32, a chunk of rows at a time.
 */
#include "device/cuda/train/op_xent_chunks.h"
#include "device/cuda/train/xent_keep.h"
#include "ops/gpu_work.h"
#include "ops/linear_xent.h"

enum { X = MX_SLICE_X, W, LABELS, LSE, DLSE, DPICKED, PICKED, ABOUT, KEPT };

typedef struct {
    mx_xent_chunks of; /* first */
    int64_t d, vocab, ld, first;
    float scale, softcap;
    bool f32, exponentials;
} slice;

static mx_status describe(const mx_exec_step *s, int64_t ld, slice *x)
{
    const mx_xent_slice *a = s->call.attr;
    const mx_type *tx = &s->call.in[X].type, *tw = &s->call.in[W].type;
    MX_CUDA_NEEDS(tx->dtype == tw->dtype && mx_is_float(&s->call.in[X]),
                  "cross-entropy of these dtypes");
    *x = (slice){.of.rows = tx->dim[0], .d = tx->dim[1], .ld = ld, .first = a->first,
                 .vocab = mx_xent_vocab_here(a, tw->dim[0]), .scale = (float)a->scale,
                 .softcap = (float)a->softcap, .f32 = tx->dtype == MX_F32};
    return MX_OK;
}

static mx_gpu_xent plain_shape(const slice *x)
{
    mx_gpu_xent s = mx_gpu_slice_of(x->of.rows, x->d, x->vocab);
    s.f32 = x->f32;
    return s;
}

static mx_xent_exp exp_shape(const slice *x)
{
    return (mx_xent_exp){.rows = x->of.rows, .d = x->d, .vocab = x->vocab, .ld = x->ld,
                         .scale = x->scale, .softcap = x->softcap};
}

static mx_status plan_project(mx_cuda *c, const mx_xent_chunks *of, mx_xent_plans *p,
                              int64_t rows)
{
    const slice *x = (const slice *)of;
    mx_gpu_xent plain = plain_shape(x);
    mx_gemm_shape g = {.m = rows, .n = x->vocab, .k = x->d, .trans_b = true,
                       .ldc = mx_gpu_xent_width(&plain), .in = x->f32 ? MX_GEMM_F32 : MX_GEMM_BF16,
                       .out = MX_GEMM_F32, .alpha = x->scale};
    return mx_cuda_plan_gemm(c, &g, &p->project);
}

static mx_status plan_back(mx_cuda *c, const mx_xent_chunks *of, mx_xent_plans *p,
                           int64_t rows)
{
    const slice *x = (const slice *)of;
    mx_gemm_type t = x->f32 ? MX_GEMM_F32 : MX_GEMM_BF16;
    mx_gemm_shape input = {.m = rows, .n = x->d, .k = x->vocab, .lda = x->ld, .in = t,
                           .out = MX_GEMM_F32, .alpha = x->scale};
    MX_TRY(mx_cuda_plan_gemm(c, &input, &p->input));
    mx_gemm_shape dw = {.m = x->vocab, .n = x->d, .k = rows, .trans_a = true, .lda = x->ld, .in = t,
                        .out = MX_GEMM_F32, .alpha = x->scale};
    return mx_xent_plan_dw(c, dw, p);
}

/* --- keep --- */

static mx_status prepare_keep(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    slice shape;
    MX_TRY(describe(s, s->call.out[3].type.dim[1], &shape));
    slice *x = mx_realloc(NULL, sizeof *x);
    *x = shape;
    mx_xent_exp whole = exp_shape(x);
    mx_gpu_xent plain = plain_shape(x);
    x->exponentials = !x->f32 && x->vocab && x->of.rows && mx_cuda_xent_exp_is_possible(&whole);
    x->of.chunk = mx_gpu_xent_chunk(&plain, c->work_bytes);
    *work = x->exponentials ? mx_gpu_keep_bytes(x->of.rows, x->vocab)
                            : mx_gpu_xent_bytes(&plain, x->of.chunk);
    return mx_xent_chunks_plan(c, &x->of, x->vocab && !x->exponentials ? plan_project : NULL,
                               state);
}

static mx_status launch_exponentials(mx_cuda *c, const mx_exec_step *s, const slice *x,
                                     const mx_xent_keep_rows *r)
{
    mx_xent_exp shape = exp_shape(x);
    mx_xent_exp_args a = {.x = s->call.in[X].data, .w = s->call.in[W].data,
                          .e = s->call.out[3].data};
    int32_t *labels;
    void **part[MX_GPU_KEEP_PARTS] = {(void **)&a.parts, (void **)&labels,   (void **)&a.about,
                                      (void **)&a.own,   (void **)&a.marked, (void **)&a.bands};
    char *work = s->call.work;
    for (int i = 0; i < MX_GPU_KEEP_PARTS; i++) {
        *part[i] = work;
        work += mx_gpu_keep_part(x->of.rows, x->vocab, i);
    }
    return mx_cuda_check(mx_cuda_xent_keep(&shape, &a, labels, r, c->stream), "cross-entropy");
}

static mx_status launch_keep(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const slice *x = state;
    const mx_tensor *out = s->call.out;
    mx_gpu_xent plain = plain_shape(x);
    mx_xent_keep_rows r = {.labels = s->call.in[LABELS].data, .first = x->first,
                           .lse = out[0].data, .picked = out[1].data, .about = out[2].data};
    if (x->exponentials)
        return launch_exponentials(c, s, x, &r);
    for (int64_t from = 0; from < x->of.rows; from += x->of.chunk) {
        int64_t n = x->of.rows - from < x->of.chunk ? x->of.rows - from : x->of.chunk;
        if (x->vocab)
            MX_TRY(mx_gemm_plan_launch(x->of.plans[n < x->of.chunk].project,
                                       mx_cuda_row(&s->call.in[X], from, x->d), s->call.in[W].data,
                                       s->call.work, c->gemm_work, c->stream));
        mx_xent_keep_rows now = {r.labels + from, r.first, r.lse + from, r.picked + from,
                                 r.about + from};
        mx_xent_plain_keep k = {.rows = n, .vocab = x->vocab, .ld = x->ld,
                                .ld_logits = mx_gpu_xent_width(&plain), .logits = s->call.work,
                                .softcap = x->softcap, .kept = mx_cuda_row(&out[3], from, x->ld),
                                .f32 = x->f32};
        MX_TRY(mx_cuda_check(mx_cuda_xent_plain_keep(&k, &now, c->stream), "cross-entropy"));
    }
    return MX_OK;
}

/* --- back --- */

static mx_status prepare_back(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    slice shape;
    MX_TRY(describe(s, s->call.in[KEPT].type.dim[1], &shape));
    slice *x = mx_realloc(NULL, sizeof *x);
    *x = shape;
    x->of.chunk = mx_gpu_back_chunk(x->of.rows, x->d, c->work_bytes);
    *work = mx_gpu_back_bytes(x->of.rows, x->d, x->of.chunk);
    return mx_xent_chunks_plan(c, &x->of, x->vocab ? plan_back : NULL, state);
}

static mx_status back_chunk(mx_cuda *c, const mx_exec_step *s, const slice *x, int64_t from,
                            int64_t n)
{
    const mx_tensor *in = s->call.in;
    const mx_xent_plans *p = &x->of.plans[n < x->of.chunk];
    float *factor = s->call.work;
    void *sums = (char *)s->call.work + mx_gpu_aligned_bytes(x->of.rows, 4);
    void *kept = mx_cuda_row(&s->call.out[2], from, x->ld),
         *dx = mx_cuda_row(&s->call.out[0], from, x->d);
    mx_xent_back b = {.rows = n, .d = x->d, .vocab = x->vocab, .ld = x->ld, .first = x->first,
                      .softcap = x->softcap, .labels = mx_cuda_row(&in[LABELS], from, 1),
                      .lse = mx_cuda_row(&in[LSE], from, 1),
                      .dlse = mx_cuda_row(&in[DLSE], from, 1),
                      .dpicked = mx_cuda_row(&in[DPICKED], from, 1),
                      .picked = mx_cuda_row(&in[PICKED], from, 1),
                      .about = mx_cuda_row(&in[ABOUT], from, 1), .kept = kept,
                      .x = mx_cuda_row(&in[X], from, x->d), .scaled = sums, .factor = factor + from,
                      .f32 = x->f32};
    MX_TRY(mx_cuda_check(mx_cuda_xent_back(&b, c->stream), "cross-entropy"));
    MX_TRY(mx_gemm_plan_launch(p->dw[from > 0], kept, sums, s->call.out[1].data, c->gemm_work,
                               c->stream));
    MX_TRY(mx_gemm_plan_launch(p->input, kept, in[W].data, sums, c->gemm_work, c->stream));
    return mx_cuda_check(mx_cuda_xent_back_dx(&b, dx, sums, c->stream), "cross-entropy");
}

static mx_status launch_back(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const slice *x = state;
    MX_TRY(mx_xent_clear(c, &s->call.out[0], &s->call.out[1], x->vocab));
    for (int64_t from = 0; from < x->of.rows && x->vocab; from += x->of.chunk) {
        int64_t left = x->of.rows - from;
        MX_TRY(back_chunk(c, s, x, from, left < x->of.chunk ? left : x->of.chunk));
    }
    return MX_OK;
}

const mx_cuda_op mx_cuda_op_linear_xent_slice_keep = {"linear_xent_slice_keep", prepare_keep,
                                                      launch_keep, mx_xent_chunks_drop};
const mx_cuda_op mx_cuda_op_linear_xent_slice_back = {"linear_xent_slice_back", prepare_back,
                                                      launch_back, mx_xent_chunks_drop};

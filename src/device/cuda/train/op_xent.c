/* op_xent.c - the vocabulary projection with its cross-entropy, a chunk of rows at a time.
 *
 * Per chunk: logits = x w^T into scratch; one kernel turns them into losses and, in place, into
 * their own gradient; dx = dlogits w; dw += dlogits^T x in float32. The logits of the batch are
 * never there at once. bf16 logits go through the fast kernel, float32 ones (checking) through the
 * plain one.
 *
 * On Hopper gradients in bf16 go another way (xent_exp.h): the GEMM itself writes exponentials,
 * which differ from the logits' gradient by a factor for each row, and no pass over the logits is
 * left. x times the factor makes dw, and dx is multiplied by it.
 *
 * A vocabulary that is no multiple of 8 (GPT-2: 50,257) would send dw to slow kernels that load one
 * element at a time. So dw is made in two GEMMs: all rows up to a multiple of 8, and 8 rows
 * beginning there, of which the last have no logits and are zero, into scratch.
 */
#include "device/cuda/core/kernels.h"
#include "device/cuda/train/op_xent_chunks.h"
#include "device/cuda/train/train_kernels.h"
#include "device/cuda/train/xent_exp.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"
#include "ops/linear_xent.h"

#include <string.h>

enum { MX_INPUTS_LINEAR_XENT };
enum { ROW_STEP = MX_GPU_XENT_STEP }; /* elements in 16 bytes, what fast kernels load at a time */

typedef struct {
    mx_xent_plans plans[2]; /* [0] full chunks, [1] the last one */
    int64_t rows, chunk, d, vocab, ld;
    int64_t whole; /* rows of dw's first GEMM; what is left goes through scratch */
    int64_t wide; /* columns of the GEMMs with w: ld where w may be read beyond its end */
    float *ones;   /* one float, 1: the kernel's gradient scale */
    bool f32, grad;
    bool exponentials; /* see above */
    int loss_out, lse_out, dx_out, dw_out; /* -1: not asked for */
} xent;

static void drop(mx_cuda *c, void *state)
{
    (void)c;
    xent *x = state;
    if (x) {
        mx_xent_plans_free(x->plans);
        cudaFree(x->ones);
    }
    mx_free(x);
}

static mx_status plan_chunk(mx_cuda *c, const xent *x, mx_xent_plans *p, int64_t rows, float scale)
{
    mx_gemm_type t = x->f32 ? MX_GEMM_F32 : MX_GEMM_BF16;
    mx_gemm_shape project = {.m = rows, .n = x->wide, .k = x->d, .trans_b = true, .ldc = x->ld,
                             .in = t, .out = t, .alpha = scale};
    if (!x->exponentials)
        MX_TRY(mx_cuda_plan_gemm(c, &project, &p->project));
    if (!x->grad)
        return MX_OK;
    float back = x->f32 ? 1 : scale; /* the plain kernel has the scale in its gradient already */
    mx_gemm_shape input = {.m = rows, .n = x->d, .k = x->wide, .lda = x->ld, .in = t,
                           .out = x->exponentials ? MX_GEMM_F32 : t, .alpha = back};
    MX_TRY(mx_cuda_plan_gemm(c, &input, &p->input));
    int kinds = x->dw_out < 0 ? 0 : x->chunk == x->rows ? 1 : 2; /* with one, nothing is added */
    for (int add = 0; add < kinds; add++) {
        mx_gemm_shape dw = {.m = x->whole, .n = x->d, .k = rows, .trans_a = true, .lda = x->ld,
                            .in = t, .out = MX_GEMM_F32, .alpha = back, .beta = (float)add};
        MX_TRY(mx_cuda_plan_gemm(c, &dw, &p->dw[add]));
        dw.m = ROW_STEP;
        if (x->whole < x->vocab)
            MX_TRY(mx_cuda_plan_gemm(c, &dw, &p->dw_rest[add]));
    }
    return MX_OK;
}

static size_t logits_bytes(const xent *x)
{
    return (size_t)x->chunk * (size_t)x->ld * (x->f32 ? 4 : 2);
}

static size_t rest_bytes(const xent *x)
{
    return x->whole < x->vocab ? sizeof(float) * ROW_STEP * (size_t)x->d : 0;
}

static mx_gpu_xent planned(const xent *x)
{
    return (mx_gpu_xent){.rows = x->rows, .d = x->d, .vocab = x->vocab, .f32 = x->f32,
                         .grad = x->grad};
}

/* Where a chunk's arrays lie. x times its factors is no longer needed when dx's sums are made. */
static void lay_out(const xent *x, void *work, mx_xent_exp_args *a, float **sums)
{
    mx_gpu_xent shape = planned(x);
    void **part[MX_GPU_XENT_PARTS] = {(void **)&a->e,      (void **)sums,      (void **)&a->parts,
                                      (void **)&a->factor, (void **)&a->own,   (void **)&a->about,
                                      (void **)&a->marked, (void **)&a->bands};
    for (int i = 0; i < MX_GPU_XENT_PARTS; i++) {
        *part[i] = work;
        work = (char *)work + mx_gpu_xent_part(&shape, x->chunk, i);
    }
    a->scaled = (mx_bf16 *)*sums;
}

static mx_xent_exp shape_of(const xent *x, const mx_xent_attr *a, int64_t rows)
{
    return (mx_xent_exp){.rows = rows, .d = x->d, .vocab = x->vocab, .ld = x->ld,
                         .scale = (float)a->scale, .softcap = (float)a->softcap,
                         .z_loss = (float)a->z_loss};
}

typedef enum { LOSS, GRADIENT, BOTH } asked;

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work, asked what)
{
    const mx_xent_attr *a = s->call.attr;
    const mx_type *tx = &s->call.in[X].type, *tw = &s->call.in[W].type;
    xent *x = mx_realloc(NULL, sizeof *x);
    *x = (xent){.rows = tx->dim[0], .d = tx->dim[1], .vocab = tw->dim[0],
                .f32 = tx->dtype == MX_F32, .loss_out = -1, .lse_out = -1, .dx_out = -1,
                .dw_out = -1};
    x->grad = what != LOSS;
    if (what != GRADIENT)
        x->loss_out = 0, x->lse_out = 1;
    if (x->grad)
        x->dx_out = what == BOTH ? 2 : 0;
    if (x->grad && !a->w_fixed)
        x->dw_out = what == BOTH ? 3 : 1;
    x->ld = (x->vocab + ROW_STEP - 1) / ROW_STEP * ROW_STEP;
    /* Variables are padded to a multiple of 8 rows (device traits); the kernel zeroes the
     * gradient of the extra columns. */
    size_t rows_bytes = (size_t)(x->ld * x->d) * mx_dtype_bytes(tw->dtype);
    x->wide = s->call.in[W].readable_bytes >= rows_bytes && !x->f32 ? x->ld : x->vocab;
    x->whole = x->f32 || x->vocab < ROW_STEP ? x->vocab : x->vocab / ROW_STEP * ROW_STEP;
    mx_gpu_xent shape = planned(x);
    x->chunk = mx_gpu_xent_chunk(&shape, c->work_bytes);
    mx_xent_exp whole = shape_of(x, a, x->chunk);
    x->exponentials = x->grad && !x->f32 && mx_cuda_xent_exp_is_possible(&whole);
    mx_status st = MX_OK;
    if (tx->dtype != tw->dtype || (tx->dtype != MX_F32 && tx->dtype != MX_BF16))
        st = mx_fail(MX_DEVICE, "cross-entropy of these dtypes");
    if (!st)
        st = plan_chunk(c, x, &x->plans[0], x->chunk, (float)a->scale);
    if (!st && x->rows % x->chunk)
        st = plan_chunk(c, x, &x->plans[1], x->rows % x->chunk, (float)a->scale);
    if (!st)
        st = mx_cuda_check(cudaMalloc((void **)&x->ones, 4), "cross-entropy");
    if (!st)
        st = mx_cuda_check(cudaMemcpyAsync(x->ones, &(float){1}, 4, cudaMemcpyHostToDevice,
                                           c->stream), "cross-entropy");
    *work = mx_gpu_xent_bytes(&shape, x->chunk);
    if (st)
        drop(c, x);
    else
        *state = x;
    return st;
}

static float *rows_out(const mx_exec_step *s, const xent *x, bool lse)
{
    float *spare = (float *)((char *)s->call.work + logits_bytes(x) + rest_bytes(x));
    int out = lse ? x->lse_out : x->loss_out;
    return out >= 0 ? (float *)s->call.out[out].data : spare + (lse ? x->rows : 0);
}

static mx_status softmax(mx_cuda *c, const mx_exec_step *s, const xent *x, int64_t from, int64_t n)
{
    const mx_xent_attr *a = s->call.attr;
    float *loss = rows_out(s, x, false) + from, *lse = rows_out(s, x, true) + from;
    const int32_t *labels = (const int32_t *)s->call.in[LABELS].data + from;
    const float *dloss = x->grad ? (const float *)s->call.in[DLOSS].data + from : NULL;
    if (x->f32)
        return mx_cuda_check(
            mx_cuda_xent_plain(&(mx_xent_plain){n, x->vocab, x->ld, (float)a->softcap,
                                                (float)a->z_loss, (float)a->scale},
                               s->call.work, labels, dloss, loss, lse, c->stream), "cross-entropy");
    mx_xent_shape shape = {.rows = n, .vocab = x->vocab, .ld = x->ld, .softcap = (float)a->softcap,
                           .z_loss = (float)a->z_loss, .gradient = x->grad, .plain_loss = true};
    return mx_cuda_check(
        mx_cuda_xent(&shape, s->call.work, labels, dloss, x->ones, loss, lse, c->stream),
        "cross-entropy");
}

/* dw from the chunk's logit gradients, which lie in the workspace. */
static mx_status add_dw(mx_cuda *c, const mx_exec_step *s, const xent *x, const mx_xent_plans *p,
                        bool add, const void *in)
{
    if (x->dw_out < 0)
        return MX_OK;
    float *dw = s->call.out[x->dw_out].data;
    float *rest = (float *)((char *)s->call.work + logits_bytes(x));
    MX_TRY(mx_gemm_plan_launch(p->dw[add], s->call.work, in, dw, c->gemm_work, c->stream));
    if (x->whole == x->vocab)
        return MX_OK;
    MX_TRY(mx_gemm_plan_launch(p->dw_rest[add], (mx_bf16 *)s->call.work + x->whole, in, rest,
                               c->gemm_work, c->stream));
    size_t bytes = sizeof(float) * (size_t)((x->vocab - x->whole) * x->d);
    return mx_cuda_check(cudaMemcpyAsync(dw + x->whole * x->d, rest, bytes,
                                         cudaMemcpyDeviceToDevice, c->stream), "cross-entropy");
}

static mx_status launch_exponentials(mx_cuda *c, const mx_exec_step *s, const xent *x,
                                     const mx_xent_plans *p, int64_t from, int64_t n)
{
    mx_xent_exp shape = shape_of(x, s->call.attr, n);
    mx_xent_exp_args a = {.x = mx_cuda_row(&s->call.in[X], from, x->d), .w = s->call.in[W].data,
                          .labels = (const int32_t *)s->call.in[LABELS].data + from,
                          .weight = (const float *)s->call.in[DLOSS].data + from,
                          .loss = rows_out(s, x, false) + from, .lse = rows_out(s, x, true) + from};
    float *sums;
    lay_out(x, s->call.work, &a, &sums);
    MX_TRY(mx_cuda_check(mx_cuda_xent_exp(&shape, &a, c->stream), "cross-entropy"));
    MX_TRY(add_dw(c, s, x, p, from > 0, a.scaled));
    MX_TRY(mx_gemm_plan_launch(p->input, s->call.work, s->call.in[W].data, sums, c->gemm_work,
                               c->stream));
    return mx_cuda_check(mx_cuda_xent_scale(mx_cuda_row(&s->call.out[x->dx_out], from, x->d), sums,
                                            a.factor, n, x->d, c->stream),
                         "cross-entropy");
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const xent *x = state;
    for (int64_t from = 0; from < x->rows; from += x->chunk) {
        int64_t n = x->rows - from < x->chunk ? x->rows - from : x->chunk;
        const mx_xent_plans *p = &x->plans[n < x->chunk];
        const void *in = mx_cuda_row(&s->call.in[X], from, x->d);
        if (x->exponentials) {
            MX_TRY(launch_exponentials(c, s, x, p, from, n));
            continue;
        }
        MX_TRY(mx_gemm_plan_launch(p->project, in, s->call.in[W].data, s->call.work, c->gemm_work,
                                   c->stream));
        MX_TRY(softmax(c, s, x, from, n));
        if (!x->grad)
            continue;
        MX_TRY(mx_gemm_plan_launch(p->input, s->call.work, s->call.in[W].data,
                                   mx_cuda_row(&s->call.out[x->dx_out], from, x->d), c->gemm_work,
                                   c->stream));
        MX_TRY(add_dw(c, s, x, p, from > 0, in));
    }
    return MX_OK;
}

static mx_status prepare_loss(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    return prepare(c, s, state, work, LOSS);
}

static mx_status prepare_gradient(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    return prepare(c, s, state, work, GRADIENT);
}

static mx_status prepare_both(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    return prepare(c, s, state, work, BOTH);
}

const mx_cuda_op mx_cuda_op_linear_xent = {"linear_xent", prepare_loss, launch, drop};
const mx_cuda_op mx_cuda_op_linear_xent_grad = {"linear_xent_grad", prepare_gradient, launch, drop};
const mx_cuda_op mx_cuda_op_linear_xent_train = {"linear_xent_train", prepare_both, launch, drop};

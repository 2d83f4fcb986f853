/* op_xent.c - the vocabulary projection with its cross-entropy, a chunk of rows at a time.
 *
 * Per chunk: logits = x w^T into scratch; one kernel turns them into losses and, in place, into
 * their own gradient; dx = dlogits w; dw += dlogits^T x in float32. The logits of the batch are
 * never there at once. bf16 logits go through the fast kernel, float32 ones (checking) through the
 * plain one.
 */
#include "device/cuda/plugin/context.h"
#include "device/cuda/plugin/kernels.h"
#include "device/cuda/plugin/train_kernels.h"

#include <string.h>

enum { X, W, LABELS, DLOSS };
/* Logits at once, as a share of the device's memory: products over few rows leave half of the chip
 * idle in their last wave. */
enum { CHUNK_SHARE = 16 };

typedef struct {
    double scale, softcap, z_loss;
} xent_attr; /* as src/ops/linear_xent.c lays it out */

typedef struct {
    mx_gemm_plan *project[2], *input[2], *first[2], *add[2]; /* [0] full chunks, [1] the last one */
    int64_t rows, chunk, d, vocab, ld;
    int64_t wide; /* columns of the products with w: ld where w may be read beyond its end */
    float *ones;   /* one float, 1: the kernel's gradient scale */
    bool f32, train, grad;
    int loss_out, lse_out, dx_out, dw_out; /* -1: not asked for */
} xent;

static void drop(mx_cuda *c, void *state)
{
    (void)c;
    xent *x = state;
    for (int i = 0; x && i < 2; i++) {
        mx_gemm_plan_free(x->project[i]);
        mx_gemm_plan_free(x->input[i]);
        mx_gemm_plan_free(x->first[i]);
        mx_gemm_plan_free(x->add[i]);
    }
    if (x)
        cudaFree(x->ones);
    mx_free(x);
}

static mx_status plan_chunk(mx_cuda *c, xent *x, int which, int64_t rows, float scale)
{
    mx_gemm_type t = x->f32 ? MX_GEMM_F32 : MX_GEMM_BF16;
    mx_gemm_shape project = {.m = rows, .n = x->wide, .k = x->d, .trans_b = true, .ldc = x->ld,
                             .in = t, .out = t, .alpha = scale};
    MX_TRY(mx_cuda_plan_gemm(c, &project, &x->project[which]));
    if (!x->grad)
        return MX_OK;
    float back = x->f32 ? 1 : scale; /* the plain kernel has the scale in its gradient already */
    mx_gemm_shape input = {.m = rows, .n = x->d, .k = x->wide, .lda = x->ld, .in = t, .out = t,
                           .alpha = back};
    mx_gemm_shape weight = {.m = x->vocab, .n = x->d, .k = rows, .trans_a = true, .lda = x->ld,
                            .in = t, .out = MX_GEMM_F32, .alpha = back};
    MX_TRY(mx_cuda_plan_gemm(c, &input, &x->input[which]));
    MX_TRY(mx_cuda_plan_gemm(c, &weight, &x->first[which]));
    if (x->chunk == x->rows)
        return MX_OK; /* one chunk: nothing is added */
    weight.beta = 1;
    return mx_cuda_plan_gemm(c, &weight, &x->add[which]);
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    const xent_attr *a = s->node->attr;
    const mx_type *tx = &s->call.in[X].type, *tw = &s->call.in[W].type;
    const char *op = s->node->op->name;
    xent *x = mx_realloc(NULL, sizeof *x);
    *x = (xent){.rows = tx->dim[0], .d = tx->dim[1], .vocab = tw->dim[0],
                .f32 = tx->dtype == MX_F32, .loss_out = -1, .lse_out = -1, .dx_out = -1,
                .dw_out = -1};
    x->train = strcmp(op, "linear_xent_train") == 0;
    x->grad = x->train || strcmp(op, "linear_xent_grad") == 0;
    if (!x->grad || x->train)
        x->loss_out = 0, x->lse_out = 1;
    if (x->grad)
        x->dx_out = x->train ? 2 : 0, x->dw_out = x->train ? 3 : 1;
    x->ld = (x->vocab + 7) / 8 * 8;
    /* Variables have room for rows up to a multiple of 8, zeroed; the kernel zeroes the gradient of
     * the extra columns. */
    bool roomy = strcmp(s->node->in[W]->op->name, "variable") == 0 && !x->f32;
    x->wide = roomy ? x->ld : x->vocab;
    size_t item = x->f32 ? 4 : 2;
    x->chunk = (int64_t)(c->memory_bytes / CHUNK_SHARE / ((size_t)x->ld * item)) / 128 * 128;
    x->chunk = x->chunk < 128 ? 128 : x->chunk;
    x->chunk = x->chunk > x->rows ? x->rows : x->chunk;
    mx_status st = MX_OK;
    if (tx->dtype != tw->dtype || (tx->dtype != MX_F32 && tx->dtype != MX_BF16))
        st = mx_fail(MX_DEVICE, "cross-entropy of these dtypes");
    if (!st)
        st = plan_chunk(c, x, 0, x->chunk, (float)a->scale);
    if (!st && x->rows % x->chunk)
        st = plan_chunk(c, x, 1, x->rows % x->chunk, (float)a->scale);
    if (!st)
        st = mx_cuda_check(cudaMalloc((void **)&x->ones, 4), "cross-entropy");
    if (!st)
        st = mx_cuda_check(cudaMemcpy(x->ones, &(float){1}, 4, cudaMemcpyHostToDevice),
                           "cross-entropy");
    /* Losses and lse of a program that does not want them still need a place. */
    *work = (size_t)x->chunk * (size_t)x->ld * item + 2 * sizeof(float) * (size_t)x->rows;
    if (st)
        drop(c, x);
    else
        *state = x;
    return st;
}

static void *at(const mx_tensor *t, int64_t row, int64_t width)
{
    return (char *)t->data + (size_t)(row * width) * mx_dtype_bytes(t->type.dtype);
}

static mx_status softmax(mx_cuda *c, const mx_exec_step *s, const xent *x, int64_t from, int64_t n)
{
    const xent_attr *a = s->node->attr;
    size_t item = x->f32 ? 4 : 2;
    float *spare = (float *)((char *)c->work + (size_t)x->chunk * (size_t)x->ld * item);
    float *loss = (x->loss_out >= 0 ? (float *)s->call.out[x->loss_out].data : spare) + from;
    float *lse = (x->lse_out >= 0 ? (float *)s->call.out[x->lse_out].data : spare + x->rows) + from;
    const int32_t *labels = (const int32_t *)s->call.in[LABELS].data + from;
    const float *dloss = x->grad ? (const float *)s->call.in[DLOSS].data + from : NULL;
    if (x->f32)
        return mx_cuda_check(
            mx_cuda_xent_plain(&(mx_xent_plain){n, x->vocab, x->ld, (float)a->softcap,
                                                (float)a->z_loss, (float)a->scale},
                               c->work, labels, dloss, loss, lse, c->stream), "cross-entropy");
    mx_xent_shape shape = {.rows = n, .vocab = x->vocab, .ld = x->ld, .softcap = (float)a->softcap,
                           .z_loss = (float)a->z_loss, .gradient = x->grad, .plain_loss = true};
    return mx_cuda_check(
        mx_cuda_xent(&shape, c->work, labels, dloss, x->ones, loss, lse, c->stream),
        "cross-entropy");
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const xent *x = state;
    for (int64_t from = 0; from < x->rows; from += x->chunk) {
        int64_t n = x->rows - from < x->chunk ? x->rows - from : x->chunk;
        int which = n == x->chunk ? 0 : 1;
        MX_TRY(mx_gemm_plan_launch(x->project[which], at(&s->call.in[X], from, x->d),
                                   s->call.in[W].data, c->work, c->gemm_work, c->stream));
        MX_TRY(softmax(c, s, x, from, n));
        if (!x->grad)
            continue;
        MX_TRY(mx_gemm_plan_launch(x->input[which], c->work, s->call.in[W].data,
                                   at(&s->call.out[x->dx_out], from, x->d), c->gemm_work,
                                   c->stream));
        MX_TRY(mx_gemm_plan_launch(from ? x->add[which] : x->first[which], c->work,
                                   at(&s->call.in[X], from, x->d), s->call.out[x->dw_out].data,
                                   c->gemm_work, c->stream));
    }
    return MX_OK;
}

const mx_cuda_op mx_cuda_op_linear_xent = {"linear_xent", prepare, launch, drop};
const mx_cuda_op mx_cuda_op_linear_xent_grad = {"linear_xent_grad", prepare, launch, drop};
const mx_cuda_op mx_cuda_op_linear_xent_train = {"linear_xent_train", prepare, launch, drop};

/* sdpa_cudnn.c - the composite graphs that cuDNN recognises as flash attention. See sdpa_cudnn.h.
 *
 * cuDNN 9.19's single "SDPA" operation knows no causal mask, so attention is spelled out and
 * cuDNN's runtime fusion engine matches the whole:
 *
 *   forward    S = Q K^T * scale -> [cap] -> [mask] -> m = max S, e = exp(S - m), l = sum e
 *              stats = m + log l;  P = e / l;  O = P V
 *   backward   D = sum_d dO O;  P = exp([mask](S - stats));  dV = P^T dO
 *              dS = (dO V^T - D) P * scale;  dK = dS^T Q;  dQ = dS K
 *
 * The order of operations, the types of virtual tensors and which of them are real (D, and dQ's f32
 * accumulator) are what the engine expects; changing them makes the match fail. With grouped heads
 * dK and dV are formed per query head and summed by a reduction to fewer heads.
 */
#include "device/cuda/attention/sdpa_cudnn.h"

#include "base/arena.h"
#include "device/cuda/attention/dnn_graph.h"
#include <math.h>

struct mx_sdpa {
    mx_cuda_libs *libs;
    cudnnHandle_t handle;
    mx_sdpa_plan *plans; /* a list: layers of one shape share one plan */
};

/* Tensor ids in the graph; 0 where the plan has none. */
struct mx_sdpa_plan {
    mx_dnn_graph g;
    mx_sdpa_shape shape;
    int q, k, v, o, stats, sinks, len_q, len_kv;
    int dout, dq, dk, dv, dsinks, row_dot, dq_sum;
    size_t row_dot_bytes, dq_sum_bytes; /* our part of the workspace, after cuDNN's */
    mx_sdpa *sdpa;
    mx_sdpa_plan *next;
    int users;
};

mx_status mx_sdpa_open(mx_sdpa **out, mx_cuda_libs *libs)
{
    *out = NULL;
    MX_TRY(mx_cuda_libs_open_dnn(libs));
    mx_sdpa *s;
    MX_TRY(mx_alloc((void **)&s, sizeof *s, "the cuDNN handle"));
    *s = (mx_sdpa){.libs = libs};
    cudnnStatus_t e = libs->dnn.cudnnCreate(&s->handle);
    if (e != CUDNN_STATUS_SUCCESS) {
        mx_free(s);
        return mx_fail(MX_DEVICE,
                       "cuDNN could not start: %s; check that its libraries come from one "
                       "version (`maxc doctor`)",
                       libs->dnn.cudnnGetErrorString(e));
    }
    *out = s;
    return MX_OK;
}

void mx_sdpa_close(mx_sdpa *s)
{
    if (!s)
        return;
    s->libs->dnn.cudnnDestroy(s->handle);
    mx_free(s);
}

/* --- the pieces both graphs share --- */

static cudnnDataType_t io_type(const mx_sdpa_plan *p)
{
    return p->shape.f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/* (B, H, S, D), or with `transposed` (B, H, D, S) over the same memory. */
static int io_tensor(mx_sdpa_plan *p, int64_t h, int64_t s, int64_t d, mx_sdpa_stride st,
                     bool transposed)
{
    mx_dnn_shape t = {{p->shape.batch, h, s, d}, {st.batch, st.head, st.seq, 1}};
    if (transposed)
        t = (mx_dnn_shape){{p->shape.batch, h, d, s}, {st.batch, st.head, 1, st.seq}};
    return mx_dnn_tensor_in(&p->g, io_type(p), &t);
}

static mx_dnn_shape scores_shape(const mx_sdpa_plan *p)
{
    int64_t b = p->shape.batch, h = p->shape.heads_q, m = p->shape.seq_q, n = p->shape.seq_kv;
    return (mx_dnn_shape){{b, h, m, n}, {h * m * n, m * n, n, 1}};
}

static mx_dnn_shape rows_shape(const mx_sdpa_plan *p)
{
    int64_t b = p->shape.batch, h = p->shape.heads_q, m = p->shape.seq_q;
    return (mx_dnn_shape){{b, h, m, 1}, {h * m, m, 1, 1}};
}

static void lengths_tensors(mx_sdpa_plan *p)
{
    if (!p->shape.padded)
        return;
    mx_dnn_shape t = {{p->shape.batch, 1, 1, 1}, {1, 1, 1, 1}};
    p->len_q = mx_dnn_tensor_in(&p->g, CUDNN_DATA_INT32, &t);
    p->len_kv = mx_dnn_tensor_in(&p->g, CUDNN_DATA_INT32, &t);
}

static void inputs(mx_sdpa_plan *p, bool transpose_v)
{
    const mx_sdpa_shape *s = &p->shape;
    lengths_tensors(p);
    p->q = io_tensor(p, s->heads_q, s->seq_q, s->dim_qk, s->q, false);
    p->k = io_tensor(p, s->heads_kv, s->seq_kv, s->dim_qk, s->k, true);
    p->v = io_tensor(p, s->heads_kv, s->seq_kv, s->dim_v, s->v, transpose_v);
    p->o = io_tensor(p, s->heads_q, s->seq_q, s->dim_v, s->o, false);
    if (s->sinks) {
        mx_dnn_shape t = {{1, s->heads_q, 1, 1}, {s->heads_q, 1, 1, 1}};
        p->sinks = mx_dnn_tensor_in(&p->g, CUDNN_DATA_FLOAT, &t);
    }
}

static int mask_padding(mx_sdpa_plan *p, int x)
{
    mx_dnn_graph *g = &p->g;
    int row = mx_dnn_index(g, x, 2, CUDNN_DATA_INT32);
    int col = mx_dnn_index(g, x, 3, CUDNN_DATA_INT32);
    int in_rows = mx_dnn_binary_typed(g, CUDNN_POINTWISE_CMP_LT, row, p->len_q, CUDNN_DATA_BOOLEAN,
                                      CUDNN_DATA_BOOLEAN);
    int in_cols = mx_dnn_binary_typed(g, CUDNN_POINTWISE_CMP_LT, col, p->len_kv, CUDNN_DATA_BOOLEAN,
                                      CUDNN_DATA_BOOLEAN);
    int both = mx_dnn_binary_typed(g, CUDNN_POINTWISE_LOGICAL_AND, in_rows, in_cols,
                                   CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    return mx_dnn_select(g, x, mx_dnn_scalar_f32(g, -INFINITY), both);
}

/* key <= query, then query < key + window; each its own select, as the engine expects. */
static int mask_diagonals(mx_sdpa_plan *p, int x)
{
    mx_dnn_graph *g = &p->g;
    if (p->shape.causal) {
        int row = mx_dnn_index(g, x, 2, CUDNN_DATA_FLOAT),
            col = mx_dnn_index(g, x, 3, CUDNN_DATA_FLOAT);
        int keep = mx_dnn_binary_typed(g, CUDNN_POINTWISE_CMP_GE, row, col, CUDNN_DATA_BOOLEAN,
                                       CUDNN_DATA_BOOLEAN);
        x = mx_dnn_select(g, x, mx_dnn_scalar_f32(g, -INFINITY), keep);
    }
    if (p->shape.window) {
        int row = mx_dnn_index(g, x, 2, CUDNN_DATA_FLOAT),
            col = mx_dnn_index(g, x, 3, CUDNN_DATA_FLOAT);
        int width = mx_dnn_scalar_f32(g, (float)p->shape.window);
        int reach = mx_dnn_binary_typed(g, CUDNN_POINTWISE_ADD, col, width, CUDNN_DATA_FLOAT,
                                        CUDNN_DATA_FLOAT);
        int keep = mx_dnn_binary_typed(g, CUDNN_POINTWISE_CMP_GT, reach, row, CUDNN_DATA_BOOLEAN,
                                       CUDNN_DATA_BOOLEAN);
        x = mx_dnn_select(g, x, mx_dnn_scalar_f32(g, -INFINITY), keep);
    }
    return x;
}

/* scale Q K^T, capped; `inner` gets S / cap, which tanh's gradient needs. */
static int scores(mx_sdpa_plan *p, int scale, int cap, int *inner)
{
    mx_dnn_graph *g = &p->g;
    mx_dnn_shape shape = scores_shape(p);
    int s = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &shape);
    mx_dnn_matmul(g, p->q, p->k, s, (mx_dnn_override){.m = p->len_q, .n = p->len_kv},
                  p->len_q && !p->shape.backward);
    s = mx_dnn_binary(g, CUDNN_POINTWISE_MUL, s, scale, 0);
    if (cap) {
        *inner = mx_dnn_binary(g, CUDNN_POINTWISE_DIV, s, cap, 0);
        s = mx_dnn_binary(g, CUDNN_POINTWISE_MUL,
                          mx_dnn_unary(g, CUDNN_POINTWISE_TANH_FWD, *inner, 0), cap, 0);
    }
    return p->len_q ? mask_padding(p, s) : s;
}

/* --- forward --- */

static void build_forward(mx_sdpa_plan *p)
{
    mx_dnn_graph *g = &p->g;
    inputs(p, false);
    mx_dnn_shape rows = rows_shape(p), full = scores_shape(p);
    int inner = 0;
    int cap = p->shape.softcap > 0 ? mx_dnn_scalar_f32(g, p->shape.softcap) : 0;
    int s = mask_diagonals(p, scores(p, mx_dnn_scalar_f32(g, p->shape.scale), cap, &inner));
    int m = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &rows);
    mx_dnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, m);
    if (p->sinks)
        m = mx_dnn_binary(g, CUDNN_POINTWISE_MAX, m, p->sinks, 0);
    int e = mx_dnn_unary(g, CUDNN_POINTWISE_EXP, mx_dnn_binary(g, CUDNN_POINTWISE_SUB, s, m, 0), 0);
    int l = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &rows);
    if (p->sinks) {
        int extra = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &rows);
        mx_dnn_binary(g, CUDNN_POINTWISE_SUB, p->sinks, m, extra);
        extra = mx_dnn_unary(g, CUDNN_POINTWISE_EXP, extra, 0);
        int keys = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &rows);
        mx_dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, keys);
        mx_dnn_binary(g, CUDNN_POINTWISE_ADD, keys, extra, l);
    } else {
        mx_dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, l);
    }
    p->stats = p->shape.stats ? mx_dnn_tensor_in(g, CUDNN_DATA_FLOAT, &rows)
                              : mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &rows);
    mx_dnn_binary(g, CUDNN_POINTWISE_ADD, m, mx_dnn_unary(g, CUDNN_POINTWISE_LOG, l, 0), p->stats);
    int prob = mx_dnn_virtual(g, io_type(p), &full);
    mx_dnn_binary(g, CUDNN_POINTWISE_DIV, e, l, prob);
    mx_dnn_matmul(g, prob, p->v, p->o, (mx_dnn_override){.m = p->len_q, .k = p->len_kv}, false);
}

/* --- backward --- */

static mx_dnn_shape transposed_scores_shape(const mx_sdpa_plan *p)
{
    int64_t b = p->shape.batch, h = p->shape.heads_q, m = p->shape.seq_q, n = p->shape.seq_kv;
    return (mx_dnn_shape){{b, h, n, m}, {h * m * n, m * n, 1, n}};
}

/* D = sum over d of dO O, kept in workspace, times one: the slot where dropout's scale would stand.
 */
static int build_row_dot(mx_sdpa_plan *p)
{
    mx_dnn_graph *g = &p->g;
    const mx_sdpa_shape *s = &p->shape;
    int64_t b = s->batch, h = s->heads_q, m = s->seq_q, d = s->dim_v;
    mx_dnn_shape prod = {{b, h, m, d}, {h * m * d, m * d, h * d, 1}}, rows = rows_shape(p);
    int x = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &prod);
    mx_dnn_binary(g, CUDNN_POINTWISE_MUL, p->dout, p->o, x);
    int dot = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &rows);
    mx_dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, x, dot);
    if (p->sinks) { /* dsink = - sum over rows of exp(sink - stats) D; the sign is the caller's */
        int w = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &rows);
        mx_dnn_binary(g, CUDNN_POINTWISE_SUB, p->sinks, p->stats, w);
        w = mx_dnn_unary(g, CUDNN_POINTWISE_EXP, w, 0);
        mx_dnn_shape t = {{1, h, 1, 1}, {h, 1, 1, 1}};
        p->dsinks = mx_dnn_tensor_in(g, CUDNN_DATA_FLOAT, &t);
        mx_dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, mx_dnn_binary(g, CUDNN_POINTWISE_MUL, w, dot, 0),
                      p->dsinks);
    }
    p->row_dot = mx_dnn_tensor_in(g, CUDNN_DATA_FLOAT, &rows);
    p->row_dot_bytes = (size_t)(b * h * m) * sizeof(float);
    return mx_dnn_binary(g, CUDNN_POINTWISE_MUL, dot, mx_dnn_scalar_f32(g, 1), p->row_dot);
}

/* out (B, Hkv, Skv, D) = transposed (B, Hq, Skv, Sq) . x (B, Hq, Sq, D), summed over each group of
 * heads. */
static void transposed_matmul(mx_sdpa_plan *p, int weights, int x, int out, int64_t d)
{
    mx_dnn_graph *g = &p->g;
    const mx_sdpa_shape *s = &p->shape;
    mx_dnn_shape transposed = transposed_scores_shape(p);
    int wt = mx_dnn_virtual(g, io_type(p), &transposed);
    mx_dnn_reshape(g, weights, wt);
    mx_dnn_override over = {.m = p->len_kv, .k = p->len_q};
    if (s->heads_q == s->heads_kv) {
        mx_dnn_matmul(g, wt, x, out, over, false);
        return;
    }
    int64_t h = s->heads_q, n = s->seq_kv;
    mx_dnn_shape per_head = {{s->batch, h, n, d}, {h * n * d, n * d, d, 1}};
    int y = mx_dnn_virtual(g, io_type(p), &per_head);
    mx_dnn_matmul(g, wt, x, y, over, false);
    mx_dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, y, out);
}

static void build_dq(mx_sdpa_plan *p, int ds)
{
    mx_dnn_graph *g = &p->g;
    const mx_sdpa_shape *s = &p->shape;
    mx_dnn_shape plain = {{s->batch, s->heads_kv, s->seq_kv, s->dim_qk},
                          {s->k.batch, s->k.head, s->k.seq, 1}};
    int keys = mx_dnn_virtual(g, io_type(p), &plain);
    mx_dnn_reshape(g, p->k, keys);
    mx_dnn_override over = {.m = p->len_q, .k = p->len_kv};
    if (s->deterministic) {
        mx_dnn_matmul(g, ds, keys, p->dq, over, false);
        return;
    }
    int64_t h = s->heads_q, m = s->seq_q, d = s->dim_qk;
    mx_dnn_shape acc = {{s->batch, h, m, d}, {h * m * d, m * d, d, 1}};
    p->dq_sum_bytes = (size_t)(s->batch * h * m * d) * sizeof(float);
    p->dq_sum = mx_dnn_tensor_in(g, CUDNN_DATA_FLOAT, &acc);
    mx_dnn_matmul(g, ds, keys, p->dq_sum, over, false);
    mx_dnn_unary(g, CUDNN_POINTWISE_IDENTITY, p->dq_sum, p->dq);
}

static void build_backward(mx_sdpa_plan *p)
{
    mx_dnn_graph *g = &p->g;
    const mx_sdpa_shape *s = &p->shape;
    inputs(p, true);
    p->dout = io_tensor(p, s->heads_q, s->seq_q, s->dim_v, s->dout, false);
    p->dq = io_tensor(p, s->heads_q, s->seq_q, s->dim_qk, s->dq, false);
    p->dk = io_tensor(p, s->heads_kv, s->seq_kv, s->dim_qk, s->dk, false);
    p->dv = io_tensor(p, s->heads_kv, s->seq_kv, s->dim_v, s->dv, false);
    mx_dnn_shape rows = rows_shape(p), full = scores_shape(p);
    p->stats = mx_dnn_tensor_in(g, CUDNN_DATA_FLOAT, &rows);
    int row_dot = build_row_dot(p);

    int scale = mx_dnn_scalar_f32(g, s->scale), inner = 0;
    int cap = s->softcap > 0 ? mx_dnn_scalar_f32(g, s->softcap) : 0;
    int x = mx_dnn_binary(g, CUDNN_POINTWISE_SUB, scores(p, scale, cap, &inner), p->stats, 0);
    int prob = mx_dnn_unary(g, CUDNN_POINTWISE_EXP, mask_diagonals(p, x), 0);
    transposed_matmul(p, prob, p->dout, p->dv, s->dim_v);

    int dp = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &full);
    mx_dnn_matmul(g, p->dout, p->v, dp, (mx_dnn_override){.m = p->len_q, .n = p->len_kv}, false);
    int ds = mx_dnn_binary(g, CUDNN_POINTWISE_SUB, dp, row_dot, 0);
    ds = mx_dnn_binary(g, CUDNN_POINTWISE_MUL, ds, prob, 0);
    if (cap) {
        ds = mx_dnn_binary(g, CUDNN_POINTWISE_MUL, ds, cap, 0);
        ds = mx_dnn_binary(g, CUDNN_POINTWISE_DIV, mx_dnn_tanh_backward(g, ds, inner), cap, 0);
    }
    ds = mx_dnn_binary(g, CUDNN_POINTWISE_MUL, ds, scale, 0);
    transposed_matmul(p, ds, p->q, p->dk, s->dim_qk);
    build_dq(p, ds);
}

/* --- plans --- */

static bool same_stride(const mx_sdpa_stride *a, const mx_sdpa_stride *b)
{
    return a->batch == b->batch && a->seq == b->seq && a->head == b->head;
}

/* Field by field: the struct has padding. */
static bool same_shape(const mx_sdpa_shape *a, const mx_sdpa_shape *b)
{
    const mx_sdpa_stride *sa = &a->q, *sb = &b->q; /* q, k, v, o, dout, dq, dk, dv */
    for (int i = 0; i < 8; i++)
        if (!same_stride(&sa[i], &sb[i]))
            return false;
    return a->batch == b->batch && a->seq_q == b->seq_q && a->seq_kv == b->seq_kv &&
           a->heads_q == b->heads_q && a->heads_kv == b->heads_kv && a->dim_qk == b->dim_qk &&
           a->dim_v == b->dim_v && a->scale == b->scale && a->softcap == b->softcap &&
           a->window == b->window && a->f16 == b->f16 && a->causal == b->causal &&
           a->sinks == b->sinks && a->padded == b->padded &&
           a->deterministic == b->deterministic && a->backward == b->backward &&
           a->stats == b->stats && a->choice == b->choice;
}

mx_status mx_sdpa_plan_new(mx_sdpa_plan **out, mx_sdpa *sdpa, const mx_sdpa_shape *shape)
{
    *out = NULL;
    MX_ASSERT(shape->heads_q % shape->heads_kv == 0, "heads_q=%lld heads_kv=%lld",
              (long long)shape->heads_q, (long long)shape->heads_kv);
    mx_sdpa_plan *p;
    for (p = sdpa->plans; p; p = p->next)
        if (same_shape(&p->shape, shape)) {
            p->users++;
            *out = p;
            return MX_OK;
        }
    MX_TRY(mx_alloc((void **)&p, sizeof *p, "an attention plan"));
    mx_dnn_init(&p->g, sdpa->libs, sdpa->handle);
    p->shape = *shape;
    p->sdpa = sdpa;
    p->users = 1;
    p->g.first_choice = shape->choice;
    if (shape->backward)
        build_backward(p);
    else
        build_forward(p);
    mx_status st = mx_dnn_build(&p->g);
    p->next = sdpa->plans;
    sdpa->plans = p;
    if (st) {
        mx_sdpa_plan_free(p);
        return mx_status_wrap(
            st, "planning %s attention (B %lld, S %lld x %lld, H %lld/%lld, D %lld/%lld)",
            shape->backward ? "backward" : "forward", (long long)shape->batch,
            (long long)shape->seq_q, (long long)shape->seq_kv, (long long)shape->heads_q,
            (long long)shape->heads_kv, (long long)shape->dim_qk, (long long)shape->dim_v);
    }
    *out = p;
    return MX_OK;
}

void mx_sdpa_plan_free(mx_sdpa_plan *p)
{
    if (!p || --p->users > 0)
        return;
    for (mx_sdpa_plan **at = &p->sdpa->plans; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    mx_dnn_fini(&p->g);
    mx_free(p);
}

static size_t aligned(size_t n)
{
    return (n + 255) / 256 * 256;
}

size_t mx_sdpa_plan_workspace(const mx_sdpa_plan *p)
{
    return aligned((size_t)p->g.workspace_bytes) + aligned(p->row_dot_bytes) +
           aligned(p->dq_sum_bytes);
}

int mx_sdpa_plan_choice(const mx_sdpa_plan *p, int *offered)
{
    if (offered)
        *offered = p->g.n_choices;
    return p->g.choice;
}

static void bind(mx_sdpa_plan *p, int tensor, const void *pointer)
{
    if (tensor)
        p->g.tensors[tensor].pointer = (void *)pointer;
}

mx_status mx_sdpa_plan_launch(mx_sdpa_plan *p, const mx_sdpa_args *a, void *workspace,
                              cudaStream_t stream)
{
    char *own = (char *)workspace + aligned((size_t)p->g.workspace_bytes);
    bind(p, p->q, a->q);
    bind(p, p->k, a->k);
    bind(p, p->v, a->v);
    bind(p, p->o, a->o);
    if (p->shape.stats || p->shape.backward)
        bind(p, p->stats, a->stats);
    bind(p, p->sinks, a->sinks);
    bind(p, p->len_q, a->len_q);
    bind(p, p->len_kv, a->len_kv);
    bind(p, p->dout, a->dout);
    bind(p, p->dq, a->dq);
    bind(p, p->dk, a->dk);
    bind(p, p->dv, a->dv);
    bind(p, p->dsinks, a->dsinks);
    bind(p, p->row_dot, own);
    bind(p, p->dq_sum, own + aligned(p->row_dot_bytes));
    return mx_dnn_run(&p->g, workspace, stream);
}

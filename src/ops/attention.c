/* attention.c - softmax(scale q k^T + mask) v as one op, forward and backward.
 *
 *     q (B, Sq, H, D)   k (B, Sk, K, D)   v (B, Sk, K, E)   ->   out (B, Sq, H, E), lse (B, H, Sq)
 * H is a multiple of K (grouped queries). The mask description is in ir/attention.h. lse, the
 * logarithm of each row's sum, is what the backward pass needs besides the inputs and the output;
 * no S x S matrix is ever stored. Where the keys are a part of those that the queries see, and the
 * result was merged with that of others (merge_attention.c), the backward pass takes lse and out of
 * all: scores less that lse give each key's share of the whole.
 */
#include "ir/attention.h"

#include "ops/attention.h"

#include "ops.h"
#include "ops/cpu/attention_kernel.h"
#include "ops/gpu_work.h"
#include "ops/merge_attention.h"
#include "ops/num.h"
#include <math.h>
#include <string.h>

/* The backward op has these after them. */
enum { Q = MX_ATTN_Q, K = MX_ATTN_K, V = MX_ATTN_V };
enum { OUT = MX_ATTN_N_IN, LSE, DOUT, DLSE, N_GRAD_IN };

/* The shape and mask of a node, from its types alone or, at run time, with the mask's data. */
static mx_attn describe(const mx_attention_attr *a, const mx_type *q, const mx_type *k,
                        const mx_type *v)
{
    return (mx_attn){.batch = q->dim[0], .q_len = q->dim[1], .k_len = k->dim[1],
                     .q_heads = q->dim[2], .k_heads = k->dim[2], .qk_dim = q->dim[3],
                     .v_dim = v->dim[3], .type = mx_num_of(q->dtype), .one_path = a->one_path,
                     .mask = {.causal = a->causal, .window = a->window, .chunk = a->chunk,
                              .q_offset = a->q_offset, .q_jump = a->q_jump,
                              .softcap = (float)a->softcap, .scale = (float)a->scale}};
}

static mx_attn bound(const mx_call *c)
{
    mx_attn d = describe(c->attr, &c->in[Q].type, &c->in[K].type, &c->in[V].type);
    d.mask.q_pos = c->in[MX_ATTN_Q_POS].data;
    d.mask.k_pos = c->in[MX_ATTN_K_POS].data;
    d.mask.q_seg = c->in[MX_ATTN_Q_SEG].data;
    d.mask.k_seg = c->in[MX_ATTN_K_SEG].data;
    d.mask.q_span = c->in[MX_ATTN_Q_SPAN].data;
    d.mask.k_span = c->in[MX_ATTN_K_SPAN].data;
    d.mask.selected = c->in[MX_ATTN_SELECTED].data;
    d.mask.n_selected = c->in[MX_ATTN_SELECTED].data ? c->in[MX_ATTN_SELECTED].type.dim[2] : 0;
    d.sinks = c->in[MX_ATTN_SINKS].data;
    /* The graph may be built with a bfloat16 cache beside float32 queries; by now it must agree. */
    MX_ASSERT(c->in[Q].type.dtype == c->in[K].type.dtype &&
              c->in[Q].type.dtype == c->in[V].type.dtype, "q is %s, k %s, v %s",
              mx_dtype_name(c->in[Q].type.dtype), mx_dtype_name(c->in[K].type.dtype),
              mx_dtype_name(c->in[V].type.dtype));
    return d;
}

static void forward(const mx_call *c)
{
    mx_attn d = bound(c);
    mx_attn_forward(&d, &(mx_attn_forward_args){c->in[Q].data, c->in[K].data, c->in[V].data,
                                                c->out[0].data, c->out[1].data}, c->work);
}

static void backward(const mx_call *c)
{
    mx_attn d = bound(c);
    mx_attn_backward_args p = {.q = c->in[Q].data, .k = c->in[K].data, .v = c->in[V].data,
                               .out = c->in[OUT].data, .lse = c->in[LSE].data,
                               .dout = c->in[DOUT].data, .dlse = c->in[DLSE].data,
                               .dq = c->out[0].data,
                               .dk = c->out[1].data, .dv = c->out[2].data,
                               .dsinks = d.sinks ? c->out[3].data : NULL};
    mx_attn_backward(&d, &p, c->work);
}

/* What the optional inputs are does not change the workspace, only whether they are there. */
static mx_attn planned(const mx_node *n, int n_threads)
{
    static const int32_t there[1] = {0};
    mx_attn d = describe(n->attr, &n->in[Q]->type, &n->in[K]->type, &n->in[V]->type);
    d.threads = n_threads;
    d.mask.q_pos = n->in[MX_ATTN_Q_POS] ? there : NULL;
    d.mask.k_pos = n->in[MX_ATTN_K_POS] ? there : NULL;
    d.mask.q_seg = d.mask.k_seg = n->in[MX_ATTN_Q_SEG] ? there : NULL;
    d.mask.q_span = d.mask.k_span = n->in[MX_ATTN_Q_SPAN] ? there : NULL;
    d.mask.selected = n->in[MX_ATTN_SELECTED] ? there : NULL;
    d.mask.n_selected = n->in[MX_ATTN_SELECTED] ? n->in[MX_ATTN_SELECTED]->type.dim[2] : 0;
    d.sinks = n->in[MX_ATTN_SINKS] ? there : NULL;
    return d;
}

static size_t forward_work(const mx_node *n, int n_threads)
{
    mx_attn d = planned(n, n_threads);
    return mx_attn_forward_work_bytes(&d);
}

static size_t backward_work(const mx_node *n, int n_threads)
{
    mx_attn d = planned(n, n_threads);
    return mx_attn_backward_work_bytes(&d);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* cuDNN's own: dP of the deterministic backward pass comes on top, where there is room. */
enum { CUDNN_BYTES = 32 << 20 };

/* The largest of what any of the GPU's kernels for this node (op_attention.c of the CUDA device)
 * needs; cuDNN is taken where what it asks for is no more. */
static size_t gpu_work(const mx_node *n, size_t most, bool back)
{
    const mx_type *q = &n->in[Q]->type, *k = &n->in[K]->type;
    int64_t B = q->dim[0], S = q->dim[1], T = k->dim[1], H = q->dim[2], D = q->dim[3];
    int64_t E = n->in[V]->type.dim[3];
    size_t rows = back ? mx_gpu_aligned_bytes(B * H * S, sizeof(float)) : 0, work = rows;
    size_t tables = n->in[MX_ATTN_Q_SEG] ? mx_gpu_segments_bytes(B, S, T) : 0;
    bool lists = n->in[MX_ATTN_SELECTED] != NULL;
    work += tables + (lists ? mx_gpu_aligned_bytes((int64_t)mx_gpu_list_bytes(B, S, T), 1) : 0);
    if (q->dtype != MX_BF16)
        return work;
    if (!back && S == 1)
        work = larger(work, mx_gpu_decode_bytes(B, H, mx_gpu_decode_splits(B, k->dim[2], T), E));
    if (back && D == E && (D == 64 || D == 128))
        work = larger(work, mx_gpu_flash_grad_bytes(B * H, S, D) + mx_gpu_segments_bytes(B, S, T));
    for (int i = MX_ATTN_Q_POS; i < MX_ATTN_N_IN; i++)
        if (n->in[i])
            return work;
    size_t sums = back ? rows + mx_gpu_aligned_bytes(B * H * S * D, sizeof(float)) : 0;
    size_t probs = back ? (size_t)(B * H * S * T) * 2 + rows + CUDNN_BYTES : 0;
    work = larger(work, sums + CUDNN_BYTES);
    return probs <= most ? larger(work, probs) : work;
}

static size_t forward_gpu_work(const mx_node *n, size_t most)
{
    return gpu_work(n, most, false);
}

static size_t backward_gpu_work(const mx_node *n, size_t most)
{
    return gpu_work(n, most, true);
}

/* --- the graph's side --- */

static void infer(mx_graph *g, mx_node *n)
{
    const mx_type *q = &n->in[Q]->type, *k = &n->in[K]->type, *v = &n->in[V]->type;
    if (q->ndim != 4 || k->ndim != 4 || v->ndim != 4 || q->dim[3] != k->dim[3] ||
        k->dim[1] != v->dim[1] || k->dim[2] != v->dim[2] || q->dim[0] != k->dim[0] ||
        k->dim[2] == 0 || q->dim[2] % k->dim[2] != 0) {
        mx_str s = {0};
        mx_type_print(&s, q);
        mx_type_print(&s, k);
        mx_type_print(&s, v);
        mx_graph_fail(g, "attention: q, k, v do not go together: %s", mx_str_text(&s));
        mx_str_fini(&s);
        return;
    }
    if (g->one_path)
        ((mx_attention_attr *)mx_attr_edit(n))->one_path = true;
    n->type = *q;
    n->type.dim[3] = v->dim[3];
    n->more[0] = mx_type_of(q->dtype == MX_F64 ? MX_F64 : MX_F32,
                            MX_SHAPE(q->dim[0], q->dim[2], q->dim[1]));
}

/* Scores and values, 2 FLOPs each; what the mask excludes by index alone is not counted. */
static double pairs(const mx_node *n)
{
    const mx_attention_attr *a = n->attr;
    double sq = (double)n->in[Q]->type.dim[1], sk = (double)n->in[K]->type.dim[1], p = sq * sk;
    bool by_index = !n->in[MX_ATTN_K_POS], moved = a->q_offset || a->q_jump;
    if (a->causal && by_index && (sq == sk || moved))
        p = sq * (sq + 1) / 2 + sq * (double)a->q_offset + floor(sq / 2) * (double)a->q_jump;
    double span = (double)(a->window ? a->window : a->chunk);
    if (by_index && span > 0 && span < sk)
        p = p < sq * span ? p : sq * span;
    if (n->in[MX_ATTN_SELECTED])
        p = fmin(p, sq * (double)n->in[MX_ATTN_SELECTED]->type.dim[2]);
    return p * (double)(n->in[Q]->type.dim[0] * n->in[Q]->type.dim[2]);
}

static mx_cost cost(const mx_node *n)
{
    double d = (double)n->in[Q]->type.dim[3], e = (double)n->in[V]->type.dim[3];
    return (mx_cost){.flops = 2 * pairs(n) * (d + e)};
}

/* dv, dp, dq, dk: twice the forward. The scores are computed again too, but MFU counts no
 * recomputation. */
static mx_cost grad_cost(const mx_node *n)
{
    double d = (double)n->in[Q]->type.dim[3], e = (double)n->in[V]->type.dim[3];
    return (mx_cost){.flops = 4 * pairs(n) * (d + e)};
}

static void grad_infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[Q]->type;
    n->more[0] = n->in[K]->type;
    n->more[1] = n->in[V]->type;
    n->more[2] = n->in[MX_ATTN_SINKS] ? n->in[MX_ATTN_SINKS]->type : mx_type_of(MX_F32, MX_SCALAR);
}

mx_node *mx_attention(mx_graph *g, mx_node *q, mx_node *k, mx_node *v, mx_attention_attr a,
                      mx_attention_extra e)
{
    mx_node *in[MX_ATTN_N_IN] = {q, k, v, e.q_pos, e.k_pos, e.q_seg, e.k_seg,
                         e.q_span, e.k_span, e.sinks, e.selected};
    return mx_apply(g, &mx_op_attention, &a, MX_ATTN_N_IN, in);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    if (!dout[0] && !dout[1])
        return;
    mx_node *in[N_GRAD_IN] = {0};
    mx_merged of = {n, NULL, dout[0], dout[1]};
    if (!mx_merged_whole(n, dout, &of))
        of.lse = mx_output(g, n, 1);
    memcpy(in, n->in, sizeof(mx_node *) * MX_ATTN_N_IN);
    in[OUT] = of.out;
    in[LSE] = of.lse;
    in[DOUT] = of.dout ? mx_cast(g, of.dout, n->type.dtype)
                       : mx_constant(g, mx_shape_of(&n->type), n->type.dtype, 0);
    in[DLSE] = of.dlse ? mx_cast(g, of.dlse, n->more[0].dtype) : NULL;
    mx_node *d = mx_apply(g, &mx_op_attention_grad, n->attr, N_GRAD_IN, in);
    for (int i = 0; i < 3; i++)
        din[i] = mx_output(g, d, i);
    if (n->in[MX_ATTN_SINKS])
        din[MX_ATTN_SINKS] = mx_output(g, d, 3);
}

static const mx_attr_field fields[] = {
    MX_FIELD(mx_attention_attr, MX_ATTR_BOOL, causal),
    MX_FIELD(mx_attention_attr, MX_ATTR_INT, window),
    MX_FIELD(mx_attention_attr, MX_ATTR_INT, chunk),
    MX_FIELD(mx_attention_attr, MX_ATTR_F64, softcap),
    MX_FIELD(mx_attention_attr, MX_ATTR_F64, scale),
    MX_FIELD(mx_attention_attr, MX_ATTR_INT, q_offset),
    MX_FIELD(mx_attention_attr, MX_ATTR_INT, q_jump),
    MX_QUIET_FIELD(mx_attention_attr, MX_ATTR_BOOL, one_path),
    {0},
};

enum { N_IN = MX_ATTN_N_IN, QKV = 7 }; /* QKV: bits of the first three inputs */
#define MASK_DTYPES                                                                                \
    {                                                                                              \
        [MX_ATTN_Q_POS] = MX_INDICES, [MX_ATTN_K_POS] = MX_INDICES, [MX_ATTN_Q_SEG] = MX_INDICES,  \
        [MX_ATTN_K_SEG] = MX_INDICES, [MX_ATTN_Q_SPAN] = MX_INDICES,                               \
        [MX_ATTN_K_SPAN] = MX_INDICES, [MX_ATTN_SELECTED] = MX_INDICES,                            \
        [MX_ATTN_SINKS] = 1u << MX_F32 | 1u << MX_F64 /* never 16 bits wide */                     \
    }

#define NONE {.absent = true}
#define SEGMENTS {2, {2, 6}, MX_I32, 0, 2}
const mx_op mx_op_attention = {
    .name = "attention",
    .doc = "softmax(scale q k^T + mask) v",
    .dtypes = MX_REALS,
    .alike = QKV,
    .dtypes_at = MASK_DTYPES,
    /* By notation only the batch splits; heads and sequence split by mx_attention_place. */
    .dims = "b!s!h!d,b!t!k!d,b!t!k!e,b!s,b!t,b!s,b!t,b!s,b!t,!h,b!s!n->b!s!h!e,b!h!s",
    .attr_size = sizeof(mx_attention_attr),
    .fields = fields,
    .n_out = 2,
    .saved = 1 << 1,
    .n_cast = 3,
    .strided_in = QKV,
    .place = mx_attention_place,
    .local = mx_attention_local,
    .infer = infer,
    .grad = vjp,
    .cost = cost,
    .cpu = forward,
    .work_bytes = forward_work,
    .gpu_work_bytes = forward_gpu_work,
    .cases = (const mx_case[]){
        {N_IN, {{4, {2, 6, 4, 4}}, {4, {2, 6, 2, 4}}, {4, {2, 6, 2, 6}}, NONE, NONE, NONE, NONE,
                NONE, NONE, NONE, NONE},
         &(mx_attention_attr){.causal = true, .scale = 0.5}},
        {N_IN, {{4, {2, 6, 4, 4}}, {4, {2, 6, 2, 4}}, {4, {2, 6, 2, 4}}, NONE, NONE, SEGMENTS,
                SEGMENTS, SEGMENTS, SEGMENTS, {1, {4}}, NONE},
         &(mx_attention_attr){.causal = true, .window = 3, .softcap = 2, .scale = 0.7}},
        /* Queries that are two pieces of the sequence. */
        {N_IN, {{4, {2, 4, 4, 4}}, {4, {2, 9, 2, 4}}, {4, {2, 9, 2, 4}}, NONE, NONE, NONE, NONE,
                NONE, NONE, NONE, NONE},
         &(mx_attention_attr){.causal = true, .scale = 0.5, .q_offset = 1, .q_jump = 3}},
        /* A query that sees nothing has no logarithm: the sinks are always there. */
        {N_IN, {{4, {2, 6, 2, 4}}, {4, {2, 6, 2, 4}}, {4, {2, 6, 2, 4}}, NONE, NONE, NONE, NONE,
                NONE, NONE, {1, {2}}, {3, {2, 6, 3}, MX_I32, 0, 6}},
         &(mx_attention_attr){.chunk = 4, .scale = 0.7}},
        {0}},
};

const mx_op mx_op_attention_grad = {
    .name = "attention_grad",
    .doc = "dq, dk, dv and dsinks of attention",
    .dtypes = MX_REALS,
    .alike = QKV | 1 << OUT | 1 << DOUT,
    .dtypes_at = MASK_DTYPES,
    .attr_size = sizeof(mx_attention_attr),
    .fields = fields,
    .n_out = 4,
    .strided_in = 7,
    .strided_out = 7,
    .infer = grad_infer,
    .cost = grad_cost,
    .cpu = backward,
    .work_bytes = backward_work,
    .gpu_work_bytes = backward_gpu_work,
};

/* op_attention.c - attention by the best kernel its description allows.
 *
 *   hopper     our own where it is faster than cuDNN: causal forward (flash_hopper.h), backward
 *              (flash_hopper_backward.h); packed documents in both
 *   cuDNN      bf16, causal or full, sliding window; no positions, segments, spans, chunk, softcap
 *              or sinks; where its workspace is no larger than the plan's
 *   decode     our own, one query against a cache: bf16, by positions
 *   flash      our own tensor-core kernels: bf16 and any mask
 *   plain      our own checking kernels: float32
 * A list of selected keys goes to our own as a row of bits for each query. Segments become tables
 * (flash_segments.cu) by which our kernels skip other documents.
 */
#include "device/cuda/core/context.h"
#include "device/cuda/attention/flash.h"
#include "device/cuda/attention/flash_hopper.h"
#include "device/cuda/attention/flash_hopper_backward.h"
#include "device/cuda/core/kernels.h"
#include "ir/attention.h"
#include "ops/gpu_work.h"
#include "ops/attention.h"

enum {
    Q = MX_ATTN_Q,
    K = MX_ATTN_K,
    V = MX_ATTN_V,
    Q_POS = MX_ATTN_Q_POS,
    K_POS = MX_ATTN_K_POS,
    Q_SEG = MX_ATTN_Q_SEG,
    K_SEG = MX_ATTN_K_SEG,
    Q_SPAN = MX_ATTN_Q_SPAN,
    K_SPAN = MX_ATTN_K_SPAN,
    SINKS = MX_ATTN_SINKS,
    SELECTED = MX_ATTN_SELECTED,
    OUT = MX_ATTN_N_IN, /* of the gradient, with those after it */
    LSE,
    DOUT,
    DLSE
};

typedef struct {
    mx_sdpa_plan *plan; /* NULL: our own kernel */
    bool decodes;       /* one query against a cache */
    mx_flash_shape flash;
    bool f32, backward;
    bool hopper; /* flash_hopper_backward.h */
    bool tables; /* of segments, for another kernel of ours */
} attention;

/* Elements from one token to the next: q, k and v may be columns of one projection. */
static int64_t row_of(const mx_tensor *t)
{
    return t->pitch ? t->pitch : t->type.dim[2] * t->type.dim[3];
}

static mx_sdpa_stride stride_of(const mx_tensor *t)
{
    return (mx_sdpa_stride){t->type.dim[1] * row_of(t), row_of(t), t->type.dim[3]};
}

static mx_flash_stride flash_stride(const mx_tensor *t)
{
    return (mx_flash_stride){t->type.dim[1] * row_of(t), row_of(t), t->type.dim[3]};
}

/* dq, dk and dv; forward, q, k and v again, which are not read. */
static const mx_tensor *gradients(const mx_exec_step *s, bool backward)
{
    return backward ? s->call.out : s->call.in;
}

/* Scratch of our own kernels: a number for each query of each head, lists, tables. */
static size_t row_dot_bytes(const mx_flash_shape *f)
{
    return mx_gpu_aligned_bytes((int64_t)f->batch * f->heads_q * f->seq_q, sizeof(float));
}
static size_t list_bytes(const mx_exec_step *s, const mx_flash_shape *f)
{
    return s->call.in[SELECTED].data ? mx_gpu_aligned_bytes((int64_t)mx_flash_list_bytes(f), 1) : 0;
}

static mx_status plan_cudnn(mx_cuda *c, const mx_exec_step *s, bool backward, mx_sdpa_plan **out)
{
    const mx_attention_attr *a = s->call.attr;
    const mx_type *q = &s->call.in[Q].type, *k = &s->call.in[K].type, *v = &s->call.in[V].type;
    MX_CUDA_NEEDS(c->sdpa, "cuDNN was not found");
    for (int i = Q_POS; i <= SELECTED; i++)
        MX_CUDA_NEEDS(!s->call.in[i].data, "cuDNN lacks this mask");
    MX_CUDA_NEEDS(!backward || !s->call.in[DLSE].data, "cuDNN lacks the gradient of sums");
    MX_CUDA_NEEDS(!a->q_offset && !a->q_jump, "cuDNN lacks queries in two pieces");
    MX_CUDA_NEEDS(q->dtype == MX_BF16 && !a->chunk && a->softcap == 0 && q->dim[3] % 8 == 0 &&
                      v->dim[3] % 8 == 0 && (a->causal || !a->window), "cuDNN lacks this form");
    const mx_tensor *in = s->call.in, *grad = gradients(s, backward);
    mx_tensor o = {.type = *q};
    o.type.dim[3] = v->dim[3];
    mx_sdpa_shape shape = {.batch = q->dim[0], .seq_q = q->dim[1], .seq_kv = k->dim[1],
                           .heads_q = q->dim[2], .heads_kv = k->dim[2], .dim_qk = q->dim[3],
                           .dim_v = v->dim[3], .q = stride_of(&in[Q]), .k = stride_of(&in[K]),
                           .v = stride_of(&in[V]), .o = stride_of(&o), .scale = (float)a->scale,
                           .window = a->window, .causal = a->causal, .backward = backward,
                           .stats = !backward, .deterministic = backward && !c->any_order};
    shape.dout = shape.o;
    shape.dq = stride_of(&grad[0]);
    shape.dk = stride_of(&grad[1]);
    shape.dv = stride_of(&grad[2]);
    MX_TRY(mx_sdpa_plan_new(out, c->sdpa, &shape));
    if (mx_sdpa_plan_workspace(*out) <= c->work_bytes)
        return MX_OK;
    mx_sdpa_plan_free(*out);
    *out = NULL;
    return mx_fail(MX_DEVICE, "cuDNN wants more workspace than the plan has");
}

static mx_decode_shape decode_shape(const attention *t)
{
    const mx_flash_shape *f = &t->flash;
    return (mx_decode_shape){.batch = f->batch, .heads_q = f->heads_q, .heads_kv = f->heads_kv,
                             .dim_qk = f->dim_qk, .dim_v = f->dim_v, .capacity = f->seq_kv,
                             .k_batch = f->k.batch, .k_seq = f->k.seq, .k_head = f->k.head,
                             .v_batch = f->v.batch, .v_seq = f->v.seq, .v_head = f->v.head,
                             .window = f->window, .scale = f->scale, .softcap = f->softcap};
}

/* One query a sequence, keys distinguished by their positions in a cache. */
static bool can_decode(const mx_exec_step *s, const attention *t)
{
    const mx_tensor *in = s->call.in;
    const mx_flash_shape *f = &t->flash;
    return !t->backward && !t->f32 && !in[Q].pitch && f->seq_q == 1 && f->causal && !f->chunk &&
           in[Q_POS].data && in[K_POS].data && !in[Q_SEG].data && !in[Q_SPAN].data &&
           !in[SELECTED].data && f->dim_qk % 8 == 0 && f->dim_v % 8 == 0 && f->dim_qk <= 256 &&
           f->dim_v <= 256;
}

/* What our own kernels read and write; fill_workspace adds the rest. */
static mx_flash_args flash_args(const mx_exec_step *s, bool back)
{
    const mx_tensor *in = s->call.in;
    mx_tensor *out = s->call.out;
    mx_flash_args a = {.q = in[Q].data, .k = in[K].data, .v = in[V].data,
                       .o = back ? in[OUT].data : out[0].data,
                       .stats = back ? in[LSE].data : out[1].data, .q_pos = in[Q_POS].data,
                       .k_pos = in[K_POS].data, .q_seg = in[Q_SEG].data, .k_seg = in[K_SEG].data,
                       .q_span = in[Q_SPAN].data, .k_span = in[K_SPAN].data,
                       .sinks = in[SINKS].data};
    if (back) {
        a.dout = in[DOUT].data;
        a.dlse = in[DLSE].data;
        a.dq = out[0].data;
        a.dk = out[1].data;
        a.dv = out[2].data;
        a.dsinks = in[SINKS].data ? out[3].data : NULL;
    }
    return a;
}

static mx_flash_shape flash_shape(const mx_exec_step *s, bool backward)
{
    const mx_attention_attr *a = s->call.attr;
    const mx_tensor *in = s->call.in, *grad = gradients(s, backward);
    const mx_type *q = &in[Q].type, *k = &in[K].type, *v = &in[V].type;
    mx_tensor o = {.type = *q};
    o.type.dim[3] = v->dim[3];
    return (mx_flash_shape){.batch = (int)q->dim[0], .seq_q = (int)q->dim[1],
                            .seq_kv = (int)k->dim[1], .heads_q = (int)q->dim[2],
                            .heads_kv = (int)k->dim[2], .dim_qk = (int)q->dim[3],
                            .dim_v = (int)v->dim[3], .q = flash_stride(&in[Q]),
                            .k = flash_stride(&in[K]), .v = flash_stride(&in[V]),
                            .o = flash_stride(&o), .dout = flash_stride(&o),
                            .dq = flash_stride(&grad[0]), .dk = flash_stride(&grad[1]),
                            .dv = flash_stride(&grad[2]), .causal = a->causal,
                            .window = a->window, .chunk = a->chunk, .scale = (float)a->scale,
                            .softcap = (float)a->softcap, .q_offset = (int)a->q_offset,
                            .q_jump = (int)a->q_jump};
}

/* Windows alone are cuDNN's where sums may come in any order. */
static void choose(mx_cuda *c, const mx_exec_step *s, attention *t)
{
    const mx_tensor *in = s->call.in;
    const mx_flash_shape *f = &t->flash;
    mx_flash_args args = flash_args(s, t->backward);
    bool own = !t->f32 && !in[SELECTED].data, packed = in[Q_SEG].data;
    bool back = own && t->backward && mx_flash_hopper_backward_can(f, &args);
    bool forward = own && !t->backward && f->causal && mx_flash_hopper_can(f, &args);
    bool plain = packed || !f->window;
    t->hopper = back && (plain || !c->any_order);
    if (!t->hopper && !(forward && plain))
        mx_status_free(plan_cudnn(c, s, t->backward, &t->plan));
    t->hopper |= back && !t->plan;
    t->tables = packed && !t->plan && !t->hopper && mx_flash_segments_bytes(f);
}

static mx_status prepare_any(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work_bytes,
                             bool backward)
{
    const mx_type *q = &s->call.in[Q].type, *k = &s->call.in[K].type, *v = &s->call.in[V].type;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[Q]), "attention of this dtype");
    MX_CUDA_NEEDS(q->dim[3] <= 512 && v->dim[3] <= 512, "heads of more than 512 elements");
    MX_CUDA_NEEDS(!s->call.in[SELECTED].data ||
                      q->dim[0] * q->dim[1] * ((k->dim[1] + 31) / 32) <= INT32_MAX,
                  "lists of keys of so many tokens"); /* flash.cuh counts their bits' words so */
    attention *t = mx_realloc(NULL, sizeof *t);
    *t = (attention){.f32 = q->dtype == MX_F32, .backward = backward,
                     .flash = flash_shape(s, backward)};
    t->decodes = can_decode(s, t);
    mx_decode_shape one = decode_shape(t);
    if (!t->decodes)
        choose(c, s, t);
    *work_bytes = t->decodes  ? mx_cuda_decode_scratch_bytes(&one)
                  : t->plan   ? mx_sdpa_plan_workspace(t->plan)
                  : t->hopper ? mx_flash_hopper_backward_bytes(&t->flash)
                              : (backward ? row_dot_bytes(&t->flash) : 0) +
                                    list_bytes(s, &t->flash) +
                                    (t->tables ? mx_flash_segments_bytes(&t->flash) : 0);
    *state = t;
    return MX_OK;
}

static mx_status prepare_forward(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    return prepare_any(c, s, state, work, false);
}

static mx_status prepare_backward(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    return prepare_any(c, s, state, work, true);
}

static mx_sdpa_args sdpa_args(const mx_exec_step *s, bool back)
{
    const mx_tensor *in = s->call.in;
    mx_tensor *out = s->call.out;
    mx_sdpa_args a = {.q = in[Q].data, .k = in[K].data, .v = in[V].data,
                      .o = back ? in[OUT].data : out[0].data,
                      .stats = back ? in[LSE].data : out[1].data};
    if (back) {
        a.dout = in[DOUT].data;
        a.dq = out[0].data;
        a.dk = out[1].data;
        a.dv = out[2].data;
    }
    return a;
}

/* What our own kernels need besides their arguments, in the workspace. */
static mx_status fill_workspace(mx_cuda *c, const mx_exec_step *s, const attention *t,
                                mx_flash_args *a)
{
    const mx_tensor *selected = &s->call.in[SELECTED];
    char *work = s->call.work;
    if (t->backward) {
        a->row_dot = (float *)work;
        work += row_dot_bytes(&t->flash);
    }
    if (selected->data) {
        uint32_t *bits = (uint32_t *)work;
        MX_TRY(mx_cuda_check(mx_flash_list(&t->flash, selected->data, (int)selected->type.dim[2],
                                           bits, c->stream), "attention"));
        a->listed = bits;
        work += list_bytes(s, &t->flash);
    }
    if (t->tables)
        MX_TRY(mx_cuda_check(mx_flash_segments_find(&t->flash, a, 0, work, c->stream),
                             "attention"));
    return MX_OK;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    attention *t = state;
    const mx_tensor *in = s->call.in;
    mx_tensor *out = s->call.out;
    bool back = t->backward;
    void *work = s->call.work;
    if (t->decodes) {
        mx_decode_shape one = decode_shape(t);
        mx_decode_keys keys = {.q_pos = in[Q_POS].data, .k_pos = in[K_POS].data};
        return mx_cuda_check(mx_cuda_decode_attention(&one, out[0].data, in[Q].data, in[K].data,
                                                      in[V].data, keys, in[SINKS].data, work,
                                                      c->stream), "attention");
    }
    if (t->plan) {
        mx_sdpa_args a = sdpa_args(s, back);
        return mx_sdpa_plan_launch(t->plan, &a, work, c->stream);
    }
    mx_flash_args a = flash_args(s, back);
    if (t->hopper)
        return mx_cuda_check(mx_flash_hopper_backward(&t->flash, &a, work, c->stream), "attention");
    MX_TRY(fill_workspace(c, s, t, &a));
    cudaError_t e = t->f32 ? (back ? mx_flash_plain_backward(&t->flash, &a, true, c->stream)
                                   : mx_flash_plain_forward(&t->flash, &a, true, c->stream))
                           : (back ? mx_flash_backward(&t->flash, &a, c->stream)
                                   : mx_flash_forward(&t->flash, &a, c->stream));
    return mx_cuda_check(e, "attention");
}

static void drop(mx_cuda *c, void *state)
{
    (void)c;
    attention *t = state;
    if (t)
        mx_sdpa_plan_free(t->plan);
    mx_free(t);
}

const mx_cuda_op mx_cuda_op_attention = {"attention", prepare_forward, launch, drop};
const mx_cuda_op mx_cuda_op_attention_grad = {"attention_grad", prepare_backward, launch, drop};

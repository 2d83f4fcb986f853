/* op_attention.c - attention by the best kernel its description allows.
 *
 *   cuDNN      bf16, causal or full, sliding window; no positions, spans, chunk, softcap or sinks;
 *              packed documents where the host writes their ids (documents.h)
 *   hopper     our own where it is faster than cuDNN: causal forward (flash_hopper.h), and
 *              backward (flash_hopper_backward.h), at head size 128 only where sums may come in
 *              any order
 *   decode     our own, one query against a cache: bf16, by positions
 *   flash      our own matrix-unit kernels: bf16 and any mask
 *   plain      our own checking kernels: float32
 * A list of selected keys goes to our own as a row of bits for each query.
 */
#include "device/cuda/plugin/context.h"
#include "device/cuda/plugin/flash.h"
#include "device/cuda/plugin/flash_hopper.h"
#include "device/cuda/plugin/flash_hopper_backward.h"
#include "device/cuda/plugin/kernels.h"
#include "ir/attention.h"

enum { Q_POS = 3, K_POS, Q_SEG, K_SEG, Q_SPAN, K_SPAN, SINKS, SELECTED, OUT, LSE, DOUT };

typedef struct {
    mx_sdpa_plan *plan; /* NULL: our own kernel */
    mx_sdpa_plan *many; /* for many documents */
    mx_cuda_documents *documents; /* NULL: none */
    bool decodes; /* one query against a cache */
    bool finds; /* the first to use these documents: it finds them for the others */
    mx_flash_shape flash;
    bool f32, backward;
    bool hopper; /* flash_hopper_backward.h */
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

/* dq, dk and dv; forward, q, k and v again, which nobody looks at. */
static const mx_tensor *gradients(const mx_exec_step *s, bool backward)
{
    return backward ? s->call.out : s->call.in;
}

/* Scratch of our own kernels: a number for each query of each head, and behind it the lists. */
static size_t own_bytes(const mx_flash_shape *f)
{
    size_t queries = (size_t)f->batch * (size_t)f->heads_q * (size_t)f->seq_q;
    return (sizeof(float) * queries + 255) / 256 * 256;
}

/* Slots for documents of an average length of so many tokens and more. */
enum { LONG_DOCUMENT = 256, SHORT_DOCUMENT = 32, LEAST = 16 };

/* The entry of these ids; NULL where they are not an input of the host's, or there is no room. */
static mx_cuda_documents *documents_of(mx_cuda *c, const mx_exec_step *s, bool *fresh)
{
    const mx_tensor *q = &s->call.in[Q_SEG], *k = &s->call.in[K_SEG];
    mx_cuda_documents *free_entry = NULL;
    *fresh = false;
    if (q->data != k->data || q->origin != MX_ORIGIN_INPUT)
        return NULL;
    for (int i = 0; i < MX_CUDA_ID_INPUTS; i++) {
        if (c->documents[i].users && c->documents[i].ids == q->data)
            return &c->documents[i];
        if (!c->documents[i].users)
            free_entry = &c->documents[i];
    }
    if (!free_entry)
        return NULL;
    int64_t rows = q->type.dim[0], cols = q->type.dim[1], few = cols / LONG_DOCUMENT;
    int64_t many = cols / SHORT_DOCUMENT, slots = rows * (many < 2 * LEAST ? 2 * LEAST : many);
    *free_entry = (mx_cuda_documents){
        .ids = q->data, .rows = rows, .cols = cols,
        .slots_of = {(int)(rows * (few < LEAST ? LEAST : few)), (int)slots}};
    if (cudaMalloc((void **)&free_entry->start, sizeof(int32_t) * (size_t)(2 * slots + 1)) !=
        cudaSuccess)
        return NULL;
    free_entry->length = free_entry->start + slots + 1;
    *fresh = true;
    return free_entry;
}

static void leave_documents(mx_cuda_documents *d)
{
    if (d && --d->users <= 0) {
        cudaFree(d->start);
        *d = (mx_cuda_documents){0};
    }
}

static mx_status plan_cudnn(mx_cuda *c, const mx_exec_step *s, bool backward,
                            const mx_cuda_documents *docs, int way, mx_sdpa_plan **out)
{
    const mx_attention_attr *a = s->call.attr;
    const mx_type *q = &s->call.in[0].type, *k = &s->call.in[1].type, *v = &s->call.in[2].type;
    MX_CUDA_NEEDS(c->sdpa, "cuDNN was not found");
    for (int i = Q_POS; i <= SELECTED; i++)
        MX_CUDA_NEEDS(!s->call.in[i].data || (docs && (i == Q_SEG || i == K_SEG)),
                      "cuDNN lacks this mask");
    MX_CUDA_NEEDS(!docs || (a->causal && q->dim[0] * stride_of(&s->call.in[0]).batch < INT32_MAX),
                  "cuDNN counts elements of packed documents in 32 bits");
    MX_CUDA_NEEDS(q->dtype == MX_BF16 && !a->chunk && a->softcap == 0 && q->dim[3] % 8 == 0 &&
                      v->dim[3] % 8 == 0 && (a->causal || !a->window), "cuDNN lacks this form");
    const mx_tensor *in = s->call.in, *grad = gradients(s, backward);
    mx_tensor o = {.type = *q};
    o.type.dim[3] = v->dim[3];
    mx_sdpa_shape shape = {.batch = q->dim[0], .seq_q = q->dim[1], .seq_kv = k->dim[1],
                           .heads_q = q->dim[2], .heads_kv = k->dim[2], .dim_qk = q->dim[3],
                           .dim_v = v->dim[3], .q = stride_of(&in[0]), .k = stride_of(&in[1]),
                           .v = stride_of(&in[2]), .o = stride_of(&o), .scale = (float)a->scale,
                           .window = a->window, .causal = a->causal, .backward = backward,
                           .stats = !backward, .deterministic = backward && !c->any_order};
    shape.dout = shape.o;
    shape.dq = stride_of(&grad[0]);
    shape.dk = stride_of(&grad[1]);
    shape.dv = stride_of(&grad[2]);
    if (docs) {
        shape.batch = docs->slots_of[way];
        shape.packed = true;
        shape.total_tokens = q->dim[0] * q->dim[1];
    }
    return mx_sdpa_plan_new(out, c->sdpa, &shape);
}

/* The workspace behind cuDNN's: seven lists of offsets, and row statistics by slot. */
static size_t offset_bytes(const mx_cuda_documents *d)
{
    return ((size_t)(d->slots_of[1] + 1) * MX_CUDA_OFFSETS * sizeof(int32_t) + 255) / 256 * 256;
}

static size_t documents_bytes(const attention *t)
{
    const mx_cuda_documents *d = t->documents;
    size_t few = mx_sdpa_plan_workspace(t->plan), many = mx_sdpa_plan_workspace(t->many);
    return (few > many ? few : many) + offset_bytes(d) +
           sizeof(float) * (size_t)(d->slots_of[1] * d->cols * t->flash.heads_q);
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

/* One query a sequence, keys told apart by their positions in a cache. */
static bool can_decode(const mx_exec_step *s, const attention *t)
{
    const mx_tensor *in = s->call.in;
    const mx_flash_shape *f = &t->flash;
    return !t->backward && !t->f32 && !in[0].pitch && f->seq_q == 1 && f->causal && !f->chunk &&
           in[Q_POS].data && in[K_POS].data && !in[Q_SEG].data && !in[Q_SPAN].data &&
           !in[SELECTED].data && f->dim_qk % 8 == 0 && f->dim_v % 8 == 0 && f->dim_qk <= 256 &&
           f->dim_v <= 256;
}

/* What our own kernels read and write; `row_dot` and `listed` come with the launch. */
static mx_flash_args flash_args(const mx_exec_step *s, bool back)
{
    const mx_tensor *in = s->call.in;
    mx_tensor *out = s->call.out;
    mx_flash_args a = {.q = in[0].data, .k = in[1].data, .v = in[2].data,
                       .o = back ? in[OUT].data : out[0].data,
                       .stats = back ? in[LSE].data : out[1].data, .q_pos = in[Q_POS].data,
                       .k_pos = in[K_POS].data, .q_seg = in[Q_SEG].data, .k_seg = in[K_SEG].data,
                       .q_span = in[Q_SPAN].data, .k_span = in[K_SPAN].data,
                       .sinks = in[SINKS].data};
    if (back) {
        a.dout = in[DOUT].data;
        a.dq = out[0].data;
        a.dk = out[1].data;
        a.dv = out[2].data;
        a.dsinks = in[SINKS].data ? out[3].data : NULL;
    }
    return a;
}

static mx_status prepare_any(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work_bytes,
                             bool backward)
{
    const mx_attention_attr *a = s->call.attr;
    const mx_type *q = &s->call.in[0].type, *k = &s->call.in[1].type, *v = &s->call.in[2].type;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[0]), "attention of this dtype");
    MX_CUDA_NEEDS(q->dim[3] <= 512 && v->dim[3] <= 512, "heads of more than 512 elements");
    MX_CUDA_NEEDS(!s->call.in[SELECTED].data ||
                      q->dim[0] * q->dim[1] * ((k->dim[1] + 31) / 32) <= INT32_MAX,
                  "lists of keys of so many tokens"); /* flash.cuh counts their bits' words so */
    attention *t = mx_realloc(NULL, sizeof *t);
    *t = (attention){.f32 = q->dtype == MX_F32, .backward = backward};
    const mx_tensor *in = s->call.in, *grad = gradients(s, backward);
    mx_tensor o = {.type = *q};
    o.type.dim[3] = v->dim[3];
    t->flash = (mx_flash_shape){.batch = (int)q->dim[0], .seq_q = (int)q->dim[1],
                                .seq_kv = (int)k->dim[1], .heads_q = (int)q->dim[2],
                                .heads_kv = (int)k->dim[2], .dim_qk = (int)q->dim[3],
                                .dim_v = (int)v->dim[3], .q = flash_stride(&in[0]),
                                .k = flash_stride(&in[1]), .v = flash_stride(&in[2]),
                                .o = flash_stride(&o), .dout = flash_stride(&o),
                                .dq = flash_stride(&grad[0]), .dk = flash_stride(&grad[1]),
                                .dv = flash_stride(&grad[2]), .causal = a->causal,
                                .window = a->window, .chunk = a->chunk, .scale = (float)a->scale,
                                .softcap = (float)a->softcap};
    if (s->call.in[Q_SEG].data && c->sdpa && !t->f32)
        t->documents = documents_of(c, s, &t->finds);
    mx_flash_args args = flash_args(s, backward);
    t->hopper = backward && !t->f32 && !in[SELECTED].data &&
                (c->any_order || mx_flash_hopper_backward_repeats(&t->flash)) &&
                mx_flash_hopper_backward_can(&t->flash, &args);
    bool faster = !backward && !t->f32 && !t->documents && a->causal && !a->window &&
                  !in[SELECTED].data && mx_flash_hopper_can(&t->flash, &args);
    mx_status st = MX_OK;
    if (!t->hopper && !faster)
        st = plan_cudnn(c, s, backward, t->documents, MX_FEW_DOCUMENTS, &t->plan);
    if (!st && t->documents)
        st = plan_cudnn(c, s, backward, t->documents, MX_MANY_DOCUMENTS, &t->many);
    if (st) {
        mx_sdpa_plan_free(t->plan);
        t->plan = t->many = NULL;
    }
    mx_status_free(st);
    if (t->documents)
        t->documents->users++;
    if (t->documents && !t->plan) {
        leave_documents(t->documents);
        t->documents = NULL;
    }
    size_t own = t->hopper ? mx_flash_hopper_backward_bytes(&t->flash) : own_bytes(&t->flash);
    *work_bytes = t->plan ? mx_sdpa_plan_workspace(t->plan) : own;
    if (t->documents)
        *work_bytes = documents_bytes(t) + own;
    if (in[SELECTED].data)
        *work_bytes = own + mx_flash_list_bytes(&t->flash); /* and no cuDNN */
    t->decodes = can_decode(s, t);
    mx_decode_shape one = decode_shape(t);
    if (t->decodes)
        *work_bytes = mx_cuda_decode_scratch_bytes(&one);
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
    mx_sdpa_args a = {.q = in[0].data, .k = in[1].data, .v = in[2].data,
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

/* cuDNN on documents: offsets for this shape, statistics by slot instead of by row. */
static mx_status launch_documents(mx_cuda *c, const attention *t, mx_sdpa_args *a)
{
    const mx_flash_shape *f = &t->flash;
    mx_sdpa_plan *plan = c->way == MX_MANY_DOCUMENTS ? t->many : t->plan;
    mx_cuda_documents d = *t->documents;
    d.slots = d.slots_of[c->way];
    char *behind = (char *)c->work + mx_sdpa_plan_workspace(plan);
    int32_t *list = (int32_t *)behind, n = d.slots + 1;
    float *by_row = a->stats, *by_slot = (float *)(behind + offset_bytes(&d));
    int32_t *off[MX_CUDA_OFFSETS];
    for (int k = 0; k < MX_CUDA_OFFSETS; k++)
        off[k] = list + k * n;
    int64_t step[MX_CUDA_OFFSETS] = {f->q.seq,  f->k.seq,  f->v.seq, f->o.seq,
                                     f->dq.seq, f->dk.seq, f->dv.seq};
    if (t->finds)
        MX_TRY(mx_cuda_check(mx_cuda_documents_find(&d, c->stream), "documents"));
    MX_TRY(mx_cuda_check(mx_cuda_documents_offsets(&d, off, step, c->stream), "documents"));
    a->off_q = off[0], a->off_k = off[1], a->off_v = off[2];
    a->off_o = a->off_dout = off[3];
    a->off_dq = off[4], a->off_dk = off[5], a->off_dv = off[6];
    a->len_q = a->len_kv = d.length;
    a->stats = by_slot;
    if (t->backward)
        MX_TRY(mx_cuda_check(mx_cuda_documents_stats(&d, by_row, by_slot, f->heads_q, true,
                                                     c->stream), "documents"));
    MX_TRY(mx_sdpa_plan_launch(plan, a, c->work, c->stream));
    if (t->backward)
        return MX_OK;
    return mx_cuda_check(mx_cuda_documents_stats(&d, by_row, by_slot, f->heads_q, false, c->stream),
                         "documents");
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    attention *t = state;
    const mx_tensor *in = s->call.in;
    mx_tensor *out = s->call.out;
    bool back = t->backward;
    if (t->decodes) {
        mx_decode_shape one = decode_shape(t);
        mx_decode_keys keys = {.q_pos = in[Q_POS].data, .k_pos = in[K_POS].data};
        return mx_cuda_check(mx_cuda_decode_attention(&one, out[0].data, in[0].data, in[1].data,
                                                      in[2].data, keys, in[SINKS].data, c->work,
                                                      c->stream), "attention");
    }
    if (t->plan && !(t->documents && c->way == MX_ANY_DOCUMENTS)) {
        mx_sdpa_args a = sdpa_args(s, back);
        return t->documents ? launch_documents(c, t, &a)
                            : mx_sdpa_plan_launch(t->plan, &a, c->work, c->stream);
    }
    mx_flash_args a = flash_args(s, back);
    if (t->hopper)
        return mx_cuda_check(mx_flash_hopper_backward(&t->flash, &a, c->work, c->stream),
                             "attention");
    if (back)
        a.row_dot = c->work;
    if (in[SELECTED].data) {
        uint32_t *bits = (uint32_t *)((char *)c->work + own_bytes(&t->flash));
        MX_TRY(mx_cuda_check(mx_flash_list(&t->flash, in[SELECTED].data,
                                           (int)in[SELECTED].type.dim[2], bits, c->stream),
                             "attention"));
        a.listed = bits;
    }
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
    if (t) {
        mx_sdpa_plan_free(t->plan);
        mx_sdpa_plan_free(t->many);
        leave_documents(t->documents);
    }
    mx_free(t);
}

const mx_cuda_op mx_cuda_op_attention = {"attention", prepare_forward, launch, drop};
const mx_cuda_op mx_cuda_op_attention_grad = {"attention_grad", prepare_backward, launch, drop};

/* op_attention.c - attention by the best kernel its description allows.
 *
 *   cuDNN      bf16, causal or full, sliding window; no positions, segments, spans, chunk,
 *              softcap or sinks
 *   flash      our own matrix-unit kernels: bf16 and any mask
 *   plain      our own checking kernels: float32
 * A list of selected keys has no CUDA kernel yet.
 */
#include "device/cuda/plugin/context.h"
#include "device/cuda/plugin/flash.h"
#include "ir/attention.h"

enum { Q_POS = 3, K_POS, Q_SEG, K_SEG, Q_SPAN, K_SPAN, SINKS, SELECTED, OUT, LSE, DOUT };

typedef struct {
    mx_sdpa_plan *plan; /* NULL: our own kernel */
    mx_flash_shape flash;
    bool f32, backward;
} attention;

static mx_sdpa_stride stride_of(const mx_type *t)
{
    return (mx_sdpa_stride){t->dim[1] * t->dim[2] * t->dim[3], t->dim[2] * t->dim[3], t->dim[3]};
}

static mx_flash_stride flash_stride(const mx_type *t)
{
    return (mx_flash_stride){t->dim[1] * t->dim[2] * t->dim[3], t->dim[2] * t->dim[3], t->dim[3]};
}

static mx_status plan_cudnn(mx_cuda *c, const mx_exec_step *s, bool backward, mx_sdpa_plan **out)
{
    const mx_attention_attr *a = s->node->attr;
    const mx_type *q = &s->call.in[0].type, *k = &s->call.in[1].type, *v = &s->call.in[2].type;
    MX_CUDA_NEEDS(c->sdpa, "cuDNN was not found");
    for (int i = Q_POS; i <= SELECTED; i++)
        MX_CUDA_NEEDS(!s->call.in[i].data, "cuDNN lacks this mask");
    MX_CUDA_NEEDS(q->dtype == MX_BF16 && !a->chunk && a->softcap == 0 && q->dim[3] % 8 == 0 &&
                      v->dim[3] % 8 == 0 && (a->causal || !a->window), "cuDNN lacks this form");
    mx_type o = *q;
    o.dim[3] = v->dim[3];
    mx_sdpa_shape shape = {.batch = q->dim[0], .seq_q = q->dim[1], .seq_kv = k->dim[1],
                           .heads_q = q->dim[2], .heads_kv = k->dim[2], .dim_qk = q->dim[3],
                           .dim_v = v->dim[3], .q = stride_of(q), .k = stride_of(k),
                           .v = stride_of(v), .o = stride_of(&o), .scale = (float)a->scale,
                           .window = a->window, .causal = a->causal, .backward = backward,
                           .stats = !backward, .deterministic = backward && !c->any_order};
    shape.dout = shape.o;
    shape.dq = shape.q;
    shape.dk = shape.k;
    shape.dv = shape.v;
    return mx_sdpa_plan_new(out, c->sdpa, &shape);
}

static mx_status prepare_any(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work_bytes,
                             bool backward)
{
    const mx_attention_attr *a = s->node->attr;
    const mx_type *q = &s->call.in[0].type, *k = &s->call.in[1].type, *v = &s->call.in[2].type;
    MX_CUDA_NEEDS(!s->call.in[SELECTED].data, "selected keys");
    MX_CUDA_NEEDS(q->dtype == MX_BF16 || q->dtype == MX_F32, "attention of this dtype");
    attention *t = mx_realloc(NULL, sizeof *t);
    *t = (attention){.f32 = q->dtype == MX_F32, .backward = backward};
    mx_status st = plan_cudnn(c, s, backward, &t->plan);
    if (st)
        t->plan = NULL;
    mx_status_free(st);
    mx_type o = *q;
    o.dim[3] = v->dim[3];
    t->flash = (mx_flash_shape){.batch = (int)q->dim[0], .seq_q = (int)q->dim[1],
                                .seq_kv = (int)k->dim[1], .heads_q = (int)q->dim[2],
                                .heads_kv = (int)k->dim[2], .dim_qk = (int)q->dim[3],
                                .dim_v = (int)v->dim[3], .q = flash_stride(q), .k = flash_stride(k),
                                .v = flash_stride(v), .o = flash_stride(&o),
                                .dout = flash_stride(&o), .dq = flash_stride(q),
                                .dk = flash_stride(k), .dv = flash_stride(v), .causal = a->causal,
                                .window = a->window, .chunk = a->chunk, .scale = (float)a->scale,
                                .softcap = (float)a->softcap};
    *work_bytes = t->plan ? mx_sdpa_plan_workspace(t->plan)
                          : sizeof(float) * (size_t)(q->dim[0] * q->dim[1] * q->dim[2]);
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

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    attention *t = state;
    const mx_tensor *in = s->call.in;
    mx_tensor *out = s->call.out;
    bool back = t->backward;
    if (t->plan) {
        mx_sdpa_args a = {.q = in[0].data, .k = in[1].data, .v = in[2].data,
                          .o = back ? in[OUT].data : out[0].data,
                          .stats = back ? in[LSE].data : out[1].data};
        if (back) {
            a.dout = in[DOUT].data;
            a.dq = out[0].data;
            a.dk = out[1].data;
            a.dv = out[2].data;
        }
        return mx_sdpa_plan_launch(t->plan, &a, c->work, c->stream);
    }
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
        a.row_dot = c->work;
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
    if (t && t->plan)
        mx_sdpa_plan_free(t->plan);
    mx_free(t);
}

const mx_cuda_op mx_cuda_op_attention = {"attention", prepare_forward, launch, drop};
const mx_cuda_op mx_cuda_op_attention_grad = {"attention_grad", prepare_backward, launch, drop};

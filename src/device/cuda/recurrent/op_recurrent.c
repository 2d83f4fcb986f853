/* op_recurrent.c - the graph's ops with a memory, causal_conv and delta_rule, on the kernels of
 * recurrent.h. */
#include "device/cuda/core/context.h"
#include "ops/inputs.h"
#include "device/cuda/recurrent/recurrent.h"

/* --- causal_conv --- */

enum { MX_INPUTS_CAUSAL_CONV };
enum { MX_INPUTS_CONV_GRAD };

static mx_cuda_conv conv_of(const mx_exec_step *s, bool back)
{
    const mx_tensor *in = s->call.in;
    const mx_type *x = &in[CONV_X].type;
    mx_cuda_conv c = {.batch = (int)x->dim[0],
                      .len = (int)x->dim[1],
                      .channels = (int)x->dim[2],
                      .taps = (int)in[CONV_W].type.dim[1],
                      .f32 = mx_is_f32(&in[CONV_X]),
                      .x = in[CONV_X].data,
                      .w = in[CONV_W].data,
                      .segments = in[CONV_SEGMENTS].data};
    if (!back && in[CONV_STATE].data) {
        c.state = in[CONV_STATE].data;
        c.state_f32 = mx_is_f32(&in[CONV_STATE]);
        c.positions = in[CONV_POSITIONS].data;
        c.rows = in[CONV_ROW].data;
        c.states = (int)in[CONV_STATE].type.dim[0];
        c.segments = NULL; /* decoding: a sequence is one document */
    }
    return c;
}

static mx_status prepare_conv(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_tensor *in = s->call.in;
    MX_CUDA_NEEDS(mx_is_float(&in[CONV_X]) && in[CONV_W].type.dtype == in[CONV_X].type.dtype &&
                      (!in[CONV_STATE].data || mx_is_float(&in[CONV_STATE])),
                  "a convolution of these dtypes");
    return MX_OK;
}

static mx_status conv(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    mx_cuda_conv d = conv_of(s, false);
    return mx_cuda_check(mx_cuda_conv_forward(&d, s->call.out[0].data, c->stream), "causal_conv");
}

static mx_status prepare_conv_grad(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    const mx_tensor *in = s->call.in;
    MX_CUDA_NEEDS(mx_is_float(&in[CONV_X]) && in[CONV_W].type.dtype == in[CONV_X].type.dtype &&
                      in[CONV_DY].type.dtype == in[CONV_X].type.dtype,
                  "a convolution of these dtypes");
    mx_cuda_conv d = conv_of(s, true);
    *work = mx_cuda_conv_backward_bytes(&d);
    return MX_OK;
}

static mx_status conv_grad(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    mx_cuda_conv d = conv_of(s, true);
    return mx_cuda_check(mx_cuda_conv_backward(&d, s->call.in[CONV_DY].data, s->call.out[0].data,
                                               s->call.out[1].data, s->call.work, c->stream),
                         "causal_conv_grad");
}

/* --- delta_rule --- */

enum { MX_INPUTS_DELTA_RULE };
enum { MX_INPUTS_DELTA_GRAD };

static mx_cuda_delta delta_of(const mx_exec_step *s, bool back)
{
    const mx_tensor *in = s->call.in;
    const mx_type *q = &in[Q].type, *v = &in[V].type;
    mx_cuda_delta d = {.batch = (int)q->dim[0], .len = (int)q->dim[1], .k_heads = (int)q->dim[2],
                       .v_heads = (int)v->dim[2], .k_dim = (int)q->dim[3], .v_dim = (int)v->dim[3],
                       .scale = (float)mx_attr_f64(s, "scale"), .f32 = mx_is_f32(&in[Q]),
                       .gates_f32 = {mx_is_f32(&in[G]), mx_is_f32(&in[BETA])}, .q = in[Q].data,
                       .k = in[K].data, .v = in[V].data, .g = in[G].data, .beta = in[BETA].data,
                       .segments = in[SEGMENTS].data};
    if (!back && in[STATE].data) {
        d.state = in[STATE].data;
        d.state_f32 = mx_is_f32(&in[STATE]);
        d.positions = in[POSITIONS].data;
        d.rows = in[ROW].data;
        d.states = (int)in[STATE].type.dim[0];
        d.segments = NULL; /* decoding: a sequence is one document */
    }
    return d;
}

static mx_status check_delta(const mx_exec_step *s)
{
    const mx_tensor *in = s->call.in;
    MX_CUDA_NEEDS(mx_is_float(&in[Q]) && in[K].type.dtype == in[Q].type.dtype &&
                      in[V].type.dtype == in[Q].type.dtype && mx_is_float(&in[G]) &&
                      mx_is_float(&in[BETA]), "a delta rule of these dtypes");
    MX_CUDA_NEEDS(in[Q].type.dim[3] <= MX_CUDA_DELTA_DIM, "keys of more than 128 elements");
    return MX_OK;
}

static mx_status prepare_delta(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    MX_TRY(check_delta(s));
    MX_CUDA_NEEDS(!s->call.in[STATE].data || mx_is_float(&s->call.in[STATE]),
                  "a state of this dtype");
    mx_cuda_delta d = delta_of(s, false);
    *work = mx_cuda_delta_forward_bytes(&d);
    return MX_OK;
}

static mx_status delta(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    mx_cuda_delta d = delta_of(s, false);
    return mx_cuda_check(mx_cuda_delta_forward(&d, s->call.out[0].data, s->call.work, c->stream),
                         "delta_rule");
}

static mx_status prepare_delta_grad(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    MX_TRY(check_delta(s));
    MX_CUDA_NEEDS(s->call.in[DOUT].type.dtype == s->call.in[Q].type.dtype,
                  "a delta rule of these dtypes");
    mx_cuda_delta d = delta_of(s, true);
    *work = mx_cuda_delta_backward_bytes(&d);
    return MX_OK;
}

static mx_status delta_grad(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    mx_cuda_delta d = delta_of(s, true);
    const mx_tensor *out = s->call.out;
    mx_cuda_delta_grads g = {.dout = s->call.in[DOUT].data, .dq = out[0].data, .dk = out[1].data,
                             .dv = out[2].data, .dg = out[3].data, .dbeta = out[4].data};
    return mx_cuda_check(mx_cuda_delta_backward(&d, &g, s->call.work, c->stream),
                         "delta_rule_grad");
}

const mx_cuda_op mx_cuda_op_causal_conv = {"causal_conv", prepare_conv, conv, NULL};
const mx_cuda_op mx_cuda_op_causal_conv_grad = {"causal_conv_grad", prepare_conv_grad, conv_grad,
                                                NULL};
const mx_cuda_op mx_cuda_op_delta_rule = {"delta_rule", prepare_delta, delta, NULL};
const mx_cuda_op mx_cuda_op_delta_rule_grad = {"delta_rule_grad", prepare_delta_grad, delta_grad,
                                               NULL};

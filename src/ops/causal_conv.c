/* causal_conv.c - short causal convolution over time, one filter per channel.
 *
 *     x (B, S, C)   w (C, K)   ->   y (B, S, C)        y[t] = sum_k w[:, k] x[t - (K-1) + k]
 * x before time 0 is zero, and so is what lies in another segment. Decoding gives the state, the
 * last K-1 inputs of every sequence (B, K-1, C), or with rows (R, K-1, C), and the positions
 * (recurrent.h); output 1 is the state's own memory. There is no gradient with a state.
 */
#include "ir/partition.h"
#include "ops.h"
#include "ops/inputs.h"
#include "ops/cpu/conv_kernel.h"
#include "ops/gpu_work.h"
#include "ops/load.h"
#include "ops/num.h"
#include "ops/recurrent.h"

#include <string.h>

enum { MX_INPUTS_CAUSAL_CONV, N_IN };

/* Tokens that share states are not cut. */
static const char *notation(const mx_node *n)
{
    return n->in[CONV_ROW] ? "!b!sc,c!k,!b!s,!r!mc,!b!s,!b->!b!sc,!r!mc"
                           : "b!sc,c!k,b!s,b!mc,b!s->b!sc,b!mc";
}

static mx_conv describe(const mx_type *x, const mx_type *w)
{
    return (mx_conv){.batch = x->dim[0], .len = x->dim[1], .channels = x->dim[2],
                     .taps = (int)w->dim[1], .type = mx_num_of(x->dtype)};
}

static void infer(mx_graph *g, mx_node *n)
{
    const mx_type *x = &n->in[CONV_X]->type, *w = &n->in[CONV_W]->type;
    mx_node *state = n->in[CONV_STATE];
    n->more[0] = state ? state->type : (mx_type){0};
    if (w->dim[1] < 1 || w->dim[1] > MX_CONV_MAX_TAPS)
        mx_graph_fail(g, "causal_conv: a filter of %lld taps, expected 1 to %d",
                      (long long)w->dim[1], MX_CONV_MAX_TAPS);
    else if (w->dtype != x->dtype)
        mx_graph_fail_inputs(g, n, "input and filter must be of one dtype");
    else if (state && (state->type.dim[1] != w->dim[1] - 1 || !n->in[CONV_POSITIONS]))
        mx_graph_fail_inputs(g, n, "the state must hold the taps but one, and positions be given");
    else if (n->in[CONV_ROW] && (!state || x->dim[1] != 1))
        mx_graph_fail_inputs(g, n, "rows are of a state, and of single tokens");
}

static size_t held_bytes(const mx_type *x, int taps)
{
    return mx_round_up((size_t)(taps * x->dim[2]) * mx_dtype_bytes(x->dtype));
}

/* One sequence, its state converted to x's dtype in `held`. */
static void forward_run(const mx_call *c, mx_conv d, const mx_token_run *r, const mx_tensor *held,
                        void *work)
{
    int64_t C = d.channels, keep = (d.taps - 1) * C;
    size_t item = mx_dtype_bytes(c->in[CONV_X].type.dtype), at = (size_t)(r->first * C) * item;
    const int32_t *positions = c->in[CONV_POSITIONS].data;
    d.batch = 1;
    d.len = r->n;
    d.x = (const char *)c->in[CONV_X].data + at;
    char *y = (char *)c->out[0].data + at;
    memset(y + (size_t)(d.len * C) * item, 0, (size_t)((r->room - d.len) * C) * item);
    if (!d.len)
        return;
    mx_convert_run(&c->in[CONV_STATE], r->state * keep, held, 0, keep);
    d.state = positions[r->first] == 0 ? NULL : held->data;
    mx_conv_forward(&d, y, held->data, work);
    mx_convert_run(held, 0, &c->out[1], r->state * keep, keep);
}

static void forward(const mx_call *c)
{
    mx_conv d = describe(&c->in[CONV_X].type, &c->in[CONV_W].type);
    d.w = c->in[CONV_W].data;
    d.x = c->in[CONV_X].data;
    d.segments = c->in[CONV_SEGMENTS].data;
    if (!c->in[CONV_STATE].data) {
        mx_conv_forward(&d, c->out[0].data, NULL, c->work);
        return;
    }
    d.segments = NULL; /* decoding: a sequence is one document */
    mx_tensor held = {.data = c->work, .type = c->in[CONV_X].type};
    int64_t dims[2] = {d.batch, d.len}, states = c->in[CONV_STATE].type.dim[0];
    for (int64_t at = 0; at < d.batch * d.len;) {
        mx_token_run r =
            mx_token_run_at(c->in[CONV_POSITIONS].data, c->in[CONV_ROW].data, dims, states, at);
        forward_run(c, d, &r, &held, (char *)c->work + held_bytes(&c->in[CONV_X].type, d.taps));
        d.transposed |= r.n > 0;
        at += r.room;
    }
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    mx_conv d = describe(&n->in[CONV_X]->type, &n->in[CONV_W]->type);
    d.threads = n_threads;
    return held_bytes(&n->in[CONV_X]->type, d.taps) + mx_conv_work_bytes(&d);
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.flops = 2.0 * (double)mx_type_count(&n->in[CONV_X]->type) *
                              (double)n->in[CONV_W]->type.dim[1]};
}

mx_node *mx_causal_conv(mx_graph *g, mx_node *x, mx_node *w, mx_node *segments,
                        const mx_recurrent *r)
{
    return MX_APPLY(g, &mx_op_causal_conv, NULL, x, w, segments, r->state, r->positions, r->rows);
}

/* --- backward --- */

enum { MX_INPUTS_CONV_GRAD };

static void backward(const mx_call *c)
{
    mx_conv d = describe(&c->in[CONV_X].type, &c->in[CONV_W].type);
    d.w = c->in[CONV_W].data;
    d.x = c->in[CONV_X].data;
    d.segments = c->in[CONV_SEGMENTS].data;
    /* The kernel sums the filter's gradient in the arithmetic dtype. */
    mx_tensor dw = {.data = c->out[1].data, .type = c->out[1].type};
    dw.type.dtype = mx_arithmetic(c->out[1].type.dtype);
    bool same = dw.type.dtype == c->out[1].type.dtype;
    char *work = c->work;
    if (!same) {
        dw.data = work;
        work += mx_round_up(mx_type_bytes(&dw.type));
    }
    mx_conv_backward(&d, c->in[CONV_DY].data, c->out[0].data, dw.data, NULL, work);
    if (!same)
        mx_convert_run(&dw, 0, &c->out[1], 0, mx_type_count(&dw.type));
}

static size_t backward_work_bytes(const mx_node *n, int n_threads)
{
    mx_conv d = describe(&n->in[CONV_X]->type, &n->in[CONV_W]->type);
    d.threads = n_threads;
    size_t wide = mx_round_up((size_t)mx_type_count(&n->in[CONV_W]->type) * sizeof(double));
    return wide + mx_conv_work_bytes(&d);
}

static size_t backward_gpu_work(const mx_node *n, size_t most)
{
    const mx_type *x = &n->in[CONV_X]->type;
    (void)most;
    return mx_gpu_conv_bytes(x->dim[0], x->dim[1], n->in[CONV_W]->type.dim[1], x->dim[2]);
}

static void grad_infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[CONV_X]->type;
    n->more[0] = n->in[CONV_W]->type;
}

static mx_cost grad_cost(const mx_node *n)
{
    mx_cost c = cost(n);
    c.flops *= 2;
    return c;
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    if (!dout[0])
        return;
    mx_node *dy = mx_cast(g, dout[0], n->type.dtype);
    mx_node *d = MX_APPLY(g, &mx_op_causal_conv_grad, NULL, n->in[CONV_X], n->in[CONV_W],
                          n->in[CONV_SEGMENTS], dy);
    din[CONV_X] = d;
    din[CONV_W] = mx_output(g, d, 1);
}

/* On a mesh every rank has the whole sequence of its channels: those that share the sequence share
 * the channels instead, where they divide. */
static void place(const mx_node *n, mx_partition_call *p)
{
    int64_t C = n->type.dim[2];
    mx_cut batch = p->have[CONV_X].dim[0], channels = p->have[CONV_X].dim[2];
    if (n->in[CONV_STATE]) { /* it stays where it is */
        batch = n->in[CONV_ROW] ? (mx_cut){0} : p->have[CONV_STATE].dim[0];
        channels = p->have[CONV_STATE].dim[2];
    } else {
        channels = mx_cut_shared(p->mesh, &channels, C, mx_cut_axes(&p->have[CONV_X].dim[1]));
    }
    p->in[CONV_X] = p->in[CONV_STATE] = p->out[0] = p->out[1] =
        (mx_placement){{batch, {0}, channels}};
    p->in[CONV_W] = (mx_placement){{channels}};
    p->in[CONV_SEGMENTS] = p->in[CONV_POSITIONS] = p->in[CONV_ROW] = (mx_placement){{batch}};
}

#define NONE {.absent = true}
const mx_op mx_op_causal_conv = {
    .name = "causal_conv",
    .doc = "short causal convolution over time, one filter per channel",
    .dtypes = MX_REALS,
    .dtypes_at = {[CONV_SEGMENTS] = MX_INDICES, [CONV_POSITIONS] = MX_INDICES,
                  [CONV_ROW] = MX_INDICES},
    .notation = notation,
    .n_out = 2,
    .saved = 1 << 1,
    .alias = {0, 1 + CONV_STATE},
    .n_cast = 2,
    .place = place,
    .infer = infer,
    .grad = vjp,
    .cost = cost,
    .cpu = forward,
    .work_bytes = work_bytes,
    .cases = (const mx_case[]){
        {N_IN, {{3, {2, 7, 6}}, {2, {6, 4}}, NONE, NONE, NONE, NONE}},
        {N_IN, {{3, {2, 6, 4}}, {2, {4, 3}}, {2, {2, 6}, MX_I32, 0, 2}, NONE, NONE, NONE}},
        {N_IN, {{3, {2, 3, 4}, .no_grad = true}, {2, {4, 3}, .no_grad = true}, NONE,
                {3, {2, 2, 4}, .no_grad = true}, {2, {2, 3}, MX_I32, -1, 3}, NONE}},
        {N_IN, {{3, {5, 1, 4}, .no_grad = true}, {2, {4, 3}, .no_grad = true}, NONE,
                {3, {3, 2, 4}, .no_grad = true}, {2, {5, 1}, MX_I32, -1, 3},
                {1, {5}, MX_I32, 0, 3}}},
        {0}},
};

const mx_op mx_op_causal_conv_grad = {
    .name = "causal_conv_grad",
    .doc = "gradients of causal_conv: of the input and of the filter",
    .dtypes = MX_REALS,
    .dtypes_at = {[CONV_SEGMENTS] = MX_INDICES},
    .n_out = 2,
    .infer = grad_infer,
    .cost = grad_cost,
    .cpu = backward,
    .work_bytes = backward_work_bytes,
    .gpu_work_bytes = backward_gpu_work,
};

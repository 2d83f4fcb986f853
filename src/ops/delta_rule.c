/* delta_rule.c - the gated delta rule: linear attention whose memory is corrected, not added to.
 *
 *     q, k (B, S, K, D)   v (B, S, H, E)   g, beta (B, S, H)   ->   o (B, S, H, E)
 * Head h has a memory M (D, E), and reads query and key head h / (H/K). At every token:
 *     M = exp(g) M;   u = beta (v - M^T k);   M = M + k u^T;   o = scale M^T q
 * M starts from zero, and again at every change of segment. Training goes by chunks (see
 * cpu/delta_kernel.h); any chunk gives the same result up to rounding. Decoding gives the memories
 * of all sequences (B, H, D, E), or with rows (R, H, D, E), and the positions (recurrent.h); output
 * 1 is their own place. With rows it goes token by token: a sequence's bits do not depend on how
 * its tokens are spread over batches. There is no gradient with a state.
 *
 * In bfloat16 q, k, v and o are narrow; g, beta and M are float32, since errors in a memory stay.
 */
#include "ir/partition.h"
#include "ops.h"
#include "ops/inputs.h"
#include "ops/cpu/delta_kernel.h"
#include "ops/gpu_work.h"
#include "ops/load.h"
#include "ops/num.h"
#include "ops/recurrent.h"

#include <omp.h>
#include <string.h>

enum { MX_INPUTS_DELTA_RULE, N_IN };

typedef struct {
    int64_t chunk;
    double scale;
} delta_attr;

/* Tokens that share states are not cut. */
static const char *notation(const mx_node *n)
{
    return n->in[ROW]
               ? "!b!s!k!d,!b!s!k!d,!b!s!h!e,!b!s!h,!b!s!h,!b!s,!r!h!d!e,!b!s,!b->!b!s!h!e,!r!h!d!e"
               : "b!s!k!d,b!s!k!d,b!s!h!e,b!s!h,b!s!h,b!s,b!h!d!e,b!s->b!s!h!e,b!h!d!e";
}

static mx_delta describe(const delta_attr *a, const mx_type *q, const mx_type *v)
{
    int64_t chunk = a->chunk < q->dim[1] ? a->chunk : q->dim[1];
    return (mx_delta){.batch = q->dim[0], .len = q->dim[1], .k_heads = q->dim[2],
                      .v_heads = v->dim[2], .k_dim = q->dim[3], .v_dim = v->dim[3],
                      .chunk = (int)(chunk < 1 ? 1 : chunk), .type = mx_num_of(q->dtype),
                      .scale = a->scale};
}

static void infer(mx_graph *g, mx_node *n)
{
    const delta_attr *a = n->attr;
    const mx_type *q = &n->in[Q]->type, *k = &n->in[K]->type, *v = &n->in[V]->type;
    mx_node *state = n->in[STATE];
    n->type = *v;
    n->more[0] = state ? state->type : (mx_type){0};
    if (q->dtype != k->dtype || q->dtype != v->dtype)
        mx_graph_fail_inputs(g, n, "queries, keys and values must be of one dtype");
    else if (v->dim[2] % q->dim[2])
        mx_graph_fail_inputs(g, n, "the value heads must be a multiple of the key heads");
    else if (a->chunk < 1 || a->chunk > MX_DELTA_MAX_CHUNK)
        mx_graph_fail(g, "delta_rule: chunks of %lld tokens, expected 1 to %d",
                      (long long)a->chunk, MX_DELTA_MAX_CHUNK);
    else if (state && !n->in[POSITIONS])
        mx_graph_fail_inputs(g, n, "a state needs the positions of the tokens");
    else if (n->in[ROW] && (!state || q->dim[1] != 1))
        mx_graph_fail_inputs(g, n, "rows are of a state, and of single tokens");
}

/* x in the kernel's arithmetic: itself, or a copy at *work, which moves on. */
static const void *widened(const mx_tensor *x, mx_dtype to, char **work)
{
    if (!x->data || x->type.dtype == to)
        return x->data;
    mx_tensor wide = {.data = *work, .type = x->type};
    wide.type.dtype = to;
    mx_convert_run(x, 0, &wide, 0, mx_type_count(&x->type));
    *work += mx_round_up(mx_type_bytes(&wide.type));
    return wide.data;
}

static size_t widened_bytes(const mx_type *t)
{
    return mx_round_up((size_t)mx_type_count(t) * sizeof(double));
}

static mx_delta bound(const mx_call *c, char **work)
{
    mx_delta d = describe(c->attr, &c->in[Q].type, &c->in[V].type);
    mx_dtype to = mx_arithmetic(c->in[Q].type.dtype);
    d.q = c->in[Q].data;
    d.k = c->in[K].data;
    d.v = c->in[V].data;
    d.g = widened(&c->in[G], to, work);
    d.beta = widened(&c->in[BETA], to, work);
    d.segments = c->in[SEGMENTS].data;
    return d;
}

static const void *element(const void *base, int64_t i, size_t item)
{
    return (const char *)base + (size_t)i * item;
}

/* One sequence's tokens. `state` is in the arithmetic dtype. */
static void forward_run(const mx_call *c, const mx_delta *whole, const mx_token_run *r, char *state,
                        void *work)
{
    const int32_t *positions = c->in[POSITIONS].data;
    size_t item = mx_dtype_bytes(c->in[Q].type.dtype);
    size_t wide = mx_dtype_bytes(mx_arithmetic(c->in[Q].type.dtype));
    int64_t H = whole->v_heads, qk = whole->k_heads * whole->k_dim, ve = H * whole->v_dim;
    char *out = (char *)c->out[0].data + (size_t)(r->first * ve) * item;
    mx_delta d = *whole;
    memset(out + (size_t)(r->n * ve) * item, 0, (size_t)((r->room - r->n) * ve) * item);
    if (!r->n)
        return;
    d.batch = 1;
    d.len = r->n;
    d.chunk = c->in[ROW].data ? 1 : d.chunk < d.len ? d.chunk : (int)d.len;
    d.q = element(whole->q, r->first * qk, item);
    d.k = element(whole->k, r->first * qk, item);
    d.v = element(whole->v, r->first * ve, item);
    d.g = element(whole->g, r->first * H, wide);
    d.beta = element(whole->beta, r->first * H, wide);
    void *memory = state + (size_t)(r->state * ve * whole->k_dim) * wide;
    d.initial_state = positions[r->first] == 0 ? NULL : memory;
    d.segments = NULL;
    mx_delta_forward(&d, out, memory, work);
}

/* The runs of one state, or of all (-1), in order; gives how many have tokens. */
static int64_t forward_runs(const mx_call *c, const mx_delta *whole, int64_t of, char *state,
                            void *work)
{
    int64_t dims[2] = {whole->batch, whole->len}, states = c->in[STATE].type.dim[0], n = 0;
    for (int64_t at = 0; at < whole->batch * whole->len;) {
        mx_token_run r =
            mx_token_run_at(c->in[POSITIONS].data, c->in[ROW].data, dims, states, at);
        if (work && (of < 0 || of == r.state))
            forward_run(c, whole, &r, state, work);
        n += r.n > 0;
        at += r.room;
    }
    return n;
}

/* Decoding: each sequence on its own, since they may have different numbers of tokens. Where there
 * are enough of them threads take whole sequences, else they share out heads. */
static void forward_rows(const mx_call *c, const mx_delta *whole, char *state, char *work)
{
    int threads = mx_kernel_threads(0);
    if (!c->in[ROW].data || forward_runs(c, whole, -1, state, NULL) < threads) {
        forward_runs(c, whole, -1, state, work);
        return;
    }
    mx_delta alone = *whole;
    alone.threads = 1;
    size_t each = mx_delta_forward_work_bytes(&alone);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t r = 0; r < c->in[STATE].type.dim[0]; r++)
        forward_runs(c, &alone, r, state, work + each * (size_t)omp_get_thread_num());
}

static void forward(const mx_call *c)
{
    char *work = c->work;
    mx_delta d = bound(c, &work);
    if (!c->in[STATE].data) {
        mx_delta_forward(&d, c->out[0].data, NULL, work);
        return;
    }
    mx_dtype to = mx_arithmetic(c->in[Q].type.dtype);
    mx_tensor state = {.data = (void *)widened(&c->in[STATE], to, &work),
                       .type = c->in[STATE].type};
    state.type.dtype = to;
    forward_rows(c, &d, state.data, work);
    if (state.data != c->out[1].data)
        mx_convert_run(&state, 0, &c->out[1], 0, mx_type_count(&state.type));
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    mx_delta d = describe(n->attr, &n->in[Q]->type, &n->in[V]->type);
    d.threads = n_threads;
    size_t bytes = 2 * widened_bytes(&n->in[G]->type) + mx_delta_forward_work_bytes(&d);
    return bytes + (n->in[STATE] ? widened_bytes(&n->in[STATE]->type) : 0);
}

static mx_gpu_delta gpu_shape(const mx_node *n)
{
    const mx_type *q = &n->in[Q]->type, *v = &n->in[V]->type;
    return (mx_gpu_delta){.batch = q->dim[0], .len = q->dim[1], .k_heads = q->dim[2],
                          .v_heads = v->dim[2], .k_dim = q->dim[3], .v_dim = v->dim[3]};
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    mx_gpu_delta d = gpu_shape(n);
    (void)most;
    return mx_gpu_delta_forward_bytes(&d, n->in[STATE] != NULL);
}

/* Per token and head: read, correct and read the memory; inside a chunk two matmuls with it. */
static mx_cost cost(const mx_node *n)
{
    const mx_type *q = &n->in[Q]->type, *v = &n->in[V]->type;
    double D = (double)q->dim[3], E = (double)v->dim[3];
    double chunk = (double)describe(n->attr, q, v).chunk;
    double tokens = (double)(v->dim[0] * v->dim[1] * v->dim[2]);
    return (mx_cost){.flops = tokens * (6 * D * E + 2 * chunk * (D + E))};
}

mx_node *mx_delta_rule(mx_graph *g, mx_node *const qkvgb[5], double scale, int64_t chunk,
                       mx_node *segments, const mx_recurrent *r)
{
    delta_attr a = {.chunk = chunk, .scale = scale};
    return MX_APPLY(g, &mx_op_delta_rule, &a, qkvgb[0], qkvgb[1], qkvgb[2], qkvgb[3], qkvgb[4],
                    segments, r->state, r->positions, r->rows);
}

/* --- backward --- */

enum { MX_INPUTS_DELTA_GRAD, N_GRAD_IN };

static void backward(const mx_call *c)
{
    char *work = c->work;
    mx_delta d = bound(c, &work);
    mx_tensor wide[2]; /* of dg and dbeta */
    for (int i = 0; i < 2; i++) {
        wide[i] = c->out[3 + i];
        wide[i].type.dtype = mx_arithmetic(c->in[Q].type.dtype);
        if (wide[i].type.dtype == c->out[3 + i].type.dtype)
            continue;
        wide[i].data = work;
        work += mx_round_up(mx_type_bytes(&wide[i].type));
    }
    mx_delta_grads p = {.dout = c->in[DOUT].data, .dq = c->out[0].data, .dk = c->out[1].data,
                        .dv = c->out[2].data, .dg = wide[0].data, .dbeta = wide[1].data};
    mx_delta_backward(&d, &p, work);
    for (int i = 0; i < 2; i++)
        if (wide[i].data != c->out[3 + i].data)
            mx_convert_run(&wide[i], 0, &c->out[3 + i], 0, mx_type_count(&wide[i].type));
}

static size_t backward_work_bytes(const mx_node *n, int n_threads)
{
    mx_delta d = describe(n->attr, &n->in[Q]->type, &n->in[V]->type);
    d.threads = n_threads;
    return 4 * widened_bytes(&n->in[G]->type) + mx_delta_backward_work_bytes(&d);
}

static size_t backward_gpu_work(const mx_node *n, size_t most)
{
    mx_gpu_delta d = gpu_shape(n);
    (void)most;
    return mx_gpu_delta_backward_bytes(&d);
}

static void grad_infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[Q]->type;
    for (int i = K; i <= BETA; i++)
        n->more[i - 1] = n->in[i]->type;
}

static mx_cost grad_cost(const mx_node *n)
{
    mx_cost c = cost(n);
    c.flops *= 3; /* the forward pass again, and two matmuls for each of its own */
    return c;
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    if (!dout[0])
        return;
    mx_node *in[N_GRAD_IN] = {[DOUT] = mx_cast(g, dout[0], n->type.dtype)};
    memcpy(in, n->in, sizeof(mx_node *) * DOUT);
    mx_node *d = mx_apply(g, &mx_op_delta_rule_grad, n->attr, N_GRAD_IN, in);
    for (int i = Q; i <= BETA; i++)
        din[i] = mx_output(g, d, i);
}

/* On a mesh a rank has whole groups of heads with the whole sequence: ranks that share the sequence
 * share the heads instead, where they divide. */
static void place(const mx_node *n, mx_partition_call *p)
{
    int64_t k = n->in[K]->type.dim[2], h = n->in[V]->type.dim[2];
    mx_cut batch = p->have[Q].dim[0], keys = p->have[K].dim[2], values;
    if (n->in[STATE]) { /* it stays where it is */
        batch = n->in[ROW] ? (mx_cut){0} : p->have[STATE].dim[0];
        values = p->have[STATE].dim[1];
        keys = mx_cut_resized(&values, h, k);
    } else {
        keys = mx_cut_shared(p->mesh, &keys, k, mx_cut_axes(&p->have[V].dim[1]));
        values = mx_cut_resized(&keys, k, h);
    }
    p->in[Q] = p->in[K] = (mx_placement){{batch, {0}, keys}};
    p->in[V] = p->in[G] = p->in[BETA] = p->out[0] = (mx_placement){{batch, {0}, values}};
    p->in[STATE] = p->out[1] = (mx_placement){{batch, values}};
    p->in[SEGMENTS] = p->in[POSITIONS] = p->in[ROW] = (mx_placement){{batch}};
}

static const mx_attr_field fields[] = {MX_FIELD(delta_attr, MX_ATTR_INT, chunk),
                                       MX_FIELD(delta_attr, MX_ATTR_F64, scale), {0}};

#define NONE {.absent = true}
#define FIXED(...) {__VA_ARGS__, .no_grad = true}
const mx_op mx_op_delta_rule = {
    .name = "delta_rule",
    .doc = "gated delta rule: linear attention with a corrected memory",
    .dtypes = MX_REALS,
    .dtypes_at = {[SEGMENTS] = MX_INDICES, [POSITIONS] = MX_INDICES, [ROW] = MX_INDICES},
    .notation = notation,
    .attr_size = sizeof(delta_attr),
    .fields = fields,
    .n_out = 2,
    .saved = 1 << 1,
    .alias = {0, 1 + STATE},
    .n_cast = 3,
    .place = place,
    .infer = infer,
    .grad = vjp,
    .cost = cost,
    .cpu = forward,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){
        {N_IN, {{4, {2, 7, 2, 4}}, {4, {2, 7, 2, 4}}, {4, {2, 7, 4, 6}}, {3, {2, 7, 4}, .lo = -1},
                {3, {2, 7, 4}, .lo = 0.1, .hi = 0.9}, NONE, NONE, NONE, NONE},
         &(delta_attr){3, 0.5}},
        {N_IN, {{4, {2, 6, 1, 4}}, {4, {2, 6, 1, 4}}, {4, {2, 6, 2, 4}}, {3, {2, 6, 2}, .lo = -1},
                {3, {2, 6, 2}, .lo = 0.1, .hi = 0.9}, {2, {2, 6}, MX_I32, 0, 2}, NONE, NONE, NONE},
         &(delta_attr){64, 0.5}},
        {N_IN, {FIXED(4, {2, 3, 1, 4}), FIXED(4, {2, 3, 1, 4}), FIXED(4, {2, 3, 2, 4}),
                FIXED(3, {2, 3, 2}, .lo = -1), FIXED(3, {2, 3, 2}, .lo = 0.1, .hi = 0.9), NONE,
                FIXED(4, {2, 2, 4, 4}), {2, {2, 3}, MX_I32, -1, 3}, NONE},
         &(delta_attr){64, 0.5}},
        {N_IN, {FIXED(4, {5, 1, 1, 4}), FIXED(4, {5, 1, 1, 4}), FIXED(4, {5, 1, 2, 4}),
                FIXED(3, {5, 1, 2}, .lo = -1), FIXED(3, {5, 1, 2}, .lo = 0.1, .hi = 0.9), NONE,
                FIXED(4, {3, 2, 4, 4}), {2, {5, 1}, MX_I32, -1, 3}, {1, {5}, MX_I32, 0, 3}},
         &(delta_attr){64, 0.5}},
        {0}},
};

const mx_op mx_op_delta_rule_grad = {
    .name = "delta_rule_grad",
    .doc = "gradients of delta_rule: of q, k, v, g and beta",
    .dtypes = MX_REALS,
    .dtypes_at = {[SEGMENTS] = MX_INDICES},
    .attr_size = sizeof(delta_attr),
    .fields = fields,
    .n_out = 5,
    .infer = grad_infer,
    .cost = grad_cost,
    .cpu = backward,
    .work_bytes = backward_work_bytes,
    .gpu_work_bytes = backward_gpu_work,
};

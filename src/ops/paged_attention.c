/* paged_attention.c - attention of single tokens over a cache that lies in pages.
 *
 *     q (N, 1, H, D)   k (1, T, K, D)   v (1, T, K, E)   ->   out (N, 1, H, E)
 *     positions (N, 1), row (N), table (R, C) int32; sinks (H), selected (N, 1, n) and
 *     until (N, 1), optional
 * The T slots of the pool are pages of `page` slots. Position p of sequence r lies in slot
 *     table[r][p / page mod C] * page + p mod page
 * and query n, at positions[n] of sequence row[n], sees the positions up to its own, as far as
 * window and chunk allow (ir/attention.h), or those selected; with `until` also the positions
 * after it up to that one, less than N further, whose keys this batch enters. A position below 0
 * gives 0. Tokens of prompts and of decoding stand side by side in one batch, each a row of its
 * own; what a query sees, and in which order it is added up, does not depend on the others.
 *
 * k and v may be int8 or E4M3 codes, with k_scale and v_scale (1, T, K): a key is its codes times
 * its scale, computed in float32.
 *
 * Without v, values are the first v_dim elements of the keys (latents). For decoding only.
 */
#include "ir/attention.h"

#include "ops.h"
#include "ops/inputs.h"
#include "ops/cpu/attention_paged.h"
#include "ops/gpu_work.h"
#include "ops/num.h"
#include "ops/paged_split.h"

enum { MX_INPUTS_PAGED_ATTENTION, N_IN };

#define CODES ((mx_dtypes)(1u << MX_I8 | 1u << MX_F8_E4M3))

static bool is_code(mx_dtype d)
{
    return CODES >> d & 1;
}

static mx_paged describe(const mx_paged_attr *a, const mx_type *q, const mx_type *k,
                         const mx_type *v, const mx_type *table, const mx_type *selected)
{
    mx_paged g = {.attn = {.batch = q->dim[0],
                           .q_len = 1,
                           .q_heads = q->dim[2],
                           .k_heads = k->dim[2],
                           .qk_dim = q->dim[3],
                           .v_dim = a->v_dim ? a->v_dim : v->dim[3],
                           .v_row = a->v_dim ? k->dim[2] * k->dim[3] : 0,
                           .type = mx_num_of(q->dtype),
                           .mask = {.scale = (float)a->scale, .softcap = (float)a->softcap}},
                  .slots = k->dim[1],
                  .page = a->page,
                  .rows = table->dim[0],
                  .columns = table->dim[1],
                  .window = a->window,
                  .chunk = a->chunk,
                  .selected = selected ? selected->dim[2] : 0};
    return g;
}

static void forward(const mx_call *c)
{
    const mx_tensor *in = c->in;
    mx_paged g = describe(c->attr, &in[Q].type, &in[K].type, &in[V].type, &in[TABLE].type,
                          in[SELECTED].data ? &in[SELECTED].type : NULL);
    g.ahead = in[UNTIL].data != NULL;
    g.coded = in[K_SCALE].data != NULL;
    MX_ASSERT(in[Q].type.dtype == in[K].type.dtype || in[K_SCALE].data, "q is %s, k %s",
              mx_dtype_name(in[Q].type.dtype), mx_dtype_name(in[K].type.dtype));
    g.e4m3 = in[K].type.dtype == MX_F8_E4M3;
    g.attn.sinks = in[SINKS].data;
    mx_paged_forward(&g,
                     &(mx_paged_args){in[Q].data, in[K].data, in[V].data ? in[V].data : in[K].data,
                                      in[POSITIONS].data, in[ROW].data, in[TABLE].data,
                                      c->out[0].data, in[SELECTED].data, in[UNTIL].data,
                                      in[K_SCALE].data, in[V_SCALE].data},
                     c->work);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    mx_paged g = describe(n->attr, &n->in[Q]->type, &n->in[K]->type,
                          n->in[V] ? &n->in[V]->type : NULL, &n->in[TABLE]->type,
                          n->in[SELECTED] ? &n->in[SELECTED]->type : NULL);
    g.ahead = n->in[UNTIL] != NULL;
    g.coded = n->in[K_SCALE] != NULL;
    g.attn.threads = n_threads;
    return mx_paged_work_bytes(&g);
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    const mx_paged_attr *a = n->attr;
    const mx_type *q = &n->in[Q]->type, *table = &n->in[TABLE]->type;
    (void)most;
    return mx_gpu_paged_bytes(&(mx_gpu_paged){.queries = q->dim[0], .rows = table->dim[0],
                                              .heads = q->dim[2] * mx_paged_split(table->dim[0]),
                                              .dim = n->type.dim[3],
                                              .span = a->page * table->dim[1]});
}

static void infer(mx_graph *g, mx_node *n)
{
    const mx_paged_attr *a = n->attr;
    const mx_type *q = &n->in[Q]->type, *k = &n->in[K]->type;
    const mx_type *v = n->in[V] ? &n->in[V]->type : k;
    bool fits = q->ndim == 4 && k->ndim == 4 && v->ndim == 4 && q->dim[1] == 1 && k->dim[0] == 1 &&
                q->dim[3] == k->dim[3] && k->dim[1] == v->dim[1] && k->dim[2] == v->dim[2] &&
                k->dim[2] > 0 && q->dim[2] % k->dim[2] == 0;
    if (!fits || !n->in[V] != (a->v_dim > 0) || a->v_dim > k->dim[3] || a->page < 1 ||
        k->dim[1] % a->page) {
        mx_graph_fail_inputs(g, n, "q (N, 1, H, D), k and v (1, T, K, D) in pages of %lld",
                             (long long)a->page);
        return;
    }
    bool codes = is_code(k->dtype) || is_code(v->dtype);
    if (codes != (n->in[K_SCALE] && n->in[V_SCALE]) || (codes && k->dtype != v->dtype) ||
        (codes && a->v_dim))
        mx_graph_fail_inputs(g, n, "keys and values are numbers, or codes of one kind with scales "
                             "(1, T, K)");
    n->type = *q;
    n->type.dim[3] = a->v_dim ? a->v_dim : v->dim[3];
}

/* How many positions are in use is known when it runs; a full table is what it can take. */
static mx_cost cost(const mx_node *n)
{
    const mx_paged_attr *a = n->attr;
    double seen = (double)(a->page * n->in[TABLE]->type.dim[1]);
    double dims = (double)(n->in[Q]->type.dim[3] + n->type.dim[3]);
    if (a->window && (double)a->window < seen)
        seen = (double)a->window;
    if (n->in[SELECTED])
        seen = (double)n->in[SELECTED]->type.dim[2];
    return (mx_cost){.flops = 2 * seen * dims * (double)(n->type.dim[0] * n->type.dim[2])};
}

/* On a mesh: queries by token and by head. A rank has the key heads that its query heads read, or
 * the one that all of them read; where neither is possible, all heads. */
static void place(const mx_node *n, mx_partition_call *p)
{
    mx_cut batch = p->have[Q].dim[0], heads = p->have[Q].dim[2], keys = {0};
    int64_t h = n->in[Q]->type.dim[2], k = n->in[K]->type.dim[2];
    int64_t pieces = mx_mesh_size(p->mesh, mx_cut_axes(&heads));
    if (h % pieces || (k % pieces && k > 1))
        heads = (mx_cut){0};
    if (k % pieces == 0)
        keys = mx_cut_resized(&heads, h, k);
    for (int i = 0; i < N_IN; i++)
        p->in[i] = (mx_placement){0};
    p->in[Q] = p->out[0] = (mx_placement){{batch, {0}, heads}};
    p->in[K].dim[2] = p->in[V].dim[2] = p->in[K_SCALE].dim[2] = p->in[V_SCALE].dim[2] = keys;
    p->in[POSITIONS].dim[0] = p->in[ROW].dim[0] = batch;
    p->in[SELECTED].dim[0] = p->in[UNTIL].dim[0] = batch;
    p->in[SINKS].dim[0] = heads;
}

mx_node *mx_paged_attention(mx_graph *g, mx_node *q, mx_node *k, mx_node *v, mx_paged_attr a,
                            mx_paged_extra e)
{
    mx_node *in[N_IN] = {q,       k,          v,       e.positions, e.row,    e.table,
                         e.sinks, e.selected, e.until, e.k_scale,   e.v_scale};
    return mx_apply(g, &mx_op_paged_attention, &a, N_IN, in);
}

static const mx_attr_field fields[] = {
    MX_FIELD(mx_paged_attr, MX_ATTR_INT, page),
    MX_FIELD(mx_paged_attr, MX_ATTR_INT, v_dim),
    MX_FIELD(mx_paged_attr, MX_ATTR_INT, window),
    MX_FIELD(mx_paged_attr, MX_ATTR_INT, chunk),
    MX_FIELD(mx_paged_attr, MX_ATTR_F64, softcap),
    MX_FIELD(mx_paged_attr, MX_ATTR_F64, scale),
    {0},
};

#define NO_GRAD(...)                                                                               \
    {                                                                                              \
        4, {__VA_ARGS__}, .no_grad = true                                                          \
    }
#define WHERE                                                                                      \
    {2, {5, 1}, MX_I32, -1, 12}, {1, {5}, MX_I32, 0, 2},                                           \
    {                                                                                              \
        2, {2, 3}, MX_I32, 0, 5                                                                    \
    }
#define NO_SCALES                                                                                  \
    {.absent = true},                                                                              \
    {                                                                                              \
        .absent = true                                                                             \
    }
#define CODES_OF(d, most, ...)                                                                     \
    {                                                                                              \
        4, {__VA_ARGS__}, .dtype = d, .lo = -most, .hi = most, .no_grad = true, .fixed = true      \
    }
#define SCALES                                                                                     \
    {                                                                                              \
        3, {1, 20, 2}, .lo = 0.001, .hi = 0.02, .no_grad = true, .fixed = true                     \
    }
#define CODED(d, most)                                                                             \
    {                                                                                              \
        N_IN, {NO_GRAD(5, 1, 4, 6), CODES_OF(d, most, 1, 20, 2, 6), CODES_OF(d, most, 1, 20, 2, 4),\
               WHERE, {.absent = true}, {.absent = true}, {.absent = true}, SCALES, SCALES},       \
            &(mx_paged_attr){.page = 4, .scale = 0.5}                                              \
    }
const mx_op mx_op_paged_attention = {
    .name = "paged_attention",
    .doc = "attention of single tokens over a cache in pages",
    /* By notation only the queries split; heads split by `place`. */
    .dims = "n1!h!d,1!t!k!d,1!t!k!e,n1,n,!r!c,!h,n1!s,n1,1!t!k,1!t!k->n1!h!e",
    .attr_size = sizeof(mx_paged_attr),
    .fields = fields,
    .n_cast = 3, /* sinks are never 16-bit */
    .dtypes = MX_REALS,
    .dtypes_at = {[K] = MX_REALS | CODES, [V] = MX_REALS | CODES, [K_SCALE] = MX_F32_ONLY,
                  [V_SCALE] = MX_F32_ONLY, [POSITIONS] = MX_INDICES, [ROW] = MX_INDICES,
                  [TABLE] = MX_INDICES,
                  [SINKS] = 1u << MX_F32 | 1u << MX_F64, [SELECTED] = MX_INDICES,
                  [UNTIL] = MX_INDICES},
    .place = place,
    .infer = infer,
    .cost = cost,
    .cpu = forward,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases =
        (const mx_case[]){{N_IN,
                           {NO_GRAD(5, 1, 4, 6),
                            NO_GRAD(1, 20, 2, 6),
                            NO_GRAD(1, 20, 2, 4),
                            WHERE,
                            {.absent = true},
                            {.absent = true},
                            {.absent = true},
                            NO_SCALES},
                           &(mx_paged_attr){.page = 4, .scale = 0.5}},
                          {N_IN,
                           {NO_GRAD(5, 1, 4, 6),
                            NO_GRAD(1, 20, 2, 6),
                            NO_GRAD(1, 20, 2, 4),
                            WHERE,
                            {1, {4}, .no_grad = true},
                            {.absent = true},
                            {2, {5, 1}, MX_I32, -1, 12},
                            NO_SCALES},
                           &(mx_paged_attr){.page = 4, .window = 3, .softcap = 2, .scale = 0.7}},
                          {N_IN,
                           {NO_GRAD(5, 1, 20, 6),
                            NO_GRAD(1, 20, 1, 6),
                            {.absent = true},
                            WHERE,
                            {.absent = true},
                            {.absent = true},
                            {.absent = true},
                            NO_SCALES},
                           &(mx_paged_attr){.page = 4, .v_dim = 4, .chunk = 5, .scale = 0.7}},
                          {N_IN,
                           {NO_GRAD(5, 1, 4, 6),
                            NO_GRAD(1, 20, 1, 6),
                            {.absent = true},
                            WHERE,
                            {1, {4}, .no_grad = true},
                            {3, {5, 1, 6}, MX_I32, -1, 12},
                            {.absent = true},
                            NO_SCALES},
                           &(mx_paged_attr){.page = 4, .v_dim = 4, .scale = 0.7}},
                          CODED(MX_I8, 100),
                          CODED(MX_F8_E4M3, 9),
                          {0}},
};

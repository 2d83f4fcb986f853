/* max_logits.c - the largest attention score of each head, for QK-clip (nn/qk_clip.h).
 *
 *     q (B, S, H, D)   k (B, S, K, D)   ->   (H) float32:  max over b, s and the keys t that s sees
 *                                            of scale q[b, s, h] . k[b, t, h / (H/K)]
 * A query sees the keys up to its own place, of its own segment, and with a window those not
 * further back. The scores exist a tile at a time. A head that sees nothing has -infinity. No
 * gradient: nothing is trained through it.
 */
#include "ir/partition.h"
#include "ops.h"
#include "ops/collective.h"
#include "ops/inputs.h"
#include "ops/load.h"
#include "ops/num.h"
#include "ops/recurrent.h"

#include <math.h>
#include <omp.h>

enum { MX_INPUTS_MAX_LOGITS, N_IN };
enum { ROWS = 64, COLS = 256 }; /* of a tile */

typedef struct {
    int64_t window; /* 0: none */
    double scale;
} max_attr;

static void infer(mx_graph *g, mx_node *n)
{
    const mx_type *q = &n->in[Q]->type, *k = &n->in[K]->type;
    if (k->dim[2] < 1 || q->dim[2] % k->dim[2] || q->dtype != k->dtype)
        mx_graph_fail_inputs(g, n, "queries and keys do not go together");
    n->type.dtype = q->dtype == MX_F64 ? MX_F64 : MX_F32;
}

/* Queries s0 to s1 of head h in row b of the batch. */
typedef struct {
    int64_t b, h, s0, s1;
} rows;

static double tile_max(const mx_call *c, const rows *r, int64_t t0, const void *tile, int64_t n)
{
    const max_attr *a = c->attr;
    int64_t S = c->in[Q].type.dim[1];
    const int32_t *seg = c->in[SEG].data;
    bool wide = c->in[Q].type.dtype == MX_F64;
    double most = -INFINITY;
    for (int64_t s = r->s0; s < r->s1; s++) {
        int64_t first = a->window && s - a->window + 1 > t0 ? s - a->window + 1 : t0;
        int64_t last = s < t0 + n - 1 ? s : t0 + n - 1;
        for (int64_t t = first; t <= last; t++) {
            int64_t at = (s - r->s0) * COLS + t - t0;
            double x = wide ? ((const double *)tile)[at] : ((const float *)tile)[at];
            if (x > most && (!seg || seg[r->b * S + s] == seg[r->b * S + t]))
                most = x;
        }
    }
    return most;
}

static double rows_max(const mx_call *c, const rows *r, void *tile)
{
    const mx_type *q = &c->in[Q].type, *k = &c->in[K].type;
    const max_attr *a = c->attr;
    int64_t S = q->dim[1], H = q->dim[2], D = q->dim[3], G = k->dim[2], kh = r->h / (H / G);
    size_t item = mx_dtype_bytes(q->dtype);
    bool wide = q->dtype == MX_F64;
    mx_gemm_args g = {.m = r->s1 - r->s0, .k = D, .lda = H * D, .ldb = G * D, .ldc = COLS,
                      .trans_b = true, .a_type = mx_num_of(q->dtype), .b_type = mx_num_of(k->dtype),
                      .c_type = wide ? MX_NUM_F64 : MX_NUM_F32, .alpha = a->scale, .threads = 1,
                      .a = (const char *)c->in[Q].data +
                           (size_t)(((r->b * S + r->s0) * H + r->h) * D) * item, .c = tile};
    double most = -INFINITY;
    int64_t from = a->window && r->s0 >= a->window ? (r->s0 - a->window + 1) / COLS * COLS : 0;
    for (int64_t t0 = from; t0 < r->s1; t0 += COLS) {
        g.n = r->s1 - t0 < COLS ? r->s1 - t0 : COLS;
        g.b = (const char *)c->in[K].data + (size_t)(((r->b * S + t0) * G + kh) * D) * item;
        mx_gemm(&g);
        most = fmax(most, tile_max(c, r, t0, tile, g.n));
    }
    return most;
}

static int64_t blocks_of(const mx_type *q)
{
    return (q->dim[1] + ROWS - 1) / ROWS;
}

static void max_cpu(const mx_call *c)
{
    const mx_type *q = &c->in[Q].type;
    int64_t B = q->dim[0], S = q->dim[1], H = q->dim[2], n = blocks_of(q), all = B * H * n;
    double *each = c->work; /* (H, B, n) */
    char *tiles = (char *)c->work + mx_round_up(sizeof(double) * (size_t)all);
    size_t tile_bytes = mx_round_up(sizeof(double) * ROWS * COLS);
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < all; i++) {
        int64_t s0 = i % n * ROWS;
        rows r = {.h = i / n / B, .b = i / n % B, .s0 = s0, .s1 = s0 + ROWS < S ? s0 + ROWS : S};
        each[i] = rows_max(c, &r, tiles + (size_t)omp_get_thread_num() * tile_bytes);
    }
    for (int64_t h = 0; h < H; h++) {
        double most = -INFINITY;
        for (int64_t i = 0; i < B * n; i++)
            most = fmax(most, each[h * B * n + i]);
        mx_store_f64(&c->out[0], h, most);
    }
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    const mx_type *q = &n->in[Q]->type;
    return mx_round_up(sizeof(double) * (size_t)(q->dim[0] * q->dim[2] * blocks_of(q))) +
           mx_round_up(sizeof(double) * ROWS * COLS) * (size_t)n_threads;
}

/* Causal: half of the pairs. */
static mx_cost cost(const mx_node *n)
{
    const mx_type *q = &n->in[Q]->type;
    return (mx_cost){.flops = (double)mx_type_count(q) * (double)q->dim[1]};
}

mx_node *mx_max_logits(mx_graph *g, mx_node *q, mx_node *k, mx_node *segments, int64_t window,
                       double scale)
{
    max_attr a = {.window = window, .scale = scale};
    return MX_APPLY(g, &mx_op_max_logits, &a, q, k, segments);
}

/* On a mesh: by rows of the batch, and by heads where keys can be cut as queries are; the length is
 * whole. */
static void place(const mx_node *n, mx_partition_call *p)
{
    mx_cut batch = p->have[Q].dim[0], heads = p->have[Q].dim[2], keys = {0};
    int64_t h = n->in[Q]->type.dim[2], k = n->in[K]->type.dim[2];
    if (k % mx_mesh_size(p->mesh, mx_cut_axes(&heads)))
        heads = (mx_cut){0};
    else
        keys = mx_cut_resized(&heads, h, k);
    p->in[Q] = (mx_placement){{batch, {0}, heads}};
    p->in[K] = (mx_placement){{batch, {0}, keys}};
    p->in[SEG] = (mx_placement){{batch}};
    p->out[0] = (mx_placement){{heads}};
}

static mx_node *local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    mx_axis_set axes = mx_cut_axes(&p->in[Q].dim[0]);
    mx_node *y = mx_apply(g, n->op, n->attr, N_IN, in);
    if (!axes)
        return y;
    return mx_all_reduce(g, y, (mx_collective_attr){.axes = axes,
                                                    .size = mx_mesh_size(p->mesh, axes),
                                                    .index = mx_mesh_index(p->mesh, p->rank, axes),
                                                    .to = MX_REDUCE_MAX});
}

#define NONE {.absent = true}
const mx_op mx_op_max_logits = {
    .name = "max_logits",
    .doc = "the largest attention score of each head",
    .dtypes = MX_REALS,
    .dtypes_at = {[SEG] = MX_INDICES},
    .alike = 1 << Q | 1 << K,
    .dims = "!b!s!h!d,!b!s!k!d,!b!s->!h",
    .attr_size = sizeof(max_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(max_attr, MX_ATTR_INT, window),
                                      MX_FIELD(max_attr, MX_ATTR_F64, scale), {0}},
    .place = place,
    .local = local,
    .infer = infer,
    .cost = cost,
    .cpu = max_cpu,
    .work_bytes = work_bytes,
    .cases = (const mx_case[]){
        {N_IN, {{4, {2, 6, 4, 8}, .no_grad = true}, {4, {2, 6, 2, 8}, .no_grad = true}, NONE},
         &(max_attr){0, 0.5}},
        {N_IN, {{4, {2, 70, 2, 16}, .no_grad = true}, {4, {2, 70, 2, 16}, .no_grad = true},
                {2, {2, 70}, MX_I32, 0, 2}}, &(max_attr){9, 0.5}},
        {N_IN, {{4, {1, 96, 2, 32}, .no_grad = true}, {4, {1, 96, 1, 32}, .no_grad = true}, NONE},
         &(max_attr){0, 0.1}}, {0}},
};

/* top_k.c - the k largest values of the last dim, largest first, and where they were.
 *
 *     x (*, d) -> values (*, k), indices (*, k) int32
 * Of equal values the one with the lower index comes first; NaN counts as larger than everything,
 * as in PyTorch (which leaves the order of ties open). A row is read once through a heap of the k
 * best so far, worst on top, which is then sorted in place: d log k, no matter how the values are
 * ordered. The gradient of the values goes back to where they came from; the indices have none.
 */
#include "ops.h"
#include "ops/load.h"

#include <math.h>
#include <omp.h>

typedef struct {
    int64_t k;
} top_k_attr;

enum { TILE = 256 };

static void infer(mx_graph *g, mx_node *n)
{
    const top_k_attr *at = n->attr;
    int64_t d = n->in[0]->type.dim[n->in[0]->type.ndim - 1];
    if (at->k < 1 || at->k > d)
        mx_graph_fail(g, "top_k: the %lld largest of %lld", (long long)at->k, (long long)d);
    n->type.dim[n->type.ndim - 1] = at->k;
    n->more[0] = n->type;
    n->more[0].dtype = MX_I32;
}

typedef struct {
    double value;
    int32_t index;
    bool nan;
} entry;

static bool better(const entry *a, const entry *b)
{
    if (a->nan != b->nan)
        return a->nan;
    if (!a->nan && a->value != b->value)
        return a->value > b->value;
    return a->index < b->index;
}

/* Lets heap[i] sink below its betters' children until no child is worse than it. */
static void sink(entry *heap, int64_t n, int64_t i)
{
    entry x = heap[i];
    for (int64_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && better(&heap[c], &heap[c + 1]))
            c++;
        if (!better(&x, &heap[c]))
            break;
        heap[i] = heap[c];
    }
    heap[i] = x;
}

static void top_of_row(const mx_tensor *x, int64_t from, int64_t d, entry *heap, int64_t k)
{
    double tile[TILE];
    for (int64_t i = 0; i < d; i++) {
        if (i % TILE == 0)
            mx_load_run_f64(x, from + i, d - i < TILE ? d - i : TILE, tile);
        double v = tile[i % TILE];
        entry e = {v, (int32_t)i, isnan(v)};
        if (i < k) {
            heap[i] = e;
            for (int64_t j = k / 2 - 1; i == k - 1 && j >= 0; j--)
                sink(heap, k, j);
        } else if (better(&e, &heap[0])) {
            heap[0] = e;
            sink(heap, k, 0);
        }
    }
    for (int64_t n = k - 1; n > 0; n--) { /* the worst goes to the end, the rest is a heap again */
        entry worst = heap[0];
        heap[0] = heap[n];
        heap[n] = worst;
        sink(heap, n, 0);
    }
}

static void top_k_cpu(const mx_call *c)
{
    const mx_type *t = &c->in[0].type;
    int64_t k = ((const top_k_attr *)c->attr)->k, d = t->dim[t->ndim - 1];
    int64_t rows = d ? mx_type_count(t) / d : 0;
    int32_t *index = c->out[1].data;
#pragma omp parallel for schedule(static) if (rows * d > 1 << 14)
    for (int64_t r = 0; r < rows; r++) {
        entry *heap = (entry *)c->work + k * omp_get_thread_num();
        top_of_row(&c->in[0], r * d, d, heap, k);
        for (int64_t i = 0; i < k; i++) {
            mx_store_f64(&c->out[0], r * k + i, heap[i].value);
            index[r * k + i] = heap[i].index;
        }
    }
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    return sizeof(entry) * (size_t)((const top_k_attr *)n->attr)->k * (size_t)n_threads;
}

/* Values are the node itself, indices mx_output(g, node, 1). */
mx_node *mx_top_k(mx_graph *g, mx_node *x, int64_t k)
{
    return MX_APPLY(g, &mx_op_top_k, &(top_k_attr){k}, x);
}

static void top_k_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const mx_type *x = &n->in[0]->type;
    if (dout[0])
        din[0] = mx_scatter_last(g, mx_output(g, n, 1), dout[0], x->dim[x->ndim - 1]);
}

static mx_cost cost(const mx_node *n)
{
    double k = (double)((const top_k_attr *)n->attr)->k;
    return (mx_cost){.flops = (double)mx_type_count(&n->in[0]->type) * (1 + log2(k))};
}

const mx_op mx_op_top_k = {
    .name = "top_k",
    .doc = "the k largest of the last dim and their indices",
    .dtypes = MX_NUMBERS,
    .dims = "*!d->*!k,*!k",
    .n_out = 2,
    .attr_size = sizeof(top_k_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(top_k_attr, MX_ATTR_INT, k), {0}},
    .no_cast = true,
    .infer = infer,
    .grad = top_k_vjp,
    .cost = cost,
    .cpu = top_k_cpu,
    .work_bytes = work_bytes,
    .cases = (const mx_case[]){{1, {{3, {2, 4, 9}}}, &(top_k_attr){3}},
                               {1, {{2, {3, 300}}}, &(top_k_attr){20}},
                               {1, {{1, {5}}}, &(top_k_attr){5}},
                               {1, {{2, {2, 2100}, .no_grad = true}}, &(top_k_attr){7}},
                               {1, {{2, {3, 150}, .no_grad = true}}, &(top_k_attr){40}},
                               {1, {{2, {2, 6}, MX_I32, 0, 4}}, &(top_k_attr){2}}, {0}},
};

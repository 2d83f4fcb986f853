/* sort_by_expert.c - the bookkeeping of a mixture of experts: tokens grouped by expert.
 *
 *     expert (N, k) int32, in [0, E)  ->  order (N k), start (E + 1), place (N k), all int32
 * Entry f = n k + j is token n's j-th choice. `order` lists the entries by expert, equal experts in
 * their own order; those of expert e are order[start[e]..start[e + 1]). `place` is the inverse:
 * order[place[f]] = f. Entries with an expert outside [0, E) (dropped or padding) come last, beyond
 * start[E], where grouped matmuls give zeros. A counting sort by one thread: N k steps against
 * N k d of moving the rows. No gradient: choices are not differentiable.
 */
#include "ir/partition.h"
#include "ops.h"
#include "ops/gpu_work.h"

#include <string.h>

typedef struct {
    int64_t experts;
} sort_attr;

static void infer(mx_graph *g, mx_node *n)
{
    const sort_attr *at = n->attr;
    const mx_type *x = &n->in[0]->type;
    if (at->experts < 1)
        mx_graph_fail(g, "sort_by_expert: choices of %lld experts; expected 1 or more",
                      (long long)at->experts);
    n->type.dim[0] = n->more[1].dim[0] = mx_type_count(x);
    n->more[0].dim[0] = at->experts + 1;
}

static void sort_cpu(const mx_call *c)
{
    int64_t n = mx_type_count(&c->in[0].type), E = ((const sort_attr *)c->attr)->experts;
    const int32_t *expert = c->in[0].data;
    int32_t *order = c->out[0].data, *start = c->out[1].data, *place = c->out[2].data;
    int32_t *next = c->work; /* where the next entry of each expert goes; [E]: of the others */
    memset(next, 0, sizeof *next * (size_t)(E + 1));
    for (int64_t f = 0; f < n; f++)
        next[expert[f] >= 0 && expert[f] < E ? expert[f] : E]++;
    for (int64_t e = 0, at = 0; e <= E; e++) {
        int32_t count = next[e];
        start[e] = next[e] = (int32_t)at;
        at += count;
    }
    for (int64_t f = 0; f < n; f++) {
        int32_t to = next[expert[f] >= 0 && expert[f] < E ? expert[f] : E]++;
        order[to] = (int32_t)f;
        place[f] = to;
    }
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    (void)n_threads;
    return sizeof(int32_t) * (size_t)(((const sort_attr *)n->attr)->experts + 1);
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    (void)most;
    return mx_gpu_experts_bytes(mx_type_count(&n->in[0]->type),
                                ((const sort_attr *)n->attr)->experts);
}

/* order is the node itself, start mx_output(g, node, 1), place mx_output(g, node, 2). */
mx_node *mx_sort_by_expert(mx_graph *g, mx_node *expert, int64_t experts)
{
    return MX_APPLY(g, &mx_op_sort_by_expert, &(sort_attr){experts}, expert);
}

/* On a mesh every rank sorts its own tokens. The starts are sums of counts, so those of all tokens
 * are the sum over ranks. */
static void place(const mx_node *n, mx_partition_call *p)
{
    mx_cut tokens = p->have[0].dim[0], entries = tokens;
    if (entries.n)
        entries.size[entries.n - 1] *= n->in[0]->type.dim[1];
    entries.sorted_by = n->id + 1;
    p->in[0] = (mx_placement){{tokens}};
    p->out[0] = p->out[2] = (mx_placement){{entries}};
    p->out[1] = (mx_placement){.partial = mx_cut_axes(&tokens)};
}

const mx_op mx_op_sort_by_expert = {
    .name = "sort_by_expert",
    .doc = "token choices grouped by expert",
    .dtypes = MX_INDICES,
    .dims = "!n!k->!p,!e,!p",
    .n_out = 3,
    .attr_size = sizeof(sort_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(sort_attr, MX_ATTR_INT, experts), {0}},
    .place = place,
    .infer = infer,
    .cpu = sort_cpu,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){{1, {{2, {6, 2}, MX_I32, -1, 5}}, &(sort_attr){4}},
                               {1, {{2, {1, 1}, MX_I32, 0, 1}}, &(sort_attr){3}},
                               {1, {{2, {700, 3}, MX_I32, -1, 70}}, &(sort_attr){67}}, {0}},
};

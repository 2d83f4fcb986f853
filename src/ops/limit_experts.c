/* limit_experts.c - expert capacity: each expert takes at most `capacity` entries of a row, others
 * drop.
 *
 *     expert (b, m) int32  ->  (b, m) int32
 * Entries are served in their order; once an expert has `capacity` entries of the row (a sequence's
 * tokens, each with its choices), further ones become `experts`, which is no expert: sort_by_expert
 * puts them last and grouped_matmul gives zeros for them. No gradient: choices have none.
 */
#include "ops.h"

#include <string.h>

typedef struct {
    int64_t experts, capacity;
} limit_attr;

static void infer(mx_graph *g, mx_node *n)
{
    const limit_attr *at = n->attr;
    if (at->experts < 1 || at->capacity < 0)
        mx_graph_fail(g, "limit_experts: %lld experts with %lld places; expected 1 or more, 0 or "
                      "more", (long long)at->experts, (long long)at->capacity);
}

static void limit_cpu(const mx_call *c)
{
    const limit_attr *at = c->attr;
    int64_t rows = c->in[0].type.dim[0], m = c->in[0].type.dim[1];
    const int32_t *in = c->in[0].data;
    int32_t *out = c->out[0].data, *taken = c->work;
    for (int64_t r = 0; r < rows; r++) {
        memset(taken, 0, sizeof *taken * (size_t)at->experts);
        for (int64_t i = r * m; i < (r + 1) * m; i++) {
            bool fits = in[i] >= 0 && in[i] < at->experts && taken[in[i]] < at->capacity;
            out[i] = fits ? in[i] : (int32_t)at->experts;
            if (fits)
                taken[in[i]]++;
        }
    }
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    (void)n_threads;
    return sizeof(int32_t) * (size_t)((const limit_attr *)n->attr)->experts;
}

mx_node *mx_limit_experts(mx_graph *g, mx_node *expert, int64_t experts, int64_t capacity)
{
    limit_attr at = {experts, capacity};
    return MX_APPLY(g, &mx_op_limit_experts, &at, expert);
}

const mx_op mx_op_limit_experts = {
    .name = "limit_experts",
    .doc = "choices beyond an expert's capacity in a row become none",
    .dtypes = MX_INDICES,
    .dims = "b!m->b!m",
    .attr_size = sizeof(limit_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(limit_attr, MX_ATTR_INT, experts),
                                      MX_FIELD(limit_attr, MX_ATTR_INT, capacity), {0}},
    .infer = infer,
    .cpu = limit_cpu,
    .work_bytes = work_bytes,
    .cases = (const mx_case[]){{1, {{2, {4, 9}, MX_I32, -1, 4}}, &(limit_attr){3, 2}},
                               {1, {{2, {1, 5}, MX_I32, 0, 2}}, &(limit_attr){2, 0}},
                               {1, {{2, {2, 300}, MX_I32, -1, 8}}, &(limit_attr){7, 30}}, {0}},
};

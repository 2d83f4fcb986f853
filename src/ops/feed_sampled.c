/* feed_sampled.c - the tokens of a batch, some of them sampled by the batch before.
 *
 *     tokens (N, 1) int32   from (N, 1) int32   sampled (1, R) int32   ->   (N, 1) int32
 *     from[i] in [0, R): the token sampled for sequence from[i], else tokens[i]
 * So a batch can be started before the host knows what the one before it gave. -1, sampled from
 * logits that are not numbers, becomes token 0: that answer ends in an error.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/inputs.h"

enum { MX_INPUTS_FEED_SAMPLED };

static void feed_cpu(const mx_call *c)
{
    const int32_t *tokens = c->in[FEED_TOKENS].data, *from = c->in[FEED_FROM].data;
    const int32_t *sampled = c->in[FEED_SAMPLED].data;
    int64_t n = mx_type_count(&c->out[0].type), rows = mx_type_count(&c->in[FEED_SAMPLED].type);
    int32_t *out = c->out[0].data;
    for (int64_t i = 0; i < n; i++) {
        bool fed = from[i] >= 0 && from[i] < rows;
        out[i] = fed ? sampled[from[i]] : tokens[i];
        if (fed && out[i] < 0)
            out[i] = 0;
    }
}

mx_node *mx_feed_sampled(mx_graph *g, mx_node *tokens, mx_node *from, mx_node *sampled)
{
    return MX_APPLY(g, &mx_op_feed_sampled, NULL, tokens, from, sampled);
}

const mx_op mx_op_feed_sampled = {
    .name = "feed_sampled",
    .doc = "tokens, or those that the batch before has sampled",
    .dims = "ns,ns,!o!r->ns",
    .dtypes = MX_INDICES,
    .no_cast = true,
    .cost = mx_cost_move,
    .cpu = feed_cpu,
    .cases = (const mx_case[]){{3, {{2, {5, 1}, MX_I32, 0, 90}, {2, {5, 1}, MX_I32, -1, 6},
                                    {2, {1, 7}, MX_I32, 100, 190}}},
                               {3, {{2, {700, 1}, MX_I32, 0, 90}, {2, {700, 1}, MX_I32, -2, 9},
                                    {2, {1, 7}, MX_I32, -1, 190}}}, {0}},
};

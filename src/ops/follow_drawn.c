/* follow_drawn.c - the tokens of a batch, where some are those that the batch before has drawn.
 *
 *     tokens (N, 1) int32   from (N, 1) int32   drawn (1, R) int32   ->   (N, 1) int32
 *     from[i] in [0, R): the token drawn for sequence from[i], else tokens[i]
 * So a batch can be started before the host knows what the one before it gave. -1, a draw from
 * logits that are not numbers, becomes token 0: that answer ends in an error.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/inputs.h"

enum { MX_INPUTS_FOLLOW_DRAWN };

static void follow_cpu(const mx_call *c)
{
    const int32_t *tokens = c->in[FOLLOW_TOKENS].data, *from = c->in[FOLLOW_FROM].data;
    const int32_t *drawn = c->in[FOLLOW_DRAWN].data;
    int64_t n = mx_type_count(&c->out[0].type), rows = mx_type_count(&c->in[FOLLOW_DRAWN].type);
    int32_t *out = c->out[0].data;
    for (int64_t i = 0; i < n; i++) {
        bool follows = from[i] >= 0 && from[i] < rows;
        out[i] = follows ? drawn[from[i]] : tokens[i];
        if (follows && out[i] < 0)
            out[i] = 0;
    }
}

mx_node *mx_follow_drawn(mx_graph *g, mx_node *tokens, mx_node *from, mx_node *drawn)
{
    return MX_APPLY(g, &mx_op_follow_drawn, NULL, tokens, from, drawn);
}

const mx_op mx_op_follow_drawn = {
    .name = "follow_drawn",
    .doc = "tokens, or what the batch before has drawn",
    .dims = "ns,ns,!o!r->ns",
    .dtypes = MX_INDICES,
    .no_cast = true,
    .cost = mx_cost_move,
    .cpu = follow_cpu,
    .cases = (const mx_case[]){{3, {{2, {5, 1}, MX_I32, 0, 90}, {2, {5, 1}, MX_I32, -1, 6},
                                    {2, {1, 7}, MX_I32, 100, 190}}},
                               {3, {{2, {700, 1}, MX_I32, 0, 90}, {2, {700, 1}, MX_I32, -2, 9},
                                    {2, {1, 7}, MX_I32, -1, 190}}}, {0}},
};

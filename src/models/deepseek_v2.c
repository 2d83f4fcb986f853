/* deepseek_v2.c - DeepSeek V2 and V2-Lite: see deepseek.c.
 *
 * Router: softmax over all experts, the best k with their scores as they are, times the scaling
 * factor. With group_limited_greedy only the groups with the best single expert are open.
 */
#include "models/deepseek.h"

#include "ops.h"
#include <string.h>

static mx_routing route(mx_graph *g, const mx_deepseek *c, mx_build *b, mx_node *x)
{
    mx_node *logits = mx_router_logits(g, b, x, "gate", c->moe.experts, false);
    mx_gating choice = {.k = c->moe.k, .scale = c->moe.scale, .groups = c->groups,
                        .open_groups = c->open_groups, .group_best = 1};
    return mx_route(g, logits, mx_softmax(g, logits), choice);
}

static mx_head build(mx_graph *g, const void *config, mx_build *b)
{
    return mx_deepseek_build(g, config, b, &(mx_deepseek_parts){.route = route});
}

static mx_status finish(void *config, const json_t *json)
{
    mx_deepseek *c = config;
    bool greedy = strcmp(c->topk_method, "greedy") == 0;
    if (!greedy && strcmp(c->topk_method, "group_limited_greedy") != 0)
        return mx_fail(MX_INPUT, "\"topk_method\" is \"%s\", expected greedy or "
                       "group_limited_greedy", c->topk_method);
    if (greedy)
        c->groups = 0;
    c->interleaved = true;
    return mx_deepseek_finish(c, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DEEPSEEK(6, 0, 2),
    MX_CFG(mx_deepseek, groups, "n_group", MX_IS_COUNT_OR_0),
    MX_CFG(mx_deepseek, open_groups, "topk_group", MX_IS_COUNT_OR_0),
    MX_CFG(mx_deepseek, topk_method, "topk_method", MX_CFG_TEXT, .text = "greedy"),
    {0},
};

const mx_model mx_model_deepseek_v2 = {
    .name = "deepseek_v2",
    .doc = "DeepSeek V2, V2-Lite",
    .model_types = "deepseek_v2",
    .architecture = "DeepseekV2ForCausalLM",
    .fields = fields,
    MX_EXPERTS_FAMILY(mx_deepseek, finish, build),
    .decoder_block = "deepseek",
    .decoder_keys = "routed_score_func=softmax",
    .fixed_keys = "attention_type=mla",
};

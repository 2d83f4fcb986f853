/* gemma4_config.c - what Gemma 4's configuration leaves to be worked out: which layers are full,
 * their heads, and whose keys the last layers use. */
#include "models/gemma4.h"

#include <stdio.h>
#include <string.h>

/* per_layer_config: {"5": {"head_dim": 512, "num_key_value_heads": 2}} for each full layer; the
 * hub's first files say global_head_dim and num_global_key_value_heads. */
static mx_status read_global_heads(mx_gemma4 *c, const json_t *json)
{
    const json_t *per_layer = json_object_get(json, "per_layer_config");
    if (!json_is_object(per_layer)) {
        if (!c->global_kv_heads || !c->k_eq_v)
            c->global_kv_heads = c->kv_heads;
        if (!c->global_head_dim)
            c->global_head_dim = c->head_dim;
        return MX_OK;
    }
    int64_t D = 0, K = 0;
    for (int64_t l = 0; l < c->layers; l++) {
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)l);
        const json_t *o = json_object_get(per_layer, number);
        const json_t *d = json_object_get(o, "head_dim"),
                     *k = json_object_get(o, "num_key_value_heads");
        int64_t here_d = json_is_integer(d) ? json_integer_value(d) : c->head_dim;
        int64_t here_k = json_is_integer(k) ? json_integer_value(k) : c->kv_heads;
        bool full = c->layer_types.type[l] == MX_GEMMA4_FULL, first = full && !D;
        if (first)
            D = here_d, K = here_k;
        if (here_d != (full ? D : c->head_dim) || here_k != (full ? K : c->kv_heads))
            return mx_fail(MX_INPUT,
                           "\"per_layer_config\" gives layer %lld %lld heads of %lld; layers "
                           "of one kind must be alike",
                           (long long)l, (long long)here_k, (long long)here_d);
    }
    c->global_head_dim = D ? D : c->head_dim;
    c->global_kv_heads = K ? K : c->kv_heads;
    return MX_OK;
}

/* A layer without keys of its own needs an earlier one of its kind that has them. */
static mx_status check_shared(const mx_gemma4 *c)
{
    int64_t first = c->layers - c->shared_layers;
    bool have[MX_GEMMA4_KINDS] = {0};
    for (int64_t l = 0; l < c->layers; l++) {
        if (l < first)
            have[c->layer_types.type[l]] = true;
        else if (!have[c->layer_types.type[l]])
            return mx_fail(MX_INPUT,
                           "\"num_kv_shared_layers\" is %lld of %lld layers, but no layer "
                           "before has the keys that layer %lld needs",
                           (long long)c->shared_layers, (long long)c->layers, (long long)l);
    }
    return MX_OK;
}

mx_status mx_gemma4_finish(void *config, const json_t *json)
{
    mx_gemma4 *c = config;
    mx_layer_types *t = &c->layer_types;
    MX_TRY(mx_check_layer_types(t, c->layers));
    for (int64_t l = 0; !t->n && l < c->layers; l++)
        t->type[l] = (l + 1) % 6 ? MX_GEMMA4_SLIDING : MX_GEMMA4_FULL;
    t->n = (int)c->layers;
    t->type[t->n - 1] = MX_GEMMA4_FULL; /* whatever the list says, as transformers */
    if (strcmp(c->bidirectional, "all") == 0)
        c->window = c->window / 2 + 1;
    if (c->rope.partial < 0) { /* a given type without a share turns everything */
        const json_t *r =
            json_object_get(json_object_get(json, "rope_parameters"), "full_attention");
        c->rope.partial = json_object_get(r, "rope_type") ? 1 : 0.25;
    }
    if (c->d_input && !c->vocab_input)
        c->vocab_input = c->vocab;
    MX_TRY(mx_check_heads(c->d, c->heads, &c->kv_heads, &c->head_dim));
    MX_TRY(read_global_heads(c, json));
    MX_TRY(mx_check_heads(c->d, c->heads, &c->global_kv_heads, &c->global_head_dim));
    MX_TRY(check_shared(c));
    if (c->mixture)
        MX_TRY(mx_check_moe(&c->moe));
    MX_TRY(mx_check_rope(&c->local, c->max_positions));
    return mx_check_rope(&c->rope, c->max_positions);
}

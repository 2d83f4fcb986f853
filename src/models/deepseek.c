/* deepseek.c - the decoder of DeepSeek V2 and later; see deepseek.h and nn/mla.h.
 *
 *     x = x + mla(norm x)
 *     x = x + mlp(norm x)                                        in the first dense_layers layers
 *     x = x + sum_j w_j expert_j(norm x) + shared(norm x)        in the others
 *
 * Multi-token prediction (V3; mtp_num_layers, as MaxText has it, in training; serving drafts with
 * the first of them): layer L + k - 1 reads h' = eh_proj [enorm embed(token i + k), hnorm h_i], and
 * its own norm and the model's head predict token i + k + 1. The names are those of the published
 * checkpoints, which repeat embedding and head in such a layer; these copies are not read. MaxText
 * has no norm of such a layer's own.
 */
#include "models/deepseek.h"

#include "ops.h"
#include <math.h>

static bool is_dense(const mx_deepseek *c, int64_t l)
{
    if (l >= c->base.layers)
        return false; /* MTP layers have experts */
    return c->mlp_types.n ? c->mlp_types.type[l] == 1 : l < c->dense_layers;
}

mx_routing mx_deepseek_route_sigmoid(mx_graph *g, const mx_deepseek *c, mx_build *b, mx_node *x)
{
    mx_node *logits = mx_router_logits(g, b, x, "gate", c->moe.experts, false);
    mx_node *bias = mx_router_bias(g, "gate.e_score_correction_bias", c->moe.experts);
    mx_gating choice = {.k = c->moe.k, .renormalise = c->moe.renormalise, .scale = c->moe.scale,
                        .bias = bias, .groups = c->groups, .open_groups = c->open_groups,
                        .group_best = 2};
    mx_routing r = mx_route(g, logits, mx_sigmoid(g, logits), choice);
    mx_router_bias_update(g, b, bias, &r, c->bias_rate);
    return r;
}

static mx_node *mixture(mx_graph *g, const mx_deepseek *c, mx_build *b, mx_node *x,
                        mx_deepseek_router *route)
{
    mx_act act = c->base.act;
    mx_routing r = route(g, c, b, x);
    mx_balance(g, b, &c->moe, &r);
    mx_expert_names names = {"gate_proj", "up_proj", "down_proj"};
    mx_node *y = mx_expert_mlp(g, b, x, &r, &c->moe, names, act);
    int64_t shared = c->shared_experts * c->moe.d_ff;
    if (!shared)
        return y;
    return mx_add(g, y, mx_shared_expert(g, b, x, "shared_experts", shared, act, NULL));
}

static mx_node *attention(mx_graph *g, const mx_deepseek *c, mx_build *b, mx_node *x,
                          const mx_rope_table *t, const mx_deepseek_parts *p)
{
    mx_node *q_latent = mx_mla_query_latent(g, b, x, &c->mla);
    mx_deepseek_choice choice = {0};
    mx_mla_seen seen = {0};
    if (p->select)
        choice = p->select(g, c, b, x, q_latent);
    mx_node *o = mx_mla_attend(g, b, x, q_latent, &c->mla, c->base.heads, t, choice.selected,
                               &seen);
    if (choice.scores)
        p->learn(g, c, b, &choice, &seen);
    return o;
}

/* The layer of the current scope. */
static mx_node *layer(mx_graph *g, const mx_deepseek *c, mx_build *b, mx_node *x, int64_t l,
                      const mx_rope_table *t, const mx_deepseek_parts *p)
{
    const mx_decoder *d = &c->base;
    mx_node *h = mx_rms_norm(g, x, "input_layernorm", d->eps, false);
    mx_scope(g, "self_attn");
    x = mx_add(g, x, mx_scope_end(g, attention(g, c, b, h, t, p)));
    h = mx_rms_norm(g, x, "post_attention_layernorm", d->eps, false);
    mx_scope(g, "mlp");
    h = is_dense(c, l) ? mx_gated_mlp(g, b, h, d->d_ff, d->act, false)
                       : mixture(g, c, b, h, p->route);
    return mx_add(g, x, mx_scope_end(g, h));
}

/* Multi-token prediction: layers after the last, each of which reads the hidden state of the one
 * before it, x (B, S, d), and the embedding of the next token, and predicts the token after that.
 * Embedding and head are the model's. */
static mx_node *mtp_layer(mx_graph *g, const mx_deepseek *c, mx_build *b, mx_node *x, int64_t l,
                          const mx_rope_table *t, const mx_deepseek_parts *p)
{
    const mx_decoder *d = &c->base;
    mx_node *e = mx_embedding(g, b, "model.embed_tokens", d->vocab, d->d);
    mx_scope(g, "model.layers.%lld", (long long)l);
    e = mx_rms_norm(g, e, "enorm", d->eps, false);
    mx_node *h = mx_rms_norm(g, x, "hnorm", d->eps, false);
    h = mx_concat(g, 2, (mx_node *[]){e, h}, 2);
    const char *axes = mx_axes_text(g, "embed,mlp(%lld+%lld)", (long long)d->d, (long long)d->d);
    h = mx_linear(g, b, h, "eh_proj", d->d, axes, false);
    return mx_scope_end(g, layer(g, c, b, h, l, t, p));
}

static mx_node *mtp_norm(mx_graph *g, const mx_deepseek *c, mx_node *x, int64_t l)
{
    mx_scope(g, "model.layers.%lld", (long long)l);
    return mx_scope_end(g, mx_rms_norm(g, x, "shared_head.norm", c->base.eps, false));
}

/* The first of them alone: b->tokens are those that follow b->before. */
static mx_head build_draft(mx_graph *g, const mx_deepseek *c, mx_build *b,
                           const mx_deepseek_parts *p)
{
    const mx_decoder *d = &c->base;
    mx_rope_table t = mx_rope_tables(g, b, &d->rope, c->mla.rope, c->interleaved);
    mx_node *before = mx_cast(g, b->before, b->cache_dtype);
    b->after = mtp_layer(g, c, b, before, d->layers, &t, p);
    return (mx_head){.hidden = mtp_norm(g, c, b->after, d->layers),
                     .weight = mx_head_weight(g, b, d->vocab, d->d, d->tied)};
}

static void add_mtp_layers(mx_graph *g, const mx_deepseek *c, mx_build *b, mx_node *x,
                           const mx_rope_table *t, const mx_deepseek_parts *p, mx_head *head)
{
    const mx_decoder *d = &c->base;
    mx_node *tokens = b->tokens;
    for (int64_t k = 1; k <= c->mtp_layers && k < b->seq; k++) {
        int64_t l = d->layers + k - 1;
        b->tokens = mx_pad(g, mx_slice(g, tokens, 1, k, b->seq - k), 1, 0, k);
        x = mtp_layer(g, c, b, x, l, t, p);
        head->mtp[head->n_mtp++] = mtp_norm(g, c, x, l);
    }
    b->tokens = tokens;
    head->mtp_weight = c->mtp_weight;
}

mx_head mx_deepseek_build(mx_graph *g, const mx_deepseek *c, mx_build *b,
                          const mx_deepseek_parts *p)
{
    const mx_decoder *d = &c->base;
    if (b->before)
        return build_draft(g, c, b, p);
    mx_node *x = mx_embedding(g, b, "model.embed_tokens", d->vocab, d->d);
    mx_rope_table t = mx_rope_tables(g, b, &d->rope, c->mla.rope, c->interleaved);
    for (int64_t l = 0; l < d->layers; l++) {
        mx_scope(g, "model.layers.%lld", (long long)l);
        x = mx_scope_end(g, layer(g, c, b, x, l, &t, p));
    }
    b->after = x;
    mx_head head = {.hidden = mx_rms_norm(g, x, "model.norm", d->eps, false),
                    .weight = mx_head_weight(g, b, d->vocab, d->d, d->tied)};
    if (b->training || b->mtp_eval)
        add_mtp_layers(g, c, b, x, &t, p, &head);
    return head;
}

mx_status mx_deepseek_finish(mx_deepseek *c, const json_t *json)
{
    mx_decoder *d = &c->base;
    mx_mla *m = &c->mla;
    if (!json_object_get(json, "q_lora_rank")) /* null says: none */
        m->q_rank = 1536;
    d->head_dim = m->nope + m->rope; /* config.json's head_dim is the rotated part, or nothing */
    if (m->rope % 2)
        return mx_fail(MX_INPUT, "\"qk_rope_head_dim\" is %lld, expected an even number",
                       (long long)m->rope);
    MX_TRY(mx_check_layer_types(&c->mlp_types, d->layers));
    MX_TRY(mx_check_moe(&c->moe));
    MX_TRY(mx_check_groups(&c->moe, c->groups, c->open_groups));
    MX_TRY(mx_decoder_finish(d, json));
    m->scale = mx_rope_score_factor(&d->rope) / sqrt((double)d->head_dim);
    return MX_OK;
}

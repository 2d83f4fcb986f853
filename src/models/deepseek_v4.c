/* deepseek_v4.c - DeepSeek V4: hyper-connections (nn/hyper.h), keys that are the values too, and
 * compressed attention to far tokens (nn/compress.h).
 *
 *     q = norm_head(wq_b norm(wq_a x))   kv = norm(wkv x), one head     last dims of both rotated
 *     o = attention to the last sliding_window tokens, and in most layers to entries, with a sink
 *     x <- wo_b wo_a unrotate(o)                                        wo_a: each group of heads
 * Layers by type: windows alone; the entries of short windows that an indexer chooses (compressed
 * sparse attention); all entries of long windows (heavily compressed attention). The latter two
 * rotate by frequencies of their own. A choice has no gradient: the indexer is not trained.
 *
 * Every layer has experts beside a shared one, with clamped SwiGLUs. Scores sqrt(softplus(logit)),
 * of the chosen ones their shares; a bias for the choice alone, or a table that gives each token
 * its experts (hash_moe). The MTP layer (mtp.*) is not built.
 *
 * Names are those of the published checkpoints; transformers writes other ones.
 * x (B, S, n, d), n streams; q (B, S, H, D); kv (B, S, 1, D).
 */
#include "models/decoder.h"
#include "models/mixture.h"
#include "nn/compress.h"
#include "nn/hyper.h"
#include "ops.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SLIDING = 1, SPARSE, HEAVY };
enum { HASHED = 1 };

typedef struct {
    mx_decoder base; /* first: the shared rows of the field table address it */
    mx_moe moe;
    mx_hyper hyper;
    int64_t q_rank, o_rank, o_groups, rope_dims, shared_experts, hash_layers;
    double partial, limit, bias_rate;
    char score[24];
    mx_int_list ratios;       /* of each layer; n = 0: by the layer types */
    mx_layer_types mlp_types; /* hash_moe, moe; n = 0: the first hash_layers are hashed */
    int64_t sparse_ratio, heavy_ratio;
    int64_t index_heads, index_dim, index_topk;
    mx_rope far; /* of layers with entries */
} config;

/* What layers share: tables of angles, windows of both ratios. */
typedef struct {
    mx_rope_table near, far;
    mx_windows sparse, heavy;
} shared;

static mx_attention_attr mask_of(const mx_decoder *d)
{
    return (mx_attention_attr){
        .causal = true, .window = d->window, .scale = 1 / sqrt((double)d->head_dim)};
}

static mx_compressor compressor(const config *c, int64_t dims, bool overlap)
{
    return (mx_compressor){.dims = dims,
                           .rotated = c->rope_dims,
                           .overlap = overlap,
                           .eps = c->base.eps,
                           .rope = &c->far};
}

static mx_node *compress(mx_graph *g, mx_build *b, mx_node *x, const mx_windows *w,
                         mx_compressor how)
{
    mx_scope(g, "compressor");
    return mx_scope_end(g, mx_compress(g, b, x, w, &how));
}

/* The entries of short windows that a query sees, given its latent: (B, S, k), indices. */
static mx_node *indexer(mx_graph *g, const config *c, mx_build *b, mx_node *x, mx_node *latent,
                        const shared *s)
{
    const mx_windows *w = &s->sparse;
    int64_t B = b->batch, S = b->seq, H = c->index_heads, D = c->index_dim;
    int before = g->n_nodes;
    mx_scope(g, "indexer");
    mx_node *q = mx_linear(g, b, latent, "wq_b", H * D, "heads,q_lora", false);
    q = mx_rope_tail(g, mx_reshape(g, q, MX_SHAPE(B, S, H, D)), &s->far, c->rope_dims);
    mx_node *weights = mx_linear(g, b, x, "weights_proj", H, "heads,embed", false);
    mx_node *keys = compress(g, b, x, w, compressor(c, D, true));
    keys = b->cache_len ? mx_entries_keep(g, b, "keys", keys, w)
                        : mx_reshape(g, keys, MX_SHAPE(B, w->seen, D));
    mx_select_extra e = mx_entries_seen(g, b, w);
    int64_t n = c->index_topk < w->seen ? c->index_topk : w->seen;
    mx_node *chosen =
        mx_select_keys(g, (mx_node *[]){q, weights, keys}, n, 1 / sqrt((double)D), &e);
    mx_freeze_since(g, before);
    return mx_scope_end(g, chosen);
}

/* What a layer of this type looks at; f has q, kv, sinks and mask. (B, S, H, D) in any shape. */
static mx_node *attend(mx_graph *g, const config *c, mx_build *b, mx_node *x, mx_node *latent,
                       mx_compressed_attention *f, int type, const shared *s)
{
    const mx_windows *w = type == SPARSE ? &s->sparse : &s->heavy;
    if (type == SLIDING)
        return mx_attend_kept(g, b, f->q, mx_kv_keep_one(g, b, f->kv, f->mask), f->mask, f->sinks);
    f->entries = compress(g, b, x, w, compressor(c, c->base.head_dim, type == SPARSE));
    f->chosen = type == SPARSE ? indexer(g, c, b, x, latent, s) : NULL;
    return mx_name(g, "context", mx_attend_compressed(g, b, f, w));
}

/* Each group of heads by its own rows of wo_a, all of them by wo_b. o (B, S, H, D). */
static mx_node *output(mx_graph *g, const config *c, mx_build *b, mx_node *o)
{
    const mx_decoder *d = &c->base;
    int64_t G = c->o_groups, R = c->o_rank, in = d->heads * d->head_dim / G;
    mx_node *w =
        mx_param(g, "wo_a.weight", MX_SHAPE(G * R, in), "heads,embed", MX_NORMAL(b->init_scale));
    mx_var_attr *attr = mx_var_edit(w);
    if (attr)
        attr->matrices = G;
    o = mx_reshape(g, o, MX_SHAPE(b->batch, b->seq, G, in));
    o = mx_matmul(g, "bsgi,gri->bsgr", o, mx_reshape(g, w, MX_SHAPE(G, R, in)));
    o = mx_reshape(g, o, MX_SHAPE(b->batch, b->seq, G * R));
    return mx_name(g, "out_proj", mx_linear(g, b, o, "wo_b", d->d, "embed,heads", false));
}

static mx_node *attention(mx_graph *g, const config *c, mx_build *b, mx_node *x, int64_t l,
                          const shared *s)
{
    const mx_decoder *d = &c->base;
    int64_t B = b->batch, S = b->seq, H = d->heads, D = d->head_dim;
    int type = d->layer_types.type[l];
    const mx_rope_table *t = type == SLIDING ? &s->near : &s->far;
    mx_rope_table back = *t;
    back.sin = mx_affine(g, t->sin, -1, 0);
    mx_node *latent = mx_linear(g, b, x, "wq_a", c->q_rank, "q_lora,embed", false);
    latent = mx_rms_norm(g, mx_name(g, "mla_q", latent), "q_norm", d->eps, false);
    mx_node *q = mx_linear(g, b, latent, "wq_b", H * D, "heads,q_lora", false);
    q = mx_name(g, "query_proj", mx_reshape(g, q, MX_SHAPE(B, S, H, D)));
    q = mx_rope_tail(g, mx_rms_scale(g, q, d->eps), t, c->rope_dims);
    mx_node *kv = mx_name(g, "mla_kv", mx_linear(g, b, x, "wkv", D, "kv_heads,embed", false));
    kv = mx_reshape(g, mx_rms_norm(g, kv, "kv_norm", d->eps, false), MX_SHAPE(B, S, 1, D));
    kv = mx_rope_tail(g, kv, t, c->rope_dims);
    mx_compressed_attention f = {.q = q,
                          .kv = kv,
                          .sinks = mx_param(g, "attn_sink", MX_SHAPE(H), "heads", MX_ZEROS),
                          .mask = mask_of(d)};
    mx_node *o = attend(g, c, b, x, latent, &f, type, s);
    o = mx_reshape(g, o, MX_SHAPE(B, S, H, D));
    /* Values were rotated by their own positions; rotated back by the query's, they are rotated by
     * how far they are from it. */
    return output(g, c, b, mx_rope_tail(g, o, &back, c->rope_dims));
}

/* silu of the gate, not above the limit, times up, within it. */
static mx_node *clamped(mx_graph *g, const config *c, mx_node *gate, mx_node *up)
{
    gate = mx_clamp(g, gate, -INFINITY, c->limit);
    return mx_mul(g, mx_activation(g, gate, c->base.act), mx_clamp(g, up, -c->limit, c->limit));
}

static mx_routing route(mx_graph *g, const config *c, mx_build *b, mx_node *x, int64_t l)
{
    const mx_moe *m = &c->moe;
    mx_node *logits = mx_router_logits(g, b, x, "gate", m->experts, false);
    mx_node *scores = strcmp(c->score, "softmax") == 0   ? mx_softmax(g, logits)
                      : strcmp(c->score, "sigmoid") == 0 ? mx_sigmoid(g, logits)
                                                         : mx_sqrt(g, mx_softplus(g, logits));
    mx_gating choice = {.k = m->k, .renormalise = true, .scale = m->scale};
    if (c->mlp_types.type[l] == HASHED) {
        choice.expert = mx_router_table(g, b, "gate.tid2eid", c->base.vocab, m);
        return mx_route(g, logits, scores, choice);
    }
    choice.bias = mx_router_bias(g, "gate.bias", m->experts);
    mx_routing r = mx_route(g, logits, scores, choice);
    mx_router_bias_update(g, b, choice.bias, &r, c->bias_rate);
    mx_balance(g, b, m, &r);
    return r;
}

static mx_node *mixture(mx_graph *g, const config *c, mx_build *b, mx_node *x, int64_t l)
{
    int64_t d = c->base.d, f = c->moe.d_ff, shared_f = c->shared_experts * f;
    const char *into = "exp,mlp_moe,embed_moe";
    mx_routing r = route(g, c, b, x, l);
    mx_dispatch t = mx_dispatch_tokens(g, b, x, &r, c->moe.capacity);
    mx_node *u =
        mx_expert_linear(g, b, &t, t.rows, "experts.*.w1.weight", f, into, false);
    mx_node *v =
        mx_expert_linear(g, b, &t, t.rows, "experts.*.w3.weight", f, into, false);
    mx_node *h =
        mx_weigh(g, &t, clamped(g, c, mx_name(g, "moe_mlpwi_0", u), mx_name(g, "moe_mlpwi_1", v)));
    h = mx_expert_linear(g, b, &t, h, "experts.*.w2.weight", d, "exp,embed_moe,mlp_moe", false);
    mx_node *y = mx_combine(g, b, &t, mx_name(g, "moe_mlpwo", h));
    if (!shared_f)
        return y;
    mx_scope(g, "shared_experts");
    mx_node *gate = mx_name(g, "mlpwi_0", mx_linear(g, b, x, "w1", shared_f, "mlp,embed", false));
    mx_node *up = mx_name(g, "mlpwi_1", mx_linear(g, b, x, "w3", shared_f, "mlp,embed", false));
    h = mx_linear(g, b, clamped(g, c, gate, up), "w2", d, "embed,mlp", false);
    return mx_add(g, y, mx_scope_end(g, mx_name(g, "mlpwo", h)));
}

static mx_node *layer(mx_graph *g, const config *c, mx_build *b, mx_node *x, int64_t l,
                      const shared *s)
{
    mx_scope(g, "layers.%lld", (long long)l);
    mx_hyper_block h = mx_hyper_enter(g, b, x, &c->hyper, "hc_attn");
    mx_node *y = mx_rms_norm(g, h.in, "attn_norm", c->base.eps, false);
    mx_scope(g, "attn");
    x = mx_hyper_leave(g, &h, mx_scope_end(g, attention(g, c, b, y, l, s)));
    h = mx_hyper_enter(g, b, x, &c->hyper, "hc_ffn");
    y = mx_rms_norm(g, h.in, "ffn_norm", c->base.eps, false);
    mx_scope(g, "ffn");
    return mx_scope_end(g, mx_hyper_leave(g, &h, mx_scope_end(g, mixture(g, c, b, y, l))));
}

static mx_head build(mx_graph *g, const void *config_, mx_build *b)
{
    const config *c = config_;
    const mx_decoder *d = &c->base;
    mx_attention_attr mask = mask_of(d);
    shared s = {.near = mx_rope_tables(g, b, &d->rope, c->rope_dims, true),
                .far = mx_rope_tables(g, b, &c->far, c->rope_dims, true),
                .sparse = mx_windows_of(g, b, c->sparse_ratio, &mask),
                .heavy = mx_windows_of(g, b, c->heavy_ratio, &mask)};
    mx_node *x = mx_hyper_begin(g, mx_embedding(g, b, "embed", d->vocab, d->d), &c->hyper);
    for (int64_t l = 0; l < d->layers; l++)
        x = layer(g, c, b, x, l, &s);
    x = mx_hyper_end(g, b, x, &c->hyper, "hc_head");
    mx_node *w = mx_param(g, d->tied ? "embed.weight" : "head.weight", MX_SHAPE(d->vocab, d->d),
                          "vocab,embed", MX_NORMAL(b->init_scale));
    return (mx_head){.hidden = mx_rms_norm(g, x, "norm", d->eps, false), .weight = w};
}

/* --- configuration --- */

static mx_status check_sizes(const config *c)
{
    const mx_decoder *d = &c->base;
    int64_t D = d->head_dim;
    if (c->rope_dims < 2 || c->rope_dims % 2 || c->rope_dims > D || c->rope_dims > c->index_dim)
        return mx_fail(MX_INPUT,
                       "%lld dims of a head of %lld are rotated, and of the indexer's "
                       "%lld; expected an even number, not above either",
                       (long long)c->rope_dims, (long long)D, (long long)c->index_dim);
    if (c->q_rank < 1 || c->o_rank < 1 || c->o_groups < 1 || d->heads % c->o_groups)
        return mx_fail(MX_INPUT,
                       "q_lora_rank is %lld, o_lora_rank %lld, o_groups %lld of %lld "
                       "heads; expected positive numbers, and groups that divide the heads",
                       (long long)c->q_rank, (long long)c->o_rank, (long long)c->o_groups,
                       (long long)d->heads);
    if (c->sparse_ratio < 2 || c->sparse_ratio > 65536 || c->heavy_ratio < 2 ||
        c->heavy_ratio > 65536)
        return mx_fail(MX_INPUT, "windows of %lld and %lld tokens, expected 2 to 65,536",
                       (long long)c->sparse_ratio, (long long)c->heavy_ratio);
    if (c->index_heads < 1 || c->index_dim > 1024 || c->index_topk < 1)
        return mx_fail(MX_INPUT,
                       "an indexer of %lld heads of %lld that keeps %lld entries; "
                       "expected at least 1, at most 1024, and at least 1",
                       (long long)c->index_heads, (long long)c->index_dim,
                       (long long)c->index_topk);
    if (d->window < 1 || c->limit <= 0)
        return mx_fail(MX_INPUT,
                       "sliding_window is %lld and swiglu_limit %g, expected positive "
                       "numbers",
                       (long long)d->window, c->limit);
    if (c->moe.k > 64)
        return mx_fail(MX_INPUT, "a token goes to %lld experts, expected at most 64",
                       (long long)c->moe.k);
    return MX_OK;
}

/* The layers' types from compress_ratios, as released configurations say them, or as transformers
 * has them by default. */
static mx_status fill_layer_types(config *c)
{
    mx_layer_types *t = &c->base.layer_types;
    int64_t n = c->base.layers < MX_MAX_LAYERS ? c->base.layers : MX_MAX_LAYERS;
    if (t->n)
        return MX_OK;
    if (c->ratios.n && c->ratios.n < n)
        return mx_fail(MX_INPUT, "\"compress_ratios\" has %d numbers for %lld layers", c->ratios.n,
                       (long long)n);
    for (int64_t l = 0; l < n; l++) {
        int64_t r = c->ratios.n ? c->ratios.v[l] : -1;
        if (c->ratios.n && r != 0 && r != c->sparse_ratio && r != c->heavy_ratio)
            return mx_fail(MX_INPUT, "\"compress_ratios\"[%lld] is %lld, expected 0, %lld or %lld",
                           (long long)l, (long long)r, (long long)c->sparse_ratio,
                           (long long)c->heavy_ratio);
        t->type[l] = (unsigned char)(r == 0                         ? SLIDING
                                     : r == c->sparse_ratio         ? SPARSE
                                     : r == c->heavy_ratio || l < 2 ? HEAVY
                                     : l % 2                        ? SPARSE
                                                                    : HEAVY);
    }
    t->n = (int)n;
    return MX_OK;
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    mx_decoder *d = &c->base;
    mx_layer_types *m = &c->mlp_types;
    if (!(c->partial > 0 && c->partial <= 1))
        return mx_fail(MX_INPUT,
                       "\"partial_rotary_factor\" is %g, expected a number above 0 and up "
                       "to 1",
                       c->partial);
    if (!c->rope_dims)
        c->rope_dims = (int64_t)((double)d->head_dim * c->partial);
    d->kv_heads = 1;
    for (int64_t l = 0; !m->n && l < d->layers && l < MX_MAX_LAYERS; l++)
        m->type[l] = l < c->hash_layers ? HASHED : HASHED + 1;
    if (!m->n)
        m->n = (int)(d->layers < MX_MAX_LAYERS ? d->layers : MX_MAX_LAYERS);
    static const char *const scores[] = {"sqrtsoftplus", "softmax", "sigmoid"};
    bool known = false;
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++)
        known |= strcmp(c->score, scores[i]) == 0;
    if (!known)
        return mx_fail(MX_INPUT,
                       "\"scoring_func\" is \"%s\", expected sqrtsoftplus, softmax or "
                       "sigmoid",
                       c->score);
    MX_TRY(fill_layer_types(c));
    MX_TRY(mx_check_layer_types(m, d->layers));
    MX_TRY(mx_check_moe(&c->moe));
    c->hyper.norm_eps = d->eps;
    MX_TRY(mx_check_hyper(&c->hyper));
    MX_TRY(check_sizes(c));
    if (strcmp(c->far.type, "yarn") == 0 && c->far.attention_factor == 0)
        c->far.attention_factor = 1; /* released models do not scale the rotated dims */
    MX_TRY(mx_check_rope(&c->far, d->max_positions));
    return mx_decoder_finish(config_, json);
}

/* transformers writes the released names within its own: model.layers.0.attn.wq_a.weight, but
 * model.embed_tokens.weight and model.hc_head.hc_fn; the attention's kv_norm as norm. */
static const char *as_transformers(const char *name, char *buf, size_t cap)
{
    const char *norm = strstr(name, ".attn.kv_norm.");
    if (strcmp(name, "embed.weight") == 0)
        snprintf(buf, cap, "model.embed_tokens.weight");
    else if (strcmp(name, "head.weight") == 0)
        snprintf(buf, cap, "lm_head.weight");
    else if (mx_starts_with(name, "hc_head_"))
        snprintf(buf, cap, "model.hc_head.hc_%s", name + strlen("hc_head_"));
    else if (norm)
        snprintf(buf, cap, "model.%.*s.attn.norm.%s", (int)(norm - name), name,
                 norm + strlen(".attn.kv_norm."));
    else
        snprintf(buf, cap, "model.%s", name);
    return buf;
}

/* Rotary rows for the member `far`: of layers that have entries. Written as released, flat: nested
 * as transformers writes them, they would have to repeat which share of a head is rotated. */
#define SCALING(part)                                                                              \
    "rope_scaling." part "|rope_parameters.compress." part "|rope_parameters." part
#define FAR(member, keys, kind_, ...) MX_CFG(config, far.member, keys, kind_, __VA_ARGS__)
static const mx_cfg_field fields[] = {
    MX_CFG(mx_decoder, vocab, "vocab_size", MX_IS_VOCAB, .fallback = 129280,
           .maxtext = "vocab_size"),
    MX_CFG(mx_decoder, d, "hidden_size", MX_IS_WIDTH, .fallback = 4096, .maxtext = "base_emb_dim"),
    MX_CFG(mx_decoder, layers, "num_hidden_layers", MX_IS_LAYERS, .fallback = 43,
           .maxtext = "base_num_decoder_layers"),
    MX_CFG(mx_decoder, heads, "num_attention_heads", MX_IS_HEADS, .fallback = 64,
           .maxtext = "base_num_query_heads"),
    MX_CFG(mx_decoder, head_dim, "head_dim", MX_IS_HEAD_DIM, .fallback = 512,
           .maxtext = "head_dim"),
    MX_CFG(mx_decoder, max_positions, "max_position_embeddings", MX_IS_POSITIONS,
           .fallback = 1048576, .maxtext = "max_position_embeddings"),
    MX_CFG(mx_decoder, act, "hidden_act", MX_CFG_ACT, .fallback = MX_ACT_SILU),
    MX_CFG(mx_decoder, eps, "rms_norm_eps", MX_IS_EPSILON, .fallback = 1e-6,
           .maxtext = "normalization_layer_epsilon"),
    MX_CFG(mx_decoder, init_scale, "initializer_range", MX_IS_DEVIATION, .fallback = 0.02),
    MX_CFG(mx_decoder, tied, "tie_word_embeddings", MX_CFG_BOOL, .maxtext = "logits_via_embedding"),
    MX_CFG(mx_decoder, window, "sliding_window", MX_IS_LENGTH, .fallback = 128,
           .maxtext = "sliding_window_size"),
    MX_CFG(mx_decoder, layer_types, "layer_types", MX_CFG_LAYER_TYPES,
           .text = "sliding_attention,compressed_sparse_attention,heavily_compressed_attention"),
    MX_CFG(mx_decoder, rope.type, "rope_parameters.main.rope_type", MX_CFG_TEXT, .text = "default",
           .own = true),
    MX_CFG(mx_decoder, rope.theta, "rope_theta|rope_parameters.main.rope_theta", MX_IS_THETA,
           .fallback = 10000, .maxtext = "rope_max_timescale"),
    MX_CFG(mx_decoder, rope.factor, "rope_parameters.main.factor", MX_IS_FACTOR, .fallback = 1,
           .own = true),
    FAR(theta, "compress_rope_theta|rope_parameters.compress.rope_theta", MX_IS_THETA,
        .fallback = 160000, .maxtext = "compressed_rope_max_timescale"),
    FAR(type, SCALING("rope_type") "|rope_scaling.type", MX_CFG_TEXT, .text = "default"),
    FAR(factor, SCALING("factor"), MX_IS_FACTOR, .fallback = 1),
    FAR(beta_fast, SCALING("beta_fast"), MX_IS_FACTOR, .fallback = 32),
    FAR(beta_slow, SCALING("beta_slow"), MX_IS_FACTOR, .fallback = 1),
    FAR(truncate, SCALING("truncate"), MX_CFG_BOOL, .fallback = 1),
    FAR(original_length, SCALING("original_max_position_embeddings"), MX_IS_REAL_LENGTH_OR_0),
    FAR(attention_factor, "rope_parameters.compress.attention_factor", MX_IS_FACTOR_OR_0,
        .own = true),
    MX_CFG(config, partial, "partial_rotary_factor|rope_parameters.main.partial_rotary_factor",
           MX_IS_SHARE, .fallback = 0.125, .own = true),
    MX_CFG(config, rope_dims, "qk_rope_head_dim", MX_IS_HEAD_DIM_OR_0,
           .maxtext = "qk_rope_head_dim"),
    MX_CFG(config, q_rank, "q_lora_rank", MX_IS_WIDTH, .fallback = 1024, .maxtext = "q_lora_rank"),
    MX_CFG(config, o_rank, "o_lora_rank", MX_IS_WIDTH, .fallback = 1024, .maxtext = "o_lora_rank"),
    MX_CFG(config, o_groups, "o_groups", MX_IS_HEADS, .fallback = 8, .maxtext = "o_groups"),
    MX_CFG(config, ratios, "compress_ratios", MX_CFG_INTS(0, 1 << 16),
           .maxtext = "compress_ratios"),
    MX_CFG(config, sparse_ratio, "compress_rates.compressed_sparse_attention|compress_rate_csa",
           MX_IS_COUNT, .fallback = 4, .own = true),
    MX_CFG(config, heavy_ratio, "compress_rates.heavily_compressed_attention|compress_rate_hca",
           MX_IS_COUNT, .fallback = 128, .own = true),
    MX_CFG(config, index_heads, "index_n_heads", MX_IS_HEADS, .fallback = 64,
           .maxtext = "indexer_n_heads"),
    MX_CFG(config, index_dim, "index_head_dim", MX_IS_HEAD_DIM, .fallback = 128,
           .maxtext = "indexer_head_dim"),
    MX_CFG(config, index_topk, "index_topk", MX_IS_LENGTH, .fallback = 512,
           .maxtext = "indexer_topk"),
    MX_CFG(config, hyper.streams, "hc_mult", MX_CFG_INT(1, 64), .fallback = 4,
           .maxtext = "mhc_expansion_rate"),
    MX_CFG(config, hyper.steps, "hc_sinkhorn_iters", MX_CFG_INT(1, 1000), .fallback = 20,
           .maxtext = "sinkhorn_iterations"),
    MX_CFG(config, hyper.eps, "hc_eps", MX_IS_EPSILON, .fallback = 1e-6),
    MX_CFG(config, moe.experts, "n_routed_experts|num_local_experts", MX_IS_COUNT, .fallback = 256,
           .maxtext = "num_experts"),
    MX_CFG(config, moe.k, "num_experts_per_tok", MX_IS_COUNT, .fallback = 6,
           .maxtext = "num_experts_per_tok"),
    MX_CFG(config, moe.d_ff, "moe_intermediate_size", MX_IS_WIDTH, .fallback = 2048,
           .maxtext = "base_moe_mlp_dim"),
    MX_CFG(config, moe.scale, "routed_scaling_factor", MX_IS_FACTOR_OR_0, .fallback = 1.5,
           .maxtext = "routed_scaling_factor"),
    MX_CFG_MOE_LOSSES(config, 0.001),
    MX_CFG(config, shared_experts, "n_shared_experts", MX_IS_COUNT_OR_0, .fallback = 1,
           .maxtext = "shared_experts"),
    MX_CFG(config, mlp_types, "mlp_layer_types", MX_CFG_LAYER_TYPES, .text = "hash_moe,moe",
           .own = true),
    MX_CFG(config, hash_layers, "num_hash_layers", MX_IS_COUNT_OR_0, .fallback = 3,
           .maxtext = "first_num_hash_layers"),
    MX_CFG(config, score, "scoring_func", MX_CFG_TEXT, .text = "sqrtsoftplus",
           .maxtext = "routed_score_func"),
    MX_CFG(config, limit, "swiglu_limit", MX_IS_FACTOR_OR_0, .fallback = 10,
           .maxtext = "mlp_activations_limit"),
    MX_CFG(config, bias_rate, "routed_bias_update_rate", MX_IS_FACTOR_OR_0,
           .maxtext = "routed_bias_update_rate", .run = "routed_bias_update_rate"),
    {0},
};

const mx_model mx_model_deepseek_v4 = {
    .name = "deepseek_v4",
    .doc = "DeepSeek V4",
    .model_types = "deepseek_v4",
    .architecture = "DeepseekV4ForCausalLM",
    .fields = fields,
    .config_size = sizeof(config),
    .finish = finish,
    .summary = mx_decoder_summary,
    .build = build,
    .other_name = as_transformers,
    .no_decay = "*norm*,*.bias,*attn_sink,*hc_*_base,*hc_*_scale,*.ape",
    .unused = "mtp.*",
    .decoder_block = "deepseek4",
    .fixed_keys = "attention_type=compressed,base_num_kv_heads=1,base_mlp_dim=*,"
                  "norm_topk_prob=true,routed_bias=true",
};

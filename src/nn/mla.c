/* mla.c - see mla.h. The norms of the latents have an epsilon of their own: 1e-6 everywhere. */
#include "nn/mla.h"

#include "nn/qk_clip.h"
#include "ops.h"

static const double eps = 1e-6;

mx_node *mx_mla_query_latent(mx_graph *g, const mx_build *b, mx_node *x, const mx_mla *m)
{
    if (!m->q_rank)
        return x;
    mx_node *q = mx_linear(g, b, x, "q_a_proj", m->q_rank, "q_lora_up_proj,embed", m->bias);
    return mx_rms_norm(g, mx_name(g, "mla_q", q), "q_a_layernorm", eps, false);
}

/* The parts of a query: nope (B, S, H, N), rope (B, S, H, P), the latter rotated. */
typedef struct {
    mx_node *nope, *rope;
} query_parts;

static query_parts query(mx_graph *g, const mx_build *b, mx_node *latent, const mx_mla *m,
                         int64_t H, const mx_rope_table *t)
{
    int64_t D = m->nope + m->rope;
    const char *name = m->q_rank ? "q_b_proj" : "q_proj";
    const char *axes = mx_axes_text(g, "q_heads*%lld,%s", (long long)D,
                                    m->q_rank ? "q_lora" : "embed");
    mx_node *q = mx_name(g, "query_proj", mx_linear(g, b, latent, name, H * D, axes, false));
    q = mx_split(g, mx_reshape(g, q, MX_SHAPE(b->batch, b->seq, H, D)), 2,
                 (int64_t[]){m->nope, m->rope});
    return (query_parts){q, mx_rope_apply(g, mx_output(g, q, 1), t)};
}

static void clip(mx_graph *g, const mx_mla *m, mx_node *factor)
{
    mx_clip_part query[2] = {{m->nope, MX_CLIP_ROOT}, {m->rope, MX_CLIP_WHOLE}};
    mx_clip_part kv[2] = {{m->nope, MX_CLIP_ROOT}, {m->v, MX_CLIP_NOT}};
    mx_qk_clip_rows(g, m->q_rank ? "q_b_proj.weight" : "q_proj.weight", factor, query, 2);
    mx_qk_clip_rows(g, "kv_b_proj.weight", factor, kv, 2);
}

/* Keys and values of every head, as in training. latent (B, S, R), k_rope (B, S, 1, P). Decoding
 * that must have training's bits (one_path) keeps these in its cache, not the latents. */
static mx_node *plain(mx_graph *g, mx_build *b, query_parts q, mx_node *latent, mx_node *k_rope,
                      mx_node *w, const mx_mla *m, mx_node *selected, mx_mla_seen *seen)
{
    int64_t B = b->batch, S = b->seq, H = q.nope->type.dim[2];
    static const char by_head[] =
        "activation_kv_batch,activation_length_attn,activation_kv_heads,";
    mx_node *kv = mx_axes(by_head, mx_matmul(g, "bsr,hnr->bshn", latent, w));
    kv = mx_split(g, mx_name(g, "key_value_proj", kv), 2, (int64_t[]){m->nope, m->v});
    if (H > 1)
        k_rope = mx_axes(by_head, mx_broadcast_to(g, k_rope, MX_SHAPE(B, S, H, m->rope)));
    mx_node *k = mx_concat(g, 2, (mx_node *[]){kv, k_rope}, 3);
    mx_node *query = mx_concat(g, 2, (mx_node *[]){q.nope, q.rope}, 3);
    *seen = (mx_mla_seen){query, k};
    mx_attention_attr a = {.causal = true, .scale = m->scale};
    if (b->cache_len) {
        k = mx_cache_enter(g, b, "k", k, b->cache_len);
        mx_node *v = mx_cache_enter(g, b, "v", mx_output(g, kv, 1), b->cache_len);
        mx_attention_extra at = {.q_pos = b->positions,
                                 .k_pos = mx_cache_positions(g, b, b->cache_len)};
        return mx_attention(g, query, k, v, a, at);
    }
    clip(g, m, mx_qk_clip(g, b, query, k, &a));
    mx_attention_extra e = {.q_seg = b->segments, .k_seg = b->segments, .selected = selected};
    return mx_attention(g, query, k, mx_output(g, kv, 1), a, e);
}

/* Through the cache of latents. kv_b_proj is used whole both times, against zeros where the other
 * part of it lies: reading it is what a decode step costs, and cutting it would write it again. */
static mx_node *absorbed(mx_graph *g, mx_build *b, query_parts q, mx_node *latent, mx_node *k_rope,
                         mx_node *w, const mx_mla *m, mx_node *selected)
{
    int64_t B = b->batch, S = b->seq, R = m->kv_rank;
    mx_node *entry = mx_reshape(g, latent, MX_SHAPE(B, S, 1, R));
    entry = mx_concat(g, 2, (mx_node *[]){entry, k_rope}, 3);
    mx_node *cache = mx_cache_enter(g, b, "latent", entry, b->cache_len);
    mx_node *nope = mx_matmul(g, "bshn,hnr->bshr", mx_pad(g, q.nope, 3, 0, m->v), w);
    mx_node *query = mx_concat(g, 2, (mx_node *[]){nope, q.rope}, 3); /* (B, S, H, R + P) */
    mx_attention_attr a = {.causal = true, .scale = m->scale};
    mx_node *o;
    if (b->pages && selected) {
        o = mx_attend_selected(g, b, query, cache, R, m->scale, selected);
    } else if (b->pages) {
        o = mx_attend_paged(g, b, query, (mx_kv){.k = cache}, R, a, NULL);
    } else {
        mx_attention_extra e = {.q_pos = b->positions, .selected = selected,
                                .k_pos = mx_cache_positions(g, b, b->cache_len)};
        o = mx_attention(g, query, cache, mx_slice(g, cache, 3, 0, R), a, e);
    }
    return mx_slice(g, mx_matmul(g, "bshr,hnr->bshn", o, w), 3, m->nope, m->v);
}

mx_node *mx_mla_attend(mx_graph *g, mx_build *b, mx_node *x, mx_node *q_latent, const mx_mla *m,
                       int64_t heads, const mx_rope_table *t, mx_node *selected, mx_mla_seen *seen)
{
    int64_t B = b->batch, S = b->seq, H = heads, d = x->type.dim[2];
    query_parts q = query(g, b, q_latent, m, H, t);
    mx_node *kv = mx_linear(g, b, x, "kv_a_proj_with_mqa", m->kv_rank + m->rope,
                            "kv_lora_up_proj,embed", m->bias);
    kv = mx_split(g, mx_name(g, "mla_kv", kv), 2, (int64_t[]){m->kv_rank, m->rope});
    mx_node *k_rope = mx_reshape(g, mx_output(g, kv, 1), MX_SHAPE(B, S, 1, m->rope));
    k_rope = mx_rope_apply(g, k_rope, t);
    mx_node *latent = mx_rms_norm(g, kv, "kv_a_layernorm", eps, false);
    int64_t rows = m->nope + m->v;
    const char *axes = mx_axes_text(g, "kv_heads*%lld,kv_lora", (long long)rows);
    mx_node *w = mx_param(g, "kv_b_proj.weight", MX_SHAPE(H * rows, m->kv_rank), axes,
                          MX_NORMAL(b->init_scale));
    w = mx_reshape(g, w, MX_SHAPE(H, rows, m->kv_rank));
    *seen = (mx_mla_seen){0};
    bool through_latents = b->cache_len && (!g->one_path || b->pages || selected);
    mx_node *o = through_latents ? absorbed(g, b, q, latent, k_rope, w, m, selected)
                                 : plain(g, b, q, latent, k_rope, w, m, selected, seen);
    o->axes = "activation_batch_attn,activation_length_attn,activation_heads,";
    o = mx_reshape(g, mx_name(g, "context", o), MX_SHAPE(B, S, H * m->v));
    return mx_name(g, "out_proj", mx_linear(g, b, o, "o_proj", d, mx_attention_axes(g, m->v).out,
                                            m->bias));
}

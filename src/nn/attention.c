/* attention.c - attention through the cache when there is one.
 *
 * The cache of a layer is two variables (B, slots, K, D) named after the scope, and, shared by all
 * layers with the same number of slots, the positions its slots hold (B, slots). Position p lives
 * in slot p mod slots. A layer with a sliding window or a chunk keeps only what a query can still
 * see: the window plus the tokens written in one run, so that a long prompt does not overwrite keys
 * its own first queries need.
 *
 * The attention op masks by positions, so a ring that has wrapped, rows of different lengths and
 * empty slots (position -1) need no special case.
 */
#include "nn/nn.h"

#include "ops.h"
#include <stdio.h>

int64_t mx_cache_span(const mx_build *b, const mx_attention_attr *a)
{
    int64_t span = a->window ? a->window : a->chunk;
    int64_t need = span ? span + b->max_run : b->cache_len;
    return need < b->cache_len ? need : b->cache_len;
}

static mx_node *cache_variable(mx_graph *g, const char *name, mx_type t, double value)
{
    mx_node *v = mx_graph_find(g, name);
    return v ? v : mx_variable(g, name, t, (mx_var_attr){.kind = MX_VAR_CACHE,
                                                     .init = MX_VALUE(value)});
}

mx_node *mx_cache_slots(mx_graph *g, const mx_build *b, int64_t slots)
{
    char name[64];
    snprintf(name, sizeof name, "cache_slots.%lld", (long long)slots);
    mx_node *n = mx_graph_find(g, name);
    mx_shape s = MX_SHAPE(b->batch, b->seq);
    return n ? n : mx_axes("decode_batch,decode_length", mx_input(g, name, s, MX_I32));
}

mx_node *mx_cache_state(mx_graph *g, const char *what, mx_shape shape, mx_dtype dtype)
{
    char name[512];
    snprintf(name, sizeof name, "%s.cache_%s", g->scope, what);
    return cache_variable(g, name, mx_type_of(dtype, shape), 0);
}

/* Inputs of a run over pages, host-written, the same for all layers. */
static mx_node *page_input(mx_graph *g, const char *name, mx_shape shape)
{
    mx_node *n = mx_graph_find(g, name);
    return n ? n : mx_input(g, name, shape, MX_I32);
}

mx_node *mx_page_rows(mx_graph *g, const mx_build *b)
{
    return page_input(g, "page_rows", MX_SHAPE(b->batch));
}

mx_recurrent mx_cache_recurrent(mx_graph *g, const mx_build *b, const char *what, mx_shape each,
                                mx_dtype dtype)
{
    char name[512];
    if (!b->cache_len)
        return (mx_recurrent){0};
    snprintf(name, sizeof name, "%s.state_%s", g->scope, what);
    mx_shape all = {.ndim = each.ndim + 1, .dim = {b->pages ? b->page_rows : b->batch}};
    for (int i = 0; i < each.ndim; i++)
        all.dim[i + 1] = each.dim[i];
    return (mx_recurrent){.state = cache_variable(g, name, mx_type_of(dtype, all), 0),
                          .positions = b->positions,
                          .rows = b->pages ? mx_page_rows(g, b) : NULL};
}

mx_node *mx_cache_positions(mx_graph *g, const mx_build *b, int64_t slots)
{
    MX_ASSERT(!b->pages, "positions of slots that are %s's pages", g->scope);
    char name[64], written[72];
    snprintf(name, sizeof name, "cache_positions.%lld", (long long)slots);
    snprintf(written, sizeof written, "%s.written", name);
    mx_node *done = mx_graph_find(g, written);
    if (done)
        return done;
    mx_type t = mx_type_of(MX_I32, MX_SHAPE(b->batch, slots));
    mx_node *cache = mx_axes("decode_batch,cache_sequence", cache_variable(g, name, t, -1));
    mx_node *n = mx_cache_write(g, cache, b->positions, mx_cache_slots(g, b, slots));
    n->name = mx_arena_strdup(&g->arena, written);
    mx_graph_enter(g, n);
    return n;
}

/* x (B, S, heads) or (B, S, heads, dims). */
static mx_node *enter(mx_graph *g, const mx_build *b, const char *what, mx_node *x, int64_t slots,
                      mx_dtype dtype)
{
    mx_shape shape = mx_shape_of(&x->type);
    if (b->pages) {
        shape.dim[0] = 1;
        shape.dim[1] = b->batch;
        x = mx_reshape(g, x, shape);
        slots = b->pages * b->page;
    }
    shape.dim[1] = slots;
    mx_node *cache = mx_cache_state(g, what, shape, dtype);
    cache->axes = shape.ndim == 3 ? "decode_batch,cache_sequence,cache_heads"
                                  : "decode_batch,cache_sequence,cache_heads,cache_kv";
    if (b->pages)
        return mx_cache_write(g, cache, x, page_input(g, "page_slots", MX_SHAPE(1, b->batch)));
    return mx_cache_write(g, cache, x, mx_cache_slots(g, b, slots));
}

mx_node *mx_cache_enter(mx_graph *g, const mx_build *b, const char *what, mx_node *x,
                        int64_t slots)
{
    return enter(g, b, what, x, slots, b->cache_dtype);
}

/* Keys or values as 8-bit codes with a scale for each head of a token, or for all its heads: what
 * is entered, and in pages its scales. Without pages the numbers they stand for, of the whole
 * cache: they exist for one layer at a time. */
static mx_node *enter_codes(mx_graph *g, const mx_build *b, const char *what, mx_node *x,
                            int64_t slots, mx_node **scale)
{
    char name[32];
    mx_shape all = mx_shape_of(&x->type), heads = MX_SHAPE(all.dim[0], all.dim[1], all.dim[2]);
    mx_quantize_attr a = {.dtype = b->cache_quant, .block_rows = 1};
    if (b->cache_by_token)
        x = mx_reshape(g, x, MX_SHAPE(all.dim[0], all.dim[1], all.dim[2] * all.dim[3]));
    mx_node *q = mx_quantize(g, x, NULL, &a), *s = mx_output(g, q, 1);
    s = b->cache_by_token
            ? mx_broadcast_to(g, mx_reshape(g, s, MX_SHAPE(all.dim[0], all.dim[1], 1)), heads)
            : mx_reshape(g, s, heads);
    snprintf(name, sizeof name, "%s_scale", what);
    *scale = enter(g, b, name, s, slots, MX_F32);
    q = enter(g, b, what, mx_reshape(g, q, all), slots, b->cache_quant);
    if (b->pages)
        return q;
    mx_shape wide = mx_shape_of(&(*scale)->type);
    wide.dim[wide.ndim++] = 1;
    mx_node *numbers = mx_mul(g, mx_cast(g, q, MX_F32), mx_reshape(g, *scale, wide));
    *scale = NULL;
    return mx_cast(g, numbers, b->cache_dtype);
}

static mx_node *enter_kv(mx_graph *g, const mx_build *b, const char *what, mx_node *x,
                         int64_t slots, mx_node **scale)
{
    *scale = NULL;
    return b->cache_quant == MX_F32 ? mx_cache_enter(g, b, what, x, slots)
                                    : enter_codes(g, b, what, x, slots, scale);
}

/* Which slots hold tokens of the image that this run feeds: a run is one image whole, or text, so
 * they are those from its first position on. (B, slots) int32, for rows of text meaningless. */
static mx_node *key_spans(mx_graph *g, const mx_build *b, mx_node *positions)
{
    char name[64];
    snprintf(name, sizeof name, "cache_spans.%lld", (long long)positions->type.dim[1]);
    mx_node *n = mx_graph_find(g, name);
    if (n)
        return n;
    mx_node *first = mx_cast(g, mx_slice(g, b->positions, 1, 0, 1), MX_F32);
    first = mx_broadcast_to(g, mx_affine(g, first, 1, -0.5), mx_shape_of(&positions->type));
    n = mx_cast(g, mx_greater(g, mx_cast(g, positions, MX_F32), first), MX_I32);
    n->name = mx_arena_strdup(&g->arena, name);
    mx_graph_enter(g, n);
    return n;
}

mx_kv mx_kv_keep(mx_graph *g, mx_build *b, mx_node *k, mx_node *v, mx_attention_attr a)
{
    if (!b->cache_len)
        return (mx_kv){.k = k, .v = v};
    int64_t slots = mx_cache_span(b, &a);
    mx_kv kv = {.positions = b->pages ? NULL : mx_cache_positions(g, b, slots)};
    kv.k = enter_kv(g, b, "k", k, slots, &kv.k_scale);
    kv.v = enter_kv(g, b, "v", v, slots, &kv.v_scale);
    return kv;
}

mx_kv mx_kv_keep_one(mx_graph *g, mx_build *b, mx_node *kv, mx_attention_attr a)
{
    if (!b->cache_len)
        return (mx_kv){.k = kv, .v = kv};
    int64_t slots = mx_cache_span(b, &a);
    mx_node *kept = mx_cache_enter(g, b, "k", kv, slots);
    return (mx_kv){.k = kept, .v = kept,
                   .positions = b->pages ? NULL : mx_cache_positions(g, b, slots)};
}

/* Which pages hold the positions of each sequence. */
static mx_node *page_table(mx_graph *g, const mx_build *b)
{
    return page_input(g, "page_table", MX_SHAPE(b->page_rows, b->cache_len / b->page));
}

mx_select_extra mx_select_cached(mx_graph *g, const mx_build *b)
{
    if (b->pages)
        return (mx_select_extra){.q_pos = b->positions, .row = mx_page_rows(g, b),
                                 .table = page_table(g, b), .page = b->page};
    return (mx_select_extra){.q_pos = b->positions,
                             .k_pos = mx_cache_positions(g, b, b->cache_len)};
}

mx_node *mx_attend_selected(mx_graph *g, const mx_build *b, mx_node *q, mx_node *keys,
                            int64_t v_dim, double scale, mx_node *selected)
{
    mx_paged_attr p = {.page = b->page, .v_dim = v_dim, .scale = scale};
    mx_paged_extra e = {.positions = b->positions, .row = mx_page_rows(g, b),
                        .table = page_table(g, b), .selected = selected};
    return mx_paged_attention(g, q, keys, NULL, p, e);
}

mx_node *mx_attend_paged(mx_graph *g, const mx_build *b, mx_node *q, mx_kv kv, int64_t v_dim,
                         mx_attention_attr a, mx_node *sinks)
{
    mx_paged_attr p = {.page = b->page, .v_dim = v_dim, .window = a.window, .chunk = a.chunk,
                       .softcap = a.softcap, .scale = a.scale};
    if (!a.causal)
        mx_graph_fail(g, "%s attends to what comes later; that does not go with pages", g->scope);
    mx_paged_extra e = {
        .positions = b->positions, .sinks = sinks,
        .row = mx_page_rows(g, b), .table = page_table(g, b), .until = b->spans,
        .k_scale = kv.k_scale, .v_scale = kv.v_scale};
    if (b->spans && a.chunk)
        mx_graph_fail(g, "%s: images that see themselves both ways do not go with chunks in pages",
                      g->scope);
    return mx_paged_attention(g, q, kv.k, kv.v, p, e);
}

mx_node *mx_attend_kept(mx_graph *g, mx_build *b, mx_node *q, mx_kv kv, mx_attention_attr a,
                        mx_node *sinks)
{
    mx_attention_extra e = {.q_seg = b->segments, .k_seg = b->segments, .q_span = b->spans,
                            .k_span = b->spans, .sinks = sinks};
    if (b->pages) {
        mx_node *o = mx_name(g, "context", mx_attend_paged(g, b, q, kv, 0, a, sinks));
        return mx_reshape(g, o, MX_SHAPE(b->batch, b->seq, o->type.dim[2] * o->type.dim[3]));
    }
    if (kv.positions) {
        e.q_pos = b->positions;
        e.k_pos = kv.positions;
        e.k_span = b->spans ? key_spans(g, b, kv.positions) : NULL;
    } else if (b->positions && a.chunk) {
        e.q_pos = e.k_pos = b->positions; /* chunks begin with each packed document */
    }
    mx_node *o = mx_name(g, "context", mx_attention(g, q, kv.k, kv.v, a, e));
    o->axes = "activation_batch_attn,activation_length_attn,activation_heads,";
    return mx_reshape(g, o, MX_SHAPE(b->batch, b->seq, o->type.dim[2] * o->type.dim[3]));
}

mx_node *mx_attend(mx_graph *g, mx_build *b, mx_node *q, mx_node *k, mx_node *v,
                   mx_attention_attr a, mx_node *sinks)
{
    return mx_attend_kept(g, b, q, mx_kv_keep(g, b, k, v, a), a, sinks);
}

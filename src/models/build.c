/* build.c - from a configured family to a graph: inputs in, head out, logits. */
#include "models/classes.h"

#include "nn/moe.h"
#include "nn/qk_clip.h"
#include "nn/vision.h"
#include "ops.h"
#include <string.h>

int64_t mx_image_floats(const mx_image_spec *s)
{
    if (s->size)
        return s->channels * s->size * s->size;
    return MX_PIECE_PLACE + s->side * s->side * s->channels * s->frames * s->patch * s->patch;
}

static bool has_coded_cache(const mx_graph *g)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (g->node[i]->op == &mx_op_variable && mx_ends_with(g->node[i]->name, ".cache_k_scale"))
            return true;
    return false;
}

mx_head mx_model_build(mx_graph *g, const mx_model_spec *m, mx_model_shape s, mx_build *b)
{
    mx_shape rows = MX_SHAPE(s.batch, s.seq);
    *b = (mx_build){.batch = s.batch, .seq = s.seq, .cache_len = s.cache_len,
                    .cache_dtype = s.cache_dtype, .cache_quant = s.cache_quant,
                    .cache_by_token = s.cache_by_token, .max_run = s.max_run,
                    .training = s.training,
                    .pages = s.pages, .page = s.page, .page_rows = s.page_rows,
                    .qk_clip = s.qk_clip, .balances = s.balances, .mtp_eval = s.mtp_eval,
                    .fixed_pad = s.training ? s.fixed_pad : 0,
                    .init_scale = m->summary.init_scale > 0 ? m->summary.init_scale : 0.02};
    /* What a sequence gives does not depend on who shares its batch, nor a token on who shares its
     * expert: on a mesh that is others than on one device. */
    g->one_path = s.pages > 0 || s.training || s.one_path;
    const char *axes = "activation_batch,activation_length";
    b->tokens = mx_axes(axes, mx_input(g, "tokens", rows, MX_I32));
    if (s.drawn) {
        mx_node *from = mx_input(g, "tokens_from", rows, MX_I32);
        mx_type kept = mx_type_of(MX_I32, MX_SHAPE(1, s.page_rows));
        b->drawn = mx_variable(g, "drawn_before", kept, (mx_var_attr){.kind = MX_VAR_CACHE});
        b->tokens = mx_feed_sampled(g, b->tokens, from, b->drawn);
    }
    if (s.packed || s.cache_len)
        b->positions = mx_axes(axes, mx_input(g, "positions", rows, MX_I32));
    if (s.places)
        b->places = mx_axes(s.images_by_row ? ",activation_batch,activation_length" : NULL,
                            mx_input(g, "places", MX_SHAPE(3, s.batch, s.seq), MX_I32));
    if (s.packed)
        b->segments = mx_axes(axes, mx_input(g, "segments", rows, MX_I32));
    int64_t images = s.images + s.images_per_row * s.batch;
    if (images && m->family->images) {
        mx_image_spec i;
        m->family->images(m->config, &i);
        mx_shape whole = MX_SHAPE(images, i.channels, i.size, i.size);
        mx_shape pieces = MX_SHAPE(s.batch, images / s.batch, mx_image_floats(&i));
        b->pixels = mx_input(g, "pixels", i.size ? whole : pieces, g->param_dtype);
        if (s.images_by_row) {
            b->image_room = s.images_per_row * i.tokens;
            mx_axes(i.size ? mx_axes_text(g, "activation_batch*%lld,,,",
                                          (long long)s.images_per_row)
                           : "activation_batch,,", b->pixels);
        }
    }
    if (s.draft)
        b->before = mx_input(g, "before", MX_SHAPE(s.batch, s.seq, m->summary.d_model), MX_F32);
    if (s.image_width)
        b->image = mx_input(g, "image_rows", MX_SHAPE(s.batch, s.seq, s.image_width), MX_F32);
    mx_head head = m->family->build(g, m->config, b);
    mx_balance_finish(g, b);
    mx_qk_clip_finish(g, b);
    mx_classes_head(g, m, b, &head);
    if (s.cache_quant != MX_F32 && !has_coded_cache(g))
        mx_graph_fail(g, "quantize_kvcache=true is for caches of keys and values; %s keeps "
                      "something else for its tokens, which stays in dtype", m->family->name);
    return head;
}

mx_status mx_model_weights(const mx_model_spec *m, int64_t *out)
{
    mx_graph g;
    mx_build b;
    mx_image_spec images = {0};
    mx_model_shape shape = {.batch = 1, .seq = 16};
    mx_graph_init(&g);
    if (m->family->images) {
        m->family->images(m->config, &images);
        shape.images = 1;
        shape.seq = images.size ? images.tokens : 16;
    }
    mx_model_build(&g, m, shape, &b);
    *out = 0;
    for (int i = 0; i < g.n_nodes; i++) {
        const mx_var_attr *a = g.node[i]->attr;
        if (g.node[i]->op == &mx_op_variable && a->kind == MX_VAR_WEIGHT)
            *out += mx_type_count(&g.node[i]->type);
    }
    mx_status st = mx_graph_check(&g);
    mx_graph_fini(&g);
    return st;
}

mx_node *mx_model_logits(mx_graph *g, const mx_head *h)
{
    mx_dtype out = g->param_dtype == MX_F64 ? MX_F64 : MX_F32;
    mx_node *y = mx_matmul_as(g, "*d,vd->*v", h->hidden, h->weight, out);
    if (h->scale != 0 && h->scale != 1)
        y = mx_affine(g, y, h->scale, 0);
    if (h->softcap > 0)
        y = mx_affine(g, mx_tanh(g, mx_affine(g, y, 1 / h->softcap, 0)), h->softcap, 0);
    return y;
}

mx_node *mx_head_weight(mx_graph *g, const mx_build *b, int64_t vocab, int64_t d, bool tied)
{
    const char *name = tied ? "model.embed_tokens.weight" : "lm_head.weight";
    return mx_param(g, name, MX_SHAPE(vocab, d), "vocab,embed_vocab", MX_NORMAL(b->init_scale));
}

mx_node *mx_head_weight_of_part(mx_graph *g, const mx_build *b, int64_t vocab, int64_t d, bool tied)
{
    const char *name = tied ? "model.language_model.embed_tokens.weight" : "lm_head.weight";
    return mx_param(g, name, MX_SHAPE(vocab, d), "vocab,embed_vocab", MX_NORMAL(b->init_scale));
}

mx_status mx_check_heads(int64_t d, int64_t heads, int64_t *kv_heads, int64_t *head_dim)
{
    if (heads < 1)
        return mx_fail(MX_INPUT, "\"num_attention_heads\" is %lld, expected at least 1",
                       (long long)heads);
    if (*kv_heads == 0)
        *kv_heads = heads;
    if (*kv_heads < 0 || heads % *kv_heads)
        return mx_fail(MX_INPUT,
                       "%lld attention heads cannot share %lld key-value heads: the first "
                       "must be a multiple of the second",
                       (long long)heads, (long long)*kv_heads);
    if (*head_dim == 0 && d % heads)
        return mx_fail(MX_INPUT, "\"hidden_size\" %lld is not a multiple of %lld heads and "
                       "\"head_dim\" is not given", (long long)d, (long long)heads);
    if (*head_dim == 0)
        *head_dim = d / heads;
    if (*head_dim < 1 || *head_dim > MX_MAX_HEAD_DIM)
        return mx_fail(MX_INPUT, "a head is %lld wide, expected 1 to %d", (long long)*head_dim,
                       MX_MAX_HEAD_DIM);
    return MX_OK;
}

/* What the ramps of llama3 and yarn divide by. */
static mx_status check_ramp(const mx_rope *r)
{
    if (strcmp(r->type, "llama3") == 0 && !(r->high_freq_factor > r->low_freq_factor))
        return mx_fail(MX_INPUT, "the rope's high_freq_factor is %g and its low_freq_factor %g; "
                       "expected the first to be larger", r->high_freq_factor, r->low_freq_factor);
    if (strcmp(r->type, "yarn") == 0 && !(r->theta > 1 && r->original_length > 0))
        return mx_fail(MX_INPUT, "rope_theta is %g and original_max_position_embeddings %g; yarn "
                       "needs more than 1 and more than 0", r->theta, r->original_length);
    return MX_OK;
}

mx_status mx_check_rope(mx_rope *r, int64_t max_positions)
{
    static const char *const known[] = {"default", "linear", "dynamic", "llama3", "yarn",
                                        "proportional"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(r->type, known[i]) == 0) {
            if (r->original_length == 0)
                r->original_length = (double)max_positions;
            return check_ramp(r);
        }
    return mx_fail(MX_INPUT,
                   "rope type \"%s\" is not supported; supported: default, linear, "
                   "dynamic, llama3, yarn, proportional",
                   r->type);
}

mx_status mx_check_layer_types(const mx_layer_types *t, int64_t layers)
{
    if (t->n && t->n != layers)
        return mx_fail(MX_INPUT, "\"layer_types\" names %d layers, but there are %lld", t->n,
                       (long long)layers);
    return MX_OK;
}

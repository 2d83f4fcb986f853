/* qk_clip.c - see qk_clip.h. */
#include "nn/qk_clip.h"

#include "ops.h"
#include <stdio.h>

mx_node *mx_qk_clip(mx_graph *g, mx_build *b, mx_node *q, mx_node *k, const mx_attention_attr *a)
{
    if (b->qk_clip <= 0 || !b->training)
        return NULL;
    int64_t H = q->type.dim[2];
    mx_node *most = mx_max_logits(g, mx_detach(g, q), mx_detach(g, k), b->segments, a->window,
                                  a->scale);
    mx_node *all = mx_row_max(g, most);
    b->max_logit = b->max_logit ? mx_maximum(g, b->max_logit, all) : all;
    mx_node *limit = mx_constant(g, MX_SCALAR, most->type.dtype, b->qk_clip);
    mx_node *one = mx_constant(g, MX_SCALAR, most->type.dtype, 1);
    /* Not min(1, t / S): S may be negative. */
    mx_node *f = mx_where(g, mx_greater(g, most, limit), mx_div(g, limit, most), one);
    return mx_reshape(g, f, MX_SHAPE(H, 1));
}

void mx_qk_clip_rows(mx_graph *g, const char *name, mx_node *f, const mx_clip_part *part, int n)
{
    char root[576];
    mx_node *each[4];
    int64_t rows = 0;
    if (!f)
        return;
    MX_ASSERT(n <= 4);
    for (int i = 0; i < n; i++) {
        mx_node *x = part[i].how == MX_CLIP_NOT ? mx_constant(g, MX_SCALAR, f->type.dtype, 1)
                     : part[i].how == MX_CLIP_ROOT ? mx_sqrt(g, f)
                                                   : f;
        each[i] = mx_broadcast_to(g, x, MX_SHAPE(f->type.dim[0], part[i].n));
        rows += part[i].n;
    }
    mx_node *all = n > 1 ? mx_concat(g, n, each, 1) : each[0];
    snprintf(root, sizeof root, MX_ROW_SCALE_ROOT "%s.%s", g->scope, name);
    mx_graph_root(g, root, mx_reshape(g, all, MX_SHAPE(f->type.dim[0] * rows)));
}

void mx_qk_clip_plain(mx_graph *g, mx_node *f, int64_t H, int64_t K, int64_t D, bool bias)
{
    mx_clip_part part = {D, H == K ? MX_CLIP_ROOT : MX_CLIP_WHOLE};
    mx_qk_clip_rows(g, "q_proj.weight", f, &part, 1);
    if (bias)
        mx_qk_clip_rows(g, "q_proj.bias", f, &part, 1);
    if (H == K) {
        mx_qk_clip_rows(g, "k_proj.weight", f, &part, 1);
        if (bias)
            mx_qk_clip_rows(g, "k_proj.bias", f, &part, 1);
    }
}

void mx_qk_clip_finish(mx_graph *g, mx_build *b)
{
    if (b->max_logit)
        mx_graph_root(g, MX_METRIC_ROOT "max_logits", mx_reshape(g, b->max_logit, MX_SCALAR));
    else if (b->qk_clip > 0 && b->training)
        mx_graph_fail(g, "use_qk_clip: this family has no projections of q and k to rescale; it "
                      "goes with latent attention (DeepSeek, Kimi) and with plain decoders without "
                      "norms on q and k");
}

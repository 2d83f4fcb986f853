/* qk_clip.h - QK-clip, the second half of MuonClip (Kimi K2): where a head's largest attention
 * score S of a step is above a threshold t, its share of the projections that made q and k is
 * rescaled after the optimizer's update, so that the same inputs would give scores up to t:
 *
 *     f = min(1, t / S)       of each head
 *     heads with keys of their own      rows of W_q and W_k times sqrt(f)
 *     heads that share keys             rows of W_q times f
 *     latent attention                  the rows for unrotated q and k times sqrt(f), those for
 *                                       rotated q times f: rotated keys are shared by all heads
 *
 * The factors are roots "row_scale:NAME", one number for each row of the weight NAME, which the
 * optimizer pass finds (compile/optimizer.h).
 */
#ifndef MX_NN_QK_CLIP_H
#define MX_NN_QK_CLIP_H

#include "compile/optimizer.h"
#include "nn/nn.h"

/* f (H, 1) of the heads, given what their attention compares; NULL where nothing is clipped. q
 * (B, S, H, D), k (B, S, K, D). Keys that a sparse attention leaves out count too. */
mx_node *mx_qk_clip(mx_graph *g, mx_build *b, mx_node *q, mx_node *k, const mx_attention_attr *a);

/* A head's rows in a weight, in order: `n` of them times f to the power of 0, 1/2 or 1. */
typedef enum { MX_CLIP_NOT, MX_CLIP_ROOT, MX_CLIP_WHOLE } mx_clip_how;
typedef struct {
    int64_t n;
    mx_clip_how how;
} mx_clip_part;
/* NAME under the current scope has rows of `n` parts for each head. f NULL: nothing happens. */
void mx_qk_clip_rows(mx_graph *g, const char *name, mx_node *f, const mx_clip_part *part, int n);
/* The same for W_q and W_k of plain attention with H and K heads of D rows, biases included. */
void mx_qk_clip_plain(mx_graph *g, mx_node *f, int64_t H, int64_t K, int64_t D, bool bias);
/* After the last layer: the metric max_logits; clipping a family without such layers is an error.
 * Called by mx_model_build. */
void mx_qk_clip_finish(mx_graph *g, mx_build *b);

#endif

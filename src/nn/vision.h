/* vision.h - images on their way into a language model: patches, transformer blocks, and the rows
 * they take among the tokens. N images of C channels, P patches of p x p pixels, d the tower's
 * width. */
#ifndef MX_NN_VISION_H
#define MX_NN_VISION_H

#include "nn/nn.h"

/* A tower's sizes and what its checkpoints call the parts of a block. */
typedef struct {
    int64_t d, d_ff, layers, heads, channels, image_size, patch;
    mx_act act;
    double eps;
    const char *norm_1, *norm_2, *out_proj;
} mx_vit;

/* pixels (N, C, H, W) -> (N, P, C p p): patches row by row, each as (channel, y, x). */
mx_node *mx_patches(mx_graph *g, mx_node *pixels, int64_t patch);
/* Blocks of side x side neighbours joined: x (N, h w, d) with h = w -> (N, P / side^2, side^2 d);
 * within a block row by row. */
mx_node *mx_join_patches(mx_graph *g, mx_node *x, int64_t side);
/* Blocks of side x side neighbours averaged: (N, P, d) -> (N, P / side^2, d). */
mx_node *mx_pool_patches(mx_graph *g, mx_node *x, int64_t side);

/* Norm, attention of all patches to all, norm, MLP, under the current scope: x (N, P, d). `rope`
 * may be NULL. */
mx_node *mx_vit_block(mx_graph *g, const mx_build *b, const mx_vit *c, mx_node *x,
                      const mx_rope_table *rope);

/* Angles by the column of a patch in the first half of a head and by its row in the second, counted
 * from 1; the last of the side^2 + 1 positions, the class token's, is not turned. */
mx_rope_table mx_rope_tables_2d(mx_graph *g, int64_t side, int64_t head_dim, double theta);

/* Tokens of the two kinds, -1 where a token is of the other: (B, S) int32. */
typedef struct {
    mx_node *text;  /* ids */
    mx_node *image; /* row numbers of the images' features, in order over the whole batch */
} mx_token_kinds;
mx_token_kinds mx_split_tokens(mx_graph *g, const mx_build *b, int64_t image_token);
/* The number, from 1, of the run of image tokens that a token lies in, else 0: (B, S) int32. */
mx_node *mx_image_spans(mx_graph *g, const mx_build *b, int64_t image_token);

mx_status mx_check_vit(const mx_vit *c) MX_MUST_USE;

#endif

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
/* Blocks of side x side neighbours merged: x (N, h w, d) with h = w -> (N, P / side^2, side^2 d);
 * within a block row by row. */
mx_node *mx_merge_patches(mx_graph *g, mx_node *x, int64_t side);
/* Blocks of side x side neighbours averaged: (N, P, d) -> (N, P / side^2, d). */
mx_node *mx_pool_patches(mx_graph *g, mx_node *x, int64_t side);

/* Norm, attention of all patches to all, norm, MLP, under the current scope: x (N, P, d). `rope`
 * may be NULL. */
mx_node *mx_vit_block(mx_graph *g, const mx_build *b, const mx_vit *c, mx_node *x,
                      const mx_rope_table *rope);

/* Angles by the column of a patch in the first half of a head and by its row in the second, counted
 * from 1; the last of the side^2 + 1 positions, the class token's, is not rotated. */
mx_rope_table mx_rope_tables_2d(mx_graph *g, int64_t side, int64_t head_dim, double theta);

/* --- images of any size (pieces.c) --- */

/* A piece is what becomes one token: side x side neighbouring patches, row by row, and before them
 * these numbers. Pieces of an image come row by row, images of a row of the batch one after the
 * other: (B, n, MX_PIECE_PLACE + side^2 floats of a patch). */
enum {
    MX_PIECE_INDEX,  /* within its image, from 0; -1: no piece, the place is not used */
    MX_PIECE_COLUMN, /* of its first patch, */
    MX_PIECE_ROW,
    MX_PIECE_WIDTH,  /* and the image's size, in patches */
    MX_PIECE_HEIGHT,
    MX_PIECE_PLACE
};

/* P = n side^2 patches in each row of the batch. */
typedef struct {
    int64_t n, side;
    mx_node *patches;        /* (B, P, floats of a patch) */
    mx_node *column, *row;   /* (B, P, 1): of a patch in its image */
    mx_node *width, *height; /* (B, P, 1): of that image */
    mx_node *images;         /* (B, P) int32: the number of that image, from 1; 0: none */
} mx_pieces;
/* Of b->pixels, in each row of the batch; 0 where there are none. */
int64_t mx_pieces_per_row(const mx_build *b);
mx_pieces mx_open_pieces(mx_graph *g, const mx_build *b, int64_t side);
/* Patches of one image see each other: q (B, P, H, D), k and v (B, P, K, D) -> (B, P, H D). */
mx_node *mx_piece_attention(mx_graph *g, const mx_pieces *p, mx_node *q, mx_node *k, mx_node *v,
                            double scale);
/* Angles that grow by by_column[i] with each column and by by_row[i] with each row. */
mx_rope_table mx_rope_tables_pieces(mx_graph *g, const mx_pieces *p, const double *by_column,
                                    const double *by_row, int64_t head_dim);

/* --- tokens --- */

/* Tokens of the two kinds, -1 where a token is of the other: (B, S) int32. */
typedef struct {
    mx_node *text;  /* ids */
    mx_node *image; /* row numbers of the images' features */
} mx_token_kinds;
/* Features are in order over the whole batch, or `per_row` (if not 0) for each of its rows. */
mx_token_kinds mx_split_tokens(mx_graph *g, const mx_build *b, int64_t image_token,
                               int64_t per_row);
/* What images bring to the tokens, (B, S, d) each and 0 where a token is text: n of such, from the
 * tower's features, (rows, d) each, or from b->image where these were computed before (features is
 * NULL then). Sets b->features. */
void mx_image_embed(mx_graph *g, mx_build *b, const mx_token_kinds *kinds,
                    mx_node *const *features, int n, mx_node **out);
/* The number, from 1, of the run of image tokens that a token lies in, else 0: (B, S) int32. Over
 * pages: the last position of that run, or the token's own. */
mx_node *mx_image_spans(mx_graph *g, const mx_build *b, int64_t image_token);

mx_status mx_check_vit(const mx_vit *c) MX_MUST_USE;

#endif

/* pieces.c - images of any size as rows of patches: see vision.h.
 *
 * A graph's shapes are fixed, the sizes of images are not. So the patches of all images of a row of
 * the batch lie one after the other, as documents do in a packed row: where they lie in their
 * images comes with them as numbers, and attention keeps images separate by segments. Patches that
 * become one token are neighbours, so that merging or averaging them is a reshape, and piece i of a
 * row belongs to the row's image token i, whatever images there are. Places without a piece are
 * segment 0: computed, and seen by nothing.
 */
#include "nn/vision.h"

#include "ops.h"

/* Number i of each piece, (B, n, 1). */
static mx_node *number(mx_graph *g, mx_node *pieces, int64_t i)
{
    return mx_slice(g, pieces, 2, i, 1);
}

/* (B, n, 1) for each of a piece's patches: (B, P, 1). Patch (y, x) of a piece adds dx x + dy y. */
static mx_node *for_patches(mx_graph *g, mx_node *x, int64_t side, double dx, double dy)
{
    int64_t B = x->type.dim[0], n = x->type.dim[1], area = side * side;
    x = mx_broadcast_to(g, x, MX_SHAPE(B, n, area));
    if (dx != 0 || dy != 0) {
        double *add = MX_NEW_N(&g->arena, double, area);
        for (int64_t i = 0; i < area; i++)
            add[i] = dx * (double)(i % side) + dy * (double)(i / side);
        x = mx_add(g, x, mx_table(g, MX_SHAPE(area), x->type.dtype, add));
    }
    return mx_reshape(g, x, MX_SHAPE(B, n * area, 1));
}

int64_t mx_pieces_per_row(const mx_build *b)
{
    return b->pixels ? b->pixels->type.dim[1] : 0;
}

mx_pieces mx_open_pieces(mx_graph *g, const mx_build *b, int64_t side)
{
    mx_node *all = b->pixels;
    int64_t B = all->type.dim[0], n = all->type.dim[1], area = side * side;
    int64_t floats = (all->type.dim[2] - MX_PIECE_PLACE) / area;
    mx_pieces p = {.n = n, .side = side};
    p.patches = mx_slice(g, all, 2, MX_PIECE_PLACE, area * floats);
    p.patches = mx_reshape(g, p.patches, MX_SHAPE(B, n * area, floats));
    p.column = for_patches(g, number(g, all, MX_PIECE_COLUMN), side, 1, 0);
    p.row = for_patches(g, number(g, all, MX_PIECE_ROW), side, 0, 1);
    p.width = for_patches(g, number(g, all, MX_PIECE_WIDTH), side, 0, 0);
    p.height = for_patches(g, number(g, all, MX_PIECE_HEIGHT), side, 0, 0);
    mx_node *index = mx_reshape(g, number(g, all, MX_PIECE_INDEX), MX_SHAPE(B, n));
    mx_dtype t = all->type.dtype;
    mx_node *first = mx_equal(g, index, mx_constant(g, MX_SCALAR, t, 0));
    mx_node *used = mx_greater(g, index, mx_constant(g, MX_SCALAR, t, -0.5));
    mx_node *image = mx_mul(g, mx_cumsum(g, first, false), used);
    image = for_patches(g, mx_reshape(g, image, MX_SHAPE(B, n, 1)), side, 0, 0);
    p.images = mx_cast(g, mx_reshape(g, image, MX_SHAPE(B, n * area)), MX_I32);
    return p;
}

mx_node *mx_piece_attention(mx_graph *g, const mx_pieces *p, mx_node *q, mx_node *k, mx_node *v,
                            double scale)
{
    const int64_t *s = q->type.dim;
    mx_attention_attr a = {.scale = scale};
    mx_attention_extra e = {.q_seg = p->images, .k_seg = p->images};
    return mx_reshape(g, mx_attention(g, q, k, v, a, e), MX_SHAPE(s[0], s[1], s[2] * s[3]));
}

mx_rope_table mx_rope_tables_pieces(mx_graph *g, const mx_pieces *p, const double *by_column,
                                    const double *by_row, int64_t head_dim)
{
    const int64_t *s = p->column->type.dim;
    mx_shape column = MX_SHAPE(s[0], s[1], 1, 1), dims = MX_SHAPE(head_dim);
    mx_node *x = mx_mul(g, mx_reshape(g, p->column, column),
                        mx_table(g, dims, g->param_dtype, by_column));
    mx_node *y = mx_mul(g, mx_reshape(g, p->row, column),
                        mx_table(g, dims, g->param_dtype, by_row));
    mx_node *angle = mx_add(g, x, y);
    return (mx_rope_table){mx_cos(g, angle), mx_sin(g, angle), head_dim, false};
}

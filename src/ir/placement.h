/* placement.h - how a tensor lies on a mesh, and which part of it a rank has. */
#ifndef MX_IR_PLACEMENT_H
#define MX_IR_PLACEMENT_H

#include "ir/mesh.h"

enum { MX_MAX_FACTORS = 4, MX_MAX_BLOCKS = 4 };

/* How a dim is cut. A dim is a product of factors, outermost first, each cut evenly by its axes, in
 * the order of the mesh. One factor is the usual case; a dim that was merged from two (tokens out
 * of rows and positions) keeps both, and a second one inside the first cuts what the first left.
 * Normal form: no factor but the first is without axes, and the first alone may be; n = 0: the dim
 * is whole. */
typedef struct {
    int n;
    int64_t size[MX_MAX_FACTORS];
    mx_axis_set axes[MX_MAX_FACTORS];
    /* A sequence cut by `context` in chunks of equal work (ops/reorder.c). A whole sequence is
     * always in its natural order. */
    bool zigzag[MX_MAX_FACTORS];
    /* A dim made of several blocks (channels of q, k and v): each is cut separately, and a rank has
     * its piece of each, one after the other. The factors then only say which axes cut, outermost
     * first; their sizes are 0. No blocks: n_blocks = 0. */
    int n_blocks;
    int64_t block[MX_MAX_BLOCKS];
    /* Rows that were sorted by expert: by which node (1 + its id in the global graph; 0: none). */
    int sorted_by;
    /* They were then exchanged over these axes: a rank has the rows of its experts, whichever rank
     * their tokens are on, in a buffer of `rows`. */
    mx_axis_set exchanged;
    int64_t rows;
} mx_cut;

typedef struct {
    mx_cut dim[MX_MAX_DIMS];
    mx_axis_set partial; /* the value is the sum over these axes */
} mx_placement;

mx_cut mx_cut_of_blocks(int n, const int64_t *block, mx_axis_set axes);
/* The pieces of `c`, a dim of `size`, cut once more by axes that it does not have. */
mx_cut mx_cut_inside(const mx_mesh *m, const mx_cut *c, int64_t size, mx_axis_set axes);
/* The same where it and what is left of it divide; otherwise c itself. */
mx_cut mx_cut_shared(const mx_mesh *m, const mx_cut *c, int64_t size, mx_axis_set axes);
/* Blocks [first, first + n) of a dim that is cut in blocks. */
mx_cut mx_cut_blocks(const mx_mesh *m, const mx_cut *c, int first, int n);
/* The same of a dim of another size: the last factor grows or shrinks with it. */
mx_cut mx_cut_resized(const mx_cut *c, int64_t from, int64_t to);
mx_axis_set mx_cut_axes(const mx_cut *c);
bool mx_cut_equal(const mx_cut *a, const mx_cut *b);
/* Are the same axes in the same order, whatever the sizes? */
bool mx_cut_alike(const mx_cut *a, const mx_cut *b);
/* The same without some axes. */
mx_cut mx_cut_without(const mx_cut *c, mx_axis_set axes);
/* What a rank has of a dim of this size. One that does not divide is rounded up. */
int64_t mx_cut_local(const mx_mesh *m, const mx_cut *c, int64_t size);

mx_axis_set mx_placement_axes(const mx_placement *p); /* that cut some dim */
bool mx_placement_equal(const mx_placement *a, const mx_placement *b);
mx_type mx_placement_local(const mx_mesh *m, const mx_type *whole, const mx_placement *p);
void mx_placement_print(mx_str *s, const mx_type *whole, const mx_placement *p);

/* --- the part of one rank --- */

/* Elements [from, from + n) of a dim. */
typedef struct {
    int64_t from, n;
} mx_cut_run;
enum { MX_MAX_RUNS = MX_MAX_BLOCKS };

/* Where its first run begins. */
int64_t mx_cut_from(const mx_mesh *m, int rank, const mx_cut *c, int64_t size);
/* Where in the whole dim local element i is; -1: padding. */
int64_t mx_cut_index(const mx_mesh *m, int rank, const mx_cut *c, int64_t size, int64_t i);

/* A variable or input of one rank. */
typedef struct mx_box {
    mx_type whole;
    mx_placement at;
    bool first; /* of the ranks that have the same part, this is the first: its numbers count */
    bool repeated; /* a stage before has the same tensor: none of this one's ranks is the first */
    int n_runs[MX_MAX_DIMS];
    mx_cut_run run[MX_MAX_DIMS][MX_MAX_RUNS];
} mx_box;
mx_box mx_box_of(const mx_mesh *m, int rank, const mx_type *whole, const mx_placement *p);
/* The place in the whole tensor of element i of this rank's, of type `local`, both row-major; -1:
 * padding. */
int64_t mx_box_element(const mx_box *b, const mx_type *local, int64_t i);

/* Elements [whole, whole + n) of the tensor are [local, local + n) of what the rank has
 * (box_walk.c). In rising order of both; padding is passed over.
 *
 *     for (mx_box_walk w = mx_box_begin(b, &local); mx_box_next(&w, &span);)
 */
typedef struct {
    int64_t whole, local, n;
} mx_box_span;
typedef struct {
    const mx_box *box;
    const mx_type *local;
    int dim;       /* the innermost that is cut */
    int64_t inner; /* elements after it */
    int64_t row, rows, at;
    int run;
} mx_box_walk;
mx_box_walk mx_box_begin(const mx_box *b, const mx_type *local);
bool mx_box_next(mx_box_walk *w, mx_box_span *out);

#endif

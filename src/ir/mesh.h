/* mesh.h - the ranks of a run as a grid with named axes, and how a tensor lies on it.
 *
 * Axes are ordered, outermost first. Each has a degree between nodes (dcn) and one inside a node
 * (ici); its size is their product. Ranks number nodes first: rank = node * ranks per node + place
 * in the node, both row-major over the axes.
 *
 * A group is a set of axes: the ranks that differ from this one in those coordinates alone, in the
 * order of their coordinates, outermost axis first.
 */
#ifndef MX_IR_MESH_H
#define MX_IR_MESH_H

#include "ir/type.h"

typedef enum {
    MX_AXIS_DILOCO,
    MX_AXIS_DATA,
    MX_AXIS_STAGE,
    MX_AXIS_FSDP,
    MX_AXIS_FSDP_TRANSPOSE,
    MX_AXIS_CONTEXT,
    MX_AXIS_CONTEXT_ULYSSES,
    MX_AXIS_CONTEXT_AUTOREGRESSIVE,
    MX_AXIS_TENSOR,
    MX_AXIS_SEQUENCE,
    MX_AXIS_EXPERT,
    MX_AXIS_AUTOREGRESSIVE,
    MX_AXIS_COUNT
} mx_axis;

typedef unsigned mx_axis_set; /* bit a: axis a */

typedef struct {
    int ici[MX_AXIS_COUNT], dcn[MX_AXIS_COUNT]; /* 0 means 1 */
} mx_mesh;

const char *mx_axis_name(mx_axis a);
/* Also MaxText's names (tensor_sequence, pipeline); false when unknown. */
bool mx_axis_parse(const char *name, size_t n, mx_axis *out);
void mx_axis_set_print(mx_str *s, mx_axis_set axes); /* "fsdp,tensor"; "-" for none */

int mx_mesh_degree(const mx_mesh *m, mx_axis a);
int mx_mesh_size(const mx_mesh *m, mx_axis_set axes); /* ranks of a group */
int mx_mesh_ranks(const mx_mesh *m);
/* The axes of degree above 1. */
mx_axis_set mx_mesh_axes(const mx_mesh *m);
int mx_mesh_coordinate(const mx_mesh *m, int rank, mx_axis a);
/* The rank's place in its group, and the rank at a place of it. */
int mx_mesh_index(const mx_mesh *m, int rank, mx_axis_set axes);
int mx_mesh_member(const mx_mesh *m, int rank, mx_axis_set axes, int index);

/* --- placements --- */

/* How a dim is cut. A dim is a product of factors, outermost first, each cut evenly by its axes, in
 * the order of the mesh. One factor is the usual case; a dim that was merged from two (tokens out
 * of rows and positions) keeps both. Normal form: no factor but the first is without axes, and the
 * first alone may be; n = 0: the dim is whole. */
enum { MX_MAX_FACTORS = 4 };
typedef struct {
    int n;
    int64_t size[MX_MAX_FACTORS];
    mx_axis_set axes[MX_MAX_FACTORS];
    /* A sequence cut by `context` in chunks of equal work (ops/zigzag.c). A whole sequence is always
     * in its natural order. */
    bool zigzag[MX_MAX_FACTORS];
    /* Rows that were sorted by expert: by which node (1 + its id in the global graph; 0: none). */
    int sorted_by;
    /* They were then exchanged over these axes: a rank has the rows of its experts, whoever's
     * tokens they are, in a buffer of `rows`. */
    mx_axis_set exchanged;
    int64_t rows;
} mx_cut;

typedef struct {
    mx_cut dim[MX_MAX_DIMS];
    mx_axis_set partial; /* the value is the sum over these axes */
} mx_placement;

mx_cut mx_cut_of(int64_t size, mx_axis_set axes);
mx_axis_set mx_cut_axes(const mx_cut *c);
bool mx_cut_equal(const mx_cut *a, const mx_cut *b);
/* The same without some axes. */
mx_cut mx_cut_without(const mx_cut *c, mx_axis_set axes);

mx_axis_set mx_placement_axes(const mx_placement *p); /* that cut some dim */
bool mx_placement_equal(const mx_placement *a, const mx_placement *b);
/* Where in the whole sequence element i of this rank's part of a dim is that zigzag or plain cuts
 * have made; the dim has one factor. */
int64_t mx_cut_index(const mx_mesh *m, int rank, const mx_cut *c, int64_t i);
/* What a rank holds of a tensor. Dims that do not divide are rounded up. */
mx_type mx_placement_local(const mx_mesh *m, const mx_type *whole, const mx_placement *p);
void mx_placement_print(mx_str *s, const mx_type *whole, const mx_placement *p);

/* A variable or input of one rank: the part [from, from + n) of dim d of the whole tensor, where n
 * is the local size or what is left of the whole. */
typedef struct mx_box {
    mx_type whole;
    mx_placement at;
    int64_t from[MX_MAX_DIMS];
} mx_box;
mx_box mx_box_of(const mx_mesh *m, int rank, const mx_type *whole, const mx_placement *p);

#endif

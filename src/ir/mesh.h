/* mesh.h - the ranks of a run as a grid with named axes.
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
/* "fsdp=4,tensor=2" into the degrees inside a node, -1 among them; axes that are not named have 0.
 * What is wrong is said by name. */
mx_status mx_mesh_parse(mx_mesh *m, const char *text) MX_MUST_USE;
void mx_mesh_print(mx_str *s, const mx_mesh *m); /* "fsdp=4,tensor=2"; "-" for one rank */
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
/* The mesh of the ranks that share this one's coordinate along an axis, and its rank in it. */
mx_mesh mx_mesh_without(const mx_mesh *m, mx_axis a, int rank, int *rank_in_it);

#endif

/* group.h - a fused group: elementwise ops, row reductions, row maps and column sums that run as
 * one kernel.
 *
 * The group runs over a space (*, C): rows of C elements. Every value in it broadcasts to the
 * space; a row reduction's result is one number per row. A column sum (a sum_to of the whole space
 * to its last dim: the gradient of a bias or of a norm's weight) is there only after the last row,
 * so no step reads it. Values 0..n_ext-1 are the node's inputs, value n_ext + i is the result of
 * step i. The CPU evaluates it tile by tile in cache (group_run.c), CUDA generates one kernel from
 * the same description.
 */
#ifndef MX_OPS_GROUP_H
#define MX_OPS_GROUP_H

#include "ir/op.h"

enum { MX_GROUP_STEPS = 64 };

typedef struct {
    const mx_op *op;
    const void *attr;
    int n_in;
    int in[4]; /* value numbers */
    mx_type type;
} mx_group_step;

typedef struct {
    mx_shape space;
    int n_ext;
    mx_type ext[MX_MAX_IN];
    int n_steps;
    mx_group_step step[MX_GROUP_STEPS];
    int n_out;
    int out[MX_MAX_OUT]; /* value numbers of the results */
} mx_group;

typedef struct {
    const mx_group *group; /* in the graph's arena */
} mx_fused_attr;

/* Is this node the sum of all rows of its input? */
bool mx_group_sums_columns(const mx_node *n);
bool mx_group_step_sums_columns(const mx_group_step *s);
/* Can this node be a step of a group over `space`? */
bool mx_group_accepts(const mx_node *n, const mx_shape *space);
/* The space a node would run over by itself. */
mx_shape mx_group_space(const mx_node *n);
/* Elementwise throughout, on whole tensors and single numbers: rows do not matter. */
bool mx_group_is_flat(const mx_group *g);
/* The type of a value, by its number. */
static inline const mx_type *mx_group_type(const mx_group *g, int value)
{
    return value < g->n_ext ? &g->ext[value] : &g->step[value - g->n_ext].type;
}

/* The CPU's evaluation. `work` as given by mx_group_work_bytes. */
void mx_group_run(const mx_group *g, const mx_tensor *in, mx_tensor *out, void *work);
size_t mx_group_work_bytes(const mx_group *g, int n_threads);

#endif

/* mesh_rows.h - the rows of a batch on a mesh, where ranks sample, judge and measure together.
 *
 * The rows of a step are those of rank 0, rank 1, ... of the n_ranks that have other rows. What is
 * known of them on the host is known to all: the answers that a group is compared with are then
 * those that one device would have, whatever the mesh.
 */
#ifndef MX_POST_MESH_ROWS_H
#define MX_POST_MESH_ROWS_H

#include "train/run/objective.h"

/* How many parts of `rows` there are on the host, and which is this rank's; one where there is no
 * mesh. */
int64_t mx_rows_parts(const mx_objective_run *o);
int64_t mx_rows_part(const mx_objective_run *o);
/* Does this rank speak for its rows? Others may have the same. */
bool mx_rows_leads(const mx_objective_run *o);
/* all (n_ranks, bytes): each part as the rank that leads it has filled it in. Takes `mine`: one
 * failed, all fail. */
mx_status mx_rows_share(const mx_objective_run *o, mx_status mine, void *all,
                        size_t bytes) MX_MUST_USE;

/* All ranks of a mesh read the same records: a number of what was read, and whether it is the same
 * everywhere. */
uint64_t mx_rows_digest(uint64_t before, const mx_tokens *ids);
mx_status mx_rows_check_same(const mx_objective_run *o, uint64_t digest) MX_MUST_USE;

#endif

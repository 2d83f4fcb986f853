/* comm_group.h - process groups (ir/process_group.h) of ranks that are processes, for a mesh. */
#ifndef MX_DIST_COMM_GROUP_H
#define MX_DIST_COMM_GROUP_H

#include "dist/comm.h"
#include "ir/mesh.h"
#include "ir/process_group.h"

typedef struct mx_comm_groups mx_comm_groups;

/* With communicators of their own, split off one of all ranks of the mesh. */
mx_status mx_comm_groups_open(mx_comm_groups **out, mx_comm *all, const mx_mesh *mesh) MX_MUST_USE;
/* What lies on GPUs goes through NCCL, where the device has it. Before the first group is found. */
void mx_comm_groups_use_nccl(mx_comm_groups *g);
/* The ranks that differ from this one in these axes only. Belongs to `g`. */
mx_process_group *mx_comm_groups_find(mx_comm_groups *g, mx_axis_set axes);
void mx_comm_groups_free(mx_comm_groups *g); /* NULL is a no-op */

#endif

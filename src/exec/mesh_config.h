/* mesh_config.h - the mesh that the keys ask for, and how tensors lie on it.
 *
 * mesh="fsdp=4,tensor=2", or MaxText's ici_X_parallelism (inside a node) and dcn_X_parallelism
 * (across nodes). One degree of each level may be -1: it takes what is left of the ranks. Ranks are
 * the processes that were started, or virtual_ranks inside this one; without either as many as the
 * degrees multiply to.
 */
#ifndef MX_EXEC_MESH_CONFIG_H
#define MX_EXEC_MESH_CONFIG_H

#include "base/config.h"
#include "compile/mesh/partition.h"
#include "models/model.h"

/* Zero-initialise; how.mesh and how.rules point into it. */
typedef struct {
    mx_mesh mesh;
    int ranks; /* 1: one device, nothing is cut */
    bool asked; /* some key asks for a mesh */
    mx_axis_rules rules;
    mx_partition how; /* of rank 0 */
} mx_mesh_plan;

/* `processes`: how many were started as one run. */
mx_status mx_mesh_configure(mx_mesh_plan *p, const mx_config *c, int processes) MX_MUST_USE;
/* The ranks that the degrees multiply to, where the keys give any; 0: they ask for no mesh. */
mx_status mx_mesh_asked(const mx_config *c, int64_t *ranks) MX_MUST_USE;
/* The degrees that the keys give, for a machine of `nodes` nodes of `per_node` ranks, which need
 * not be there. The axes of mesh= fill nodes from the innermost out. */
mx_status mx_mesh_read(mx_mesh *m, const mx_config *c, int64_t nodes,
                       int64_t per_node) MX_MUST_USE;
/* As if the keys asked for this mesh. */
mx_status mx_mesh_use(mx_mesh_plan *p, const mx_config *c, const mx_mesh *m) MX_MUST_USE;
void mx_mesh_plan_fini(mx_mesh_plan *p);
/* For what takes a run's keys and has one device: `does` is who does what to it. */
mx_status mx_mesh_refuse(const mx_config *c, const char *does) MX_MUST_USE;
/* An error where the mesh has stages: for what does not run as a pipeline. */
mx_status mx_mesh_without_stages(const mx_mesh_plan *p, const char *what) MX_MUST_USE;
/* What this mesh cannot do to this model, or to batches of this length. */
mx_status mx_mesh_check(const mx_mesh_plan *p, const mx_config *c) MX_MUST_USE;
/* The axes that rows of a batch are shared over, and this rank's place among those who share. */
mx_axis_set mx_mesh_rows(const mx_mesh_plan *p);

#endif

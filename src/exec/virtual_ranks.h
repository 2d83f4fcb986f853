/* virtual_ranks.h - the ranks of a mesh as threads of this process.
 *
 * A rank does not know that it is a thread: it has a communicator and a group finder like one that
 * is a process, opens its own session and reads its own part of the weights. So there is one way
 * through a run, and what is tried here is what a cluster does.
 */
#ifndef MX_EXEC_VIRTUAL_RANKS_H
#define MX_EXEC_VIRTUAL_RANKS_H

#include "device/device.h"
#include "dist/local.h"
#include "exec/forward.h"
#include "exec/mesh_config.h"

/* This rank of a mesh: how tensors are partitioned for it, and where its collectives find their
 * groups. Its programs hold the collectives, so loss, norms and metrics are those of all ranks. */
typedef struct mx_mesh_rank {
    const mx_mesh_plan *mesh;
    mx_partition how; /* of this rank */
    int rank, n_threads;
    mx_group_finder find_group; /* its ctx is this mx_mesh_rank */
    mx_local_world *world;      /* of virtual ranks */
} mx_mesh_rank;

/* Runs `rank` for every rank of the mesh and gives the status of the one that failed first: the
 * others end as soon as they wait for it. They share n_threads; 0: what OpenMP offers. */
mx_status mx_virtual_ranks(const mx_mesh_plan *mesh, int n_threads,
                           mx_status (*rank)(void *ctx, const mx_mesh_rank *mesh_rank),
                           void *ctx) MX_MUST_USE;
/* A session as this rank needs it; NULL: alone, with n_threads. */
mx_status mx_mesh_rank_session(mx_session **out, const mx_mesh_rank *mesh_rank, const char *device,
                          int n_threads) MX_MUST_USE;
/* The stages of its mesh, for programs of a model that is cut by its own layers; NULL where it has
 * none, else `out`. */
const mx_forward_stages *mx_mesh_rank_stages(const mx_mesh_rank *mesh_rank, mx_forward_stages *out);

#endif

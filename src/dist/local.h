/* local.h - virtual ranks: the ranks of a mesh as threads of one process.
 *
 * Collectives are copies between the ranks' own memory. A rank that fails makes every other's
 * present and next call fail (mx_local_abort), so no thread waits for one that is gone.
 */
#ifndef MX_DIST_LOCAL_H
#define MX_DIST_LOCAL_H

#include "dist/comm.h"
#include "ir/mesh.h"
#include "ir/process_group.h"

typedef struct mx_local_world mx_local_world;

mx_local_world *mx_local_world_new(const mx_mesh *mesh);
void mx_local_world_free(mx_local_world *w); /* after the last rank has ended */
/* The group that this rank is in along these axes; the world owns it. Any thread may ask. */
mx_process_group *mx_local_group(mx_local_world *w, int rank, mx_axis_set axes);
/* The group of all ranks; each channel has one of its own, for a thread of its own. */
mx_process_group *mx_local_everybody(mx_local_world *w, int rank, int channel);
mx_status mx_local_broadcast(mx_process_group *g, void *data, size_t bytes, int root) MX_MUST_USE;
/* The communicator of all ranks (local_comm.c). Close before the world is freed. */
mx_status mx_local_comm_open(mx_comm **out, mx_local_world *w, int rank) MX_MUST_USE;
/* The rank leaves; `why` is what the others report. */
void mx_local_abort(mx_local_world *w, int rank, const char *why);
/* The rank that left first with an error; -1: none has. */
int mx_local_failed(mx_local_world *w);

#endif

/* launch.h - which rank this process is, from what its launcher left in the environment.
 *
 *     launcher                         rank                    number of ranks
 *     torchrun, and by hand            RANK                    WORLD_SIZE
 *     Open MPI's mpirun                OMPI_COMM_WORLD_RANK    OMPI_COMM_WORLD_SIZE
 *     MPICH's and Intel's mpirun       PMI_RANK                PMI_SIZE
 *     Slurm's srun                     SLURM_PROCID            SLURM_STEP_NUM_TASKS
 *
 *     Kubernetes, Indexed Job          JOB_COMPLETION_INDEX    WORLD_SIZE
 *
 * The first pair that is set counts. Kubernetes says which pod this is but not of how many: the
 * manifest does (deploy/kubernetes). Ranks meet at MASTER_ADDR:MASTER_PORT, which rank 0 listens
 * on. Without MASTER_ADDR it is the first node of Slurm's step, or this machine when the launcher
 * says that all ranks are on it; without MASTER_PORT it is 29500, or a number made of Slurm's job.
 * torchrun's own agent listens on MASTER_PORT, so its ranks meet at the next one.
 * LOCAL_RANK says which of its machine's ranks this is; else what the launcher calls it
 * (OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID, SLURM_LOCALID).
 * A batch script of Slurm has SLURM_PROCID but no step: what it starts itself is alone.
 */
#ifndef MX_DIST_LAUNCH_H
#define MX_DIST_LAUNCH_H

#include "base/status.h"
#include <stdbool.h>

enum { MX_LAUNCH_MAX_RANKS = 1024 };

typedef struct {
    const char *launcher; /* NULL: none, and alone */
    int rank, size;
    int local; /* place among the ranks of this machine: its GPU; 0 where nothing says it */
    int on_machine; /* ranks of this machine; 0 where nothing says it */
    char host[256];
    int port;
    bool mpi;     /* it joins what it starts for MPI too */
    char job[64]; /* the launcher's name for this job, which is no secret; "": it has none */
} mx_launch;

/* `get` is getenv, or a test's. */
mx_status mx_launch_find(mx_launch *p, char *(*get)(const char *name)) MX_MUST_USE;

#endif

/* mpi.h - ranks that talk through MPI: a plug-in, libmaxc_mpi.so, built where mpicc is.
 *
 * The program is not linked with MPI: Open MPI and MPICH are not interchangeable, and most machines
 * have neither. The plug-in is where MX_MPI_PLUGIN says, beside the program, or in ../lib/maxc. It
 * must be of the same MPI as the mpirun that starts the ranks.
 */
#ifndef MX_DIST_MPI_H
#define MX_DIST_MPI_H

#include "dist/comm.h"

/* What the plug-in gives; checked before anything else of it is used. */
enum { MX_MPI_INTERFACE = 2 };
typedef struct {
    int version; /* MX_MPI_INTERFACE */
    /* What all ranks must have for MPI to join them: initialises MPI, and says whose it is. */
    mx_status (*start)(mx_coord *coord, char *library, size_t cap);
    mx_status (*open)(mx_comm **out, mx_coord *coord);
} mx_mpi_plugin;
typedef const mx_mpi_plugin *mx_mpi_plugin_get(void); /* the symbol mx_mpi_plugin_of */

/* choice->how is not tcp. *out stays NULL where it is not mpi and MPI is not available. All ranks
 * decide alike. */
mx_status mx_mpi_open(mx_comm **out, mx_coord *coord, mx_comm_choice *choice) MX_MUST_USE;

#endif

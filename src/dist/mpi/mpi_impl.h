/* mpi_impl.h - what the parts of the MPI plug-in share. */
#ifndef MX_DIST_MPI_IMPL_H
#define MX_DIST_MPI_IMPL_H

#include "dist/mpi.h"
#include <mpi.h>

enum { MX_MPI_CHUNK = 1 << 30 }; /* bytes of one request: MPI counts in ints */

typedef struct {
    mx_comm base;
    MPI_Comm world;
    bool first; /* the one that ends MPI */
    int channel;
    uint64_t calls;
    MPI_Request *request;
    MPI_Status *status;
    int n, cap; /* requests */
    int busy;   /* transfers with a request */
} mx_mpi_comm;

mx_status mx_mpi_failed(mx_coord *coord, const char *what, int code) MX_MUST_USE;

/* transfers.c: messages between two ranks (dist/messenger.h) */
mx_status mx_mpi_move(mx_comm *c, mx_transfer *transfers, bool *moved) MX_MUST_USE;
void mx_mpi_rest(mx_comm *c, int wake, bool urgent);
void mx_mpi_drop(mx_comm *c, mx_transfer *l);

#endif

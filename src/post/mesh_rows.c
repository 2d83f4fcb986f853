/* mesh_rows.c - see mesh_rows.h. */
#include "post/mesh_rows.h"

#include <string.h>

int64_t mx_rows_parts(const mx_objective_run *o)
{
    return o->comm ? o->n_ranks : 1;
}

int64_t mx_rows_part(const mx_objective_run *o)
{
    return o->comm ? o->rank : 0;
}

bool mx_rows_leads(const mx_objective_run *o)
{
    return !o->comm || o->row_leader[o->rank] == o->comm->rank;
}

mx_status mx_rows_share(const mx_objective_run *o, mx_status mine, void *all, size_t bytes)
{
    char *of_ranks = NULL, *to = all;
    if (!o->comm)
        return mine;
    MX_TRY(mx_comm_agree(o->comm, mine));
    MX_TRY(mx_alloc((void **)&of_ranks, bytes * (size_t)o->comm->size, "rows of all ranks"));
    mx_status st = mx_comm_gather(o->comm, to + bytes * (size_t)o->rank, bytes, of_ranks);
    for (int i = 0; i < o->n_ranks && !st; i++)
        memcpy(to + bytes * (size_t)i, of_ranks + bytes * (size_t)o->row_leader[i], bytes);
    mx_free(of_ranks);
    return st;
}

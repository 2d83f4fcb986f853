/* mesh_rows.c - see mesh_rows.h. */
#include "post/mesh_rows.h"

#include "store/digest.h"
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

uint64_t mx_rows_digest(uint64_t before, const mx_tokens *ids)
{
    uint64_t mine = ids->n ? mx_digest_of(ids->ids, sizeof *ids->ids * (size_t)ids->n).lo : 1;
    return (before ^ mine) * 0x9e3779b97f4a7c15u;
}

mx_status mx_rows_check_same(const mx_objective_run *o, uint64_t digest)
{
    uint64_t *all = NULL;
    if (!o->comm)
        return MX_OK;
    MX_TRY(mx_alloc((void **)&all, sizeof *all * (size_t)o->comm->size, "digests of ranks"));
    mx_status st = mx_comm_gather(o->comm, &digest, sizeof digest, all);
    for (int k = 1; k < o->comm->size && !st; k++)
        if (all[k] != all[0])
            st = mx_fail(MX_USAGE, "rank %d has read other records than rank 0; give all ranks the "
                         "same files (dataset_path, rollout_path, task_path, tokenizer_path)", k);
    mx_free(all);
    return st;
}

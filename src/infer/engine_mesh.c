/* engine_mesh.c - see engine_mesh.h. */
#include "infer/engine_mesh.h"

#include "dist/launch.h"
#include "exec/virtual_ranks.h"
#include "infer/batch_ranks.h"
#include "infer/engine_impl.h"
#include <stdlib.h>

typedef struct {
    const mx_engine_use *u;
    mx_batch_ranks *ranks;
} job;

static mx_status use_one(const mx_engine_use *u, const mx_engine_options *o)
{
    mx_engine *e;
    MX_TRY(mx_engine_open(&e, o));
    mx_status st = u->use(u->ctx, e);
    mx_engine_close(e);
    return st;
}

/* A rank that is not the first computes the batches that rank 0 hands over. */
static mx_status follow(const mx_engine_options *o)
{
    mx_engine *e = mx_realloc(NULL, sizeof *e);
    int64_t done = 0;
    *e = (mx_engine){.o = *o};
    mx_status st = mx_engine_open_model(e);
    while (!st && mx_batch_ranks_take(o->ranks, &done, e->batch))
        st = mx_engine_batch_run(e->batch);
    mx_engine_close(e);
    return st;
}

static mx_status run_rank(void *ctx, const mx_mesh_rank *mesh_rank)
{
    const job *j = ctx;
    mx_engine_options o = *j->u->o;
    o.mesh_rank = mesh_rank;
    o.ranks = j->ranks;
    mx_status st = mesh_rank->rank ? follow(&o) : use_one(j->u, &o);
    if (mesh_rank->rank && st)
        mx_batch_ranks_fail(j->ranks);
    if (!mesh_rank->rank)
        mx_batch_ranks_end(j->ranks);
    return st;
}

/* What only one device does. */
static mx_status check(const mx_engine_options *o)
{
    const char *what = o->adapter_slots                 ? "adapters (lora=, max_loras=)"
                       : o->mtp && o->draft_tokens > 0  ? "speculative_method=mtp"
                       : o->quant.dtype != MX_F32       ? "quantization="
                       : o->quant.cache != MX_F32       ? "quantize_kvcache=true"
                       : o->images                      ? "images"
                                                        : NULL;
    if (!what)
        return MX_OK;
    return mx_fail(MX_USAGE,
                   "%s: the engine does this on one device alone; leave it or mesh= out%s", what,
                   o->images ? " (max_images=0: prompts without images)" : "");
}

/* Each process would serve the whole mesh for itself. */
static mx_status check_alone(const mx_engine_use *u)
{
    mx_launch p;
    MX_TRY(mx_launch_find(&p, getenv));
    if (p.size <= 1)
        return MX_OK;
    return mx_fail(MX_USAGE,
                   "mesh=: %s runs the ranks of a mesh as threads of one process, and %s has "
                   "started %d; start one, without a launcher", u->what, p.launcher, p.size);
}

mx_status mx_engine_run(const mx_engine_use *u)
{
    mx_mesh_plan mesh = {0};
    mx_status st = mx_mesh_configure(&mesh, u->c, 1);
    if (!st)
        st = mx_mesh_without_stages(&mesh, u->what);
    if (!st && mesh.ranks <= 1)
        st = use_one(u, u->o);
    else if (!st)
        st = check(u->o);
    if (!st && mesh.ranks > 1)
        st = check_alone(u);
    if (!st && mesh.ranks > 1) {
        job j = {u, mx_batch_ranks_new(mesh.ranks)};
        if (!mx_config_is_users(u->c, "sharding_tolerance"))
            mesh.how.sharding_tolerance = 1; /* nothing is trained: copies cost memory alone */
        st = mx_virtual_ranks(&mesh, u->o->n_threads, run_rank, &j);
        mx_batch_ranks_free(j.ranks);
    }
    mx_mesh_plan_fini(&mesh);
    return st;
}

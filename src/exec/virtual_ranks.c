/* virtual_ranks.c - see virtual_ranks.h. */
#include "exec/virtual_ranks.h"

#include "base/stack.h"
#include "base/threads.h"
#include "exec/programs.h"
#include <pthread.h>
#include <string.h>

enum { MOST = 256 }; /* ranks: each builds programs of its own, for groups of all of them */

typedef struct {
    mx_mesh_rank mesh_rank;
    mx_status (*run)(void *ctx, const mx_mesh_rank *mesh_rank);
    void *ctx;
    pthread_t thread;
    bool started;
    mx_status st;
} virtual_rank;

static mx_process_group *find_group(void *ctx, unsigned axes)
{
    const mx_mesh_rank *s = ctx;
    return mx_mesh_size(&s->mesh->mesh, axes) > 1 ? mx_local_group(s->world, s->rank, axes) : NULL;
}

static void *rank_main(void *arg)
{
    virtual_rank *v = arg;
    v->st = v->run(v->ctx, &v->mesh_rank);
    if (v->st && mx_status_code(v->st) != MX_STOPPED)
        mx_local_abort(v->mesh_rank.world, v->mesh_rank.rank, mx_status_text(v->st));
    return NULL;
}

/* The words of the rank that failed first; the others only repeat them. */
static mx_status verdict(virtual_rank *v, int n, int failed)
{
    int says = failed >= 0 && v[failed].st ? failed : 0;
    mx_status st = v[says].st;
    for (int i = 0; i < n; i++) {
        if (!st && v[i].st)
            st = v[i].st;
        else if (v[i].st != st)
            mx_status_free(v[i].st);
    }
    return st;
}

static mx_status start(virtual_rank *v, int n)
{
    MX_TRY(mx_stack_prepare());
    for (int i = 0; i < n; i++) {
        int error = pthread_create(&v[i].thread, NULL, rank_main, &v[i]);
        v[i].started = !error;
        if (error)
            return mx_fail(MX_MEMORY, "virtual rank %d of %d cannot have a thread: %s", i, n,
                           strerror(error));
    }
    return MX_OK;
}

mx_status mx_virtual_ranks(const mx_mesh_plan *mesh, int n_threads,
                           mx_status (*rank)(void *ctx, const mx_mesh_rank *mesh_rank), void *ctx)
{
    mx_arena a = {0};
    int n = mesh->ranks, threads = n_threads > 0 ? n_threads : mx_threads_offered();
    if (n > MOST)
        return mx_fail(MX_USAGE, "the mesh has %d ranks, and one process runs at most %d; start "
                       "processes (docs/runs.md), or look at such a mesh with `maxc plan`", n,
                       MOST);
    virtual_rank *v = MX_NEW_N(&a, virtual_rank, n);
    mx_local_world *world = mx_local_world_new(&mesh->mesh);
    for (int i = 0; i < n; i++) {
        v[i] = (virtual_rank){.run = rank, .ctx = ctx};
        v[i].mesh_rank = (mx_mesh_rank){.mesh = mesh, .world = world, .rank = i, .how = mesh->how,
                              .n_threads = threads > n ? threads / n : 1,
                              .find_group = find_group};
        v[i].mesh_rank.how.rank = i;
    }
    mx_status st = start(v, n);
    if (st)
        mx_local_abort(world, 0, mx_status_text(st));
    for (int i = 0; i < n; i++)
        if (v[i].started)
            pthread_join(v[i].thread, NULL);
    mx_status ended = verdict(v, n, mx_local_failed(world));
    mx_local_world_free(world);
    mx_arena_fini(&a);
    mx_status_free(st ? ended : NULL);
    return st ? st : ended;
}

mx_status mx_mesh_rank_session(mx_session **out, const mx_mesh_rank *mesh_rank, const char *device,
                               int n_threads)
{
    MX_TRY(mx_session_open(out, device, mesh_rank ? mesh_rank->n_threads : n_threads));
    if (mesh_rank)
        mx_session_set_groups(*out, mesh_rank->find_group, (void *)mesh_rank);
    return MX_OK;
}

const mx_forward_stages *mx_mesh_rank_stages(const mx_mesh_rank *mesh_rank, mx_forward_stages *out)
{
    if (!mesh_rank || mx_mesh_degree(&mesh_rank->mesh->mesh, MX_AXIS_STAGE) == 1)
        return NULL;
    *out = (mx_forward_stages){.group = mesh_rank->find_group((void *)mesh_rank,
                                                              1u << MX_AXIS_STAGE)};
    mx_pipeline_configure(&out->how, NULL, NULL, &mesh_rank->how);
    return out;
}

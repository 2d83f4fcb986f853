/* run_virtual.c - a run on virtual ranks: each rank of the mesh is a thread with a run of its own.
 *
 * A rank does not know that it is a thread: it has a communicator and a group finder like one that
 * is a process, opens its own loader and session, and rank 0 speaks. So there is one way through a
 * run, and what is tried here is what a cluster does. The threads of the process are shared among
 * the ranks.
 */
#include "train/run_state.h"

#include "base/stack.h"
#include "base/threads.h"
#include <pthread.h>
#include <string.h>

typedef struct {
    mx_run_seat seat;
    const mx_config *config;
    const char *command_line;
    pthread_t thread;
    bool started;
    mx_status st;
} virtual_rank;

static mx_process_group *find_group(void *ctx, unsigned axes)
{
    const mx_run_seat *s = ctx;
    return mx_local_group(s->world, s->rank, axes);
}

static void *rank_main(void *arg)
{
    virtual_rank *v = arg;
    v->st = mx_run_rank(v->config, v->command_line, &v->seat);
    if (v->st && mx_status_code(v->st) != MX_STOPPED)
        mx_local_abort(v->seat.world, v->seat.rank, mx_status_text(v->st));
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

mx_status mx_run_virtual(const mx_config *c, const char *command_line, const mx_mesh_plan *mesh)
{
    mx_arena a = {0};
    int n = mesh->ranks, threads = (int)mx_config_int(c, "num_threads");
    virtual_rank *v = MX_NEW_N(&a, virtual_rank, n);
    mx_local_world *world = mx_local_world_new(&mesh->mesh);
    threads = threads > 0 ? threads : mx_threads_offered();
    mx_status st = mx_stack_prepare();
    for (int i = 0; i < n; i++) {
        v[i] = (virtual_rank){.config = c, .command_line = command_line};
        v[i].seat = (mx_run_seat){.mesh = mesh, .world = world, .rank = i, .how = mesh->how,
                                  .n_threads = threads > n ? threads / n : 1,
                                  .find_group = find_group};
        v[i].seat.how.rank = i;
    }
    for (int i = 0; i < n && !st; i++) {
        int error = pthread_create(&v[i].thread, NULL, rank_main, &v[i]);
        v[i].started = !error;
        if (error)
            st = mx_fail(MX_MEMORY, "virtual rank %d of %d cannot have a thread: %s", i, n,
                         strerror(error));
    }
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

/* mpi.c - the MPI plug-in, opened when it is asked for; see mpi.h. */
#include "dist/mpi.h"

#include "base/library.h"
#include <dlfcn.h>
#include <string.h>

static mx_status find_plugin(const mx_mpi_plugin **out)
{
    char path[4096];
    mx_plugin_path("MX_MPI_PLUGIN", "libmaxc_mpi.so", path, sizeof path);
    /* MPI opens libraries of its own, which look for its symbols. */
    void *so = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!so)
        return mx_fail(MX_DEVICE,
                       "the MPI plug-in cannot be opened (%s); build it with `make mpi` where "
                       "mpicc is installed, or use collectives=tcp",
                       dlerror());
    mx_mpi_plugin_get *get;
    *(void **)&get = dlsym(so, "mx_mpi_plugin_of");
    *out = get ? get() : NULL;
    if (*out && (*out)->version == MX_MPI_INTERFACE)
        return MX_OK;
    return mx_fail(MX_DEVICE, "%s is of another version of maxc; build it again with `make mpi`",
                   path);
}

static mx_status start(mx_coord *coord, const mx_mpi_plugin **p, char *library, size_t cap)
{
    if (!mx_coord_launch(coord)->mpi)
        return mx_fail(MX_USAGE,
                       "collectives=mpi needs ranks that mpirun, or srun --mpi=pmix, has started; "
                       "these were started by %s",
                       mx_coord_launch(coord)->launcher);
    MX_TRY(find_plugin(p));
    return (*p)->start(coord, library, cap);
}

/* MPI begins on all ranks together, and waits for one that does not come: the heartbeat must know
 * of it. */
static mx_status start_together(mx_coord *coord, const mx_mpi_plugin **p, char *library, size_t cap)
{
    int channel;
    uint32_t number;
    MX_TRY(mx_coord_channel_open(coord, &channel, &number));
    mx_coord_enter(coord, channel, "MPI_Init", 1);
    mx_status st = start(coord, p, library, cap);
    mx_coord_channel_close(coord, channel);
    return st;
}

/* Its own error where this rank has one; else the first rank's that has. */
static mx_status agree(mx_coord *coord, mx_status mine, const char *library, bool *all)
{
    char say[MX_COORD_BLOB] = "", heard[MX_LAUNCH_MAX_RANKS][MX_COORD_BLOB];
    say[0] = (char)!mine;
    strncat(say + 1, library, sizeof say - 2);
    mx_status st = mx_coord_gather(coord, say, sizeof say, heard);
    *all = !mine && !st;
    if (mine || st) {
        mx_status_free(mine ? st : NULL);
        return mine ? mine : st;
    }
    for (int r = 0; r < mx_coord_size(coord) && !st; r++) {
        heard[r][sizeof say - 1] = 0;
        if (!heard[r][0])
            st = mx_fail(MX_DEVICE, "rank %d has no MPI that joins it with the others", r);
        else if (strcmp(heard[r] + 1, say + 1) != 0)
            st = mx_fail(MX_DEVICE, "rank %d has another MPI than rank %d", r,
                         mx_coord_rank(coord));
    }
    *all = !st;
    return st;
}

mx_status mx_mpi_open(mx_comm **out, mx_coord *coord, mx_comm_choice *choice)
{
    const mx_mpi_plugin *p = NULL;
    char library[MX_COORD_BLOB] = "";
    bool may_fail = strcmp(choice->how, "mpi") != 0, all;
    if (may_fail && !mx_coord_launch(coord)->mpi)
        return MX_OK;
    mx_status st = start_together(coord, &p, library, sizeof library);
    st = agree(coord, st, library, &all);
    if (all)
        return p->open(out, coord);
    if (!may_fail || mx_coord_check(coord))
        return st;
    choice->note = mx_arena_strdup(choice->arena, mx_status_text(st));
    mx_status_free(st);
    return MX_OK;
}

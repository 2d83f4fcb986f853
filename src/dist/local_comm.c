/* local_comm.c - a communicator (comm.h) of the virtual ranks of one process: its calls are the
 * collectives of a group of all ranks (local.c). */
#include "dist/local.h"

#include "base/arena.h"
#include "dist/reduce.h"
#include <string.h>

typedef struct {
    mx_comm base;
    mx_local_world *world;
    mx_process_group *group;
    int n_split; /* communicators split off so far */
    int channel;
} local_comm;

enum { BLOCK = 1 << 14 };

static mx_status gather(mx_comm *c, const void *mine, size_t bytes, void *all)
{
    mx_process_group *g = ((local_comm *)c)->group;
    return g->kind->all_gather(g, mine, all, bytes);
}

static mx_status broadcast(mx_comm *c, void *data, size_t bytes, int root)
{
    mx_process_group *g = ((local_comm *)c)->group;
    return mx_local_broadcast(g, data, bytes, root);
}

static mx_status sum_f32(mx_comm *c, const mx_span *spans, int n)
{
    mx_process_group *g = ((local_comm *)c)->group;
    float sum[BLOCK];
    for (int i = 0; i < n; i++)
        for (int64_t at = 0; at < spans[i].n; at += BLOCK) {
            int64_t m = spans[i].n - at < BLOCK ? spans[i].n - at : BLOCK;
            mx_reduce_args a = {.in = spans[i].data + at, .out = sum, .n = m, .dtype = MX_F32};
            MX_TRY(g->kind->all_reduce(g, &a));
            memcpy(spans[i].data + at, sum, sizeof *sum * (size_t)m);
        }
    return MX_OK;
}

static void close_comm(mx_comm *c)
{
    mx_free(c->small);
    mx_free(c);
}

static mx_status open_channel(mx_comm **out, mx_local_world *w, int rank, int channel);

/* Ranks split communicators off in the same order, so they count alike. */
static mx_status split_off(mx_comm *c, mx_comm **out)
{
    local_comm *l = (local_comm *)c;
    MX_ASSERT(!l->channel, "what was split off is not split again");
    return open_channel(out, l->world, c->rank, ++l->n_split);
}

static const mx_comm_kind kind = {.name = "local",
                                  .gather = gather,
                                  .broadcast = broadcast,
                                  .sum_f32 = sum_f32,
                                  .split_off = split_off,
                                  .close = close_comm};

static mx_status open_channel(mx_comm **out, mx_local_world *w, int rank, int channel)
{
    local_comm *l;
    *out = NULL;
    MX_TRY(mx_alloc((void **)&l, sizeof *l, "a communicator"));
    l->group = mx_local_everybody(w, rank, channel);
    l->base = (mx_comm){.kind = &kind, .rank = rank, .size = l->group->size};
    l->world = w;
    l->channel = channel;
    size_t bytes = (size_t)MX_COMM_SMALL * (size_t)l->base.size;
    mx_status st = mx_alloc((void **)&l->base.small, bytes, "a communicator");
    if (st)
        mx_free(l);
    else
        *out = &l->base;
    return st;
}

mx_status mx_local_comm_open(mx_comm **out, mx_local_world *w, int rank)
{
    return open_channel(out, w, rank, 0);
}

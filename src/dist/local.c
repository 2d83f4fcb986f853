/* local.c - collectives between threads: each rank publishes where its data lies, waits for the
 * others, copies what it needs, and waits until no rank reads its own any more. See local.h. */
#include "dist/local.h"

#include "base/arena.h"
#include "dist/reduce.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { PROGRAMS = -1 }; /* the channel of collectives that are ops */

typedef enum { SENT, POSTED, ARRIVED } transfer_state;

/* A message under way. */
typedef struct transfer {
    int from, to;
    mx_message m;
    transfer_state state;
    struct transfer *next;
} transfer;

/* What the members of one group share. */
typedef struct shared {
    mx_local_world *world;
    mx_axis_set axes;
    int channel;
    int first, size; /* the member at index 0, by which the group is known */
    const void **in; /* of each member, for the call going on */
    const int64_t **at;
    pthread_mutex_t lock;
    pthread_cond_t all;
    int arrived;
    unsigned round;
    transfer *transfers, *spare; /* changed under `lock`, like their arena */
    mx_arena arena;
    struct shared *next;
} shared;

typedef struct {
    mx_process_group base;
    shared *s;
} member;

struct mx_local_world {
    mx_mesh mesh;
    mx_arena arena;
    pthread_mutex_t lock;
    shared *groups;
    pthread_mutex_t turn;
    bool failed;
    int failed_rank;
    char why[512];
};

mx_local_world *mx_local_world_new(const mx_mesh *mesh)
{
    mx_local_world *w = mx_realloc(NULL, sizeof *w);
    *w = (mx_local_world){.mesh = *mesh};
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->turn, NULL);
    return w;
}

void mx_local_world_free(mx_local_world *w)
{
    if (!w)
        return;
    for (shared *s = w->groups; s; s = s->next) {
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->all);
        mx_arena_fini(&s->arena);
    }
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->turn);
    mx_arena_fini(&w->arena);
    mx_free(w);
}

static mx_status failure(mx_local_world *w)
{
    pthread_mutex_lock(&w->lock);
    mx_status st = mx_fail(MX_DEVICE, "rank %d: %s", w->failed_rank, w->why);
    pthread_mutex_unlock(&w->lock);
    return st;
}

/* Returns when every member has come here, or with the failure of one. */
static mx_status meet(shared *s)
{
    pthread_mutex_lock(&s->lock);
    unsigned round = s->round;
    if (++s->arrived == s->size) {
        s->arrived = 0;
        s->round++;
        pthread_cond_broadcast(&s->all);
    }
    while (s->round == round && !__atomic_load_n(&s->world->failed, __ATOMIC_ACQUIRE))
        pthread_cond_wait(&s->all, &s->lock);
    bool ended = s->round != round;
    pthread_mutex_unlock(&s->lock);
    return ended ? MX_OK : failure(s->world);
}

void mx_local_abort(mx_local_world *w, int rank, const char *why)
{
    pthread_mutex_lock(&w->lock);
    if (!w->failed) {
        w->failed_rank = rank;
        snprintf(w->why, sizeof w->why, "%s", why);
        __atomic_store_n(&w->failed, true, __ATOMIC_RELEASE);
    }
    for (shared *s = w->groups; s; s = s->next) {
        pthread_mutex_lock(&s->lock);
        pthread_cond_broadcast(&s->all);
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

/* --- collectives --- */

static mx_status begin(member *m, const void *in)
{
    m->s->in[m->base.rank] = in;
    return meet(m->s);
}

static mx_status all_gather(mx_process_group *g, const void *in, void *out, size_t bytes)
{
    member *m = (member *)g;
    MX_TRY(begin(m, in));
    for (int k = 0; k < g->size && bytes; k++)
        memcpy((char *)out + (size_t)k * bytes, m->s->in[k], bytes);
    return meet(m->s);
}

static mx_status reduce_scatter(mx_process_group *g, const mx_reduce_args *a)
{
    member *m = (member *)g;
    MX_TRY(begin(m, a->in));
    mx_reduce_from(a, m->s->in, g->size, g->rank * a->n);
    return meet(m->s);
}

static mx_status all_reduce(mx_process_group *g, const mx_reduce_args *a)
{
    member *m = (member *)g;
    MX_TRY(begin(m, a->in));
    mx_reduce_from(a, m->s->in, g->size, 0);
    return meet(m->s);
}

static mx_status all_to_all(mx_process_group *g, const void *in, void *out, size_t bytes)
{
    member *m = (member *)g;
    MX_TRY(begin(m, in));
    for (int k = 0; k < g->size; k++)
        memcpy((char *)out + (size_t)k * bytes,
               (const char *)m->s->in[k] + (size_t)g->rank * bytes, bytes);
    return meet(m->s);
}

static mx_status exchange(mx_process_group *g, const mx_exchange_args *a)
{
    member *m = (member *)g;
    m->s->at[g->rank] = a->in_at;
    MX_TRY(begin(m, a->in));
    for (int k = 0; k < g->size; k++)
        memcpy((char *)a->out + a->out_at[k],
               (const char *)m->s->in[k] + m->s->at[k][g->rank], (size_t)a->out_bytes[k]);
    return meet(m->s);
}

static mx_status shift(mx_process_group *g, const void *in, void *out, size_t bytes, int by)
{
    member *m = (member *)g;
    MX_TRY(begin(m, in));
    int from = ((g->rank - by) % g->size + g->size) % g->size;
    memcpy(out, m->s->in[from], bytes);
    return meet(m->s);
}

/* --- messages --- */

/* A message that was sent and not received waits in the sender's memory, one that was posted and
 * not sent has room in the receiver's; whoever comes second copies. */
static transfer **find_transfer(shared *s, int from, int to, int64_t tag)
{
    transfer **l = &s->transfers;
    while (*l && ((*l)->from != from || (*l)->to != to || (*l)->m.tag != tag))
        l = &(*l)->next;
    return l;
}

static void add_transfer(shared *s, transfer what)
{
    transfer *l = s->spare;
    if (l)
        s->spare = l->next;
    else
        l = MX_NEW(&s->arena, transfer);
    *l = what;
    l->next = s->transfers;
    s->transfers = l;
}

static void drop_transfer(shared *s, transfer **at)
{
    transfer *l = *at;
    *at = l->next;
    l->next = s->spare;
    s->spare = l;
}

static bool has_failed(const shared *s)
{
    return __atomic_load_n(&s->world->failed, __ATOMIC_ACQUIRE);
}

/* Under the lock: after mx_local_abort no rank touches the memory of the one that left. */
static void copy_message(const mx_message *from, const mx_message *to)
{
    MX_ASSERT(from->bytes == to->bytes, "%zu bytes were sent, %zu are expected", from->bytes,
              to->bytes);
    memcpy(to->data, from->data, from->bytes);
}

static mx_status send_message(mx_process_group *g, const mx_message *m)
{
    shared *s = ((member *)g)->s;
    pthread_mutex_lock(&s->lock);
    transfer *l = *find_transfer(s, g->rank, m->peer, m->tag);
    bool failed = has_failed(s);
    MX_ASSERT(!l || l->state == POSTED, "two messages of tag %lld", (long long)m->tag);
    if (l && !failed) {
        copy_message(m, &l->m);
        l->state = ARRIVED;
    } else if (!l) {
        add_transfer(s, (transfer){.from = g->rank, .to = m->peer, .m = *m, .state = SENT});
    }
    pthread_cond_broadcast(&s->all);
    pthread_mutex_unlock(&s->lock);
    return failed ? failure(s->world) : MX_OK;
}

static mx_status post(mx_process_group *g, const mx_message *m)
{
    shared *s = ((member *)g)->s;
    pthread_mutex_lock(&s->lock);
    if (!*find_transfer(s, m->peer, g->rank, m->tag))
        add_transfer(s, (transfer){.from = m->peer, .to = g->rank, .m = *m, .state = POSTED});
    pthread_mutex_unlock(&s->lock);
    return MX_OK;
}

static mx_status sent(mx_process_group *g, const mx_message *m)
{
    shared *s = ((member *)g)->s;
    bool failed = false;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        const transfer *l = *find_transfer(s, g->rank, m->peer, m->tag);
        failed = has_failed(s);
        if (!l || l->state != SENT || failed)
            break;
        pthread_cond_wait(&s->all, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return failed ? failure(s->world) : MX_OK;
}

static mx_status receive(mx_process_group *g, const mx_message *m)
{
    shared *s = ((member *)g)->s;
    pthread_mutex_lock(&s->lock);
    transfer **l = find_transfer(s, m->peer, g->rank, m->tag);
    while ((!*l || (*l)->state == POSTED) && !has_failed(s)) {
        pthread_cond_wait(&s->all, &s->lock);
        l = find_transfer(s, m->peer, g->rank, m->tag);
    }
    bool failed = has_failed(s);
    if (!failed) {
        if ((*l)->state == SENT)
            copy_message(&(*l)->m, m);
        drop_transfer(s, l);
        pthread_cond_broadcast(&s->all);
    }
    pthread_mutex_unlock(&s->lock);
    return failed ? failure(s->world) : MX_OK;
}

static void leave(mx_process_group *g)
{
    shared *s = ((member *)g)->s;
    pthread_mutex_lock(&s->lock);
    for (transfer **l = &s->transfers; *l;)
        if ((*l)->state != ARRIVED && ((*l)->state == SENT ? (*l)->from : (*l)->to) == g->rank)
            drop_transfer(s, l);
        else
            l = &(*l)->next;
    pthread_mutex_unlock(&s->lock);
}

/* --- taking turns --- */

static void turn(mx_process_group *g, bool take)
{
    pthread_mutex_t *one = &((member *)g)->s->world->turn;
    if (take)
        pthread_mutex_lock(one);
    else
        pthread_mutex_unlock(one);
}

static const mx_process_group_kind kind = {
    .name = "local",
    .threads = true,
    .turn = turn,
    MX_PROCESS_GROUP_CALLS,
};

static shared *find(mx_local_world *w, mx_axis_set axes, int channel, int first)
{
    for (shared *s = w->groups; s; s = s->next)
        if (s->axes == axes && s->channel == channel && s->first == first)
            return s;
    shared *s = MX_NEW(&w->arena, shared);
    *s = (shared){.world = w, .axes = axes, .channel = channel, .first = first,
                  .next = w->groups, .size = mx_mesh_size(&w->mesh, axes)};
    s->in = MX_NEW_N(&w->arena, const void *, s->size);
    s->at = MX_NEW_N(&w->arena, const int64_t *, s->size);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->all, NULL);
    w->groups = s;
    return s;
}

static mx_process_group *join(mx_local_world *w, int first, int index, mx_axis_set axes,
                              int channel)
{
    pthread_mutex_lock(&w->lock);
    member *m = MX_NEW(&w->arena, member);
    m->s = find(w, axes, channel, first);
    m->base = (mx_process_group){.kind = &kind, .rank = index, .size = m->s->size};
    pthread_mutex_unlock(&w->lock);
    return &m->base;
}

mx_process_group *mx_local_group(mx_local_world *w, int rank, mx_axis_set axes)
{
    const mx_mesh *m = &w->mesh;
    return join(w, mx_mesh_member(m, rank, axes, 0), mx_mesh_index(m, rank, axes), axes, PROGRAMS);
}

/* In the order of ranks, which is not that of coordinates where there are nodes. */
mx_process_group *mx_local_everybody(mx_local_world *w, int rank, int channel)
{
    return join(w, 0, rank, mx_mesh_axes(&w->mesh), channel);
}

mx_status mx_local_broadcast(mx_process_group *g, void *data, size_t bytes, int root)
{
    member *m = (member *)g;
    MX_TRY(begin(m, data));
    if (g->rank != root && bytes)
        memcpy(data, m->s->in[root], bytes);
    return meet(m->s);
}

int mx_local_failed(mx_local_world *w)
{
    pthread_mutex_lock(&w->lock);
    int rank = w->failed ? w->failed_rank : -1;
    pthread_mutex_unlock(&w->lock);
    return rank;
}

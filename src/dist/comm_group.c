/* comm_group.c - collectives of some ranks of a communicator, made of exchanges.
 *
 * Every rank sends what each other one needs straight to it. Sums are made as local.c makes them:
 * the pieces of all ranks come here and are added up in the order of ranks. So the bits are those
 * of virtual ranks, whatever carries them.
 *
 *     all_gather       pieces sent and received
 *     reduce_scatter   the same, then a sum
 *     all_reduce       reduce_scatter of R slices, then all_gather: 2 (R-1)/R of the vector
 */
#include "dist/comm_group.h"

#include "base/arena.h"
#include "dist/messenger.h"
#include "dist/reduce.h"
#include <string.h>

typedef struct {
    mx_process_group base;
    mx_comm_groups *of;
    int *rank;          /* of each member, in the communicator */
    mx_comm_move *move; /* one for each other member */
    const void **from;  /* for sums: where each member's numbers are */
} member;

typedef struct node {
    member m;
    mx_axis_set axes;
    struct node *next;
} node;

struct mx_comm_groups {
    mx_comm *comm; /* owns */
    mx_mesh mesh;
    mx_arena arena;
    node *first;
    char *buffer; /* owns: what comes for sums */
    size_t room_bytes;
    bool nccl;
    mx_messenger *messenger; /* owns; NULL: the mesh has no stages */
};

static mx_status reserve(mx_comm_groups *g, size_t bytes)
{
    if (bytes <= g->room_bytes)
        return MX_OK;
    mx_free(g->buffer);
    g->room_bytes = 0;
    MX_TRY(mx_alloc((void **)&g->buffer, bytes, "sums over ranks"));
    g->room_bytes = bytes;
    return MX_OK;
}

/* Fills in the next move; gives the number of moves then. */
static int add_move(member *m, int n, int k, const mx_comm_move *v)
{
    m->move[n] = *v;
    m->move[n].rank = m->rank[k];
    return n + 1;
}

static mx_status go(member *m, const char *call, int n)
{
    return mx_comm_exchange(m->of->comm, call, m->move, n);
}

static mx_status all_gather(mx_process_group *g, const void *in, void *out, size_t bytes)
{
    member *m = (member *)g;
    char *to = out;
    int n = 0;
    memcpy(to + (size_t)g->rank * bytes, in, bytes);
    for (int k = 0; k < g->size; k++)
        if (k != g->rank)
            n = add_move(m, n, k, &(mx_comm_move){.out = in, .in = to + (size_t)k * bytes,
                                                  .out_bytes = bytes, .in_bytes = bytes});
    return go(m, "all_gather", n);
}

static mx_status all_to_all(mx_process_group *g, const void *in, void *out, size_t bytes)
{
    member *m = (member *)g;
    const char *from = in;
    char *to = out;
    int n = 0;
    memcpy(to + (size_t)g->rank * bytes, from + (size_t)g->rank * bytes, bytes);
    for (int k = 0; k < g->size; k++)
        if (k != g->rank)
            n = add_move(m, n, k, &(mx_comm_move){.out = from + (size_t)k * bytes,
                                                  .in = to + (size_t)k * bytes,
                                                  .out_bytes = bytes, .in_bytes = bytes});
    return go(m, "all_to_all", n);
}

static mx_status exchange(mx_process_group *g, const mx_exchange_args *a)
{
    member *m = (member *)g;
    const char *from = a->in;
    char *to = a->out;
    int n = 0, me = g->rank;
    memcpy(to + a->out_at[me], from + a->in_at[me], (size_t)a->out_bytes[me]);
    for (int k = 0; k < g->size; k++)
        if (k != me)
            n = add_move(m, n, k, &(mx_comm_move){.out = from + a->in_at[k],
                                                  .in = to + a->out_at[k],
                                                  .out_bytes = (size_t)a->in_bytes[k],
                                                  .in_bytes = (size_t)a->out_bytes[k]});
    return go(m, "exchange", n);
}

/* Numbers [at[k], at[k] + count[k]) of the input go to member k, whose sum of its own part lands in
 * `out`. */
typedef struct {
    const mx_reduce_args *a;
    int64_t slice; /* of every member but perhaps the last */
    int64_t total;
    void *out;
} scatter;

static int64_t share(const scatter *s, int k)
{
    int64_t rest = s->total - s->slice * k;
    return rest < 0 ? 0 : rest < s->slice ? rest : s->slice;
}

/* What comes from all members at a time: it lies beside what the plan knows of. */
enum { ROOM_BYTES = 16 << 20, LEAST_PIECE = 4096 };

/* How much of a share lies in [at, at + most). */
static int64_t piece_of(int64_t count, int64_t at, int64_t most)
{
    int64_t rest = count - at;
    return rest < 0 ? 0 : rest < most ? rest : most;
}

/* Numbers [at, at + most) of every share. */
static mx_status scatter_piece(member *m, const scatter *s, int64_t at, int64_t most,
                               const char *call)
{
    size_t item = mx_dtype_bytes(s->a->dtype);
    int me = m->base.rank, n = 0;
    int64_t mine = piece_of(share(s, me), at, most);
    const char *in = (const char *)s->a->in + (size_t)at * item;
    for (int k = 0; k < m->base.size; k++) {
        char *here = m->of->buffer + (size_t)k * (size_t)most * item;
        const char *part = in + (size_t)(s->slice * k) * item;
        int64_t theirs = piece_of(share(s, k), at, most);
        m->from[k] = k == me ? part : here;
        if (k != me)
            n = add_move(m, n, k, &(mx_comm_move){.out = part, .in = here,
                                                  .out_bytes = (size_t)theirs * item,
                                                  .in_bytes = (size_t)mine * item});
    }
    MX_TRY(go(m, call, n));
    mx_reduce_args a = *s->a;
    a.out = mine ? (char *)s->out + (size_t)at * item : s->out;
    a.n = mine;
    mx_reduce_from(&a, m->from, m->base.size, 0);
    return MX_OK;
}

/* Piece by piece, so that a large gradient does not need as much memory again. */
static mx_status scatter_sum(member *m, const scatter *s, const char *call)
{
    size_t item = mx_dtype_bytes(s->a->dtype);
    int64_t most = (int64_t)(ROOM_BYTES / (size_t)m->base.size / item);
    most = most < LEAST_PIECE ? LEAST_PIECE : most;
    most = most < s->slice ? most : s->slice;
    MX_TRY(reserve(m->of, (size_t)m->base.size * (size_t)most * item));
    for (int64_t at = 0; at < s->slice; at += most)
        MX_TRY(scatter_piece(m, s, at, most, call));
    return MX_OK;
}

static mx_status reduce_scatter(mx_process_group *g, const mx_reduce_args *a)
{
    scatter s = {.a = a, .slice = a->n, .total = a->n * g->size, .out = a->out};
    return scatter_sum((member *)g, &s, "reduce_scatter");
}

static mx_status all_reduce(mx_process_group *g, const mx_reduce_args *a)
{
    member *m = (member *)g;
    size_t item = mx_dtype_bytes(a->dtype);
    int n = 0, me = g->rank;
    scatter s = {.a = a, .slice = (a->n + g->size - 1) / g->size, .total = a->n};
    char *out = a->out, *sum = out + (size_t)(s.slice * me) * item;
    s.out = sum;
    if (!share(&s, me))
        s.out = out; /* nothing is written there */
    MX_TRY(scatter_sum(m, &s, "all_reduce"));
    for (int k = 0; k < g->size; k++)
        if (k != me)
            n = add_move(m, n, k, &(mx_comm_move){.out = sum,
                                                  .in = out + (size_t)(s.slice * k) * item,
                                                  .out_bytes = (size_t)share(&s, me) * item,
                                                  .in_bytes = (size_t)share(&s, k) * item});
    return go(m, "all_reduce", n);
}

/* Where both neighbours are one rank, or this one, there is one move, or none. */
static mx_status shift(mx_process_group *g, const void *in, void *out, size_t bytes, int by)
{
    member *m = (member *)g;
    int to = ((g->rank + by) % g->size + g->size) % g->size;
    int from = ((g->rank - by) % g->size + g->size) % g->size, n = 0;
    if (to == g->rank) {
        memcpy(out, in, bytes);
        return MX_OK;
    }
    n = add_move(m, n, to, &(mx_comm_move){.out = in, .out_bytes = bytes, .in = out,
                                           .in_bytes = to == from ? bytes : 0});
    if (to != from)
        n = add_move(m, n, from, &(mx_comm_move){.in = out, .in_bytes = bytes});
    return go(m, "ring_shift", n);
}

static mx_status check(mx_process_group *g)
{
    mx_coord *coord = ((member *)g)->of->comm->coord;
    return coord ? mx_coord_check(coord) : MX_OK;
}

/* --- messages --- */

static mx_status pass(mx_process_group *g, const mx_message *msg,
                      mx_status (*how)(mx_messenger *m, const mx_message *msg))
{
    member *m = (member *)g;
    mx_message there = *msg;
    there.peer = m->rank[msg->peer];
    return how(m->of->messenger, &there);
}

static mx_status send_message(mx_process_group *g, const mx_message *m)
{
    return pass(g, m, mx_messenger_send);
}

static mx_status sent(mx_process_group *g, const mx_message *m)
{
    return pass(g, m, mx_messenger_sent);
}

static mx_status post(mx_process_group *g, const mx_message *m)
{
    return pass(g, m, mx_messenger_post);
}

static mx_status receive(mx_process_group *g, const mx_message *m)
{
    return pass(g, m, mx_messenger_receive);
}

static void leave(mx_process_group *g)
{
    mx_messenger_stop(((member *)g)->of->messenger);
}

static const mx_process_group_kind kind = {
    .name = "processes",
    .check = check,
    MX_PROCESS_GROUP_CALLS,
};

/* Only pipelines send messages. */
mx_status mx_comm_groups_open(mx_comm_groups **out, mx_comm *all, const mx_mesh *mesh)
{
    mx_comm *mail = NULL;
    mx_comm_groups *g = mx_realloc(NULL, sizeof *g);
    *g = (mx_comm_groups){.mesh = *mesh};
    mx_status st = mx_comm_split_off(all, &g->comm);
    if (!st && mx_mesh_degree(mesh, MX_AXIS_STAGE) > 1) {
        st = mx_comm_split_off(all, &mail);
        if (!st)
            st = mx_messenger_open(&g->messenger, mail);
    }
    if (st) {
        mx_comm_groups_free(g);
        g = NULL;
    }
    *out = g;
    return st;
}

void mx_comm_groups_use_nccl(mx_comm_groups *g)
{
    g->nccl = true;
}

void mx_comm_groups_free(mx_comm_groups *g)
{
    if (!g)
        return;
    mx_messenger_close(g->messenger);
    mx_comm_close(g->comm);
    mx_free(g->buffer);
    mx_arena_fini(&g->arena);
    mx_free(g);
}

mx_process_group *mx_comm_groups_find(mx_comm_groups *g, mx_axis_set axes)
{
    for (node *n = g->first; n; n = n->next)
        if (n->axes == axes)
            return &n->m.base;
    node *n = MX_NEW(&g->arena, node);
    int rank = g->comm->rank, size = mx_mesh_size(&g->mesh, axes);
    *n = (node){.axes = axes, .next = g->first};
    n->m.base = (mx_process_group){&kind, mx_mesh_index(&g->mesh, rank, axes), size, g->nccl};
    n->m.of = g;
    n->m.rank = MX_NEW_N(&g->arena, int, size);
    n->m.move = MX_NEW_N(&g->arena, mx_comm_move, size);
    n->m.from = MX_NEW_N(&g->arena, const void *, size);
    for (int k = 0; k < size; k++)
        n->m.rank[k] = mx_mesh_member(&g->mesh, rank, axes, k);
    g->first = n;
    return &n->m.base;
}

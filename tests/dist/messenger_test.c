/* messenger_test.c - messages between processes: in any order, both ways at once, longer than a
 * connection holds; and who is blamed when none comes. */
#include "../test.h"
#include "ranks.h"

#include "dist/messenger.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 3, TAGS = 4, FLOATS = 3 << 20, ROUNDS = 3 };

static mx_messenger *open_messenger(mx_comm *c)
{
    mx_comm *own = NULL;
    mx_messenger *m = NULL;
    mx_status st = mx_comm_split_off(c, &own);
    if (!st)
        st = mx_messenger_open(&m, own);
    printf("%s", mx_status_text(st));
    mx_status_free(st);
    return m;
}

/* What rank `from` sends to `to`: lengths differ, the longest is more than a socket takes. */
static mx_message message(int peer, int from, int to, int tag, float *room)
{
    size_t n = tag == TAGS - 1 ? FLOATS : (size_t)(1 + 1000 * tag + 7 * from + to);
    return (mx_message){.peer = peer, .tag = tag - 1, .data = room, .bytes = sizeof *room * n};
}

static float value(int from, int tag, int round, size_t i)
{
    return (float)(from * 1000 + tag * 100 + round) + (float)(i % 97) / 128;
}

static bool is_right(const mx_message *m, int from, int tag, int round)
{
    const float *x = m->data;
    for (size_t i = 0; i < m->bytes / sizeof *x; i++)
        if (x[i] != value(from, tag, round, i))
            return false;
    return true;
}

/* Everybody sends everything to everybody before anyone receives, and the receiver takes it in the
 * opposite order; every other message has been posted. */
static mx_status exchange(mx_messenger *m, int rank, int round, float *out, float *in)
{
#define AT(base, peer, tag) ((base) + ((size_t)(peer) * TAGS + (size_t)(tag)) * FLOATS)
    for (int peer = 0; peer < RANKS; peer++)
        for (int tag = 0; tag < TAGS && peer != rank; tag++) {
            mx_message to = message(peer, rank, peer, tag, AT(out, peer, tag));
            mx_message from = message(peer, peer, rank, tag, AT(in, peer, tag));
            for (size_t i = 0; i < to.bytes / sizeof *out; i++)
                ((float *)to.data)[i] = value(rank, tag, round, i);
            if ((tag + rank) % 2)
                MX_TRY(mx_messenger_post(m, &from));
            MX_TRY(mx_messenger_send(m, &to));
        }
    for (int peer = RANKS - 1; peer >= 0; peer--)
        for (int tag = TAGS - 1; tag >= 0 && peer != rank; tag--) {
            mx_message from = message(peer, peer, rank, tag, AT(in, peer, tag));
            MX_TRY(mx_messenger_receive(m, &from));
            if (!is_right(&from, peer, tag, round))
                return mx_fail(MX_CHECK_FAILED, "tag %d of rank %d in round %d", tag, peer, round);
        }
    for (int peer = 0; peer < RANKS; peer++)
        for (int tag = 0; tag < TAGS && peer != rank; tag++) {
            mx_message to = message(peer, rank, peer, tag, AT(out, peer, tag));
            MX_TRY(mx_messenger_sent(m, &to));
        }
    return MX_OK;
}

static int all_to_all(int rank, void *ctx)
{
    int bad = 0;
    (void)ctx;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    mx_messenger *m = c ? open_messenger(c) : NULL;
    float *room = malloc(sizeof *room * 2 * RANKS * TAGS * FLOATS);
    mx_status st = m ? MX_OK : mx_fail(MX_CHECK_FAILED, "no messenger");
    for (int round = 0; round < ROUNDS && !st; round++)
        st = exchange(m, rank, round, room, room + (size_t)RANKS * TAGS * FLOATS);
    if (!st)
        st = mx_comm_barrier(c);
    EXPECT(bad, !st, "rank %d: %s", rank, mx_status_text(st));
    mx_status_free(st);
    mx_messenger_close(m);
    ranks_leave(coord, c);
    free(room);
    return bad;
}

MX_TEST(messages_pass_each_other)
{
    ranks_run(RANKS, all_to_all, NULL);
}

/* Rank 2 goes on once the others are there: who dies earlier fails their meeting instead. */
static mx_status all_are_there(mx_messenger *m, int rank)
{
    char word = 0;
    for (int r = 0; r < RANKS - 1 && rank == RANKS - 1; r++)
        MX_TRY(mx_messenger_receive(m, &(mx_message){r, .tag = 6, .data = &word, .bytes = 1}));
    if (rank == RANKS - 1)
        return MX_OK;
    mx_message here = {.peer = RANKS - 1, .tag = 6, .data = &word, .bytes = 1};
    MX_TRY(mx_messenger_send(m, &here));
    return mx_messenger_sent(m, &here);
}

/* Rank 1 waits for rank 2, which does not come; rank 0 waits for rank 1, which is not to blame. */
typedef struct {
    const char *says;
    bool dies, other_size;
} fault;

static int wait_in_vain(int rank, void *ctx)
{
    const fault *f = ctx;
    int bad = 0;
    float x[4] = {0};
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 3, 3);
    mx_messenger *m = c ? open_messenger(c) : NULL;
    if (!m) {
        ranks_leave(coord, c);
        return 1;
    }
    mx_status st = f->dies || f->other_size ? all_are_there(m, rank) : MX_OK;
    if (rank == 2 && f->dies && !st)
        raise(SIGKILL);
    mx_message msg = {.peer = rank + 1, .tag = 5, .data = x, .bytes = sizeof x};
    if (!st && rank < 2)
        st = mx_messenger_receive(m, &msg);
    if (rank == 2 && f->other_size) {
        msg = (mx_message){.peer = 1, .tag = 5, .data = x, .bytes = sizeof *x};
        st = mx_messenger_send(m, &msg);
        if (!st)
            st = mx_messenger_sent(m, &msg);
    } else if (rank == 2) {
        for (int i = 0; i < 600 && !st; i++) { /* hung, though the process is there */
            usleep(100000);
            st = mx_coord_check(coord);
        }
    }
    EXPECT(bad, st && strstr(mx_status_text(st), f->says), "rank %d: %s", rank,
           mx_status_text(st));
    mx_status_free(st);
    mx_messenger_close(m);
    ranks_leave(coord, c);
    return bad;
}

static void try_fault(fault *f)
{
    pid_t pids[RANKS];
    int status[RANKS];
    ranks_start(RANKS, wait_in_vain, f, pids);
    MX_CHECK(ranks_wait_for(60, RANKS, pids, status), "%s: it does not end", f->says);
    for (int r = 0; r < RANKS; r++)
        MX_CHECK(status[r] == (r == 2 && f->dies ? 128 + SIGKILL : 0), "%s: rank %d gave %d",
                 f->says, r, status[r]);
}

MX_TEST(messages_that_do_not_come_are_blamed_on_whoever_waits_for_nobody)
{
    try_fault(&(fault){.says = "in receive number 1, from rank 2 ("});
    try_fault(&(fault){.says = "rank 2 (", .dies = true});
    try_fault(&(fault){.says = "the ranks are doing different things", .other_size = true});
}

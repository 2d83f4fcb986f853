/* heartbeat_test.c - a rank that is stopped, killed or hangs is named by all others within the
 * limit and a few seconds, at whatever instant it happens and whatever it was doing.
 *
 *     make test-ranks       500 random instants (MX_RANK_FAULTS)
 */
#include "../test.h"
#include "ranks.h"

#include "base/clock.h"
#include "base/rng.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Long enough for a machine that has other things to do. */
static const double LIMIT_S = 2, GRACE_S = 15;
enum { RANKS = 3, FLOATS = 1 << 20 };

typedef enum { STOP, KILL, HANG } fault;

/* Memory that the ranks' processes have in common. */
static void *share(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MX_CHECK(p != MAP_FAILED);
    return p;
}

typedef struct {
    fault fault;
    int victim;
    int after_us;       /* from the start of the processes */
    _Atomic int *hangs; /* the victim, from now on */
} trial;

/* Calls of two communicators, long and short, until the run fails. */
static mx_status work(mx_comm *c, mx_comm *second, float *x, const trial *t)
{
    mx_status st = MX_OK;
    for (int64_t i = 0, v = 0; !st; i++) {
        while (*t->hangs && c->rank == t->victim)
            usleep(1000);
        st = i % 3 == 0 ? mx_comm_sum_f32(c, &(mx_span){x, FLOATS}, 1) : mx_comm_max(c, &v, 1);
        if (!st && i % 5 == 0)
            st = mx_comm_barrier(second);
    }
    return st;
}

static int live(int rank, void *ctx)
{
    const trial *t = ctx;
    int bad = 0;
    char name[32];
    mx_coord *coord = NULL;
    mx_comm *c = NULL, *second = NULL;
    mx_launch l;
    mx_coord_options o = ranks_options(LIMIT_S, t->fault == HANG ? LIMIT_S : 600);
    o.join_timeout_s = LIMIT_S; /* one that was stopped before it came is named as absent */
    float *x = calloc(FLOATS, sizeof *x);
    mx_status st = mx_launch_find(&l, getenv);
    if (!st)
        st = mx_coord_open(&coord, &l, &o);
    if (!st)
        st = mx_comm_open(&c, coord, &(mx_comm_choice){.how = "tcp"});
    if (!st)
        st = mx_comm_split_off(c, &second);
    if (!st)
        st = work(c, second, x, t);
    snprintf(name, sizeof name, "rank %d (", t->victim);
    const char *text = mx_status_text(st), *absent = strstr(text, "not come:");
    bool named = strstr(text, name) ||
                 (absent && absent[strlen("not come: ")] == '0' + t->victim) ||
                 (t->victim == 0 && (strstr(text, "is rank 0 running") || strstr(text, "rank 0,")));
    EXPECT(bad, named && mx_status_code(st) == MX_DEVICE, "rank %d, fault %d of rank %d: %s", rank,
           (int)t->fault, t->victim, text);
    mx_status_free(st);
    mx_comm_close(second);
    mx_comm_close(c);
    mx_coord_close(coord);
    free(x);
    return bad;
}

static void try_fault(trial *t)
{
    pid_t pids[RANKS];
    int status[RANKS], signals[] = {[STOP] = SIGSTOP, [KILL] = SIGKILL, [HANG] = 0};
    *t->hangs = 0;
    ranks_start(RANKS, live, t, pids);
    usleep((useconds_t)t->after_us);
    if (t->fault == HANG)
        *t->hangs = 1;
    kill(pids[t->victim], signals[t->fault]);
    pid_t others[RANKS - 1];
    for (int r = 0, n = 0; r < RANKS; r++)
        if (r != t->victim)
            others[n++] = pids[r];
    double begun = mx_clock_now();
    bool in_time = ranks_wait_for(LIMIT_S + GRACE_S, RANKS - 1, others, status);
    MX_CHECK(in_time && !status[0] && !status[1],
             "fault %d of rank %d after %d us: %d and %d in %.1f s", (int)t->fault, t->victim,
             t->after_us, status[0], status[1], mx_clock_now() - begun);
    kill(pids[t->victim], SIGKILL);
    ranks_wait(1, pids + t->victim, status);
}

MX_TEST(heartbeat_names_a_rank_that_is_stopped_killed_or_hangs_at_any_instant)
{
    const char *given = getenv("MX_RANK_FAULTS");
    static const fault turns[] = {STOP, STOP, KILL, HANG};
    int n = given ? (int)strtol(given, NULL, 10) : 4;
    trial t = {.hangs = share(sizeof *t.hangs)};
    uint64_t seed = given ? (uint64_t)(mx_clock_now() * 1e6) : 7;
    for (int i = 0; i < n; i++) {
        mx_random4 u = mx_philox(seed, 0, (uint64_t)i);
        t.fault = turns[i % 4];
        t.victim = i % 4 == 0 ? 0 : i % 4 == 1 ? 1 : (int)(u.v[0] % RANKS); /* both sides of it */
        t.after_us = (int)(u.v[1] % 400000);
        try_fault(&t);
    }
}

/* --- who is not to blame --- */

typedef struct {
    _Atomic int begun, over; /* ranks */
} shared;

static int count(int rank, void *ctx)
{
    shared *all = ctx;
    int bad = 0;
    (void)rank;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, LIMIT_S, LIMIT_S);
    if (!c)
        return 1;
    all->begun++;
    mx_status st = MX_OK;
    for (int64_t end = 0; !end && !st;) {
        usleep(10000);
        end = all->over;
        st = mx_comm_max(c, &end, 1);
    }
    EXPECT(bad, !st, "%s", mx_status_text(st));
    mx_status_free(st);
    ranks_leave(coord, c);
    return bad;
}

/* Whoever was stopped with all others has not heard of them, and must not give them up for that. */
MX_TEST(heartbeat_blames_nobody_when_the_whole_machine_stood_still)
{
    pid_t pids[RANKS];
    int status[RANKS];
    shared *all = share(sizeof *all);
    ranks_start(RANKS, count, all, pids);
    while (all->begun < RANKS)
        usleep(1000);
    for (int r = RANKS - 1; r >= 0; r--)
        kill(pids[r], SIGSTOP);
    usleep((useconds_t)(1.5e6 * LIMIT_S));
    for (int r = 0; r < RANKS; r++) {
        kill(pids[r], SIGCONT);
        usleep(300000); /* rank 0 has time to miss the others */
    }
    all->over = 1;
    MX_CHECK(ranks_wait_for(60, RANKS, pids, status), "not over");
    for (int r = 0; r < RANKS; r++)
        MX_CHECK(status[r] == 0, "rank %d: %d", r, status[r]);
}

/* Work between calls is no silence. */
static int slow_but_alive(int rank, void *ctx)
{
    (void)ctx;
    int bad = 0;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0.5, 60);
    if (!c)
        return 1;
    if (rank == 1)
        usleep(1200000); /* longer than the heartbeat's limit */
    mx_status st = mx_comm_barrier(c);
    EXPECT(bad, !st, "%s", mx_status_text(st));
    mx_status_free(st);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(heartbeat_waits_for_a_rank_that_works)
{
    ranks_run(2, slow_but_alive, NULL);
}

/* --- ranks that hang within a call --- */

/* Rank 0 waits for rank 1 and rank 1 for the last one, whose thread hangs in a call for which it
 * seems to wait itself: for rank 0 (ctx true), or for all that have not come to it. */
static int one_hangs_in_a_call(int rank, void *ctx)
{
    bool for_rank_0 = *(bool *)ctx;
    int bad = 0, channel, last = RANKS - 1;
    uint32_t number;
    mx_coord *c = ranks_meet(4, 2);
    if (!c)
        return 1;
    mx_status st = mx_coord_channel_open(c, &channel, &number);
    if (for_rank_0)
        mx_coord_enter_with(c, channel, "receive", 1, (rank + 1) % RANKS);
    else
        mx_coord_enter(c, channel, "MPI_Init", 1);
    if (rank == last)
        poll(&(struct pollfd){mx_coord_alarm(c), POLLIN, 0}, 1, 30000);
    for (double end = mx_clock_now() + 30; !st && mx_clock_now() < end; usleep(20000))
        st = mx_coord_check(c);
    EXPECT(bad, mx_coord_culprit(c) == last, "rank %d: %s", rank, mx_status_text(st));
    mx_status_free(st);
    ranks_leave(c, NULL);
    return bad;
}

MX_TEST(heartbeat_names_a_rank_that_hangs_within_a_call)
{
    for (int i = 0; i < 2; i++)
        ranks_run(RANKS, one_hangs_in_a_call, &(bool){i});
}

/* --- orderly and disorderly ends --- */

static int one_leaves_early(int rank, void *ctx)
{
    int bad = 0, early = *(int *)ctx;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    if (!c)
        return 1;
    mx_status st = mx_comm_barrier(c);
    if (rank != early && !st)
        st = mx_comm_barrier(c);
    char name[16];
    snprintf(name, sizeof name, "rank %d (", early);
    const char *text = mx_status_text(st);
    EXPECT(bad, rank == early ? !st : strstr(text, name) && strstr(text, "has ended its run"),
           "rank %d: %s", rank, text);
    mx_status_free(st);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(heartbeat_names_a_rank_that_left_before_a_call)
{
    for (int early = 0; early < 2; early++)
        ranks_run(3, one_leaves_early, &early);
}

static void end_with_42(void *ctx, const char *why)
{
    (void)ctx;
    _exit(strstr(why, "rank 1 (") ? 42 : 43);
}

/* Its thread hangs for ever: the coordinator's own thread ends the process. */
static int one_cannot_end(int rank, void *ctx)
{
    (void)ctx;
    mx_launch l;
    mx_coord *coord = NULL;
    mx_comm *c = NULL;
    mx_coord_options o = ranks_options(10, 1);
    o.end = end_with_42;
    mx_status st = mx_launch_find(&l, getenv);
    if (!st)
        st = mx_coord_open(&coord, &l, &o);
    if (!st)
        st = mx_comm_open(&c, coord, &(mx_comm_choice){.how = "tcp"});
    while (rank == 1)
        pause();
    if (!st)
        st = mx_comm_barrier(c);
    int bad = !strstr(mx_status_text(st), "rank 1 (");
    mx_status_free(st);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(heartbeat_ends_a_process_that_cannot_end)
{
    pid_t pids[2];
    int status[2];
    ranks_start(2, one_cannot_end, NULL, pids);
    MX_CHECK(ranks_wait_for(30, 2, pids, status), "not over");
    MX_CHECK(status[0] == 0 && status[1] == 42, "%d and %d", status[0], status[1]);
}

/* A stopped rank 0 that goes on finds out that it was given up. */
static int root_comes_back(int rank, void *ctx)
{
    (void)ctx;
    int bad = 0;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 1, 60);
    if (!c)
        return 1;
    if (rank == 0)
        raise(SIGSTOP);
    mx_status st = MX_OK;
    while (!st)
        st = mx_comm_barrier(c);
    EXPECT(bad, strstr(mx_status_text(st), "from rank 0 ("), "rank %d: %s", rank,
           mx_status_text(st));
    mx_status_free(st);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(heartbeat_lets_a_stopped_rank_0_end_when_it_goes_on)
{
    pid_t pids[2];
    int status[2];
    ranks_start(2, root_comes_back, NULL, pids);
    MX_CHECK(ranks_wait_for(20, 1, pids + 1, status + 1), "rank 1 waits");
    kill(pids[0], SIGCONT);
    MX_CHECK(ranks_wait_for(20, 1, pids, status), "rank 0 waits");
    MX_CHECK(status[0] == 0 && status[1] == 0, "%d and %d", status[0], status[1]);
}

/* comm_test.c - ranks as processes: sums and their order, agreement, who is blamed for what. */
#include "../test.h"
#include "ranks.h"

#include "base/arena.h"
#include "dist/comm_group.h"
#include "dist/launch.h"
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* --- which rank a process is --- */

static const char *const *fake;
static char *fake_env(const char *name)
{
    for (int i = 0; fake[i]; i += 2)
        if (strcmp(fake[i], name) == 0)
            return (char *)fake[i + 1];
    return NULL;
}

static mx_launch launch_of(const char *const *env)
{
    mx_launch p;
    fake = env;
    MX_CHECK_OK(mx_launch_find(&p, fake_env));
    return p;
}

MX_TEST(launch_is_found_in_the_environment_of_launchers)
{
    mx_launch p = launch_of((const char *[]){NULL});
    MX_CHECK(p.size == 1 && p.rank == 0 && !p.launcher, "%d of %d", p.rank, p.size);
    p = launch_of((const char *[]){"RANK", "3", "WORLD_SIZE", "4", "MASTER_ADDR", "node7",
                                   "MASTER_PORT", "1234", NULL});
    MX_CHECK(p.rank == 3 && p.size == 4 && p.port == 1234 && strcmp(p.host, "node7") == 0, "%s:%d",
             p.host, p.port);
    p = launch_of((const char *[]){"RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "h",
                                   "MASTER_PORT", "1234", "TORCHELASTIC_USE_AGENT_STORE", "True",
                                   NULL});
    MX_CHECK(p.port == 1235, "torchrun's agent has port %d", p.port);
    p = launch_of((const char *[]){"OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2",
                                   "OMPI_COMM_WORLD_LOCAL_SIZE", "2", NULL});
    MX_CHECK(p.rank == 1 && p.size == 2 && strcmp(p.host, "127.0.0.1") == 0, "%s", p.host);
    p = launch_of((const char *[]){"SLURM_PROCID", "5", "SLURM_STEP_NUM_TASKS", "8",
                                   "SLURM_STEP_NODELIST", "gpu[03-06,09],x1", "SLURM_JOB_ID",
                                   "20007", NULL});
    MX_CHECK(p.rank == 5 && p.size == 8 && strcmp(p.host, "gpu03") == 0 && p.port == 29507,
             "%d of %d at %s:%d", p.rank, p.size, p.host, p.port);
    p = launch_of((const char *[]){"PMI_RANK", "0", "PMI_SIZE", "1", NULL});
    MX_CHECK(p.size == 1 && p.rank == 0, "one rank needs no address");
    p = launch_of((const char *[]){"JOB_COMPLETION_INDEX", "2", "WORLD_SIZE", "4", "MASTER_ADDR",
                                   "train-0.train", NULL});
    MX_CHECK(p.rank == 2 && p.size == 4 && strcmp(p.host, "train-0.train") == 0 && !p.mpi,
             "%d of %d at %s", p.rank, p.size, p.host);
    p = launch_of((const char *[]){"SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2", "PMIX_RANK",
                                   "0", "SLURM_STEP_NODELIST", "n", NULL});
    MX_CHECK(p.mpi, "srun --mpi=pmix joins ranks for MPI");
    p = launch_of((const char *[]){"SLURM_PROCID", "0", "SLURM_NTASKS", "4", NULL});
    MX_CHECK(p.size == 1, "a batch script is no rank");
    fake = (const char *[]){"RANK", "4", "WORLD_SIZE", "4", NULL};
    MX_CHECK_ERROR(mx_launch_find(&p, fake_env), "RANK=4; expected a number from 0 to 3");
    fake = (const char *[]){"RANK", "x", "WORLD_SIZE", "4", NULL};
    MX_CHECK_ERROR(mx_launch_find(&p, fake_env), "RANK=x");
    fake = (const char *[]){"RANK", "1", "WORLD_SIZE", "4", NULL};
    MX_CHECK_ERROR(mx_launch_find(&p, fake_env), "set MASTER_ADDR");
}

/* A rank's GPU is the one of its place on the machine. */
MX_TEST(launch_knows_the_place_on_the_machine)
{
    static const char *const env[][9] = {
        {"RANK", "5", "WORLD_SIZE", "8", "LOCAL_RANK", "3", "MASTER_ADDR", "h", NULL},
        {"OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK",
         "3", "MASTER_ADDR", "h", NULL},
        {"PMI_RANK", "5", "PMI_SIZE", "6", "MPI_LOCALRANKID", "3", "MASTER_ADDR", "h", NULL},
        {"SLURM_PROCID", "7", "SLURM_STEP_NUM_TASKS", "8", "SLURM_LOCALID", "3", "MASTER_ADDR", "h",
         NULL}};
    mx_launch p;
    for (int i = 0; i < 4; i++) {
        p = launch_of(env[i]);
        MX_CHECK(p.local == 3, "%s: %d", p.launcher, p.local);
    }
    p = launch_of((const char *[]){"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "h", NULL});
    MX_CHECK(p.local == 0, "nothing says it: %d", p.local);
    fake = (const char *[]){"RANK", "1", "WORLD_SIZE", "4", "LOCAL_RANK", "-1", NULL};
    MX_CHECK_ERROR(mx_launch_find(&p, fake_env), "LOCAL_RANK=-1; expected a number from 0");
}

/* --- collectives --- */

enum { LONG = 5 << 20, SHORT = 7 }; /* more than one stage; fewer numbers than ranks is below */

/* What rank r brings as element i: sums depend on the order of additions. */
static float brought(int r, int64_t i)
{
    return (float)(i % 1000 + 1) * (r == 1 ? 1e8f : r == 2 ? -1e8f : 0.1f + (float)r);
}

static int sums(int rank, void *ctx)
{
    int bad = 0;
    (void)ctx;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    if (!c)
        return 1;
    mx_arena a = {0};
    float *x = MX_NEW_N(&a, float, LONG), *y = MX_NEW_N(&a, float, SHORT), one = (float)rank;
    for (int64_t i = 0; i < LONG; i++)
        x[i] = brought(rank, i);
    for (int64_t i = 0; i < SHORT; i++)
        y[i] = brought(rank, LONG + i);
    mx_span spans[3] = {{x, LONG}, {NULL, 0}, {y, SHORT}};
    EXPECT(bad, !mx_comm_sum_f32(c, spans, 3), "the sum failed");
    EXPECT(bad, !mx_comm_sum_f32(c, &(mx_span){&one, 1}, 1), "the short sum failed");
    for (int64_t i = 0; i < LONG + SHORT && !bad; i++) {
        float want = brought(0, i), got = i < LONG ? x[i] : y[i - LONG];
        for (int r = 1; r < c->size; r++)
            want += brought(r, i);
        EXPECT(bad, memcmp(&want, &got, sizeof want) == 0, "%lld: %g, not %g", (long long)i,
               (double)got, (double)want);
    }
    EXPECT(bad, one == (float)(c->size * (c->size - 1) / 2), "one number: %g", (double)one);
    mx_arena_fini(&a);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(comm_sums_in_the_order_of_ranks)
{
    for (int n = 1; n <= 5; n += 2)
        ranks_run(n, sums, NULL);
}

/* More numbers than go in one piece, whose last is smaller. */
static int large_sums(int rank, void *ctx)
{
    enum { N = 5000003, EACH = 1500001 };
    int bad = 0;
    (void)ctx;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    if (!c)
        return 1;
    mx_comm_groups *groups = NULL;
    mx_mesh mesh = {.ici[MX_AXIS_DATA] = 3};
    EXPECT(bad, !mx_comm_groups_open(&groups, c, &mesh), "groups");
    mx_process_group *g = mx_comm_groups_find(groups, 1u << MX_AXIS_DATA);
    float *in = mx_realloc(NULL, sizeof *in * N), *out = mx_realloc(NULL, sizeof *out * N);
    for (int64_t i = 0; i < N; i++)
        in[i] = (float)((i % 97) * (rank + 1));
    mx_reduce_args a = {.in = in, .out = out, .n = N, .dtype = MX_F32, .how = MX_REDUCE_SUM};
    EXPECT(bad, !g->kind->all_reduce(g, &a), "all_reduce");
    int64_t wrong = 0;
    for (int64_t i = 0; i < N; i++)
        wrong += out[i] != (float)(6 * (i % 97));
    EXPECT(bad, wrong == 0, "all_reduce: %lld wrong", (long long)wrong);
    a.n = EACH;
    EXPECT(bad, !g->kind->reduce_scatter(g, &a), "reduce_scatter");
    for (int64_t i = 0; i < EACH; i++)
        wrong += out[i] != (float)(6 * ((i + rank * (int64_t)EACH) % 97));
    EXPECT(bad, wrong == 0, "reduce_scatter: %lld wrong", (long long)wrong);
    mx_free(in);
    mx_free(out);
    mx_comm_groups_free(groups);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(comm_large_sums_go_piece_by_piece)
{
    ranks_run(3, large_sums, NULL);
}

static int small_calls(int rank, void *ctx)
{
    int bad = 0;
    (void)ctx;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0), *second = NULL;
    if (!c)
        return 1;
    int64_t all[8] = {0}, mine = 100 + rank, flag[2] = {rank == 1, -rank};
    double d = 0.5 * rank;
    char word[8] = "mine";
    EXPECT(bad, !mx_comm_gather(c, &mine, sizeof mine, all), "gather");
    for (int r = 0; r < c->size; r++)
        EXPECT(bad, all[r] == 100 + r, "all[%d] = %lld", r, (long long)all[r]);
    EXPECT(bad, !mx_comm_max(c, flag, 2) && flag[0] == (c->size > 1) && flag[1] == 0, "max");
    EXPECT(bad, !mx_comm_sum(c, &mine, 1) && mine == 100 * c->size + c->size * (c->size - 1) / 2,
           "sum %lld", (long long)mine);
    EXPECT(bad, !mx_comm_sum_f64(c, &d, 1) && d == 0.25 * c->size * (c->size - 1), "sum %g", d);
    snprintf(word, sizeof word, "r%d", rank);
    EXPECT(bad, !mx_comm_broadcast(c, word, sizeof word, c->size - 1), "broadcast");
    EXPECT(bad, word[1] == '0' + c->size - 1, "broadcast gave %s", word);
    EXPECT(bad, !mx_comm_split_off(c, &second) && second->size == c->size, "split off");
    EXPECT(bad, second && !mx_comm_barrier(second) && !mx_comm_barrier(c), "two communicators");
    mx_status st = mx_comm_agree(c, MX_OK);
    EXPECT(bad, !st, "all is well, but %s", mx_status_text(st));
    mx_status_free(st);
    bool last = rank == c->size - 1;
    st = mx_comm_agree(c, last ? mx_fail(MX_INPUT, "no such file:\n  x") : MX_OK);
    bool named = strstr(mx_status_text(st), last ? "no such" : "rank ") != NULL &&
                 strstr(mx_status_text(st), "file:\n  x") != NULL;
    EXPECT(bad, named && mx_status_code(st) == MX_INPUT, "agreed: %s", mx_status_text(st));
    mx_status_free(st);
    mx_comm_close(second);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(comm_small_calls)
{
    for (int n = 1; n <= 4; n++)
        ranks_run(n, small_calls, NULL);
}

/* --- who is blamed --- */

/* Waits in a call that one rank never makes; gives whether the message has the words. */
/* One that has said why it ends decides with which status all others do. */
static int hears(mx_coord *coord, mx_comm *c, const char *words, const char *more)
{
    int bad = 0;
    mx_code code = strstr(more, "has ended") ? MX_INPUT : MX_DEVICE;
    mx_status st = MX_OK;
    while (!st)
        st = mx_comm_barrier(c);
    EXPECT(bad, strstr(mx_status_text(st), words) && strstr(mx_status_text(st), more),
           "rank %d heard: %s", c->rank, mx_status_text(st));
    EXPECT(bad, mx_status_code(st) == code, "code %d", (int)mx_status_code(st));
    mx_status again = mx_comm_barrier(c);
    EXPECT(bad, again && strcmp(mx_status_text(again), mx_status_text(st)) == 0, "another message");
    mx_status_free(st);
    mx_status_free(again);
    ranks_leave(coord, c);
    return bad;
}

static int one_is_killed(int rank, void *ctx)
{
    (void)ctx;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    if (!c)
        return 1;
    mx_status_free(mx_comm_barrier(c));
    if (rank == 2)
        raise(SIGKILL);
    return hears(coord, c, "rank 2 (host ", "is gone");
}

MX_TEST(comm_names_a_rank_that_was_killed)
{
    pid_t pids[4];
    int status[4];
    ranks_start(4, one_is_killed, NULL, pids);
    ranks_wait(4, pids, status);
    for (int r = 0; r < 4; r++)
        MX_CHECK(status[r] == (r == 2 ? 128 + SIGKILL : 0), "rank %d: %d", r, status[r]);
}

/* In the middle of a long sum, so that streams are cut inside a message. */
static int killed_in_a_sum(int rank, void *ctx)
{
    (void)ctx;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    mx_arena a = {0};
    if (!c)
        return 1;
    float *x = MX_NEW_N(&a, float, LONG);
    if (rank == 1) { /* its first exchange never ends: the others' slices are never read */
        mx_status_free(mx_comm_barrier(c));
        raise(SIGKILL);
    }
    mx_status st = mx_comm_barrier(c);
    while (!st)
        st = mx_comm_sum_f32(c, &(mx_span){x, LONG}, 1);
    int bad = 0;
    EXPECT(bad, strstr(mx_status_text(st), "rank 1 (host "), "rank %d heard: %s", rank,
           mx_status_text(st));
    mx_status_free(st);
    mx_arena_fini(&a);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(comm_names_a_rank_that_was_killed_in_a_sum)
{
    pid_t pids[4];
    int status[4];
    ranks_start(4, killed_in_a_sum, NULL, pids);
    ranks_wait(4, pids, status);
    for (int r = 0; r < 4; r++)
        MX_CHECK(status[r] == (r == 1 ? 128 + SIGKILL : 0), "rank %d: %d", r, status[r]);
}

static int one_gives_up(int rank, void *ctx)
{
    (void)ctx;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    if (!c)
        return 1;
    mx_status_free(mx_comm_barrier(c)); /* everybody is there */
    if (rank == 0) {
        mx_coord_abort(coord, MX_INPUT, "the file x is not there");
        ranks_leave(coord, c);
        return 0;
    }
    return hears(coord, c, "rank 0 (host ", "has ended: the file x is not there");
}

MX_TEST(comm_passes_on_why_a_rank_ended)
{
    ranks_run(3, one_gives_up, NULL);
}

/* A rank that leaves right behind a call has still taken part in it: what it brought counts before
 * its last words. On one processor, where it can do both before the others wake up. */
static int one_leaves_behind_a_call(int rank, void *ctx)
{
    (void)ctx;
    int bad = 0;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    if (!c)
        return 1;
    (void)sched_setaffinity(0, sizeof one, &one);
    mx_status st = mx_comm_agree(c, rank ? MX_OK : mx_fail(MX_INPUT, "the file x is not there"));
    if (rank == 0)
        mx_coord_abort(coord, mx_status_code(st), mx_status_text(st));
    EXPECT(bad, mx_status_code(st) == MX_INPUT, "rank %d: code %d, %s", rank,
           (int)mx_status_code(st), mx_status_text(st));
    mx_status_free(st);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(comm_takes_what_a_leaving_rank_brought)
{
    for (int i = 0; i < 40; i++)
        ranks_run(3, one_leaves_behind_a_call, NULL);
}

static int one_does_something_else(int rank, void *ctx)
{
    int bad = 0;
    int64_t v[3] = {0};
    (void)ctx;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    if (!c)
        return 1;
    mx_status st = mx_comm_barrier(c); /* all have come before the first ends */
    if (!st)
        st = mx_comm_max(c, v, rank == 1 ? 3 : 2);
    EXPECT(bad, strstr(mx_status_text(st), "the ranks are doing different things"), "rank %d: %s",
           rank, mx_status_text(st));
    mx_status_free(st);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(comm_finds_ranks_that_do_not_do_the_same)
{
    ranks_run(3, one_does_something_else, NULL);
}

/* --- a rank that says what it should not --- */

/* Rank 1 speaks past its own code: terminal escapes, a code that would look like a stop on request,
 * and text without an end. */
static int one_is_hostile(int rank, void *ctx)
{
    int bad = 0;
    (void)ctx;
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    if (!c)
        return 1;
    for (int i = 0; i < 3; i++) {
        static const int32_t codes[] = {MX_STOPPED, -7, 1 << 20};
        struct {
            int32_t code;
            char text[MX_COMM_SMALL - 8];
        } note = {.code = codes[i]};
        memset(note.text, 'x', sizeof note.text);
        memcpy(note.text, "\033]0;owned\007\033[2J", 14);
        mx_status st = MX_OK;
        if (rank == 1)
            st = mx_comm_gather(c, &note, sizeof note, c->small);
        else
            st = mx_comm_agree(c, MX_OK);
        if (rank == 0) {
            EXPECT(bad, mx_status_code(st) == MX_DEVICE, "code %d", (int)mx_status_code(st));
            EXPECT(bad, strstr(mx_status_text(st), "rank 1: \\x1b]0;owned\\x07\\x1b[2J"), "%s",
                   mx_status_text(st));
            EXPECT(bad, !strchr(mx_status_text(st), '\033'), "an escape came through");
        }
        mx_status_free(st);
    }
    mx_status_free(mx_comm_barrier(c));
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(comm_agree_escapes_text_and_keeps_codes_to_failures)
{
    ranks_run(2, one_is_hostile, NULL);
}

/* --- paths --- */

static int shares_paths(int rank, void *ctx)
{
    (void)ctx;
    int bad = 0;
    static char text[5000];
    mx_coord *coord;
    mx_comm *c = ranks_join(&coord, 0, 0);
    mx_arena a = {0};
    if (!c)
        return 1;
    const char *path = rank ? "mine" : "/runs/r";
    mx_status st = mx_comm_share_path(c, &a, &path);
    EXPECT(bad, !st && strcmp(path, "/runs/r") == 0, "%s, %s", path, mx_status_text(st));
    path = rank ? "mine" : NULL;
    mx_status_free(mx_comm_share_path(c, &a, &path));
    EXPECT(bad, !path, "%s", path);
    memset(text, 'x', sizeof text - 1);
    path = text;
    st = mx_comm_share_path(c, &a, &path);
    EXPECT(bad, strstr(mx_status_text(st), "more than 4095 bytes"), "%s", mx_status_text(st));
    mx_status_free(st);
    path = "/runs/\033[2J";
    st = mx_comm_share_path(c, &a, &path);
    EXPECT(bad, strstr(mx_status_text(st), "cannot be printed"), "%s", mx_status_text(st));
    mx_status_free(st);
    /* Rank 0 does what its own code never does: a path without an end, and one with escapes. */
    for (int i = 0; i < 2; i++) {
        int64_t fine[2] = {0};
        path = NULL;
        if (i)
            strcpy(text, "/runs/\033[2J");
        if (rank == 0) {
            st = mx_comm_max(c, fine, 2);
            if (!st)
                st = mx_comm_broadcast(c, text, 4096, 0);
            EXPECT(bad, !st, "%s", mx_status_text(st));
        } else {
            st = mx_comm_share_path(c, &a, &path);
            EXPECT(bad, strstr(mx_status_text(st), "a path that is not valid") && !path, "%s",
                   mx_status_text(st));
            EXPECT(bad, !strchr(mx_status_text(st), '\033'), "an escape came through");
        }
        mx_status_free(st);
    }
    mx_arena_fini(&a);
    ranks_leave(coord, c);
    return bad;
}

MX_TEST(comm_shares_paths_that_end_and_can_be_shown)
{
    ranks_run(2, shares_paths, NULL);
}

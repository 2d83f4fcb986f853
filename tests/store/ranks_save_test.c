/* ranks_save_test.c - several ranks save one checkpoint: whole when all succeed, absent when one
 * does not, invisible when rank 0 dies before the commit. */
#include "../dist/ranks.h"
#include "../test.h"
#include "base/arena.h"
#include "faulty_io.h"
#include "small_state.h"
#include "store/checkpoint_read.h"
#include "test_dir.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 3, N = 500, SHARD_BYTES = 300 };

static small_state state, scratch;

static const char *step_path(const char *dir, int64_t step, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s/checkpoints/%" PRId64, dir, step);
    return buf;
}

static int count_tmp(const char *dir)
{
    char path[1024];
    int n = 0;
    snprintf(path, sizeof path, "%s/checkpoints", dir);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        n += strncmp(e->d_name, ".tmp", 4) == 0;
    if (d)
        closedir(d);
    return n;
}

typedef struct {
    const char *dir;
    int faulty; /* this rank's calls fail */
    bool for_ever;
    const char *kill_at; /* rank 0 dies when a call names this */
    bool at_rename;
} plan;

static mx_status save(mx_ckpt *c, int64_t step)
{
    small_state_fill(&state, N, step);
    MX_TRY(mx_ckpt_save(c, &state.request));
    memset(state.w, 0xee, sizeof state.w);
    return mx_ckpt_wait(c);
}

typedef struct {
    mx_coord *coord;
    mx_comm *comm;
} party;

static mx_status open_rank(party *with, mx_ckpt **c, const plan *p, const mx_io *io)
{
    with->comm = ranks_join(&with->coord, 0, 0);
    if (!with->comm)
        return mx_fail(MX_DEVICE, "the ranks did not meet");
    return mx_ckpt_new(c, &(mx_ckpt_opts){.run_dir = p->dir,
                                          .run_id = "r",
                                          .max_shard_bytes = SHARD_BYTES,
                                          .io = io,
                                          .comm = with->comm});
}

/* --- all is well --- */

static int save_once(int rank, void *ctx)
{
    int bad = 0;
    party with = {0};
    mx_ckpt *c = NULL;
    mx_status st = open_rank(&with, &c, ctx, NULL);
    for (int step = 1; step <= 2 && !st; step++)
        st = save(c, step);
    EXPECT(bad, !st, "rank %d: %s", rank, mx_status_text(st));
    EXPECT(bad, !st && mx_ckpt_poll(c).last_step == 2, "rank %d does not know of step 2", rank);
    mx_status_free(st);
    mx_ckpt_free(c);
    ranks_leave(with.coord, with.comm);
    return bad;
}

MX_TEST(ranks_write_the_files_that_one_would)
{
    char *manifest[4] = {0};
    for (int n = 1; n <= 4; n++) {
        char path[1024];
        test_dir d;
        size_t bytes;
        test_dir_make(&d);
        ranks_run(n, save_once, &(plan){.dir = d.path, .faulty = -1});
        step_path(d.path, 2, path, sizeof path);
        MX_CHECK(small_state_matches(&scratch, N, path, 2), "%d ranks", n);
        strncat(path, "/manifest.json", sizeof path - strlen(path) - 1);
        MX_CHECK_OK(mx_io_read_file(NULL, path, 1 << 20, &manifest[n - 1], &bytes));
        MX_CHECK(manifest[n - 1] && strcmp(manifest[n - 1], manifest[0]) == 0,
                 "the manifest of %d ranks is another one", n);
        MX_CHECK(count_tmp(d.path) == 0, "something is left over");
        test_dir_remove(&d);
    }
    MX_CHECK(manifest[0] && strstr(manifest[0], "model-00002-of-"), "not several shards");
    for (int i = 0; i < 4; i++)
        mx_free(manifest[i]);
}

/* --- one rank fails --- */

/* Every call of a save in turn fails on one rank: either all ranks have the step or none. */
static int save_with_faults(int rank, void *ctx)
{
    const plan *p = ctx;
    int bad = 0;
    char path[1024];
    faulty_io f = {.error = ENOSPC, .for_ever = p->for_ever, .lock = PTHREAD_MUTEX_INITIALIZER};
    mx_io io = faulty_io_make(&f);
    party with = {0};
    mx_comm *test = NULL;
    mx_ckpt *c = NULL;
    mx_status st = open_rank(&with, &c, p, &io);
    if (!st)
        st = mx_comm_split_off(with.comm, &test);
    if (!st)
        st = save(c, 1);
    EXPECT(bad, !st, "rank %d: %s", rank, mx_status_text(st));
    mx_status_free(st);
    int64_t failed = 1, n_hidden = 0, step = 2;
    for (; failed && !bad; step++) {
        f.calls = f.failed = 0;
        f.fail_at = rank == p->faulty ? (int)step - 1 : 0;
        st = save(c, step);
        failed = f.failed;
        f.fail_at = 0;
        EXPECT(bad, !mx_comm_max(test, &failed, 1), "ranks lost each other");
        int64_t said[2] = {st != NULL, !st};
        EXPECT(bad, !mx_comm_max(test, said, 2) && said[0] + said[1] == 1,
               "call %d: some ranks failed and some did not: rank %d: %s", (int)step - 1, rank,
               mx_status_text(st));
        step_path(p->dir, step, path, sizeof path);
        /* A failure to sync the renamed folder is reported, and the folder is there: whole. */
        bool there = test_exists(path);
        EXPECT(bad, st || there, "step %d is not there", (int)step);
        EXPECT(bad, rank || !there || small_state_matches(&scratch, N, path, step),
               "call %d: step %d is there and not whole", (int)step - 1, (int)step);
        n_hidden += st && !there;
        if (st && rank != p->faulty) {
            char name[16];
            snprintf(name, sizeof name, "rank %d: ", p->faulty);
            EXPECT(bad, strstr(mx_status_text(st), name), "not named: %s", mx_status_text(st));
        }
        step_path(p->dir, 1, path, sizeof path);
        EXPECT(bad, rank || small_state_matches(&scratch, N, path, 1), "the old one is lost");
        mx_status_free(st);
    }
    EXPECT(bad, n_hidden > 3, "only %d saves failed", (int)n_hidden);
    st = save(c, step + 1);
    step_path(p->dir, step + 1, path, sizeof path);
    EXPECT(bad, !st && small_state_matches(&scratch, N, path, step + 1), "no save afterwards: %s",
           mx_status_text(st));
    mx_status_free(st);
    mx_ckpt_free(c);
    mx_comm_close(test);
    ranks_leave(with.coord, with.comm);
    return bad;
}

MX_TEST(ranks_abort_a_save_when_one_of_them_fails)
{
    for (int k = 0; k < SIZE + 2; k++) {
        test_dir d;
        test_dir_make(&d);
        ranks_run(SIZE, save_with_faults,
                  &(plan){.dir = d.path, .faulty = k % SIZE, .for_ever = k >= SIZE});
        test_dir_remove(&d);
    }
}

/* --- a rank writes elsewhere --- */

static int losing_rename(void *ctx, const char *from, const char *to)
{
    return strstr(to, "safetensors") ? mx_io_system.unlink(ctx, from)
                                     : mx_io_system.rename(ctx, from, to);
}

static int save_elsewhere(int rank, void *ctx)
{
    int bad = 0;
    party with = {0};
    mx_ckpt *c = NULL;
    mx_io io = mx_io_system;
    if (rank == 1)
        io.rename = losing_rename;
    mx_status st = open_rank(&with, &c, ctx, &io);
    if (!st)
        st = save(c, 1);
    EXPECT(bad, st && strstr(mx_status_text(st), "rank 1 has written it and rank 0 does not see"),
           "rank %d: %s", rank, mx_status_text(st));
    mx_status_free(st);
    mx_ckpt_free(c);
    ranks_leave(with.coord, with.comm);
    return bad;
}

MX_TEST(ranks_do_not_commit_what_rank_0_cannot_see)
{
    test_dir d;
    char path[1024];
    test_dir_make(&d);
    ranks_run(SIZE, save_elsewhere, &(plan){.dir = d.path, .faulty = -1});
    MX_CHECK(!test_exists(step_path(d.path, 1, path, sizeof path)), "a checkpoint with holes");
    MX_CHECK(count_tmp(d.path) == 0, "something is left");
    test_dir_remove(&d);
}

/* --- rank 0 dies --- */

static const plan *deadly;

static int dying_open(void *ctx, const char *path, int flags, unsigned mode)
{
    if (!deadly->at_rename && strstr(path, deadly->kill_at) && (flags & O_CREAT))
        raise(SIGKILL);
    return mx_io_system.open(ctx, path, flags, mode);
}

static int dying_rename(void *ctx, const char *from, const char *to)
{
    if (deadly->at_rename && strstr(to, deadly->kill_at))
        raise(SIGKILL);
    return mx_io_system.rename(ctx, from, to);
}

static int save_and_die(int rank, void *ctx)
{
    int bad = 0;
    party with = {0};
    mx_ckpt *c = NULL;
    mx_io io = mx_io_system;
    deadly = &(plan){.kill_at = "never"};
    if (rank == 0) {
        io.open = dying_open;
        io.rename = dying_rename;
    }
    mx_status st = open_rank(&with, &c, ctx, &io);
    if (!st)
        st = save(c, 1);
    EXPECT(bad, !st, "rank %d: %s", rank, mx_status_text(st));
    mx_status_free(st);
    deadly = ctx;
    st = save(c, 2);
    EXPECT(bad, st && strstr(mx_status_text(st), "rank 0 (host "), "rank %d: %s", rank,
           mx_status_text(st));
    mx_status_free(st);
    mx_ckpt_free(c);
    ranks_leave(with.coord, with.comm);
    return bad;
}

MX_TEST(ranks_leave_nothing_visible_when_rank_0_dies_before_the_commit)
{
    static const plan moments[] = {{.kill_at = "manifest.json"},
                                   {.kill_at = "manifest.json", .at_rename = true},
                                   {.kill_at = "checkpoints/2", .at_rename = true}};
    for (size_t k = 0; k < sizeof moments / sizeof *moments; k++) {
        test_dir d;
        test_dir_make(&d);
        plan p = moments[k];
        p.dir = d.path;
        pid_t pids[SIZE];
        int status[SIZE];
        char path[1024];
        ranks_start(SIZE, save_and_die, &p, pids);
        ranks_wait(SIZE, pids, status);
        MX_CHECK(status[0] == 128 + SIGKILL, "rank 0 ended with %d", status[0]);
        MX_CHECK(status[1] == 0 && status[2] == 0, "%d and %d", status[1], status[2]);
        MX_CHECK(!test_exists(step_path(d.path, 2, path, sizeof path)), "moment %zu", k);
        MX_CHECK(count_tmp(d.path) == 1, "%d folders are left", count_tmp(d.path));
        /* The next start sweeps it and goes on from the one before. */
        mx_ckpt *c;
        mx_arena a = {0};
        mx_ckpt_entry e;
        MX_CHECK_OK(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d.path, .run_id = "r"}));
        MX_CHECK(count_tmp(d.path) == 0, "not swept");
        MX_CHECK_OK(mx_ckpt_newest(test_dir_file(&d, "checkpoints"), MX_CHECK_HASHES, 1, &a, &e,
                                   NULL));
        MX_CHECK(e.path && e.step == 1, "step %d", (int)e.step);
        mx_ckpt_free(c);
        mx_arena_fini(&a);
        test_dir_remove(&d);
    }
}

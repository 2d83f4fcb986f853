/* checkpoint_kill_test.c - kill -9 at random instants of saving.
 *
 * A child saves step after step into one run folder, removing old ones as it goes, and writes each
 * step into shared memory once the save is reported durable. The parent kills it, then looks: every
 * visible checkpoint is whole and bit for bit what its step says, and no step that was reported
 * durable (and not yet replaced by a newer one) is lost. The next child continues from there.
 * The first child is given the time for two saves, which says how long the others may live.
 * MX_KILLS says how often; 20 by default, 1,000 in `make test-crash`.
 */
#include "../test.h"
#include "base/arena.h"
#include "base/str.h"
#include "small_state.h"
#include "store/checkpoint_read.h"
#include "test_dir.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 20000 };

static small_state state;

static void child(const char *run, int64_t first, bool synchronous, atomic_llong *durable)
{
    mx_ckpt *c;
    mx_ckpt_opts o = {.run_dir = run,
                      .run_id = "r",
                      .retention = {.keep_last = 2},
                      .synchronous = synchronous,
                      .max_shard_bytes = first % 3 ? 0 : 50000};
    if (mx_ckpt_new(&c, &o))
        _exit(3);
    for (int64_t step = first;; step++) {
        small_state_fill(&state, N, step);
        if (mx_ckpt_save(c, &state.request))
            _exit(4);
        mx_ckpt_status s = mx_ckpt_poll(c);
        if (s.n_failed || s.warning[0])
            _exit(5);
        if (s.last_step >= 0)
            atomic_store(durable, s.last_step);
    }
}

/* Kills the child after a random part of `most_us`; without one, once two saves are durable. Gives
 * how long it lived. */
static int64_t let_live(pid_t pid, int64_t most_us, unsigned *seed, atomic_llong *durable)
{
    int64_t lived = 0, want = most_us ? (int64_t)rand_r(seed) % most_us : 60000000;
    if (most_us)
        usleep((useconds_t)want);
    else
        for (; lived < want && atomic_load(durable) < 1; lived += 1000)
            usleep(1000);
    kill(pid, SIGKILL);
    return lived;
}

/* Every visible checkpoint; gives the newest step, -1 when there is none. */
static int64_t inspect(const char *root, int kill_number)
{
    mx_arena a = {0};
    mx_ckpt_entry *list;
    int n;
    MX_CHECK_OK(mx_ckpt_list(root, &a, &list, &n));
    for (int i = 0; i < n; i++)
        MX_CHECK(small_state_matches(&state, N, list[i].path, list[i].step),
                 "kill %d: step %lld is not what was saved", kill_number, (long long)list[i].step);
    int64_t newest = n ? list[n - 1].step : -1;
    mx_arena_fini(&a);
    return newest;
}

MX_TEST(checkpoint_kill_9)
{
    const char *want = getenv("MX_KILLS");
    int64_t kills = 20;
    MX_CHECK(!want || mx_parse_i64(want, &kills));
    test_dir d;
    test_dir_make(&d);
    atomic_llong *durable =
        mmap(NULL, sizeof *durable, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MX_ASSERT(durable != MAP_FAILED);
    atomic_store(durable, -1);
    unsigned seed = 12345;
    int64_t newest = -1, most_us = 0;
    for (int i = 0; i < kills; i++) {
        pid_t pid = fork();
        if (pid == 0)
            child(d.path, newest + 1, i % 2, durable);
        int64_t lived = let_live(pid, most_us, &seed, durable);
        if (!most_us)
            most_us = lived * 3 + 1000;
        int st;
        waitpid(pid, &st, 0);
        MX_CHECK(WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL, "the child ended by itself: %x", st);
        int64_t now = inspect(test_dir_file(&d, "checkpoints"), i);
        MX_CHECK(now >= atomic_load(durable) && now >= newest,
                 "kill %d: durable %lld, before %lld, found %lld", i, atomic_load(durable),
                 (long long)newest, (long long)now);
        newest = now;
    }
    MX_CHECK(newest > 0, "nothing was ever saved");
    printf("    %lld kills, %lld steps saved\n", (long long)kills, (long long)newest + 1);
    munmap(durable, sizeof *durable);
    test_dir_remove(&d);
}

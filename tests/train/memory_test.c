/* memory_test.c - the n-th request for memory fails, for every n: the work ends in order or is done
 * all the same, and what it left behind is whole.
 *
 * Each attempt is a process, under ASan: a crash, a leak or a wrong byte is its exit status. Where
 * there are many n, `make test` takes the first and last and some between; MX_EVERY_ALLOCATION=1
 * (make test-memory) takes all, 10 every tenth. MX_LOUD=1 lets the attempts talk.
 */
#include "../store/small_state.h"
#include "../store/test_dir.h"
#include "../test.h"
#include "tiny_run.h"

#include "base/arena.h"
#include "base/config.h"
#include "base/reserve.h"
#include "base/str.h"
#include "cmd/verb.h"
#include "store/checkpoint_read.h"
#include "text/tokenizer/tokenizer.h"
#include "keys/keys.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOT_REACHED = 77, BAD = 99, ALL_BELOW = 60, EDGE = 12 };

typedef struct {
    const char *what;
    mx_status (*work)(void *ctx);
    /* In a process of its own, after an attempt that ended with `code`: NULL, or what is wrong. */
    const char *(*look)(void *ctx, int code);
    void *ctx;
    int n_samples; /* between the edges */
} scenario;

/* Standard output and error go nowhere: hundreds of attempts say that there is no memory. */
static void be_quiet(void)
{
    fflush(stdout);
    int null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    if (!getenv("MX_LOUD"))
        dup2(null, 2);
    close(null);
}

/* The exit status: 0 done, 4 out of memory and in order, NOT_REACHED, BAD: another error. */
static int attempt(const scenario *s, int64_t n, bool for_ever, int64_t *count)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        mx_memory_install();
        int64_t before = mx_alloc_count();
        mx_alloc_fail_at(n, for_ever);
        mx_status st = s->work(s->ctx);
        bool hit = mx_alloc_failed() > 0;
        mx_alloc_fail_at(0, false);
        if (count)
            *count = mx_alloc_count() - before;
        int code = (int)mx_status_code(st);
        bool clean = !st || (code == MX_MEMORY && strstr(mx_status_text(st), "memory"));
        if (!clean)
            printf("    %s, request %lld%s: %s\n", s->what, (long long)n,
                   for_ever ? " and all after it" : "", mx_status_text(st));
        mx_status_free(st);
        fflush(stdout);
        exit(!clean ? BAD : hit || !n ? code : NOT_REACHED);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void look_after(const scenario *s, int64_t n, int code)
{
    if (!s->look)
        return;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        const char *wrong = s->look(s->ctx, code);
        if (wrong)
            printf("    %s, after request %lld failed: %s\n", s->what, (long long)n, wrong);
        fflush(stdout);
        exit(wrong ? 1 : 0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    MX_CHECK(status == 0, "%s: request %lld", s->what, (long long)n);
}

static void sweep(const scenario *s)
{
    int64_t *total = mmap(NULL, sizeof *total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                          -1, 0);
    int code = attempt(s, 0, false, total), done = 0, ended = 0, tried = 0;
    MX_CHECK(code == 0, "%s without a fault: %d", s->what, code);
    const char *asked = getenv("MX_EVERY_ALLOCATION");
    bool every = asked || *total <= ALL_BELOW;
    int64_t middle = *total - 2 * EDGE, stride = every ? 1 : middle / s->n_samples + 1;
    if (asked)
        MX_CHECK(mx_parse_i64(asked, &stride) && stride > 0, "MX_EVERY_ALLOCATION=%s", asked);
    for (int64_t n = 1; n <= *total; tried++) {
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            if (!every && for_ever != tried % 2)
                continue;
            code = attempt(s, n, for_ever, NULL);
            MX_CHECK(code == 0 || code == MX_MEMORY || code == NOT_REACHED,
                     "%s, request %lld of %lld%s: %d", s->what, (long long)n, (long long)*total,
                     for_ever ? " and all after it" : "", code);
            done += code == 0;
            ended += code == MX_MEMORY;
            look_after(s, n, code);
        }
        bool edge = n < EDGE || n >= *total - EDGE;
        n += edge ? 1 : stride;
    }
    printf("    %s: %lld requests, %d places tried: %d times out of memory, %d times done\n",
           s->what, (long long)*total, tried, ended, done);
    MX_CHECK(ended > 0, "%s: no request mattered", s->what);
    munmap(total, sizeof *total);
}

/* --- loading --- */

static mx_status load_config(void *ctx)
{
    (void)ctx;
    mx_config *cfg = NULL;
    const char *args[] = {"run_name=x", "learning_rate=1e-3"};
    mx_config_request q = {.schema = &mx_keys, .user = "train",
                           .home = "configs", .file = "configs/recipes/demo.yml", .args = args,
                           .n_args = 2};
    MX_TRY(mx_config_load(&cfg, &q));
    mx_status st = mx_memory_check();
    mx_config_free(cfg);
    return st;
}

static mx_status load_tokenizer(void *ctx)
{
    mx_tokenizer *t = NULL;
    MX_TRY(mx_tokenizer_open(&t, ctx, NULL));
    mx_tokenizer_close(t);
    return mx_memory_check();
}

MX_TEST(memory_that_fails_while_a_configuration_is_loaded)
{
    sweep(&(scenario){.what = "configuration", .work = load_config, .n_samples = 20});
}

MX_TEST(memory_that_fails_while_a_tokenizer_is_loaded)
{
    static const char *const kinds[] = {"tests/fixtures/tokenizers/llama3",
                                        "tests/fixtures/tokenizers/llama2-sentencepiece"};
    for (int i = 0; i < 2; i++)
        sweep(&(scenario){.what = kinds[i], .work = load_tokenizer, .ctx = (void *)kinds[i],
                          .n_samples = 20});
}

/* --- checkpoints --- */

static small_state state, scratch;

static mx_status save_steps(void *ctx)
{
    const test_dir *d = ctx;
    mx_ckpt *c = NULL;
    MX_TRY(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d->path, .run_id = "r",
                                           .max_shard_bytes = 2000}));
    mx_status st = MX_OK;
    mx_arena a = {0};
    mx_ckpt_entry *list;
    int n = 0;
    MX_TRY_OUT(st, mx_ckpt_list(test_dir_file(d, "checkpoints"), &a, &list, &n));
    int64_t last = n ? list[n - 1].step : 0;
    small_state_fill(&state, 500, last + 1);
    MX_TRY_OUT(st, mx_ckpt_save(c, &state.request));
    memset(state.w, 0xee, sizeof state.w);
    st = mx_ckpt_wait(c);
    if (st && strstr(mx_status_text(st), "out of memory")) { /* of the writer: told as a failure */
        mx_status_free(st);
        st = mx_fail(MX_MEMORY, "out of memory, said the writer");
    }
out:
    mx_arena_fini(&a);
    mx_ckpt_free(c);
    return st;
}

/* Everything that is visible is whole, and another save succeeds. */
static const char *look_at_steps(void *ctx, int code)
{
    const test_dir *d = ctx;
    mx_arena a = {0};
    mx_ckpt_entry *list;
    int n = 0, m = 0;
    mx_status st = mx_ckpt_list(test_dir_file(d, "checkpoints"), &a, &list, &n);
    for (int i = 0; i < n && !st; i++)
        if (!small_state_matches(&scratch, 500, list[i].path, list[i].step))
            return "a checkpoint that can be seen is not whole";
    if (!st)
        st = save_steps(ctx);
    if (!st)
        st = mx_ckpt_list(test_dir_file(d, "checkpoints"), &a, &list, &m);
    if (st || m != n + 1)
        return "the next save failed";
    (void)code;
    for (int i = 0; i + 1 < m; i++)
        mx_status_free(mx_io_remove_tree(NULL, list[i].path));
    mx_arena_fini(&a);
    return NULL;
}

static mx_status load_checkpoint(void *ctx)
{
    mx_ckpt_view v = {0};
    mx_arena a = {0};
    mx_ckpt_entry e = {0};
    mx_str notes = {0};
    mx_status st = MX_OK;
    MX_TRY_OUT(st, mx_ckpt_newest(test_dir_file(ctx, "checkpoints"), MX_CHECK_HASHES, 2, &a, &e,
                                  &notes));
    MX_TRY_OUT(st, mx_ckpt_open(&v, e.path, MX_CHECK_HASHES, 2));
    st = mx_memory_check();
out:
    mx_ckpt_close(&v);
    mx_str_fini(&notes);
    mx_arena_fini(&a);
    return st;
}

MX_TEST(memory_that_fails_while_a_checkpoint_is_saved_and_loaded)
{
    test_dir d;
    test_dir_make(&d);
    sweep(&(scenario){.what = "saving", .work = save_steps, .look = look_at_steps, .ctx = &d,
                      .n_samples = 12});
    sweep(&(scenario){.what = "loading", .work = load_checkpoint, .ctx = &d, .n_samples = 12});
    test_dir_remove(&d);
}

/* --- whole runs --- */

typedef struct {
    char folder[256];
    char *reference; /* digests of the run that had memory */
} runs;

static const char *const two_steps[] = {"steps=2", "learning_rate_schedule_steps=2",
                                        "checkpoint_period=1", "eval_interval=2", "eval_steps=1",
                                        NULL};

static mx_status train_two_steps(void *ctx)
{
    const runs *r = ctx;
    int keep = dup(2), null = open("/dev/null", O_WRONLY);
    if (!getenv("MX_LOUD"))
        dup2(null, 2);
    mx_status st = tiny_train(r->folder, "a", two_steps);
    dup2(keep, 2);
    close(keep);
    close(null);
    /* a save that failed for want of memory is an I/O failure to the run, which names it */
    if (mx_status_code(st) == MX_DEVICE && strstr(mx_status_text(st), "out of memory")) {
        mx_status_free(st);
        st = mx_fail(MX_MEMORY, "out of memory, in a save");
    }
    return st;
}

/* The lock is free, and the same command ends as if nothing had been. */
static const char *look_at_run(void *ctx, int code)
{
    runs *r = ctx;
    char path[512];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/a/r/run.lock", r->folder);
    char *note = test_exists(path) ? test_get(path, &n) : NULL;
    mx_free(note);
    if (n)
        return "the lock was not released";
    mx_status st = tiny_train(r->folder, "a", two_steps);
    if (st) {
        printf("    %s\n", mx_status_text(st));
        return "the next start failed";
    }
    char *tensors = tiny_tensors(r->folder, "a", 2);
    bool same = strcmp(tensors, r->reference) == 0;
    free(tensors);
    snprintf(path, sizeof path, "%s/a", r->folder);
    mx_status_free(mx_io_remove_tree(NULL, path));
    (void)code;
    return same ? NULL : "the bits are others";
}

static mx_status generate(void *ctx)
{
    const runs *r = ctx;
    char model[300];
    snprintf(model, sizeof model, "%s/a/r", r->folder);
    char *args[] = {"maxc", "generate", model, "prompt=The", "max_new_tokens=3", "num_threads=1",
                    NULL};
    int keep[2] = {dup(1), dup(2)};
    be_quiet();
    int code = mx_main(6, args, (char *[]){NULL});
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        dup2(keep[i], 1 + i);
        close(keep[i]);
    }
    return code ? mx_fail((mx_code)code, "status %d, of memory", code) : MX_OK;
}

MX_TEST(memory_that_fails_while_a_model_is_trained_and_writes)
{
    runs r = {0};
    char path[512];
    tiny_folder(r.folder, sizeof r.folder);
    scenario reference = {.what = "reference", .work = train_two_steps, .ctx = &r};
    MX_CHECK(attempt(&reference, 0, false, NULL) == 0, "no reference");
    r.reference = tiny_tensors(r.folder, "a", 2);
    sweep(&(scenario){.what = "writing", .work = generate, .ctx = &r, .n_samples = 10});
    snprintf(path, sizeof path, "%s/a", r.folder);
    mx_status_free(mx_io_remove_tree(NULL, path));
    sweep(&(scenario){.what = "training", .work = train_two_steps, .look = look_at_run, .ctx = &r,
                      .n_samples = 10});
    free(r.reference);
    mx_status_free(mx_io_remove_tree(NULL, r.folder));
}

/* --- the reserve itself --- */

MX_TEST(memory_of_the_reserve_is_as_good_as_any)
{
    mx_arena a = {0};
    mx_alloc_fail_at(1, true);
    char *p = mx_arena_alloc(&a, 100), *q = mx_realloc(NULL, 10), *system = NULL;
    MX_CHECK(((uintptr_t)p | (uintptr_t)q) % 64 == 0 && p[0] == 0 && p[99] == 0, "%p %p", p, q);
    memcpy(q, "123456789", 10);
    q = mx_realloc(q, 100000);
    MX_CHECK(strcmp(q, "123456789") == 0, "%s", q);
    MX_CHECK_ERROR(mx_memory_check(), "out of memory: 100000 bytes");
    MX_CHECK_OK(mx_memory_check()); /* once */
    MX_CHECK_ERROR(mx_alloc((void **)&system, 64, "a thing"), "out of memory: a thing needs");
    MX_CHECK(!system, "memory in spite of all");
    mx_status_free(mx_memory_check());
    mx_alloc_fail_at(0, false);
    q = mx_realloc(q, 200000); /* back to the system */
    MX_CHECK(strcmp(q, "123456789") == 0, "%s", q);
    mx_alloc_fail_at(1, false);
    q = mx_realloc(q, 300000); /* and from there to the reserve */
    MX_CHECK(strcmp(q, "123456789") == 0 && mx_reserve_holds(q), "%s", q);
    mx_free(q);
    mx_arena_fini(&a);
    mx_status_free(mx_memory_check());
    MX_CHECK_OK(mx_alloc((void **)&system, 64, "a thing"));
    mx_free(system);
}

/* The end of it: said, and status 4. */
static mx_status eat(void *ctx)
{
    mx_arena a = {0};
    (void)ctx;
    be_quiet();
    for (int i = 0; i < 1000; i++)
        mx_arena_alloc(&a, 1 << 20);
    mx_arena_fini(&a);
    return mx_fail(MX_USAGE, "a gigabyte of nothing");
}

MX_TEST(memory_that_is_gone_for_good_ends_with_status_4)
{
    int code = attempt(&(scenario){.what = "eating", .work = eat}, 1, true, NULL);
    MX_CHECK(code == MX_MEMORY, "%d", code);
}

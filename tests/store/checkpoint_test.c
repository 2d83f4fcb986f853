/* checkpoint_test.c - saving, choosing, retention, damage and faults. */
#include "../test.h"
#include "base/arena.h"
#include "base/str.h"
#include "faulty_io.h"
#include "small_state.h"
#include "store/checkpoint_read.h"
#include "test_dir.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static small_state state, scratch;

static const char *step_path(const test_dir *d, int64_t step)
{
    char name[64];
    snprintf(name, sizeof name, "checkpoints/%" PRId64, step);
    return test_dir_file(d, name);
}

static void save(mx_ckpt *c, int n, int64_t step)
{
    small_state_fill(&state, n, step);
    MX_CHECK_OK(mx_ckpt_save(c, &state.request));
    memset(state.w, 0xee, sizeof state.w); /* the snapshot must not look back here */
    MX_CHECK_OK(mx_ckpt_wait(c));
}

static int64_t newest(const test_dir *d, mx_str *notes)
{
    mx_arena a = {0};
    mx_ckpt_entry e;
    MX_CHECK_OK(mx_ckpt_newest(test_dir_file(d, "checkpoints"), MX_CHECK_HASHES, 1, &a, &e, notes));
    int64_t step = e.path ? e.step : -1;
    mx_arena_fini(&a);
    return step;
}

MX_TEST(checkpoint_round_trip)
{
    test_dir d;
    test_dir_make(&d);
    for (int mode = 0; mode < 3; mode++) {
        mx_ckpt *c;
        mx_ckpt_opts o = {.run_dir = d.path,
                          .run_id = "r",
                          .synchronous = mode == 1,
                          .max_shard_bytes = mode == 2 ? 100 : 0};
        MX_CHECK_OK(mx_ckpt_new(&c, &o));
        save(c, 5000, mode);
        mx_ckpt_status s = mx_ckpt_poll(c);
        MX_CHECK(s.last_step == mode && s.n_written == 1 && !s.error[0] && !s.writing);
        mx_ckpt_free(c);
        MX_CHECK(small_state_matches(&scratch, 5000, step_path(&d, mode), mode), "mode %d", mode);
    }
    MX_CHECK(test_exists(test_dir_file(&d, "checkpoints/2/optimizer.safetensors.index.json")));
    MX_CHECK(newest(&d, NULL) == 2);
    test_dir_remove(&d);
}

/* The caller's thread is back before the write is over, and a second save waits for the first. */
MX_TEST(checkpoint_snapshot_is_asynchronous)
{
    test_dir d;
    test_dir_make(&d);
    mx_ckpt *c;
    MX_CHECK_OK(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d.path, .run_id = "r"}));
    for (int step = 1; step <= 5; step++) {
        small_state_fill(&state, SMALL_STATE_MAX, step);
        MX_CHECK_OK(mx_ckpt_save(c, &state.request));
    }
    MX_CHECK_OK(mx_ckpt_wait(c));
    MX_CHECK(mx_ckpt_poll(c).n_written == 5);
    for (int step = 1; step <= 5; step++)
        MX_CHECK(small_state_matches(&scratch, SMALL_STATE_MAX, step_path(&d, step), step));
    mx_ckpt_free(c);
    test_dir_remove(&d);
}

static mx_status fetch_state(void *ctx, const mx_st_source *t, uint64_t at, void *dst, size_t n)
{
    (void)ctx;
    memcpy(dst, (const char *)t->user + at, n);
    return MX_OK;
}

/* Tensors without data come from the callback, with and without a snapshot. */
MX_TEST(checkpoint_fetches_device_tensors)
{
    test_dir d;
    test_dir_make(&d);
    for (int mode = 0; mode < 2; mode++) {
        mx_ckpt *c;
        mx_ckpt_opts o = {.run_dir = d.path, .run_id = "r", .synchronous = mode == 1};
        MX_CHECK_OK(mx_ckpt_new(&c, &o));
        small_state_fill(&state, 5000, mode);
        MX_CHECK_OK(mx_ckpt_reserve(c, &state.request));
        state.weights[0].user = state.w;
        state.optimizer[0].user = state.m;
        state.weights[0].data = state.optimizer[0].data = NULL;
        state.request.fetch = fetch_state;
        MX_CHECK_OK(mx_ckpt_save(c, &state.request));
        MX_CHECK_OK(mx_ckpt_wait(c));
        mx_ckpt_free(c);
        MX_CHECK(small_state_matches(&scratch, 5000, step_path(&d, mode), mode), "mode %d", mode);
    }
    test_dir_remove(&d);
}

MX_TEST(checkpoint_bad_requests)
{
    test_dir d;
    test_dir_make(&d);
    mx_ckpt *c;
    MX_CHECK_OK(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d.path, .run_id = "r"}));
    small_state_fill(&state, 4, 1);
    state.request.state_json = "[1]";
    MX_CHECK_ERROR(mx_ckpt_save(c, &state.request), "must be a JSON object");
    state.request.state_json = "{";
    MX_CHECK_ERROR(mx_ckpt_save(c, &state.request), "not valid JSON");
    small_state_fill(&state, 4, 1);
    state.weights[1].name = "model.w";
    MX_CHECK_ERROR(mx_ckpt_save(c, &state.request), "two weight tensors are called model.w");
    save(c, 4, 1);
    mx_ckpt_free(c);
    MX_CHECK_ERROR(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = "/nonexistent/run", .run_id = "r"}),
                   "/nonexistent/run/checkpoints");
    test_dir_remove(&d);
}

/* The same step twice: equal state is one checkpoint, other state does not overwrite. */
MX_TEST(checkpoint_never_overwrites)
{
    test_dir d;
    test_dir_make(&d);
    mx_ckpt *c;
    MX_CHECK_OK(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d.path, .run_id = "r"}));
    save(c, 100, 7);
    save(c, 100, 7);
    small_state_fill(&state, 100, 8);
    state.request.step = 7;
    MX_CHECK_OK(mx_ckpt_save(c, &state.request));
    MX_CHECK_ERROR(mx_ckpt_wait(c), "not overwritten");
    MX_CHECK(mx_ckpt_poll(c).n_failed == 1);
    MX_CHECK(small_state_matches(&scratch, 100, step_path(&d, 7), 7));
    /* A damaged one makes way. */
    test_put_text(test_dir_file(&d, "checkpoints/7/state.json"), "{\"step\":9}");
    save(c, 100, 7);
    MX_CHECK(small_state_matches(&scratch, 100, step_path(&d, 7), 7));
    mx_ckpt_free(c);
    test_dir_remove(&d);
}

MX_TEST(checkpoint_retention)
{
    test_dir d;
    test_dir_make(&d);
    mx_ckpt *c;
    mx_ckpt_opts o = {.run_dir = d.path,
                      .run_id = "r",
                      .retention = {.keep_last = 2, .keep_every = 40, .keep_best = 1}};
    MX_CHECK_OK(mx_ckpt_new(&c, &o));
    static const double loss[10] = {9, 8, 1, 7, 6, 5, NAN, 4, 3, 2};
    mx_ckpt_view reading = {0};
    for (int i = 0; i < 10; i++) {
        small_state_fill(&state, 4, i * 10);
        state.request.metric = loss[i];
        MX_CHECK_OK(mx_ckpt_save(c, &state.request));
        MX_CHECK_OK(mx_ckpt_wait(c));
        MX_CHECK(!mx_ckpt_poll(c).warning[0], "%s", mx_ckpt_poll(c).warning);
        if (i == 5)
            MX_CHECK_OK(mx_ckpt_open(&reading, step_path(&d, 50), MX_CHECK_HASHES, 1));
    }
    static const bool kept[10] = {1, 0, 1, 0, 1, 1, 0, 0, 1, 1};
    for (int i = 0; i < 10; i++)
        MX_CHECK(test_exists(step_path(&d, i * 10)) == kept[i], "step %d", i * 10);
    mx_ckpt_close(&reading);
    save(c, 4, 100);
    MX_CHECK(!test_exists(step_path(&d, 50)), "released by its reader, removed");
    mx_ckpt_free(c);
    test_dir_remove(&d);
}

/* Leftovers of killed processes vanish at the next start; steps order by number, not by time. */
MX_TEST(checkpoint_sweep_and_order)
{
    test_dir d;
    test_dir_make(&d);
    mx_ckpt *c;
    MX_CHECK_OK(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d.path, .run_id = "r"}));
    save(c, 4, 1000);
    save(c, 4, 999);
    mx_ckpt_free(c);
    MX_CHECK(newest(&d, NULL) == 1000);
    static const char *const left[] = {"checkpoints/.tmp-5-1", "checkpoints/.trash-3"};
    for (int i = 0; i < 2; i++)
        MX_CHECK(mkdir(test_dir_file(&d, left[i]), 0755) == 0);
    test_put_text(test_dir_file(&d, "checkpoints/.tmp-5-1/x.tmp"), "x");
    mkdir(test_dir_file(&d, "checkpoints/01001"), 0755); /* not a step's name */
    mkdir(test_dir_file(&d, "checkpoints/notes"), 0755);
    MX_CHECK_OK(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d.path, .run_id = "r"}));
    for (int i = 0; i < 2; i++)
        MX_CHECK(!test_exists(test_dir_file(&d, left[i])), "%s", left[i]);
    MX_CHECK(newest(&d, NULL) == 1000);
    mx_ckpt_free(c);
    test_dir_remove(&d);
}

/* --- damage --------------------------------------------------------------------------------- */
static void flip(const char *path, off_t at, int bit)
{
    unsigned char b;
    int fd = open(path, O_RDWR);
    MX_ASSERT(fd >= 0 && pread(fd, &b, 1, at) == 1);
    b ^= (unsigned char)(1 << bit);
    MX_ASSERT(pwrite(fd, &b, 1, at) == 1);
    close(fd);
}

/* One flipped bit in every byte of every file: always found, and the tensor named when it is one's.
 */
MX_TEST(checkpoint_every_flip_is_found)
{
    static const char *const files[] = {"manifest.json", "config.json", "state.json",
                                        "model.safetensors", "optimizer.safetensors"};
    test_dir d;
    test_dir_make(&d);
    mx_ckpt *c;
    MX_CHECK_OK(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d.path, .run_id = "r"}));
    save(c, 16, 3);
    mx_ckpt_free(c);
    const char *dir = step_path(&d, 3);
    char path[500];
    int n_flips = 0;
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        struct stat s;
        MX_CHECK(stat(path, &s) == 0);
        mx_st_file f = {0};
        if (i >= 3)
            MX_CHECK_OK(mx_st_open(&f, path));
        for (off_t at = 0; at < s.st_size; at++, n_flips++) {
            flip(path, at, (int)(at % 8));
            mx_status st = mx_ckpt_verify(dir, MX_CHECK_HASHES, 1);
            MX_CHECK(st, "%s: byte %ld flipped, not found", files[i], (long)at);
            for (int64_t k = 0; k < f.n_tensors; k++)
                if ((uint64_t)at >= f.tensors[k].at &&
                    (uint64_t)at < f.tensors[k].at + f.tensors[k].n_bytes)
                    MX_CHECK(strstr(mx_status_text(st), f.tensors[k].name), "byte %ld: %s",
                             (long)at, mx_status_text(st));
            mx_status_free(st);
            flip(path, at, (int)(at % 8));
        }
        mx_st_close(&f);
    }
    MX_CHECK_OK(mx_ckpt_verify(dir, MX_CHECK_HASHES, 1));
    printf("    %d flips\n", n_flips);
    test_dir_remove(&d);
}

static void fresh(const test_dir *d, int n_checkpoints)
{
    mx_ckpt *c;
    MX_CHECK_OK(mx_io_remove_tree(NULL, test_dir_file(d, "checkpoints")));
    MX_CHECK_OK(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d->path, .run_id = "r"}));
    for (int i = 1; i <= n_checkpoints; i++)
        save(c, 16, i);
    mx_ckpt_free(c);
}

MX_TEST(checkpoint_falls_back)
{
    test_dir d;
    test_dir_make(&d);
    mx_str notes = {0};
    fresh(&d, 3);
    struct stat s;
    const char *weights = test_dir_file(&d, "checkpoints/3/model.safetensors");
    MX_CHECK(stat(weights, &s) == 0);
    flip(weights, s.st_size - 1, 0);
    MX_CHECK(newest(&d, &notes) == 2);
    MX_CHECK(strstr(mx_str_text(&notes), "checkpoint 3 is damaged"), "%s", mx_str_text(&notes));
    MX_CHECK(strstr(mx_str_text(&notes), "using checkpoint 2"), "%s", mx_str_text(&notes));
    MX_CHECK(strstr(mx_str_text(&notes), "tensor model."), "the tensor: %s", mx_str_text(&notes));
    unlink(test_dir_file(&d, "checkpoints/2/optimizer.safetensors"));
    mx_str_clear(&notes);
    MX_CHECK(newest(&d, &notes) == 1);
    MX_CHECK(strstr(mx_str_text(&notes), "optimizer.safetensors: cannot open"), "%s",
             mx_str_text(&notes));
    MX_CHECK(truncate(test_dir_file(&d, "checkpoints/1/model.safetensors"), s.st_size - 1) == 0);
    mx_arena a = {0};
    mx_ckpt_entry e;
    MX_CHECK_ERROR(
        mx_ckpt_newest(test_dir_file(&d, "checkpoints"), MX_CHECK_HASHES, 1, &a, &e, &notes),
        "no checkpoint is whole");
    mx_arena_fini(&a);
    mx_str_fini(&notes);
    test_dir_remove(&d);
}

static void edit_manifest(const test_dir *d, const char *key, json_t *value)
{
    const char *path = test_dir_file(d, "checkpoints/1/manifest.json");
    json_t *m;
    MX_CHECK_OK(mx_json_load(path, NULL, &m));
    json_object_set_new(m, key, value);
    json_object_del(m, "digest");
    char *bare = mx_json_text(m, 1), hex[MX_DIGEST_TEXT];
    mx_digest_text(mx_digest_of(bare, strlen(bare)), hex);
    json_object_set_new(m, "digest", json_string(hex));
    char *text = mx_json_text(m, 1);
    test_put_text(path, text);
    mx_free(bare);
    mx_free(text);
    json_decref(m);
}

MX_TEST(checkpoint_manifest_versions)
{
    test_dir d;
    test_dir_make(&d);
    const char *dir = step_path(&d, 1);
    fresh(&d, 1);
    edit_manifest(&d, "from_the_future", json_integer(5)); /* optional: ignored */
    MX_CHECK_OK(mx_ckpt_verify(dir, MX_CHECK_HASHES, 1));
    edit_manifest(&d, "requires", json_pack("[s]", "compression"));
    MX_CHECK_ERROR(mx_ckpt_verify(dir, MX_CHECK_HASHES, 1), "\"compression\"");
    fresh(&d, 1);
    edit_manifest(&d, "version", json_integer(2));
    MX_CHECK_ERROR(mx_ckpt_verify(dir, MX_CHECK_HASHES, 1), "newer maxc");
    fresh(&d, 1);
    edit_manifest(&d, "step", json_integer(2));
    MX_CHECK_ERROR(mx_ckpt_verify(dir, MX_CHECK_HASHES, 1), "holds step 2");
    fresh(&d, 1);
    edit_manifest(&d, "files", json_pack("{s:{}}", "../../etc/passwd"));
    MX_CHECK_ERROR(mx_ckpt_verify(dir, MX_CHECK_HASHES, 1), "names a file elsewhere");
    fresh(&d, 1);
    test_put_text(test_dir_file(&d, "checkpoints/1/model.safetensors.index.json"), "{}");
    MX_CHECK_ERROR(mx_ckpt_verify(dir, MX_CHECK_SIZES, 1), "does not belong");
    fresh(&d, 2); /* shards of two steps mixed */
    rename(test_dir_file(&d, "checkpoints/2/model.safetensors"),
           test_dir_file(&d, "checkpoints/1/model.safetensors"));
    MX_CHECK_ERROR(mx_ckpt_verify(dir, MX_CHECK_SIZES, 1), "model.safetensors: damaged");
    test_dir_remove(&d);
}

/* --- faults --------------------------------------------------------------------------------- */
/* Saves step 2 over `io` with step 1 already there; then looks at what is left. True when the save
 * was reported as done. */
static bool save_under_fault(const test_dir *d, const mx_io *io, const char *what, int at)
{
    mx_ckpt *c = NULL;
    mx_ckpt_opts o = {.run_dir = d->path,
                      .run_id = "r",
                      .io = io,
                      .n_threads = 1,
                      .synchronous = true,
                      .retention = {.keep_last = 2}};
    mx_status st = mx_ckpt_new(&c, &o);
    bool done = false;
    if (!st) {
        small_state_fill(&state, 16, 2);
        st = mx_ckpt_save(c, &state.request);
        MX_CHECK(!st, "%s at %d: a fault is no bad request: %s", what, at, mx_status_text(st));
        mx_status_free(st);
        st = mx_ckpt_wait(c);
        done = !st;
    }
    if (st)
        MX_CHECK(strlen(mx_status_text(st)) > 10, "%s at %d: no reason given", what, at);
    mx_status_free(st);
    mx_ckpt_free(c);
    return done;
}

static void check_after_fault(const test_dir *d, bool done, const char *what, int at)
{
    MX_CHECK(small_state_matches(&scratch, 16, step_path(d, 1), 1), "%s at %d: step 1 lost", what,
             at);
    if (done || test_exists(step_path(d, 2)))
        MX_CHECK(small_state_matches(&scratch, 16, step_path(d, 2), 2), "%s at %d: step 2", what,
                 at);
    /* The next start sweeps everything but the committed ones. */
    mx_ckpt *c;
    MX_CHECK_OK(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d->path, .run_id = "r"}));
    mx_ckpt_free(c);
    MX_CHECK(rmdir(test_dir_file(d, "checkpoints")) && errno == ENOTEMPTY);
    if (test_exists(step_path(d, 2)))
        MX_CHECK_OK(mx_io_remove_tree(NULL, step_path(d, 2)));
}

/* Every call of a save made to fail, once and for ever, in each way. */
static void fault_loop(int error, const char *what)
{
    test_dir d;
    test_dir_make(&d);
    fresh(&d, 1);
    int n_done = 0, n_runs = 0;
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (int at = 1;; at++, n_runs++) {
            static faulty_io f;
            f = (faulty_io){.fail_at = at, .for_ever = for_ever, .error = error};
            mx_io io = faulty_io_make(&f);
            bool done = save_under_fault(&d, &io, what, at);
            n_done += done;
            check_after_fault(&d, done, what, at);
            if (!f.failed) {
                MX_CHECK(done, "%s: no fault and yet no save", what);
                MX_CHECK(at > 40, "a save makes more calls than %d", at);
                break;
            }
        }
    printf("    %s: %d saves, %d reported done\n", what, n_runs, n_done);
    test_dir_remove(&d);
}

MX_TEST(checkpoint_fault_loop_enospc)
{
    fault_loop(ENOSPC, "ENOSPC");
}

MX_TEST(checkpoint_fault_loop_eio)
{
    fault_loop(EIO, "EIO");
}

MX_TEST(checkpoint_fault_loop_erofs)
{
    fault_loop(EROFS, "EROFS");
}

/* Short writes, once or always, are no failure at all. */
MX_TEST(checkpoint_short_writes)
{
    test_dir d;
    test_dir_make(&d);
    fresh(&d, 1);
    for (int at = 1; at < 200; at += 13) {
        static faulty_io f;
        f = (faulty_io){.fail_at = at, .for_ever = true};
        mx_io io = faulty_io_make(&f);
        MX_CHECK(save_under_fault(&d, &io, "short", at));
        check_after_fault(&d, true, "short", at);
    }
    test_dir_remove(&d);
}

MX_TEST(checkpoint_interrupted_writes)
{
    test_dir d;
    test_dir_make(&d);
    fresh(&d, 1);
    static faulty_io f;
    f = (faulty_io){0};
    mx_io io = faulty_io_make(&f);
    MX_CHECK(save_under_fault(&d, &io, "none", 0));
    check_after_fault(&d, true, "none", 0);
    int total = f.calls, survived = 0;
    for (int at = 1; at <= total; at++) {
        f = (faulty_io){.fail_at = at, .error = EINTR};
        io = faulty_io_make(&f);
        bool done = save_under_fault(&d, &io, "EINTR", at);
        survived += done;
        check_after_fault(&d, done, "EINTR", at);
    }
    MX_CHECK(survived > 10, "interrupted writes are repeated: %d of %d", survived, total);
    test_dir_remove(&d);
}

/* Faults in a background write: the run is told, goes on, and the next save succeeds. */
MX_TEST(checkpoint_failure_is_survived)
{
    test_dir d;
    test_dir_make(&d);
    static faulty_io f;
    f = (faulty_io){0};
    mx_io io = faulty_io_make(&f);
    mx_ckpt *c;
    MX_CHECK_OK(mx_ckpt_new(&c, &(mx_ckpt_opts){.run_dir = d.path, .run_id = "r", .io = &io}));
    save(c, 16, 1);
    f.fail_at = f.calls + 20;
    f.for_ever = true;
    f.error = EIO;
    for (int i = 2; i < 4; i++) {
        small_state_fill(&state, 16, i);
        MX_CHECK_OK(mx_ckpt_save(c, &state.request));
    }
    MX_CHECK_ERROR(mx_ckpt_wait(c), "Input/output error");
    MX_CHECK(mx_ckpt_poll(c).n_failed == 2 && mx_ckpt_poll(c).last_step == 1);
    f.fail_at = 0;
    save(c, 16, 4);
    MX_CHECK(mx_ckpt_poll(c).n_failed == 0 && mx_ckpt_poll(c).last_step == 4);
    /* No room: said before a byte is written. */
    f.room = 1000;
    int before = f.calls;
    small_state_fill(&state, 16, 5);
    MX_CHECK_OK(mx_ckpt_save(c, &state.request));
    MX_CHECK_ERROR(mx_ckpt_wait(c), "make room");
    MX_CHECK(f.calls - before <= 2, "%d calls", f.calls - before);
    f.room = 0;
    /* The folder is deleted under the run. */
    MX_CHECK_OK(mx_io_remove_tree(NULL, test_dir_file(&d, "checkpoints")));
    small_state_fill(&state, 16, 6);
    MX_CHECK_OK(mx_ckpt_save(c, &state.request));
    MX_CHECK_ERROR(mx_ckpt_wait(c), "checkpoints");
    mx_ckpt_free(c);
    test_dir_remove(&d);
}

/* The last call among the first n of the log that is `verb path`; -1 when there is none. */
static int last_call(char (*log)[160], int n, const char *verb, const char *path)
{
    char call[200];
    snprintf(call, sizeof call, "%s %s", verb, path);
    while (--n >= 0)
        if (strcmp(log[n], call) == 0)
            return n;
    return -1;
}

/* What makes a save durable, as an order of calls: every file is fsynced before it gets its name,
 * the manifest is the last file, the folder is fsynced before its rename, its parent after. */
MX_TEST(checkpoint_write_order)
{
    enum { MAX = 500 };
    test_dir d;
    test_dir_make(&d);
    static char log[MAX][160];
    static faulty_io f;
    f = (faulty_io){.log = log, .max_log = MAX};
    mx_io io = faulty_io_make(&f);
    MX_CHECK(save_under_fault(&d, &io, "none", 0));
    int commit = -1, last_file = -1, n_files = 0;
    char tmp[160] = "", last_name[160] = "";
    for (int i = 0; i < f.n_log; i++) {
        char from[160], to[160];
        if (sscanf(log[i], "rename %159s %159s", from, to) != 2)
            continue;
        if (mx_ends_with(to, "/checkpoints/2")) {
            commit = i;
            snprintf(tmp, sizeof tmp, "%s", from);
            continue;
        }
        int written = last_call(log, i, "write", from), synced = last_call(log, i, "fsync", from);
        MX_CHECK(written >= 0 && synced > written, "%s was not synced before it got its name", to);
        snprintf(last_name, sizeof last_name, "%s", to);
        last_file = i;
        n_files++;
    }
    MX_CHECK(n_files == 5 && mx_ends_with(last_name, "manifest.json"), "the manifest comes last");
    int tmp_synced = last_call(log, f.n_log, "fsync", tmp);
    int root_synced = last_call(log, f.n_log, "fsync", test_dir_file(&d, "checkpoints"));
    MX_CHECK(last_file < tmp_synced && tmp_synced < commit && commit < root_synced, "%d %d %d %d",
             last_file, tmp_synced, commit, root_synced);
    test_dir_remove(&d);
}

/* bench_save.c - maxc bench save: what saving costs a run, and how fast it is, in one command.
 *
 *     maxc bench save model_name=llama-110m per_device_batch_size=4 max_target_length=512
 *
 * Steps of the model are timed alone; then its whole state (weights, moments) is saved in the
 * background while steps go on, `saves` times. A save costs what it kept the loop standing and what
 * the steps beside it took longer than the median; the cost is given as a share of
 * checkpoint_period (here 50 unless set) steps. Then the same state is saved with nothing beside
 * it, and as many bytes are written raw (O_DIRECT, 8 MiB at a time, fsync) in turns, so that both
 * see the same disk. Files go to base_output_directory and are removed.
 */
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/io.h"
#include "models/from_config.h"
#include "train/run/state.h"
#include "exec/step_config.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { QUIET = 5, SAVES = 3, PIECE = 8 << 20, MAX_BESIDE = 10000 };

typedef struct {
    mx_model_spec model;
    mx_session *session;
    mx_step step;
    mx_step_options o;
    mx_ckpt *ckpt;
    mx_arena arena;
    mx_run_state at;
    const char *folder;
    double quiet, stall, slower; /* seconds: median step; of a save: standing, steps made longer */
    double bytes, beside, alone, raw; /* of the state; seconds of a durable write */
} bench;

static mx_status one_step(bench *b, double *seconds)
{
    float loss, number = (float)++b->at.step;
    double start = mx_clock_now();
    MX_TRY(mx_exec_write(b->step.exec, "step", &number));
    MX_TRY(mx_exec_run(b->step.exec));
    MX_TRY(mx_exec_read(b->step.exec, "loss", &loss));
    *seconds = mx_clock_now() - start;
    return MX_OK;
}

static mx_status save(bench *b)
{
    return mx_state_save(b->ckpt, b->session, &b->model, &b->at, NAN, NULL);
}

static mx_status quiet_steps(bench *b)
{
    double each[QUIET], first;
    MX_TRY(one_step(b, &first)); /* not counted */
    for (int i = 0; i < QUIET; i++)
        MX_TRY(one_step(b, &each[i]));
    b->quiet = mx_bench_median(each, QUIET);
    return MX_OK;
}

static mx_status saves_beside_steps(bench *b)
{
    double stall[SAVES], slower[SAVES] = {0}, write[SAVES];
    for (int k = 0; k < SAVES; k++) {
        MX_TRY(save(b));
        stall[k] = mx_ckpt_poll(b->ckpt).last_stall_s;
        for (int i = 0; i < MAX_BESIDE && (i == 0 || mx_ckpt_poll(b->ckpt).writing); i++) {
            double seconds;
            MX_TRY(one_step(b, &seconds));
            slower[k] += seconds - b->quiet;
        }
        MX_TRY(mx_ckpt_wait(b->ckpt));
        write[k] = mx_ckpt_poll(b->ckpt).last_write_s;
    }
    b->stall = mx_bench_median(stall, SAVES);
    b->slower = fmax(0, mx_bench_median(slower, SAVES));
    b->beside = mx_bench_median(write, SAVES);
    return MX_OK;
}

static mx_status raw_write(bench *b, const char *data, double *seconds)
{
    const char *path = mx_arena_printf(&b->arena, "%s/raw.bin", b->folder);
    double start = mx_clock_now();
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0644);
    if (fd < 0) /* a file system without it */
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0)
        return mx_fail_errno(MX_DEVICE, "%s", path);
    mx_status st = MX_OK;
    for (double left = b->bytes; left > 0 && !st; left -= PIECE)
        st = mx_io_write_all(NULL, fd, data, PIECE, path);
    if (!st && fsync(fd))
        st = mx_fail_errno(MX_DEVICE, "%s", path);
    close(fd);
    *seconds = mx_clock_now() - start;
    unlink(path);
    return st;
}

static mx_status saves_alone(bench *b)
{
    double write[SAVES], raw[SAVES];
    void *memory = NULL;
    MX_TRY(mx_alloc(&memory, PIECE + 4096, "what is written"));
    char *data = (char *)(((uintptr_t)memory + 4095) / 4096 * 4096);
    for (size_t i = 0; i < PIECE / 4; i++)
        memcpy(data + 4 * i, &(uint32_t){(uint32_t)i * 2654435761u}, 4);
    mx_status st = MX_OK;
    for (int k = 0; k < SAVES && !st; k++) {
        b->at.step++;
        st = save(b);
        if (!st)
            st = mx_ckpt_wait(b->ckpt);
        write[k] = mx_ckpt_poll(b->ckpt).last_write_s;
        b->bytes = (double)mx_ckpt_poll(b->ckpt).last_bytes;
        if (!st)
            st = raw_write(b, data, &raw[k]);
    }
    mx_free(memory);
    if (st)
        return st;
    b->alone = mx_bench_median(write, SAVES);
    b->raw = mx_bench_median(raw, SAVES);
    return MX_OK;
}

static mx_status open_all(bench *b, const mx_config *c)
{
    MX_TRY(mx_model_from_config(&b->model, c));
    MX_TRY(mx_step_configure(&b->o, c, &b->model, MX_STEP_TRAIN,
                             (int64_t)mx_config_float(c, "per_device_batch_size"), &b->arena));
    b->o.shape.packed = false;
    if (!mx_config_is_set(c, "remat_policy"))
        b->o.compile.remat.policy = "none";
    MX_TRY(mx_session_open(&b->session, mx_config_text(c, "device"),
                           (int)mx_config_int(c, "num_threads")));
    b->o.compile.n_threads = mx_session_threads(b->session);
    MX_TRY(mx_step_open(&b->step, b->session, &b->model, &b->o));
    MX_TRY(mx_session_init(b->session, 1));
    float scale = 1.0f / (float)(b->o.shape.batch * b->o.shape.seq), lr = 1e-4f;
    MX_TRY(mx_exec_write(b->step.exec, "loss_scale", &scale));
    MX_TRY(mx_exec_write(b->step.exec, "lr", &lr));
    const char *root = mx_config_text(c, "base_output_directory");
    MX_TRY(mx_io_make_dir(NULL, root));
    b->folder = mx_arena_printf(&b->arena, "%s/bench-save-%d", root, (int)getpid());
    MX_TRY(mx_io_make_dir(NULL, b->folder));
    mx_ckpt_opts o = {.run_dir = b->folder, .run_id = "bench", .retention = {.keep_last = 1}};
    MX_TRY(mx_ckpt_new(&b->ckpt, &o));
    return mx_state_reserve(b->ckpt, b->session, &b->model, &b->at, NULL);
}

static void print(mx_invocation *inv, const bench *b)
{
    const mx_config *c = inv->config;
    bool given = mx_config_is_set(c, "checkpoint_period");
    double period = given ? (double)mx_config_int(c, "checkpoint_period") : 50;
    double mb = b->bytes / 1e6;
    mx_bench_print(inv, "state", mb, "MB");
    mx_bench_print(inv, "step", b->quiet, "s");
    mx_bench_print(inv, "a save keeps the loop", b->stall, "s");
    mx_bench_print(inv, "the same", b->stall / b->quiet, "steps");
    mx_bench_print(inv, "steps beside it take longer by", b->slower, "s");
    mx_bench_print(inv, "cost of saving", 100 * (b->stall + b->slower) / (period * b->quiet),
                   "% of wall time");
    mx_bench_print(inv, "durable write beside steps", mb / b->beside, "MB/s");
    mx_bench_print(inv, "durable write alone", mb / b->alone, "MB/s");
    mx_bench_print(inv, "raw write", mb / b->raw, "MB/s");
    mx_bench_print(inv, "durable write alone, of raw", 100 * b->raw / b->alone, "%");
}

static mx_status run(mx_invocation *inv)
{
    bench b = {0};
    mx_status st = open_all(&b, inv->config);
    if (!st)
        st = quiet_steps(&b);
    if (!st)
        st = saves_beside_steps(&b);
    if (!st)
        st = saves_alone(&b);
    if (!st)
        print(inv, &b);
    mx_ckpt_free(b.ckpt);
    if (b.folder)
        mx_status_free(mx_io_remove_tree(NULL, b.folder));
    mx_session_close(b.session);
    mx_step_close(&b.step);
    mx_model_spec_fini(&b.model);
    mx_arena_fini(&b.arena);
    return st;
}

const mx_bench mx_bench_save = {"save", "what saving costs a run, and the disk's rate", run};

/* bench_load.c - maxc bench load: weights from a cold disk to the device, against the disk itself.
 *
 *     maxc bench load model_name=llama-110m
 *     maxc bench load load_parameters_path=DIR device=cuda weight_dtype=bfloat16
 *
 * A checkpoint of random bfloat16 weights of the model is written below base_output_directory (and
 * removed afterwards), unless load_parameters_path names one. Then, in turns, so that both see the
 * same disk: the files are dropped from the page cache and the weights loaded, with every check
 * that a run makes; the files are dropped again and read raw, whole, past the page cache (O_DIRECT)
 * by READERS threads, PIECE bytes at a time. At last they are read through the page cache and the
 * weights loaded once more. Figures are medians; the time of a load begins with opening the files.
 */
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/io.h"
#include "models/from_config.h"
#include "store/weights.h"
#include "exec/step_config.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 3, READERS = 12, PIECE = 8 << 20, BLOCK = 4096 };

typedef struct {
    mx_model_spec model;
    mx_session *session;
    mx_step step;
    mx_arena arena;
    const char *path, *folder; /* of the checkpoint; what is removed, NULL: nothing */
    double bytes;              /* of all tensors */
    double load[ROUNDS], raw[ROUNDS], through, warm; /* seconds */
} bench;

static mx_status drop_cache(const bench *b)
{
    mx_hf_dir dir = {0};
    MX_TRY(mx_hf_dir_open(&dir, b->path, MX_HF_WEIGHTS_ONLY));
    mx_status st = MX_OK;
    for (int i = 0; i < dir.n_files && !st; i++)
        if (fsync(dir.files[i].fd) || posix_fadvise(dir.files[i].fd, 0, 0, POSIX_FADV_DONTNEED))
            st = mx_fail_errno(MX_DEVICE, "%s: cannot drop it from the page cache",
                               dir.files[i].path);
    mx_hf_dir_close(&dir);
    return st;
}

static mx_status load(bench *b, double *seconds)
{
    mx_hf_dir dir = {0};
    double start = mx_clock_now();
    MX_TRY(mx_hf_dir_open(&dir, b->path, MX_HF_ALL));
    mx_status st = mx_weights_load(b->session, &b->model, &dir, (mx_load_options){0});
    *seconds = mx_clock_now() - start;
    b->bytes = (double)dir.total_bytes;
    mx_hf_dir_close(&dir);
    return st;
}

/* --- the disk itself --- */

typedef struct {
    int fd;
    uint64_t at;
    size_t n;
    const char *path;
} part;

typedef struct {
    part *parts;
    int64_t n, cap;
    atomic_llong next, failed;
} reading;

static void *read_parts(void *arg)
{
    reading *r = arg;
    void *memory;
    mx_status st = mx_alloc(&memory, PIECE + BLOCK, "what is read");
    char *room = (char *)(((uintptr_t)memory + BLOCK - 1) / BLOCK * BLOCK);
    for (int64_t i; !st && (i = r->next++) < r->n;) {
        ssize_t got = pread(r->parts[i].fd, room, PIECE, (off_t)r->parts[i].at);
        if (got < (ssize_t)r->parts[i].n)
            st = mx_fail_errno(MX_DEVICE, "%s: byte %llu", r->parts[i].path,
                               (unsigned long long)r->parts[i].at);
    }
    r->failed += st != MX_OK;
    mx_status_free(st);
    mx_free(memory);
    return NULL;
}

static mx_status read_raw(const bench *b, bool direct, double *seconds)
{
    mx_hf_dir dir = {0};
    reading r = {0};
    MX_TRY(mx_hf_dir_open(&dir, b->path, MX_HF_WEIGHTS_ONLY));
    for (int i = 0; i < dir.n_files; i++) {
        mx_st_file *f = &dir.files[i];
        if (direct)
            mx_st_go_direct(f);
        for (uint64_t at = 0; at < f->size_bytes; at += PIECE) {
            uint64_t left = f->size_bytes - at;
            MX_GROW(r.parts, r.n, r.cap);
            r.parts[r.n++] = (part){direct && f->is_direct ? f->direct_fd : f->fd, at,
                                    left < PIECE ? (size_t)left : PIECE, f->path};
        }
    }
    pthread_t thread[READERS];
    int started = 0;
    double start = mx_clock_now();
    while (started < READERS && !pthread_create(&thread[started], NULL, read_parts, &r))
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    *seconds = mx_clock_now() - start;
    mx_free(r.parts);
    mx_hf_dir_close(&dir);
    return r.failed || !started ? mx_fail(MX_DEVICE, "%s: cannot read it whole", b->path) : MX_OK;
}

/* --- together --- */

static mx_status measure(bench *b)
{
    double first;
    MX_TRY(load(b, &first)); /* not counted: the device's first copies */
    for (int i = 0; i < ROUNDS; i++) {
        MX_TRY(drop_cache(b));
        MX_TRY(load(b, &b->load[i]));
        MX_TRY(drop_cache(b));
        MX_TRY(read_raw(b, true, &b->raw[i]));
    }
    MX_TRY(drop_cache(b));
    MX_TRY(read_raw(b, false, &b->through));
    return load(b, &b->warm);
}

static mx_status open_model(bench *b, const mx_config *c, const char *from)
{
    if (!*from)
        return mx_model_from_config(&b->model, c);
    mx_hf_dir dir = {0};
    MX_TRY(mx_hf_dir_open(&dir, from, MX_HF_CONFIG_ONLY));
    mx_status st = mx_model_from_checkpoint(&b->model, c, dir.config, from);
    mx_hf_dir_close(&dir);
    return st;
}

/* The weights of the model on the device, and on the disk. */
static mx_status open_all(bench *b, const mx_config *c)
{
    const char *from = mx_config_text(c, "load_parameters_path");
    const char *root = mx_config_text(c, "base_output_directory");
    mx_step_options o;
    MX_TRY(open_model(b, c, from));
    MX_TRY(mx_step_configure(&o, c, &b->model, MX_STEP_LOSS, 1, &b->arena));
    o.shape.packed = false;
    MX_TRY(mx_session_open(&b->session, mx_config_text(c, "device"),
                           (int)mx_config_int(c, "num_threads")));
    o.compile.n_threads = mx_session_threads(b->session);
    MX_TRY(mx_step_open(&b->step, b->session, &b->model, &o));
    b->path = from;
    if (*from)
        return MX_OK;
    MX_TRY(mx_session_init(b->session, 1));
    MX_TRY(mx_io_make_dir(NULL, root));
    b->folder = mx_arena_printf(&b->arena, "%s/bench-load-%d", root, (int)getpid());
    b->path = b->folder;
    return mx_weights_save(b->session, &b->model, b->folder, MX_BF16);
}

static void print(mx_invocation *inv, bench *b)
{
    double gb = b->bytes / 1e9, load = mx_bench_median(b->load, ROUNDS);
    double raw = mx_bench_median(b->raw, ROUNDS);
    mx_bench_print(inv, "checkpoint", gb, "GB");
    mx_bench_print(inv, "load from a cold disk", load, "s");
    mx_bench_print(inv, "the same", gb / load, "GB/s");
    mx_bench_print(inv, "raw read", gb / raw, "GB/s");
    mx_bench_print(inv, "load, of the raw read", 100 * raw / load, "%");
    mx_bench_print(inv, "slowest load, of the fastest raw read",
                   100 * b->raw[0] / b->load[ROUNDS - 1], "%");
    mx_bench_print(inv, "raw read through the page cache", gb / b->through, "GB/s");
    mx_bench_print(inv, "load from the page cache", gb / b->warm, "GB/s");
}

static mx_status run(mx_invocation *inv)
{
    bench b = {0};
    mx_status st = open_all(&b, inv->config);
    if (!st)
        st = measure(&b);
    if (!st)
        print(inv, &b);
    if (b.folder)
        mx_status_free(mx_io_remove_tree(NULL, b.folder));
    mx_session_close(b.session);
    mx_step_close(&b.step);
    mx_model_spec_fini(&b.model);
    mx_arena_fini(&b.arena);
    return st;
}

const mx_bench mx_bench_load = {"load", "weights from a cold disk, against the disk itself", run};

/* checkpoint.c - how fast a checkpoint becomes durable, against the disk itself, in one run.
 *
 *     checkpoint DIRECTORY [MiB of state, default 1280] [rounds, default 5]
 *
 * Each round writes the same number of bytes three times: raw (one file, 8 MiB writes, fsync), with
 * O_DIRECT and through the page cache, and as a checkpoint (weights a third, moments two thirds,
 * hashed, manifest, fsyncs and renames). The order alternates, since the disk has caches of its
 * own. Also: how long the caller was kept (the snapshot), and how fast the checkpoint is verified
 * and read.
 */
#include "base/arena.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/str.h"
#include "store/checkpoint.h"
#include "store/checkpoint_read.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { N_TENSORS = 30, PIECE = 8 << 20, MAX_ROUNDS = 100 };

static double raw_write(const char *path, const char *data, size_t n, bool direct)
{
    double began = mx_clock_now();
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0), 0644);
    if (fd < 0)
        return INFINITY; /* no O_DIRECT here */
    MX_ASSERT(fallocate(fd, 0, 0, (off_t)n) == 0 || !direct);
    for (size_t at = 0; at < n; at += PIECE) {
        size_t k = n - at < PIECE ? n - at : PIECE;
        mx_status st = mx_io_write_all(NULL, fd, data + at, k, path);
        MX_ASSERT(!st, "%s", mx_status_text(st));
        if (!direct)
            (void)mx_io_system.flush(NULL, fd, (off_t)at, (off_t)k);
    }
    MX_ASSERT(fsync(fd) == 0);
    close(fd);
    double took = mx_clock_now() - began;
    unlink(path);
    return took;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void fill(char *data, size_t n)
{
    for (size_t i = 0; i < n / 4; i++) {
        uint32_t x = (uint32_t)i * 2654435761u; /* not compressible, not NaN */
        x = (x & 0x807fffffu) | 0x3f000000u;
        memcpy(data + i * 4, &x, 4);
    }
}

typedef struct {
    mx_ckpt *c;
    mx_st_source t[N_TENSORS];
    char names[N_TENSORS][32];
    const char *raw_path;
    char *data; /* page-aligned */
    size_t total;
    double direct[MAX_ROUNDS], cached[MAX_ROUNDS], save[MAX_ROUNDS], stall[MAX_ROUNDS];
} bench;

static mx_status save_round(bench *b, int r)
{
    mx_ckpt_request q = {.step = r,
                         .metric = NAN,
                         .weights = b->t,
                         .n_weights = N_TENSORS / 3,
                         .optimizer = b->t + N_TENSORS / 3,
                         .n_optimizer = N_TENSORS * 2 / 3,
                         .state_json = "{}"};
    MX_TRY(mx_ckpt_save(b->c, &q));
    b->stall[r] = mx_ckpt_poll(b->c).last_stall_s;
    MX_TRY(mx_ckpt_wait(b->c));
    b->save[r] = mx_ckpt_poll(b->c).last_write_s;
    return MX_OK;
}

static mx_status run(bench *b, const char *dir, int rounds)
{
    for (int r = 0; r < rounds; r++) {
        for (int k = 0; k < 3; k++) {
            int what = (k + r) % 3;
            if (what == 0)
                b->direct[r] = raw_write(b->raw_path, b->data, b->total, true);
            else if (what == 1)
                b->cached[r] = raw_write(b->raw_path, b->data, b->total, false);
            else
                MX_TRY(save_round(b, r));
        }
        double mb = (double)b->total / 1e6;
        printf("round %d: raw direct %.0f MB/s, raw cached %.0f MB/s, checkpoint %.0f MB/s, "
               "snapshot %.3f s\n",
               r, mb / b->direct[r], mb / b->cached[r], mb / b->save[r], b->stall[r]);
    }
    char path[1024];
    snprintf(path, sizeof path, "%s/checkpoints/%d", dir, rounds - 1);
    double began = mx_clock_now(), mb = (double)b->total / 1e6;
    MX_TRY(mx_ckpt_verify(path, MX_CHECK_HASHES, 2));
    printf("verify: %.0f MB/s\n", mb / (mx_clock_now() - began));
    double direct = median(b->direct, rounds), cached = median(b->cached, rounds);
    double save = median(b->save, rounds), raw = direct < cached ? direct : cached;
    printf("median: raw direct %.0f MB/s, raw cached %.0f MB/s, checkpoint %.0f MB/s; ratio to the "
           "faster raw %.2f; caller kept %.3f s\n",
           mb / direct, mb / cached, mb / save, raw / save, median(b->stall, rounds));
    return MX_OK;
}

int main(int argc, char **argv)
{
    int64_t mib = 1280, rounds = 5;
    if (argc < 2 || (argc > 2 && !mx_parse_i64(argv[2], &mib)) ||
        (argc > 3 && !mx_parse_i64(argv[3], &rounds)) || rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: checkpoint DIRECTORY [MiB [rounds]]\n");
        return 2;
    }
    static bench b;
    size_t each = (size_t)(mib << 20) / N_TENSORS / 4096 * 4096;
    void *memory = NULL;
    char path[1024];
    mx_status st = MX_OK;
    b.total = each * N_TENSORS;
    b.raw_path = path;
    snprintf(path, sizeof path, "%s/raw.bin", argv[1]);
    MX_TRY_OUT(st, mx_alloc(&memory, b.total + 4096, "the state"));
    b.data = (char *)(((uintptr_t)memory + 4095) / 4096 * 4096);
    fill(b.data, b.total);
    for (int i = 0; i < N_TENSORS; i++) {
        snprintf(b.names[i], sizeof b.names[i], "tensor.%d", i);
        b.t[i] = (mx_st_source){.name = b.names[i],
                                .dtype = MX_ST_F32,
                                .ndim = 1,
                                .dim = {(int64_t)each / 4},
                                .data = b.data + each * (size_t)i};
    }
    mx_ckpt_opts o = {.run_dir = argv[1], .run_id = "bench", .retention = {.keep_last = 1}};
    MX_TRY_OUT(st, mx_ckpt_new(&b.c, &o));
    st = run(&b, argv[1], (int)rounds);
out:
    if (st)
        fprintf(stderr, "%s\n", mx_status_text(st));
    mx_ckpt_free(b.c);
    mx_free(memory);
    return (int)mx_status_code(st);
}

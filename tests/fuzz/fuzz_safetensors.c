/* fuzz_safetensors.c - any bytes as a safetensors file: opened, every tensor read, and every weight
 * that its tensors may stand for (quantized or not).
 *
 *     make MODE=fuzz build/fuzz/fuzz_safetensors
 *
 * The file lives in memory (memfd), so the whole reading path runs and no disk is touched.
 */
#include "store/quant.h"
#include "store/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_all(mx_st_file *f)
{
    float x[64];
    mx_st_scan scan = {0};
    for (int64_t i = 0; i < f->n_tensors; i++) {
        const mx_st_tensor *t = &f->tensors[i];
        /* Found under its name, and its bytes lie in the file. */
        if (!mx_st_find(f, t->name) || t->at + t->n_bytes > f->size_bytes)
            abort();
        int64_t k = t->n < 64 ? t->n : 64;
        mx_status_free(mx_st_read(t, t->n - k, k, MX_ST_F32, x, &scan));
        mx_status_free(mx_st_read(t, 0, k, MX_ST_I32, x, NULL));
    }
}

static void read_weights(mx_st_file *f)
{
    enum { MOST = 5000 };
    float x[MOST];
    mx_hf_dir d = {
        .path = "fuzz", .tensors = (const mx_st_tensor **)f->by_name, .n_tensors = f->n_tensors};
    mx_quant_set q;
    mx_status st = mx_quant_open(&q, &d);
    for (int64_t i = 0; !st && i < q.n_tensors; i++) {
        const mx_quant_tensor *t = &q.tensors[i];
        int64_t k = t->n < MOST ? t->n : MOST;
        mx_status_free(mx_quant_read(t, t->n - k, k, MX_ST_F32, x, NULL));
    }
    if (!st)
        mx_quant_close(&q);
    mx_status_free(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || (n && write(fd, data, n) != (ssize_t)n))
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    mx_st_file f;
    mx_status st = mx_st_open(&f, path);
    if (!st) {
        read_all(&f);
        read_weights(&f);
    }
    mx_st_close(&f);
    mx_status_free(st);
    close(fd);
    return 0;
}

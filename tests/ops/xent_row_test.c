/* xent_row_test.c - a row of logits as a sampler reduces it has the bits of the loss. */
#include "../test.h"
#include "base/rng.h"
#include "ops/cpu/xent_kernel.h"
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, DIM = 600, VOCAB = 2 * MX_XENT_TILE + 500 };

static void fill(float *x, int64_t n, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++) {
        mx_random4 r = mx_philox(7, stream, (uint64_t)i);
        x[i] = (float)(mx_uniform_f64(r.v[0], r.v[1]) - 0.5);
    }
}

MX_TEST(xent_rows_sampled_are_rows_trained)
{
    float *x = malloc(sizeof *x * ROWS * DIM), *w = malloc(sizeof *w * VOCAB * DIM);
    float *z = malloc(sizeof *z * VOCAB), *row = malloc(sizeof *row * VOCAB);
    fill(x, ROWS * DIM, 1);
    fill(w, VOCAB * DIM, 2);
    static const float scales[] = {1, 1 / 0.7f};
    static const int32_t labels[ROWS] = {0, MX_XENT_TILE + 3, VOCAB - 1};
    for (int s = 0; s < 2; s++) {
        float loss[ROWS], lse[ROWS];
        mx_xent c = {.n = ROWS, .dim = DIM, .vocab = VOCAB, .type = MX_NUM_F32, .x = x, .w = w,
                     .labels = labels, .scale = scales[s], .threads = 1};
        void *work = aligned_alloc(64, (mx_xent_work_bytes(&c, false) + 63) / 64 * 64);
        mx_xent_forward(&c, loss, lse, work);
        for (int i = 0; i < ROWS; i++) { /* one row at a time, as decoding may have it */
            mx_xent_row_facts f;
            mx_gemm(&(mx_gemm_args){.m = 1, .n = VOCAB, .k = DIM, .a = x + i * DIM, .lda = DIM,
                                    .b = w, .ldb = DIM, .trans_b = true, .c = z, .ldc = VOCAB,
                                    .a_type = MX_NUM_F32, .b_type = MX_NUM_F32,
                                    .c_type = MX_NUM_F32, .alpha = 1, .one_path = true,
                                    .threads = 1});
            for (int64_t k = 0; k < VOCAB; k++)
                row[k] = z[k] *= scales[s];
            mx_xent_row(row, VOCAB, &f);
            float own = -(float)(f.lse - (double)z[labels[i]]), want = -loss[i];
            MX_CHECK(memcmp(&own, &want, sizeof own) == 0, "row %d, scale %g: %.9g, the loss has "
                     "%.9g", i, (double)scales[s], (double)own, (double)want);
        }
        free(work);
    }
    free(x);
    free(w);
    free(z);
    free(row);
}

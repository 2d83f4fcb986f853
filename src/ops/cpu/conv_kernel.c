/* conv_kernel.c - see conv_kernel.h. A token is one row of channels; threads share out tokens in
 * the forward pass and for dx, and strips of channels for dw, where all tokens are summed. */
#include "ops/cpu/conv_kernel.h"

#include "base/simd.h"
#include "base/status.h"
#include "base/vmath.h"
#include <omp.h>
#include <string.h>

enum { STRIP = 128 }; /* channels of a piece of dw */

static const void *row_at(const mx_conv *c, const void *p, int64_t element)
{
    return (const char *)p + element * MX_NUM_BYTES(c->type);
}
static void *row_out(const mx_conv *c, void *p, int64_t element)
{
    return (char *)p + element * MX_NUM_BYTES(c->type);
}

/* Whether tokens t <= u of one batch entry lie in one segment (segments are runs of equal ids). */
static bool together(const mx_conv *c, int64_t b, int64_t t, int64_t u)
{
    return !c->segments || c->segments[b * c->len + t] == c->segments[b * c->len + u];
}

/* The input that token t reads at time s <= t: x, the state, or NULL for zero. */
static const void *input_at(const mx_conv *c, int64_t b, int64_t t, int64_t s)
{
    if (!together(c, b, s > 0 ? s : 0, t))
        return 0;
    if (s >= 0)
        return row_at(c, c->x, (b * c->len + s) * c->channels);
    return c->state ? row_at(c, c->state, (b * (c->taps - 1) + c->taps - 1 + s) * c->channels) : 0;
}

#define NAME(x) x##_f32
#define T float
#include "ops/cpu/conv_rows.inc"

#define NAME(x) x##_f64
#define T double
#include "ops/cpu/conv_rows.inc"

static int thread_count(const mx_conv *c)
{
    return mx_kernel_threads(c->threads);
}

/* One row of channels, rounded up to cache lines so that threads do not share one. */
static size_t row_bytes(const mx_conv *c)
{
    size_t t = c->type == MX_NUM_F64 ? sizeof(double) : sizeof(float);
    return ((size_t)c->channels * t + 63) / 64 * 64;
}

size_t mx_conv_work_bytes(const mx_conv *c)
{
    return row_bytes(c) * (size_t)(c->taps + thread_count(c));
}

static void check(const mx_conv *c)
{
    MX_ASSERT(c->taps >= 1 && c->taps <= MX_CONV_MAX_TAPS, "taps=%d", c->taps);
}

static void transpose_weights(const mx_conv *c, void *wt)
{
    if (c->type == MX_NUM_F64)
        transpose_f64(c, wt);
    else
        transpose_f32(c, wt);
}

/* The last K-1 inputs; read in the order of writing, so the state may be replaced in place. */
static void next_state(const mx_conv *c, void *new_state)
{
    int64_t keep = c->taps - 1, n = c->channels;
    size_t bytes = (size_t)(n * MX_NUM_BYTES(c->type));
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t r = 0; r < keep; r++) {
            int64_t t = c->len - keep + r; /* its time; negative: in the old state */
            void *dst = row_out(c, new_state, (b * keep + r) * n);
            if (t >= 0)
                memcpy(dst, row_at(c, c->x, (b * c->len + t) * n), bytes);
            else if (c->state)
                memmove(dst, row_at(c, c->state, (b * keep + keep + t) * n), bytes);
            else
                memset(dst, 0, bytes);
        }
}

void mx_conv_forward(const mx_conv *c, void *y, void *new_state, void *work)
{
    check(c);
    size_t row = row_bytes(c);
    int threads = c->len == 1 && c->batch == 1 ? 1 : thread_count(c);
    if (!c->transposed)
        transpose_weights(c, work);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < c->batch * c->len; i++) {
        void *acc = (char *)work + row * (size_t)(c->taps + omp_get_thread_num());
        if (c->type == MX_NUM_F64)
            forward_f64(c, work, i / c->len, i % c->len, y, acc);
        else
            forward_f32(c, work, i / c->len, i % c->len, y, acc);
    }
    if (new_state)
        next_state(c, new_state);
}

static void backward_x(const mx_conv *c, const void *dy, void *dx, char *work, int threads)
{
    size_t row = row_bytes(c);
    transpose_weights(c, work);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < c->batch * c->len; i++) {
        void *acc = work + row * (size_t)(c->taps + omp_get_thread_num());
        if (c->type == MX_NUM_F64)
            backward_x_f64(c, (double *)(void *)work, i / c->len, i % c->len, dy, dx, acc);
        else
            backward_x_f32(c, (float *)(void *)work, i / c->len, i % c->len, dy, dx, acc);
    }
}

void mx_conv_backward(const mx_conv *c, const void *dy, void *dx, void *dw, void *dbias, void *work)
{
    check(c);
    int threads = thread_count(c);
    if (dx)
        backward_x(c, dy, dx, work, threads);
    if (!dw && !dbias)
        return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t s = 0; s < c->channels; s += STRIP) {
        int64_t n = c->channels - s < STRIP ? c->channels - s : STRIP;
        if (c->type == MX_NUM_F64)
            backward_w_f64(c, dy, s, n, dw, dbias);
        else
            backward_w_f32(c, dy, s, n, dw, dbias);
    }
}

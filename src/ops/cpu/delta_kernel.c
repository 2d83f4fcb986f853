/* delta_kernel.c - shares the heads of the gated delta rule out to threads; see delta_chunk.inc. */
#include "ops/cpu/delta_kernel.h"

#include "base/simd.h"
#include "base/status.h"
#include "base/vmath.h"
#include <math.h>
#include <omp.h>
#include <string.h>

/* A chunk: batch entry, value head, first token. */
typedef struct {
    int64_t b, h, t0;
} place;

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* The next `bytes` of the workspace, 64-byte aligned. */
static void *take(char **work, size_t bytes)
{
    void *p = *work;
    *work += round_up(bytes);
    return p;
}

static const void *at_row(const void *p, int64_t element, mx_num type)
{
    return (const char *)p + element * MX_NUM_BYTES(type);
}
static void *out_row(void *p, int64_t element, mx_num type)
{
    return (char *)p + element * MX_NUM_BYTES(type);
}

#define NAME(x) x##_f32
#define T float
#define NUM MX_NUM_F32
#define EXP(x) mx_vexpf(x)
#include "ops/cpu/delta_chunk.inc"

#define NAME(x) x##_f64
#define T double
#define NUM MX_NUM_F64
#define EXP(x) exp(x)
#include "ops/cpu/delta_chunk.inc"

static int thread_count(const mx_delta *d)
{
    return mx_kernel_threads(d->threads);
}

/* Of one thread, in the order chunk_init takes it. */
static size_t chunk_bytes(const mx_delta *d, size_t t, bool backward)
{
    size_t c = (size_t)d->chunk, kd = round_up(t * c * (size_t)d->k_dim);
    size_t vd = round_up(t * c * (size_t)d->v_dim), cc = round_up(t * c * c);
    return 2 * kd + 4 * vd + 3 * cc + (backward ? 2 * kd + 3 * vd + 2 * cc : 0);
}

static size_t forward_thread_bytes(const mx_delta *d)
{
    size_t t = d->type == MX_NUM_F64 ? sizeof(double) : sizeof(float);
    return round_up(t * (size_t)(d->k_dim * d->v_dim)) + chunk_bytes(d, t, false);
}

static size_t backward_thread_bytes(const mx_delta *d)
{
    size_t t = d->type == MX_NUM_F64 ? sizeof(double) : sizeof(float);
    int64_t size = d->k_dim * d->v_dim, chunks = (d->len + d->chunk - 1) / d->chunk;
    return 2 * round_up(t * (size_t)(d->len * d->k_dim))
           + round_up(t * (size_t)(chunks * size)) + round_up(t * (size_t)size)
           + 2 * round_up(t * (size_t)(d->len * d->v_dim)) + chunk_bytes(d, t, true);
}

static void check(const mx_delta *d)
{
    MX_ASSERT(d->chunk >= 1 && d->chunk <= MX_DELTA_MAX_CHUNK, "chunk=%d", d->chunk);
    MX_ASSERT(d->k_heads > 0 && d->v_heads % d->k_heads == 0, "%ld value heads, %ld key heads",
              (long)d->v_heads, (long)d->k_heads);
}

size_t mx_delta_forward_work_bytes(const mx_delta *d)
{
    return forward_thread_bytes(d) * (size_t)thread_count(d);
}

void mx_delta_forward(const mx_delta *d, void *out, void *final_state, void *work)
{
    check(d);
    size_t each = forward_thread_bytes(d);
    int threads = thread_count(d);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < d->batch * d->v_heads; i++) {
        char *w = (char *)work + each * (size_t)omp_get_thread_num();
        if (d->type == MX_NUM_F64)
            forward_head_f64(d, i / d->v_heads, i % d->v_heads, out, final_state, w);
        else
            forward_head_f32(d, i / d->v_heads, i % d->v_heads, out, final_state, w);
    }
}

size_t mx_delta_backward_work_bytes(const mx_delta *d)
{
    return backward_thread_bytes(d) * (size_t)thread_count(d);
}

void mx_delta_backward(const mx_delta *d, const mx_delta_grads *g, void *work)
{
    check(d);
    size_t each = backward_thread_bytes(d);
    int threads = thread_count(d);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < d->batch * d->k_heads; i++) {
        char *w = (char *)work + each * (size_t)omp_get_thread_num();
        if (d->type == MX_NUM_F64)
            backward_group_f64(d, g, i / d->k_heads, i % d->k_heads, w);
        else
            backward_group_f32(d, g, i / d->k_heads, i % d->k_heads, w);
    }
}

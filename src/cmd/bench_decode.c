/* bench_decode.c - maxc bench decode: one sequence at a time, against the memory-bandwidth bound.
 *
 *     maxc bench decode model_name=llama-110m dtype=bfloat16 max_target_length=2048
 * Every new token reads every weight once, and of the cache what the tokens before it filled; the
 * bound is those bytes over the machine's bandwidth. That is measured before and after, the better
 * counts, with a buffer much larger than the caches on all threads, in two ways: copied, bytes read
 * and bytes written, as is usual; and only read, which is stricter. 64 tokens are timed, the last
 * that the cache (max_target_length, 128 by default) has room for; the ones before are a prompt.
 */
#include "exec/quant_config.h"
#include "cmd/bench.h"

#include "base/simd.h"
#include "infer/decode.h"
#include "models/from_config.h"
#include "exec/step_config.h"
#include <omp.h>
#include <string.h>

enum { TOKENS = 64, WARM = 4 };

/* 128 sums at once: enough that the loads, not the additions, take the time. */
MX_CLONES static float add_up(const float *x, size_t n)
{
    float sum[128] = {0}, all = 0;
    for (size_t i = 0; i + 128 <= n; i += 128)
        for (int k = 0; k < 128; k++)
            sum[k] += x[i + (size_t)k];
    for (int k = 0; k < 128; k++)
        all += sum[k];
    return all;
}

typedef struct {
    double read, copy; /* bytes a second */
} bandwidth;

static double faster(double best, size_t bytes, double start)
{
    double rate = (double)bytes / (omp_get_wtime() - start);
    return rate > best ? rate : best;
}

/* Best of a few passes over 512 MiB, every thread its part: read and added up, half copied to the
 * other half. */
static mx_status measure(bandwidth *b)
{
    enum { PARTS = 1 << 10 };
    size_t n = (size_t)128 << 20, part = n / PARTS;
    float *x = NULL;
    volatile float sink = 0;
    MX_TRY(mx_alloc((void **)&x, n * sizeof *x, "the bandwidth test"));
    for (size_t i = 0; i < n; i += 512) /* pages that nobody wrote to are one page, in the cache */
        x[i] = 1;
    for (int again = 0; again < 8; again++) {
        double start = omp_get_wtime();
        float sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static)
        for (int i = 0; i < PARTS; i++)
            sum += add_up(x + (size_t)i * part, part);
        b->read = faster(b->read, n * sizeof *x, start);
        sink = sink + sum;
        start = omp_get_wtime();
#pragma omp parallel for schedule(static)
        for (int i = 0; i < PARTS / 2; i++)
            memcpy(x + n / 2 + (size_t)i * part, x + (size_t)i * part, part * sizeof *x);
        b->copy = faster(b->copy, n * sizeof *x, start);
    }
    mx_free(x);
    return MX_OK;
}

/* Bytes of weights one token reads: all but the embedding's other rows, in the compute dtype. */
static double weight_bytes(mx_session *s, mx_dtype compute, int64_t vocab, bool tied)
{
    double bytes = 0;
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i);
        bool embedding = !tied && v->type.ndim == 2 && v->type.dim[0] == vocab &&
                         strstr(v->name, "embed");
        if (mx_ends_with(v->name, MX_CODE_SCALES))
            bytes += (double)mx_type_bytes(&v->type);
        if (v->attr.kind == MX_VAR_WEIGHT && !embedding)
            bytes += (double)mx_type_count(&v->type) *
                     (double)mx_dtype_bytes(v->attr.quantized ? v->type.dtype : compute);
    }
    return bytes;
}

/* Keys and values of `length` tokens; a layer with a window keeps no more than that. */
static double cache_bytes(mx_session *s, int64_t length)
{
    double bytes = 0;
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i);
        if (v->attr.kind != MX_VAR_CACHE || v->type.ndim < 3)
            continue;
        double share = (double)length / (double)v->type.dim[1];
        bytes += (double)mx_type_bytes(&v->type) * (share < 1 ? share : 1);
    }
    return bytes;
}

static mx_status feed_prompt(mx_decode *d, int64_t n)
{
    int32_t *ids = NULL;
    MX_TRY(mx_alloc((void **)&ids, sizeof *ids * (size_t)n, "a prompt"));
    mx_status st = mx_decode_feed(d, (const int32_t *const[]){ids}, &n);
    mx_free(ids);
    return st;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    mx_model_spec m = {0};
    mx_session *s = NULL;
    mx_decode *d = NULL;
    mx_status st;
    bandwidth top = {0};
    double start;
    int32_t token = 1;
    int64_t length = mx_config_is_set(c, "max_target_length")
                         ? mx_config_int(c, "max_target_length") : 2 * TOKENS;
    length = length > TOKENS + WARM ? length : TOKENS + WARM + 1;
    mx_decode_settings o = {.batch = 1, .max_length = length, .compile = {.weights_fixed = true}};
    MX_TRY_OUT(st, mx_model_from_config(&m, c));
    MX_TRY_OUT(st, mx_compute_dtype(c, NULL, &o.compile.compute));
    o.compile.dump_ir = mx_config_text(c, "dump_ir");
    MX_TRY_OUT(st, mx_weight_quant_configure(&o.compile.quant, c, NULL));
    MX_TRY_OUT(st, mx_session_open(&s, mx_config_text(c, "device"),
                                   (int)mx_config_int(c, "num_threads")));
    MX_TRY_OUT(st, mx_decode_open(&d, s, &m, &o));
    MX_TRY_OUT(st, mx_session_init(s, 1));
    MX_TRY_OUT(st, feed_prompt(d, length - TOKENS - WARM));
    for (int i = 0; i < WARM; i++)
        MX_TRY_OUT(st, mx_decode_feed(d, (const int32_t *const[]){&token}, &(int64_t){1}));
    if (mx_session_traits(s)->host_memory)
        MX_TRY_OUT(st, measure(&top));
    start = omp_get_wtime();
    for (int i = 0; i < TOKENS; i++)
        MX_TRY_OUT(st, mx_decode_feed(d, (const int32_t *const[]){&token}, &(int64_t){1}));
    double each = (omp_get_wtime() - start) / TOKENS;
    if (mx_session_traits(s)->host_memory)
        MX_TRY_OUT(st, measure(&top));
    double bytes = weight_bytes(s, o.compile.compute, m.summary.vocab, m.summary.tied);
    double cache = cache_bytes(s, length - TOKENS / 2);
    mx_bench_print(inv, "tokens per second", 1 / each, "tokens/s");
    mx_bench_print(inv, "bytes of weights per token", bytes / 1e6, "MB");
    mx_bench_print(inv, "bytes of cache per token", cache / 1e6, "MB");
    bytes += cache;
    mx_bench_print(inv, "read by a token, a second", bytes / each / 1e9, "GB/s");
    if (mx_session_traits(s)->host_memory) { /* the bandwidth is that of the host's memory */
        mx_bench_print(inv, "copy bandwidth", top.copy / 1e9, "GB/s");
        mx_bench_print(inv, "share of the bandwidth bound", 100 * bytes / top.copy / each, "%");
        mx_bench_print(inv, "read bandwidth", top.read / 1e9, "GB/s");
        mx_bench_print(inv, "share of the bound by reading", 100 * bytes / top.read / each, "%");
    }
out:
    mx_decode_close(d);
    mx_session_close(s);
    mx_model_spec_fini(&m);
    return st;
}

const mx_bench mx_bench_decode = {"decode", "one sequence against the bandwidth bound", run};

/* bench_decode.c - maxc bench decode: one sequence at a time, against the memory-bandwidth bound.
 *
 * Every new token reads every weight and the cache once; the bound is those bytes over the
 * machine's read bandwidth, measured in the same run by summing a buffer much larger than the
 * caches on all threads.
 */
#include "cmd/bench.h"

#include "infer/decode.h"
#include "models/from_config.h"
#include "train/step_config.h"
#include <omp.h>
#include <string.h>

enum { TOKENS = 64 };

/* Best of a few passes of reading and adding up 512 MiB. */
static mx_status read_bandwidth(double *best)
{
    size_t n = (size_t)64 << 20; /* doubles */
    double *x = NULL;
    volatile double sink = 0;
    MX_TRY(mx_alloc((void **)&x, n * sizeof *x, "the bandwidth test"));
    *best = 0;
    for (int again = 0; again < 6; again++) {
        double sum = 0, start = omp_get_wtime();
#pragma omp parallel for simd reduction(+ : sum) schedule(static)
        for (size_t i = 0; i < n; i++)
            sum += x[i];
        double rate = (double)(n * sizeof *x) / (omp_get_wtime() - start);
        sink = sink + sum;
        *best = rate > *best ? rate : *best;
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
        if (v->attr.kind == MX_VAR_WEIGHT && !embedding)
            bytes += (double)mx_type_count(&v->type) * (double)mx_dtype_bytes(compute);
    }
    return bytes;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    mx_model_spec m = {0};
    mx_session *s = NULL;
    mx_decode *d = NULL;
    mx_status st;
    double bandwidth = 0, start;
    int32_t token = 1;
    mx_decode_settings o = {.batch = 1, .max_length = 4 + 2 * TOKENS, .prompt_hint = 4};
    MX_TRY_OUT(st, mx_model_from_config(&m, c));
    mx_dtype_parse(mx_config_text(c, "dtype"), &o.compile.compute);
    MX_TRY_OUT(st, mx_session_open(&s, mx_device_name(c), (int)mx_config_int(c, "num_threads")));
    MX_TRY_OUT(st, mx_decode_open(&d, s, &m, &o));
    MX_TRY_OUT(st, mx_session_init(s, 1));
    for (int i = 0; i < 4; i++)
        MX_TRY_OUT(st, mx_decode_feed(d, (const int32_t *const[]){&token}, &(int64_t){1}));
    MX_TRY_OUT(st, read_bandwidth(&bandwidth));
    start = omp_get_wtime();
    for (int i = 0; i < TOKENS; i++)
        MX_TRY_OUT(st, mx_decode_feed(d, (const int32_t *const[]){&token}, &(int64_t){1}));
    double each = (omp_get_wtime() - start) / TOKENS;
    double bytes = weight_bytes(s, o.compile.compute, m.summary.vocab, m.summary.tied);
    mx_bench_print(inv, "tokens per second", 1 / each, "tokens/s");
    mx_bench_print(inv, "bytes of weights per token", bytes / 1e6, "MB");
    mx_bench_print(inv, "read bandwidth", bandwidth / 1e9, "GB/s");
    mx_bench_print(inv, "share of the bandwidth bound", 100 * bytes / bandwidth / each, "%");
out:
    mx_decode_close(d);
    mx_session_close(s);
    mx_model_spec_fini(&m);
    return st;
}

const mx_bench mx_bench_decode = {"decode", "one sequence against the bandwidth bound", run};

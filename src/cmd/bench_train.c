/* bench_train.c - maxc bench train: a training step of a model on this machine, against its own
 * peak.
 *
 *     maxc bench train model_name=gpt2-124m dtype=float32 per_device_batch_size=4
 *     max_target_length=512 steps=5
 * Random weights and tokens; next-token loss over the full vocabulary, gradients of everything,
 * clip, AdamW. The median step is reported, beside the peak of multiply-adds measured before and
 * after it in the same run.
 */
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/rng.h"
#include "device/cpu/peak.h"
#include "models/from_config.h"
#include "exec/step_config.h"
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_STEPS = 1000 };

/* Of all threads. With one thread, what a step takes whatever else the machine does. */
static double cpu_seconds(void)
{
    return mx_clock_of(CLOCK_PROCESS_CPUTIME_ID);
}

static mx_status feed(mx_step *step, const mx_step_options *o, int64_t vocab)
{
    int64_t n = o->shape.batch * o->shape.seq;
    int32_t *ids = NULL;
    float scale = 1.0f / (float)n, lr = 1e-4f, number = 1;
    MX_TRY(mx_alloc((void **)&ids, sizeof *ids * (size_t)n, "tokens"));
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)(mx_philox(1, 0, (uint64_t)i).v[0] % (uint32_t)vocab);
    mx_status st = mx_exec_write(step->exec, "tokens", ids);
    if (!st)
        st = mx_exec_write(step->exec, "labels", ids);
    if (!st)
        st = mx_exec_write(step->exec, "loss_scale", &scale);
    if (!st)
        st = mx_exec_write(step->exec, "lr", &lr);
    if (!st)
        st = mx_exec_write(step->exec, "step", &number);
    mx_free(ids);
    return st;
}

static mx_status measure(mx_invocation *inv, mx_step *step, const mx_step_options *o, int threads)
{
    int64_t steps = mx_config_int(inv->config, "steps");
    steps = mx_config_is_set(inv->config, "steps") && steps <= MAX_STEPS ? steps : 5;
    double each[MAX_STEPS], cpu[MAX_STEPS], peak = mx_cpu_peak_flops(threads);
    float loss;
    for (int64_t i = -1; i < steps; i++) { /* the first one is not counted */
        double start = mx_clock_now(), used = cpu_seconds();
        MX_TRY(mx_exec_run(step->exec));
        MX_TRY(mx_exec_read(step->exec, "loss", &loss));
        if (i >= 0) {
            each[i] = mx_clock_now() - start;
            cpu[i] = cpu_seconds() - used;
        }
    }
    double again = mx_cpu_peak_flops(threads);
    peak = again > peak ? again : peak;
    double t = mx_bench_median(each, (int)steps), flops = step->program.bytes.flops;
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    mx_bench_print(inv, "step", t, "s");
    mx_bench_print(inv, "tokens per second", (double)(o->shape.batch * o->shape.seq) / t,
                   "tokens/s");
    mx_bench_print(inv, "CPU time of a step", mx_bench_median(cpu, (int)steps), "s");
    mx_bench_print(inv, "rate", flops / t / 1e9, "GFLOP/s");
    mx_bench_print(inv, "float32 multiply-add peak", peak / 1e9, "GFLOP/s");
    mx_bench_print(inv, "share of that peak", 100 * flops / t / peak, "%");
    mx_bench_print(inv, "memory in use", (double)use.ru_maxrss / 1024, "MiB");
    return MX_OK;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    mx_model_spec m = {0};
    mx_session *session = NULL;
    mx_step step = {0};
    mx_arena arena = {0};
    mx_step_options o;
    mx_status st;
    double planned = 0;
    MX_TRY_OUT(st, mx_model_from_config(&m, c));
    MX_TRY_OUT(st, mx_step_configure(&o, c, &m, MX_STEP_TRAIN,
                                     (int64_t)mx_config_float(c, "per_device_batch_size"), &arena));
    o.shape.packed = false;
    if (!mx_config_is_set(c, "remat_policy"))
        o.compile.remat.policy = "none";
    MX_TRY_OUT(st, mx_session_open(&session, mx_config_text(c, "device"),
                                   (int)mx_config_int(c, "num_threads")));
    o.compile.n_threads = mx_session_threads(session);
    MX_TRY_OUT(st, mx_step_open(&step, session, &m, &o));
    MX_TRY_OUT(st, mx_session_init(session, 1));
    MX_TRY_OUT(st, feed(&step, &o, m.summary.vocab));
    for (int i = 0; i < mx_session_count(session); i++)
        planned += (double)mx_type_bytes(&mx_session_var(session, i)->type);
    mx_bench_print(inv, "memory planned",
                   (planned + (double)step.program.scratch_bytes) / (1 << 20), "MiB");
    st = measure(inv, &step, &o, mx_session_threads(session));
out:
    mx_session_close(session);
    mx_step_close(&step);
    mx_model_spec_fini(&m);
    mx_arena_fini(&arena);
    return st;
}

const mx_bench mx_bench_train = {"train", "a training step against the machine's peak", run};

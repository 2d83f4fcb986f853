/* bench_train.c - maxc bench train: a training step of a model on this machine, against its own
 * peak.
 *
 *     maxc bench train model_name=gpt2-124m dtype=float32 per_device_batch_size=4
 *     max_target_length=512 steps=5
 * Random weights and tokens; next-token loss over the full vocabulary, gradients of everything,
 * clip, AdamW. The median step is reported, beside the peak of multiply-adds measured before and
 * after it in the same run. With mesh=... the virtual ranks of a mesh make the step together.
 */
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/threads.h"
#include "device/cpu/peak.h"
#include "models/from_config.h"
#include "exec/step_config.h"
#include "exec/virtual_ranks.h"
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

/* What all ranks measure; rank 0 writes it down. */
typedef struct {
    const mx_invocation *inv;
    const mx_model_spec *m;
    mx_step_options o; /* of one device; its batch is that of all ranks */
    int64_t steps;
    double each[MAX_STEPS], cpu[MAX_STEPS];
    double planned, flops; /* of a rank: bytes; FLOPs of a step */
} measured;

static mx_status feed(mx_step *step, const measured *r)
{
    int64_t n = r->o.shape.batch * r->o.shape.seq, vocab = r->m->summary.vocab;
    int32_t *ids = NULL;
    float scale = 1.0f / (float)n, lr = 1e-4f, number = 1;
    MX_TRY(mx_alloc((void **)&ids, sizeof *ids * (size_t)n, "tokens"));
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)(mx_philox(1, 0, (uint64_t)i).v[0] % (uint32_t)vocab);
    mx_status st = mx_exec_write_whole(step->exec, "tokens", ids);
    if (!st)
        st = mx_exec_write_whole(step->exec, "labels", ids);
    if (!st)
        st = mx_exec_write(step->exec, "loss_scale", &scale);
    if (!st)
        st = mx_exec_write(step->exec, "lr", &lr);
    if (!st)
        st = mx_exec_write(step->exec, "step", &number);
    mx_free(ids);
    return st;
}

static mx_status time_steps(measured *r, mx_step *step, bool writes)
{
    float loss;
    for (int64_t i = -1; i < r->steps; i++) { /* the first one is not counted */
        double start = mx_clock_now(), used = cpu_seconds();
        MX_TRY(mx_exec_run(step->exec));
        MX_TRY(mx_exec_read(step->exec, "loss", &loss));
        if (i >= 0 && writes) {
            r->each[i] = mx_clock_now() - start;
            r->cpu[i] = cpu_seconds() - used;
        }
    }
    return MX_OK;
}

/* mesh_rank: NULL where one device does it all. */
static mx_status measure(void *ctx, const mx_mesh_rank *mesh_rank)
{
    measured *r = ctx;
    const mx_config *c = r->inv->config;
    bool writes = !mesh_rank || mesh_rank->rank == 0;
    mx_session *session = NULL;
    mx_step step = {0};
    mx_step_options o = r->o;
    mx_status st;
    if (mesh_rank)
        o.compile.partition = &mesh_rank->how;
    MX_TRY(mx_mesh_rank_session(&session, mesh_rank, mx_config_text(c, "device"),
                                (int)mx_config_int(c, "num_threads")));
    o.compile.n_threads = mx_session_threads(session);
    MX_TRY_OUT(st, mx_step_open(&step, session, r->m, &o));
    MX_TRY_OUT(st, mx_session_init(session, 1));
    MX_TRY_OUT(st, feed(&step, r));
    if (writes) {
        r->planned = (double)step.program.scratch_bytes;
        for (int i = 0; i < mx_session_count(session); i++)
            r->planned += (double)mx_type_bytes(&mx_session_var(session, i)->type);
        r->flops = step.program.bytes.flops;
    }
    st = time_steps(r, &step, writes);
out:
    mx_session_close(session);
    mx_step_close(&step);
    return st;
}

static void print(measured *r, int ranks, double peak)
{
    const mx_invocation *inv = r->inv;
    double t = mx_bench_median(r->each, (int)r->steps), flops = r->flops * ranks;
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    mx_bench_print(inv, ranks > 1 ? "memory planned of a rank" : "memory planned",
                   r->planned / (1 << 20), "MiB");
    mx_bench_print(inv, "step", t, "s");
    mx_bench_print(inv, "tokens per second", (double)(r->o.shape.batch * r->o.shape.seq) / t,
                   "tokens/s");
    mx_bench_print(inv, "CPU time of a step", mx_bench_median(r->cpu, (int)r->steps), "s");
    mx_bench_print(inv, "rate", flops / t / 1e9, "GFLOP/s");
    mx_bench_print(inv, "float32 multiply-add peak", peak / 1e9, "GFLOP/s");
    mx_bench_print(inv, "share of that peak", 100 * flops / t / peak, "%");
    mx_bench_print(inv, "memory in use", (double)use.ru_maxrss / 1024, "MiB");
}

static mx_status configure(measured *r, const mx_mesh_plan *mesh, mx_arena *a)
{
    const mx_config *c = r->inv->config;
    double rows = mx_config_float(c, "per_device_batch_size") * mesh->ranks;
    MX_TRY(mx_step_configure(&r->o, c, r->m, MX_STEP_TRAIN, (int64_t)rows, a));
    r->o.shape.packed = false;
    if (!mx_config_is_set(c, "remat_policy"))
        r->o.compile.remat.policy = "none";
    r->steps = mx_config_int(c, "steps");
    r->steps = mx_config_is_set(c, "steps") && r->steps <= MAX_STEPS ? r->steps : 5;
    return MX_OK;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    mx_model_spec m = {0};
    mx_mesh_plan mesh = {0};
    mx_arena arena = {0};
    measured *r = MX_NEW(&arena, measured);
    int asked = (int)mx_config_int(c, "num_threads");
    int threads = asked > 0 ? asked : mx_threads_offered();
    mx_status st;
    double before, after;
    *r = (measured){.inv = inv, .m = &m};
    MX_TRY_OUT(st, mx_model_from_config(&m, c));
    MX_TRY_OUT(st, mx_mesh_configure(&mesh, c, 1));
    MX_TRY_OUT(st, mx_mesh_without_stages(&mesh, "`maxc bench train`"));
    MX_TRY_OUT(st, configure(r, &mesh, &arena));
    before = mx_cpu_peak_flops(threads);
    if (mesh.ranks > 1)
        MX_TRY_OUT(st, mx_virtual_ranks(&mesh, threads, measure, r));
    else
        MX_TRY_OUT(st, measure(r, NULL));
    after = mx_cpu_peak_flops(threads);
    print(r, mesh.ranks, after > before ? after : before);
out:
    mx_mesh_plan_fini(&mesh);
    mx_model_spec_fini(&m);
    mx_arena_fini(&arena);
    return st;
}

const mx_bench mx_bench_train = {"train", "a training step against the machine's peak", run,
                                 .meshes = true};

/* program.c - a program on the GPU: ops are bound to their CUDA sides and run as one CUDA graph.
 *
 * The first run of a program launches its ops one by one, which lets libraries set up what they
 * need; then the same launches are captured, and every later run is one graph launch. A program
 * with an op that falls back to the CPU, or with a collective, is never captured.
 */
#include "device/cuda/core/context.h"
#include "device/cuda/core/kernels.h"

#include "base/arena.h"
#include "base/clock.h"
#include "device/cuda/ranks/comm_stream.h"
#include "device/cuda/ranks/group.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A step of a program with its CUDA side. */
typedef struct {
    const mx_cuda_op *op; /* NULL: the CPU kernel on copies */
    void *state;
    int together; /* steps from this one on that are launched at once; 0 or 1: alone */
    const mx_cuda_chain *chain; /* that launches them; NULL: the op itself */
} bound;

typedef struct {
    bound *step;
    int n, n_fallback, runs;
    mx_process_group *group; /* of one of its collectives, which are never captured; NULL: none */
    bool aside;              /* collectives have a stream of their own (comm_stream.h) */
    cudaGraphExec_t graph;   /* NULL: not captured yet */
} program;

static const mx_cuda_op *find_op(const mx_exec_step *s)
{
    for (int i = 0; mx_cuda_op_table[i]; i++) {
        const mx_cuda_op *op = mx_cuda_op_table[i];
        if (strcmp(op->op, s->op->name) == 0 && (!op->takes || op->takes(s)))
            return op;
    }
    return NULL;
}

void mx_cuda_program_forget(mx_device *d, void *state)
{
    program *p = state;
    mx_status_free(mx_cuda_wait(mx_cuda_of(d), NULL));
    if (p && p->graph)
        cudaGraphExecDestroy(p->graph);
    if (p)
        p->graph = NULL;
}

void mx_cuda_program_drop(mx_device *d, void *state)
{
    program *p = state;
    if (!p)
        return;
    mx_cuda_program_forget(d, p);
    for (int i = 0; i < p->n; i++) {
        if (p->step[i].op && p->step[i].op->drop)
            p->step[i].op->drop(mx_cuda_of(d), p->step[i].state);
        else
            mx_free(p->step[i].state);
    }
    mx_free(p->step);
    mx_free(p);
}

/* Collectives beside others have the end of the workspace. */
static size_t work_room(const mx_exec *e, int i)
{
    size_t at = e->program->beside_at;
    return e->step[i].beside ? e->work_bytes - at : at;
}

static const mx_cuda_chain *const chains[] = {&mx_cuda_chain_swiglu, &mx_cuda_chain_rope};
enum { N_CHAINS = sizeof chains / sizeof *chains };

/* A chain that begins at step i, and how many steps it has; else 0. Each of them has its CUDA side
 * and no part in a collective. */
static int find_chain(const mx_exec *e, program *p, int i)
{
    enum { MOST = 8 };
    int n = 0, found = 0;
    while (n < MOST && i + n < p->n && p->step[i + n].op && !e->step[i + n].call.group &&
           !e->step[i + n].beside)
        n++;
    for (int k = 0; k < N_CHAINS && !found; k++) {
        p->step[i].chain = chains[k];
        found = chains[k]->match(&e->step[i], n);
    }
    p->step[i].chain = found ? p->step[i].chain : NULL;
    return found;
}

/* Finds which neighbours go together. What any launch needs was planned. */
static void gather(mx_exec *e, program *p, const size_t *need)
{
    enum { MOST = 256 };
    for (int i = 0, n; i < p->n; i += n) {
        const mx_cuda_op *op = p->step[i].op;
        void *state[MOST];
        size_t sum = 0;
        for (n = 0; op && n < MOST && i + n < p->n && p->step[i + n].op == op; n++)
            state[n] = p->step[i + n].state;
        int chained = find_chain(e, p, i);
        n = chained ? chained : op && op->together ? op->together(&e->step[i], state, n) : 1;
        p->step[i].together = n;
        for (int k = 0; k < n; k++)
            sum += op ? need[i + k] : 0;
        size_t planned = work_room(e, i);
        MX_ASSERT(sum <= planned, "%s needs %zu bytes of workspace, planned are %zu",
                  e->step[i].label, sum, planned);
    }
}

mx_status mx_cuda_program_prepare(mx_device *d, mx_exec *e, void **state)
{
    mx_cuda *c = mx_cuda_of(d);
    c->any_order = d->any_order;
    c->search = d->search;
    mx_gemm_lt_remember(c->lt, c->search ? c->choices : NULL);
    program *p = mx_realloc(NULL, sizeof *p);
    *p = (program){.n = e->n_steps};
    p->step = mx_realloc(NULL, sizeof *p->step * (size_t)(e->n_steps + 1));
    memset(p->step, 0, sizeof *p->step * (size_t)(e->n_steps + 1));
    *state = p;
    size_t *need = mx_realloc(NULL, sizeof *need * (size_t)(e->n_steps + 1));
    bool quiet = getenv("MX_CUDA_QUIET") != NULL;
    for (int i = 0; i < e->n_steps; i++) {
        need[i] = 0;
        p->aside |= e->step[i].beside;
        c->work_bytes = work_room(e, i);
        if (e->step[i].waits_for)
            continue; /* launch_step */
        const mx_cuda_op *op = find_op(&e->step[i]);
        mx_status st = op ? op->prepare(c, &e->step[i], &p->step[i].state, &need[i])
                          : mx_fail(MX_DEVICE, "no CUDA kernel");
        if (e->step[i].call.group)
            p->group = e->step[i].call.group;
        if (!st) {
            p->step[i].op = op;
            continue;
        }
        p->n_fallback++;
        if (!quiet)
            fprintf(stderr, "note: %s in %s runs on the CPU: %s\n", e->step[i].op->name,
                    e->step[i].scope, mx_status_text(st));
        quiet |= p->n_fallback >= 5;
        mx_status_free(st);
    }
    gather(e, p, need);
    mx_free(need);
    return MX_OK;
}

/* A tensor to dense host memory, and back. On the stream: a plain copy of ordinary memory may
 * return before the GPU has it, and the stream does not wait for it. */
static mx_status copy_dense(mx_cuda *c, const mx_tensor *t, void *host, bool to_host)
{
    size_t item = mx_dtype_bytes(t->type.dtype), bytes = mx_type_bytes(&t->type);
    size_t run = (size_t)t->run * item, pitch = (size_t)t->pitch * item;
    void *dst = to_host ? host : t->data, *src = to_host ? t->data : host;
    enum cudaMemcpyKind kind = cudaMemcpyDefault; /* some variables lie on the host (hosted.c) */
    cudaError_t e = !pitch ? cudaMemcpyAsync(dst, src, bytes, kind, c->stream)
                           : cudaMemcpy2DAsync(dst, to_host ? run : pitch, src,
                                               to_host ? pitch : run, run, bytes / run, kind,
                                               c->stream);
    return mx_cuda_check(e, to_host ? "copying from the GPU" : "copying to the GPU");
}

/* Waits for the stream, whatever was wrong before; the first failure counts. */
static mx_status wait_after(mx_cuda *c, mx_status st)
{
    mx_status waited = mx_cuda_wait(c, NULL);
    if (!st)
        return waited;
    mx_status_free(waited);
    return st;
}

/* The specification, on host copies. */
static mx_status run_on_host(mx_cuda *c, const mx_exec *e, const mx_exec_step *s)
{
    mx_tensor in[MX_MAX_IN] = {{0}}, out[MX_MAX_OUT] = {{0}};
    mx_call call = s->call;
    void *work = NULL;
    mx_status st = MX_OK;
    for (int i = 0; i < call.n_in && !st; i++) {
        in[i].type = call.in[i].type;
        if (!call.in[i].data)
            continue;
        st = mx_alloc(&in[i].data, mx_type_bytes(&in[i].type), "a copy for the CPU");
        if (!st)
            st = copy_dense(c, &call.in[i], in[i].data, true);
    }
    st = wait_after(c, st);
    for (int k = 0; k < call.n_out && !st; k++) {
        int alias = s->op->alias[k];
        out[k].type = call.out[k].type;
        if (alias && in[alias - 1].data)
            out[k].data = in[alias - 1].data;
        else
            st = mx_alloc(&out[k].data, mx_type_bytes(&out[k].type), "a copy for the CPU");
    }
    if (!st)
        st = mx_alloc(&work, e->program->host_work_bytes, "a copy for the CPU");
    if (!st) {
        call.in = in;
        call.out = out;
        call.work = work;
        s->op->cpu(&call);
    }
    for (int k = 0; k < call.n_out && !st; k++)
        st = copy_dense(c, &s->call.out[k], out[k].data, false);
    st = wait_after(c, st); /* before the copies are freed */
    for (int k = 0; k < call.n_out; k++)
        if (!s->op->alias[k] || !in[s->op->alias[k] - 1].data)
            mx_free(out[k].data);
    for (int i = 0; i < s->call.n_in; i++)
        mx_free(in[i].data);
    mx_free(work);
    return st;
}

/* What a collective of a step that ran on the host has left. */
static mx_status take_failure(mx_exec *e)
{
    mx_status st = e->failed;
    e->failed = MX_OK;
    return st;
}

static mx_status launch_plain(mx_cuda *c, mx_exec *e, const program *p, int i)
{
    const bound *b = &p->step[i];
    return b->op ? b->op->launch(c, &e->step[i], b->state) : run_on_host(c, e, &e->step[i]);
}

/* Other steps go on beside it, or the compute stream waits for it at once. */
static mx_status launch_collective(mx_cuda *c, mx_exec *e, const program *p, int i)
{
    mx_exec_step *s = &e->step[i];
    bool aside = p->aside && !c->alone;
    mx_status st = mx_cuda_comm_begin(c, aside, &s->ticket);
    if (!st)
        st = launch_plain(c, e, p, i);
    mx_status end = mx_cuda_comm_end(c, s->ticket);
    if (!st && !end && aside && !s->beside)
        end = mx_cuda_comm_join(c, s->ticket);
    mx_status_free(st ? end : NULL);
    return st ? st : end;
}

static mx_status launch_step(mx_cuda *c, mx_exec *e, const program *p, int i)
{
    const mx_exec_step *s = &e->step[i];
    if (s->waits_for)
        return mx_cuda_comm_join(c, e->step[s->waits_for - 1].ticket);
    return s->call.group || s->beside ? launch_collective(c, e, p, i) : launch_plain(c, e, p, i);
}

/* Launches the step at i, and its neighbours where they go together; moves i past them. */
static mx_status launch_next(mx_cuda *c, mx_exec *e, program *p, int *i)
{
    const bound *b = &p->step[*i];
    const mx_exec_step *s = &e->step[*i];
    int n = b->together > 1 ? b->together : 1;
    mx_status st = b->chain ? b->chain->launch(c, s, n)
                   : n > 1  ? b->op->launch_many(c, s, n)
                            : launch_step(c, e, p, *i);
    *i += n;
    return st ? mx_status_wrap(st, "%s in %s", s->op->name, s->scope) : MX_OK;
}

static mx_status launch_all(mx_cuda *c, mx_exec *e, program *p)
{
    mx_status st = MX_OK;
    for (int i = 0; i < p->n && !e->failed && !st;)
        st = launch_next(c, e, p, &i);
    mx_status end = mx_cuda_comm_join_all(c);
    mx_status_free(st ? end : NULL);
    return st ? st : end ? end : take_failure(e);
}

static bool alike(const mx_exec_step *a, const mx_exec_step *b)
{
    const mx_type *x = &a->call.out[0].type, *y = &b->call.out[0].type;
    return a->op == b->op && mx_shape_equal(x, y) && a->call.n_in == b->call.n_in &&
           a->call.n_out == b->call.n_out && x->dtype == y->dtype;
}

static void print_profile(const mx_exec *e, const float *ms, int n)
{
    float total = 0;
    for (int i = 0; i < n; i++)
        total += ms[i];
    fprintf(stderr, "profile: %d ops, %.3f ms\n", n, (double)total);
    for (int i = 0; i < n; i++) {
        mx_str type = {0};
        float sum = 0;
        int count = 0, first = i;
        for (int k = 0; k < n; k++)
            if (alike(&e->step[i], &e->step[k])) {
                first = k < first ? k : first;
                sum += ms[k];
                count++;
            }
        mx_type_print(&type, &e->step[i].call.out[0].type);
        if (first == i && sum > 0.0005f * total)
            fprintf(stderr, "%8.3f ms %5.1f%%  %4d x %-18s %d->%d %s (%s)\n", (double)sum,
                    100.0 * (double)(sum / total), count, e->step[i].op->name,
                    e->step[i].call.n_in, e->step[i].call.n_out, mx_str_text(&type),
                    e->step[i].scope);
        mx_str_fini(&type);
    }
}

/* Milliseconds between two events with nothing between them. */
static float empty_interval(mx_cuda *c)
{
    enum { N = 9 };
    cudaEvent_t at[N] = {0};
    float least = 1;
    mx_cuda_stay_busy(100, c->stream);
    for (int i = 0; i < N; i++)
        if (cudaEventCreate(&at[i]) == cudaSuccess)
            cudaEventRecord(at[i], c->stream);
    cudaStreamSynchronize(c->stream);
    for (int i = 0; i < N; i++) {
        float ms = least;
        if (i && cudaEventElapsedTime(&ms, at[i - 1], at[i]) == cudaSuccess && ms < least)
            least = ms;
    }
    for (int i = 0; i < N; i++)
        cudaEventDestroy(at[i]);
    return least < 1 ? least : 0;
}

/* MX_CUDA_PROFILE=1: the third run of a program is timed op by op, and the sums are printed. Steps
 * that go together count as the first of them. What events take by themselves is no op's. */
static mx_status profile(mx_cuda *c, mx_exec *e, program *p)
{
    cudaEvent_t *at = mx_realloc(NULL, sizeof *at * (size_t)(p->n + 1));
    float *ms = mx_realloc(NULL, sizeof *ms * (size_t)(p->n + 1));
    int *next = mx_realloc(NULL, sizeof *next * (size_t)(p->n + 1)), made = 0;
    mx_status st = MX_OK;
    memset(ms, 0, sizeof *ms * (size_t)(p->n + 1));
    for (int i = 0; !st; made++) {
        next[made] = i;
        st = mx_cuda_check(cudaEventCreate(&at[made]), "an event");
        if (!st)
            st = mx_cuda_check(cudaEventRecord(at[made], c->stream), "an event");
        if (st || i >= p->n)
            break;
        st = launch_next(c, e, p, &i);
    }
    cudaStreamSynchronize(c->stream);
    float empty = empty_interval(c);
    for (int k = 0; k < made && !st; k++) {
        cudaEventElapsedTime(&ms[next[k]], at[k], at[k + 1]);
        ms[next[k]] = ms[next[k]] > empty ? ms[next[k]] - empty : 0;
    }
    if (!st)
        print_profile(e, ms, p->n);
    for (int k = 0; k <= made; k++)
        cudaEventDestroy(at[k]);
    mx_free(at);
    mx_free(ms);
    mx_free(next);
    return st;
}

/* The same where several ranks share the GPU: see kernel_time.c. */
static mx_status profile_alone(mx_cuda *c, mx_exec *e, program *p)
{
    float *ms = mx_realloc(NULL, sizeof *ms * (size_t)(p->n + 1));
    memset(ms, 0, sizeof *ms * (size_t)(p->n + 1));
    mx_status st = mx_cuda_kernel_time_open(c, p->group);
    for (int i = 0; i < p->n && !st;) {
        int at = i;
        st = mx_cuda_kernel_time_begin(c);
        if (!st)
            st = launch_next(c, e, p, &i);
        if (!st)
            st = mx_cuda_kernel_time_end(c);
        ms[at] = (float)mx_cuda_kernel_time_take(c);
    }
    if (!st) {
        p->group->kind->turn(p->group, true);
        print_profile(e, ms, p->n);
        p->group->kind->turn(p->group, false);
    }
    mx_cuda_kernel_time_close(c);
    mx_free(ms);
    return st ? st : take_failure(e);
}

static mx_status capture(mx_cuda *c, mx_exec *e, program *p)
{
    cudaGraph_t graph = NULL;
    MX_TRY(mx_cuda_check(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal),
                         "capturing a step"));
    mx_status st = launch_all(c, e, p);
    cudaError_t err = cudaStreamEndCapture(c->stream, &graph);
    if (!st)
        st = mx_cuda_check(err, "capturing a step");
    if (!st)
        st = mx_cuda_check(cudaGraphInstantiate(&p->graph, graph, 0),
                           "making a CUDA graph");
    if (graph)
        cudaGraphDestroy(graph);
    return st;
}

/* When steps began and ended: events on the stream of each, read when all of them are over. The
 * device's own clock, set by the host's at the first event. */
static void read_times(mx_cuda *c, mx_exec *e, const program *p, const cudaEvent_t *at, double base)
{
    for (int i = 0; i < p->n; i++) {
        float ms[2] = {0};
        if (e->step[i].beside)
            mx_cuda_comm_times(c, e->step[i].ticket, at[0], ms);
        for (int k = 0; k < 2; k++) {
            if (!e->step[i].beside)
                cudaEventElapsedTime(&ms[k], at[0], at[2 * i + 1 + k]);
            e->took[2 * i + k] = base + 1e-3 * (double)ms[k];
        }
    }
}

static mx_status launch_timed(mx_cuda *c, mx_exec *e, program *p)
{
    int n = 2 * p->n + 1, made = 0;
    cudaEvent_t *at = mx_realloc(NULL, sizeof *at * (size_t)n);
    mx_status st = MX_OK;
    for (; made < n && !st; made += !st)
        st = mx_cuda_check(cudaEventCreate(&at[made]), "an event");
    double base = mx_clock_now();
    if (!st)
        st = mx_cuda_check(cudaEventRecord(at[0], c->stream), "an event");
    for (int i = 0; i < p->n && !st && !e->failed; i++) {
        st = mx_cuda_check(cudaEventRecord(at[2 * i + 1], c->stream), "an event");
        if (!st)
            st = launch_step(c, e, p, i);
        if (!st)
            st = mx_cuda_check(cudaEventRecord(at[2 * i + 2], c->stream), "an event");
    }
    mx_status end = mx_cuda_comm_join_all(c);
    if (!end)
        end = mx_cuda_wait(c, NULL);
    mx_status_free(st ? end : NULL);
    st = st ? st : end ? end : take_failure(e);
    if (!st)
        read_times(c, e, p, at, base);
    for (int i = 0; i < made; i++)
        cudaEventDestroy(at[i]);
    mx_free(at);
    return st;
}

mx_status mx_cuda_program_run(mx_device *d, mx_exec *e, void *state)
{
    mx_cuda *c = mx_cuda_of(d);
    program *p = state;
    int runs = ++p->runs;
    if (e->took)
        return launch_timed(c, e, p);
    if (runs == 3 && getenv("MX_CUDA_PROFILE"))
        return p->group && p->group->kind->turn ? profile_alone(c, e, p) : profile(c, e, p);
    if (p->n_fallback || p->group || runs == 1)
        return launch_all(c, e, p);
    if (!p->graph)
        MX_TRY(capture(c, e, p));
    return mx_cuda_check(cudaGraphLaunch(p->graph, c->stream), "a step on the GPU");
}

/* collectives_test.c - every collective between ranks that are threads, with the bits it has on the
 * CPU: on the CPU itself, and, where `make test-gpu` asks for it, on a GPU, between streams and
 * with one rank through NCCL.
 */
#include "../compile/graph_run.h"
#include "../test.h"
#include "dist/local.h"
#include "ops.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, TOKENS = 5, WIDTH = 7, LONG = 70001, SIDE = 192, MOST = 1 << 17, ROOTS = 24 };

/* What a rank has made: numbers of all roots, one behind the other. */
typedef struct rank_run {
    int rank, n;
    const char *device;
    mx_process_group *group; /* all ranks */
    bool any_order;
    bool beside; /* collectives go on beside matmuls; the CPU's numbers are without */
    void (*build)(mx_graph *g, const struct rank_run *r);
    double *value;
    int64_t count;
    mx_comm_seconds spent;
} rank_run;

static mx_process_group *find(void *ctx, unsigned axes)
{
    (void)axes;
    return ((rank_run *)ctx)->group;
}

static mx_node *input(mx_graph *g, const char *name, mx_shape s, mx_dtype d)
{
    return mx_input(g, name, s, d);
}

static void root(mx_graph *g, mx_node *n)
{
    char name[16];
    snprintf(name, sizeof name, "y%d", g->n_roots);
    mx_graph_root(g, name, n);
}

/* --- the graphs --- */

static mx_collective_attr along(const rank_run *r, int64_t dim, int64_t to)
{
    return (mx_collective_attr){.axes = 1u << MX_AXIS_FSDP, .size = r->n, .index = r->rank,
                                .dim = dim, .to = to};
}

/* Pieces that lie together and pieces that do not, in dtypes of 2, 4 and 8 bytes. */
static void build_moves(mx_graph *g, const rank_run *r, mx_node *x)
{
    root(g, mx_all_gather(g, x, along(r, 0, 0)));
    root(g, mx_all_gather(g, x, along(r, 1, 0)));
    root(g, mx_all_to_all(g, x, along(r, 1, 2)));
    root(g, mx_all_to_all(g, x, along(r, 0, 2)));
    root(g, mx_ring_shift(g, x, along(r, 0, 1)));
    root(g, mx_ring_shift(g, x, along(r, 0, -1)));
    root(g, mx_shard(g, x, along(r, 2, 0)));
    root(g, mx_zigzag(g, x, 2, r->n, false));
}

static void build_sums(mx_graph *g, const rank_run *r, mx_node *x)
{
    root(g, mx_reduce_scatter(g, x, along(r, 2, 0)));
    root(g, mx_all_reduce(g, x, along(r, 0, MX_REDUCE_SUM)));
    root(g, mx_all_reduce(g, x, along(r, 0, MX_REDUCE_MAX)));
}

static void build_experts(mx_graph *g, const rank_run *r)
{
    mx_node *rows = input(g, "rows", MX_SHAPE(TOKENS, WIDTH), MX_F32);
    mx_node *start = input(g, "start", MX_SHAPE(2 * r->n + 1), MX_I32);
    mx_node *plan = mx_exchange_plan_rows(g, start, along(r, 0, 0));
    mx_node *there = mx_exchange_rows(g, rows, plan, along(r, 0, TOKENS * r->n));
    root(g, plan);
    root(g, mx_output(g, plan, 1));
    root(g, there);
    root(g, mx_return_rows(g, there, plan, along(r, 0, TOKENS)));
}

static void build(mx_graph *g, const rank_run *r)
{
    mx_node *x = input(g, "x", MX_SHAPE(2, 3, 4 * r->n), MX_F32);
    mx_node *half = input(g, "half", MX_SHAPE(3, 2, 8 * r->n), MX_BF16);
    mx_node *wide = input(g, "wide", MX_SHAPE(2, 2, 2 * r->n), MX_F64);
    mx_node *line = input(g, "long", MX_SHAPE(LONG), MX_F32);
    build_moves(g, r, x);
    build_sums(g, r, x);
    build_sums(g, r, half);
    build_sums(g, r, wide);
    root(g, mx_all_gather(g, half, along(r, 1, 0)));
    root(g, mx_all_reduce(g, line, along(r, 0, MX_REDUCE_SUM)));
    build_experts(g, r);
}

/* Something that takes a while. */
static mx_node *matmuls(mx_graph *g, mx_node *x, int n)
{
    mx_node *y = x;
    for (int i = 0; i < n; i++)
        y = mx_affine(g, mx_matmul(g, "mk,kn->mn", y, x), 0.0625, 0);
    return y;
}

static mx_collective_attr aside(const rank_run *r, int64_t dim, int64_t to)
{
    mx_collective_attr a = along(r, dim, to);
    a.beside = r->beside;
    return a;
}

/* Started here; what is given to the function is read behind the wait. */
static mx_node *waited(mx_graph *g, const rank_run *r, mx_node *y)
{
    return r->beside ? mx_wait(g, y, y->in[0]) : y;
}

/* Two under way at once, one that is not beside others between them, memory used again behind each:
 * a wait that comes too early or for another one gives other numbers. */
static void build_beside(mx_graph *g, const rank_run *r)
{
    mx_node *x = input(g, "side", MX_SHAPE(SIDE, SIDE), MX_F32);
    mx_node *line = input(g, "long", MX_SHAPE(LONG), MX_F32), *sum = NULL;
    mx_node *rows = input(g, "rows", MX_SHAPE(TOKENS, WIDTH), MX_F32);
    mx_node *start = input(g, "start", MX_SHAPE(2 * r->n + 1), MX_I32);
    mx_node *plan = mx_exchange_plan_rows(g, start, along(r, 0, 0));
    for (int i = 0; i < 4; i++) {
        mx_node *made = matmuls(g, sum ? mx_add(g, x, sum) : x, 2);
        mx_node *gather = mx_all_gather(g, made, aside(r, i % 2, 0));
        mx_node *there = mx_exchange_rows(g, mx_affine(g, rows, 1, i), plan,
                                          aside(r, 0, TOKENS * r->n));
        mx_node *other = matmuls(g, made, 3);
        mx_node *now = mx_all_reduce(g, mx_affine(g, line, 1, i), along(r, 0, MX_REDUCE_SUM));
        mx_node *pieces = mx_all_to_all(g, waited(g, r, gather), aside(r, 1 - i % 2, i % 2));
        mx_node *moved = mx_ring_shift(g, mx_affine(g, other, 0.5, 0), aside(r, 0, 1));
        mx_node *more = matmuls(g, other, 2);
        mx_node *back = mx_return_rows(g, waited(g, r, there), plan, aside(r, 0, TOKENS));
        mx_node *all = waited(g, r, pieces);
        mx_node *part = mx_reduce_scatter(g, mx_affine(g, all, 2, 0), aside(r, 0, 0));
        sum = mx_add(g, more, waited(g, r, moved));
        root(g, waited(g, r, part));
        root(g, waited(g, r, back));
        root(g, mx_slice(g, now, 0, 0, SIDE));
    }
    root(g, sum);
}

/* Where this rank's rows of each expert begin; the last rows belong to none. */
static void fill_starts(const rank_run *r, double *start)
{
    int experts = 2 * r->n, at = 0;
    for (int e = 0; e <= experts; e++) {
        start[e] = at;
        at += at < TOKENS - r->rank % 2 && (e + r->rank) % 3 != 0;
    }
}

static void fill(mx_graph_run *run, const rank_run *r)
{
    static const char *const name[] = {"x", "half", "wide", "long", "rows", "side"};
    double *v = mx_realloc(NULL, sizeof *v * MOST);
    for (int i = 0; i < 6; i++) {
        const mx_type *t = mx_exec_type(run->exec, name[i]);
        mx_test_fill(v, t ? mx_type_count(t) : 0, -1, 1, (uint64_t)(100 * i + r->rank));
        if (t)
            mx_graph_run_write(run, name[i], v);
    }
    fill_starts(r, v);
    mx_graph_run_write(run, "start", v);
    mx_free(v);
}

static void read_roots(mx_graph_run *run, rank_run *r)
{
    for (int i = 0; i < run->graph.n_roots; i++) {
        MX_ASSERT(r->count + LONG <= MOST * 2, "%lld numbers", (long long)r->count);
        mx_graph_run_read(run, run->graph.root[i]->name, r->value + r->count);
        r->count += mx_type_count(&run->graph.root[i]->type);
    }
}

/* More than once: what a device does in the first run differs from later ones. */
static void *rank_main(void *ctx)
{
    rank_run *r = ctx;
    mx_graph_run run;
    mx_graph_run_init(&run);
    MX_CHECK_OK(mx_session_open(&run.shared, r->device, 1));
    mx_session_set_groups(run.shared, find, r);
    if (r->any_order)
        mx_session_allow_any_order(run.shared);
    r->build(&run.graph, r);
    MX_ASSERT(run.graph.n_roots <= ROOTS, "%d roots", run.graph.n_roots);
    MX_CHECK_OK(mx_graph_run_compile(&run, true));
    fill(&run, r);
    for (int times = 0; times < 3; times++)
        mx_graph_run_go(&run);
    read_roots(&run, r);
    mx_session *s = run.shared;
    r->spent = mx_session_comm_seconds(s, (mx_comm_mark){0}, mx_session_comm_mark(s));
    mx_graph_run_fini(&run);
    mx_session_close(s);
    return NULL;
}

static void run_as(rank_run *r, int n, const rank_run *how)
{
    mx_mesh mesh = {.ici = {[MX_AXIS_FSDP] = n}};
    mx_local_world *w = mx_local_world_new(&mesh);
    pthread_t thread[RANKS];
    for (int i = 0; i < n; i++) {
        r[i] = *how;
        r[i].rank = i;
        r[i].n = n;
        r[i].group = mx_local_group(w, i, 1u << MX_AXIS_FSDP);
        r[i].value = mx_realloc(NULL, sizeof(double) * 2 * MOST);
        MX_ASSERT(pthread_create(&thread[i], NULL, rank_main, &r[i]) == 0, "a thread");
    }
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    mx_local_world_free(w);
}

static void run_ranks(rank_run *r, int n, const char *device)
{
    run_as(r, n, &(rank_run){.device = device, .build = build});
}

static void compare(const rank_run *a, const rank_run *b)
{
    int64_t i = 0;
    while (i < a->count && a->value[i] == b->value[i])
        i++;
    MX_CHECK(a->count == b->count && i == a->count,
             "rank %d of %d: number %lld of %lld is %.9g, expected %.9g", a->rank, a->n,
             (long long)i, (long long)a->count, a->value[i], b->value[i]);
}

static void release(rank_run *r, int n)
{
    for (int i = 0; i < n; i++)
        mx_free(r[i].value);
}

/* MX_TEST_GPU=cpu tests the tests. */
static const char *device(void)
{
    const char *on = getenv("MX_TEST_GPU");
    return on && strcmp(on, "cpu") != 0 ? "cuda" : "cpu";
}

/* Of the first rank's own numbers, which is what one rank's collectives give. */
MX_TEST(collectives_of_one_rank_change_nothing)
{
    rank_run one;
    run_ranks(&one, 1, device());
    double x[24];
    mx_test_fill(x, 24, -1, 1, 0);
    for (int k = 0; k < 24; k++)
        for (int root_of = 0; root_of < 7; root_of++)
            MX_CHECK(one.value[24 * root_of + k] == mx_test_round(x[k], MX_F32), "root %d at %d",
                     root_of, k);
    release(&one, 1);
}

MX_TEST(collectives_on_the_gpu_have_the_bits_of_the_cpu)
{
    if (!getenv("MX_TEST_GPU")) {
        printf("    skipped: MX_TEST_GPU is not set\n");
        return;
    }
    for (int n = 1; n <= RANKS; n++) {
        rank_run cpu[RANKS], gpu[RANKS];
        run_ranks(cpu, n, "cpu");
        run_ranks(gpu, n, device());
        for (int i = 0; i < n; i++)
            compare(&gpu[i], &cpu[i]);
        release(cpu, n);
        release(gpu, n);
    }
}

/* --- beside other steps --- */

/* On one device: matmuls have other bits on another. */
MX_TEST(collectives_beside_others_change_no_bits)
{
    rank_run plain = {.device = device(), .build = build_beside}, beside = plain;
    beside.beside = true;
    for (int n = 1; n <= RANKS; n++) {
        rank_run a[RANKS], b[RANKS];
        run_as(a, n, &plain);
        run_as(b, n, &beside);
        for (int i = 0; i < n; i++) {
            compare(&b[i], &a[i]);
            MX_CHECK(b[i].spent.all > 0 && a[i].spent.waited > 0, "%g s and %g s waited",
                     b[i].spent.all, a[i].spent.waited);
        }
        release(a, n);
        release(b, n);
    }
}

/* A rank that is alone has no group, so its program may become a CUDA graph. */
MX_TEST(collectives_beside_others_are_captured)
{
    rank_run run[2] = {{.n = 1, .device = device(), .build = build_beside}};
    run[1] = run[0];
    run[1].beside = true;
    for (int i = 0; i < 2; i++) {
        run[i].value = mx_realloc(NULL, sizeof(double) * 2 * MOST);
        rank_main(&run[i]);
    }
    compare(&run[1], &run[0]);
    release(run, 2);
}

/* --- NCCL, with one rank: it takes one GPU for each --- */

/* A group of threads that says it is one of processes. */
typedef struct {
    mx_process_group_kind kind;
    bool failed;
} disguise;

static disguise *current; /* the kind's functions are given the group alone */

static mx_status check(mx_process_group *g)
{
    (void)g;
    return current->failed ? mx_fail(MX_DEVICE, "rank 3 is gone") : MX_OK;
}

static void disguise_group(rank_run *r, disguise *d)
{
    *d = (disguise){.kind = *r->group->kind};
    d->kind.threads = false;
    d->kind.turn = NULL;
    d->kind.check = check;
    r->group->kind = &d->kind;
    r->group->nccl = true;
    current = d;
}

static void run_through_nccl(bool any_order)
{
    mx_mesh mesh = {0};
    mx_local_world *w = mx_local_world_new(&mesh);
    disguise d;
    rank_run one = {.n = 1, .device = device(), .any_order = any_order, .build = build}, cpu;
    one.group = mx_local_group(w, 0, 1u << MX_AXIS_FSDP);
    one.value = mx_realloc(NULL, sizeof(double) * 2 * MOST);
    disguise_group(&one, &d);
    rank_main(&one);
    run_ranks(&cpu, 1, "cpu");
    compare(&one, &cpu);
    release(&one, 1);
    release(&cpu, 1);
    mx_local_world_free(w);
}

MX_TEST(nccl_runs_every_collective)
{
    run_through_nccl(false);
    run_through_nccl(true);
}

MX_TEST(nccl_collectives_beside_others_change_no_bits)
{
    mx_mesh mesh = {0};
    rank_run run[2];
    for (int i = 0; i < 2; i++) {
        mx_local_world *w = mx_local_world_new(&mesh);
        disguise d;
        run[i] = (rank_run){.n = 1, .device = device(), .build = build_beside, .beside = i};
        run[i].group = mx_local_group(w, 0, 1u << MX_AXIS_FSDP);
        run[i].value = mx_realloc(NULL, sizeof(double) * 2 * MOST);
        disguise_group(&run[i], &d);
        rank_main(&run[i]);
        mx_local_world_free(w);
    }
    compare(&run[1], &run[0]);
    release(run, 2);
}

/* A rank is gone while the GPU works: whoever waits gets the error, and so does every later
 * call. */
MX_TEST(nccl_is_given_up_when_a_rank_is_gone)
{
    mx_mesh mesh = {0};
    mx_local_world *w = mx_local_world_new(&mesh);
    disguise d;
    mx_graph_run run;
    rank_run one = {.n = 1, .device = device()};
    float y[4], x[4] = {1, 2, 3, 4};
    if (strcmp(one.device, "cpu") == 0) {
        printf("    skipped: MX_TEST_GPU is not set\n");
        mx_local_world_free(w);
        return;
    }
    one.group = mx_local_group(w, 0, 1u << MX_AXIS_FSDP);
    disguise_group(&one, &d);
    mx_graph_run_init(&run);
    MX_CHECK_OK(mx_session_open(&run.shared, one.device, 1));
    mx_session_set_groups(run.shared, find, &one);
    root(&run.graph, mx_all_reduce(&run.graph, input(&run.graph, "x", MX_SHAPE(4), MX_F32),
                                   along(&one, 0, 0)));
    MX_CHECK_OK(mx_graph_run_compile(&run, true));
    MX_CHECK_OK(mx_exec_write(run.exec, "x", x));
    MX_CHECK_OK(mx_exec_run(run.exec));
    MX_CHECK_OK(mx_exec_read(run.exec, "y0", y));
    d.failed = true;
    MX_CHECK_OK(mx_exec_run(run.exec));
    MX_CHECK_ERROR(mx_exec_read(run.exec, "y0", y), "rank 3 is gone");
    d.failed = false;
    mx_status st = mx_exec_run(run.exec);
    mx_status again = mx_exec_read(run.exec, "y0", y);
    MX_CHECK(st || again, "a connection that was given up still works");
    mx_status_free(st);
    mx_status_free(again);
    mx_session *s = run.shared;
    mx_graph_run_fini(&run);
    mx_session_close(s);
    mx_local_world_free(w);
}

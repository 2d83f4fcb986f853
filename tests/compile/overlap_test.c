/* overlap_test.c - where collectives beside other nodes start and end, and what a device makes of
 * them. That numbers stay as they are: tests/dist, whose programs have them. */
#include "../dist/mesh_run.h"
#include "../test.h"
#include "base/str.h"
#include "device/device.h"
#include "ops.h"
#include "ops/collective.h"
#include <stdlib.h>
#include <string.h>

static const mesh_case two_ranks = {.dir = "tests/fixtures/meshes/dense",
                                    .layers = 4,
                                    .batch = 2,
                                    .seq = 16,
                                    .how = {.sharding_tolerance = 1, .zigzag = true}};

/* The program of a rank that adds up gradients. */
static void plan_rank(mx_step *s, mesh_run *r, const mx_mesh *mesh, int rank,
                      const mx_device_traits *device)
{
    mx_partition how = r->c.how;
    how.mesh = mesh;
    how.rules = &r->rules;
    how.rank = rank;
    mx_step_options o = {.kind = MX_STEP_ACCUMULATE,
                         .shape = {.batch = r->c.batch, .seq = r->c.seq},
                         .compile = {.compute = MX_F32, .n_threads = 1, .device = device,
                                     .partition = &how}};
    MX_CHECK_OK(mx_step_plan(s, &r->model, &o));
}

static void plan(mx_step *s, mesh_run *r, mx_mesh *mesh, const mx_device_traits *device)
{
    *mesh = mesh_parse("fsdp=2");
    plan_rank(s, r, mesh, 0, device);
}

static int layer_of(const mx_node *n)
{
    const char *at = strstr(n->scope, "layers.");
    return at ? atoi(at + strlen("layers.")) : -1;
}

typedef struct {
    int beside, waits, at_once, apart; /* apart: with a matmul between, of those in layers */
    int most; /* layers between a forward gather and its wait */
} counts;

static counts count(const mx_program *p)
{
    counts c = {0};
    for (int i = 0; i < p->n; i++) {
        const mx_node *w = p->order[i], *x = w->op == &mx_op_wait ? w->in[0] : NULL;
        c.beside += mx_collective_is_beside(w);
        c.at_once += w->op->collective && !mx_collective_is_beside(w);
        if (!x)
            continue;
        MX_CHECK(mx_collective_is_beside(x) && w->in[1] == x->in[0], "a wait for %s", x->op->name);
        c.waits++;
        int from = i, layer = layer_of(w), first = layer;
        bool matmul = false;
        while (p->order[--from] != x) {
            matmul |= p->order[from]->op == &mx_op_matmul;
            int here = layer_of(p->order[from]);
            if (here >= 0 && !w->backward && !w->recomputed && layer >= 0)
                first = here < first ? here : first;
        }
        c.apart += matmul;
        c.most = layer - first > c.most ? layer - first : c.most;
    }
    return c;
}

MX_TEST(collectives_go_on_beside_a_layer)
{
    mesh_run r;
    mx_step s;
    mx_mesh mesh;
    mesh_run_open(&r, &two_ranks);
    plan(&s, &r, &mesh, &mx_cpu_traits);
    counts c = count(&s.program);
    /* seven weights a layer: gathered twice, their gradients scattered */
    MX_CHECK(c.beside == c.waits && c.beside >= 3 * 7 * two_ranks.layers, "%d beside, %d waits",
             c.beside, c.waits);
    MX_CHECK(c.apart >= c.beside - 7, "%d of %d have a matmul to go on beside", c.apart, c.beside);
    MX_CHECK(c.most >= 1 && c.most <= 2, "a gather starts %d layers ahead", c.most);
    mx_step_close(&s);
    plan(&s, &r, &mesh, &mx_cuda_traits);
    c = count(&s.program);
    MX_CHECK(c.beside == c.waits && c.beside >= 3 * 5 * two_ranks.layers && c.apart >= c.beside - 7,
             "%d beside on a GPU, %d waits, %d apart", c.beside, c.waits, c.apart);
    mx_step_close(&s);
    plan(&s, &r, &mesh, &mx_plain_traits); /* a device that has nowhere to do it */
    c = count(&s.program);
    MX_CHECK(c.beside == 0 && c.waits == 0, "%d beside", c.beside);
    mx_step_close(&s);
    mesh_run_close(&r);
}

/* Nodes of the op between the start of a collective and its wait. */
static int n_between(const mx_program *p, int wait, const mx_op *op)
{
    int n = 0;
    for (int i = wait; p->order[i] != p->order[wait]->in[0]; i--)
        n += p->order[i]->op == op;
    return n;
}

/* How many collectives of an op go on beside at least one node of another. */
static int n_beside(const mx_program *p, const mx_op *collective, const mx_op *op)
{
    int n = 0;
    for (int i = 0; i < p->n; i++)
        if (p->order[i]->op == &mx_op_wait && p->order[i]->in[0]->op == collective)
            n += n_between(p, i, op) > 0;
    return n;
}

static int n_of(const mx_program *p, const mx_op *op)
{
    int n = 0;
    for (int i = 0; i < p->n; i++)
        n += p->order[i]->op == op;
    return n;
}

/* Ranks whose programs differ must still meet in one order. */
static void same_sequences(mesh_run *r, const mx_mesh *mesh, const mx_device_traits *device)
{
    mx_str first = {0};
    for (int rank = 0; rank < mx_mesh_ranks(mesh); rank++) {
        mx_step s;
        mx_str own = {0};
        plan_rank(&s, r, mesh, rank, device);
        for (int i = 0; i < s.program.n; i++) {
            const mx_node *n = s.program.order[i];
            const mx_collective_attr *a = n->op->collective ? n->attr : NULL;
            if (a && a->size > 1)
                mx_str_addf(&own, "%s %lld %lld %zu %s %lld; ", n->op->name, (long long)a->axes,
                            (long long)a->to, mx_type_bytes(&n->type), n->scope,
                            (long long)a->issue_order);
        }
        MX_CHECK(rank == 0 || strcmp(mx_str_text(&own), mx_str_text(&first)) == 0,
                 "%s: the collectives of rank %d come in another order than those of rank 0",
                 device->name, rank);
        if (rank)
            mx_str_fini(&own);
        else
            first = own;
        mx_step_close(&s);
    }
    mx_str_fini(&first);
}

/* Keys and values of the next rank come while a rank attends to its own. */
MX_TEST(ring_steps_go_on_beside_attention)
{
    mesh_case c = two_ranks;
    mesh_run r;
    mx_mesh mesh = mesh_parse("context=4");
    const mx_device_traits *devices[] = {&mx_cpu_traits, &mx_cuda_traits};
    c.how.context = MX_CONTEXT_RING;
    c.seq = 256;
    mesh_run_open(&r, &c);
    for (int d = 0; d < 2; d++) {
        mx_step s;
        plan_rank(&s, &r, &mesh, 1, devices[d]);
        int there = n_beside(&s.program, &mx_op_ring_shift, &mx_op_attention);
        int back = n_beside(&s.program, &mx_op_ring_shift, &mx_op_attention_grad);
        /* three steps, of keys and of values, and of their gradients */
        MX_CHECK(there >= 3 * 2 * c.layers && back >= 3 * 2 * c.layers,
                 "%s: of %d steps %d go on beside attention, %d beside its gradient",
                 devices[d]->name, n_of(&s.program, &mx_op_ring_shift), there, back);
        MX_CHECK(n_of(&s.program, &mx_op_merge_attention) >= c.layers &&
                     !n_of(&s.program, &mx_op_merge_attention_grad),
                 "%s: gradients of single steps are merged", devices[d]->name);
        mx_step_close(&s);
        same_sequences(&r, &mesh, devices[d]);
    }
    mesh_run_close(&r);
}

/* Rows go to experts, and come back, while a shared expert computes. */
MX_TEST(rows_of_experts_go_on_beside_a_shared_expert)
{
    mesh_case c = {.dir = "tests/fixtures/models/deepseek-v2", .batch = 4, .seq = 32,
                   .how = {.sharding_tolerance = 1, .zigzag = true}};
    mesh_run r;
    mx_mesh mesh = mesh_parse("expert=2");
    mx_step s;
    mesh_run_open(&r, &c);
    plan_rank(&s, &r, &mesh, 0, &mx_cpu_traits);
    int there = n_beside(&s.program, &mx_op_exchange_rows, &mx_op_matmul);
    int back = n_beside(&s.program, &mx_op_return_rows, &mx_op_matmul);
    MX_CHECK(there > 0 && back > 0, "%d there, %d back", there, back);
    for (int i = 0; i < s.program.n; i++) /* the table of rows stays while they are under way */
        if (s.program.order[i]->op == &mx_op_wait &&
            s.program.order[i]->in[0]->op == &mx_op_return_rows)
            MX_CHECK(s.program.order[i]->n_in == 3, "a wait that does not keep the table");
    mx_step_close(&s);
    same_sequences(&r, &mesh, &mx_cpu_traits);
    same_sequences(&r, &mesh, &mx_cuda_traits);
    mesh_run_close(&r);
}

/* Gathered together, q, k and v are one GEMM on a mesh too, where the device asks for it. */
MX_TEST(weights_are_put_together_before_they_are_gathered)
{
    mesh_run r;
    mx_step s;
    mx_mesh mesh;
    mesh_run_open(&r, &two_ranks);
    plan(&s, &r, &mesh, &mx_cuda_traits);
    int merged = 0;
    for (int i = 0; i < s.program.n; i++)
        merged += s.program.order[i]->op == &mx_op_all_gather &&
                  s.program.order[i]->in[0]->op == &mx_op_concat;
    MX_CHECK(merged == 2 * two_ranks.layers, "%d gathers of weights put together", merged);
    mx_step_close(&s);
    same_sequences(&r, &mesh, &mx_cuda_traits);
    mesh_run_close(&r);
}

/* --- on a device --- */

/* A group whose other rank has the same numbers, and which fails from call `fails` on. */
typedef struct {
    mx_process_group base;
    int calls, fails;
} twin;

static mx_status enter(mx_process_group *g)
{
    twin *t = (twin *)g;
    return t->calls++ < t->fails ? MX_OK : mx_fail(MX_DEVICE, "call %d fails", t->calls);
}

static mx_status gather(mx_process_group *g, const void *in, void *out, size_t bytes)
{
    memcpy(out, in, bytes);
    memcpy((char *)out + bytes, in, bytes);
    return enter(g);
}

static mx_status scatter(mx_process_group *g, const mx_reduce_args *a)
{
    memcpy(a->out, a->in, (size_t)a->n * mx_dtype_bytes(a->dtype));
    return enter(g);
}

static const mx_process_group_kind twins = {
    .name = "twins", .all_gather = gather, .reduce_scatter = scatter, .all_reduce = scatter};

static mx_process_group *find(void *ctx, unsigned axes)
{
    (void)axes;
    return ctx;
}

MX_TEST(collectives_beside_others_fail_as_others_do)
{
    mesh_run r;
    mx_step s;
    mx_mesh mesh;
    twin t = {{.kind = &twins, .size = 2}, 0, 1 << 20};
    mx_session *session;
    mesh_run_open(&r, &two_ranks);
    plan(&s, &r, &mesh, &mx_cpu_traits);
    MX_CHECK_OK(mx_session_open(&session, "cpu", 1));
    mx_session_set_groups(session, find, &t);
    MX_CHECK_OK(mx_session_add(session, &s.program, &s.exec));
    MX_CHECK_OK(mx_session_init(session, 1));
    mesh_write_inputs(&two_ranks, s.exec, 0);
    MX_CHECK_OK(mx_exec_run(s.exec));
    counts c = count(&s.program);
    MX_CHECK(t.calls == c.beside + c.at_once, "%d calls for %d collectives", t.calls,
             c.beside + c.at_once);
    mx_comm_seconds spent =
        mx_session_comm_seconds(session, (mx_comm_mark){0}, mx_session_comm_mark(session));
    MX_CHECK(spent.all > 0 && spent.waited > 0, "%g s, %g s waited", spent.all, spent.waited);
    for (int k = 0; k < 3; k++) { /* and go on when calls do */
        t.calls = 0;
        t.fails = k == 2 ? 1 << 20 : 11 * k;
        mx_status st = mx_exec_run(s.exec);
        MX_CHECK(k == 2 ? !st : st && strstr(mx_status_text(st), "fails"), "run %d: %s", k,
                 st ? mx_status_text(st) : "it went on");
        MX_CHECK(k == 2 || t.calls == t.fails + 1, "%d calls, of which %d shall be made", t.calls,
                 t.fails + 1);
        mx_status_free(st);
    }
    mx_session_close(session);
    mx_step_close(&s);
    mesh_run_close(&r);
}

/* gpu_work_test.c - the workspace of GPU kernels in the plan, and one workspace for all
 * programs. */
#include "../compile/graph_run.h"
#include "ir/attention.h"
#include "ops.h"
#include "ops/gpu_work.h"
#include "../test.h"
#include <stdio.h>

enum { GIB = 1 << 30 };

/* Workspace of attention's gradient on a GPU: b rows of s tokens, h heads of d over h / 4. */
static size_t grad_bytes(int64_t b, int64_t s, int64_t h, int64_t d, bool packed, size_t most)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_node *q = mx_input(&g, "q", MX_SHAPE(b, s, h, d), MX_BF16);
    mx_node *k = mx_input(&g, "k", MX_SHAPE(b, s, h / 4, d), MX_BF16);
    mx_node *ids = packed ? mx_input(&g, "ids", MX_SHAPE(b, s), MX_I32) : NULL;
    mx_node *in[] = {q, k, k, NULL, NULL, ids, ids, NULL, NULL, NULL, NULL, q,
                     mx_input(&g, "lse", MX_SHAPE(b, h, s), MX_F32), q};
    mx_attention_attr a = {.causal = true, .scale = 1};
    mx_node *n = mx_apply(&g, &mx_op_attention_grad, &a, sizeof in / sizeof *in, in);
    MX_CHECK_OK(mx_graph_check(&g));
    size_t bytes = n->op->gpu_work_bytes(n, most);
    mx_graph_fini(&g);
    return bytes;
}

/* What failed: a workspace of the length's square for each of many documents. */
MX_TEST(packed_attention_needs_workspace_by_its_length_not_the_square)
{
    static const int64_t dims[] = {64, 128, 192, 256};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int64_t s = 1024; s <= 32768; s *= 2) {
            size_t one = grad_bytes(4, s, 32, dims[i], true, GIB);
            size_t two = grad_bytes(4, 2 * s, 32, dims[i], true, GIB);
            MX_CHECK(two <= 2 * one + 4096, "%lld tokens of %lld: %zu bytes, twice as many: %zu",
                     (long long)s, (long long)dims[i], one, two);
            size_t floats = (size_t)(4 * s * 32 * (dims[i] + 4)) * sizeof(float);
            MX_CHECK(one <= floats, "%lld tokens of %lld: %zu bytes", (long long)s,
                     (long long)dims[i], one);
        }
}

/* cuDNN keeps probabilities in workspace where bits have to repeat. They are planned for where they
 * are a small part of the program, and left out where not. */
MX_TEST(probabilities_are_planned_for_only_within_the_share)
{
    size_t probs = (size_t)4 * 32 * 4096 * 4096 * 2;
    size_t roomy = grad_bytes(4, 4096, 32, 256, false, 2 * probs);
    size_t tight = grad_bytes(4, 4096, 32, 256, false, probs / 2);
    MX_CHECK(roomy >= probs && tight < probs / 2, "%zu and %zu", roomy, tight);
}

MX_TEST(chunks_of_the_head_fit_what_they_are_given)
{
    static const mx_gpu_xent shapes[] = {{16384, 2048, 128256, false, true},
                                         {65536, 768, 50257, false, true},
                                         {1000, 64, 320, true, false},
                                         {100, 64, 7, false, true},
                                         {8192, 4096, 151936, false, false}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t most = 1 << 20; most <= (size_t)16 << 30; most *= 4) {
            int64_t rows = mx_gpu_xent_chunk(&shapes[i], most);
            size_t bytes = mx_gpu_xent_bytes(&shapes[i], rows);
            bool least = rows <= MX_GPU_XENT_ROWS;
            MX_CHECK(rows > 0 && rows <= shapes[i].rows, "%lld rows", (long long)rows);
            MX_CHECK(bytes <= most || least, "shape %zu, %zu bytes: %lld rows need %zu", i, most,
                     (long long)rows, bytes);
            size_t again = mx_gpu_xent_bytes(&shapes[i], mx_gpu_xent_chunk(&shapes[i], bytes));
            MX_CHECK(again == bytes, "asked for %zu, takes %zu of them", bytes, again);
        }
}

/* Sums that are launched together have a workspace each. */
MX_TEST(neighbours_launched_at_once_add_their_workspace)
{
    enum { N = 5, SIZE = 1 << 20 };
    mx_graph_run r;
    size_t one = 0;
    mx_graph_run_init(&r);
    for (int i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        mx_node *s = mx_sum_squares(&r.graph, mx_input(&r.graph, name, MX_SHAPE(SIZE), MX_F32));
        one = s->op->gpu_work_bytes(s, GIB);
        mx_graph_root(&r.graph, NULL, s);
    }
    MX_CHECK_OK(mx_program_init(&r.program, &r.graph, 1, &mx_cuda_traits));
    MX_CHECK(one > 0 && r.program.work_bytes == N * one, "%zu, of one %zu",
             r.program.work_bytes, one);
    mx_graph_run_fini(&r);
}

/* A program of few bytes of workspace and one of many. */
static void build(mx_graph_run *r, mx_session *s, bool large)
{
    mx_graph_run_init(r);
    r->shared = s;
    mx_node *q = mx_input(&r->graph, "q", MX_SHAPE(1, 8, 4, 16), MX_F32);
    mx_attention_attr a = {.causal = true, .scale = 0.25};
    mx_graph_root(&r->graph, "y", large ? mx_attention(&r->graph, q, q, q, a,
                                                       (mx_attention_extra){0})
                                        : mx_sum_squares(&r->graph, q));
    MX_CHECK_OK(mx_graph_run_compile(r, true));
}

/* A program goes on in the workspace that a later and larger one brought. */
MX_TEST(programs_of_a_session_share_a_workspace_that_grows)
{
    enum { SIZE = 8 * 4 * 16 };
    double x[SIZE], before = 0, after = 1;
    mx_session *s = NULL;
    mx_graph_run small, large;
    MX_CHECK_OK(mx_session_open(&s, "cpu", 2));
    mx_test_fill(x, SIZE, -1, 1, 3);
    build(&small, s, false);
    mx_graph_run_write(&small, "q", x);
    mx_graph_run_go(&small);
    mx_graph_run_read(&small, "y", &before);
    build(&large, s, true);
    MX_CHECK(large.program.work_bytes > small.program.work_bytes && small.program.work_bytes > 0,
             "%zu and %zu", large.program.work_bytes, small.program.work_bytes);
    void *work = large.exec->step[0].call.work;
    for (int i = 0; i < small.exec->n_steps; i++)
        MX_CHECK(small.exec->step[i].call.work == work, "step %d works elsewhere", i);
    mx_graph_run_write(&large, "q", x);
    mx_graph_run_go(&large);
    mx_graph_run_go(&small);
    mx_graph_run_read(&small, "y", &after);
    MX_CHECK(after == before && before > 0, "%g and %g", after, before);
    mx_graph_run_fini(&large);
    mx_graph_run_fini(&small);
    mx_session_close(s);
}

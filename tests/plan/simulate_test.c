/* simulate_test.c - kernels, traffic and pipelines against what can be worked out by hand. */
#include "../test.h"
#include "plan/simulate.h"
#include <math.h>
#include <string.h>

/* A chip without losses: 1e12 FLOP/s, 1e15 bytes/s. */
static mx_plan_chip ideal(void)
{
    mx_plan_chip c = {.name = "ideal",
                      .memory_bytes = 1e18,
                      .bytes_per_second = 1e15,
                      .units = 1,
                      .memory_share = 1};
    for (int r = 0; r < MX_RATES; r++)
        c.peak[r] = c.sustained[r] = 1e12;
    return c;
}

static const mx_network fast = {{{"inner", 8, 1e15, 0}, {"outer", 0, 1e15, 0}}, 2};

/* `layers` layers of one GEMM, (tokens, 256) x (256, 256), and nothing else. */
static mx_profile plain(int layers)
{
    mx_profile p = {.n_kinds = 1, .n_layers = layers, .length = 1024};
    p.kind[0].layers = layers;
    p.kind[0].work.n_gemm = 1;
    p.kind[0].work.gemm[0] = (mx_profile_gemm){.rows = 1, .n = 256, .k = 256};
    return p;
}

static double step(int layers, int stage, int chunks, int micro)
{
    mx_profile p = plain(layers);
    mx_plan_chip c = ideal();
    mx_run_kind r = {.rate = MX_RATE_BF16, .again = 0};
    mx_layout l = {.chips = stage,
                   .per_node = 8,
                   .tensor = 1,
                   .context = 1,
                   .stage = stage,
                   .data = 1,
                   .shard = 1,
                   .expert_shard = 1,
                   .expert = 1,
                   .expert_tensor = 1,
                   .chunks = chunks,
                   .microbatch = 1,
                   .n_microbatches = micro};
    mx_cost_request q = {&p, &l, &r, &c, &fast};
    mx_layer_costs costs;
    mx_step_time t;
    mx_layer_costs_of(&q, &costs);
    mx_simulate_step(&q, &costs, &t, NULL);
    MX_CHECK(fabs(t.compute + t.network + t.bubble + t.optimizer + t.stragglers - t.seconds) <
                 1e-9 * t.seconds,
             "parts of %d stages", stage);
    return t.seconds;
}

/* Of one layer: forward, and three times that with its backward pass. */
static const double FORWARD = 2.0 * 1024 * 256 * 256 / 1e12;

static void near(double got, double want, const char *what)
{
    MX_CHECK(fabs(got - want) <= 1e-6 * want, "%s: %.9g, expected %.9g", what, got, want);
}

MX_TEST(pipelines_take_what_their_formulas_say)
{
    double layer = 3 * FORWARD;
    near(step(8, 1, 1, 4), 4 * 8 * layer, "one stage");
    /* 1F1B: (m + p - 1)(F + B) of a stage */
    near(step(8, 4, 1, 8), (8 + 3) * 2 * layer, "1F1B");
    near(step(8, 2, 1, 1), 2 * 4 * layer, "one microbatch");
    near(step(8, 4, 1, 2), (2 + 3) * 2 * layer, "fewer microbatches than stages");
    /* interleaved: the bubble is a v-th */
    near(step(16, 4, 4, 8), 8 * 4 * layer + 3 * 1 * layer, "interleaved");
    near(step(8, 2, 2, 4), 4 * 4 * layer + 1 * 2 * layer, "two chunks");
}

MX_TEST(a_schedule_with_a_part_of_a_group_ends)
{
    double t = step(16, 4, 2, 6), least = 6 * 4 * 3 * FORWARD;
    MX_CHECK(t >= least && t < 3 * least, "%g s, at least %g", t, least);
}

MX_TEST(traffic_of_collectives)
{
    double sent[MX_LEVELS];
    mx_group_span eight = {8, 8}, nodes = {16, 8}, far = {4, 1};
    mx_traffic_bytes(MX_ALL_GATHER, 800, eight, sent);
    MX_CHECK(sent[0] == 700 && sent[1] == 0, "%g %g", sent[0], sent[1]);
    mx_traffic_bytes(MX_ALL_REDUCE, 800, nodes, sent);
    MX_CHECK(sent[0] == 1400 && sent[1] == 100, "%g %g", sent[0], sent[1]);
    mx_traffic_bytes(MX_ALL_TO_ALL, 1600, nodes, sent);
    MX_CHECK(sent[0] == 700 && sent[1] == 800, "%g %g", sent[0], sent[1]);
    mx_traffic_bytes(MX_SEND, 10, far, sent);
    MX_CHECK(sent[0] == 0 && sent[1] == 10, "%g %g", sent[0], sent[1]);
    mx_traffic_bytes(MX_ALL_REDUCE, 10, (mx_group_span){1, 1}, sent);
    MX_CHECK(sent[0] == 0 && sent[1] == 0, "%g %g", sent[0], sent[1]);
    mx_network w = {{{"inner", 8, 100, 1}, {"outer", 0, 10, 2}}, 2};
    near(mx_traffic_seconds(&w, MX_ALL_GATHER, 800, eight), 7 + 7, "inside: bytes and 7 steps");
    near(mx_traffic_seconds(&w, MX_ALL_GATHER, 800, nodes), 7 + 7 + 2, "the slower level, 8 steps");
}

MX_TEST(measured_gemms_correct_the_formula)
{
    mx_plan_chip c = ideal();
    mx_plan_gemm g = {4096, 4096, 4096, 1, MX_RATE_BF16};
    double before = mx_gemm_seconds(&c, &g);
    c.gemm.at[c.gemm.n++] = (mx_gemm_point){1, 4096, 4096, 4096, 0.5e12};
    near(mx_gemm_seconds(&c, &g), 2 * before, "half of the rate was measured");
    c.gemm.at[c.gemm.n++] = (mx_gemm_point){1, 64, 64, 64, 1e12};
    MX_CHECK(mx_gemm_seconds(&c, &g) > 1.9 * before, "a far point counts little");
}

/* Sums of int8 come as four bytes, and a kernel reads them again to write two. */
MX_TEST(sums_of_int8_are_scaled_by_a_kernel_of_their_own)
{
    mx_plan_chip c = ideal();
    double results = 4096.0 * 8192;
    c.bytes_per_second = 1e12;
    mx_plan_gemm g = {4096, 8192, 4096, 1, MX_RATE_FP8};
    double before = mx_gemm_seconds(&c, &g);
    g.rate = MX_RATE_INT8;
    near(mx_gemm_seconds(&c, &g), before + 6 * results / 1e12, "a GEMM of int8");
}

MX_TEST(random_bits_take_time_where_bytes_come_faster)
{
    mx_plan_chip c = ideal();
    near(mx_random_seconds(&c, 1e6, 0), 51 * 1e6 / 0.5e12, "instructions alone");
    near(mx_random_seconds(&c, 1e6, 51e9), 51 * 1e6 / 0.5e12 - 51e9 / 1e15, "beside bytes");
    MX_CHECK(mx_random_seconds(&c, 1e6, 1e15) == 0, "bytes take longer");
}

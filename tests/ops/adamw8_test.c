/* adamw8_test.c - moments of 8 bits: the map is bitsandbytes', and an update is that of float64 on
 * what the codes mean, rounded to the nearest number of the map. */
#include "ops/adamw8.h"

#include "base/rng.h"
#include "../compile/graph_run.h"
#include "ops.h"
#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 700, BLOCKS = 3, CODES = MX_ADAMW8_CODES };

/* From create_dynamic_map of bitsandbytes 0.50. */
MX_TEST(adamw8_has_the_map_of_bitsandbytes)
{
    static const struct {
        int i;
        double is_signed, is_unsigned;
    } want[] = {{0, -0x1.fc6666p-1, 0},
                {1, -0x1.f53334p-1, 0x1.5cf754p-22},
                {37, -0x1.e4p-2, 0x1.72b02p-9},
                {64, -0x1.93d70ap-4, 0x1.8ccccep-7},
                {100, -0x1.e978d4p-8, 0x1.00f5c4p-4},
                {126, -0x1.27476ep-21, 0x1.96b852p-4},
                {127, 0, 0x1.a8p-4},
                {128, 0x1.27476ep-21, 0x1.c4ccccp-4},
                {150, 0x1.56041ap-8, 0x1.0f999ap-2},
                {200, 0x1.de6666p-3, 0x1.3bccccp-1},
                {233, 0x1.653334p-1, 0x1.b29998p-1},
                {254, 0x1.fc6666p-1, 0x1.fe3334p-1},
                {255, 1, 1}};
    double s[CODES], u[CODES];
    mx_adamw8_map(true, s);
    mx_adamw8_map(false, u);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        MX_CHECK(s[want[i].i] == want[i].is_signed && u[want[i].i] == want[i].is_unsigned,
                 "number %d is %a and %a", want[i].i, s[want[i].i], u[want[i].i]);
    for (int i = 1; i < CODES; i++)
        MX_CHECK(s[i] > s[i - 1] && u[i] > u[i - 1], "number %d does not ascend", i);
}

typedef struct {
    double w[N], g[N], m[N], v[N], m_most[BLOCKS], v_most[BLOCKS];
} values;

static double draw(int stream, int i)
{
    return (double)(mx_hash64((uint64_t)stream, (uint64_t)i) >> 11) * 0x1p-53;
}

static void run(const values *in, const double *map, double scale, values *out)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *node[9] = {
        mx_input(g, "w", MX_SHAPE(N), MX_F32),           mx_input(g, "g", MX_SHAPE(N), MX_F32),
        mx_input(g, "m", MX_SHAPE(N), MX_U8),            mx_input(g, "v", MX_SHAPE(N), MX_U8),
        mx_input(g, "m_most", MX_SHAPE(BLOCKS), MX_F32), mx_input(g, "v_most", MX_SHAPE(BLOCKS),
                                                                  MX_F32),
        mx_input(g, "hyper", MX_SHAPE(4), MX_F32),       mx_table(g, MX_SHAPE(2, CODES), MX_F32,
                                                                  map),
        NULL};
    mx_node *u = mx_adamw8(g, node, (mx_adamw_rates){0.9, 0.99, 1e-8, 0, 0.1, 0});
    static const char *const name[] = {"w", "m", "v", "m_most", "v_most"};
    const double *from[] = {in->w, in->m, in->v, in->m_most, in->v_most};
    double *to[] = {out->w, out->m, out->v, out->m_most, out->v_most};
    char new_name[5][16];
    for (int i = 0; i < 5; i++) {
        snprintf(new_name[i], sizeof new_name[i], "new_%s", name[i]);
        mx_graph_root(g, new_name[i], i ? mx_output(g, u, i) : u);
    }
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    for (int i = 0; i < 5; i++)
        mx_graph_run_write(&r, name[i], from[i]);
    mx_graph_run_write(&r, "g", in->g);
    mx_graph_run_write(&r, "hyper", (double[]){0.01, scale, 3, 0});
    mx_graph_run_go(&r);
    for (int i = 0; i < 5; i++)
        mx_graph_run_read(&r, new_name[i], to[i]);
    mx_graph_run_fini(&r);
}

static void fill(values *x)
{
    for (int i = 0; i < N; i++) {
        x->w[i] = (float)(draw(1, i) - 0.5);
        x->g[i] = (float)((draw(2, i) - 0.5) * (i % 7 ? 1e-3 : 1));
        x->m[i] = floor(draw(3, i) * 256);
        x->v[i] = floor(draw(4, i) * 256);
    }
    for (int b = 0; b < BLOCKS; b++) {
        x->m_most[b] = 0.25 / (1 + b);
        x->v_most[b] = 0.5 / (1 + b);
    }
}

/* Is the code the nearest of the map for x, in units of the block's most? */
static void check_code(const double *map, double code, double x, int i, const char *what)
{
    int c = (int)code;
    double away = fabs(map[c] - x), slack = 1e-5 * fabs(x) + 1e-12;
    bool nearest = (c == 0 || away <= fabs(map[c - 1] - x) + slack) &&
                   (c == CODES - 1 || away <= fabs(map[c + 1] - x) + slack);
    bool keeps_sign = x < 0 && map[c] < 0 && c == 126; /* not 0, though that is nearer */
    bool stays_positive = x > 0 && map[0] == 0 && c == 1;
    MX_CHECK(nearest || keeps_sign || stays_positive, "%s %d: %g became %g", what, i, x, map[c]);
}

MX_TEST(adamw8_updates_as_float64_and_rounds_to_the_nearest_code)
{
    static values in, out;
    static double map[2 * CODES], m[N], v[N];
    double most[2][BLOCKS] = {{0}};
    mx_adamw8_map(true, map);
    mx_adamw8_map(false, map + CODES);
    fill(&in);
    run(&in, map, 0.5, &out);
    for (int i = 0; i < N; i++) {
        int b = i / MX_ADAMW8_BLOCK;
        double g = 0.5 * in.g[i];
        m[i] = 0.9 * map[(int)in.m[i]] * in.m_most[b] + 0.1 * g;
        v[i] = 0.99 * map[CODES + (int)in.v[i]] * in.v_most[b] + 0.01 * g * g;
        double step = m[i] / (1 - pow(0.9, 3)) / (sqrt(v[i] / (1 - pow(0.99, 3))) + 1e-8);
        double w = in.w[i] - 0.01 * (step + 0.1 * in.w[i]);
        MX_CHECK(fabs(out.w[i] - w) < 2e-6 * (1 + fabs(step)), "weight %d is %g, not %g", i,
                 out.w[i], w);
        most[0][b] = fmax(most[0][b], fabs(m[i]));
        most[1][b] = fmax(most[1][b], v[i]);
    }
    for (int b = 0; b < BLOCKS; b++)
        MX_CHECK(fabs(out.m_most[b] / most[0][b] - 1) < 1e-5 &&
                     fabs(out.v_most[b] / most[1][b] - 1) < 1e-5, "block %d: %g and %g", b,
                 out.m_most[b], out.v_most[b]);
    for (int i = 0; i < N; i++) {
        int b = i / MX_ADAMW8_BLOCK;
        check_code(map, out.m[i], m[i] / most[0][b], i, "first moment");
        check_code(map + CODES, out.v[i], v[i] / most[1][b], i, "second moment");
    }
}

MX_TEST(adamw8_leaves_everything_where_a_gradient_is_not_finite)
{
    static values in, out;
    static double map[2 * CODES];
    mx_adamw8_map(true, map);
    mx_adamw8_map(false, map + CODES);
    fill(&in);
    run(&in, map, NAN, &out);
    MX_CHECK(memcmp(in.m, out.m, sizeof in.m) == 0 && memcmp(in.v, out.v, sizeof in.v) == 0 &&
             memcmp(in.w, out.w, sizeof in.w) == 0);
}

/* A weight whose gradient is small beside those of its block, and then 0, moves on by about the
 * rate: its second moment is still there. */
MX_TEST(adamw8_small_moments_do_not_divide_by_eps)
{
    static values a, b;
    static double map[2 * CODES];
    mx_adamw8_map(true, map);
    mx_adamw8_map(false, map + CODES);
    fill(&a);
    for (int i = 0; i < N; i++) {
        a.g[i] = i % 2 ? 1 : 2e-4;
        a.m[i] = 127; /* 0 */
        a.v[i] = 0;
    }
    run(&a, map, 1, &b);
    memcpy(b.g, (double[N]){0}, sizeof b.g);
    values *next = &a;
    run(&b, map, 1, next);
    for (int i = 0; i < N; i += 2) {
        MX_CHECK(b.v[i] > 0, "the second moment of %d has become 0", i);
        double moved = fabs(next->w[i] - b.w[i]);
        MX_CHECK(moved < 0.05, "%d has moved by %g", i, moved);
    }
}

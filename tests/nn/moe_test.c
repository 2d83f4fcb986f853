/* moe_test.c - mixtures of experts against loops that say what they mean. */
#include "../compile/graph_run.h"
#include "../test.h"

#include "compile/passes.h"
#include "nn/moe.h"
#include "ops.h"
#include <math.h>
#include <string.h>

enum { B = 2, S = 5, D = 4, E = 3, K = 2, F = 6, N = B * S };

/* A graph with x (B, S, D), the router's logits (N, E) and what a block adds to it. */
typedef struct {
    mx_graph_run r;
    mx_build b;
    mx_node *x, *logits;
    double xs[N * D], ls[N * E];
} bench;

static void open(bench *t)
{
    mx_graph_run_init(&t->r);
    mx_graph *g = &t->r.graph;
    g->param_dtype = MX_F64;
    t->b = (mx_build){.batch = B, .seq = S, .init_scale = 0.5};
    t->x = mx_input(g, "x", MX_SHAPE(B, S, D), MX_F64);
    t->logits = mx_input(g, "logits", MX_SHAPE(N, E), MX_F64);
    mx_test_fill(t->xs, N * D, -1, 1, 1);
    mx_test_fill(t->ls, N * E, -2, 2, 2);
}

static void go(bench *t)
{
    MX_CHECK_OK(mx_graph_run_compile(&t->r, true));
    mx_graph_run_write(&t->r, "x", t->xs);
    mx_graph_run_write(&t->r, "logits", t->ls);
    mx_graph_run_go(&t->r);
}

static const double *variable(bench *t, const char *name)
{
    for (int i = 0; i < mx_session_count(t->r.session); i++) {
        mx_var *v = mx_session_var(t->r.session, i);
        if (strcmp(v->name, name) == 0)
            return mx_var_host(t->r.session, v);
    }
    MX_CHECK(false, "no variable %s", name);
    return NULL;
}

/* The k best of a token, the lower index first among equals; NaN above all. */
static void best(const double *score, int *out)
{
    bool taken[E] = {0};
    for (int j = 0; j < K; j++) {
        int top = -1;
        for (int e = 0; e < E; e++)
            if (!taken[e] &&
                (top < 0 || score[e] > score[top] || (isnan(score[e]) && !isnan(score[top]))))
                top = e;
        taken[out[j] = top] = true;
    }
}

static void softmax(const double *x, double *p)
{
    double sum = 0;
    for (int e = 0; e < E; e++)
        sum += p[e] = exp(x[e]);
    for (int e = 0; e < E; e++)
        p[e] /= sum;
}

/* y += weight * down(silu(gate x) * up x) of one expert. */
static void expert(const double *gate, const double *up, const double *down, const double *x,
                   double weight, double *y)
{
    double h[F];
    for (int f = 0; f < F; f++) {
        double u = 0, v = 0;
        for (int d = 0; d < D; d++) {
            u += gate[f * D + d] * x[d];
            v += up[f * D + d] * x[d];
        }
        h[f] = u / (1 + exp(-u)) * v;
    }
    for (int d = 0; d < D; d++)
        for (int f = 0; f < F; f++)
            y[d] += weight * down[d * F + f] * h[f];
}

/* The block as the loops have it: `places` entries of an expert in each sequence; 0: all. */
static void reference(bench *t, int places, double *y)
{
    const double *gate = variable(t, "experts.*.gate.weight"),
                 *up = variable(t, "experts.*.up.weight");
    const double *down = variable(t, "experts.*.down.weight");
    memset(y, 0, sizeof(double) * N * D);
    for (int b = 0; b < B; b++) {
        int load[E] = {0};
        for (int n = b * S; n < (b + 1) * S; n++) {
            double p[E], sum = 0;
            int e[K];
            softmax(t->ls + n * E, p);
            best(p, e);
            for (int j = 0; j < K; j++)
                sum += p[e[j]];
            for (int j = 0; j < K; j++)
                if (!places || load[e[j]]++ < places)
                    expert(gate + e[j] * F * D, up + e[j] * F * D, down + e[j] * D * F,
                           t->xs + n * D, p[e[j]] / sum, y + n * D);
        }
    }
}

static void build_block(bench *t, double capacity)
{
    mx_graph *g = &t->r.graph;
    mx_moe m = {.experts = E, .k = K, .d_ff = F, .capacity = capacity};
    mx_gating choice = {.k = K, .renormalise = true};
    mx_routing r = mx_route(g, t->logits, mx_softmax(g, t->logits), choice);
    mx_expert_names names = {"gate", "up", "down"};
    mx_graph_root(g, "y", mx_expert_mlp(g, &t->b, t->x, &r, &m, names, MX_ACT_SILU));
}

static void check_block(bench *t, int places)
{
    double y[N * D], want[N * D];
    reference(t, places, want);
    mx_graph_run_read(&t->r, "y", y);
    double far = mx_test_distance(y, want, N * D, 1e-3);
    MX_CHECK(far < 1e-12, "with %d places: %g", places, far);
}

MX_TEST(moe_dropless_equals_loops)
{
    bench t;
    open(&t);
    build_block(&t, -1);
    go(&t);
    check_block(&t, 0);
    mx_graph_run_fini(&t.r);
}

MX_TEST(moe_drops_what_an_expert_has_no_place_for)
{
    bench t;
    open(&t);
    build_block(&t, 0.6); /* 5 tokens x 2 choices / 3 experts x 0.6 = 2 places */
    go(&t);
    check_block(&t, 2);
    mx_graph_run_fini(&t.r);
}

MX_TEST(moe_capacity_that_holds_everything_drops_nothing)
{
    bench t;
    open(&t);
    build_block(&t, 3);
    go(&t);
    check_block(&t, 0);
    mx_graph_run_fini(&t.r);
}

/* Every token to the same two experts: one has no rows at all, and its gradient is zero. */
MX_TEST(moe_expert_without_tokens)
{
    bench t;
    open(&t);
    for (int n = 0; n < N; n++) {
        t.ls[n * E] = 5;
        t.ls[n * E + 1] = -5;
        t.ls[n * E + 2] = 4;
    }
    build_block(&t, -1);
    mx_graph *g = &t.r.graph;
    mx_node *w = mx_graph_find(g, "experts.*.down.weight"), *dw;
    mx_node *y = g->root[0];
    mx_gradients(g, mx_sum_all(g, mx_mul(g, y, y)), NULL, &w, 1, &dw);
    mx_graph_root(g, "dw", dw);
    go(&t);
    check_block(&t, 0);
    double have[E * D * F], most[E] = {0};
    mx_graph_run_read(&t.r, "dw", have);
    for (int i = 0; i < E * D * F; i++)
        most[i / (D * F)] = fmax(most[i / (D * F)], fabs(have[i]));
    MX_CHECK(most[0] > 0 && most[1] == 0 && most[2] > 0, "%g %g %g", most[0], most[1], most[2]);
    mx_graph_run_fini(&t.r);
}

/* Equal scores go to the lower expert; a token whose logits are not numbers gives no numbers and
 * leaves the other tokens as they are. */
MX_TEST(moe_ties_and_nan_logits)
{
    bench t;
    open(&t);
    t.ls[0] = t.ls[1] = t.ls[2] = 0.25;
    for (int e = 0; e < E; e++)
        t.ls[3 * E + e] = e == 1 ? NAN : 0;
    build_block(&t, -1);
    go(&t);
    double y[N * D], want[N * D];
    reference(&t, 0, want);
    mx_graph_run_read(&t.r, "y", y);
    for (int n = 0; n < N; n++)
        for (int d = 0; d < D; d++)
            MX_CHECK(n == 3 ? isnan(y[n * D + d]) : fabs(y[n * D + d] - want[n * D + d]) < 1e-12,
                     "token %d: %g, expected %g", n, y[n * D + d], want[n * D + d]);
    mx_graph_run_fini(&t.r);
}

/* Groups of one expert: with one open group only the best expert's own group can be chosen from. */
MX_TEST(moe_groups_and_bias_choose_but_do_not_weigh)
{
    enum { G = 2, EE = 4 };
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *scores = mx_input(g, "scores", MX_SHAPE(2, EE), MX_F64);
    mx_node *bias = mx_input(g, "bias", MX_SHAPE(EE), MX_F64);
    mx_gating c = {
        .k = 2, .scale = 2, .bias = bias, .groups = G, .open_groups = 1, .group_best = 2};
    mx_routing route = mx_route(g, scores, scores, c);
    mx_graph_root(g, "expert", route.expert);
    mx_graph_root(g, "weight", route.weight);
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    /* Row 0: the first group has the best expert, the second the better sum. Row 1: the bias
     * decides. */
    double s[] = {0.9, 0.0, 0.5, 0.6, 0.5, 0.4, 0.3, 0.2}, bb[] = {0, 0, 0, 0.5};
    double expert_[4], weight[4], we[] = {3, 2, 3, 2}, ww[] = {1.2, 1.0, 0.4, 0.6};
    mx_graph_run_write(&r, "scores", s);
    mx_graph_run_write(&r, "bias", bb);
    mx_graph_run_go(&r);
    mx_graph_run_read(&r, "expert", expert_);
    mx_graph_run_read(&r, "weight", weight);
    for (int i = 0; i < 4; i++)
        MX_CHECK(expert_[i] == we[i] && fabs(weight[i] - ww[i]) < 1e-12, "%d: expert %g weight %g",
                 i, expert_[i], weight[i]);
    mx_graph_run_fini(&r);
}

MX_TEST(moe_more_choices_than_experts_is_an_error)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_node *logits = mx_input(&r.graph, "logits", MX_SHAPE(4, 3), MX_F32);
    mx_graph_root(&r.graph, "y", mx_route_top(&r.graph, logits, 4).weight);
    MX_CHECK_ERROR(mx_graph_run_compile(&r, true), "the 4 largest of 3");
    mx_graph_run_fini(&r);
}

MX_TEST(moe_losses_equal_loops)
{
    bench t;
    open(&t);
    mx_graph *g = &t.r.graph;
    mx_moe m = {.experts = E, .k = K, .balance = true, .balance_weight = 0.25, .z_weight = 0.125};
    mx_routing r = mx_route(g, t.logits, mx_softmax(g, t.logits), (mx_gating){.k = K});
    mx_balance(g, &t.b, &m, &r);
    mx_routing r2 = mx_route(g, mx_affine(g, t.logits, -1, 0),
                             mx_softmax(g, mx_affine(g, t.logits, -1, 0)), (mx_gating){.k = K});
    mx_balance(g, &t.b, &m, &r2);
    mx_balance_finish(g, &t.b);
    MX_CHECK(t.b.aux_loss != NULL, "the losses are on");
    mx_graph_root(g, "aux", t.b.aux_loss);
    go(&t);
    double load[E] = {0}, share[E] = {0}, z = 0, balance = 0, have;
    for (int layer = 0; layer < 2; layer++)
        for (int n = 0; n < N; n++) {
            double x[E], p[E], sum = 0;
            int e[K];
            for (int i = 0; i < E; i++)
                x[i] = (layer ? -1 : 1) * t.ls[n * E + i], sum += exp(x[i]);
            softmax(x, p);
            best(p, e);
            for (int j = 0; j < K; j++)
                load[e[j]] += 1.0 / (2 * N);
            for (int i = 0; i < E; i++)
                share[i] += p[i] / (2 * N);
            z += log(sum) * log(sum) / (2 * N);
        }
    for (int i = 0; i < E; i++)
        balance += E * load[i] * share[i];
    mx_graph_run_read(&t.r, "aux", &have);
    double want = 0.25 * balance + 0.125 * z;
    MX_CHECK(fabs(have - want) < 1e-12, "%g, expected %g", have, want);
    mx_graph_run_fini(&t.r);
}

/* Experts with more than their share lose `rate`, those with less gain it; outside training nothing
 * moves. */
MX_TEST(moe_bias_moves_towards_balance)
{
    for (int training = 0; training < 2; training++) {
        bench t;
        open(&t);
        mx_graph *g = &t.r.graph;
        g->param_dtype = MX_F32;
        t.b.training = training;
        for (int n = 0; n < N; n++)
            for (int e = 0; e < E; e++)
                t.ls[n * E + e] = e == 0 ? 3 : e == 1 ? (n % 2 ? 1 : -1) : 0;
        mx_node *bias = mx_router_bias(g, "bias", E);
        mx_node *scores = mx_sigmoid(g, mx_cast(g, t.logits, MX_F32));
        mx_routing r =
            mx_route(g, mx_cast(g, t.logits, MX_F32), scores, (mx_gating){.k = K, .bias = bias});
        mx_router_bias_update(g, &t.b, bias, &r, 0.5);
        mx_graph_root(g, "weight", r.weight);
        go(&t);
        const float *v = (const void *)variable(&t, "bias");
        /* Expert 0 takes every token; 1 and 2 take half of them each, less than two thirds. */
        float want[E] = {training ? -0.5f : 0, training ? 0.5f : 0, training ? 0.5f : 0};
        for (int e = 0; e < E; e++)
            MX_CHECK(v[e] == want[e], "training %d, expert %d: %g", training, e, (double)v[e]);
        mx_graph_run_fini(&t.r);
    }
}

/* attention_dropout_test.c - attention_dropout: the op put together of others is the op, what it
 * drops, its gradient, and the same run on every mesh. */
#include "../compile/graph_run.h"
#include "../test.h"
#include "tiny_run.h"

#include "base/arena.h"
#include "base/io.h"
#include "base/rng.h"
#include "compile/passes.h"
#include "exec/dropout.h"
#include "ops.h"
#include "train/report/metrics.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, S = 6, H = 4, K = 2, D = 4, E = 3, NQ = B * S * H * D, NK = B * S * K * D,
       NV = B * S * K * E, NO = B * S * H * E };

typedef struct {
    double q[NQ], k[NK], v[NV], out[NO], weigh[NO], dq[NQ], dv[NV], sinks[H];
    double ids[B * S];
} data;

/* The attention of a layer, with what `a` and the flags say, dropped at `rate`. */
static void run(data *d, mx_attention_attr a, bool segments, bool sinks, double rate)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    const double seed = 5;
    mx_node *in[3] = {mx_input(g, "q", MX_SHAPE(B, S, H, D), MX_F32),
                      mx_input(g, "k", MX_SHAPE(B, S, K, D), MX_F32),
                      mx_input(g, "v", MX_SHAPE(B, S, K, E), MX_F32)};
    mx_node *w = mx_input(g, "w", MX_SHAPE(B, S, H, E), MX_F32), *grads[3];
    mx_attention_extra x = {0};
    if (segments)
        x.q_seg = x.k_seg = mx_input(g, "ids", MX_SHAPE(B, S), MX_I32);
    if (sinks)
        x.sinks = mx_input(g, "sinks", MX_SHAPE(H), MX_F32);
    mx_scope(g, "model.layers.%d", 0);
    mx_node *y = mx_scope_end(g, mx_attention(g, in[0], in[1], in[2], a, x));
    mx_graph_root(g, "out", mx_affine(g, y, 1, 0));
    mx_node *loss = mx_sum_all(g, mx_mul(g, y, w));
    mx_graph_root(g, "loss", loss);
    mx_pass_attention_dropout(g, rate);
    mx_gradients(g, mx_graph_find_root(g, "loss"), NULL, in, 3, grads);
    mx_graph_root(g, "dq", grads[0]);
    mx_graph_root(g, "dv", grads[2]);
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    mx_graph_run_write(&r, "q", d->q);
    mx_graph_run_write(&r, "k", d->k);
    mx_graph_run_write(&r, "v", d->v);
    mx_graph_run_write(&r, "w", d->weigh);
    if (segments)
        mx_graph_run_write(&r, "ids", d->ids);
    if (sinks)
        mx_graph_run_write(&r, "sinks", d->sinks);
    if (rate > 0)
        mx_graph_run_write(&r, "dropout_seed", &seed);
    mx_graph_run_go(&r);
    mx_graph_run_read(&r, "out", d->out);
    mx_graph_run_read(&r, "dq", d->dq);
    mx_graph_run_read(&r, "dv", d->dv);
    mx_graph_run_fini(&r);
}

static void fill(data *d)
{
    mx_test_fill(d->q, NQ, -1, 1, 1);
    mx_test_fill(d->k, NK, -1, 1, 2);
    mx_test_fill(d->v, NV, -1, 1, 3);
    mx_test_fill(d->weigh, NO, -1, 1, 4);
    mx_test_fill(d->sinks, H, -1, 1, 5);
    for (int i = 0; i < B * S; i++)
        d->ids[i] = 1 + (i % S > 3);
}

/* At a rate that drops nothing it is the op, whatever the mask. */
MX_TEST(attention_put_together_is_the_op)
{
    static const struct {
        mx_attention_attr a;
        bool segments, sinks;
    } kinds[] = {{{.causal = true, .scale = 0.5}, false, false},
                 {{.scale = 0.5}, true, false},
                 {{.causal = true, .scale = 0.5, .window = 3}, true, true},
                 {{.window = 2, .scale = 0.3}, false, false},
                 {{.causal = true, .chunk = 3, .scale = 0.5}, false, false},
                 {{.causal = true, .softcap = 0.4, .scale = 2}, false, true}};
    static data op, put;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        fill(&op);
        fill(&put);
        run(&op, kinds[i].a, kinds[i].segments, kinds[i].sinks, 0);
        run(&put, kinds[i].a, kinds[i].segments, kinds[i].sinks, 1e-12);
        double o = mx_test_distance(put.out, op.out, NO, 1e-3);
        double q = mx_test_distance(put.dq, op.dq, NQ, 1e-3);
        double v = mx_test_distance(put.dv, op.dv, NV, 1e-3);
        MX_CHECK(o < 1e-5 && q < 1e-5 && v < 1e-5, "kind %zu: off by %g, dq %g, dv %g", i, o, q, v);
    }
}

/* What is kept of the probability of query i, key j, by its index in the whole (B, H, S, S). */
static double kept(int b, int h, int i, int j, double rate)
{
    uint64_t at = (uint64_t)(((b * H + h) * S + i) * S + j);
    mx_random4 r = mx_philox(5, mx_stream_of("model.layers.0.attention_dropout"), at / 4);
    return mx_uniform_f32(r.v[at % 4]) < (float)rate ? 0 : 1 / (1 - rate);
}

/* Causal attention in float64, with what `kept` says: the sum that the graph's loss is. */
static double by_hand(const data *d, double *out, double rate)
{
    double loss = 0;
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < S; i++) {
                double p[S], sum = 0;
                for (int j = 0; j <= i; j++) {
                    double s = 0;
                    for (int c = 0; c < D; c++)
                        s += d->q[((b * S + i) * H + h) * D + c] *
                             d->k[((b * S + j) * K + h * K / H) * D + c];
                    sum += p[j] = exp(0.5 * s);
                }
                for (int c = 0; c < E; c++) {
                    double y = 0;
                    int at = ((b * S + i) * H + h) * E + c;
                    for (int j = 0; j <= i; j++)
                        y += p[j] / sum * kept(b, h, i, j, rate) *
                             d->v[((b * S + j) * K + h * K / H) * E + c];
                    out[at] = y;
                    loss += y * d->weigh[at];
                }
            }
    return loss;
}

MX_TEST(attention_dropout_drops_by_global_index_and_its_gradient_follows)
{
    static data d;
    static double out[NO], dq[NQ], dv[NV];
    const double rate = 0.3, eps = 1e-5;
    fill(&d);
    run(&d, (mx_attention_attr){.causal = true, .scale = 0.5}, false, false, rate);
    by_hand(&d, out, rate);
    double off = mx_test_distance(d.out, out, NO, 1e-3);
    MX_CHECK(off < 1e-5, "what was not dropped is off by %g", off);
    struct {
        double *x, *dx;
        int n;
    } wrt[] = {{d.q, dq, NQ}, {d.v, dv, NV}};
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < wrt[w].n; i++) {
            double x = wrt[w].x[i];
            wrt[w].x[i] = x + eps;
            double more = by_hand(&d, out, rate);
            wrt[w].x[i] = x - eps;
            wrt[w].dx[i] = (more - by_hand(&d, out, rate)) / (2 * eps);
            wrt[w].x[i] = x;
        }
    double q = mx_test_distance(d.dq, dq, NQ, 1e-3), v = mx_test_distance(d.dv, dv, NV, 1e-3);
    MX_CHECK(q < 2e-5 && v < 2e-5, "gradients are off: dq %g, dv %g", q, v);
}

/* --- runs --- */

#define RUN "steps=4", "base_num_decoder_layers=2", "dataset_type=corpus", "sharding_tolerance=1"

static double read_loss(const char *folder, const char *name, int64_t at)
{
    char path[1024];
    mx_arena mem = {0};
    mx_series s = {0};
    snprintf(path, sizeof path, "%s/%s/r/metrics.jsonl", folder, name);
    MX_CHECK_OK(mx_metrics_read(path, "loss", &mem, &s));
    double y = at < s.n ? s.y[at] : NAN;
    mx_arena_fini(&mem);
    return y;
}

static void train(const char *folder, const char *name, const char *rate, const char *mesh,
                  const char *batch)
{
    MX_CHECK_OK(tiny_train(folder, name, (const char *[]){RUN, rate, batch, mesh, NULL}));
}

MX_TEST(attention_dropout_is_the_same_on_every_mesh)
{
    static const struct {
        const char *name, *mesh, *batch;
    } meshes[] = {{"fsdp2_tensor2", "mesh=fsdp=2,tensor=2", "per_device_batch_size=1"},
                  {"data2_context2", "mesh=data=2,context=2", "per_device_batch_size=1"}};
    char folder[256];
    tiny_folder(folder, sizeof folder);
    train(folder, "none", "attention_dropout=0", NULL, "per_device_batch_size=4");
    train(folder, "one", "attention_dropout=0.3", NULL, "per_device_batch_size=4");
    MX_CHECK(read_loss(folder, "one", 0) != read_loss(folder, "none", 0),
             "attention_dropout makes no difference");
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        train(folder, meshes[i].name, "attention_dropout=0.3", meshes[i].mesh, meshes[i].batch);
        for (int64_t k = 0; k < 4; k++) {
            double a = read_loss(folder, "one", k), b = read_loss(folder, meshes[i].name, k);
            MX_CHECK(fabs(a - b) < 2e-6 * a, "%s, step %lld: loss %.9g, on one device %.9g",
                     meshes[i].name, (long long)k + 1, b, a);
        }
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

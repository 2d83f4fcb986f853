/* dropout_test.c - dropout_rate: what is dropped, its gradient, and the same bits on every mesh. */
#include "../compile/graph_run.h"
#include "../test.h"
#include "tiny_run.h"

#include "base/arena.h"
#include "base/io.h"
#include "compile/passes.h"
#include "ops.h"
#include "train/report/metrics.h"
#include <math.h>
#include <stdio.h>

MX_TEST(dropout_drops_its_share_and_the_gradient_follows)
{
    enum { N = 6000 };
    static double x[N], w[N], y[N], dx[N];
    const double rate = 0.3, seed = 11;
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *nx = mx_input(g, "x", MX_SHAPE(N), MX_F64);
    mx_node *nw = mx_input(g, "w", MX_SHAPE(N), MX_F64);
    mx_node *s = mx_input(g, "seed", MX_SCALAR, MX_I64), *d;
    mx_node *ny = mx_dropout(g, nx, s, 5, rate);
    mx_gradients(g, mx_sum_all(g, mx_mul(g, mx_mul(g, ny, ny), nw)), NULL, &nx, 1, &d);
    mx_graph_root(g, "y", mx_affine(g, ny, 1, 0));
    mx_graph_root(g, "dx", d);
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    mx_test_fill(x, N, 1, 2, 1);
    mx_test_fill(w, N, -1, 1, 2);
    mx_graph_run_write(&r, "x", x);
    mx_graph_run_write(&r, "w", w);
    mx_graph_run_write(&r, "seed", &seed);
    mx_graph_run_go(&r);
    mx_graph_run_read(&r, "y", y);
    mx_graph_run_read(&r, "dx", dx);
    int n = 0;
    double worst = 0, scale = 1 / (1 - rate);
    for (int i = 0; i < N; i++) {
        n += y[i] == 0;
        double kept = y[i] == 0 ? 0 : scale;
        worst = fmax(worst, fabs(y[i] - kept * x[i]));
        worst = fmax(worst, fabs(dx[i] - 2 * w[i] * kept * kept * x[i]));
    }
    MX_CHECK(fabs(n / (double)N - rate) < 0.03, "%d of %d were dropped", n, N);
    MX_CHECK(worst < 1e-12, "off by %g", worst);
    mx_graph_run_fini(&r);
}

/* --- runs --- */

#define RUN                                                                                        \
    "steps=4", "eval_interval=4", "eval_steps=1", "base_num_decoder_layers=2",                     \
        "dataset_type=corpus"
#define DROPPED RUN, "dropout_rate=0.2"

static double read_loss(const char *folder, const char *name, const char *metric, int64_t at)
{
    char path[1024];
    mx_arena mem = {0};
    mx_series s = {0};
    snprintf(path, sizeof path, "%s/%s/r/metrics.jsonl", folder, name);
    MX_CHECK_OK(mx_metrics_read(path, metric, &mem, &s));
    double y = at < s.n ? s.y[at] : NAN;
    mx_arena_fini(&mem);
    return y;
}

MX_TEST(dropout_is_the_same_on_every_mesh)
{
    static const struct {
        const char *name, *mesh, *batch;
    } meshes[] = {{"fsdp4_tensor2", "mesh=fsdp=4,tensor=2", "per_device_batch_size=1"},
                  {"data2_context2", "mesh=data=2,context=2", "per_device_batch_size=2"}};
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "none", (const char *[]){RUN, "per_device_batch_size=8", NULL}));
    MX_CHECK_OK(tiny_train(folder, "one",
                           (const char *[]){DROPPED, "per_device_batch_size=8", NULL}));
    MX_CHECK(read_loss(folder, "one", "loss", 0) != read_loss(folder, "none", "loss", 0),
             "dropout_rate makes no difference");
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        const char *args[] = {DROPPED, "sharding_tolerance=1", meshes[i].mesh, meshes[i].batch,
                              NULL};
        MX_CHECK_OK(tiny_train(folder, meshes[i].name, args));
        for (int64_t k = 0; k < 4; k++) {
            double a = read_loss(folder, "one", "loss", k);
            double b = read_loss(folder, meshes[i].name, "loss", k);
            MX_CHECK(fabs(a - b) < 2e-6 * a, "%s, step %lld: loss %.9g, on one device %.9g",
                     meshes[i].name, (long long)k + 1, b, a);
        }
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

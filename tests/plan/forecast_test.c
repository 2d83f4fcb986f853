/* forecast_test.c - models on meshes: estimates against compiled programs, the search against
 * trying everything. */
#include "../test.h"
#include "models/from_config.h"
#include "plan/search.h"
#include "keys/keys.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    mx_config *cfg;
    mx_model_spec model;
} subject;

static void open_model(subject *s, const char *name, const char *length, const char *remat)
{
    char model[64], seq[64], policy[64];
    snprintf(policy, sizeof policy, "remat_policy=%s", remat);
    snprintf(model, sizeof model, "model_name=%s", name);
    snprintf(seq, sizeof seq, "max_target_length=%s", length);
    const char *args[] = {model, seq, policy, "per_device_batch_size=1",
                          "gradient_accumulation_steps=2"};
    mx_config_request r = {.schema = &mx_keys,

                           .user = NULL,
                           .home = "configs",
                           .args = args,
                           .n_args = 5};
    *s = (subject){0};
    MX_CHECK_OK(mx_config_load(&s->cfg, &r));
    MX_CHECK_OK(mx_model_from_config(&s->model, s->cfg));
}

static void close_model(subject *s)
{
    mx_model_spec_fini(&s->model);
    mx_config_free(s->cfg);
}

static const mx_topology_tables tables = {"configs", "", "", "", 1};

/* Fills nodes from the innermost axis out, as mesh= does. */
static mx_mesh mesh_of(const char *text, int64_t per_node)
{
    mx_mesh m = {0};
    MX_CHECK_OK(mx_mesh_parse(&m, text));
    for (int a = MX_AXIS_COUNT - 1; a >= 0; a--) {
        int degree = m.ici[a] > 1 ? m.ici[a] : 1;
        m.ici[a] = degree <= per_node ? degree : (int)per_node;
        m.dcn[a] = degree / m.ici[a];
        per_node /= m.ici[a];
    }
    return m;
}

/* Within a share of what is compiled, or within what small models have beside their activations. */
static void check_estimate(subject *s, const char *topology, const char *mesh, double limit)
{
    mx_arena a = {0};
    mx_forecast *f = MX_NEW(&a, mx_forecast);
    MX_CHECK_OK(mx_topology_open(&f->machine, topology, &tables));
    f->mesh = mesh_of(mesh, f->machine.per_node);
    MX_CHECK_OK(mx_forecast_make(f, s->cfg, &s->model));
    double off = f->estimate.total - f->memory.total;
    MX_CHECK(fabs(off) < limit * f->memory.total || (limit >= 0.2 && fabs(off) < 1.5 * 0x1p30),
             "%s on %s: %.1f GiB estimated, %.1f compiled", mesh, topology,
             f->estimate.total / 0x1p30, f->memory.total / 0x1p30);
    double counted = f->plan.model_flops * (double)f->layout.chips;
    /* rows of experts are counted as many as the buffer of an exchange holds */
    MX_CHECK(f->layout.expert > 1 || fabs(counted / f->model_flops - 1) < 0.05,
             "%s: %g FLOP compiled, %g by the profile", mesh, counted, f->model_flops);
    MX_CHECK(f->traffic.sent[0] > 0 && f->time.seconds > 0, "%s", mesh);
    mx_arena_fini(&a);
}

MX_TEST(estimates_are_near_what_is_compiled)
{
    subject s;
    open_model(&s, "llama3.2-1b", "2048", "full");
    check_estimate(&s, "h100x8", "fsdp=8", 0.2);
    check_estimate(&s, "h100x8", "data=2,fsdp=4", 0.2);
    check_estimate(&s, "h100x16", "fsdp=8,tensor=2", 0.2);
    close_model(&s);
    /* what the tensor axis has gathered is kept whole */
    for (int full = 0; full < 2; full++) {
        open_model(&s, "llama3.1-8b", "4096", full ? "full" : "minimal");
        check_estimate(&s, "h100x8", "tensor=8", 0.1);
        close_model(&s);
    }
    /* and the keys and values of all context ranks */
    open_model(&s, "llama3.1-8b", "65536", "minimal");
    check_estimate(&s, "h100x8", "context=8", 0.12);
    close_model(&s);
    open_model(&s, "moe-100m", "1024", "full");
    check_estimate(&s, "h100x8", "fsdp=4,expert=2", 0.2);
    close_model(&s);
}

/* A copy of all weights on every rank would be what fsdp is there to avoid. */
MX_TEST(gathered_weights_are_not_kept_beside_replicas)
{
    subject s;
    mx_arena a = {0};
    mx_forecast *f = MX_NEW(&a, mx_forecast);
    open_model(&s, "llama3.2-1b", "1024", "minimal");
    MX_CHECK_OK(mx_topology_open(&f->machine, "h100x8", &tables));
    f->mesh = mesh_of("data=2,fsdp=4", 8);
    MX_CHECK_OK(mx_forecast_make(f, s.cfg, &s.model));
    MX_CHECK(f->memory.communication < 0.3 * 2 * f->profile.parameters,
             "%.0f MiB of collectives' results alive", f->memory.communication / 0x1p20);
    close_model(&s);
    mx_arena_fini(&a);
}

/* Every layout that fits, simulated. */
static double exhaustive(const mx_search_request *q)
{
    mx_search all = {0};
    mx_search_request every = *q;
    every.simulate_all = true;
    MX_CHECK_OK(mx_search_run(&all, &every));
    double best = all.n ? all.best[0].time.seconds : 0;
    mx_search_fini(&all);
    return best;
}

static void check_search(const char *model, const char *length, const char *topology,
                         int64_t sequences)
{
    subject s;
    mx_topology t;
    mx_search some = {0};
    open_model(&s, model, length, "full");
    MX_CHECK_OK(mx_topology_open(&t, topology, &tables));
    mx_search_request q = {&t, &s.model, s.cfg, sequences, true, false};
    MX_CHECK_OK(mx_search_run(&some, &q));
    double best = exhaustive(&q);
    MX_CHECK(some.n > 0 && best > 0 && some.best[0].time.seconds <= 1.02 * best,
             "%s on %s: %g s chosen, %g s is the best", model, topology,
             some.n ? some.best[0].time.seconds : 0, best);
    mx_search_fini(&some);
    close_model(&s);
}

MX_TEST(the_search_finds_what_trying_everything_finds)
{
    check_search("llama3.2-1b", "4096", "h100x8", 64);
    check_search("moe-100m", "1024", "h100x16", 128);
}

MX_TEST(a_machine_that_is_too_small_says_what_is_least)
{
    subject s;
    mx_topology t;
    mx_search r = {0};
    open_model(&s, "llama3.1-8b", "4096", "full");
    MX_CHECK_OK(mx_topology_open(&t, "t4x4", &tables));
    mx_search_request q = {&t, &s.model, s.cfg, 8, true, false};
    MX_CHECK_OK(mx_search_run(&r, &q));
    MX_CHECK(r.n == 0 && r.too_large == r.tried && r.least.total > 16 * 0x1p30, "%d of %lld", r.n,
             (long long)r.tried);
    mx_search_fini(&r);
    close_model(&s);
}

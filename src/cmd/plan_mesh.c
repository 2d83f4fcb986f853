/* plan_mesh.c - maxc plan compile_topology=h100x1024 mesh=...: see plan/forecast.h. */
#include "cmd/plan_mesh.h"

#include "base/clock.h"
#include "base/json_doc.h"
#include "plan/choose.h"
#include "plan/failures.h"
#include "plan/trace_file.h"
#include <stdio.h>
#include <string.h>

static bool chooses(const mx_config *c)
{
    return strcmp(mx_config_text(c, "mesh"), "auto") == 0;
}

mx_status mx_plan_wants_machine(const mx_config *c, bool *out)
{
    int64_t ranks = 0;
    *out = *mx_config_text(c, "compile_topology") || chooses(c);
    if (!*out && strcmp(mx_config_text(c, "chip"), "this") != 0)
        MX_TRY(mx_mesh_asked(c, &ranks));
    *out |= ranks > 0;
    return MX_OK;
}

/* ---- for people ---- */

typedef struct {
    const char *name;
    double bytes;
} memory_row;

enum { MEMORY_ROWS = 8, SHOWN = 5 };

static void memory_rows(const mx_forecast *f, memory_row rows[MEMORY_ROWS])
{
    const mx_rank_memory *m = &f->memory;
    const memory_row all[MEMORY_ROWS] = {
        {"weights", m->weights},         {"weight copies", m->copies},
        {"gradients", m->gradients},     {"optimizer", m->optimizer},
        {"activations", m->activations}, {"communication", m->communication},
        {"work space", m->workspace},    {"fragmentation", f->fragmentation}};
    memcpy(rows, all, sizeof all);
}

static void print_network(const mx_network *w)
{
    for (int i = 0; i < w->n; i++) {
        printf("%s%s", i ? ", " : "", w->level[i].name);
        if (w->level[i].chips > 0)
            printf(" x %lld", (long long)w->level[i].chips);
    }
    printf("\n");
}

static void print_machine(const mx_forecast *f, const mx_model_spec *m)
{
    char a[32], b[32];
    const mx_plan_chip *c = &f->machine.chip;
    mx_str mesh = {0}, batch = {0};
    mx_mesh_print(&mesh, &f->mesh);
    mx_batch_plan_print(&f->batch, &batch);
    printf("model     %s, %s parameters\n", m->family->name,
           mx_format_count(a, sizeof a, f->profile.parameters));
    printf("machine   %lld x %s, %s and %.0f TFLOP/s of %s each; ", (long long)f->machine.chips,
           c->name, mx_format_bytes(b, sizeof b, c->memory_bytes), c->peak[f->run.rate] / 1e12,
           mx_rate_name(f->run.rate));
    print_network(&f->machine.network);
    printf("mesh      %s\n", mx_str_text(&mesh));
    printf("batch     %s\n", mx_str_text(&batch));
    mx_str_fini(&mesh);
    mx_str_fini(&batch);
}

static void print_memory(const mx_forecast *f)
{
    char a[32], b[32];
    memory_row rows[MEMORY_ROWS];
    char stage[48] = "";
    memory_rows(f, rows);
    if (f->layout.stage > 1)
        snprintf(stage, sizeof stage, ", at stage %d, the fullest", f->worst_stage);
    printf("memory    %s of %s per rank, remat_policy=%s%s\n",
           mx_format_bytes(a, sizeof a, f->memory.total),
           mx_format_bytes(b, sizeof b, f->machine.chip.memory_bytes), f->remat,
           stage);
    for (int i = 0; i < MEMORY_ROWS; i++)
        if (rows[i].bytes >= 0x1p20 || (rows[i].bytes > 0 && f->memory.total < 0x1p30))
            printf("  %-16s %12s\n", rows[i].name, mx_format_bytes(a, sizeof a, rows[i].bytes));
}

static const char *level_name(const mx_forecast *f, int level)
{
    return level < f->machine.network.n ? f->machine.network.level[level].name : "";
}

static void print_sent(const double sent[MX_LEVELS])
{
    char a[32];
    for (int l = 0; l < MX_LEVELS; l++)
        printf(" %14s", sent[l] > 0 ? mx_format_bytes(a, sizeof a, sent[l]) : "-");
    printf("\n");
}

static void print_traffic(const mx_forecast *f)
{
    if (f->layout.chips == 1)
        return;
    printf("network   sent by a rank in a step%*s %14s %14s\n", 13, "", level_name(f, 0),
           level_name(f, 1));
    for (int i = 0; i < f->traffic.n; i++) {
        const mx_traffic_row *r = &f->traffic.row[i];
        mx_str axes = {0};
        mx_axis_set_print(&axes, r->axes);
        printf("  %-16s %-20.20s %6.0f", r->name, mx_str_text(&axes), r->times);
        print_sent(r->sent);
        mx_str_fini(&axes);
    }
}

static void print_time(const mx_forecast *f)
{
    char a[32], b[32];
    const mx_step_time *t = &f->time;
    double whole = t->seconds / 100, tokens = mx_forecast_tokens(f);
    printf("work      %sFLOP per step", mx_format_count(a, sizeof a, f->model_flops));
    printf(", %sFLOP by a rank, %s moved", mx_format_count(a, sizeof a, f->plan.flops),
           mx_format_bytes(b, sizeof b, f->plan.moved_bytes));
    printf("\ntime      %.4g s per step, %stokens/s, %.0f per chip, MFU %.1f%%\n", t->seconds,
           mx_format_count(a, sizeof a, tokens), tokens / (double)f->machine.chips,
           100 * mx_forecast_mfu(f));
    printf("          kernels %.1f%%, waiting for the network %.1f%%, for other stages %.1f%%, "
           "update %.1f%%, stragglers %.1f%%\n",
           t->compute / whole, t->network / whole, t->bubble / whole, t->optimizer / whole,
           t->stragglers / whole);
}

/* A run of many steps. */
typedef struct {
    mx_failures failures; /* between 0: nothing fails */
    mx_goodput_forecast goodput;
    double tokens, seconds; /* tokens 0: not asked for */
} long_run;

static long_run long_run_of(const mx_forecast *f, const mx_config *c)
{
    double hours = mx_config_float(c, "simulate_failures");
    long_run r = {.tokens = mx_config_float(c, "train_tokens"), .goodput.goodput = 1};
    if (hours > 0) {
        r.failures = (mx_failures){hours * 3600 / (double)f->machine.chips,
                                   mx_config_float(c, "checkpoint_seconds"),
                                   mx_config_float(c, "restart_seconds")};
        r.goodput = mx_failures_goodput(&r.failures);
    }
    r.seconds = r.tokens / mx_forecast_tokens(f) / r.goodput.goodput;
    return r;
}

static void print_failures(const mx_failures *x, const mx_goodput_forecast *g)
{
    if (x->between <= 0)
        return;
    printf("goodput   %.1f%%: a failure every %.2f h, a checkpoint every %.1f min; writing %.1f%%, "
           "work lost %.1f%%, restarts %.1f%%\n",
           100 * g->goodput, x->between / 3600, g->interval / 60, 100 * g->writing, 100 * g->lost,
           100 * g->restarting);
}

static void print_long_run(const mx_forecast *f, const mx_config *c)
{
    long_run r = long_run_of(f, c);
    char a[32], b[32];
    print_failures(&r.failures, &r.goodput);
    if (r.tokens > 0)
        printf("run       %stokens in %.1f days: %schip-hours\n",
               mx_format_count(a, sizeof a, r.tokens), r.seconds / 86400,
               mx_format_count(b, sizeof b, r.seconds / 3600 * (double)f->machine.chips));
}

/* ---- for programs ---- */

static json_t *traffic_json(const mx_forecast *f)
{
    json_t *list = json_array();
    for (int i = 0; i < f->traffic.n; i++) {
        const mx_traffic_row *r = &f->traffic.row[i];
        mx_str axes = {0};
        mx_axis_set_print(&axes, r->axes);
        json_array_append_new(list, json_pack("{s:s, s:s, s:f, s:[f, f]}", "collective",
                                              r->name, "axes", mx_str_text(&axes), "times",
                                              r->times, "sent_bytes", r->sent[0], r->sent[1]));
        mx_str_fini(&axes);
    }
    return list;
}

static json_t *choices_json(const mx_search *s)
{
    json_t *list = json_array();
    for (int i = 0; i < s->n && i < SHOWN; i++) {
        mx_str keys = {0}, reason = {0};
        mx_search_keys(s, i, &keys);
        mx_search_reason(s, i, &reason);
        json_array_append_new(list, json_pack("{s:s, s:s, s:f, s:f}", "keys", mx_str_text(&keys),
                                              "reason", mx_str_text(&reason), "seconds",
                                              s->best[i].time.seconds, "estimated_memory_bytes",
                                              s->best[i].memory.total));
        mx_str_fini(&keys);
        mx_str_fini(&reason);
    }
    return list;
}

static void add_long_run(json_t *all, const mx_forecast *f, const mx_config *c)
{
    long_run r = long_run_of(f, c);
    const mx_goodput_forecast *g = &r.goodput;
    if (r.failures.between > 0)
        json_object_set_new(
            all, "failures",
            json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "goodput", g->goodput, "seconds_between",
                      r.failures.between, "checkpoint_interval_seconds", g->interval, "writing",
                      g->writing, "lost", g->lost, "restarting", g->restarting));
    if (r.tokens > 0)
        json_object_set_new(all, "run",
                            json_pack("{s:f, s:f, s:f}", "tokens", r.tokens, "seconds", r.seconds,
                                      "chip_hours", r.seconds / 3600 * (double)f->machine.chips));
}

/* Of one rank of the stage that needs the most memory. */
static void add_rank(json_t *all, const mx_forecast *f)
{
    json_t *largest = json_array();
    for (int i = 0; i < f->plan.n_largest; i++)
        json_array_append_new(largest, json_pack("{s:s, s:f, s:i}", "name",
                                                 f->plan.largest[i].name, "bytes",
                                                 f->plan.largest[i].bytes, "n",
                                                 f->plan.largest[i].n));
    json_object_set_new(all, "stage", json_integer(f->worst_stage));
    json_object_set_new(all, "rank_flops", json_real(f->plan.flops));
    json_object_set_new(all, "moved_bytes", json_real(f->plan.moved_bytes));
    json_object_set_new(all, "global_sequences", json_integer(f->batch.global_sequences));
    json_object_set_new(all, "microbatch", json_integer(f->layout.microbatch));
    json_object_set_new(all, "microbatches", json_integer(f->layout.n_microbatches));
    json_object_set_new(all, "largest", largest);
}

static void print_json(const mx_forecast *f, const mx_model_spec *m, const mx_search *s,
                       const mx_config *c)
{
    memory_row rows[MEMORY_ROWS];
    json_t *memory = json_object();
    const mx_step_time *t = &f->time;
    mx_str mesh = {0};
    mx_mesh_print(&mesh, &f->mesh);
    memory_rows(f, rows);
    for (int i = 0; i < MEMORY_ROWS; i++)
        json_object_set_new(memory, rows[i].name, json_real(rows[i].bytes));
    json_object_set_new(memory, "total", json_real(f->memory.total));
    json_object_set_new(memory, "estimated", json_real(f->estimate.total));
    json_t *time = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "seconds", t->seconds, "kernels",
                             t->compute, "network", t->network, "bubble", t->bubble, "update",
                             t->optimizer, "stragglers", t->stragglers);
    json_t *all = json_pack(
        "{s:s, s:f, s:s, s:I, s:s, s:s, s:I, s:f, s:f, s:f, s:b, s:f, s:o, s:o, s:o}",
        "family", m->family->name, "parameters", f->profile.parameters, "chip",
        f->machine.chip.name, "chips", (json_int_t)f->machine.chips, "mesh", mx_str_text(&mesh),
        "remat_policy", f->remat, "global_tokens", (json_int_t)f->batch.global_tokens,
        "model_flops", f->model_flops, "tokens_per_second", mx_forecast_tokens(f), "mfu",
        mx_forecast_mfu(f), "fits",
        f->memory.total <= f->machine.chip.memory_bytes, "chip_memory_bytes",
        f->machine.chip.memory_bytes, "memory_bytes", memory, "time", time, "network",
        traffic_json(f));
    add_rank(all, f);
    add_long_run(all, f, c);
    if (s->tried)
        json_object_set_new(all, "layouts", choices_json(s));
    char *text = mx_json_text(all, 2);
    printf("%s\n", text);
    mx_free(text);
    json_decref(all);
    mx_str_fini(&mesh);
}

/* ---- the verb ---- */

mx_rate mx_plan_rate_of(const mx_config *c)
{
    return strcmp(mx_config_text(c, "dtype"), "float32") == 0 ? MX_RATE_F32 : MX_RATE_BF16;
}

static mx_status name_machine(mx_topology *t, const mx_invocation *inv)
{
    const mx_config *c = inv->config;
    int64_t slices = mx_config_int(c, "compile_topology_num_slices");
    mx_topology_tables from = {inv->home, mx_config_text(c, "chip_file"),
                               mx_config_text(c, "network_file"), mx_config_text(c, "network"),
                               slices > 0 ? slices : 1};
    const char *name = mx_config_text(c, "compile_topology");
    if (*name)
        return mx_topology_open(t, name, &from);
    if (chooses(c))
        return mx_fail(MX_USAGE, "mesh=auto: expected the machine to choose for; say "
                                 "compile_topology=h100x1024");
    int64_t ranks;
    char text[64];
    MX_TRY(mx_mesh_asked(c, &ranks));
    snprintf(text, sizeof text, "%.31sx%lld", mx_config_text(c, "chip"), (long long)ranks);
    return mx_topology_open(t, text, &from);
}

/* The machine that is named, with the figures of a chip that are given. */
static mx_status open_machine(mx_topology *t, const mx_invocation *inv)
{
    const mx_config *c = inv->config;
    MX_TRY(name_machine(t, inv));
    mx_plan_chip_set(&t->chip,
                     &(mx_chip_figures){mx_config_float(c, "memory_gib") * 0x1p30,
                                        mx_config_float(c, "peak_tflops") * 1e12,
                                        mx_config_float(c, "bandwidth_gbs") * 1e9,
                                        mx_plan_rate_of(c)});
    return MX_OK;
}

static mx_status check_memory(const mx_forecast *f)
{
    char a[32], b[32];
    if (f->memory.total <= f->machine.chip.memory_bytes)
        return MX_OK;
    return mx_fail(MX_MEMORY,
                   "a rank needs %s and a %s has %s; use more chips, a mesh with more "
                   "fsdp, tensor or stage, remat_policy=full or a smaller batch; mesh=auto finds "
                   "what fits",
                   mx_format_bytes(a, sizeof a, f->memory.total), f->machine.chip.name,
                   mx_format_bytes(b, sizeof b, f->machine.chip.memory_bytes));
}

/* ---- the choice of a layout ---- */

static void print_choice(const mx_search *s, int i, const mx_forecast *f)
{
    const mx_plan_choice *c = &s->best[i];
    mx_str keys = {0}, reason = {0};
    char a[32];
    double tokens = (double)f->batch.global_tokens / c->time.seconds / (double)c->layout.chips;
    mx_search_keys(s, i, &keys);
    mx_search_reason(s, i, &reason);
    printf("  %d  %8.4g s  %7.0f tokens/s per chip  %10s  %s\n     %s\n", i + 1, c->time.seconds,
           tokens, mx_format_bytes(a, sizeof a, c->memory.total), mx_str_text(&keys),
           mx_str_text(&reason));
    mx_str_fini(&keys);
    mx_str_fini(&reason);
}

static void print_choices(const mx_search *s, const mx_forecast *f)
{
    printf(
        "layouts   %lld tried, %lld do not fit; the best, with the estimated memory of a rank:\n",
        (long long)s->tried, (long long)s->too_large);
    for (int i = 0; i < s->n && i < SHOWN; i++)
        print_choice(s, i, f);
}

static mx_status plan_choice(const mx_invocation *inv, const mx_model_spec *m, mx_search *s,
                             mx_forecast *f)
{
    const mx_config *c = inv->config;
    mx_batch_plan all;
    MX_TRY(mx_batch_plan_make(&all, c, f->machine.chips, 1));
    mx_topology machine = f->machine;
    mx_search_request q = {.machine = &machine,
                           .model = m,
                           .config = c,
                           .sequences = all.global_sequences,
                           .stages = mx_config_bool(c, "auto_stages"),
                           .simulate_all = mx_config_bool(c, "exhaustive")};
    return mx_layout_choose(s, &q, f);
}

static mx_status plan_given(const mx_config *c, const mx_model_spec *m, mx_forecast *f)
{
    MX_TRY(mx_mesh_read(&f->mesh, c, f->machine.chips / f->machine.per_node, f->machine.per_node));
    return mx_forecast_make(f, c, m);
}

static mx_status plan(const mx_invocation *inv, const mx_model_spec *m, mx_search *s,
                      mx_forecast *f)
{
    int64_t asked = 0;
    MX_TRY(open_machine(&f->machine, inv));
    if (!chooses(inv->config))
        MX_TRY(mx_mesh_asked(inv->config, &asked));
    return asked ? plan_given(inv->config, m, f) : plan_choice(inv, m, s, f);
}

static mx_status write_files(const mx_forecast *f, const mx_config *c)
{
    const char *trace = mx_config_text(c, "trace"), *svg = mx_config_text(c, "svg");
    mx_cost_request q = mx_forecast_request(f);
    mx_trace t = {0};
    mx_step_time time;
    if (!*trace && !*svg)
        return MX_OK;
    mx_simulate_step(&q, &f->costs, &time, &t);
    mx_status st = *trace ? mx_trace_write(&t, trace) : MX_OK;
    if (!st && *svg)
        st = mx_picture_write(f, &t, svg);
    mx_trace_fini(&t);
    return st;
}

/* The programs of all its ranks; the mesh is the keys', as the run will read them. */
static mx_status save(const mx_invocation *inv, const mx_model_spec *m, const mx_forecast *f,
                      bool chosen)
{
    const char *arch = mx_config_text(inv->config, "kernels_for");
    if (chosen && *mx_config_text(inv->config, "compiled_trainstep_file"))
        return mx_fail(MX_USAGE,
                       "compiled_trainstep_file: programs are saved for the layout that the keys "
                       "give; set the keys of the first one above and plan again");
    return mx_plan_save(inv, m, &(mx_saved_request){.device = &mx_cuda_traits,
                                                    .chip = f->machine.chip.name,
                                                    .arch = *arch ? arch : NULL,
                                                    .processes = (int)f->machine.chips});
}

mx_status mx_plan_machine(const mx_invocation *inv, const mx_model_spec *m)
{
    const mx_config *c = inv->config;
    mx_arena arena = {0};
    mx_forecast *f = MX_NEW(&arena, mx_forecast);
    mx_search s = {0};
    double start = mx_clock_now();
    mx_status st;
    MX_TRY_OUT(st, plan(inv, m, &s, f));
    if (strcmp(mx_config_text(c, "format"), "json") == 0) {
        print_json(f, m, &s, c);
    } else {
        print_machine(f, m);
        print_time(f);
        print_memory(f);
        print_traffic(f);
        if (s.n)
            print_choices(&s, f);
        print_long_run(f, c);
        printf("planned   in %.2f s\n", mx_clock_now() - start);
    }
    MX_TRY_OUT(st, write_files(f, c));
    MX_TRY_OUT(st, check_memory(f));
    st = save(inv, m, f, s.n > 0);
out:
    mx_search_fini(&s);
    mx_arena_fini(&arena);
    return st;
}

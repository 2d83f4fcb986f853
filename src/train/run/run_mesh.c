/* run_mesh.c - the run as the planner sees it: mesh=auto, which chooses a mesh for the ranks there
 * are, and the step time that was to be expected.
 *
 * The chooser is that of `maxc plan mesh=auto` (plan/choose.h), for as many chips of the device at
 * hand as there are ranks. The global batch stays as the keys give it; how it is cut into
 * microbatches, and what is recomputed, may change with the mesh. What was chosen is written into
 * the configuration, so config.yml says it and ranks that chose differently refuse to join.
 */
#include "train/run/run_state.h"

#include "base/threads.h"
#include "exec/step_config.h"
#include "plan/choose.h"
#include "train/input/tokenizer_path.h"
#include <stdio.h>
#include <string.h>

typedef struct {
    const mx_config *c;
    const mx_launch *launch;
    int64_t ranks;
    bool together;        /* all ranks are threads of this process */
    mx_device_traits own; /* of the device at hand */
    mx_memory_available memory;
    int n_threads;
} chooser;

/* The keys that say how a pipeline cuts its batch; the choice says it. */
static mx_status check_keys(const mx_config *c, const mx_objective *objective)
{
    static const char *const keys[] = {"num_pipeline_microbatches", "num_pipeline_repeats",
                                       "num_layers_per_pipeline_stage", "pipeline_schedule"};
    const char *where = mx_config_where(c, "mesh");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (mx_config_is_users(c, keys[i]))
            return mx_fail(MX_USAGE, "%s: mesh=auto decides about %s too; leave it out, or give a "
                           "mesh", where, keys[i]);
    if (objective)
        return mx_fail(MX_USAGE, "%s: mesh=auto chooses for maxc train; give maxc %s a mesh, for "
                       "example fsdp=2", where, objective->verb);
    return MX_OK;
}

static void take_device(chooser *h, const mx_session *s)
{
    h->own = *mx_session_traits(s);
    h->memory = mx_session_memory_available(s);
    h->n_threads = mx_session_threads(s);
}

static mx_status find_device(chooser *h)
{
    mx_session *s;
    if (h->launch->size > 1)
        MX_TRY(mx_device_choose_gpu(h->launch->local));
    MX_TRY(mx_session_open(&s, mx_config_text(h->c, "device"),
                           (int)mx_config_int(h->c, "num_threads")));
    take_device(h, s);
    mx_session_close(s);
    return MX_OK;
}

/* Ranks of this machine share its memory and, where they are threads of one process, its cores. */
static void share_machine(const chooser *h, mx_topology *t)
{
    int64_t here = h->together ? h->ranks : h->launch->on_machine;
    here = here ? here : h->ranks;
    double rank = h->together ? 1 / (double)h->ranks : 1;
    if (h->memory.bytes < INT64_MAX && (h->together || h->own.host_memory))
        t->chip.memory_bytes = (double)h->memory.bytes / (double)here;
    if (h->own.host_memory)
        rank *= h->n_threads;
    for (int r = 0; r < MX_RATES; r++) {
        t->chip.peak[r] *= rank;
        t->chip.sustained[r] *= rank;
    }
    t->chip.bytes_per_second *= h->together ? rank : 1;
}

static mx_status open_machine(const chooser *h, mx_topology *t)
{
    char home[4096], name[64];
    const char *chip = h->own.host_memory ? "cpu" : h->own.chip.name;
    if (!chip)
        return mx_fail(MX_USAGE, "%s: mesh=auto needs the figures of the chip, and this one has "
                       "no row in configs/chips.yml; give a mesh",
                       mx_config_where(h->c, "mesh"));
    mx_topology_tables from = {mx_config_home(home, sizeof home), "", "", "", 1};
    snprintf(name, sizeof name, "%.31sx%lld", chip, (long long)h->ranks);
    MX_TRY(mx_status_wrap(mx_topology_open(t, name, &from), "mesh=auto"));
    share_machine(h, t);
    return MX_OK;
}

static void decide(const chooser *h, const char *key, const char *fmt, double value)
{
    char text[64];
    snprintf(text, sizeof text, fmt, value);
    if (!mx_config_equals(h->c, key, text))
        mx_config_decide(h->c, key, text, "mesh=auto");
}

static void take(const chooser *h, const mx_search *s)
{
    const mx_plan_choice *best = &s->best[0];
    const mx_layout *l = &best->layout;
    bool piped = l->stage > 1;
    mx_str mesh = {0};
    mx_mesh_print(&mesh, &best->mesh);
    mx_config_decide(h->c, "mesh", mx_str_text(&mesh), "mesh=auto");
    mx_str_fini(&mesh);
    mx_config_decide(h->c, "remat_policy", s->remat[best->remat], "mesh=auto");
    int64_t rows = l->microbatch * l->data * (piped ? l->n_microbatches : 1);
    decide(h, "per_device_batch_size", "%.17g", (double)rows / (double)l->chips);
    decide(h, "gradient_accumulation_steps", "%.0f", piped ? 1 : (double)l->n_microbatches);
    if (piped)
        decide(h, "num_pipeline_microbatches", "%.0f", (double)l->n_microbatches);
    if (l->chunks > 1)
        decide(h, "num_pipeline_repeats", "%.0f", (double)l->chunks);
}

static void describe(const mx_search *s, const mx_forecast *f, mx_str *note)
{
    char memory[32];
    enum { SHOWN = 3 };
    mx_str_addf(note, "mesh=auto: %lld layouts tried for %lld ranks, %lld do not fit",
                (long long)s->tried, (long long)f->machine.chips, (long long)s->too_large);
    for (int i = 0; i < s->n && i < SHOWN; i++) {
        mx_str_addf(note, "\n%s ", i ? "     then" : "     taken");
        mx_search_keys(s, i, note);
        if (i == 0)
            mx_str_addf(note, ", %s a rank",
                        mx_format_bytes(memory, sizeof memory, f->memory.total));
        mx_str_add(note, ": ");
        mx_search_reason(s, i, note);
    }
}

static mx_status choose(const chooser *h, const mx_model_spec *m, mx_str *note)
{
    mx_arena arena = {0};
    mx_forecast *f = MX_NEW(&arena, mx_forecast);
    mx_search s = {0};
    mx_batch_plan all;
    mx_topology machine;
    mx_status st;
    MX_TRY_OUT(st, open_machine(h, &machine));
    MX_TRY_OUT(st, mx_batch_plan_make(&all, h->c, h->ranks, 1));
    f->machine = machine;
    f->traits = &h->own;
    mx_search_request q = {.machine = &machine, .model = m, .config = h->c,
                           .sequences = all.global_sequences, .stages = true};
    if (mx_config_is_users(h->c, "remat_policy"))
        q.remat = mx_config_text(h->c, "remat_policy");
    MX_TRY_OUT(st, mx_layout_choose(&s, &q, f));
    take(h, &s);
    describe(&s, f, note);
out:
    mx_search_fini(&s);
    mx_arena_fini(&arena);
    return st;
}

mx_status mx_run_choose_mesh(const mx_run_start *start, const mx_launch *launch, mx_str *note)
{
    const mx_config *c = start->config;
    mx_model_spec m = {0};
    chooser h = {.c = c, .launch = launch};
    if (strcmp(mx_config_text(c, "mesh"), "auto") != 0)
        return MX_OK;
    MX_TRY(check_keys(c, start->objective));
    h.together = launch->size == 1;
    h.ranks = h.together ? mx_config_int(c, "virtual_ranks") : launch->size;
    if (h.ranks <= 1) {
        mx_config_decide(c, "mesh", "", "mesh=auto");
        mx_str_add(note, "mesh=auto: there is one rank, and nothing to share; virtual_ranks=N, or "
                         "a launcher, gives more");
        return MX_OK;
    }
    MX_TRY(mx_vocab_from_tokenizer(c));
    mx_status st = mx_model_open(&m, c, mx_config_text(c, "load_parameters_path"));
    if (!st)
        st = find_device(&h);
    if (!st)
        st = choose(&h, &m, note);
    mx_model_spec_fini(&m);
    return st;
}

/* On the CPU the rate is that which was measured, not that of the table's core. */
static void take_rate(const mx_run *r, mx_plan_chip *c)
{
    static const double share = 0.9; /* of it, in GEMMs of a model's shapes */
    for (int k = 0; k < MX_RATES && r->report.measures_peak; k++)
        if (c->peak[k] > 0) {
            c->peak[k] = r->report.peak_flops;
            c->sustained[k] = share * r->report.peak_flops;
        }
}

static mx_status planned_seconds(const mx_run *r, mx_forecast *f)
{
    bool meshed = r->mesh_rank != NULL;
    chooser h = {.c = r->c, .launch = &r->ranks.launch, .ranks = r->ranks.comm->size,
                 .together = meshed && r->mesh_rank->world};
    take_device(&h, r->session);
    h.n_threads *= h.together ? (int)h.ranks : 1; /* the session has a rank's */
    MX_TRY(open_machine(&h, &f->machine));
    take_rate(r, &f->machine.chip);
    if (meshed)
        f->mesh = r->mesh_rank->mesh->mesh;
    else
        f->mesh.ici[MX_AXIS_DATA] = r->ranks.comm->size;
    return mx_forecast_time(f, r->c, &r->model);
}

void mx_run_say_time(mx_run *r, double real)
{
    mx_arena arena = {0};
    mx_forecast *f = MX_NEW(&arena, mx_forecast);
    bool plain = !r->goal.objective && !r->at.lora && !r->batch.ramp.n_stages;
    mx_status st = plain ? planned_seconds(r, f) : MX_OK;
    if (plain && !st)
        mx_progress_say(&r->report.progress,
                        "time: %.4g s a step planned, %.4g s really (%+.0f%%)", f->time.seconds,
                        real, 100 * (real / f->time.seconds - 1));
    mx_status_free(st); /* a chip without a row, ranks that are not whole nodes */
    mx_arena_fini(&arena);
}

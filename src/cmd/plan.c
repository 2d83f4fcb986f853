/* plan.c - maxc plan: what a training run will need, for one device, without one.
 *
 * The programs are compiled as for the run and thrown away; see exec/plan.h. Exit status 4 when
 * they do not fit in the device's memory, with changes that would make them fit.
 */
#include "base/json_doc.h"
#include "cmd/plan_mesh.h"
#include "device/chips.h"
#include "exec/forward.h"
#include "exec/mesh_config.h"
#include "exec/plan.h"
#include "plan/forecast.h"
#include "train/input/tokenizer_path.h"
#include "train/run/objective.h"

#include <stdio.h>
#include <string.h>

static const char *const class_name[MX_VAR_KIND_COUNT] = {[MX_VAR_WEIGHT] = "weights",
                                                          [MX_VAR_OPTIMIZER] = "optimizer",
                                                          [MX_VAR_GRADIENT] = "gradients",
                                                          [MX_VAR_CACHE] = "cache",
                                                          [MX_VAR_COPY] = "weight copies"};

/* What is planned for. */
typedef struct {
    mx_device_traits traits;
    mx_plan_device device;
    mx_memory_available available;
    int n_threads;
} target;

/* The device that a run on this machine would take, with the memory it has left now. */
static mx_status this_device(const mx_config *c, target *t)
{
    mx_session *s;
    MX_TRY(mx_status_wrap(mx_session_open(&s, mx_config_text(c, "device"),
                                          (int)mx_config_int(c, "num_threads")),
                          "chip=this"));
    t->available = mx_session_memory_available(s);
    t->n_threads = mx_session_threads(s);
    t->traits = *mx_session_traits(s);
    mx_session_close(s);
    return MX_OK;
}

/* A chip that only configs/chips.yml or the user's own file knows. */
static mx_status read_chip(const mx_invocation *inv, mx_chip *out)
{
    mx_plan_chip row;
    const char *name = mx_config_text(inv->config, "chip");
    MX_TRY(mx_plan_chip_read(&row, inv->home, mx_config_text(inv->config, "chip_file"), name));
    *out = (mx_chip){.name = name, .memory_bytes = row.memory_bytes,
                     .bytes_per_second = row.bytes_per_second};
    out->flops_per_second[MX_BF16] = row.peak[MX_RATE_BF16];
    out->flops_per_second[MX_F32] = row.peak[MX_RATE_F32];
    return MX_OK;
}

static mx_status find_target(const mx_invocation *inv, target *t)
{
    const mx_config *c = inv->config;
    mx_chip own;
    const mx_chip *chip = mx_chip_find(mx_config_text(c, "chip"));
    if (!chip && strcmp(mx_config_text(c, "chip"), "this") != 0) {
        MX_TRY(read_chip(inv, &own));
        chip = &own;
    }
    const char *arch = mx_config_text(c, "kernels_for");
    double gib = mx_config_float(c, "memory_gib"), tflops = mx_config_float(c, "peak_tflops");
    double gbs = mx_config_float(c, "bandwidth_gbs");
    mx_dtype dtype = MX_F32;
    mx_dtype_parse(mx_config_text(c, "dtype"), &dtype);
    if (!chip)
        MX_TRY(this_device(c, t));
    if (chip || *arch)
        t->traits = mx_cuda_traits;
    if (chip) {
        t->traits.chip = *chip;
        t->available = (mx_memory_available){(int64_t)chip->memory_bytes, "the chip has"};
    }
    if (gib > 0)
        t->available = (mx_memory_available){(int64_t)(gib * 0x1p30), "memory_gib gives"};
    const mx_chip *is = &t->traits.chip;
    t->device = (mx_plan_device){
        .traits = &t->traits,
        .kernels_for = *arch ? arch : NULL,
        .memory_bytes = t->available.bytes < INT64_MAX ? (double)t->available.bytes : 0,
        .flops_per_second = tflops > 0 ? tflops * 1e12 : is->flops_per_second[dtype],
        .bytes_per_second = gbs > 0 ? gbs * 1e9 : is->bytes_per_second,
    };
    return MX_OK;
}

static void print_bytes(const char *name, double bytes)
{
    char a[32];
    if (bytes > 0)
        printf("  %-16s %12s\n", name, mx_format_bytes(a, sizeof a, bytes));
}

/* The step of plain training on one chip with a row in configs/chips.yml: kernels by their shapes.
 * Elsewhere seconds stay 0, and the floor of mx_plan is all that is known. */
static mx_status predict(const mx_invocation *inv, const mx_model_spec *m, const target *t,
                         mx_forecast *f)
{
    const mx_config *c = inv->config;
    const mx_chip *chip = &t->traits.chip;
    char name[64];
    mx_topology_tables from = {inv->home, mx_config_text(c, "chip_file"),
                               mx_config_text(c, "network_file"), "", 1};
    if (!chip->name || t->traits.host_memory)
        return MX_OK;
    snprintf(name, sizeof name, "%.31sx1", chip->name);
    MX_TRY(mx_topology_open(&f->machine, name, &from));
    mx_plan_chip_set(&f->machine.chip,
                     &(mx_chip_figures){.peak = t->device.flops_per_second,
                                        .rate = mx_plan_rate_of(c),
                                        .bytes_per_second = t->device.bytes_per_second});
    f->mesh.ici[MX_AXIS_DATA] = 1;
    return mx_forecast_time(f, c, m);
}

static void print_time(const mx_plan *p, const mx_plan_device *d, double predicted)
{
    char a[32], b[32];
    printf("work      %sFLOP per step", mx_format_count(a, sizeof a, p->model_flops));
    if (p->flops > p->model_flops * 1.001)
        printf(" and %.0f%% computed again", 100 * (p->flops / p->model_flops - 1));
    printf(", %s moved\n", mx_format_bytes(b, sizeof b, p->moved_bytes));
    if (p->seconds <= 0)
        return;
    bool floor = predicted <= 0;
    double seconds = floor ? p->seconds : predicted;
    printf("time      %s%.4g s per step, %stokens/s", floor ? "at least " : "", seconds,
           mx_format_count(a, sizeof a, (double)p->batch.global_tokens / seconds));
    if (d->flops_per_second > 0)
        printf(", MFU %s%.1f%%", floor ? "at most " : "",
               100 * p->model_flops / seconds / d->flops_per_second);
    printf(floor ? "\n" : "; at least %.4g s at the rates of the data sheet\n", p->seconds);
}

static void print_text(const mx_model_spec *m, const mx_plan *p, const mx_plan_device *d,
                       const mx_mesh_plan *mesh, const mx_beside *beside, double predicted)
{
    char a[32], b[32];
    mx_str line = {0};
    mx_batch_plan_print(&p->batch, &line);
    printf("model     %s, %s parameters", m->family->name,
           mx_format_count(a, sizeof a, p->parameters));
    printf(p->trainable < p->parameters ? ", %s trained\n" : "\n",
           mx_format_count(b, sizeof b, p->trainable));
    printf("batch     %s\n", mx_str_text(&line));
    if (mesh->ranks > 1) {
        mx_str_clear(&line);
        mx_mesh_print(&line, &mesh->mesh);
        printf("mesh      %s, %d ranks; what follows is one rank's\n", mx_str_text(&line),
               mesh->ranks);
    }
    mx_str_fini(&line);
    print_time(p, d, predicted);
    printf("memory    %s", mx_format_bytes(a, sizeof a, p->total));
    printf(d->memory_bytes > 0 ? " of %s\n" : "\n", mx_format_bytes(b, sizeof b, d->memory_bytes));
    for (int k = 0; k < MX_VAR_KIND_COUNT; k++)
        print_bytes(class_name[k],
                    p->variables[k] - (k == MX_VAR_OPTIMIZER ? p->on_host : 0));
    print_bytes("inputs", p->inputs);
    print_bytes("activations", p->activations);
    print_bytes("work space", p->workspace);
    for (int i = 0; i < beside->n; i++)
        print_bytes(beside->v[i].name, beside->v[i].bytes);
    if (p->on_host + p->offloaded > 0) {
        printf("host      %s, pinned\n", mx_format_bytes(a, sizeof a, p->on_host + p->offloaded));
        print_bytes("optimizer", p->on_host);
        print_bytes("activations", p->offloaded);
    }
    printf("largest when memory is fullest\n");
    for (int i = 0; i < p->n_largest; i++) {
        const mx_plan_item *it = &p->largest[i];
        printf("  %12s  %s", mx_format_bytes(a, sizeof a, it->bytes), it->name);
        printf(it->n > 1 ? " x %d\n" : "\n", it->n);
    }
    printf("compiled  %d nodes in %.2f s\n", p->n_nodes, p->compile_seconds);
    if (d->kernels_for)
        printf("kernels   %d generated, compiled for %s\n", p->n_kernels, d->kernels_for);
}

static void print_json(const mx_model_spec *m, const mx_plan *p, const mx_plan_device *d,
                       const mx_beside *beside, double predicted)
{
    json_t *memory = json_object(), *largest = json_array();
    for (int k = 0; k < MX_VAR_KIND_COUNT; k++)
        json_object_set_new(memory, class_name[k], json_real(p->variables[k]));
    json_object_set_new(memory, "inputs", json_real(p->inputs));
    json_object_set_new(memory, "activations", json_real(p->activations));
    json_object_set_new(memory, "work space", json_real(p->workspace));
    for (int i = 0; i < beside->n; i++)
        json_object_set_new(memory, beside->v[i].name, json_real(beside->v[i].bytes));
    json_object_set_new(memory, "total", json_real(p->total));
    json_object_set_new(memory, "host", json_real(p->on_host + p->offloaded));
    json_object_set_new(memory, "host activations", json_real(p->offloaded));
    for (int i = 0; i < p->n_largest; i++)
        json_array_append_new(largest,
                              json_pack("{s:s, s:f, s:i}", "name", p->largest[i].name, "bytes",
                                        p->largest[i].bytes, "n", p->largest[i].n));
    json_t *all = json_pack(
        "{s:s, s:f, s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:b, s:i, s:f, s:o, s:o}", "family",
        m->family->name, "parameters", p->parameters, "trainable", p->trainable, "global_sequences",
        (json_int_t)p->batch.global_sequences, "global_tokens", (json_int_t)p->batch.global_tokens,
        "flops", p->flops, "model_flops", p->model_flops, "moved_bytes", p->moved_bytes,
        "floor_seconds", p->seconds, "device_memory_bytes", d->memory_bytes, "fits",
        d->memory_bytes <= 0 || p->total <= d->memory_bytes, "nodes", p->n_nodes, "compile_seconds",
        p->compile_seconds, "memory_bytes", memory, "largest", largest);
    if (predicted > 0)
        json_object_set_new(all, "seconds", json_real(predicted));
    char *text = mx_json_text(all, 2);
    printf("%s\n", text);
    mx_free(text);
    json_decref(all);
}

/* The objective of the run: that of the verb that comes first; NULL: plain training. */
static const mx_objective *objective_of(const mx_invocation *inv)
{
    const mx_verb *v = inv->n_args ? mx_verb_find(inv->args[0]) : NULL;
    return v && v->objective ? v->objective(inv->config) : NULL;
}

/* MODEL, after the verb where there is one. */
static const char *model_argument(const mx_invocation *inv)
{
    int at = inv->n_args && mx_verb_find(inv->args[0]) ? 1 : 0;
    return at < inv->n_args ? inv->args[at] : NULL;
}

/* The same, or the checkpoint that training would begin with. */
static const char *model_path(const mx_invocation *inv)
{
    const char *given = model_argument(inv);
    return given ? given : mx_config_text(inv->config, "load_parameters_path");
}

/* The programs of the objective, and what it keeps beside them. */
static mx_status apply_objective(const mx_invocation *inv, mx_model_spec *m, mx_objective_run *o,
                                 mx_programs_request *q, mx_arena *a)
{
    if (!o->objective)
        return MX_OK;
    if (o->objective->adapt)
        MX_TRY(o->objective->adapt(m));
    if (o->objective->read)
        MX_TRY(o->objective->read(inv->config, a, &o->settings));
    mx_objective_apply(o->objective, o->settings, inv->config, q);
    *o = (mx_objective_run){.objective = o->objective,
                            .settings = o->settings,
                            .config = inv->config,
                            .model = m,
                            .options = &q->options,
                            .model_dir = *model_path(inv) ? model_path(inv) : NULL,
                            .n_ranks = (int)q->batch.data_ranks,
                            .microbatch = q->batch.microbatch,
                            .accumulation = q->batch.accumulation};
    if (q->pipeline.stages) {
        mx_forward_stages *stages = MX_NEW(a, mx_forward_stages);
        stages->how = q->pipeline;
        o->stages = stages;
    }
    return MX_OK;
}

static mx_status add_beside(const mx_objective_run *o, mx_plan *p, mx_beside *out)
{
    if (o->objective && o->objective->beside)
        MX_TRY(o->objective->beside(o, out));
    p->total += p->beside = mx_beside_bytes(out);
    return MX_OK;
}

mx_status mx_plan_save(const mx_invocation *inv, const mx_model_spec *m, mx_saved_request *r)
{
    const mx_config *c = inv->config;
    mx_str note = {0};
    if (!*mx_config_text(c, "compiled_trainstep_file"))
        return MX_OK;
    r->config = c;
    r->model = m;
    mx_status st = mx_saved_programs_make(r, &note);
    if (!st && strcmp(mx_config_text(c, "format"), "json") != 0)
        printf("%s\n", mx_str_text(&note));
    mx_str_fini(&note);
    return st;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    mx_arena arena = {0};
    mx_model_spec m = {0};
    mx_programs_request q;
    mx_mesh_plan mesh = {0};
    mx_plan plan = {0};
    target t = {.available.bytes = INT64_MAX};
    mx_objective_run goal = {.objective = objective_of(inv)};
    mx_beside beside = {0};
    if (!model_argument(inv))
        MX_TRY(mx_vocab_from_tokenizer(c));
    mx_status st = mx_model_open(&m, c, model_path(inv));
    if (st)
        return st;
    bool elsewhere = false;
    MX_TRY_OUT(st, mx_plan_wants_machine(c, &elsewhere));
    if (elsewhere && goal.objective)
        MX_TRY_OUT(st, mx_fail(MX_USAGE, "maxc plan %s is for one device (chip=h100) or a mesh of "
                               "this machine (mesh=fsdp=8 memory_gib=80); leave compile_topology, "
                               "or chip where there is a mesh, out", inv->args[0]));
    if (elsewhere) {
        st = mx_plan_machine(inv, &m);
        goto out;
    }
    MX_TRY_OUT(st, mx_mesh_configure(&mesh, c, 1));
    bool meshed = mesh.ranks > 1;
    if (meshed)
        MX_TRY_OUT(st, mx_mesh_check(&mesh, c));
    mx_programs_ranks by = {mesh.ranks, 1, meshed ? &mesh.how : NULL};
    by.data_ranks = meshed ? mx_mesh_size(&mesh.mesh, mx_mesh_rows(&mesh)) : 1;
    MX_TRY_OUT(st, mx_programs_configure(&q, c, &m, by, &arena));
    MX_TRY_OUT(st, find_target(inv, &t));
    if (t.n_threads)
        q.options.compile.n_threads = t.n_threads;
    q.options.compile.device = &t.traits;
    MX_TRY_OUT(st, apply_objective(inv, &m, &goal, &q, &arena));
    MX_TRY_OUT(st, mx_plan_make(&plan, &m, &q, &t.device));
    MX_TRY_OUT(st, add_beside(&goal, &plan, &beside));
    mx_forecast *f = MX_NEW(&arena, mx_forecast);
    if (!goal.objective && !meshed)
        mx_status_free(predict(inv, &m, &t, f)); /* a chip that has no such rate */
    bool json = strcmp(mx_config_text(c, "format"), "json") == 0;
    json ? print_json(&m, &plan, &t.device, &beside, f->time.seconds)
         : print_text(&m, &plan, &t.device, &mesh, &beside, f->time.seconds);
    MX_TRY_OUT(st, mx_plan_check(&plan, &m, &q, t.available));
    st = mx_plan_save(inv, &m, &(mx_saved_request){.device = &t.traits,
                                                   .chip = t.traits.chip.name,
                                                   .arch = t.device.kernels_for,
                                                   .processes = 1,
                                                   .n_threads = t.n_threads});
out:
    mx_mesh_plan_fini(&mesh);
    mx_model_spec_fini(&m);
    mx_arena_fini(&arena);
    return st;
}

static const mx_key keys[] = {
    MX_KEY_FORMAT,
    {"chip", MX_KEY_STRING, 0, "this", 0,
     "the device to plan for, of configs/chips.yml; this: what a run on this machine would take",
     .example = "chip=h100"},
    {"chip_file", MX_KEY_STRING, 0, "", 0,
     "chips of the user's own, over configs/chips.yml",
     .flags = MX_KEY_PATH, .example = "chip_file=mine.yml", .seen_by = "tests/cli/plan_mesh.sh"},
    {"compile_topology", MX_KEY_STRING, 0, "", 0,
     "the machine to plan for: h100x1024, or a TPU slice (v5e-256, v5p-128, v6e-256)",
     .example = "compile_topology=h100x1024", .seen_by = "tests/cli/plan_mesh.sh"},
    {"compile_topology_num_slices", MX_KEY_INT, 0, "1", "-1..",
     "so many of them; -1 and 0, as MaxText's default: one",
     .example = "compile_topology_num_slices=2", .seen_by = "tests/cli/plan_mesh.sh"},
    {"network", MX_KEY_STRING, 0, "", 0,
     "its links, from the inside out, \"nvlink4 x 8, efa-400\"; empty: as the chip's row says",
     .example = "network=infiniband-400", .seen_by = "tests/cli/plan_mesh.sh"},
    {"network_file", MX_KEY_STRING, 0, "", 0,
     "links of the user's own, over configs/networks.yml",
     .flags = MX_KEY_PATH, .example = "network_file=mine.yml", .seen_by = "tests/cli/plan_mesh.sh"},
    {"auto_stages", MX_KEY_BOOL, 0, "true", 0,
     "mesh=auto may cut the layers into stages",
     .example = "auto_stages=false", .seen_by = "tests/cli/plan_mesh.sh"},
    {"exhaustive", MX_KEY_BOOL, 0, "false", 0,
     "mesh=auto simulates every layout that fits, not only the best by their bounds",
     .example = "exhaustive=true", .seen_by = "tests/cli/plan_mesh.sh"},
    {"trace", MX_KEY_STRING, 0, "", 0,
     "write the simulated step of a mesh, for ui.perfetto.dev",
     .flags = MX_KEY_PATH, .example = "trace=step.json", .seen_by = "tests/cli/plan_mesh.sh"},
    {"svg", MX_KEY_STRING, 0, "", 0,
     "write a picture of its memory and timeline",
     .flags = MX_KEY_PATH, .example = "svg=step.svg", .seen_by = "tests/cli/plan_mesh.sh"},
    {"train_tokens", MX_KEY_FLOAT, 0, "0", "0..",
     "say how long so many tokens take",
     .example = "train_tokens=1e12", .seen_by = "tests/cli/plan_mesh.sh"},
    {"simulate_failures", MX_KEY_FLOAT, 0, "0", "0..",
     "hours after which a chip fails, on average: what is left of a run; 0: nothing fails",
     .example = "simulate_failures=50000", .seen_by = "tests/cli/plan_mesh.sh"},
    {"checkpoint_seconds", MX_KEY_FLOAT, 0, "10", ">0",
     "simulate_failures: that a checkpoint holds up training",
     .example = "checkpoint_seconds=30", .seen_by = "tests/cli/plan_mesh.sh"},
    {"restart_seconds", MX_KEY_FLOAT, 0, "600", "0..",
     "simulate_failures: from a failure to the next step",
     .example = "restart_seconds=300", .seen_by = "tests/cli/plan_mesh.sh"},
    {"memory_gib", MX_KEY_FLOAT, 0, "0", "0..", "its memory; 0: as the chip has, or has free",
     .example = "memory_gib=24"},
    {"peak_tflops", MX_KEY_FLOAT, 0, "0", "0..", "its rate in dtype; 0: as the chip has",
     .example = "peak_tflops=90"},
    {"bandwidth_gbs", MX_KEY_FLOAT, 0, "0", "0..", "its memory's GB/s; 0: as the chip has",
     .example = "bandwidth_gbs=900"},
    {"kernels_for", MX_KEY_STRING, 0, "", 0,
     "compile the generated GPU kernels for this architecture (sm_90a); needs no GPU",
     .example = "kernels_for=sm_90a"},
    {0},
};

const mx_verb mx_verb_plan = {
    .name = "plan",
    .doc = "what a training run will need: memory by class, FLOPs, time; needs no device",
    .usage = "[FILE.yml] [VERB] [MODEL] [chip=h100] [key=value ...]",
    .help =
        "VERB (sft, dpo, grpo, distill) plans a run of that verb, with the reference, teacher and\n"
        "rollout cache that it keeps. MODEL is a Hugging Face directory; without it the model is\n"
        "that of load_parameters_path, or what the keys describe (model_name=NAME for one of\n"
        "configs/models). Exit status 4 when the run would not fit: in the chip's memory, or in\n"
        "what this machine has free now.",
    .max_args = 2,
    .takes_verb = true,
    .takes_file = true,
    .like = "train",
    .keys = keys,
    .run = run,
};

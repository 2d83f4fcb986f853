/* pipeline_test.c - models as pipelines of virtual ranks: loss and every gradient as on one device
 * that takes the same microbatches one after the other, to the bit where nothing else is cut. */
#include "../dist/mesh_run.h"
#include "../test.h"
#include "compile/mesh/partition.h"
#include "dist/local.h"
#include "exec/pipeline.h"
#include "ops.h"
#include "ops/load.h"
#include "store/hf_dir.h"
#include "exec/step.h"
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RANKS = 16, MAX_MICROBATCHES = 16, BATCH = 4, SEQ = 16, MAX_ACTIONS = 256 };

typedef struct {
    const char *dir;
    mx_mesh mesh;
    mx_pipeline_kind kind;
    int repeats, microbatches, layers_each;
    int layers; /* of the model, where it shall have others than the fixture */
    bool packed;
    int64_t images;
    const char *remat;
    mx_context_strategy context;
    bool exact; /* to the bit */
    int pause_ms; /* for which every F, B and W takes longer; they are measured */
    double limit;
} pipe_case;

typedef struct {
    const pipe_case *c;
    mx_model_spec model;
    mx_axis_rules rules;
    mx_session *session; /* on one device */
    mx_step step;
    double loss[MAX_MICROBATCHES];
    mx_local_world *world;
    pthread_mutex_t lock;
    double worst;
    char where[512], refused[1024];
    double busy, from, to; /* seconds of F, B and W of all stages; when the step began and ended */
} trial;

typedef struct {
    trial *t;
    int rank;
    double loss[MAX_MICROBATCHES];
    int n[MAX_MICROBATCHES]; /* programs that have run with it */
} rank_arg;

/* --- inputs --- */

static mx_status write_inputs(trial *t, int microbatch, mx_exec *e)
{
    mesh_case c = {.batch = BATCH, .seq = SEQ, .microbatches = t->c->microbatches};
    mesh_write_inputs(&c, e, microbatch);
    return MX_OK;
}

static mx_status feed_write(void *ctx, int microbatch, mx_exec *e)
{
    rank_arg *a = ctx;
    /* Nobody waits for gradients of the first stage: its B makes those of weights too, behind F. */
    bool both = a->rank == 0 && a->t->c->kind == MX_PIPELINE_ZB_H1 && a->n[microbatch]++ % 2;
    usleep((useconds_t)(a->t->c->pause_ms * (both ? 2 : 1)) * 1000);
    return write_inputs(a->t, microbatch, e);
}

static double loss_of(mx_exec *e)
{
    float loss = NAN;
    MX_CHECK_OK(mx_exec_read(e, "loss", &loss));
    return (double)loss;
}

static mx_status feed_read(void *ctx, int microbatch, mx_exec *e)
{
    ((rank_arg *)ctx)->loss[microbatch] = loss_of(e);
    return MX_OK;
}

/* --- comparing --- */

static void note(trial *t, double off, const char *what)
{
    if (off > t->worst || isnan(off)) {
        t->worst = isnan(off) ? INFINITY : off;
        snprintf(t->where, sizeof t->where, "%s", what);
    }
}

/* Relative to the largest number of the whole tensor; to the bit: 0 or infinite. */
static double distance(const trial *t, mx_session *s, const mx_var *mine, const mx_var *all)
{
    mx_tensor a = {.data = mx_var_host(s, mine), .type = mine->type};
    mx_tensor b = {.data = mx_var_host(t->session, all), .type = all->type};
    double off = 0, top = 1e-30;
    for (int64_t i = 0; i < mx_type_count(&b.type); i++)
        top = fmax(top, fabs(mx_load_f64(&b, i)));
    for (int64_t i = 0; i < mx_type_count(&a.type); i++) {
        int64_t at = mine->box ? mx_box_element(mine->box, &a.type, i) : i;
        double x = mx_load_f64(&a, i), y = at < 0 ? 0 : mx_load_f64(&b, at);
        off = fmax(off, x == y ? 0 : isfinite(x) ? fabs(x - y) : INFINITY);
    }
    return t->c->exact ? (off == 0 ? 0 : INFINITY) : off / top;
}

static int compare(rank_arg *a, mx_session *s)
{
    trial *t = a->t;
    int found = 0;
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i), *w = mx_session_find(t->session, v->name);
        MX_CHECK(w, "%s is not on one device", v->name);
        if (v->attr.kind == MX_VAR_GRADIENT || v->attr.kind == MX_VAR_WEIGHT)
            note(t, distance(t, s, v, w), v->name);
        found += v->attr.kind == MX_VAR_GRADIENT;
    }
    return found;
}

static void compare_loss(rank_arg *a)
{
    for (int m = 0; m < a->t->c->microbatches; m++) {
        double off = fabs(a->loss[m] - a->t->loss[m]);
        note(a->t, a->t->c->exact && off > 0 ? INFINITY : off / a->t->loss[m], "loss");
    }
}

/* --- ranks --- */

static mx_process_group *find_group(void *ctx, unsigned axes)
{
    rank_arg *a = ctx;
    return mx_local_group(a->t->world, a->rank, axes);
}

static mx_step_options options(const pipe_case *c)
{
    mx_step_options o = {.kind = MX_STEP_ACCUMULATE,
                         .shape = {.batch = BATCH, .seq = SEQ, .packed = c->packed,
                                   .images = c->images}};
    o.compile.remat.policy = c->remat;
    return o;
}

static void add_up(trial *t, const mx_pipeline *p)
{
    const mx_action_list *l = &p->schedule.list[p->how.stage];
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < l->n; i++) {
        const double *took = &p->took[2 * i];
        if (l->action[i].kind > MX_DO_W)
            continue;
        t->busy += took[1] - took[0];
        t->from = t->from > 0 ? fmin(t->from, took[0]) : took[0];
        t->to = fmax(t->to, took[1]);
    }
    pthread_mutex_unlock(&t->lock);
}

static mx_status run_rank(rank_arg *a, mx_session *s, mx_pipeline *p)
{
    trial *t = a->t;
    const pipe_case *c = t->c;
    mx_partition cut = {.mesh = &c->mesh, .rules = &t->rules, .rank = a->rank,
                        .context = c->context, .sharding_tolerance = 1};
    mx_step_options o = options(c);
    mx_pipeline_options how = {.kind = c->kind, .repeats = c->repeats ? c->repeats : 1,
                               .stages = mx_mesh_degree(&c->mesh, MX_AXIS_STAGE),
                               .stage = mx_mesh_coordinate(&c->mesh, a->rank, MX_AXIS_STAGE),
                               .microbatches = c->microbatches, .layers_each = c->layers_each,
                               .compile = o.compile};
    how.compile.n_threads = mx_session_threads(s);
    how.compile.partition = &cut;
    mx_graph_init(&p->joint);
    MX_TRY(mx_pipeline_plan(p, mx_step_build(&p->joint, &t->model, &o), &how));
    MX_TRY(mx_session_share(s, mx_pipeline_shared_bytes(p), 0));
    MX_TRY(mx_pipeline_bind(p, s, find_group(a, 1u << MX_AXIS_STAGE)));
    MX_TRY(mx_session_init(s, 11));
    mx_pipeline_feed feed = {feed_write, feed_read, a};
    MX_TRY(mx_pipeline_run(p, &feed));
    if (!c->pause_ms)
        return MX_OK;
    double took[2 * MAX_ACTIONS]; /* of a second step, which all begin together */
    p->took = took;
    MX_TRY(mx_pipeline_run(p, &feed));
    add_up(t, p);
    p->took = NULL;
    return MX_OK;
}

static void *rank_main(void *arg)
{
    rank_arg *a = arg;
    trial *t = a->t;
    mx_session *s = NULL;
    mx_pipeline p = {0};
    struct sched_param first = {.sched_priority = 1};
    if (t->c->pause_ms) /* wakes up in time beside other processes; where that is allowed */
        (void)pthread_setschedparam(pthread_self(), SCHED_RR, &first);
    MX_CHECK_OK(mx_session_open(&s, "cpu", 1));
    mx_session_set_groups(s, find_group, a);
    mx_status st = run_rank(a, s, &p);
    if (st)
        mx_local_abort(t->world, a->rank, mx_status_text(st));
    pthread_mutex_lock(&t->lock);
    int stages = mx_mesh_degree(&t->c->mesh, MX_AXIS_STAGE);
    if (st && !*t->refused)
        snprintf(t->refused, sizeof t->refused, "%s", mx_status_text(st));
    if (!st) {
        MX_CHECK(compare(a, s) > 0, "rank %d has no gradients", a->rank);
        if (mx_mesh_coordinate(&t->c->mesh, a->rank, MX_AXIS_STAGE) == stages - 1)
            compare_loss(a);
    }
    pthread_mutex_unlock(&t->lock);
    mx_status_free(st);
    mx_pipeline_close(&p);
    mx_session_close(s);
    return NULL;
}

static void open_one(trial *t)
{
    mx_hf_dir dir = {0};
    mx_step_options o = options(t->c);
    mx_axis_rules_init(&t->rules);
    pthread_mutex_init(&t->lock, NULL);
    MX_CHECK_OK(mx_hf_dir_open(&dir, t->c->dir, MX_HF_CONFIG_ONLY));
    if (t->c->layers)
        json_object_set_new(dir.config, json_object_get(dir.config, "n_layer") ? "n_layer"
                            : "num_hidden_layers", json_integer(t->c->layers));
    MX_CHECK_OK(mx_model_from_json(&t->model, dir.config, t->c->dir));
    mx_hf_dir_close(&dir);
    MX_CHECK_OK(mx_session_open(&t->session, "cpu", 1));
    MX_CHECK_OK(mx_step_open(&t->step, t->session, &t->model, &o));
    MX_CHECK_OK(mx_session_init(t->session, 11));
    for (int m = 0; m < t->c->microbatches; m++) {
        MX_CHECK_OK(write_inputs(t, m, t->step.exec));
        MX_CHECK_OK(mx_exec_run(t->step.exec));
        t->loss[m] = loss_of(t->step.exec);
    }
}

static void close_one(trial *t)
{
    mx_session_close(t->session);
    mx_step_close(&t->step);
    mx_axis_rules_fini(&t->rules);
    mx_model_spec_fini(&t->model);
    pthread_mutex_destroy(&t->lock);
}

static void run_ranks(trial *t)
{
    int n = mx_mesh_ranks(&t->c->mesh);
    pthread_t thread[MAX_RANKS];
    rank_arg arg[MAX_RANKS];
    MX_ASSERT(n <= MAX_RANKS, "%d ranks", n);
    t->world = mx_local_world_new(&t->c->mesh);
    for (int k = 0; k < n; k++) {
        arg[k] = (rank_arg){.t = t, .rank = k};
        pthread_create(&thread[k], NULL, rank_main, &arg[k]);
    }
    for (int k = 0; k < n; k++)
        pthread_join(thread[k], NULL);
    mx_local_world_free(t->world);
}

static void check(const pipe_case *c)
{
    trial t = {.c = c};
    double limit = c->limit > 0 ? c->limit : 2e-5;
    open_one(&t);
    run_ranks(&t);
    MX_CHECK(!*t.refused, "%s: %s", c->dir, t.refused);
    MX_CHECK(t.worst <= limit, "%s, %s of %d stages, %d chunks each, %d microbatches: %s is off by "
             "%.3g", c->dir, mx_pipeline_kind_name(c->kind),
             mx_mesh_degree(&c->mesh, MX_AXIS_STAGE), c->repeats, c->microbatches, t.where,
             t.worst);
    close_one(&t);
}

#define MODEL(name) "tests/fixtures/models/" name
#define STAGES(n) {.ici = {[MX_AXIS_STAGE] = (n)}}

/* Every schedule, with layers and microbatches that do not divide, and fewer of these than stages;
 * to the bit. */
MX_TEST(pipelines_of_a_dense_model)
{
    static const struct {
        mx_pipeline_kind kind;
        int stages, repeats, layers, microbatches;
    } shape[] = {
        {MX_PIPELINE_GPIPE, 2, 1, 2, 3},       {MX_PIPELINE_1F1B, 2, 1, 2, 4},
        {MX_PIPELINE_1F1B, 4, 1, 5, 2},        {MX_PIPELINE_INTERLEAVED, 2, 2, 5, 4},
        {MX_PIPELINE_INTERLEAVED, 4, 2, 9, 1}, {MX_PIPELINE_ZB_H1, 3, 1, 4, 5},
    };
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        check(&(pipe_case){.dir = MODEL("llama3"), .mesh = STAGES(shape[i].stages),
                           .kind = shape[i].kind, .repeats = shape[i].repeats,
                           .layers = shape[i].layers, .microbatches = shape[i].microbatches,
                           .exact = true});
}

static bool is_tied(const char *name)
{
    static const char *const tied[] = {"gemma", "gpt2", "qwen3", "smollm3", "deepseek-v3-mtp"};
    for (size_t i = 0; i < sizeof tied / sizeof *tied; i++)
        if (strncmp(name, tied[i], strlen(tied[i])) == 0)
            return true;
    return false;
}

static void one_family(const char *name, int turn)
{
    static const mx_pipeline_kind kind[] = {MX_PIPELINE_1F1B, MX_PIPELINE_ZB_H1, MX_PIPELINE_GPIPE};
    char dir[512];
    snprintf(dir, sizeof dir, MODEL("%s"), name);
    bool images = strstr(name, "vision") || strstr(name, "-vl");
    check(&(pipe_case){.dir = dir, .mesh = STAGES(2), .kind = kind[turn % 3], .microbatches = 3,
                       .packed = turn % 2 && !images, .images = images ? BATCH : 0,
                       .exact = !is_tied(name)});
}

/* Mixtures, tied weights, towers and heads of several kinds; MX_MESHES=all runs every fixture. */
MX_TEST(pipelines_of_families)
{
    static const char *const some[] = {"deepseek-v3-mtp", "gemma4", "gemma3-vision", "gpt2",
                                       "mixtral", "qwen3-next", "qwen3-vl"};
    const char *only = getenv("MX_MESH_MODEL"), *all = getenv("MX_MESHES");
    if (!all && !only) {
        for (size_t i = 0; i < sizeof some / sizeof *some; i++)
            one_family(some[i], (int)i);
        return;
    }
    struct dirent **list;
    int n = scandir("tests/fixtures/models", &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (*list[i]->d_name != '.' && (!only || strcmp(only, list[i]->d_name) == 0))
            one_family(list[i]->d_name, i);
        free(list[i]);
    }
    free(list);
}

#define MESH(n, axis) {.ici = {[MX_AXIS_STAGE] = (n), [MX_AXIS_##axis] = 2}}

/* Other axes inside of each stage. */
MX_TEST(pipelines_on_meshes)
{
    static const pipe_case some[] = {
        {.dir = MODEL("llama3"), .mesh = MESH(2, FSDP), .kind = MX_PIPELINE_ZB_H1},
        {.dir = MODEL("gpt2"), .mesh = MESH(4, TENSOR), .kind = MX_PIPELINE_1F1B, .layers = 4},
        {.dir = MODEL("mixtral"), .mesh = MESH(4, EXPERT), .kind = MX_PIPELINE_GPIPE, .layers = 5},
        {.dir = MODEL("gemma3"), .mesh = MESH(4, TENSOR), .kind = MX_PIPELINE_ZB_H1},
        {.dir = MODEL("gemma3"), .mesh = MESH(2, CONTEXT), .kind = MX_PIPELINE_INTERLEAVED,
         .repeats = 3, .context = MX_CONTEXT_RING},
        {.dir = MODEL("deepseek-v3-mtp"), .mesh = MESH(4, DATA), .kind = MX_PIPELINE_1F1B},
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        pipe_case c = some[i];
        c.microbatches = 2 + (int)i % 4;
        check(&c);
    }
}

/* What is not kept is computed again by the stage itself. */
MX_TEST(pipelines_with_remat)
{
    static const char *const policy[] = {"full", "minimal", "elementwise"};
    for (int i = 0; i < 3; i++)
        check(&(pipe_case){.dir = MODEL("mixtral"), .mesh = STAGES(2), .remat = policy[i],
                           .kind = i ? MX_PIPELINE_1F1B : MX_PIPELINE_ZB_H1, .microbatches = 3,
                           .exact = true});
}

/* Of equal stages: pauses make up nearly all of their time, and need no processor. */
static double idle_share(const pipe_case *c)
{
    trial t = {.c = c};
    open_one(&t);
    run_ranks(&t);
    MX_CHECK(!*t.refused, "%s: %s", c->dir, t.refused);
    close_one(&t);
    return 1 - t.busy / (t.to - t.from) / mx_mesh_degree(&c->mesh, MX_AXIS_STAGE);
}

/* What stages really do, as a profile shows it, is what the schedule's formula says. Where other
 * processes held a stage up, again with longer pauses. */
MX_TEST(pipelines_are_idle_as_their_formulas_say)
{
    static const struct {
        mx_pipeline_kind kind;
        int repeats;
        double share;
    } known[] = {{MX_PIPELINE_GPIPE, 1, 3.0 / 11}, {MX_PIPELINE_1F1B, 1, 3.0 / 11},
                 {MX_PIPELINE_INTERLEAVED, 2, 3.0 / 19}, {MX_PIPELINE_ZB_H1, 1, 1.0 / 9}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        pipe_case c = {.dir = MODEL("llama3"), .mesh = STAGES(4), .kind = known[i].kind,
                       .repeats = known[i].repeats, .microbatches = 8, .layers = 8};
        double off = 1;
        for (c.pause_ms = 20; c.pause_ms <= 160 && off > 0.02; c.pause_ms *= 2)
            off = fabs(idle_share(&c) - known[i].share);
        MX_CHECK(off <= 0.02, "%s: %.3f off the formula's %.3f", mx_pipeline_kind_name(c.kind), off,
                 known[i].share);
    }
}

/* mesh_run.c - see mesh_run.h. A rank is a thread with a session of its own. */
#include "mesh_run.h"

#include "device/session_impl.h"

#include "../test.h"
#include "dist/local.h"
#include "exec/pipeline.h"
#include "ops.h"
#include "ops/load.h"
#include "store/hf_dir.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 64 };

typedef struct {
    mesh_run *run;
    mx_mesh mesh;
    mx_local_world *world;
    pthread_mutex_t lock;
    pthread_barrier_t compiled;
    mx_str collectives[MAX_RANKS];
} trial;

typedef struct {
    trial *t;
    int rank;
} rank_arg;

/* --- meshes as text --- */

mx_mesh mesh_parse(const char *text)
{
    mx_mesh m;
    MX_CHECK_OK(mx_mesh_parse(&m, text));
    return m;
}

const char *mesh_text(const mx_mesh *m, char *out, size_t cap)
{
    mx_str s = {0};
    mx_mesh_print(&s, m);
    snprintf(out, cap, "%s", mx_str_text(&s));
    mx_str_fini(&s);
    return out;
}

/* --- programs and their inputs --- */

static mx_step_options options(const mesh_case *c, const mx_partition *p, bool apply)
{
    mx_step_kind kind = !c->steps         ? MX_STEP_GRADS
                        : !c->microbatches ? MX_STEP_TRAIN
                        : apply            ? MX_STEP_APPLY
                                           : MX_STEP_ACCUMULATE;
    mx_step_options o = {.kind = kind, .optimizer = c->optimizer,
                         .shape = {.batch = c->batch, .seq = c->seq, .packed = c->packed,
                                   .images = c->images}};
    o.compile.compute = c->dtype == MX_F64 ? MX_F64 : c->compute ? c->compute : MX_F32;
    o.compile.remat = c->remat;
    o.compile.partition = p;
    return o;
}

static int32_t token(int64_t b, int64_t i)
{
    return (int32_t)((b * 37 + i * i * 7 + 3) % 60);
}
static int32_t label(int64_t b, int64_t i)
{
    return i % 5 == 4 ? -100 : token(b, i + 1);
}
static int32_t position(int64_t b, int64_t i)
{
    return (int32_t)(i < 5 + b % 7 ? i : i - 5 - b % 7);
}
static int32_t segment(int64_t b, int64_t i)
{
    return i < 5 + b % 7 ? 1 : 2;
}

/* What this rank has of int32 (B, S), of microbatch `first` / B. */
static void write_rows(mx_exec *e, int64_t first, const char *name,
                       int32_t (*value)(int64_t b, int64_t i))
{
    mx_node *n = mx_program_find(e->program, name);
    if (!n)
        return;
    int64_t count = mx_type_count(&n->type), width = n->box ? n->box->whole.dim[1] : n->type.dim[1];
    int32_t *rows = mx_realloc(NULL, sizeof *rows * (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = n->box ? mx_box_element(n->box, &n->type, i) : i;
        rows[i] = value(first + at / width, at % width);
    }
    MX_CHECK_OK(mx_exec_write(e, name, rows));
    mx_free(rows);
}

static void write_pixels(mx_exec *e)
{
    mx_node *n = mx_program_find(e->program, "pixels");
    if (!n)
        return;
    int64_t count = mx_type_count(&n->type);
    mx_tensor t = {.data = mx_realloc(NULL, mx_type_bytes(&n->type)), .type = n->type};
    for (int64_t i = 0; i < count; i++) {
        int64_t at = n->box ? mx_box_element(n->box, &n->type, i) : i;
        mx_store_f64(&t, i, sin((double)at * 0.37));
    }
    MX_CHECK_OK(mx_exec_write(e, "pixels", t.data));
    mx_free(t.data);
}

static void write_number(mx_exec *e, const char *name, double x)
{
    mx_node *n = mx_program_find(e->program, name);
    double room;
    if (!n)
        return;
    mx_tensor t = {.data = &room, .type = n->type};
    mx_store_f64(&t, 0, x);
    MX_CHECK_OK(mx_exec_write(e, name, &room));
}

void mesh_write_inputs(const mesh_case *c, mx_exec *e, int microbatch)
{
    int64_t first = microbatch * c->batch;
    int n = c->microbatches ? c->microbatches : 1;
    write_rows(e, first, "tokens", token);
    write_rows(e, first, "labels", label);
    write_rows(e, first, "positions", position);
    write_rows(e, first, "segments", segment);
    write_pixels(e);
    write_number(e, "loss_scale", 1.0 / ((double)(c->batch * c->seq) * 0.8 * n));
    write_number(e, "first", microbatch == 0);
    write_number(e, "lr", 1e-3);
}

static mx_status update(mx_step *apply, int step)
{
    write_number(apply->exec, "step", step);
    write_number(apply->exec, "lr", 1e-3);
    return mx_exec_run(apply->exec);
}

static mx_status run_steps(const mesh_case *c, mx_step *s, mx_step *apply)
{
    int n = c->microbatches ? c->microbatches : 1;
    for (int k = 0; k < (c->steps ? c->steps : 1); k++) {
        write_number(s->exec, "step", k + 1);
        for (int m = 0; m < n; m++) {
            mesh_write_inputs(c, s->exec, m);
            MX_TRY(mx_exec_run(s->exec));
        }
        if (c->microbatches)
            MX_TRY(update(apply, k + 1));
    }
    return MX_OK;
}

/* Initial values that the case changes, by their place in the whole tensor. */
static void prepare(const mesh_case *c, mx_session *s)
{
    for (int i = 0; i < mx_session_count(s) && c->initial; i++) {
        mx_var *v = mx_session_var(s, i);
        if (v->attr.kind != MX_VAR_WEIGHT)
            continue;
        mx_tensor t = {.data = mx_realloc(NULL, mx_type_bytes(&v->type)), .type = v->type};
        MX_CHECK_OK(mx_var_read(s, v, t.data));
        for (int64_t k = 0; k < mx_type_count(&v->type); k++) {
            int64_t at = v->box ? mx_box_element(v->box, &v->type, k) : k;
            if (at >= 0)
                mx_store_f64(&t, k, c->initial(v, at, mx_load_f64(&t, k)));
        }
        MX_CHECK_OK(mx_var_write(s, v, t.data));
        mx_free(t.data);
    }
    MX_CHECK_OK(mx_session_refresh_copies(s));
}

static mx_status open_step(const mesh_case *c, mx_session *s, const mx_model_spec *model,
                           const mx_partition *p, mx_step *step, mx_step *apply)
{
    mx_step_options o = options(c, p, false), last = options(c, p, true);
    MX_TRY(mx_step_open(step, s, model, &o));
    if (c->steps && c->microbatches)
        MX_TRY(mx_step_open(apply, s, model, &last));
    MX_TRY(mx_session_init(s, 11));
    prepare(c, s);
    return MX_OK;
}

/* --- comparing --- */

static double largest_of(const mx_tensor *t)
{
    double top = 0;
    for (int64_t i = 0; i < mx_type_count(&t->type); i++)
        top = fmax(top, fabs(mx_load_f64(t, i)));
    return top;
}

/* The largest difference of a part from the whole, relative to its largest number; what is far
 * below every gradient is rounding. */
static double distance(const mesh_run *r, const mx_tensor *mine, const mx_box *box,
                       const mx_tensor *all)
{
    double off = 0, top = fmax(largest_of(all), 1e-6 * r->largest);
    for (int64_t i = 0; i < mx_type_count(&mine->type); i++) {
        int64_t at = box ? mx_box_element(box, &mine->type, i) : i;
        double x = mx_load_f64(mine, i), y = at < 0 ? 0 : mx_load_f64(all, at);
        off = fmax(off, isfinite(x) ? fabs(x - y) : INFINITY);
    }
    return off / fmax(top, 1e-30);
}

static void note(mesh_run *r, double off, const char *what)
{
    if (off > r->worst || isnan(off)) {
        r->worst = isnan(off) ? INFINITY : off;
        snprintf(r->where, sizeof r->where, "%s", what);
    }
}

/* An input or result where it lies, in host memory; of no data: the program has none. */
static mx_tensor tensor_of(mx_exec *e, const char *name)
{
    const mx_type *type = e && name ? mx_exec_type(e, name) : NULL;
    mx_device *d = type ? mx_session_device(e->session) : NULL;
    return type ? (mx_tensor){.data = d->address(d, mx_exec_buffer(e, name)), .type = *type}
                : (mx_tensor){0};
}

static void compare_gradients(mesh_run *r, mx_step *s)
{
    for (int i = 0; i < s->graph.n_nodes; i++) {
        const mx_node *v = s->graph.node[i];
        const mx_var_attr *attr = v->attr;
        char name[512];
        if (v->op != &mx_op_variable || attr->kind != MX_VAR_WEIGHT || attr->frozen)
            continue;
        snprintf(name, sizeof name, "grad:%s", v->name);
        mx_tensor mine = tensor_of(s->exec, name), all = tensor_of(r->step.exec, name);
        MX_CHECK(!mine.data == !all.data, "%s", name);
        if (mine.data && all.data)
            note(r, distance(r, &mine, v->box, &all), name);
    }
}

static void compare_variables(mesh_run *r, mx_session *s)
{
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i), *w = mx_session_find(r->session, v->name);
        if (v->attr.kind != MX_VAR_WEIGHT)
            continue;
        MX_CHECK(w, "%s is not on one device", v->name);
        if (!w)
            continue;
        mx_tensor mine = {.data = mx_var_host(s, v), .type = v->type},
                  all = {.data = mx_var_host(r->session, w), .type = w->type};
        note(r, distance(r, &mine, v->box, &all), v->name);
    }
}

/* What is multiplied is the weight in the compute dtype, as it lies on this rank. */
static void check_copies(mx_session *s)
{
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i);
        const mx_var *w = v->attr.kind == MX_VAR_COPY ? mx_session_find(s, v->attr.copy_of) : NULL;
        mx_tensor copy = {.data = mx_var_host(s, v), .type = v->type};
        if (!w || !mx_shape_equal(&w->type, &v->type))
            continue;
        mx_tensor from = {.data = mx_var_host(s, w), .type = w->type};
        int64_t off = 0;
        for (int64_t k = 0; k < mx_type_count(&v->type); k++) {
            uint64_t room = 0;
            mx_tensor one = {.data = &room, .type = {.dtype = v->type.dtype}};
            mx_store_f64(&one, 0, mx_load_f64(&from, k));
            off += mx_load_f64(&one, 0) != mx_load_f64(&copy, k);
        }
        MX_CHECK(off == 0, "%s: %lld numbers differ from the weight's", v->name, (long long)off);
    }
}

static void compare_number(mesh_run *r, mx_exec *e, mx_step *one, const char *name, bool some)
{
    mx_tensor mine = tensor_of(e, name), all = tensor_of(one->exec, name);
    if (all.data && (mine.data || !some))
        note(r, mine.data ? distance(r, &mine, NULL, &all) : INFINITY, name);
}

/* Every root that is one number: the loss, its parts, metrics, norms. `some`: others may have the
 * rest. */
static void compare_numbers(mesh_run *r, mx_exec *e, mx_step *one, bool some)
{
    for (int i = 0; one->exec && i < one->graph.n_roots; i++) {
        const mx_node *n = one->graph.root[i];
        if (n->name && mx_type_count(&n->type) == 1)
            compare_number(r, e, one, n->name, some);
    }
}

/* --- ranks --- */

static mx_process_group *find_group(void *ctx, unsigned axes)
{
    rank_arg *a = ctx;
    return mx_local_group(a->t->world, a->rank, axes);
}

static void list_collectives(const mx_exec *e, mx_str *out, int *n)
{
    for (int i = 0; e && i < e->n_steps; i++) {
        const mx_exec_step *x = &e->step[i];
        if (!x->op->collective)
            continue;
        const mx_collective_attr *a = x->call.attr;
        mx_str_addf(out, "%s %lld %lld %s\n", x->op->name, (long long)a->axes,
                    (long long)mx_type_bytes(&x->call.in[0].type), x->scope);
        ++*n;
    }
}

/* --- stages --- */

typedef struct {
    rank_arg *rank;
    bool last; /* of the steps: its numbers are compared */
} stage_feed;

static mx_status feed_write(void *ctx, int microbatch, mx_exec *e)
{
    mesh_write_inputs(&((stage_feed *)ctx)->rank->t->run->c, e, microbatch);
    return MX_OK;
}

static mx_status feed_read(void *ctx, int microbatch, mx_exec *e)
{
    const stage_feed *f = ctx;
    trial *t = f->rank->t;
    if (f->last && microbatch == (t->run->c.microbatches ? t->run->c.microbatches : 1) - 1) {
        pthread_mutex_lock(&t->lock);
        compare_numbers(t->run, e, &t->run->step, true);
        pthread_mutex_unlock(&t->lock);
    }
    return MX_OK;
}

static void compare_sums(mesh_run *r, mx_session *s)
{
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i);
        char name[512];
        if (v->attr.kind != MX_VAR_GRADIENT)
            continue;
        snprintf(name, sizeof name, "grad:%.*s", (int)strlen(v->name) - 5, v->name);
        mx_tensor mine = {.data = mx_var_host(s, v), .type = v->type};
        mx_tensor all = tensor_of(r->step.exec, name);
        MX_CHECK(all.data, "%s is not on one device", name);
        if (all.data)
            note(r, distance(r, &mine, v->box, &all), name);
    }
}

static mx_status open_stages(rank_arg *a, const mx_partition *p, mx_session *s, mx_pipeline *pipe,
                             mx_step *apply)
{
    const mesh_case *c = &a->t->run->c;
    mx_step_options o = options(c, p, false), last = options(c, p, true);
    mx_pipeline_options how = {
        .kind = MX_PIPELINE_1F1B,
        .stages = mx_mesh_degree(&a->t->mesh, MX_AXIS_STAGE),
        .stage = mx_mesh_coordinate(&a->t->mesh, a->rank, MX_AXIS_STAGE),
        .repeats = 1, .microbatches = c->microbatches ? c->microbatches : 1,
        .compile = o.compile};
    mx_stages stages = mx_pipeline_stages(&how);
    how.compile.n_threads = mx_session_threads(s);
    mx_graph_init(&pipe->joint);
    if (c->dtype == MX_F64)
        pipe->joint.param_dtype = MX_F64;
    MX_TRY(mx_pipeline_plan(pipe, mx_step_build(&pipe->joint, &a->t->run->model, &o), &how));
    MX_TRY(mx_session_share(s, mx_pipeline_shared_bytes(pipe), 0));
    last.kind = MX_STEP_APPLY;
    last.compile.stages = &stages;
    if (c->steps)
        MX_TRY(mx_step_open(apply, s, &a->t->run->model, &last));
    MX_TRY(mx_pipeline_bind(pipe, s, find_group(a, 1u << MX_AXIS_STAGE)));
    MX_TRY(mx_session_init(s, 11));
    prepare(c, s);
    return MX_OK;
}

static mx_status run_stages(rank_arg *a, mx_pipeline *pipe, mx_step *apply)
{
    const mesh_case *c = &a->t->run->c;
    int n = c->steps ? c->steps : 1;
    for (int k = 0; k < n; k++) {
        stage_feed f = {a, k == n - 1};
        MX_TRY(mx_pipeline_run(pipe, &(mx_pipeline_feed){feed_write, feed_read, &f}));
        if (c->steps)
            MX_TRY(update(apply, k + 1));
    }
    return MX_OK;
}

static mx_session *open_rank(rank_arg *a, mx_partition *p)
{
    mx_session *s = NULL;
    *p = a->t->run->c.how;
    p->mesh = &a->t->mesh;
    p->rules = &a->t->run->rules;
    p->rank = a->rank;
    MX_CHECK_OK(mx_session_open(&s, "cpu", 1));
    mx_session_set_groups(s, find_group, a);
    return s;
}

/* The first failure of a trial. */
static void keep_failure(mesh_run *r, mx_status st)
{
    if (st && !*r->refused)
        snprintf(r->refused, sizeof r->refused, "%s", mx_status_text(st));
}

/* A rank of a mesh with stages. */
static void *stage_main(void *arg)
{
    rank_arg *a = arg;
    trial *t = a->t;
    mesh_run *r = t->run;
    mx_partition p;
    mx_session *s = open_rank(a, &p);
    mx_pipeline pipe = {0};
    mx_step apply = {0};
    mx_status st = open_stages(a, &p, s, &pipe, &apply);
    if (!st)
        st = run_stages(a, &pipe, &apply);
    if (st)
        mx_local_abort(t->world, a->rank, mx_status_text(st));
    pthread_mutex_lock(&t->lock);
    keep_failure(r, st);
    if (!st && r->c.steps) {
        compare_numbers(r, apply.exec, r->c.microbatches ? &r->apply : &r->step, true);
        check_copies(s);
        compare_variables(r, s);
    } else if (!st) {
        compare_sums(r, s);
    }
    pthread_mutex_unlock(&t->lock);
    mx_status_free(st);
    mx_pipeline_close(&pipe);
    mx_session_close(s);
    mx_step_close(&apply);
    return NULL;
}

static void *rank_main(void *arg)
{
    rank_arg *a = arg;
    trial *t = a->t;
    mesh_run *r = t->run;
    mx_partition p;
    mx_session *s = open_rank(a, &p);
    mx_step step = {0}, apply = {0};
    int n = 0;
    mx_status st = open_step(&r->c, s, &r->model, &p, &step, &apply);
    list_collectives(step.exec, &t->collectives[a->rank], &n);
    list_collectives(apply.exec, &t->collectives[a->rank], &n);
    if (st)
        mx_local_abort(t->world, a->rank, mx_status_text(st));
    pthread_barrier_wait(&t->compiled);
    bool same = strcmp(mx_str_text(&t->collectives[0]), mx_str_text(&t->collectives[a->rank])) == 0;
    MX_CHECK(same, "rank %d has other collectives than rank 0:\n%s\n-- and rank 0\n%s", a->rank,
             mx_str_text(&t->collectives[a->rank]), mx_str_text(&t->collectives[0]));
    if (!st && same)
        st = run_steps(&r->c, &step, &apply);
    pthread_mutex_lock(&t->lock);
    keep_failure(r, st);
    if (!st && same) {
        r->n_collectives = n;
        compare_numbers(r, step.exec, &r->step, false);
        compare_numbers(r, apply.exec, &r->apply, false);
        check_copies(s);
        if (r->c.steps)
            compare_variables(r, s);
        else
            compare_gradients(r, &step);
    }
    pthread_mutex_unlock(&t->lock);
    if (st)
        mx_local_abort(t->world, a->rank, mx_status_text(st));
    mx_status_free(st);
    mx_session_close(s);
    mx_step_close(&step);
    mx_step_close(&apply);
    return NULL;
}

bool mesh_run_try(mesh_run *r, mx_mesh mesh)
{
    int n = mx_mesh_ranks(&mesh);
    trial t = {.run = r, .mesh = mesh};
    pthread_t thread[MAX_RANKS];
    rank_arg arg[MAX_RANKS];
    MX_ASSERT(n <= MAX_RANKS, "%d ranks", n);
    r->worst = 0;
    *r->where = *r->refused = 0;
    pthread_mutex_init(&t.lock, NULL);
    pthread_barrier_init(&t.compiled, NULL, (unsigned)n);
    t.world = mx_local_world_new(&mesh);
    for (int k = 0; k < n; k++) {
        arg[k] = (rank_arg){&t, k};
        bool stages = mx_mesh_degree(&mesh, MX_AXIS_STAGE) > 1;
        pthread_create(&thread[k], NULL, stages ? stage_main : rank_main, &arg[k]);
    }
    for (int k = 0; k < n; k++) {
        pthread_join(thread[k], NULL);
        mx_str_fini(&t.collectives[k]);
    }
    mx_local_world_free(t.world);
    pthread_barrier_destroy(&t.compiled);
    pthread_mutex_destroy(&t.lock);
    return !*r->refused;
}

void mesh_run_check(mesh_run *r, mx_mesh mesh, double limit)
{
    char text[256];
    bool ran = mesh_run_try(r, mesh);
    mesh_text(&mesh, text, sizeof text);
    MX_CHECK(ran, "%s on %s: %s", r->c.dir, text, r->refused);
    MX_CHECK(!ran || r->worst <= limit, "%s on %s: %s is off by %.3g (limit %.3g)", r->c.dir, text,
             r->where, r->worst, limit);
}

/* More layers of the same kinds, in turns. */
static void set_layers(json_t *config, int n)
{
    json_t *types = json_object_get(config, "layer_types");
    size_t have = json_array_size(types);
    json_object_set_new(config, "num_hidden_layers", json_integer(n));
    for (size_t i = have; have && i < (size_t)n; i++)
        json_array_append(types, json_array_get(types, i % have));
}

void mesh_run_open(mesh_run *r, const mesh_case *c)
{
    mx_hf_dir dir = {0};
    *r = (mesh_run){.c = *c};
    mx_axis_rules_init(&r->rules);
    for (int i = 0; i < 4 && c->rules[i]; i++)
        MX_CHECK_OK(mx_axis_rules_set(&r->rules, c->rules[i], false));
    MX_CHECK_OK(mx_hf_dir_open(&dir, c->dir, MX_HF_CONFIG_ONLY));
    if (c->layers)
        set_layers(dir.config, c->layers);
    MX_CHECK_OK(mx_model_from_json(&r->model, dir.config, c->dir));
    mx_hf_dir_close(&dir);
    MX_CHECK_OK(mx_session_open(&r->session, "cpu", 1));
    MX_CHECK_OK(open_step(c, r->session, &r->model, NULL, &r->step, &r->apply));
    MX_CHECK_OK(run_steps(c, &r->step, &r->apply));
    for (int i = 0; !c->steps && i < r->step.graph.n_roots; i++) {
        mx_tensor t = tensor_of(r->step.exec, r->step.graph.root[i]->name);
        if (t.data && t.type.ndim)
            r->largest = fmax(r->largest, largest_of(&t));
    }
}

void mesh_run_close(mesh_run *r)
{
    mx_session_close(r->session);
    mx_step_close(&r->step);
    mx_step_close(&r->apply);
    mx_axis_rules_fini(&r->rules);
    mx_model_spec_fini(&r->model);
}

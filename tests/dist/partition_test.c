/* partition_test.c - a model on a mesh of virtual ranks: loss and every gradient as on one device. */
#include "compile/partition.h"
#include "dist/local.h"
#include "ops.h"
#include "ops/load.h"
#include "store/hf_dir.h"
#include "../test.h"
#include "train/step.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 8, S = 16 };

typedef struct {
    mx_local_world *world;
    mx_axis_rules *rules;
    mx_mesh mesh;
    const mx_model_spec *model;
    mx_step whole; /* on one device, run */
    mx_session *one;
    mx_context_strategy context;
    bool zigzag;
    double worst;
    char where[256];
    pthread_mutex_t lock;
} trial;

typedef struct {
    trial *t;
    int rank;
} rank_arg;

static mx_process_group *find_group(void *ctx, unsigned axes)
{
    rank_arg *a = ctx;
    return mx_local_group(a->t->world, a->rank, axes);
}

static mx_step_options options(const mx_partition *p)
{
    mx_step_options o = {.kind = MX_STEP_GRADS,
                         .shape = {.batch = B, .seq = S, .packed = getenv("MX_MESH_PACKED")}};
    o.compile.compute = getenv("MX_MESH_F64") ? MX_F64 : MX_F32;
    o.compile.partition = p;
    return o;
}

/* What this rank has of a row-major int32 (B, S). */
static void write_rows(mx_step *s, const mx_partition *p, const char *name,
                       int32_t (*value)(int64_t b, int64_t i))
{
    int32_t rows[B * S];
    mx_node *n = mx_program_find(&s->program, name);
    if (!n)
        return;
    for (int64_t b = 0; b < n->type.dim[0]; b++)
        for (int64_t i = 0; i < n->type.dim[1]; i++) {
            int64_t row = p ? mx_cut_index(p->mesh, p->rank, &n->box->at.dim[0], B, b) : b;
            int64_t at = p ? mx_cut_index(p->mesh, p->rank, &n->box->at.dim[1], S, i) : i;
            rows[b * n->type.dim[1] + i] = value(row, at);
        }
    MX_CHECK_OK(mx_exec_write(s->exec, name, rows));
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
    return (int32_t)(i < 5 + b ? i : i - 5 - b);
}
static int32_t segment(int64_t b, int64_t i)
{
    return i < 5 + b ? 1 : 2;
}

static void run(mx_step *s, const mx_partition *p)
{
    float scale = 1.0f / (B * S * 0.8f);
    write_rows(s, p, "tokens", token);
    write_rows(s, p, "labels", label);
    write_rows(s, p, "positions", position);
    write_rows(s, p, "segments", segment);
    MX_CHECK_OK(mx_exec_write(s->exec, "loss_scale", &scale));
    MX_CHECK_OK(mx_exec_run(s->exec));
}

/* The largest difference of a gradient's part from the whole, relative to its largest number. */
static double compare(trial *t, mx_step *s, const mx_node *v)
{
    char name[512];
    snprintf(name, sizeof name, "grad:%s", v->name);
    mx_tensor mine = mx_exec_tensor(s->exec, name), all = mx_exec_tensor(t->whole.exec, name);
    MX_CHECK(mine.data && all.data, "%s", name);
    if (!mine.data || !all.data)
        return INFINITY;
    double top = 1e-12, off = 0;
    for (int64_t i = 0; i < mx_type_count(&all.type); i++)
        top = fmax(top, fabs(mx_load_f64(&all, i)));
    for (int64_t i = 0; i < mx_type_count(&mine.type); i++) {
        int64_t at = mx_box_element(v->box, &v->type, i);
        if (at >= 0)
            off = fmax(off, fabs(mx_load_f64(&mine, i) - mx_load_f64(&all, at)));
    }
    return off / top;
}

static void *rank_main(void *arg)
{
    rank_arg *a = arg;
    trial *t = a->t;
    mx_partition p = {.mesh = &t->mesh, .rules = t->rules, .rank = a->rank,
                      .context = t->context, .zigzag = t->zigzag};
    mx_step_options o = options(&p);
    mx_session *s = NULL;
    mx_step step = {0};
    MX_CHECK_OK(mx_session_open(&s, "cpu", 1));
    mx_session_set_groups(s, find_group, a);
    mx_status st = mx_step_open(&step, s, t->model, &o);
    if (st) {
        mx_local_abort(t->world, a->rank, "cannot compile");
        MX_CHECK_OK(st);
        mx_session_close(s);
        return NULL;
    }
    MX_CHECK_OK(mx_session_init(s, 11));
    run(&step, &p);
    mx_tensor loss = mx_exec_tensor(step.exec, "loss"), all = mx_exec_tensor(t->whole.exec, "loss");
    double mine = mx_load_f64(&loss, 0), whole = mx_load_f64(&all, 0);
    pthread_mutex_lock(&t->lock);
    double off = fabs(mine - whole) / whole;
    if (off > t->worst)
        t->worst = off, snprintf(t->where, sizeof t->where, "loss %g, expected %g", mine, whole);
    for (int i = 0; i < step.graph.n_nodes; i++) {
        const mx_node *v = step.graph.node[i];
        const mx_var_attr *attr = v->attr;
        if (v->op != &mx_op_variable || attr->kind != MX_VAR_WEIGHT || attr->frozen)
            continue;
        off = compare(t, &step, v);
        if (off > t->worst)
            t->worst = off, snprintf(t->where, sizeof t->where, "%s", v->name);
    }
    pthread_mutex_unlock(&t->lock);
    mx_session_close(s);
    mx_step_close(&step);
    return NULL;
}

static void check_mesh(trial *t, mx_mesh mesh)
{
    int n = mx_mesh_ranks(&mesh);
    pthread_t thread[64];
    rank_arg arg[64];
    t->mesh = mesh;
    t->worst = 0;
    t->world = mx_local_world_new(&mesh);
    for (int r = 0; r < n; r++) {
        arg[r] = (rank_arg){t, r};
        pthread_create(&thread[r], NULL, rank_main, &arg[r]);
    }
    for (int r = 0; r < n; r++)
        pthread_join(thread[r], NULL);
    mx_local_world_free(t->world);
    mx_str s = {0};
    for (int a = 0; a < MX_AXIS_COUNT; a++)
        if (mx_mesh_degree(&mesh, (mx_axis)a) > 1)
            mx_str_addf(&s, "%s=%d ", mx_axis_name((mx_axis)a), mx_mesh_degree(&mesh, (mx_axis)a));
    mx_str_addf(&s, "(strategy %d%s)", t->context, t->zigzag ? ", zigzag" : "");
    MX_CHECK(t->worst < (getenv("MX_MESH_F64") ? 1e-9 : 2e-5), "%s: %s off by %.3g", mx_str_text(&s), t->where, t->worst);
    mx_str_fini(&s);
}

static void with_model(const char *path, void (*body)(trial *t))
{
    mx_hf_dir dir = {0};
    mx_model_spec m = {0};
    mx_axis_rules rules;
    trial t = {.model = &m, .rules = &rules};
    pthread_mutex_init(&t.lock, NULL);
    mx_axis_rules_init(&rules);
    MX_CHECK_OK(mx_hf_dir_open(&dir, path, MX_HF_CONFIG_ONLY));
    MX_CHECK_OK(mx_model_from_json(&m, dir.config, path));
    mx_step_options o = options(NULL);
    MX_CHECK_OK(mx_session_open(&t.one, "cpu", 1));
    MX_CHECK_OK(mx_step_open(&t.whole, t.one, &m, &o));
    MX_CHECK_OK(mx_session_init(t.one, 11));
    run(&t.whole, NULL);
    body(&t);
    mx_session_close(t.one);
    mx_step_close(&t.whole);
    mx_axis_rules_fini(&rules);
    mx_model_spec_fini(&m);
    mx_hf_dir_close(&dir);
}

static void single_axes(trial *t)
{
    static const mx_axis axis[] = {MX_AXIS_DATA, MX_AXIS_FSDP, MX_AXIS_FSDP_TRANSPOSE,
                                   MX_AXIS_TENSOR, MX_AXIS_SEQUENCE, MX_AXIS_CONTEXT,
                                   MX_AXIS_EXPERT};
    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        for (int n = 2; n <= 4; n *= 2) {
            mx_mesh m = {0};
            m.ici[axis[i]] = n;
            check_mesh(t, m);
        }
    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        for (size_t j = 0; j < i; j++) {
            mx_mesh m = {0};
            m.ici[axis[i]] = m.ici[axis[j]] = 2;
            check_mesh(t, m);
        }
}

static void sequences(trial *t)
{
    for (int k = 0; k < 6; k++) {
        t->context = (mx_context_strategy)(k / 2);
        t->zigzag = k % 2;
        check_mesh(t, (mx_mesh){.ici[MX_AXIS_CONTEXT] = 2});
        check_mesh(t, (mx_mesh){.ici[MX_AXIS_CONTEXT] = 4});
        check_mesh(t, (mx_mesh){.ici[MX_AXIS_CONTEXT] = 2, .ici[MX_AXIS_TENSOR] = 2});
        check_mesh(t, (mx_mesh){.ici[MX_AXIS_CONTEXT] = 2, .ici[MX_AXIS_SEQUENCE] = 2});
        check_mesh(t, (mx_mesh){.ici[MX_AXIS_CONTEXT] = 2, .ici[MX_AXIS_FSDP] = 2});
    }
}

MX_TEST(sequences_on_meshes)
{
    const char *model = getenv("MX_MESH_MODEL");
    with_model(model ? model : "tests/fixtures/models/llama3", sequences);
}

MX_TEST(dense_model_on_meshes)
{
    const char *model = getenv("MX_MESH_MODEL");
    with_model(model ? model : "tests/fixtures/models/llama3", single_axes);
}

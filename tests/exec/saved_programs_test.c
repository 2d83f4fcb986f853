/* saved_programs_test.c - programs that were kept in a file are the programs that were compiled. */
#include "../test.h"
#include "exec/mesh_config.h"
#include "exec/saved_programs.h"
#include "keys/keys.h"
#include "ops.h"
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    mx_config *cfg;
    mx_model_spec model;
    mx_programs_request request;
    mx_mesh_plan mesh;
    mx_arena arena;
} built;

static mx_status build(built *b, const char *dir, const char *const *args, int n)
{
    mx_config_request r = {.schema = &mx_keys, .args = args, .n_args = n};
    *b = (built){0};
    MX_TRY(mx_config_load(&b->cfg, &r));
    MX_TRY(mx_model_open(&b->model, b->cfg, dir));
    MX_TRY(mx_mesh_configure(&b->mesh, b->cfg, 1));
    mx_programs_ranks by = {b->mesh.ranks, 1, b->mesh.ranks > 1 ? &b->mesh.how : NULL};
    if (by.on)
        by.data_ranks = mx_mesh_size(&b->mesh.mesh, mx_mesh_rows(&b->mesh));
    return mx_programs_configure(&b->request, b->cfg, &b->model, by, &b->arena);
}

static void drop(built *b)
{
    mx_config_free(b->cfg);
    mx_model_spec_fini(&b->model);
    mx_mesh_plan_fini(&b->mesh);
    mx_arena_fini(&b->arena);
}

static mx_saved_for what_for(const built *b, const char *model)
{
    mx_saved_for w = {.device = "cpu", .chip = "", .ranks = b->mesh.ranks,
                      .data_ranks = b->request.batch.data_ranks, .model = model};
    if (b->mesh.ranks > 1)
        w.mesh = b->mesh.mesh;
    return w;
}

static bool is_pointer(const mx_attr_field *f)
{
    return f->kind == MX_ATTR_TABLE || f->kind == MX_ATTR_NAME || f->kind == MX_ATTR_BOX ||
           f->kind == MX_ATTR_GROUP;
}

static bool same_attributes(const mx_node *a, const mx_node *b)
{
    for (const mx_attr_field *f = a->op->fields; f && f->name; f++) {
        const char *x = (const char *)a->attr + f->offset, *y = (const char *)b->attr + f->offset;
        bool text = f->kind == MX_ATTR_TEXT || f->kind == MX_ATTR_LIST;
        if (!is_pointer(f) && (text ? strcmp(x, y) : memcmp(x, y, f->size)) != 0)
            return false;
    }
    return true;
}

static size_t alignment(size_t size)
{
    return size % 8 == 0 ? 8 : size % 4 == 0 ? 4 : 1;
}

/* What no field has is padding: shorter than the alignment of what follows. */
MX_TEST(fields_are_all_that_attributes_hold)
{
    for (int i = 0; i < mx_op_count; i++) {
        const mx_op *op = mx_op_table[i];
        size_t at = 0, most = 1;
        if (op == &mx_op_scaled_matmul)
            continue; /* its recipe is for the gradient, which is there already */
        for (const mx_attr_field *f; at < op->attr_size;) {
            size_t next = op->attr_size, size = 0;
            for (f = op->fields; f && f->name; f++)
                if (f->offset >= at && f->offset < next) {
                    next = f->offset;
                    size = f->size;
                }
            most = size && alignment(size) > most ? alignment(size) : most;
            MX_CHECK(next - at < (size ? alignment(size) : most) || (!size && next == at),
                     "%s: bytes %zu to %zu of its attributes have no field", op->name, at, next);
            at = next + size;
            if (!size)
                break;
        }
    }
}

static void check_node(const mx_program *p, const mx_program *q, int i)
{
    const mx_node *a = p->order[i], *b = q->order[i];
    MX_CHECK(a->op == b->op && a->n_in == b->n_in && a->n_out == b->n_out, "node %d: %s, read %s",
             i, a->op->name, b->op->name);
    MX_CHECK(a->op != b->op || same_attributes(a, b), "attributes of %s", a->op->name);
    for (int k = 0; k < a->n_out; k++) {
        const mx_place *x = mx_program_place(p, a, k), *y = mx_program_place(q, b, k);
        MX_CHECK(x->offset == y->offset && x->at == y->at && x->run == y->run &&
                     x->pitch == y->pitch && x->root->op == y->root->op,
                 "the place of %s", a->op->name);
    }
}

static void check_program(const mx_program *p, const mx_program *q)
{
    MX_CHECK(p->n == q->n, "%d nodes, read %d", p->n, q->n);
    for (int i = 0; i < p->n && p->n == q->n; i++)
        check_node(p, q, i);
    MX_CHECK(p->value_bytes == q->value_bytes && p->given_bytes == q->given_bytes &&
                 p->work_bytes == q->work_bytes && p->host_work_bytes == q->host_work_bytes &&
                 p->host_bytes == q->host_bytes && p->beside_at == q->beside_at,
             "sizes");
    MX_CHECK(memcmp(&p->bytes, &q->bytes, sizeof p->bytes) == 0, "bytes by class");
}

/* Bytes of a file with one rank. */
static void save(const built *b, mx_programs *p, const char *path)
{
    size_t bytes;
    mx_saved_for what = what_for(b, "m");
    what.ranks = 1;
    mx_saved_programs *s = mx_saved_programs_new(&what);
    mx_saved_programs_add(s, &(mx_saved_kind){p, &b->request, b->mesh.how.rank, 1});
    MX_CHECK_OK(mx_saved_programs_write(s, b->cfg, path, &bytes));
    mx_saved_programs_free(s);
}

static void round_trip(built *b, const mx_device_traits *device)
{
    mx_programs one = {0}, two = {0};
    mx_step *p[MX_PROGRAMS], *q[MX_PROGRAMS];
    mx_saved_programs *s = NULL;
    b->request.options.compile.device = device;
    b->request.options.compile.n_threads = 2;
    MX_CHECK_OK(mx_programs_plan(&one, &b->model, &b->request));
    save(b, &one, "build/test.saved");
    MX_CHECK_OK(mx_saved_programs_open(&s, "build/test.saved"));
    MX_CHECK_OK(mx_saved_programs_take(s, &two, &b->request, (mx_saved_rank){0, 2, device}));
    int n = mx_programs_list(&one, p);
    MX_CHECK(n == mx_programs_list(&two, q));
    for (int i = 0; i < n; i++)
        check_program(&p[i]->program, &q[i]->program);
    for (int i = 0; one.pipelined && i < one.pipeline.how.repeats; i++)
        for (int k = 0; k < MX_STAGE_PARTS; k++)
            check_program(&one.pipeline.chunk[i].program[k], &two.pipeline.chunk[i].program[k]);
    mx_saved_programs_free(s);
    mx_programs_close(&one);
    mx_programs_close(&two);
    unlink("build/test.saved");
}

/* Every family of tests/fixtures/models, for both kinds of device. */
MX_TEST(saved_programs_are_those_of_every_family)
{
    static const char root[] = "tests/fixtures/models";
    const char *args[] = {"max_target_length=8", "per_device_batch_size=2", "dtype=bfloat16",
                          "eval_interval=2", "gradient_accumulation_steps=2",
                          "use_multimodal=false"};
    DIR *d = opendir(root);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        built b;
        char path[600];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", root, e->d_name);
        mx_status st = build(&b, path, args, 6);
        if (!st) {
            round_trip(&b, &mx_cpu_traits);
            round_trip(&b, &mx_cuda_traits);
            n++;
        }
        mx_status_free(st);
        drop(&b);
    }
    if (d)
        closedir(d);
    MX_CHECK(n >= 20, "%d families", n);
}

#define TINY                                                                                       \
    "base_emb_dim=32", "base_num_query_heads=4", "base_num_kv_heads=2", "head_dim=8",              \
        "base_mlp_dim=64", "base_num_decoder_layers=4", "vocab_size=256", "max_target_length=16",  \
        "per_device_batch_size=4"
enum { N_TINY = 9 };

static void of_keys(const char *more, const char *also)
{
    built b;
    const char *args[] = {TINY, more, also};
    MX_CHECK_OK(build(&b, NULL, args, N_TINY + 1 + (also != NULL)));
    round_trip(&b, &mx_cpu_traits);
    round_trip(&b, &mx_cuda_traits);
    drop(&b);
}

MX_TEST(saved_programs_of_meshes_and_recipes)
{
    of_keys("mesh=fsdp=2,tensor=2", NULL);
    of_keys("mesh=stage=2,fsdp=2", "logits_via_embedding=true");
    of_keys("mesh=stage=2", "num_pipeline_repeats=2");
    of_keys("mesh=context=2", "context_parallel_strategy=ring");
    of_keys("quantization=fp8_tensorwise", "dtype=bfloat16");
    of_keys("quantization=int8", "dtype=bfloat16");
    of_keys("remat_policy=full", "opt_type=muon");
    of_keys("optimizer_memory_host_offload=true", "dtype=bfloat16");
    of_keys("enable_dropout=true", "dropout_rate=0.1");
}

/* What differs is named; what is damaged is refused, and neither crashes. */
MX_TEST(saved_programs_refuse_other_runs)
{
    built b, other;
    mx_programs one = {0};
    mx_saved_programs *s = NULL;
    const char *args[] = {TINY}, *changed[] = {TINY, "adam_b1=0.5"};
    MX_CHECK_OK(build(&b, NULL, args, N_TINY));
    MX_CHECK_OK(build(&other, NULL, changed, N_TINY + 1));
    b.request.options.compile.device = &mx_cpu_traits;
    MX_CHECK_OK(mx_programs_plan(&one, &b.model, &b.request));
    save(&b, &one, "build/test.refused");
    MX_CHECK_OK(mx_saved_programs_open(&s, "build/test.refused"));
    mx_saved_for run = what_for(&b, "m");
    MX_CHECK_OK(mx_saved_programs_fit(s, b.cfg, &run));
    MX_CHECK_ERROR(mx_saved_programs_fit(s, other.cfg, &run), "adam_b1: compiled for 0.9");
    run.model = "another";
    MX_CHECK_ERROR(mx_saved_programs_fit(s, b.cfg, &run), "the configuration m, and this run");
    run.device = "cuda";
    MX_CHECK_ERROR(mx_saved_programs_fit(s, b.cfg, &run), "compiled for the device cpu");
    run.device = "cpu";
    run.ranks = 2;
    MX_CHECK_ERROR(mx_saved_programs_fit(s, b.cfg, &run), "compiled for the mesh");
    mx_saved_programs_free(s);
    mx_programs_close(&one);
    drop(&b);
    drop(&other);
    unlink("build/test.refused");
}

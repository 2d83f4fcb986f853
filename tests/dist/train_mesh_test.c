/* train_mesh_test.c - steps of training on meshes: weights, norms and metrics as on one device. */
#include "../test.h"
#include "mesh_run.h"
#include "ops.h"
#include "store/hf_dir.h"
#include <stdio.h>

static mesh_case train_case(const char *dir)
{
    return (mesh_case){.dir = dir,
                       .batch = 8,
                       .seq = 16,
                       .steps = 3,
                       .optimizer = {.rule = &mx_optimizer_rule_adamw,
                                     .b1 = 0.9,
                                     .b2 = 0.95,
                                     .eps = 1e-8,
                                     .weight_decay = 0.1,
                                     .clip = 0.5,
                                     .no_decay = "*norm*"},
                       .how = {.sharding_tolerance = 1}};
}

static void on_meshes(const mesh_case *c, double limit)
{
    static const char *const mesh[] = {"data=2", "fsdp=2,tensor=2", "data=2,context=2",
                                       "sequence=2,expert=2"};
    mesh_run r;
    mesh_run_open(&r, c);
    for (int i = 0; i < 4; i++)
        mesh_run_check(&r, mesh_parse(mesh[i]), limit);
    mesh_run_close(&r);
}

MX_TEST(adamw_on_meshes)
{
    mesh_case c = train_case("tests/fixtures/models/mixtral");
    on_meshes(&c, 1e-4);
}

/* Matrices are orthogonalised whole. */
MX_TEST(muon_on_meshes)
{
    mesh_case c = train_case("tests/fixtures/models/mixtral");
    c.optimizer.rule = &mx_optimizer_rule_muon;
    c.optimizer.own = &(mx_muon_rates){.beta = 0.95, .steps = 5};
    on_meshes(&c, 1e-4);
}

/* The program of gradients of a fixture's model for rank 0 of a mesh. */
typedef struct {
    mx_mesh mesh;
    mx_axis_rules rules;
    mx_partition how;
    mx_model_spec model;
    mx_hf_dir dir;
    mx_step step;
} planned;

static void plan_on(planned *p, const char *mesh, const char *model, mx_step_options o)
{
    char path[128];
    *p = (planned){.mesh = mesh_parse(mesh)};
    mx_axis_rules_init(&p->rules);
    p->how = (mx_partition){.mesh = &p->mesh, .rules = &p->rules, .sharding_tolerance = 1};
    o.kind = MX_STEP_GRADS;
    o.compile.compute = MX_F32;
    o.compile.partition = &p->how;
    snprintf(path, sizeof path, "tests/fixtures/models/%s", model);
    MX_CHECK_OK(mx_hf_dir_open(&p->dir, path, MX_HF_CONFIG_ONLY));
    MX_CHECK_OK(mx_model_from_json(&p->model, p->dir.config, path));
    MX_CHECK_OK(mx_step_plan(&p->step, &p->model, &o));
}

static void planned_close(planned *p)
{
    mx_step_close(&p->step);
    mx_model_spec_fini(&p->model);
    mx_hf_dir_close(&p->dir);
    mx_axis_rules_fini(&p->rules);
}

/* A weight that was gathered for the forward pass is gathered again for the backward pass. */
MX_TEST(gathered_weights_are_not_kept)
{
    planned p;
    int again = 0;
    plan_on(&p, "fsdp=4", "llama3",
            (mx_step_options){.shape = {.batch = 4, .seq = 8},
                              .compile = {.remat = {.policy = "none"}}});
    for (int i = 0; i < p.step.program.n; i++) {
        const mx_node *n = p.step.program.order[i];
        for (int k = 0; k < n->n_in; k++) {
            const mx_node *x = n->in[k];
            if (!x || x->op != &mx_op_all_gather || x->in[0]->op != &mx_op_variable)
                continue;
            again += x->recomputed;
            MX_CHECK(x->recomputed || !n->backward, "%s is kept for %s",
                     x->in[0]->name, n->op->name);
        }
    }
    MX_CHECK(again > 0, "no weight is gathered again");
    planned_close(&p);
}

/* Nodes of a data rank's program that bring rows of other ranks. */
static int brought_rows(const char *model, bool packed)
{
    planned p;
    int n = 0;
    plan_on(&p, "data=4", model,
            (mx_step_options){.shape = {.batch = 4, .seq = 16, .packed = packed}});
    for (int i = 0; i < p.step.program.n; i++) {
        const mx_op *op = p.step.program.order[i]->op;
        n += op == &mx_op_all_gather || op == &mx_op_all_to_all || op == &mx_op_reduce_scatter;
    }
    planned_close(&p);
    return n;
}

/* What a rank does with its rows needs no others', however many ranks there are: of several
 * families of attention. */
MX_TEST(data_ranks_do_not_see_the_rows_of_others)
{
    static const char *const models[] = {"llama3", "gpt-oss", "mixtral", "deepseek-v3.2-indexer",
                                         "deepseek-v4", "qwen3-next", "gemma4-moe", "llama4"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int packed = 0; packed < 2; packed++)
            MX_CHECK(brought_rows(models[i], packed) == 0, "%s, %s: %d", models[i],
                     packed ? "packed" : "a document a row", brought_rows(models[i], packed));
}

MX_TEST(sums_of_microbatches_on_meshes)
{
    mesh_case c = train_case("tests/fixtures/models/llama3");
    c.microbatches = 2;
    on_meshes(&c, 1e-4);
}

MX_TEST(bfloat16_copies_on_meshes)
{
    mesh_case c = train_case("tests/fixtures/models/llama3");
    c.compute = MX_BF16;
    /* its steps are as small as the differences of gradients */
    c.optimizer.rule = &mx_optimizer_rule_sgd;
    on_meshes(&c, 1e-3);
}

/* train_mesh_test.c - steps of training on meshes: weights, norms and metrics as on one device. */
#include "../test.h"
#include "mesh_run.h"

static mesh_case train_case(const char *dir)
{
    return (mesh_case){.dir = dir, .batch = 8, .seq = 16, .steps = 3,
                       .optimizer = {.kind = MX_ADAMW, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8,
                                     .weight_decay = 0.1, .clip = 0.5, .no_decay = "*norm*"},
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
    c.optimizer.kind = MX_MUON;
    c.optimizer.muon_beta = 0.95;
    c.optimizer.muon_steps = 5;
    on_meshes(&c, 1e-4);
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
    c.optimizer.kind = MX_SGD; /* its steps are as small as the differences of gradients */
    on_meshes(&c, 1e-3);
}

/* partition_test.c - the models of the fixtures on meshes of virtual ranks: loss and every gradient
 * as on one device. In float64, so that nothing hides behind rounding. MX_MESH_MODEL=NAME picks a
 * fixture, MX_MESHES=all runs all meshes of two axes on all of them. */
#include "../test.h"
#include "mesh_run.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const axes[] = {"data", "fsdp", "fsdp_transpose", "tensor", "sequence",
                                   "context", "expert"};
enum { N_AXES = sizeof axes / sizeof *axes };

static bool everything(void)
{
    const char *s = getenv("MX_MESHES");
    return s && strcmp(s, "all") == 0;
}

static mesh_case case_of(const char *dir)
{
    return (mesh_case){.dir = dir, .dtype = MX_F64, .batch = 8, .seq = 16,
                       .how = {.sharding_tolerance = 1}};
}

/* Calls `body` with each fixture's directory that MX_MESH_MODEL allows. */
static void each_model(void (*body)(const char *dir))
{
    static const char at[] = "tests/fixtures/models";
    const char *only = getenv("MX_MESH_MODEL");
    struct dirent **list;
    int n = scandir(at, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char dir[512];
        snprintf(dir, sizeof dir, "%s/%s", at, list[i]->d_name);
        if (*list[i]->d_name != '.' && (!only || strcmp(only, list[i]->d_name) == 0))
            body(dir);
        free(list[i]);
    }
    free(list);
}

static void all_pairs(const char *dir)
{
    mesh_run r;
    mesh_case c = case_of(dir);
    mesh_run_open(&r, &c);
    for (int i = 0; i < N_AXES; i++)
        for (int j = 0; j <= i; j++) {
            char text[64];
            snprintf(text, sizeof text, i == j ? "%s=4" : "%s=2,%s=2", axes[i], axes[j]);
            mesh_run_check(&r, mesh_parse(text), 1e-9);
        }
    mesh_run_close(&r);
}

static void one_mesh(const char *dir)
{
    static int turn;
    static const char *const mesh[] = {"tensor=2,context=2", "sequence=2,context=2",
                                       "fsdp=2,tensor=2", "context=2,expert=2"};
    mesh_run r;
    mesh_case c = case_of(dir);
    c.packed = turn % 2;
    c.how.zigzag = true;
    c.how.context = (mx_context_strategy)(turn % 3);
    mesh_run_open(&r, &c);
    mesh_run_check(&r, mesh_parse(mesh[turn++ % 4]), 1e-9);
    mesh_run_close(&r);
}

MX_TEST(families_on_meshes)
{
    each_model(everything() ? all_pairs : one_mesh);
}

/* Every way to reach keys on other ranks, with and without chunks of equal work. */
static void sequences(const char *dir)
{
    static const char *const mesh[] = {"context=2", "context=4", "context=2,tensor=2",
                                       "context=2,sequence=2", "context=2,fsdp=2"};
    for (int k = 0; k < 12; k++) {
        mesh_run r;
        mesh_case c = case_of(dir);
        c.packed = k >= 6;
        c.how.context = (mx_context_strategy)(k / 2 % 3);
        c.how.zigzag = k % 2;
        mesh_run_open(&r, &c);
        for (int i = 0; i < 5; i++)
            if (everything() || i == k % 5)
                mesh_run_check(&r, mesh_parse(mesh[i]), 1e-9);
        mesh_run_close(&r);
    }
}

MX_TEST(sequences_on_meshes)
{
    if (everything())
        each_model(sequences);
    else
        sequences("tests/fixtures/models/llama3");
}

/* What one op merges is merged with what another did. */
MX_TEST(sequences_on_a_ring_of_more_ranks_than_are_merged_at_once)
{
    mesh_run r;
    mesh_case c = case_of("tests/fixtures/models/gpt-oss");
    c.batch = 1;
    c.seq = 32;
    c.how.context = MX_CONTEXT_RING;
    c.how.zigzag = true;
    mesh_run_open(&r, &c);
    mesh_run_check(&r, mesh_parse("context=16"), 1e-9);
    mesh_run_close(&r);
}

/* Rules of a user may cut the length by an axis outside context too; its ranks then have pieces in
 * their order, with and without chunks of equal work elsewhere. */
MX_TEST(sequences_cut_by_two_axes)
{
    static const char *const rules[][2] = {
        {"activation_length_attn=context fsdp"},
        {"activation_norm_length=fsdp context"},
        {"activation_length=fsdp context", "activation_batch="}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        mesh_run r;
        mesh_case c = case_of("tests/fixtures/models/llama3");
        c.packed = true;
        c.how.zigzag = true;
        c.rules[0] = rules[i][0];
        c.rules[1] = rules[i][1];
        mesh_run_open(&r, &c);
        mesh_run_check(&r, mesh_parse("fsdp=2,context=2"), 1e-9);
        mesh_run_close(&r);
    }
}

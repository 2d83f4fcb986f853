/* mesh_train_test.c - `maxc train mesh=...` on virtual ranks is the run of one device. */
#include "../test.h"
#include "tiny_run.h"

#include "base/arena.h"
#include "base/io.h"
#include "train/metrics.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4 };
#define RUN                                                                                        \
    "learning_rate_schedule_steps=8", "steps=4", "eval_interval=2", "eval_steps=2",                \
        "base_num_decoder_layers=2", "dataset_type=corpus", "sharding_tolerance=1"

/* The largest difference of a metric, as a share of its value. */
static double differ(const char *folder, const char *a, const char *b, const char *metric)
{
    char path[1024];
    mx_arena mem = {0};
    mx_series s[2] = {0};
    double worst = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s/r/metrics.jsonl", folder, i ? b : a);
        MX_CHECK_OK(mx_metrics_read(path, metric, &mem, &s[i]));
    }
    MX_CHECK(s[0].n > 0 && s[0].n == s[1].n, "%s: %lld and %lld values of %s", b,
             (long long)s[0].n, (long long)s[1].n, metric);
    for (int64_t i = 0; i < s[0].n && i < s[1].n; i++)
        worst = fmax(worst, fabs(s[0].y[i] - s[1].y[i]) / fabs(s[0].y[i]));
    mx_arena_fini(&mem);
    return worst;
}

static void same_metrics(const char *folder, const char *one, const char *name)
{
    static const struct {
        const char *metric;
        double limit;
    } limits[] = {{"loss", 1e-6}, {"grad_norm", 1e-5}, {"param_norm", 1e-6}, {"eval/loss", 1e-6},
                  {"tokens", 0}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        double off = differ(folder, one, name, limits[i].metric);
        MX_CHECK(off <= limits[i].limit, "%s: %s is off by %g", name, limits[i].metric, off);
    }
}

/* Eight sequences a step, however many ranks there are. */
MX_TEST(mesh_trains_as_one_device_does)
{
    static const struct {
        const char *name, *mesh, *batch;
    } meshes[] = {{"fsdp4_tensor2", "mesh=fsdp=4,tensor=2", "per_device_batch_size=1"},
                  {"data2_context2", "mesh=data=2,context=2", "per_device_batch_size=2"},
                  {"keys", "ici_tensor_parallelism=2", "per_device_batch_size=4"}};
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "one", (const char *[]){RUN, "per_device_batch_size=8", NULL}));
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        const char *args[] = {RUN, meshes[i].mesh, meshes[i].batch, NULL};
        MX_CHECK_OK(tiny_train(folder, meshes[i].name, args));
        same_metrics(folder, "one", meshes[i].name);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* Half as many sequences at a time, two times a step. */
MX_TEST(mesh_accumulates_as_one_device_does)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "one", (const char *[]){RUN, "per_device_batch_size=8", NULL}));
    MX_CHECK_OK(tiny_train(folder, "mesh",
                           (const char *[]){RUN, "mesh=fsdp=2,sequence=2",
                                            "gradient_accumulation_steps=2",
                                            "per_device_batch_size=1",
                                            "eval_per_device_batch_size=2", NULL}));
    same_metrics(folder, "one", "mesh");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* The checkpoint of a run that begins at the end of another: what it read is what it writes. */
static void pass_on(const char *folder, const char *from, const char *to, const char *mesh)
{
    static const char state[] = "checkpoints/4/state.json";
    char load[512];
    snprintf(load, sizeof load, "load_full_state_path=%s/%s/r/checkpoints/4", folder, from);
    MX_CHECK_OK(tiny_train(folder, to, (const char *[]){RUN, load, mesh, "vocab_size=301", NULL}));
    char *a = tiny_tensors(folder, from, STEPS), *b = tiny_tensors(folder, to, STEPS);
    const char *end = strstr(a, "\"state.json\""); /* which says how many ranks there were */
    MX_CHECK(end && end - a > 100 && strncmp(a, b, (size_t)(end - a)) == 0,
             "%s: weights and moments are not %s's:\n%s\n%s", to, from, a, b);
    free(a);
    free(b);
    a = tiny_text(folder, from, state);
    b = tiny_text(folder, to, state);
    const char *x = strstr(a, "\"loader\""), *y = strstr(b, "\"loader\"");
    MX_CHECK(x && y && strncmp(x, y, strcspn(x, "}")) == 0, "the place in the data:\n%s\n%s", a, b);
    free(a);
    free(b);
}

/* Words that do not divide, so that tables have padding on the mesh and none in the file. */
MX_TEST(mesh_state_goes_from_any_mesh_to_any_other)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "one", (const char *[]){RUN, "vocab_size=301", NULL}));
    pass_on(folder, "one", "a", "mesh=fsdp=2,tensor=2");
    pass_on(folder, "a", "b", "mesh=data=2,sequence=2");
    pass_on(folder, "b", "c", "mesh=tensor=4");
    pass_on(folder, "c", "d", "mesh=fsdp=2,context=2");
    pass_on(folder, "d", "e", "packing=true"); /* no mesh */
    MX_CHECK(tiny_difference(folder, "one", "e", STEPS) == 0, "after five meshes");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* A run that was stopped goes on with the bits of one that was not. */
MX_TEST(mesh_run_resumes_with_the_same_bits)
{
    static const char mesh[] = "mesh=fsdp=2,expert=2";
    char folder[256];
    tiny_folder(folder, sizeof folder);
    const char *moe[] = {RUN, mesh, "decoder_block=mixtral", "num_experts=4",
                         "num_experts_per_tok=2", "checkpoint_period=2", NULL};
    MX_CHECK_OK(tiny_train(folder, "whole", moe));
    const char *half[sizeof moe / sizeof *moe];
    memcpy(half, moe, sizeof moe);
    half[1] = "steps=2";
    MX_CHECK_OK(tiny_train(folder, "twice", half));
    MX_CHECK_OK(tiny_train(folder, "twice", moe));
    tiny_same(folder, "whole", "twice", STEPS);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* What cannot be is refused by name, and leaves nothing behind. */
MX_TEST(mesh_refuses_what_cannot_be)
{
    static const struct {
        const char *args[3], *says;
    } cases[] = {
        {{"mesh=fsdp=4,tenser=2"}, "no mesh has an axis `tenser`"},
        {{"mesh=fsdp"}, "`fsdp` is not AXIS=DEGREE"},
        {{"mesh=fsdp=0"}, "a degree is a number from 1 on"},
        {{"mesh=fsdp=2,fsdp=2"}, "fsdp has two degrees"},
        {{"mesh=fsdp=-1,data=-1"}, "both -1"},
        {{"mesh=fsdp=3", "virtual_ranks=4"}, "multiplies to 3 ranks and there are 4"},
        {{"mesh=fsdp=-1,tensor=3", "virtual_ranks=4"}, "does not divide 4 ranks"},
        {{"mesh=fsdp=2", "ici_tensor_parallelism=2"}, "are both given"},
        {{"mesh=stage=2"}, "stage=2, and that axis is not done yet"},
        {{"mesh=context=3"}, "does not divide into the 6 chunks of context=3"},
        {{"mesh=fsdp=2", "logical_axis_rules=[[embed, [fsbp]]]"}, "an axis that no mesh has"},
        {{"mesh=fsdp=2", "logical_axis_rules=[[embed, [fsdp]], [embed, [fsdp]]]"}, "there twice"},
    };
    char folder[256];
    tiny_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[] = {RUN, cases[i].args[0],
                              cases[i].args[1] ? cases[i].args[1] : "packing=true", NULL};
        MX_CHECK_ERROR(tiny_train(folder, "bad", args), cases[i].says);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* pipeline_train_test.c - `maxc train mesh=stage=N`: the checkpoints of one device that accumulates
 * over the same microbatches, to the bit, whatever the schedule. */
#include "../test.h"
#include "tiny_run.h"

#include "base/arena.h"
#include "base/io.h"
#include "train/report/metrics.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN                                                                                        \
    "learning_rate_schedule_steps=8", "steps=2", "base_num_decoder_layers=4",                      \
        "dataset_type=corpus", "sharding_tolerance=1"

#define MUON "opt_type=muon" /* with AdamW for embeddings and norms */

/* Of weights and optimizer alone: the rest says how many ranks there were. */
static char *state_of(const char *folder, const char *name, int step)
{
    char *a = tiny_tensors(folder, name, step), *end = strstr(a, "\"state.json\"");
    MX_CHECK(end && end - a > 100, "%s: %s", name, a);
    if (end)
        *end = 0;
    return a;
}

static void same_state(const char *folder, const char *one, const char *name)
{
    char *a = state_of(folder, one, 2), *b = state_of(folder, name, 2);
    MX_CHECK(strcmp(a, b) == 0, "%s has other tensors than %s:\n%s\n%s", name, one, a, b);
    free(a);
    free(b);
}

/* Messages between stages then go through host memory; the tied embedding's gradient too. */
MX_TEST(pipeline_of_devices_with_their_own_memory_has_the_same_bits)
{
    const char *args[] = {RUN, "mesh=stage=2", "per_device_batch_size=1",
                          "logits_via_embedding=true", "num_pipeline_microbatches=2", NULL};
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "host", args));
    tiny_train_queued(folder, "apart", args);
    same_state(folder, "host", "apart");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(pipeline_trains_as_one_device_does)
{
    static const struct {
        const char *name, *args[4];
    } runs[] = {
        {"gpipe", {"mesh=stage=4", "per_device_batch_size=1", "num_pipeline_microbatches=2",
                   "pipeline_schedule=gpipe"}},
        {"zero_bubble", {"ici_pipeline_parallelism=3", "per_device_batch_size=1.3333333333333333",
                         "num_pipeline_microbatches=2", "pipeline_schedule=zero_bubble"}},
        {"interleaved", {"dcn_pipeline_parallelism=2", "per_device_batch_size=2",
                         "num_layers_per_pipeline_stage=1"}},
    };
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "one",
                           (const char *[]){RUN, MUON, "per_device_batch_size=2",
                                            "gradient_accumulation_steps=2", NULL}));
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const char *const *a = runs[i].args;
        MX_CHECK_OK(tiny_train(folder, runs[i].name,
                               (const char *[]){RUN, MUON, a[0], a[1], a[2], a[3], NULL}));
        same_state(folder, "one", runs[i].name);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* Stages that are processes send each other the same messages as those that are threads. */
MX_TEST(pipeline_over_processes_has_the_bits_of_virtual_ranks)
{
    static const struct {
        const char *name, *args[4];
        int ranks;
    } runs[] = {{"1f1b", {"mesh=stage=2", "logits_via_embedding=true"}, 2},
                {"fsdp", {"mesh=stage=2,fsdp=2", "pipeline_schedule=zero_bubble"}, 4}};
    char folder[256], name[64];
    tiny_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const char *const args[] = {RUN, "per_device_batch_size=2", runs[i].args[0],
                                    runs[i].args[1], NULL};
        snprintf(name, sizeof name, "%s-processes", runs[i].name);
        tiny_train_ranks(folder, 1, runs[i].name, args);
        tiny_train_ranks(folder, runs[i].ranks, name, args);
        same_state(folder, runs[i].name, name);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* Each stage's moments are cut over its data ranks, those of a tied embedding too: norms, weights
 * and files are as without. */
MX_TEST(pipeline_shards_its_optimizer)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    for (int i = 0; i < 2; i++) {
        const char *args[] = {RUN, "mesh=stage=2,data=2", "per_device_batch_size=1",
                              "logits_via_embedding=true",
                              i ? "shard_optimizer_over_data=true" : NULL, NULL};
        MX_CHECK_OK(tiny_train(folder, i ? "parts" : "whole", args));
    }
    same_state(folder, "whole", "parts");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* A run that is resumed on another number of stages goes on as the one that was not. */
MX_TEST(pipeline_resumes_on_any_stages)
{
    char folder[256], load[512];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "whole",
                           (const char *[]){RUN, "mesh=stage=2", "per_device_batch_size=2",
                                            "checkpoint_period=1",
                                            "max_num_checkpoints_to_keep=-1", NULL}));
    snprintf(load, sizeof load, "load_full_state_path=%s/whole/r/checkpoints/1", folder);
    MX_CHECK_OK(tiny_train(folder, "rest",
                           (const char *[]){RUN, load, "mesh=stage=4", "per_device_batch_size=1",
                                            "num_pipeline_microbatches=2", NULL}));
    same_state(folder, "whole", "rest");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

static mx_series losses_of(const char *folder, const char *name, mx_arena *a)
{
    char path[512];
    mx_series s = {0};
    snprintf(path, sizeof path, "%s/%s/r/metrics.jsonl", folder, name);
    MX_CHECK_OK(mx_metrics_read(path, "eval/loss", a, &s));
    MX_CHECK(s.n == 2, "%lld evaluations", (long long)s.n);
    return s;
}

/* Batches of evaluation go through the same stages. */
MX_TEST(pipeline_evaluates_as_one_device_does)
{
#define EVAL RUN, "eval_interval=1", "eval_steps=2"
    char folder[256];
    mx_arena a = {0};
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "one",
                           (const char *[]){EVAL, "per_device_batch_size=2",
                                            "gradient_accumulation_steps=2",
                                            "eval_per_device_batch_size=4", NULL}));
    MX_CHECK_OK(tiny_train(folder, "stages",
                           (const char *[]){EVAL, "mesh=stage=2", "per_device_batch_size=2",
                                            "num_pipeline_repeats=2",
                                            "eval_per_device_batch_size=2", NULL}));
    /* As in training: all microbatches of a step are one batch. */
    MX_CHECK_OK(tiny_train(folder, "trained",
                           (const char *[]){EVAL, "mesh=stage=2", "per_device_batch_size=2",
                                            "num_pipeline_repeats=2", NULL}));
    mx_series x = losses_of(folder, "one", &a), y = losses_of(folder, "stages", &a);
    mx_series z = losses_of(folder, "trained", &a);
    for (int i = 0; i < 2 && x.n == 2 && y.n == 2 && z.n == 2; i++) {
        MX_CHECK(x.y[i] == y.y[i], "evaluation %d: %.9g and %.9g", i, x.y[i], y.y[i]);
        MX_CHECK(fabs(x.y[i] - z.y[i]) <= 1e-6 * x.y[i], "evaluation %d: %.9g and %.9g", i, x.y[i],
                 z.y[i]);
    }
    mx_arena_fini(&a);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* A mistake is reported once, and by name. */
MX_TEST(pipeline_refuses_what_cannot_be)
{
    static const struct {
        const char *args[3], *says;
    } bad[] = {
        {{"mesh=stage=8", "per_device_batch_size=1"}, "4 layers, and 8 chunks"},
        {{"mesh=stage=2", "num_pipeline_repeats=3", "per_device_batch_size=1"},
         "4 layers, and 6 chunks"},
        {{"mesh=stage=2", "per_device_batch_size=2", "num_pipeline_microbatches=3"},
         "does not divide the 4 sequences"},
        {{"mesh=stage=2", "num_pipeline_repeats=2", "pipeline_schedule=gpipe"},
         "use the interleaved schedule"},
        {{"mesh=stage=2", "enable_rampup_batch_size=true"}, "with stages is not built yet"},
    };
    char folder[256];
    tiny_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *const *a = bad[i].args;
        MX_CHECK_ERROR(tiny_train(folder, "bad", (const char *[]){RUN, a[0], a[1], a[2], NULL}),
                       bad[i].says);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* Every F and B of every stage is in the trace, of the steps that were asked for. */
MX_TEST(pipeline_is_in_the_profile)
{
    char folder[256], want[128];
    tiny_folder(folder, sizeof folder);
    const char *const args[] = {RUN, "mesh=stage=2,data=2", "per_device_batch_size=2",
                                "num_pipeline_microbatches=4", "profile_steps=2:2", NULL};
    MX_CHECK_OK(tiny_train(folder, "p", args));
    char *trace = tiny_text(folder, "p", "profile/trace.json");
    char *nodes = tiny_text(folder, "p", "profile/nodes.txt");
    char *log = tiny_text(folder, "p", "log.txt");
    for (int k = 0; k < 4; k++)
        for (int stage = 1; stage <= 2; stage++) {
            snprintf(want, sizeof want,
                     "\"F %d\", \"cat\": \"forward\", \"ph\": \"X\", \"pid\": %d,", k, stage);
            MX_CHECK(tiny_count(trace, want) == 2, "%s: %d times", want, tiny_count(trace, want));
        }
    MX_CHECK(tiny_count(trace, "\"cat\": \"backward\"") == 16, "%s", trace);
    MX_CHECK(!strstr(trace, "\"step\": 1,"), "%s", trace);
    MX_CHECK(strstr(nodes, "backward") && strstr(log, "stages were idle for"), "%s%s", nodes, log);
    mx_free(trace), mx_free(nodes), mx_free(log);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

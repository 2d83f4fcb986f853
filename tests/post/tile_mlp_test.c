/* tile_mlp_test.c - num_mlp_tiling: MLPs in pieces of the sequence give what they give whole, in
 * less memory. */
#include "post_run.h"

#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LONG "dataset_path=" POST "text.jsonl per_device_batch_size=1 max_target_length=64 "

/* Forwards a row's bits are the same, since every row is computed by itself; gradients of weights
 * are added up in another order. 7 does not divide the length. */
MX_TEST(mlps_in_pieces_train_as_whole_ones)
{
    static const char *const runs[] = {
        LONG "remat_policy=full", LONG "remat_policy=none packing=true",
        LONG "lora.enable_lora=true remat_policy=full",
        LONG "lora.enable_lora=true lora_weight_qtype=nf4 load_parameters_path=" POST "qlora_model",
        /* some layers have experts */
        LONG "load_parameters_path=" POST "deepseek_v3 remat_policy=minimal",
    };
    char folder[300], name[2][16], settings[600];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        snprintf(name[0], sizeof name[0], "whole%zu", i);
        snprintf(name[1], sizeof name[1], "tiled%zu", i);
        MX_CHECK_OK(post_run("sft", folder, name[0], runs[i]));
        snprintf(settings, sizeof settings, "%s num_mlp_tiling=%d", runs[i], i % 2 ? 4 : 7);
        MX_CHECK_OK(post_run("sft", folder, name[1], settings));
        json_t *a = post_metrics(folder, name[0]), *b = post_metrics(folder, name[1]);
        MX_CHECK(post_number(a, 0, "loss") == post_number(b, 0, "loss"), "%s: %.9g, %.9g", runs[i],
                 post_number(a, 0, "loss"), post_number(b, 0, "loss"));
        for (size_t k = 0; k < 3; k++) {
            double x = post_number(a, k, "grad_norm"), y = post_number(b, k, "grad_norm");
            MX_CHECK(fabs(x - y) <= 2e-6 * fabs(x), "%s: step %zu: %.9g, %.9g", runs[i], k + 1, x,
                     y);
        }
        json_decref(a);
        json_decref(b);
    }
    post_remove(folder);
}

/* Between the collectives that bring an MLP's input and take its result. */
MX_TEST(mlps_in_pieces_on_meshes)
{
    static const char *const meshes[] = {"tensor=2", "sequence=2", "context=2"};
    char folder[300], settings[600];
    post_folder(folder, sizeof folder);
    MX_CHECK_OK(post_run("sft", folder, "whole", LONG));
    json_t *a = post_metrics(folder, "whole");
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        snprintf(settings, sizeof settings, "dataset_path=" POST "text.jsonl max_target_length=64 "
                 "mesh=%s per_device_batch_size=0.5 num_mlp_tiling=4 sharding_tolerance=1",
                 meshes[i]);
        MX_CHECK_OK(post_run("sft", folder, meshes[i], settings));
        json_t *b = post_metrics(folder, meshes[i]);
        for (size_t k = 0; k < 3; k++) {
            double x = post_number(a, k, "grad_norm"), y = post_number(b, k, "grad_norm");
            MX_CHECK(fabs(x - y) <= 1e-5 * fabs(x), "%s: step %zu: %.9g, %.9g", meshes[i], k + 1,
                     x, y);
        }
        json_decref(b);
    }
    json_decref(a);
    post_remove(folder);
}

MX_TEST(mlps_in_pieces_are_refused_where_they_cannot_be)
{
    char folder[300];
    post_folder(folder, sizeof folder);
    MX_CHECK_ERROR(post_run("sft", folder, "experts", LONG "num_mlp_tiling=4 load_parameters_path="
                            POST "mixtral"), "experts and dropout cannot");
    MX_CHECK_ERROR(post_run("sft", folder, "codes", LONG "num_mlp_tiling=4 quantization=int8"),
                   "does not go with quantization");
    post_remove(folder);
}

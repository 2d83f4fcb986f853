/* mesh_test.c - post-training on virtual ranks is the run of one device. */
#include "post_run.h"

#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Much of so small a model is norms. */
#define RUN "lr_schedule_type=constant sharding_tolerance=1 "

/* The largest difference of a number over the steps, as a share of it. */
static double off(const json_t *one, const json_t *mesh, const char *name)
{
    double most = 0;
    MX_CHECK(json_array_size(one) > 0 && json_array_size(one) == json_array_size(mesh),
             "%zu and %zu steps", json_array_size(one), json_array_size(mesh));
    for (size_t i = 0; i < json_array_size(one); i++) {
        double x = post_number(one, i, name), y = post_number(mesh, i, name);
        most = fmax(most, fabs(x - y) / fmax(fabs(x), 1e-3));
    }
    return most;
}

static void compare(const char *folder, const char *name, const char *what)
{
    static const char *const numbers[] = {"loss", "grad_norm", "param_norm", "num_tokens"};
    json_t *one = post_metrics(folder, "one"), *mesh = post_metrics(folder, name);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double most = off(one, mesh, numbers[i]);
        MX_CHECK(most <= 2e-5, "%s: %s is off by %g", what, numbers[i], most);
    }
    json_decref(one);
    json_decref(mesh);
}

/* Four rows or pairs a step. Which of them share a microbatch depends on the mesh, so where that
 * matters there is one. */
static void same_on(const char *verb, const char *settings, const char *const *meshes)
{
    char folder[300], text[800];
    double rows = strstr(settings, "gradient_accumulation_steps=1") ? 4 : 2;
    post_folder(folder, sizeof folder);
    snprintf(text, sizeof text, RUN "enable_checkpointing=false per_device_batch_size=%g %s", rows,
             settings);
    MX_CHECK_OK(post_run(verb, folder, "one", text));
    for (int i = 0; meshes[i]; i++) {
        char name[16];
        double ranks = strchr(meshes[i], ',') ? 4 : 2;
        snprintf(name, sizeof name, "mesh%d", i);
        snprintf(text, sizeof text, RUN "enable_checkpointing=false mesh=%s "
                 "per_device_batch_size=%g %s", meshes[i], rows / ranks, settings);
        MX_CHECK_OK(post_run(verb, folder, name, text));
        compare(folder, name, meshes[i]);
    }
    post_remove(folder);
}

MX_TEST(sft_on_meshes)
{
    same_on("sft", "dataset_path=" POST "messages.jsonl loss_on=assistant",
            (const char *const[]){"fsdp=2", "fsdp=2,tensor=2", "context=2", "sequence=2", NULL});
}

MX_TEST(adapters_on_meshes)
{
    same_on("sft", "dataset_path=" POST "text.jsonl lora.enable_lora=true lora.lora_dropout=0.3 "
            "gradient_accumulation_steps=1",
            (const char *const[]){"data=2", "fsdp=2,tensor=2", "context=2", NULL});
}

MX_TEST(expert_adapters_on_meshes)
{
    same_on("sft", "dataset_path=" POST "text.jsonl load_parameters_path=" POST "mixtral adapter="
            POST "lora_experts", (const char *const[]){"expert=2", "fsdp=2,tensor=2", NULL});
    same_on("sft", "dataset_path=" POST "text.jsonl load_parameters_path=" POST "qwen3_moe adapter="
            POST "lora_experts_each", (const char *const[]){"expert=2", "tensor=2", NULL});
}

MX_TEST(dpo_on_meshes)
{
    same_on("dpo", "dataset_path=" POST "pairs.jsonl",
            (const char *const[]){"fsdp=2", "tensor=2", NULL});
    same_on("dpo", "dataset_path=" POST "pairs.jsonl lora.enable_lora=true",
            (const char *const[]){"fsdp=2", NULL});
    same_on("dpo", "dataset_path=" POST "pairs.jsonl loss_type=orpo gradient_accumulation_steps=1",
            (const char *const[]){"fsdp=2", NULL});
}

/* Adapters are cut as their weights are; the files are those of one device. */
MX_TEST(adapters_go_on_on_another_mesh)
{
    char folder[300];
    const char *lora = RUN "lora.enable_lora=true dataset_path=" POST "text.jsonl ";
    char one[500], first[500], then[500];
    post_folder(folder, sizeof folder);
    snprintf(one, sizeof one, "%s steps=4", lora);
    snprintf(first, sizeof first, "%s steps=2 mesh=fsdp=2 per_device_batch_size=1", lora);
    snprintf(then, sizeof then, "%s steps=4 mesh=tensor=2 per_device_batch_size=1", lora);
    MX_CHECK_OK(post_run("sft", folder, "one", one));
    MX_CHECK_OK(post_run("sft", folder, "parts", first));
    MX_CHECK_OK(post_run("sft", folder, "parts", then));
    compare(folder, "parts", "fsdp=2, then tensor=2");
    post_remove(folder);
}

MX_TEST(what_does_not_run_on_a_mesh_says_so)
{
    static const struct {
        const char *verb, *settings, *words;
    } runs[] = {
        {"dpo", "mesh=context=2", "does not cut sequences yet"},
        {"sft", "mesh=stage=2", "does not run as a pipeline yet"},
        {"dpo", "mesh=fsdp=2 precompute_ref_log_probs=true", "precompute_ref_log_probs on a mesh"},
        {"dpo", "mesh=fsdp=2 loss_type=kto", "does not run on a mesh yet"},
        {"grpo", "mesh=fsdp=2 reward=format reward_pattern=.", "does not run on a mesh yet"},
        {"sft", "mesh=fsdp=2 lora.enable_lora=true lora.use_dora=true", "use_dora"},
        {"sft", "mesh=fsdp=2 lora.enable_lora=true lora.lora_weight_qtype=nf4",
         "lora_weight_qtype does not run on a mesh"},
    };
    char folder[300], text[600];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        bool answers = strcmp(runs[i].verb, "sft") == 0;
        snprintf(text, sizeof text, RUN "dataset_path=" POST "%s %s per_device_batch_size=1",
                 answers ? "messages.jsonl" : "pairs.jsonl", runs[i].settings);
        mx_status st = post_run(runs[i].verb, folder, "r", text);
        MX_CHECK(st && mx_status_code(st) == MX_USAGE && strstr(mx_status_text(st), runs[i].words),
                 "%s: %s", runs[i].settings, st ? mx_status_text(st) : "it ran");
        mx_status_free(st);
    }
    post_remove(folder);
}

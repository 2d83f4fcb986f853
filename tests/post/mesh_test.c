/* mesh_test.c - post-training on virtual ranks is the run of one device. */
#include "post_run.h"

#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Metrics of a microbatch, where there is one: their means depend on who shares it. */
static void compare_metrics(const json_t *one, const json_t *mesh, const char *what)
{
    static const char *const numbers[] = {
        "kl", "entropy", "rewards/chosen", "rewards/margins", "logps/chosen", "reward",
        "reward_std", "completions/mean_length", "clip_ratio/region_mean", "mean_reward",
        "frac_reward_zero_std", "max_reward", "accuracy", "distill/soft_loss",
        "distill/teacher_loss", "distill/out_proj_feature_loss"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (size_t k = 0; k < json_array_size(one); k++) {
            if (!json_object_get(json_array_get(one, k), numbers[i]))
                continue;
            double x = post_number(one, k, numbers[i]), y = post_number(mesh, k, numbers[i]);
            MX_CHECK(fabs(x - y) <= 2e-5 * fmax(fabs(x), 1), "%s, step %zu: %s is %.9g, not %.9g",
                     what, k + 1, numbers[i], y, x);
        }
}

static void compare(const char *folder, const char *name, const char *what, bool metrics)
{
    static const char *const numbers[] = {"loss", "grad_norm", "param_norm", "num_tokens"};
    json_t *one = post_metrics(folder, "one"), *mesh = post_metrics(folder, name);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double most = off(one, mesh, numbers[i]);
        MX_CHECK(most <= 2e-5, "%s: %s is off by %g", what, numbers[i], most);
    }
    if (metrics)
        compare_metrics(one, mesh, what);
    json_decref(one);
    json_decref(mesh);
}

/* Four rows or pairs a step. Which of them share a microbatch depends on the mesh, so where that
 * matters there is one. */
static void same_on(const char *verb, const char *settings, const char *const *meshes)
{
    char folder[300], text[800];
    bool one = strstr(settings, "gradient_accumulation_steps=1");
    double rows = one ? 4 : 2;
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
        compare(folder, name, meshes[i], one);
    }
    post_remove(folder);
}

MX_TEST(sft_on_meshes)
{
    same_on("sft", "dataset_path=" POST "messages.jsonl loss_on=assistant",
            (const char *const[]){"fsdp=2", "fsdp=2,tensor=2", "context=2", "sequence=2", "stage=2",
                                  "stage=2,fsdp=2", NULL});
}

/* An epoch's last batch fills one microbatch of two: the other has no part in metrics. Meshes that
 * leave the rows of a microbatch together. */
MX_TEST(metrics_of_filled_microbatches_on_meshes)
{
    static const char *const meshes[] = {"tensor=2", "context=2",
                                         "stage=2 num_pipeline_microbatches=1"};
    char folder[300], text[600];
    post_folder(folder, sizeof folder);
#define SIX RUN "enable_checkpointing=false gradient_accumulation_steps=2 num_epoch=1 "            \
                "dataset_path=" POST "messages.jsonl "
    MX_CHECK_OK(post_run("sft", folder, "one", SIX "per_device_batch_size=2"));
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        snprintf(text, sizeof text, SIX "per_device_batch_size=1 mesh=%s", meshes[i]);
        char name[] = {'m', (char)('0' + i), 0};
        MX_CHECK_OK(post_run("sft", folder, name, text));
        compare(folder, name, meshes[i], true);
    }
    post_remove(folder);
}

MX_TEST(adapters_on_meshes)
{
    same_on("sft", "dataset_path=" POST "text.jsonl lora.enable_lora=true lora.lora_dropout=0.3 "
            "gradient_accumulation_steps=1",
            (const char *const[]){"data=2", "fsdp=2,tensor=2", "context=2", NULL});
    /* Of several microbatches each would drop elements of its own. */
    same_on("sft", "dataset_path=" POST "text.jsonl lora.enable_lora=true lora.lora_dropout=0.3 "
            "gradient_accumulation_steps=1 num_pipeline_microbatches=1",
            (const char *const[]){"stage=2", "stage=2,tensor=2", NULL});
}

/* DoRA's first lengths are those of whole rows, which ranks have parts of. */
MX_TEST(dora_on_meshes)
{
    same_on("sft", "dataset_path=" POST "text.jsonl lora.enable_lora=true use_dora=true",
            (const char *const[]){"fsdp=2,tensor=2", "stage=2,fsdp=2", NULL});
}

/* Codes are those of whole matrices on every mesh. */
MX_TEST(qlora_on_meshes)
{
#define QLORA "load_parameters_path=" POST "qlora_model lora.enable_lora=true lora_weight_qtype="
    same_on("sft", "dataset_path=" POST "text.jsonl " QLORA "nf4 use_dora=true",
            (const char *const[]){"fsdp=2,tensor=2", "stage=2", NULL});
    same_on("sft", "dataset_path=" POST "text.jsonl " QLORA "int8",
            (const char *const[]){"tensor=2", NULL});
    same_on("dpo", "dataset_path=" POST "pairs.jsonl " QLORA "nf4",
            (const char *const[]){"fsdp=2", NULL});
#undef QLORA
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
            (const char *const[]){"fsdp=2", "tensor=2", "context=2", NULL});
    same_on("dpo", "dataset_path=" POST "pairs.jsonl lora.enable_lora=true",
            (const char *const[]){"fsdp=2", NULL});
    same_on("dpo", "dataset_path=" POST "pairs.jsonl precompute_ref_log_probs=true num_epoch=2",
            (const char *const[]){"fsdp=2,tensor=2", "context=2", NULL});
    same_on("dpo", "dataset_path=" POST "pairs.jsonl loss_type=orpo gradient_accumulation_steps=1",
            (const char *const[]){"fsdp=2", NULL});
}

static const char *const each_axis[] = {"fsdp=2", "data=2,tensor=2", "context=2",
                                        "expert=2,sequence=2", NULL};

/* What answers are compared with is measured on the rows of all ranks. */
MX_TEST(kto_on_meshes)
{
    same_on("dpo", "dataset_path=" POST "labels.jsonl loss_type=kto max_target_length=32 "
            "gradient_accumulation_steps=1", each_axis);
    same_on("dpo", "dataset_path=" POST "labels.jsonl loss_type=apo_zero_unpaired "
            "max_target_length=32", (const char *const[]){"fsdp=2,context=2", NULL});
}

MX_TEST(reward_models_on_meshes)
{
    same_on("dpo", "dataset_path=" POST "pairs.jsonl loss_type=reward "
            "gradient_accumulation_steps=1", each_axis);
}

#define GRPO "dataset_path=" POST "pairs.jsonl max_target_length=48 num_generations=4 "            \
             "max_completion_length=20 reward=format learning_rate=1e-4 "                          \
             "reward_pattern=[\\s\\S]*(th|er)[\\s\\S]* "
#define GAP "sampling/sampling_logp_difference/max"

/* The same prompts, answers and rewards, whoever has which rows. The rate is small: weights that
 * differ in the last bits would some day draw another token. */
MX_TEST(grpo_on_meshes)
{
    same_on("grpo", GRPO "gradient_accumulation_steps=1", each_axis);
    same_on("grpo", GRPO "beta=0.1 num_iterations=2 steps=4",
            (const char *const[]){"data=2,context=2", NULL});
    same_on("grpo", GRPO "lora.enable_lora=true loss_type=bnpo gradient_accumulation_steps=1 "
            "scale_rewards=batch", (const char *const[]){"fsdp=2,tensor=2", NULL});
    same_on("grpo", "dataset_path=" POST "rollouts.jsonl rollout_path=" POST "rollouts.jsonl "
            "num_generations=4 max_completion_length=20 max_target_length=48",
            (const char *const[]){"fsdp=2", NULL});
}

#define MIXTURE "load_parameters_path= tokenizer_path=" POST "model model_name=mixtral-8x7b "      \
                "base_emb_dim=64 base_num_decoder_layers=2 base_num_query_heads=4 head_dim=16 "    \
                "base_num_kv_heads=2 base_moe_mlp_dim=96 num_experts=4 num_experts_per_tok=2 "     \
                "vocab_size=400 "

MX_TEST(grpo_of_qlora_on_meshes)
{
    same_on("grpo", GRPO "load_parameters_path=" POST "qlora_model lora.enable_lora=true "
            "lora_weight_qtype=nf4", (const char *const[]){"fsdp=2", NULL});
}

MX_TEST(grpo_of_a_mixture_on_meshes)
{
    same_on("grpo", MIXTURE GRPO "gradient_accumulation_steps=1",
            (const char *const[]){"expert=2", "expert=2,tensor=2", NULL});
}

/* On a mesh sampling and training sum in another order; they see the same weights. */
MX_TEST(grpo_on_a_mesh_samples_what_it_trains)
{
    char folder[300];
    post_folder(folder, sizeof folder);
    MX_CHECK_OK(post_run("grpo", folder, "r", RUN GRPO "mesh=fsdp=2,tensor=2 steps=4 "
                         "per_device_batch_size=1 gradient_accumulation_steps=1 "
                         "record_rollouts=true task_interval=2 task_path=" POST "pairs.jsonl"));
    json_t *m = post_metrics(folder, "r");
    for (size_t i = 0; i < json_array_size(m); i++)
        MX_CHECK(post_number(m, i, GAP) < 1e-4, "step %zu: %g", i + 1, post_number(m, i, GAP));
    json_decref(m);
    char command[900];
    snprintf(command, sizeof command, "test $(wc -l < '%s/r/rollouts.jsonl') = 16", folder);
    MX_CHECK(system(command) == 0, "four prompts of four steps, each once");
    snprintf(command, sizeof command, "test $(grep -c eval/reward '%s/r/metrics.jsonl') = 3",
             folder);
    MX_CHECK(system(command) == 0, "tasks before, in the middle and behind");
    post_remove(folder);
}

#define DISTILL "dataset_path=" POST "chat.jsonl teacher_path=" POST "teacher_near "

MX_TEST(distill_on_meshes)
{
    same_on("distill", DISTILL "gradient_accumulation_steps=1", each_axis);
    same_on("distill", DISTILL "distill_top_k=7 distill_beta=0.5",
            (const char *const[]){"fsdp=2,context=2", NULL});
    same_on("distill", DISTILL "loss_type=gkd lmbda=0.5 max_completion_length=4 steps=4 "
            "seq_kd=true gradient_accumulation_steps=1",
            (const char *const[]){"fsdp=2,tensor=2", NULL});
}

/* In stages the reference, the teacher and the answers go through them too, each in its own
 * programs. */
static const char *const stages[] = {"stage=2", "stage=2,fsdp=2", NULL};
static const char *const two_stages[] = {"stage=2", NULL};
#define AT_ONCE "gradient_accumulation_steps=1 num_pipeline_microbatches=1 "

MX_TEST(dpo_in_stages)
{
    same_on("dpo", "dataset_path=" POST "pairs.jsonl", stages);
    same_on("dpo", "dataset_path=" POST "pairs.jsonl lora.enable_lora=true " AT_ONCE, two_stages);
    same_on("dpo", "dataset_path=" POST "pairs.jsonl precompute_ref_log_probs=true num_epoch=2",
            &stages[1]);
    same_on("dpo", "dataset_path=" POST "pairs.jsonl loss_type=orpo " AT_ONCE, stages);
}

MX_TEST(answers_with_labels_in_stages)
{
    same_on("dpo", "dataset_path=" POST "labels.jsonl loss_type=kto max_target_length=32 " AT_ONCE,
            stages);
    same_on("dpo", "dataset_path=" POST "labels.jsonl loss_type=apo_zero_unpaired "
            "max_target_length=32", two_stages);
}

/* A mixture's balance loss is a mean over microbatches. */
MX_TEST(mixtures_in_stages)
{
    same_on("sft", MIXTURE "dataset_path=" POST "text.jsonl load_balance_loss_weight=0.5 " AT_ONCE,
            (const char *const[]){"stage=2", "stage=2,expert=2", NULL});
}

MX_TEST(reward_models_in_stages)
{
    same_on("dpo", "dataset_path=" POST "pairs.jsonl loss_type=reward " AT_ONCE, &stages[1]);
    same_on("dpo", "dataset_path=" POST "pairs.jsonl loss_type=reward", two_stages);
}

MX_TEST(grpo_in_stages)
{
    same_on("grpo", GRPO AT_ONCE, stages);
    same_on("grpo", GRPO "beta=0.1 num_iterations=2 steps=4", two_stages);
    same_on("grpo", GRPO "lora.enable_lora=true beta=0.1 loss_type=bnpo scale_rewards=batch "
            AT_ONCE, (const char *const[]){"stage=2,tensor=2", NULL});
    same_on("grpo", "dataset_path=" POST "rollouts.jsonl rollout_path=" POST "rollouts.jsonl "
            "num_generations=4 max_completion_length=20 max_target_length=48", two_stages);
}

MX_TEST(distill_in_stages)
{
    same_on("distill", DISTILL AT_ONCE, two_stages);
    same_on("distill", DISTILL "distill_top_k=7 distill_beta=0.5 distill_layer_indices=0",
            (const char *const[]){"stage=2,fsdp=2", NULL});
    same_on("distill", DISTILL "loss_type=gkd lmbda=0.5 max_completion_length=4 steps=4 "
            "seq_kd=true " AT_ONCE, (const char *const[]){"stage=2,fsdp=2", NULL});
}

MX_TEST(tasks_in_stages)
{
    char folder[300], command[900];
    post_folder(folder, sizeof folder);
    MX_CHECK_OK(post_run("sft", folder, "r", RUN "mesh=stage=2 per_device_batch_size=1 steps=2 "
                         "dataset_path=" POST "text.jsonl task_interval=1 task_path=" POST
                         "pairs.jsonl max_completion_length=4 reward=format reward_pattern=. "
                         "max_target_length=48 tokenizer_path=" POST "model"));
    snprintf(command, sizeof command, "test $(grep -c eval/reward '%s/r/metrics.jsonl') = 3",
             folder);
    MX_CHECK(system(command) == 0, "tasks before, in the middle and behind");
    post_remove(folder);
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
    compare(folder, "parts", "fsdp=2, then tensor=2", false);
    post_remove(folder);
}

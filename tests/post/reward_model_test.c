/* reward_model_test.c - a reward model from a language model, and as a judge of answers. */
#include "post_run.h"

#include "../test.h"
#include "store/safetensors.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The checkpoint is what Hugging Face's ForSequenceClassification is: score.weight, no lm_head. */
static void check_files(const char *folder)
{
    char path[500];
    snprintf(path, sizeof path, "%s/judge/checkpoints/2/config.json", folder);
    json_t *config = json_load_file(path, 0, NULL);
    const char *name = json_string_value(
        json_array_get(json_object_get(config, "architectures"), 0));
    MX_CHECK(name && strcmp(name, "LlamaForSequenceClassification") == 0, "%s", name);
    MX_CHECK(json_integer_value(json_object_get(config, "num_labels")) == 1, "num_labels");
    json_decref(config);
    mx_st_file f = {0};
    snprintf(path, sizeof path, "%s/judge/checkpoints/2/model.safetensors", folder);
    MX_CHECK_OK(mx_st_open(&f, path));
    const mx_st_tensor *score = mx_st_find(&f, "score.weight");
    MX_CHECK(score && score->dim[0] == 1 && score->dim[1] == 32, "score.weight");
    MX_CHECK(!mx_st_find(&f, "lm_head.weight"), "there is an lm_head.weight");
    mx_st_close(&f);
}

/* reward_model_path */
MX_TEST(post_reward_models_are_made_and_judge)
{
    char folder[300], settings[700];
    post_folder(folder, sizeof folder);
#define PAIRS "dataset_path=" POST "pairs.jsonl max_target_length=32 "
    MX_CHECK_OK(post_run("dpo", folder, "judge", PAIRS "loss_type=reward steps=1 "
                         "lr_schedule_type=constant"));
    MX_CHECK_OK(post_run("dpo", folder, "judge", PAIRS "loss_type=reward steps=2 "
                         "lr_schedule_type=constant"));
    check_files(folder);
#define ASKS PAIRS "num_generations=2 max_completion_length=4 per_device_batch_size=1 "            \
             "gradient_accumulation_steps=1 steps=1 "
    snprintf(settings, sizeof settings, ASKS "reward_model_path=%s/judge reward=length", folder);
    MX_CHECK_OK(post_run("grpo", folder, "judged", settings));
    json_t *m = post_metrics(folder, "judged");
    double mean = post_number(m, 0, "rewards/model/mean");
    MX_CHECK(isfinite(mean) && mean != 0, "rewards/model/mean is %g", mean);
    json_decref(m);
    MX_CHECK_ERROR(post_run("grpo", folder, "none", ASKS "reward_model_path=" POST "model"),
                   "expected a reward model");
    snprintf(settings, sizeof settings, "load_parameters_path=%s/judge/checkpoints/2 "
             "dataset_path=" POST "text.jsonl", folder);
    MX_CHECK_ERROR(post_run("sft", folder, "words", settings), "gives scores, not tokens");
    MX_CHECK_ERROR(post_run("dpo", folder, "lora", PAIRS "loss_type=reward lora.enable_lora=true"),
                   "set modules_to_save=score");
    post_remove(folder);
}

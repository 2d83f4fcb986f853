/* keys_test.c - keys of post-training make a difference: a step with and without each of them. */
#include "post_run.h"

#include "../test.h"
#include "base/arena.h"
#include "base/io.h"
#include "base/str.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LORA "lora.enable_lora=true dataset_path=" POST "text.jsonl steps=2"
#define DPO "dataset_path=" POST "pairs.jsonl steps=2"
#define GROUPS "rollout_path=" POST "rollouts.jsonl num_generations=4 max_target_length=32 steps=2"
#define KL GROUPS " max_completion_length=8 beta=0.5"
#define SHORT GROUPS " max_completion_length=8"
#define ASKED                                                                                      \
    "dataset_path=" POST "pairs.jsonl steps=2 max_target_length=32 per_device_batch_size=1 "       \
    "gradient_accumulation_steps=1"
#define SAMPLES ASKED " num_generations=4 max_completion_length=6"
#define KTO "dataset_path=" POST "labels.jsonl steps=2 loss_type=kto max_target_length=32"
#define TAUGHT                                                                                     \
    "dataset_path=" POST "chat.jsonl steps=2 gradient_accumulation_steps=1 "                       \
    "max_target_length=32 teacher_path=" POST "teacher"
#define GKD TAUGHT " loss_type=gkd max_completion_length=4"
/* What the untrained model says is noise; some of it has none of these letters. */
#define LETTERS " reward=format reward_pattern=[^a-m]*"

/* One step of `verb` under `with` ends otherwise once `key` is set. */
static const struct {
    const char *verb, *key, *with;
} rows[] = {
    {"sft", "lora.enable_lora=true", "dataset_path=" POST "text.jsonl steps=2"},
    {"sft", "lora.lora_rank=4", LORA},
    {"sft", "lora.lora_alpha=8", LORA},
    {"sft", "lora.lora_dropout=0.5", LORA},
    {"sft", "lora.lora_module_path=q_proj,v_proj", LORA},
    {"sft", "lora.lora_restore_path=" POST "lora_plain", "dataset_path=" POST "text.jsonl steps=2"},
    {"sft", "use_rslora=true", LORA},
    {"sft", "use_dora=true", LORA},
    {"sft", "modules_to_save=lm_head", LORA},
    {"sft", "target_parameters=experts.down_proj", LORA " load_parameters_path=" POST "mixtral"},
    {"sft", "lora.lora_weight_qtype=nf4", LORA},
    {"sft", "bnb_4bit_use_double_quant=false", LORA " lora.lora_weight_qtype=nf4"},
    {"sft", "loss_on=all", "dataset_path=" POST "completion.jsonl steps=2"},
    {"sft", "sft_train_on_completion_only=true", "dataset_path=" POST "messages.jsonl steps=2"},
    {"sft", "truncation_mode=keep_end",
     "dataset_path=" POST "text.jsonl steps=2 max_target_length=6"},
    {"sft", "loss_type=dft", "dataset_path=" POST "text.jsonl steps=2"},
    {"dpo", "semantics=maxtext", DPO " label_smoothing=0.2"},
    {"dpo", "loss_weights=0.5", DPO " loss_type=sigmoid"},
    {"dpo", "beta=0.5", DPO},
    {"dpo", "dpo.algo=orpo", DPO},
    {"dpo", "dpo.dpo_beta=0.5", DPO},
    {"dpo", "dpo.dpo_label_smoothing=0.2", DPO " loss_type=robust"},
    {"dpo", "dpo.orpo_lambda=0.5", DPO " loss_type=orpo"},
    {"dpo", "f_divergence_type=forward_kl", DPO},
    {"dpo", "f_alpha_divergence_coef=0.7", DPO " f_divergence_type=alpha_divergence"},
    {"dpo", "ld_alpha=0.5", DPO},
    {"dpo", "use_weighting=true", DPO},
    {"dpo", "discopop_tau=0.5", DPO " loss_type=discopop"},
    {"dpo", "center_rewards_coefficient=0.5", DPO " loss_type=reward"},
    {"dpo", "desirable_weight=0.5", KTO},
    {"dpo", "undesirable_weight=0.5", KTO},
    {"distill", "loss_type=gkd", TAUGHT " lmbda=0"},
    {"distill", "distill_alpha=0.9", TAUGHT},
    {"distill", "distill_temperature=2", TAUGHT},
    {"distill", "distill_beta=0.5", TAUGHT},
    {"distill", "distill_feature_loss_type=l2", TAUGHT " distill_beta=0.5"},
    {"distill", "distill_layer_indices=1", TAUGHT " distill_beta=0.5"},
    {"distill", "distill_alpha_end=0", TAUGHT " distill_alpha_schedule=linear"},
    {"distill", "distill_alpha_schedule=cosine", TAUGHT " distill_alpha_end=0"},
    {"distill", "distill_temperature_end=4", TAUGHT " distill_temperature_schedule=linear"},
    {"distill", "distill_temperature_schedule=cosine", TAUGHT " distill_temperature_end=4"},
    {"distill", "distill_beta_end=1", TAUGHT " distill_beta=0.5 distill_beta_schedule=linear"},
    {"distill", "distill_beta_schedule=cosine", TAUGHT " distill_beta=0.5 distill_beta_end=1"},
    {"distill", "distill_top_k=8", TAUGHT},
    {"distill", "lmbda=1", GKD " lmbda=0"},
    {"distill", "seq_kd=true", GKD " lmbda=0"},
    {"distill", "decode_sampling_temperature=0.3", GKD " lmbda=1"},
    {"distill", "max_completion_length=6", GKD " lmbda=1"},
    {"distill", "beta=0.1", GKD " lmbda=0"},
    {"grpo", "rl.num_generations=4", ASKED " max_completion_length=6" LETTERS},
    {"grpo", "rl.num_iterations=2", SAMPLES LETTERS},
    {"grpo", "decode_sampling_temperature=0.5", SAMPLES LETTERS},
    {"grpo", "rl.grpo_beta=0.5", SHORT},
    {"grpo", "rl.grpo_epsilon=0.05", SHORT},
    {"grpo", "rl.epsilon_high=0.01", SHORT},
    {"grpo", "rl.reward=format", SAMPLES " reward_pattern=[^a-m]*"},
    {"grpo", "max_completion_length=9", GROUPS " loss_type=dr_grpo"},
    {"grpo", "scale_rewards=none", SHORT},
    {"grpo", "importance_sampling_level=sequence", SHORT},
    {"grpo", "delta=1.1", SHORT},
    {"grpo", "top_entropy_quantile=0.5", SHORT},
    {"grpo", "multi_objective_aggregation=normalize_then_sum",
     SAMPLES " reward=format,ended reward_pattern=[^a-m]*"},
    {"grpo", "use_bias_correction_kl=false", KL},
    {"grpo", "mask_truncated_completions=true", SHORT},
    {"grpo", "sapo_temperature_pos=2", SHORT " loss_type=sapo"},
    {"grpo", "sapo_temperature_neg=2", SHORT " loss_type=sapo"},
    {"grpo", "vespo_k_pos=1", SHORT " loss_type=vespo"},
    {"grpo", "vespo_k_neg=1", SHORT " loss_type=vespo"},
    {"grpo", "vespo_lambda_pos=1", SHORT " loss_type=vespo"},
    {"grpo", "vespo_lambda_neg=1", SHORT " loss_type=vespo"},
    {"grpo", "off_policy_mask_threshold=0.001", SHORT},
    {"grpo", "reward_weights=2,1", SAMPLES " reward=format,ended reward_pattern=[^a-m]*"},
    {"grpo", "reward_pattern=.*", SAMPLES " reward=format"},
};

/* What a run computed, without times; an error's text where it ended in one. */
static char *outcome(const char *folder, const char *verb, const char *settings)
{
    mx_str out = {0};
    static int number;
    char name[32];
    snprintf(name, sizeof name, "r%d", number++);
    mx_status st = post_run(verb, folder, name, settings);
    if (st)
        mx_str_add(&out, mx_status_text(st));
    mx_status_free(st);
    json_t *m = out.len ? NULL : post_metrics(folder, name);
    for (size_t i = 0; i < json_array_size(m); i++)
        mx_str_addf(&out, "%.9g %.9g %.9g %.9g\n", post_number(m, i, "loss"),
                    post_number(m, i, "grad_norm"), post_number(m, i, "param_norm"),
                    post_number(m, i, "reward"));
    json_decref(m);
    char *text = strdup(mx_str_text(&out));
    mx_str_fini(&out);
    return text;
}

static void check_keys(const char *verb)
{
    char folder[300], with[1000], *before = NULL;
    const char *last = "";
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].verb, verb) != 0)
            continue;
        if (strcmp(rows[i].with, last) != 0) {
            free(before);
            before = outcome(folder, verb, rows[i].with);
            last = rows[i].with;
        }
        snprintf(with, sizeof with, "%s %s", rows[i].with, rows[i].key);
        char *after = outcome(folder, verb, with);
        MX_CHECK(strcmp(before, after) != 0, "maxc %s: %s makes no difference:\n%s", verb,
                 rows[i].key, after);
        free(after);
    }
    free(before);
    post_remove(folder);
}

MX_TEST(post_keys_of_sft_make_a_difference)
{
    check_keys("sft");
}

MX_TEST(post_keys_of_dpo_make_a_difference)
{
    check_keys("dpo");
}

MX_TEST(post_keys_of_grpo_make_a_difference)
{
    check_keys("grpo");
}

MX_TEST(post_keys_of_distill_make_a_difference)
{
    check_keys("distill");
}

/* A key of another loss, or of a schedule that is off, is named as without effect; a part that a
 * loss has not got is refused. */
MX_TEST(post_keys_of_what_is_off_are_named)
{
    static const struct {
        const char *verb, *key, *with;
    } off[] = {
        {"sft", "learning_rate_final_fraction=0.5", "dataset_path=" POST "text.jsonl steps=1"},
        {"sft", "n_routing_groups=2", "dataset_path=" POST "text.jsonl steps=1"},
        {"dpo", "discopop_tau=0.5", "dataset_path=" POST "pairs.jsonl steps=1"},
        {"dpo", "f_alpha_divergence_coef=0.7", "dataset_path=" POST "pairs.jsonl steps=1"},
        {"grpo", "sapo_temperature_pos=2", SHORT},
        {"grpo", "vespo_k_neg=1", SHORT},
        {"grpo", "vespo_lambda_pos=1", SHORT " loss_type=sapo"},
        {"distill", "distill_alpha_end=0", TAUGHT},
        {"distill", "distill_beta_end=1", TAUGHT},
    };
    char folder[300], path[400], with[1000], expected[200], *text;
    size_t n;
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        snprintf(with, sizeof with, "%s %s", off[i].with, off[i].key);
        snprintf(path, sizeof path, "%s/%zu/log.txt", folder, i);
        snprintf(expected, sizeof expected, "have no effect on this run: %.*s\n",
                 (int)strcspn(off[i].key, "="), off[i].key);
        char name[8];
        snprintf(name, sizeof name, "%zu", i);
        MX_CHECK_OK(post_run(off[i].verb, folder, name, with));
        MX_CHECK_OK(mx_io_read_file(NULL, path, 1 << 20, &text, &n));
        MX_CHECK(strstr(text, expected), "maxc %s %s: %s", off[i].verb, off[i].key, text);
        mx_free(text);
    }
    MX_CHECK_OK(post_run("dpo", folder, "packed", DPO " packing=true"));
    snprintf(path, sizeof path, "%s/packed/log.txt", folder);
    MX_CHECK_OK(mx_io_read_file(NULL, path, 1 << 20, &text, &n));
    MX_CHECK(strstr(text, "packing=true has no effect: maxc dpo has"), "%s", text);
    mx_free(text);
    static const char *const verbs[] = {"sft", "dpo", "distill"};
    static const char *const data[] = {LORA, DPO, TAUGHT};
    for (int i = 0; i < 3; i++) {
        snprintf(with, sizeof with, "%s z_loss_multiplier=0.1", data[i]);
        MX_CHECK_ERROR(post_run(verbs[i], folder, "z", with),
                       "z_loss_multiplier=0.1 is part of the loss of maxc train");
    }
    post_remove(folder);
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    MX_CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
    chmod(path, 0755);
}

/* reward_command, reward_workers, reward_timeout, reward_sandbox; record_rollouts, rollout_path:
 * a program judges, its groups are recorded and trained on again. */
MX_TEST(post_reward_commands_judge)
{
    char folder[300], path[400], settings[1600];
    post_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/judge", folder);
    put(path, "#!/bin/sh\nwhile read -r line; do echo ${#line}; done\n");
    snprintf(settings, sizeof settings, SAMPLES " reward_command=%s reward_workers=2 "
             "record_rollouts=true reward_sandbox=false", path);
    MX_CHECK_OK(post_run("grpo", folder, "judged", settings));
    json_t *m = post_metrics(folder, "judged");
    MX_CHECK(post_number(m, 0, "reward") > 50, "%g", post_number(m, 0, "reward"));
    snprintf(settings, sizeof settings, ASKED " num_generations=4 max_completion_length=6 "
             "rollout_path=%s/judged/rollouts.jsonl", folder);
    char *data = strstr(settings, "dataset_path=");
    memset(data, ' ', strcspn(data, " "));
    MX_CHECK_OK(post_run("grpo", folder, "again", settings));
    json_t *again = post_metrics(folder, "again");
    MX_CHECK(fabs(post_number(m, 0, "loss") - post_number(again, 0, "loss")) < 1e-4, "%g, %g",
             post_number(m, 0, "loss"), post_number(again, 0, "loss"));
    json_decref(m);
    json_decref(again);
    post_remove(folder);
}

MX_TEST(post_reward_commands_that_fail_are_said)
{
    static const struct {
        const char *script, *error;
    } bad[] = {
        {"echo no sense; cat > /dev/null", "expected a line with a number"},
        {"echo it broke >&2; exit 3", "it broke"},
        {"sleep 60", "took longer than reward_timeout=0.3 s"},
        {"read -r line; printf '1\\n2\\n'; sleep 1", "more lines than it was asked for"},
        {"read -r line; echo 1; exit 0", "has ended"},
        {"read -r line; while :; do printf 1; sleep 0.02; done", "took longer than reward_timeout"},
        {"echo 1; while read -r line; do echo 2; done", "more lines than it was asked"},
        {"while read -r line; do echo Infinity; done", "expected a line with a number"},
    };
    char folder[300], path[400], name[32], settings[1600];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[300];
        snprintf(path, sizeof path, "%s/judge%zu", folder, i);
        snprintf(text, sizeof text, "#!/bin/sh\n%s\n", bad[i].script);
        put(path, text);
        snprintf(settings, sizeof settings, SAMPLES " reward_command=%s reward_timeout=0.3", path);
        snprintf(name, sizeof name, "bad%zu", i);
        MX_CHECK_ERROR(post_run("grpo", folder, name, settings), bad[i].error);
    }
    post_remove(folder);
}

/* reference_path: another reference, another loss. output: of maxc merge. */
MX_TEST(post_reference_and_merge_take_paths)
{
    char folder[300], path[400], settings[1200];
    struct stat st;
    post_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/merged", folder);
    char output[500], adapter[] = "adapter=" POST "lora_all";
    snprintf(output, sizeof output, "output=%s", path);
    char *argv[] = {"maxc", "merge", POST "model", adapter, output, NULL};
    extern mx_status mx_dispatch(int argc, char **argv, char **environment);
    MX_CHECK_OK(mx_dispatch(5, argv, NULL));
    MX_CHECK(stat(path, &st) == 0 && S_ISDIR(st.st_mode), "%s", path);
    snprintf(settings, sizeof settings, DPO " reference_path=%s", path);
    char *with = outcome(folder, "dpo", settings), *without = outcome(folder, "dpo", DPO);
    MX_CHECK(strcmp(with, without) != 0, "reference_path makes no difference:\n%s", with);
    free(with);
    free(without);
    post_remove(folder);
}

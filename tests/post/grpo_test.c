/* grpo_test.c - what is sampled is what is trained, log-probabilities to the bit; rewards that are
 * of no use. */
#include "post_run.h"

#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ASKED                                                                                      \
    "dataset_path=" POST "pairs.jsonl max_target_length=48 per_device_batch_size=2 "       \
    "num_generations=4 max_completion_length=20 reward=length learning_rate=0.01 "
#define GAP "sampling/sampling_logp_difference/max"

MX_TEST(grpo_rollout_and_training_agree_to_the_bit)
{
    static const char *const runs[] = {
        ASKED "gradient_accumulation_steps=2",
        ASKED "temperature=0.7 num_threads=2 beta=0.1",
        ASKED "lora.enable_lora=true num_iterations=2",
        ASKED "dtype=bfloat16",
        ASKED "dtype=bfloat16 lora.enable_lora=true",
        ASKED "load_parameters_path=" POST "deepseek_v3",
        ASKED "load_parameters_path=" POST "deepseek_v3 dtype=bfloat16 lora.enable_lora=true",
        ASKED "load_parameters_path=" POST "mixtral adapter=" POST "lora_experts",
    };
    char folder[300], name[16];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        snprintf(name, sizeof name, "r%zu", i);
        MX_CHECK_OK(post_run("grpo", folder, name, runs[i]));
        json_t *m = post_metrics(folder, name);
        size_t steps = strstr(runs[i], "iterations") ? 1 : 2; /* then the policy has moved */
        for (size_t k = 0; k < steps; k++)
            MX_CHECK(post_number(m, k, GAP) == 0, "%s: step %zu: %g", runs[i], k + 1,
                     post_number(m, k, GAP));
        json_decref(m);
    }
    post_remove(folder);
}

/* rl.rollout_micro_batch_size: who is decoded with whom changes nothing. */
MX_TEST(grpo_answers_do_not_depend_on_who_is_sampled_with_them)
{
    char folder[300];
    post_folder(folder, sizeof folder);
    MX_CHECK_OK(post_run("grpo", folder, "all", ASKED "record_rollouts=true"));
    MX_CHECK_OK(post_run("grpo", folder, "some", ASKED "record_rollouts=true "
                         "rl.rollout_micro_batch_size=3"));
    char command[900];
    snprintf(command, sizeof command, "cmp '%s/all/rollouts.jsonl' '%s/some/rollouts.jsonl'",
             folder, folder);
    MX_CHECK(system(command) == 0, "answers differ");
    post_remove(folder);
}

MX_TEST(grpo_stops_where_rollout_and_training_differ)
{
    static const char dropped[] = ASKED "lora.enable_lora=true lora.lora_dropout=0.3 "
                                        "lora.lora_restore_path=" POST "lora_plain";
    char folder[300], settings[600];
    post_folder(folder, sizeof folder);
    MX_CHECK_OK(post_run("grpo", folder, "any", dropped)); /* dropout makes them differ, rightly */
    json_t *m = post_metrics(folder, "any");
    MX_CHECK(post_number(m, 0, GAP) > 0, "%g", post_number(m, 0, GAP));
    json_decref(m);
    snprintf(settings, sizeof settings, "%s rollout_logprob_limit=0", dropped);
    mx_status st = post_run("grpo", folder, "none", settings);
    MX_CHECK(st && strstr(mx_status_text(st), "rollout_logprob_limit"), "%s",
             st ? mx_status_text(st) : "it went on");
    mx_status_free(st);
    snprintf(settings, sizeof settings, "%s rollout_logprob_limit=100", dropped);
    MX_CHECK_OK(post_run("grpo", folder, "some", settings));
    post_remove(folder);
}

/* --- rewards that are of no use --- */

static void put(const char *folder, const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    MX_CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
    chmod(path, 0755);
}

/* ASKED with FOLDER/judge in place of its reward. */
static char *judged_by(const char *folder, const char *more, char *buf, size_t cap)
{
    snprintf(buf, cap, ASKED "reward_sandbox=false reward_command=%s/judge %s", folder, more);
    char *own = strstr(buf, "reward=length");
    memset(own, ' ', strlen("reward=length"));
    return buf;
}

/* Groups of equal rewards are counted and teach nothing; answers that nothing could judge teach
 * nothing either, and do not count as equal, as in TRL (grpo_unjudged of trl.json). */
MX_TEST(grpo_equal_and_absent_rewards_teach_nothing)
{
    static const struct {
        const char *judge;
        double reward, equal;
    } rows[] = {
        {"#!/bin/sh\nwhile read -r l; do echo 0.25; done\n", 0.25, 1},
        {"#!/bin/sh\nwhile read -r l; do echo null; done\n", NAN, 0},
    };
    char folder[300], settings[900], name[16];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put(folder, "judge", rows[i].judge);
        snprintf(name, sizeof name, "r%zu", i);
        judged_by(folder, "", settings, sizeof settings);
        MX_CHECK_OK(post_run("grpo", folder, name, settings));
        json_t *m = post_metrics(folder, name);
        double reward = post_number(m, 0, "reward");
        MX_CHECK(isnan(rows[i].reward) ? isnan(reward) : reward == rows[i].reward, "%g", reward);
        MX_CHECK(post_number(m, 0, "frac_reward_zero_std") == rows[i].equal, "%g",
                 post_number(m, 0, "frac_reward_zero_std"));
        MX_CHECK(post_number(m, 0, "grad_norm") == 0, "%g", post_number(m, 0, "grad_norm"));
        MX_CHECK(post_number(m, 0, "param_norm") == post_number(m, 1, "param_norm"), "it moved");
        json_decref(m);
    }
    post_remove(folder);
}

/* A judge that breaks in step 3 ends the run; mended, the run goes on from where it was saved. */
MX_TEST(grpo_goes_on_when_its_judge_is_mended)
{
    static const char whole[] = "#!/bin/sh\nwhile read -r l; do echo ${#l}; done\n";
    static const char breaks[] = "#!/bin/sh\nn=0\nwhile read -r l; do n=$((n + 1))\n"
                                 "[ $n -le 32 ] || { echo NaN; continue; }\necho ${#l}; done\n";
    char folder[300], settings[900];
    post_folder(folder, sizeof folder);
    judged_by(folder, "checkpoint_period=1 steps=4", settings, sizeof settings);
    put(folder, "judge", breaks);
    MX_CHECK_ERROR(post_run("grpo", folder, "run", settings), "found \"NaN");
    put(folder, "judge", whole);
    MX_CHECK_OK(post_run("grpo", folder, "run", settings));
    MX_CHECK_OK(post_run("grpo", folder, "other", settings));
    json_t *a = post_metrics(folder, "run"), *b = post_metrics(folder, "other");
    MX_CHECK(json_array_size(a) == 4 && json_array_size(b) == 4, "%zu steps", json_array_size(a));
    MX_CHECK(post_number(a, 3, "param_norm") == post_number(b, 3, "param_norm"), "%.9g, %.9g",
             post_number(a, 3, "param_norm"), post_number(b, 3, "param_norm"));
    json_decref(a);
    json_decref(b);
    post_remove(folder);
}

#define GOOD "{\"prompt\": \"good\", \"completions\": "

MX_TEST(grpo_refuses_bad_rewards_and_groups)
{
    static const struct {
        const char *line, *error;
    } judged[] = {
        {"NaN", "found \"NaN"},
        {"{}", "expected a line with a number"},
        {"{\\\"reward\\\": \\\"good\\\"}", "expected a line with a number"},
        {"1e999", "expected a line with a number"},
        {"", "expected a line with a number"},
        {"two\001", "{\"reward\": number}, found \"two?\"; nothing was updated"},
    };
    static const struct {
        const char *line, *error;
    } recorded[] = {
        {GOOD "[]}", "has 0 completions"},
        {"{\"prompt\": \"good\"}", "has 0 completions"},
        {GOOD "[{\"ids\": [5], \"reward\": 1}, {\"ids\": [6]}]}",
         "has no \"reward\""},
        {GOOD "[{\"ids\": [5], \"reward\": 1}, {\"reward\": 1}]}",
         "neither \"ids\" nor \"text\""},
        {GOOD "[{\"ids\": [-5], \"reward\": 1}, {\"ids\": [6]}]}",
         "not a token id"},
        {GOOD "[{\"ids\": [5], \"reward\": 1, \"logprobs\": []}, "
         "{\"ids\": [6], \"reward\": 2}]}", "1 tokens and 0 logprobs"},
        {GOOD "[{\"ids\": [5], \"reward\": 1, \"logprobs\": [null]}, {\"ids\": [6]}]}",
         "the group of \"good\": \"logprobs\" of a completion: element 0"},
        {GOOD "[{\"ids\": [5], \"reward\": 1, \"logprobs\": [0.5]}, {\"ids\": [6]}]}",
         "element 0 is not the logarithm of a probability"},
        {GOOD "[{\"ids\": [5], \"reward\": \"high\"}, {\"ids\": [6], \"reward\": 1}]}",
         "neither a number nor null"},
    };
    char folder[300], settings[900], text[200], name[16];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++) {
        snprintf(text, sizeof text, "#!/bin/sh\nwhile read -r l; do echo \"%s\"; done\n",
                 judged[i].line);
        put(folder, "judge", text);
        judged_by(folder, "", settings, sizeof settings);
        snprintf(name, sizeof name, "j%zu", i);
        MX_CHECK_ERROR(post_run("grpo", folder, name, settings), judged[i].error);
    }
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        put(folder, "groups.jsonl", recorded[i].line);
        snprintf(settings, sizeof settings, "rollout_path=%s/groups.jsonl num_generations=2 "
                 "max_completion_length=8 steps=1 per_device_batch_size=1 "
                 "gradient_accumulation_steps=1", folder);
        snprintf(name, sizeof name, "g%zu", i);
        MX_CHECK_ERROR(post_run("grpo", folder, name, settings), recorded[i].error);
    }
    post_remove(folder);
}

MX_TEST(grpo_semantics_refuse_what_they_do_not_have)
{
    static const struct {
        const char *verb, *settings, *error;
    } rows[] = {
        {"grpo", ASKED "semantics=maxtext loss_type=sapo", "grpo gspo dr_grpo"},
        {"grpo", ASKED "semantics=verl loss_type=dr_grpo", "dapo grpo gspo cispo"},
        {"grpo", ASKED "semantics=verl use_bias_correction_kl=true", "does not weigh the KL"},
        {"sft", "dataset_path=" POST "text.jsonl semantics=verl", "verl is about rewards"},
    };
    char folder[300], name[16];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(name, sizeof name, "r%zu", i);
        MX_CHECK_ERROR(post_run(rows[i].verb, folder, name, rows[i].settings), rows[i].error);
    }
    post_remove(folder);
}

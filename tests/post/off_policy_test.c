/* off_policy_test.c - grpo with answers that are given one generation ahead (rl.off_policy_steps):
 * whose they are, what they weigh, the same bits again and after a stop. */
#include "post_run.h"

#include "../test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ASKED                                                                                      \
    "dataset_path=" POST "pairs.jsonl max_target_length=48 per_device_batch_size=2 "       \
    "num_generations=4 max_completion_length=4 gradient_accumulation_steps=1 "                    \
    "record_rollouts=true steps=5 reward_pattern=[^a-m]* "
#define BY_FORM ASKED "reward=format learning_rate=0.003 "

static void check_equal_files(const char *folder, const char *a, const char *b)
{
    char command[900];
    snprintf(command, sizeof command, "cmp '%s/%s' '%s/%s'", folder, a, folder, b);
    MX_CHECK(system(command) == 0, "%s and %s differ", a, b);
}

static double number(const char *folder, const char *run, size_t step, const char *name)
{
    json_t *m = post_metrics(folder, run);
    double x = post_number(m, step, name);
    json_decref(m);
    return x;
}

/* Of the answers of a run those of one generation, in a file of their own. */
static void answers_of(const char *folder, const char *run, int step, const char *to)
{
    char command[900];
    snprintf(command, sizeof command,
             "grep '^{\"step\":%d,' '%s/%s/rollouts.jsonl' | sed 's/\"reward\":[^}]*//g' > '%s/%s'",
             step, folder, run, folder, to);
    MX_CHECK(system(command) == 0, "%s has no step %d", run, step);
}

MX_TEST(grpo_off_policy_answers_are_of_the_weights_before)
{
    char folder[300];
    post_folder(folder, sizeof folder);
    MX_CHECK_OK(post_run("grpo", folder, "ahead", BY_FORM "rl.off_policy_steps=1"));
    MX_CHECK_OK(post_run("grpo", folder, "on", BY_FORM));
    MX_CHECK_OK(post_run("grpo", folder, "still", ASKED "reward=format learning_rate=0"));
    answers_of(folder, "ahead", 2, "ahead.2");
    answers_of(folder, "on", 2, "on.2");
    answers_of(folder, "still", 2, "still.2");
    check_equal_files(folder, "ahead.2", "still.2"); /* of the weights that the run began with */
    char command[700];
    snprintf(command, sizeof command, "cmp -s '%s/on.2' '%s/still.2'", folder, folder);
    MX_CHECK(system(command) != 0, "one update has changed no answer: the test sees nothing");
    for (size_t k = 0; k < 5; k++) {
        double ratio = number(folder, "ahead", k, "sampling/importance_sampling_ratio/max");
        double gap = number(folder, "ahead", k, "sampling/sampling_logp_difference/max");
        MX_CHECK(number(folder, "ahead", k, "sampling/staleness") == (k ? 1 : 0), "step %zu", k);
        MX_CHECK(gap == 0, "step %zu: %g", k, gap);
        MX_CHECK(k ? ratio > 1 : ratio == 1, "step %zu: %g", k, ratio);
    }
    post_remove(folder);
}

/* Without updates nothing is old: the run is the one on policy, to the bit. */
MX_TEST(grpo_off_policy_without_updates_is_on_policy)
{
    char folder[300];
    post_folder(folder, sizeof folder);
    MX_CHECK_OK(post_run("grpo", folder, "on", ASKED "reward=format learning_rate=0"));
    MX_CHECK_OK(post_run("grpo", folder, "ahead",
                         ASKED "reward=format learning_rate=0 rl.off_policy_steps=1"));
    check_equal_files(folder, "on/rollouts.jsonl", "ahead/rollouts.jsonl");
    for (size_t k = 0; k < 5; k++)
        MX_CHECK(number(folder, "on", k, "grad_norm") == number(folder, "ahead", k, "grad_norm"),
                 "step %zu", k);
    post_remove(folder);
}

/* Stopped behind any step, also between two on the same answers, and gone on with. */
MX_TEST(grpo_off_policy_resumes_with_the_same_bits)
{
    static const char *const runs[] = {
        BY_FORM "rl.off_policy_steps=1 checkpoint_period=1 lr_schedule_type=constant ",
        BY_FORM "rl.off_policy_steps=1 num_iterations=2 checkpoint_period=1 "
                  "lr_schedule_type=constant ",
        BY_FORM "num_iterations=2 checkpoint_period=1 lr_schedule_type=constant ",
    };
    char folder[300], settings[900], name[2][16];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        snprintf(name[0], sizeof name[0], "whole%zu", i);
        snprintf(name[1], sizeof name[1], "cut%zu", i);
        MX_CHECK_OK(post_run("grpo", folder, name[0], runs[i]));
        snprintf(settings, sizeof settings, "%s max_num_checkpoints_to_keep=9", runs[i]);
        MX_CHECK_OK(post_run("grpo", folder, name[1], settings));
        char command[900];
        snprintf(command, sizeof command, "cd '%s/%s' && rm -rf checkpoints/4 checkpoints/5 && "
                 "ls checkpoints | grep -qx 3 && rm metrics.jsonl rollouts.jsonl", folder, name[1]);
        MX_CHECK(system(command) == 0, "%s", command);
        MX_CHECK_OK(post_run("grpo", folder, name[1], settings));
        for (size_t k = 3; k < 5; k++)
            MX_CHECK(number(folder, name[0], k, "param_norm") ==
                             number(folder, name[1], k - 3, "param_norm") &&
                         number(folder, name[0], k, "loss") ==
                             number(folder, name[1], k - 3, "loss"),
                     "run %zu, step %zu: %.9g and %.9g", i, k + 1,
                     number(folder, name[0], k, "loss"), number(folder, name[1], k - 3, "loss"));
    }
    post_remove(folder);
}

static void put_judge(const char *folder, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/judge", folder);
    FILE *f = fopen(path, "w");
    MX_CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
    chmod(path, 0755);
}

/* The judge fails while the step before trains: the run ends with what it said, and goes on from
 * its checkpoint, asking about the same answers again. */
MX_TEST(grpo_off_policy_goes_on_when_its_judge_is_mended)
{
    char folder[300], settings[900];
    post_folder(folder, sizeof folder);
    snprintf(settings, sizeof settings, ASKED "learning_rate=0.003 rl.off_policy_steps=1 "
             "checkpoint_period=1 reward_sandbox=false reward_command=%s/judge", folder);
    put_judge(folder, "#!/bin/sh\nn=0\nwhile read -r l; do n=$((n + 1))\n"
                      "[ $n -le 16 ] || { echo NaN; continue; }\necho ${#l}; done\n");
    MX_CHECK_ERROR(post_run("grpo", folder, "run", settings), "found \"NaN");
    put_judge(folder, "#!/bin/sh\nwhile read -r l; do echo ${#l}; done\n");
    MX_CHECK_OK(post_run("grpo", folder, "run", settings));
    MX_CHECK_OK(post_run("grpo", folder, "other", settings));
    MX_CHECK(number(folder, "run", 4, "param_norm") == number(folder, "other", 4, "param_norm"),
             "%.9g, %.9g", number(folder, "run", 4, "param_norm"),
             number(folder, "other", 4, "param_norm"));
    post_remove(folder);
}

MX_TEST(grpo_off_policy_is_refused_where_it_cannot_be)
{
    char folder[300];
    post_folder(folder, sizeof folder);
    MX_CHECK_ERROR(post_run("grpo", folder, "mesh",
                            BY_FORM "rl.off_policy_steps=1 mesh=data=2 virtual_ranks=2"),
                   "on one rank only");
    MX_CHECK_ERROR(post_run("grpo", folder, "file", BY_FORM "rl.off_policy_steps=1 "
                            "rollout_path=" POST "rollouts.jsonl"), "as old as they are");
    MX_CHECK_ERROR(post_run("grpo", folder, "two", BY_FORM "rl.off_policy_steps=2"), "0 to 1");
    post_remove(folder);
}

/* preference_test.c - references computed ahead; answers that are good or bad by themselves. */
#include "post_run.h"

#include "../test.h"
#include <stdio.h>
#include <sys/stat.h>

static void check_equal(const char *folder, const char *a, const char *b)
{
    static const char *const names[] = {"loss", "grad_norm", "rewards/margins", "param_norm"};
    json_t *x = post_metrics(folder, a), *y = post_metrics(folder, b);
    MX_CHECK(json_array_size(x) == json_array_size(y) && json_array_size(x) > 0, "%zu, %zu steps",
             json_array_size(x), json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++)
        for (int k = 0; k < 4; k++)
            MX_CHECK(post_number(x, i, names[k]) == post_number(y, i, names[k]),
                     "step %zu, %s: %s %.9g, %s %.9g", i + 1, names[k], a,
                     post_number(x, i, names[k]), b, post_number(y, i, names[k]));
    json_decref(x);
    json_decref(y);
}

/* precompute_ref_log_probs: the same numbers as of a live reference, also when a run goes on. */
MX_TEST(post_references_computed_ahead_are_live_ones)
{
    char folder[300], path[400];
    struct stat st;
    post_folder(folder, sizeof folder);
#define PAIRS "dataset_path=" POST "pairs.jsonl enable_data_shuffling=true max_target_length=32 " \
              "reference_path=" POST "teacher_near lr_schedule_type=constant "
    MX_CHECK_OK(post_run("dpo", folder, "live", PAIRS "steps=3"));
    MX_CHECK_OK(post_run("dpo", folder, "ahead", PAIRS "precompute_ref_log_probs=true steps=1"));
    snprintf(path, sizeof path, "%s/ahead/reference.safetensors", folder);
    MX_CHECK(stat(path, &st) == 0, "%s is not there", path);
    MX_CHECK_OK(post_run("dpo", folder, "ahead", PAIRS "precompute_ref_log_probs=true steps=3"));
    check_equal(folder, "live", "ahead");
    MX_CHECK_ERROR(post_run("dpo", folder, "eval", PAIRS "precompute_ref_log_probs=true "
                            "eval_interval=1 eval_steps=1"), "for training data alone");
    post_remove(folder);
}

MX_TEST(post_kto_goes_on_and_refuses)
{
    char folder[300];
    post_folder(folder, sizeof folder);
#define KTO "dataset_path=" POST "labels.jsonl loss_type=kto lr_schedule_type=constant "
    MX_CHECK_OK(post_run("dpo", folder, "whole", KTO "steps=3"));
    MX_CHECK_OK(post_run("dpo", folder, "parts", KTO "steps=1"));
    MX_CHECK_OK(post_run("dpo", folder, "parts", KTO "steps=3"));
    check_equal(folder, "whole", "parts");
    MX_CHECK_ERROR(post_run("dpo", folder, "one", KTO "per_device_batch_size=1"),
                   "set per_device_batch_size=2");
    MX_CHECK_ERROR(post_run("dpo", folder, "none", "loss_type=kto dataset_path=" POST
                            "completion.jsonl"), "no label");
    MX_CHECK_ERROR(post_run("dpo", folder, "pairs", "loss_type=kto dataset_path=" POST
                            "pairs.jsonl"), "no label");
    post_remove(folder);
}

/* eval_interval: the loss over held-out pairs, and how often the better answer is preferred. */
MX_TEST(post_preferences_are_evaluated)
{
    char folder[300], path[700], line[4096];
    bool seen = false;
    post_folder(folder, sizeof folder);
    MX_CHECK_OK(post_run("dpo", folder, "held", "dataset_path=" POST "pairs.jsonl steps=2 "
                         "eval_interval=1 eval_dataset_path=" POST "pairs.jsonl"));
    snprintf(path, sizeof path, "%s/held/metrics.jsonl", folder);
    FILE *f = fopen(path, "r");
    MX_CHECK(f != NULL, "%s", path);
    while (f && fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, 0, NULL), *v = json_object_get(o, "eval/rewards/accuracies");
        seen |= json_is_number(v);
        MX_CHECK(!v || (json_number_value(v) >= 0 && json_number_value(v) <= 1), "%s", line);
        json_decref(o);
    }
    if (f)
        fclose(f);
    MX_CHECK(seen, "no eval/rewards/accuracies");
    post_remove(folder);
}

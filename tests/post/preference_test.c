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

/* tasks_test.c - tasks that are asked while a model is trained. */
#include "post_run.h"

#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TASKS " task_path=" POST "pairs.jsonl reward=format reward_pattern=[^a-m]* "               \
              "max_completion_length=6 max_target_length=48 "
#define FOUR " task_samples=4 task_interval=2 "

/* The lines of FOLDER/NAME/FILE that have `key`. */
static json_t *lines_with(const char *folder, const char *name, const char *file, const char *key)
{
    char path[700], line[1 << 14];
    json_t *all = json_array();
    snprintf(path, sizeof path, "%s/%s/%s", folder, name, file);
    FILE *f = fopen(path, "r");
    MX_CHECK(f, "%s is not there", path);
    while (f && fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
        if (json_object_get(o, key))
            json_array_append(all, o);
        json_decref(o);
    }
    if (f)
        fclose(f);
    return all;
}

static double number(const json_t *lines, size_t i, const char *key)
{
    const json_t *v = json_object_get(json_array_get(lines, i), key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

MX_TEST(tasks_are_asked_while_any_of_these_train)
{
    static const struct {
        const char *verb, *settings;
    } runs[] = {
        {"sft", "dataset_path=" POST "completion.jsonl steps=3" FOUR},
        {"dpo", "dataset_path=" POST "pairs.jsonl steps=3" FOUR},
        {"grpo", "dataset_path=" POST "pairs.jsonl steps=3 num_generations=4" FOUR},
    };
    char folder[300], settings[700];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        snprintf(settings, sizeof settings, "%s%s", runs[i].settings, TASKS);
        MX_CHECK_OK(post_run(runs[i].verb, folder, runs[i].verb, settings));
        json_t *m = lines_with(folder, runs[i].verb, "metrics.jsonl", "eval/reward");
        MX_CHECK(json_array_size(m) == 3, "%s: %zu times", runs[i].verb, json_array_size(m));
        static const double at[] = {0, 2, 3};
        for (size_t k = 0; k < json_array_size(m); k++) {
            double one = number(m, k, "eval/pass@1"), four = number(m, k, "eval/pass@4");
            MX_CHECK(number(m, k, "step") == at[k], "%g", number(m, k, "step"));
            MX_CHECK(one >= 0 && one <= four && four <= 1, "%g %g", one, four);
            MX_CHECK(number(m, k, "eval/reward") == one, "the one reward is 0 or 1");
        }
        json_decref(m);
        json_t *s = lines_with(folder, runs[i].verb, "samples.jsonl", "completion");
        size_t each = json_array_size(s) / 3;
        MX_CHECK(each > 0 && each <= 8 && json_array_size(s) == 3 * each, "%zu", each);
        json_decref(s);
    }
    post_remove(folder);
}

MX_TEST(tasks_that_cannot_be_asked_are_refused)
{
    static const struct {
        const char *settings, *says;
    } rows[] = {
        {"max_completion_length=8 task_path=" POST "absent.jsonl reward=exact", "absent.jsonl"},
        {"max_completion_length=8 task_path=" POST "text.jsonl reward=exact", "expected a prompt"},
        {"max_completion_length=8 task_path=" POST "pairs.jsonl", "what an answer is worth"},
        {"task_path=" POST "pairs.jsonl reward=exact max_completion_length=64", "no room"},
        {"task_path=" POST "pairs.jsonl reward=exact max_completion_length=63", "does not fit"},
    };
    char folder[300], settings[700], name[16];
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(settings, sizeof settings, "dataset_path=" POST "completion.jsonl steps=1 "
                 "max_target_length=64 %s", rows[i].settings);
        snprintf(name, sizeof name, "r%zu", i);
        mx_status st = post_run("sft", folder, name, settings);
        MX_CHECK(st && strstr(mx_status_text(st), rows[i].says), "%s: %s", rows[i].settings,
                 st ? mx_status_text(st) : "it went on");
        mx_status_free(st);
    }
    mx_status st = post_run("dpo", folder, "score", "dataset_path=" POST "pairs.jsonl "
                            "loss_type=reward reward=exact task_path=" POST "pairs.jsonl");
    MX_CHECK(st && strstr(mx_status_text(st), "does not answer tasks"), "a reward model answers");
    mx_status_free(st);
    post_remove(folder);
}

/* Each key by itself: what is measured is another. */
MX_TEST(task_keys_make_a_difference)
{
    static const char *const keys[] = {"task_samples=4 task_interval=2",
                                       "task_samples=4 task_interval=1",
                                       "task_samples=8 task_interval=2",
                                       "task_samples=4 task_interval=2 task_temperature=3"};
    char folder[300], settings[700], name[16];
    double before[2] = {0};
    post_folder(folder, sizeof folder);
    for (size_t i = 0; i < 4; i++) {
        snprintf(settings, sizeof settings, "dataset_path=" POST "completion.jsonl steps=2 %s%s",
                 keys[i], TASKS);
        snprintf(name, sizeof name, "r%zu", i);
        MX_CHECK_OK(post_run("sft", folder, name, settings));
        json_t *m = lines_with(folder, name, "metrics.jsonl", "eval/reward");
        double now[2] = {(double)json_array_size(m), number(m, 0, "eval/pass@1")};
        MX_CHECK(!i || now[0] != before[0] || now[1] != before[1], "%s", keys[i]);
        if (!i)
            memcpy(before, now, sizeof now);
        json_decref(m);
    }
    post_remove(folder);
}

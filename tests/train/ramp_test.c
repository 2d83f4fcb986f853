/* ramp_test.c - a batch that grows: when, by how much, and the same bits when resumed in it. */
#include "../test.h"

#include "base/arena.h"
#include "base/io.h"
#include "tiny_run.h"
#include "train/run/ramp.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

MX_TEST(a_stage_of_the_ramp_lasts_until_its_share_was_seen)
{
    /* 2, 4, 6 sequences a microbatch, twice that a step; 20 sequences each: 5, 3, 2 steps */
    mx_ramp r = {.n_stages = 3, .start = 2, .increment = 2, .per_sequence = 2, .share = 20};
    static const int64_t stage[] = {0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3};
    for (int64_t i = 0; i < 12; i++)
        MX_CHECK(mx_ramp_stage(&r, i) == stage[i], "step %lld is in stage %lld", (long long)i,
                 (long long)mx_ramp_stage(&r, i));
    MX_CHECK(mx_ramp_steps(&r) == 10 && mx_ramp_unit(&r) == 4, "%lld steps, pieces of %lld",
             (long long)mx_ramp_steps(&r), (long long)mx_ramp_unit(&r));
    MX_CHECK(mx_ramp_microbatch(&r, 3) == 8, "the last is the full batch");
    MX_CHECK(mx_ramp_stage(&(mx_ramp){0}, 7) == 0, "no ramp has one stage");
}

#define RAMP                                                                                       \
    "per_device_batch_size=5", "enable_rampup_batch_size=true", "per_device_batch_size_start=1",   \
        "per_device_batch_size_increment=2", "global_rampup_samples=10",                           \
        "learning_rate_schedule_steps=12"

/* Stages of 1 and 3 sequences, 5 and 2 steps, then 5 sequences. */
MX_TEST(the_steps_of_a_ramp_have_the_batches_they_should)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "a", (const char *[]){RAMP, "steps=12", NULL}));
    MX_CHECK_OK(tiny_train(folder, "one",
                           (const char *[]){"per_device_batch_size=1", "steps=5",
                                            "learning_rate_schedule_steps=12", NULL}));
    char *a = tiny_metrics(folder, "a"), *one = tiny_metrics(folder, "one");
    size_t n = strlen(one) - 1; /* without the closing bracket */
    MX_CHECK(n > 500 && strncmp(a, one, n) == 0, "the first stage is not a run of that batch size");
    json_t *lines = json_loads(a, 0, NULL);
    json_int_t before = 0;
    static const int rows[] = {1, 1, 1, 1, 1, 3, 3, 5, 5, 5, 5, 5};
    for (int i = 0; i < 12; i++) {
        json_int_t t = (json_int_t)json_number_value(
            json_object_get(json_array_get(lines, (size_t)i), "tokens"));
        /* packed sequences of 32: nearly every place counts */
        MX_CHECK(t - before > 25 * rows[i] && t - before <= 32 * rows[i],
                 "step %d trained on %lld tokens, not on %d sequences", i + 1,
                 (long long)(t - before), rows[i]);
        before = t;
    }
    json_decref(lines);
    free(a), free(one);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

static void resumed(const char *accumulation)
{
    char folder[256], steps[32];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "a", (const char *[]){RAMP, accumulation, "steps=12", NULL}));
    for (int stop = 2; stop <= 12; stop += 2) {
        snprintf(steps, sizeof steps, "steps=%d", stop);
        MX_CHECK_OK(tiny_train(folder, "b", (const char *[]){RAMP, accumulation, steps, NULL}));
    }
    setenv("MX_TEST_QUEUE", "1", 1);
    MX_CHECK_OK(tiny_train(folder, "c", (const char *[]){RAMP, accumulation, "steps=12", NULL}));
    unsetenv("MX_TEST_QUEUE");
    char *x = tiny_tensors(folder, "a", 12), *m = tiny_metrics(folder, "a");
    for (const char *other = "bc"; *other; other++) {
        char name[2] = {*other, 0};
        char *y = tiny_tensors(folder, name, 12), *k = tiny_metrics(folder, name);
        MX_CHECK(strlen(x) > 100 && strcmp(x, y) == 0, "%s: the checkpoints differ", name);
        MX_CHECK(strcmp(m, k) == 0, "%s: the metrics differ:\n%s\n%s", name, m, k);
        free(y), free(k);
    }
    free(x), free(m);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(a_run_resumed_inside_its_ramp_has_the_same_bits)
{
    resumed("gradient_accumulation_steps=1");
    resumed("gradient_accumulation_steps=2");
}

MX_TEST(a_ramp_that_does_not_reach_the_full_batch_is_refused)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    mx_status st = tiny_train(folder, "a",
                              (const char *[]){"per_device_batch_size=6", "steps=1",
                                               "enable_rampup_batch_size=true",
                                               "per_device_batch_size_start=1",
                                               "per_device_batch_size_increment=2", NULL});
    MX_CHECK_ERROR(st, "is not reached in steps of 2");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

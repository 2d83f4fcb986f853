/* readback_test.c - the numbers of a step are read when the next one is under way, and nothing else
 * changes by it. A device that works by itself is played by the CPU behind a queue
 * (device/cpu/queue.h): what the run forgot to wait for would be read too early. */
#include "../test.h"

#include "base/arena.h"
#include "base/io.h"
#include "device/cpu/queue.h"
#include "tiny_run.h"
#include <stdlib.h>
#include <string.h>

/* The same run on the CPU ("a") and behind the queue ("b"); metrics and tensors must be equal. */
static mx_queue_counts both(const char *const *args, int last_step)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    mx_status x = tiny_train(folder, "a", args);
    setenv("MX_TEST_QUEUE", "1", 1);
    mx_queue_counts before = mx_queue_report();
    mx_status y = tiny_train(folder, "b", args);
    mx_queue_counts n = mx_queue_report();
    unsetenv("MX_TEST_QUEUE");
    MX_CHECK(mx_status_code(x) == mx_status_code(y), "%s and %s", mx_status_text(x),
             mx_status_text(y));
    mx_status_free(x);
    mx_status_free(y);
    char *a = tiny_metrics(folder, "a"), *b = tiny_metrics(folder, "b");
    MX_CHECK(strlen(a) > 100 && strcmp(a, b) == 0, "the metrics differ:\n%s\n%s", a, b);
    free(a), free(b);
    if (last_step) {
        a = tiny_tensors(folder, "a", last_step), b = tiny_tensors(folder, "b", last_step);
        MX_CHECK(strlen(a) > 100 && strcmp(a, b) == 0, "the checkpoints differ");
        free(a), free(b);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
    return (mx_queue_counts){n.runs - before.runs, n.reads - before.reads, n.waits - before.waits,
                             n.idle_waits - before.idle_waits};
}

MX_TEST(a_step_never_waits_for_its_own_numbers)
{
    mx_queue_counts n =
        both((const char *[]){"steps=12", "enable_checkpointing=false", NULL}, 0);
    MX_CHECK(n.runs == 12 && n.waits == 12, "%lld runs, %lld waits", (long long)n.runs,
             (long long)n.waits);
    MX_CHECK(n.idle_waits == 1 && n.reads == 0, "%lld waits with nothing behind, %lld reads",
             (long long)n.idle_waits, (long long)n.reads);
    n = both((const char *[]){"steps=12", "enable_checkpointing=false",
                              "gradient_accumulation_steps=3", NULL},
             0);
    MX_CHECK(n.runs == 48 && n.idle_waits == 1 && n.reads == 0, "%lld %lld %lld",
             (long long)n.runs, (long long)n.idle_waits, (long long)n.reads);
}

/* The queue's clock counts runs as seconds, and a step of three microbatches has four. */
MX_TEST(the_time_of_a_step_comes_from_the_device)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    tiny_train_queued(folder, "a",
                      (const char *[]){"steps=7", "enable_checkpointing=false",
                                       "gradient_accumulation_steps=3", NULL});
    char *text = tiny_text(folder, "a", "metrics.jsonl");
    MX_CHECK(tiny_count(text, "\"step_seconds\": 4,") == 6, "%s", text); /* all but the first */
    free(text);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(saving_on_a_device_that_works_by_itself_has_the_same_bits)
{
    mx_queue_counts n = both((const char *[]){"steps=12", "checkpoint_period=4", "eval_interval=3",
                                              "eval_steps=2", "dtype=bfloat16", NULL},
                             12);
    /* looked at whole: steps 3, 4, 6, 8, 9 and 12 */
    MX_CHECK(n.idle_waits == 6, "%lld waits with nothing behind", (long long)n.idle_waits);
}

/* The weights of a run that flies apart: every step from some point on is skipped. */
#define DIVERGING                                                                                  \
    "steps=12", "learning_rate=1e30", "gradient_clipping_threshold=0", "abort_on_nan_loss=false",  \
        "abort_on_inf_loss=false", "learning_rate_schedule_steps=12"

MX_TEST(skipped_steps_are_decided_on_the_device)
{
    mx_queue_counts n = both((const char *[]){DIVERGING, NULL}, 12);
    MX_CHECK(n.idle_waits == 1, "%lld waits with nothing behind", (long long)n.idle_waits);
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "a", (const char *[]){DIVERGING, NULL}));
    char *text = tiny_text(folder, "a", "metrics.jsonl");
    MX_CHECK(tiny_count(text, "\"skipped\": 1") > 5, "nothing was skipped: %s", text);
    free(text);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(a_skip_that_makes_the_run_go_back_is_waited_for)
{
    /* ends with an error on both: the run does not get past the checkpoint */
    both((const char *[]){DIVERGING, "rollback_after_skips=2", "checkpoint_period=1", NULL}, 0);
    both((const char *[]){"steps=24", "learning_rate_schedule_steps=24", "checkpoint_period=4",
                          "skip_step_on_spikes=true", "skip_step_interval=8",
                          "skip_step_scaling_factor=0.8", "rollback_after_skips=2", NULL},
         24);
}

MX_TEST(a_loss_that_is_not_finite_ends_the_run_and_is_recorded)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    for (int queued = 0; queued < 2; queued++) {
        if (queued)
            setenv("MX_TEST_QUEUE", "1", 1);
        mx_status st = tiny_train(folder, queued ? "b" : "a",
                                  (const char *[]){"steps=12", "z_loss_multiplier=1e38", NULL});
        MX_CHECK_ERROR(st, "step 1: the loss is inf");
    }
    unsetenv("MX_TEST_QUEUE");
    char *a = tiny_metrics(folder, "a"), *b = tiny_metrics(folder, "b");
    MX_CHECK(strcmp(a, b) == 0 && tiny_count(a, "\"skipped\":1,") == 1, "%s\n%s", a, b);
    free(a), free(b);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

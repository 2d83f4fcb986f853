/* offload_test.c - optimizer_memory_host_offload=true keeps the optimizer state in host memory and
 * changes no bit of a run. A device with memory of its own is played by the CPU behind a queue
 * (device/cpu/queue.h). */
#include "../test.h"

#include "base/io.h"
#include "tiny_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OFFLOAD "optimizer_memory_host_offload=true"
#define SHORT "steps=6", "learning_rate_schedule_steps=12", "checkpoint_period=6"
#define WHOLE "steps=12", "learning_rate_schedule_steps=12", "checkpoint_period=6"

MX_TEST(an_offloaded_run_has_the_same_bits)
{
    static const char *const kinds[] = {"opt_type=adamw", "opt_type=sgd", "opt_type=muon"};
    for (int i = 0; i < 3; i++) {
        char folder[256];
        tiny_folder(folder, sizeof folder);
        const char *more = i == 1 ? "sgd_momentum=0.9" : "dtype=bfloat16";
        int64_t none =
            tiny_train_queued(folder, "a", (const char *[]){WHOLE, kinds[i], more, NULL});
        int64_t some =
            tiny_train_queued(folder, "b", (const char *[]){WHOLE, kinds[i], more, OFFLOAD, NULL});
        MX_CHECK(none == 0 && some > 0, "%lld and %lld bytes", (long long)none, (long long)some);
        tiny_same(folder, "a", "b", 12);
        mx_status_free(mx_io_remove_tree(NULL, folder));
    }
}

/* 28,672 weights and few norms: two moments each, four bytes. Beside the device's memory, in which
 * only the optimizer's counters stay. */
MX_TEST(the_whole_state_is_offloaded_and_planned_there)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    int64_t bytes = tiny_train_queued(folder, "a", (const char *[]){WHOLE, OFFLOAD, NULL});
    char *plan = tiny_text(folder, "a", "plan.txt"), *at = strstr(plan, "\noptimizer");
    char *host = strstr(plan, "\nin host memory");
    double optimizer = at ? strtod(at + 10, NULL) : 0, moved = host ? strtod(host + 15, NULL) : 0;
    MX_CHECK(optimizer > 0 && optimizer < 1e3, "%g bytes of the optimizer stay in:\n%s", optimizer,
             plan);
    MX_CHECK(moved > 1e5 && (double)bytes >= moved && (double)bytes < moved + 65536,
             "%lld of %g bytes", (long long)bytes, moved);
    free(plan);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(an_offloaded_run_resumes_with_and_without_it)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    tiny_train_queued(folder, "a", (const char *[]){WHOLE, OFFLOAD, NULL});
    tiny_train_queued(folder, "b", (const char *[]){SHORT, OFFLOAD, NULL});
    tiny_train_queued(folder, "b", (const char *[]){WHOLE, OFFLOAD, NULL});
    tiny_same(folder, "a", "b", 12);
    tiny_train_queued(folder, "c", (const char *[]){SHORT, OFFLOAD, NULL});
    tiny_train_queued(folder, "c", (const char *[]){WHOLE, NULL});
    tiny_same(folder, "a", "c", 12);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(offloading_on_the_cpu_says_that_it_changes_nothing)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "a", (const char *[]){WHOLE, NULL}));
    MX_CHECK_OK(tiny_train(folder, "b", (const char *[]){WHOLE, OFFLOAD, NULL}));
    tiny_same(folder, "a", "b", 12);
    char *log = tiny_text(folder, "b", "log.txt");
    MX_CHECK(strstr(log, "optimizer_memory_host_offload=true changes nothing on the CPU"), "%s",
             log);
    free(log);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

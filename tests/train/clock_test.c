/* clock_test.c - gpu_clock=auto finds the clock at which steps are fastest. The chip is played by
 * the CPU behind a queue (device/cpu/queue.c), whose clock says what tests expect: 1,502 MHz and a
 * second a step left alone, and the fastest steps at 1,395 MHz. */
#include "../test.h"

#include "base/io.h"
#include "device/cpu/queue.h"
#include "tiny_run.h"
#include <stdlib.h>

static int64_t held_after(const char *key, const char *steps)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    tiny_train_queued(folder, "a",
                      (const char *[]){steps, "enable_checkpointing=false", key, NULL});
    mx_status_free(mx_io_remove_tree(NULL, folder));
    return mx_queue_report().held_mhz;
}

MX_TEST(the_clock_with_the_fastest_steps_is_found_and_held)
{
    /* 1500, 1545, 1455, 1410, 1365 and back to 1410: 18 steps left alone, then 12 each */
    MX_CHECK(held_after("gpu_clock=auto", "steps=100") == 1410, "%lld MHz",
             (long long)mx_queue_report().held_mhz);
}

MX_TEST(a_clock_may_be_given)
{
    MX_CHECK(held_after("gpu_clock=1380", "steps=3") == 1380, "%lld MHz",
             (long long)mx_queue_report().held_mhz);
}

MX_TEST(a_clock_that_is_none_is_refused)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    mx_status st = tiny_train(folder, "a", (const char *[]){"steps=3", "gpu_clock=fast", NULL});
    MX_CHECK_ERROR(st, "gpu_clock is a frequency in MHz, such as 1400, or auto; found fast");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(a_run_goes_on_where_no_clock_can_be_held)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    for (int i = 0; i < 2; i++)
        MX_CHECK_OK(tiny_train(folder, i ? "b" : "a",
                               (const char *[]){"steps=3", "enable_checkpointing=false",
                                                i ? "gpu_clock=auto" : "gpu_clock=1400", NULL}));
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* cpu_peak_test.c - the denominator of MFU: what was seen once is not forgotten on a busy
 * machine. */
#include "base/io.h"
#include "device/cpu/peak.h"
#include "../test.h"
#include <stdio.h>
#include <stdlib.h>

MX_TEST(the_peak_of_a_busy_machine_is_the_one_seen_before)
{
    char dir[] = "/tmp/maxc-peak-XXXXXX", name[64];
    MX_CHECK(mkdtemp(dir) != NULL);
    setenv("XDG_CACHE_HOME", dir, 1);
    MX_CHECK(mx_cpu_peak_remember(2, 5e10) == 5e10, "the first is taken as it is");
    MX_CHECK(mx_cpu_peak_remember(2, 3e10) == 5e10, "a busy machine forgets");
    MX_CHECK(mx_cpu_peak_remember(2, 8e10) == 8e10 && mx_cpu_peak_remember(2, 1) == 8e10, "more");
    MX_CHECK(mx_cpu_peak_remember(1, 3e10) == 3e10, "one thread is not two");
    snprintf(name, sizeof name, "%s/none/of/these", dir);
    setenv("XDG_CACHE_HOME", name, 1);
    MX_CHECK(mx_cpu_peak_remember(2, 3e10) == 3e10, "without a folder it is what was measured");
    mx_status_free(mx_io_remove_tree(NULL, dir));
}

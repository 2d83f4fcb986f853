/* devices.c - the kinds of devices there are, and which one is opened. */
#include "device/device.h"

#include "device/cpu/queue.h"
#include <stdlib.h>
#include <string.h>

const mx_device_kind *mx_device_kind_find(const char *name)
{
    for (int i = 0; i < mx_device_kind_count; i++)
        if (strcmp(mx_device_kind_table[i]->traits->name, name) == 0)
            return mx_device_kind_table[i];
    return NULL;
}

/* The preferred kind of those below `below` that could be there. */
static const mx_device_kind *most_preferred(int below)
{
    const mx_device_kind *best = NULL;
    for (int i = 0; i < mx_device_kind_count; i++) {
        const mx_device_kind *k = mx_device_kind_table[i];
        if (k->preference < below && (!best || k->preference > best->preference) &&
            (!k->is_likely || k->is_likely()))
            best = k;
    }
    return best;
}

/* Why a device cannot be opened is said only where it was asked for by name. */
static mx_status open_any(mx_device **out)
{
    const mx_device_kind *k = most_preferred(INT32_MAX);
    mx_status st = k->open(out);
    for (; st && (k = most_preferred(k->preference)); st = k->open(out))
        mx_status_free(st);
    return st;
}

static mx_status unknown(const char *name)
{
    mx_str known = {0};
    for (int i = 0; i < mx_device_kind_count; i++)
        mx_str_addf(&known, "%s%s", i + 1 < mx_device_kind_count ? ", " : " or ",
                    mx_device_kind_table[i]->traits->name);
    mx_status st = mx_fail(MX_USAGE, "device=%s is not known; use auto%s", name,
                           mx_str_text(&known));
    mx_str_fini(&known);
    return st;
}

mx_status mx_device_open(mx_device **out, const char *name)
{
    *out = NULL;
#ifdef MX_TEST_BUILD
    if (getenv("MX_TEST_QUEUE"))
        return mx_device_open_queue(out);
#endif
    if (strcmp(name, "auto") == 0)
        return open_any(out);
    const mx_device_kind *k = mx_device_kind_find(name);
    return k ? k->open(out) : unknown(name);
}

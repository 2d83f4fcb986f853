/* cpu.c - the CPU device: memory is memory, a step is a call of the op's own kernel. */
#include "device/device.h"

#include "base/clock.h"
#include "base/crash.h"
#include <string.h>
#include <time.h>

static mx_status cpu_alloc(mx_device *d, void **out, size_t bytes, const char *what)
{
    (void)d;
    return mx_alloc(out, bytes, what);
}

static void cpu_release(mx_device *d, void *p)
{
    (void)d;
    mx_free(p);
}

static mx_status cpu_copy(mx_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    memcpy(dst, src, bytes);
    return MX_OK;
}

static mx_status cpu_prepare(mx_device *d, mx_exec *e, void **state)
{
    (void)d;
    *state = NULL;
    for (int i = 0; i < e->n_steps; i++)
        if (!e->step[i].node->op->cpu)
            return mx_fail(MX_DEVICE, "the op %s has no CPU kernel (elementwise ops run as groups: "
                           "was the fuse pass left out?)", e->step[i].node->op->name);
    return MX_OK;
}

static mx_status cpu_run(mx_device *d, mx_exec *e, void *state)
{
    (void)d, (void)state;
    for (int i = 0; i < e->n_steps; i++) {
        mx_crash_set_node(e->step[i].label);
        if (e->took)
            e->took[2 * i] = mx_clock_now();
        e->step[i].node->op->cpu(&e->step[i].call);
        if (e->failed)
            break;
        if (e->took)
            e->took[2 * i + 1] = mx_clock_now();
    }
    mx_crash_set_node(NULL); /* the label goes with the program */
    mx_status st = e->failed;
    e->failed = MX_OK;
    return st;
}

static void cpu_drop(mx_device *d, void *state)
{
    (void)d, (void)state;
}

static void cpu_close(mx_device *d)
{
    mx_free(d);
}

mx_status mx_device_open_cpu(mx_device **out)
{
    mx_device *d = mx_realloc(NULL, sizeof *d);
    *d = (mx_device){.name = "cpu", .alloc = cpu_alloc, .release = cpu_release, .write = cpu_copy,
                     .read = cpu_copy, .prepare = cpu_prepare, .run = cpu_run, .drop = cpu_drop,
                     .close = cpu_close};
    *out = d;
    return MX_OK;
}

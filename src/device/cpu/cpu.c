/* cpu.c - the CPU device: memory is memory, a step is a call of the op's own kernel. */
#include "device/device.h"

#include "base/clock.h"
#include "base/crash.h"
#include "compile/rules.h"
#include "device/cpu/peak.h"
#include <string.h>
#include <time.h>

static mx_status cpu_alloc(mx_device *d, mx_memory where, size_t bytes, const char *what,
                           mx_device_buffer *out)
{
    (void)d, (void)where;
    *out = (mx_device_buffer){.bytes = bytes};
    return mx_alloc(&out->handle, bytes, what);
}

static void cpu_release(mx_device *d, mx_device_buffer b)
{
    (void)d;
    mx_free(b.handle);
}

static void *cpu_address(mx_device *d, mx_device_buffer b)
{
    (void)d;
    return (char *)b.handle + b.offset;
}

static mx_status cpu_write(mx_device *d, mx_device_buffer dst, const void *src)
{
    memcpy(cpu_address(d, dst), src, dst.bytes);
    return MX_OK;
}

static mx_status cpu_read(mx_device *d, void *dst, mx_device_buffer src)
{
    memcpy(dst, cpu_address(d, src), src.bytes);
    return MX_OK;
}

static mx_status cpu_prepare(mx_device *d, mx_exec *e, void **state)
{
    (void)d;
    *state = NULL;
    for (int i = 0; i < e->n_steps; i++)
        if (!e->step[i].op->cpu)
            return mx_fail(MX_DEVICE, "the op %s has no CPU kernel (elementwise ops run as groups: "
                           "was the fuse pass left out?)", e->step[i].op->name);
    return MX_OK;
}

static mx_status cpu_run(mx_device *d, mx_exec *e, void *state)
{
    (void)d, (void)state;
    for (int i = 0; i < e->n_steps; i++) {
        mx_crash_set_node(e->step[i].label);
        if (e->took)
            e->took[2 * i] = mx_clock_now();
        e->step[i].op->cpu(&e->step[i].call);
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

static double cpu_measure(mx_device *d, mx_dtype dtype, int n_threads)
{
    (void)d;
    return mx_cpu_peak_of(dtype, n_threads);
}

static const mx_rule *const behind_remat[] = {&mx_rule_expert_sums, NULL};
const mx_device_traits mx_cpu_traits = {.name = "cpu", .host_memory = true,
                                        .behind_remat = behind_remat};

mx_status mx_device_open_cpu(mx_device **out)
{
    mx_device *d = mx_realloc(NULL, sizeof *d);
    *d = (mx_device){.traits = &mx_cpu_traits, .alloc = cpu_alloc, .release = cpu_release,
                     .write = cpu_write, .read = cpu_read, .address = cpu_address,
                     .prepare = cpu_prepare, .run = cpu_run, .drop = cpu_drop, .close = cpu_close,
                     .measure_flops = cpu_measure};
    *out = d;
    return MX_OK;
}

const mx_device_kind mx_device_kind_cpu = {
    .traits = &mx_cpu_traits,
    .doc = "the processor",
    .open = mx_device_open_cpu,
};

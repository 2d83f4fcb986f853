/* cpu.c - the CPU device: memory is memory, a step is a call of the op's own kernel. */
#include "device/device.h"

#include "base/clock.h"
#include "base/crash.h"
#include "compile/rules.h"
#include "device/cpu/comm_thread.h"
#include "device/cpu/peak.h"
#include <string.h>
#include <time.h>

typedef struct {
    mx_device base; /* first: what the session sees */
    mx_comm_thread *thread; /* owns; NULL: nothing goes on beside other steps yet */
    bool no_thread;         /* there can be none: collectives are made at once */
    mx_comm_seconds seconds; /* without the thread's */
} cpu_device;

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

/* A collective, or the wait for one: by the thread, once there is one, in the program's order. */
static void communicate(cpu_device *c, mx_exec *e, int i)
{
    mx_exec_step *s = &e->step[i];
    double began = mx_clock_now();
    if (s->beside && !c->thread && !c->no_thread)
        c->no_thread = !mx_comm_thread_open(&c->thread);
    if (!c->thread) {
        if (!s->waits_for)
            s->op->cpu(&s->call);
        c->seconds.all += mx_clock_now() - began;
    } else if (s->waits_for) {
        e->failed = mx_comm_thread_wait(c->thread, e->step[s->waits_for - 1].ticket);
    } else {
        s->ticket = mx_comm_thread_start(c->thread, s, s->beside && e->took ? e->took + 2 * i : 0);
        if (!s->beside)
            e->failed = mx_comm_thread_wait(c->thread, s->ticket);
    }
    c->seconds.waited += mx_clock_now() - began;
}

static mx_status cpu_run(mx_device *d, mx_exec *e, void *state)
{
    (void)state;
    cpu_device *c = (cpu_device *)d;
    for (int i = 0; i < e->n_steps && !e->failed; i++) {
        const mx_exec_step *s = &e->step[i];
        double began = e->took ? mx_clock_now() : 0;
        mx_crash_set_node(s->label);
        if (s->call.group || s->waits_for)
            communicate(c, e, i);
        else
            s->op->cpu(&s->call);
        if (e->took && !(s->beside && c->thread)) {
            e->took[2 * i] = began;
            e->took[2 * i + 1] = mx_clock_now();
        }
    }
    mx_crash_set_node(NULL); /* the label goes with the program */
    if (c->thread)
        mx_comm_thread_drain(c->thread);
    mx_status st = e->failed;
    e->failed = MX_OK;
    return st;
}

static void cpu_drop(mx_device *d, void *state)
{
    (void)d, (void)state;
}

static mx_comm_mark cpu_comm_mark(const mx_device *d)
{
    const cpu_device *c = (const cpu_device *)d;
    mx_comm_mark m = {.seconds = c->seconds};
    m.seconds.all += c->thread ? mx_comm_thread_seconds(c->thread) : 0;
    return m;
}

static mx_comm_seconds cpu_comm_seconds(mx_device *d, mx_comm_mark at)
{
    (void)d;
    return at.seconds;
}

static void cpu_close(mx_device *d)
{
    mx_comm_thread_close(((cpu_device *)d)->thread);
    mx_free(d);
}

static double cpu_measure(mx_device *d, mx_dtype dtype, int n_threads)
{
    (void)d;
    return mx_cpu_peak_of(dtype, n_threads);
}

static const mx_rule *const after_remat[] = {&mx_rule_expert_sums, &mx_rule_expert_bias_sums,
                                             NULL};
const mx_device_traits mx_cpu_traits = {.name = "cpu", .host_memory = true, .overlaps = true,
                                        .after_remat = after_remat};

mx_status mx_device_open_cpu(mx_device **out)
{
    cpu_device *c = mx_realloc(NULL, sizeof *c);
    *c = (cpu_device){0};
    mx_device *d = &c->base;
    *d = (mx_device){.traits = &mx_cpu_traits, .alloc = cpu_alloc, .release = cpu_release,
                     .write = cpu_write, .read = cpu_read, .address = cpu_address,
                     .prepare = cpu_prepare, .run = cpu_run, .drop = cpu_drop, .close = cpu_close,
                     .comm_mark = cpu_comm_mark, .comm_seconds = cpu_comm_seconds,
                     .measure_flops = cpu_measure};
    *out = d;
    return MX_OK;
}

const mx_device_kind mx_device_kind_cpu = {
    .traits = &mx_cpu_traits,
    .doc = "the processor",
    .open = mx_device_open_cpu,
};

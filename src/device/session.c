/* session.c - sessions: a device, its threads, and variables by name. */
#include "device/session_impl.h"

#include "base/memory_available.h"
#include "base/stack.h"
#include "base/threads.h"
#include "ir/placement.h"
#include "ops.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 }; /* of a variable */

mx_status mx_session_open(mx_session **out, const char *device, int n_threads)
{
    mx_device *d = NULL;
    *out = NULL;
    MX_TRY(mx_device_open(&d, device));
    return mx_session_open_on(out, d, n_threads);
}

mx_status mx_session_open_on(mx_session **out, mx_device *d, int n_threads)
{
    mx_session *s = mx_realloc(NULL, sizeof *s);
    *s = (mx_session){.device = d};
    mx_status st = mx_stack_prepare();
    if (!st)
        st = mx_threads_start(n_threads, &s->n_threads);
    if (st)
        mx_session_close(s);
    *out = st ? NULL : s;
    return st;
}

void mx_session_close(mx_session *s)
{
    if (!s)
        return;
    while (s->execs)
        mx_exec_close(s->execs);
    for (int i = 0; i < s->n_blocks; i++)
        s->device->release(s->device, s->block[i]);
    s->device->release(s->device, s->work);
    s->device->release(s->device, s->shared.scratch);
    s->device->release(s->device, s->shared.offloaded);
    mx_free(s->block);
    s->device->close(s->device);
    mx_arena_fini(&s->arena);
    mx_free(s->var);
    mx_name_map_fini(&s->names);
    mx_free(s);
}

void mx_session_allow_any_order(mx_session *s)
{
    s->device->any_order = true;
}

void mx_session_search(mx_session *s)
{
    s->device->search = true;
}

void mx_session_set_groups(mx_session *s, mx_group_finder find, void *ctx)
{
    s->find_group = find;
    s->group_ctx = ctx;
}

void mx_session_set_stage(mx_session *s)
{
    s->stage = true;
}

bool mx_session_is_stage(const mx_session *s)
{
    return s->stage;
}

void mx_session_share_groups(mx_session *s, const mx_session *other)
{
    mx_session_set_groups(s, other->find_group, other->group_ctx);
}

mx_comm_mark mx_session_comm_mark(const mx_session *s)
{
    return s->device->comm_mark ? s->device->comm_mark(s->device) : (mx_comm_mark){0};
}

mx_comm_seconds mx_session_comm_seconds(mx_session *s, mx_comm_mark from, mx_comm_mark to)
{
    mx_device *d = s->device;
    if (!d->comm_seconds)
        return (mx_comm_seconds){0};
    mx_comm_seconds a = d->comm_seconds(d, from), b = d->comm_seconds(d, to);
    return (mx_comm_seconds){b.all - a.all, b.waited - a.waited};
}

int mx_session_threads(const mx_session *s)
{
    return s->n_threads;
}

mx_device *mx_session_device(mx_session *s)
{
    return s->device;
}

const mx_type *mx_var_whole(const mx_var *v)
{
    return v->box ? &v->box->whole : &v->type;
}

const mx_device_traits *mx_session_traits(const mx_session *s)
{
    return s->device->traits;
}

double mx_session_peak_flops(mx_session *s, mx_dtype dtype)
{
    double rate = s->device->traits->chip.flops_per_second[dtype];
    return rate > 0 || !s->device->measure_flops
               ? rate
               : s->device->measure_flops(s->device, dtype, s->n_threads);
}

mx_memory_available mx_session_memory_available(const mx_session *s)
{
    size_t bytes = 0;
    if (!s->device->free_bytes)
        return mx_memory_available_now();
    mx_status st = s->device->free_bytes(s->device, &bytes);
    mx_memory_available left = {st ? INT64_MAX : (int64_t)bytes, "the GPU has free"};
    mx_status_free(st); /* what cannot be asked will be found out */
    return left;
}

/* --- variables --- */

int mx_session_count(const mx_session *s)
{
    return s->n_vars;
}

mx_var *mx_session_var(mx_session *s, int i)
{
    return s->var[i];
}

mx_var *mx_session_find(mx_session *s, const char *name)
{
    return mx_name_map_find(&s->names, name);
}

static mx_status add_variable(mx_session *s, const mx_node *n)
{
    mx_var *v = mx_session_find(s, n->name);
    if (v) {
        if (v->type.dtype != n->type.dtype || !mx_shape_equal(&v->type, &n->type))
            return mx_fail(MX_USAGE,
                           "the variable %s has different types in two programs of one "
                           "session",
                           n->name);
        return MX_OK;
    }
    v = MX_NEW(&s->arena, mx_var);
    v->name = mx_arena_strdup(&s->arena, n->name);
    v->type = n->type;
    v->attr = *(const mx_var_attr *)n->attr;
    if (v->attr.copy_of)
        v->attr.copy_of = mx_arena_strdup(&s->arena, v->attr.copy_of);
    v->axes = n->axes ? mx_arena_strdup(&s->arena, n->axes) : NULL;
    v->box = n->box ? mx_arena_copy(&s->arena, n->box, sizeof *n->box) : NULL;
    MX_GROW(s->var, s->n_vars, s->cap_vars);
    s->var[s->n_vars++] = v;
    mx_name_map_add(&s->names, v->name, v);
    return MX_OK;
}

/* With the rows that the device's kernels may read beyond its end. */
static size_t readable_bytes(const mx_session *s, const mx_var *v)
{
    mx_type t = v->type;
    int rows = s->device->traits->pad_rows;
    if (t.ndim == 2 && rows > 1)
        t.dim[0] = (t.dim[0] + rows - 1) / rows * rows;
    return mx_type_bytes(&t);
}

static size_t place_bytes(const mx_session *s, const mx_var *v)
{
    size_t align = s->device->traits->align > ALIGN ? s->device->traits->align : ALIGN;
    return (readable_bytes(s, v) + align - 1) / align * align;
}

/* Is it kept in host memory, beside the device's own? */
static bool session_keeps_on_host(const mx_session *s, const mx_var *v)
{
    return v->attr.on_host && !s->device->traits->host_memory;
}

/* Memory that is only promised is taken back by the kernel, together with the process. */
static mx_status check_room(const mx_session *s, size_t bytes, bool on_host, const char *what)
{
    mx_memory_available left = mx_memory_available_now();
    char a[32], b[32];
    if (!(on_host || s->device->traits->host_memory) || (double)bytes <= (double)left.bytes)
        return MX_OK;
    return mx_fail(MX_MEMORY,
                   "out of memory: %s needs %s and does not fit in the %s that %s; make the model, "
                   "batch or length smaller",
                   what, mx_format_bytes(a, sizeof a, (double)bytes),
                   mx_format_bytes(b, sizeof b, (double)left.bytes), left.why);
}

/* One block for all of them: huge pages hold weights of any size, and nothing is rounded up. */
static mx_status place_block(mx_session *s, int first, bool on_host)
{
    size_t total = 0, at = 0;
    for (int i = first; i < s->n_vars; i++)
        total +=
            session_keeps_on_host(s, s->var[i]) == on_host ? place_bytes(s, s->var[i]) : 0;
    if (!total)
        return MX_OK;
    const char *what = on_host ? "optimizer state" : "weights and state";
    MX_TRY(check_room(s, total, on_host, what));
    MX_GROW(s->block, s->n_blocks, s->cap_blocks);
    MX_TRY(s->device->alloc(s->device, on_host ? MX_MEMORY_HOST : MX_MEMORY_DEVICE, total, what,
                            &s->block[s->n_blocks]));
    mx_device_buffer block = s->block[s->n_blocks++];
    for (int i = first; i < s->n_vars; i++) {
        mx_var *v = s->var[i];
        if (session_keeps_on_host(s, v) != on_host)
            continue;
        v->buffer = mx_device_range(block, at, mx_type_bytes(&v->type));
        v->readable_bytes = readable_bytes(s, v);
        at += place_bytes(s, v);
    }
    return MX_OK;
}

static mx_status place_variables(mx_session *s, int first)
{
    if (first == s->n_vars)
        return MX_OK;
    mx_status st = place_block(s, first, false);
    if (!st)
        st = place_block(s, first, true);
    if (st) { /* without memory they are not there */
        s->n_vars = first;
        mx_name_map_fini(&s->names);
        for (int i = 0; i < first; i++)
            mx_name_map_add(&s->names, s->var[i]->name, s->var[i]);
    }
    return st;
}

mx_status mx_session_add_variables(mx_session *s, const mx_program *p)
{
    int first = s->n_vars;
    mx_status st = MX_OK;
    for (int i = 0; i < p->n && !st; i++)
        if (p->order[i]->op == &mx_op_variable)
            st = add_variable(s, p->order[i]);
    mx_status placed = place_variables(s, first);
    mx_status_free(st ? placed : NULL);
    return st ? st : placed;
}

mx_device_buffer mx_var_range(const mx_var *v, int64_t at, int64_t n)
{
    size_t item = mx_dtype_bytes(v->type.dtype);
    return mx_device_range(v->buffer, (size_t)at * item, (size_t)n * item);
}

void *mx_var_host(const mx_session *s, const mx_var *v)
{
    return s->device->traits->host_memory ? s->device->address(s->device, v->buffer) : NULL;
}

mx_status mx_var_write_part(mx_session *s, mx_var *v, int64_t at, int64_t n, const void *src)
{
    return s->device->write(s->device, mx_var_range(v, at, n), src);
}

mx_status mx_var_write(mx_session *s, mx_var *v, const void *src)
{
    v->written = true;
    return s->device->write(s->device, v->buffer, src);
}

mx_status mx_var_read_part(mx_session *s, const mx_var *v, size_t at, void *dst, size_t n)
{
    return s->device->read(s->device, dst, mx_device_range(v->buffer, at, n));
}

mx_status mx_var_read(mx_session *s, const mx_var *v, void *dst)
{
    return s->device->read(s->device, dst, v->buffer);
}

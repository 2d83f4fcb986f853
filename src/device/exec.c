/* exec.c - programs bound to memory: every tensor of every node, inputs and results by name. */
#include "device/session_impl.h"

#include "base/threads.h"
#include "ir/placement.h"
#include "ops.h"
#include "ops/collective.h"
#include "ops/load.h"
#include <string.h>

static size_t storage_of(const mx_place *q)
{
    return (size_t)q->root->id * MX_MAX_OUT + (size_t)q->out;
}

/* The whole storage that output k of n lies in. */
static mx_device_buffer storage(const mx_exec *e, const mx_place *q)
{
    if (q->offset < 0)
        return mx_session_find(e->session, q->root->name)->buffer;
    size_t bytes = mx_type_bytes(mx_node_type(q->root, q->out)), at = (size_t)q->offset;
    if (q->kept)
        return mx_device_range(e->slot, at, bytes);
    if (e->own)
        return e->own[storage_of(q)];
    size_t given = e->program->given_bytes;
    if (q->hosted)
        return mx_device_range(e->offloaded, at, bytes);
    return at < given ? mx_device_range(e->given, at, bytes)
                      : mx_device_range(e->scratch, at - given, bytes);
}

/* From the first element of output k of n on. */
static mx_device_buffer buffer_of(const mx_exec *e, const mx_node *n, int k)
{
    const mx_place *q = mx_program_place(e->program, n, k);
    const mx_type *t = mx_node_type(n, k);
    mx_device_buffer whole = storage(e, q);
    size_t at = (size_t)q->at * mx_dtype_bytes(t->dtype);
    return mx_device_range(whole, at, q->pitch ? whole.bytes - at : mx_type_bytes(t));
}

static mx_tensor bind(mx_exec *e, const mx_node *n, int k)
{
    mx_device *d = e->session->device;
    const mx_place *q = mx_program_place(e->program, n, k);
    mx_tensor t = {d->address(d, buffer_of(e, n, k)), *mx_node_type(n, k), q->run, q->pitch};
    t.fixed = (q->root->op == &mx_op_variable || q->root->op == &mx_op_constant) &&
              !e->program->updates[q->root->id];
    if (q->offset < 0 && !q->pitch)
        t.readable_bytes = mx_session_find(e->session, q->root->name)->readable_bytes;
    return t;
}

static mx_status fill_constant(mx_exec *e, const mx_node *n)
{
    const mx_const_attr *a = n->attr;
    mx_device *d = e->session->device;
    int64_t count = mx_type_count(&n->type);
    void *host = NULL;
    MX_TRY(mx_alloc(&host, mx_type_bytes(&n->type), "a constant"));
    mx_tensor t = {.data = host, .type = n->type};
    for (int64_t i = 0; i < count; i++)
        mx_store_f64(&t, i, a->table ? a->table[i] : a->value);
    mx_status st = d->write(d, buffer_of(e, n, 0), host);
    mx_free(host);
    return st;
}

static void *work_of(const mx_exec *e, const mx_exec_step *st)
{
    const mx_session *s = e->session;
    char *work = s->work.handle ? s->device->address(s->device, s->work) : NULL;
    return work && st->beside ? work + e->program->beside_at : work;
}

static void bind_step(mx_exec *e, const mx_node *n)
{
    mx_exec_step *st = &e->step[e->n_steps++];
    mx_tensor *in = MX_NEW_N(&e->arena, mx_tensor, n->n_in);
    mx_tensor *out = MX_NEW_N(&e->arena, mx_tensor, n->n_out);
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i])
            in[i] = bind(e, n->in[i], 0);
    for (int k = 0; k < n->n_out; k++)
        out[k] = bind(e, n, k);
    st->op = n->op;
    st->cost = mx_node_cost(n);
    st->scope = n->scope;
    const char *own = n->name ? n->name : n->op->name;
    bool whole = !*n->scope || strchr(own, '.'); /* a variable's name has the scope in it */
    st->label = whole ? own : mx_arena_printf(&e->arena, "%s %s", n->scope, own);
    st->beside = mx_collective_is_beside(n);
    st->call = (mx_call){.n_in = n->n_in, .n_out = n->n_out, .in = in, .out = out,
                         .attr = n->attr, .work = work_of(e, st)};
    const mx_collective_attr *c = n->op->collective ? n->attr : NULL;
    if (c && e->session->find_group) {
        st->call.group = e->session->find_group(e->session->group_ctx, (mx_axis_set)c->axes);
        st->call.status = &e->failed;
    }
}

/* Calls `each` for every storage of the program that is not a variable's. */
static mx_status for_each_storage(mx_exec *e,
                                  mx_status (*each)(mx_exec *e, const mx_place *own))
{
    const mx_program *p = e->program;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->order[i]->n_out; k++) {
            const mx_place *q = mx_program_place(p, p->order[i], k);
            if (q->offset >= 0)
                MX_TRY(each(e, q));
        }
    return MX_OK;
}

static mx_status allocate_one(mx_exec *e, const mx_place *q)
{
    mx_device_buffer *own = &e->own[storage_of(q)];
    size_t bytes = mx_type_bytes(mx_node_type(q->root, q->out));
    mx_device *d = e->session->device;
    return own->handle ? MX_OK
                       : d->alloc(d, q->hosted ? MX_MEMORY_HOST : MX_MEMORY_DEVICE,
                                  bytes ? bytes : 1, "a value", own);
}

static mx_status release_one(mx_exec *e, const mx_place *q)
{
    mx_device_buffer *own = &e->own[storage_of(q)];
    if (own->handle)
        e->session->device->release(e->session->device, *own);
    *own = (mx_device_buffer){0};
    return MX_OK;
}

void mx_exec_close(mx_exec *e)
{
    if (!e)
        return;
    mx_device *d = e->session->device;
    mx_exec **link = &e->session->execs;
    while (*link != e)
        link = &(*link)->next;
    *link = e->next;
    d->drop(d, e->state);
    if (e->own)
        mx_status_free(for_each_storage(e, release_one));
    d->release(d, e->given);
    if (!e->shares) {
        d->release(d, e->scratch);
        d->release(d, e->offloaded);
    }
    mx_arena_fini(&e->arena);
    mx_free(e->part);
    mx_free(e);
}

/* Programs that are there already go on in the new workspace. */
static void move_work(mx_session *s)
{
    for (mx_exec *e = s->execs; e; e = e->next) {
        for (int i = 0; i < e->n_steps; i++)
            e->step[i].call.work = work_of(e, &e->step[i]);
        if (s->device->forget && e->state)
            s->device->forget(s->device, e->state);
    }
}

static mx_status take_work(mx_session *s, size_t bytes)
{
    mx_status st =
        s->device->alloc(s->device, MX_MEMORY_DEVICE, bytes, "workspace", &s->work);
    if (st)
        s->work = (mx_device_buffer){0};
    return st;
}

/* The one there is goes first, so that no more is used than the larger. */
static mx_status grow_work(mx_session *s, size_t bytes)
{
    size_t had = s->work.bytes;
    if (bytes <= had)
        return MX_OK;
    s->device->release(s->device, s->work);
    mx_status st = take_work(s, bytes);
    if (st && had) /* what was there is there again */
        mx_status_free(take_work(s, had));
    move_work(s);
    return st;
}

size_t mx_program_shared_bytes(const mx_program *p)
{
    return p->value_bytes - p->given_bytes;
}

static mx_status take_room(mx_device *d, size_t bytes, size_t host_bytes, mx_device_buffer *scratch,
                           mx_device_buffer *offloaded)
{
    MX_TRY(d->alloc(d, MX_MEMORY_DEVICE, bytes, "activations", scratch));
    return host_bytes ? d->alloc(d, MX_MEMORY_HOST, host_bytes, "activations in host memory",
                                 offloaded)
                      : MX_OK;
}

mx_status mx_session_share(mx_session *s, size_t scratch_bytes, size_t host_bytes)
{
    MX_ASSERT(!s->shared.scratch.handle, "shared memory is taken once");
    if (s->device->traits->plans_memory)
        return MX_OK;
    return take_room(s->device, scratch_bytes, host_bytes, &s->shared.scratch,
                     &s->shared.offloaded);
}

/* Memory for a program's values. */
static mx_status alloc_values(mx_exec *e)
{
    const mx_program *p = e->program;
    mx_session *s = e->session;
    mx_device *d = s->device;
    if (d->traits->plans_memory) { /* each value separately */
        e->own = MX_NEW_N(&e->arena, mx_device_buffer, (size_t)p->graph->n_nodes * MX_MAX_OUT);
        return for_each_storage(e, allocate_one);
    }
    size_t bytes = mx_program_shared_bytes(p);
    MX_TRY(d->alloc(d, MX_MEMORY_DEVICE, p->given_bytes, "inputs", &e->given));
    e->shares = s->shared.scratch.handle && s->shared.scratch.bytes >= bytes &&
                s->shared.offloaded.bytes >= p->host_bytes;
    if (!e->shares)
        return take_room(d, bytes, p->host_bytes, &e->scratch, &e->offloaded);
    e->scratch = s->shared.scratch;
    e->offloaded = s->shared.offloaded;
    return MX_OK;
}

static mx_status bind_steps(mx_exec *e)
{
    const mx_program *p = e->program;
    mx_arena scratch = {0};
    mx_status st = MX_OK;
    int *step_of = MX_NEW_N(&scratch, int, p->graph->n_nodes); /* 1 + the step of a node */
    e->step = MX_NEW_N(&e->arena, mx_exec_step, p->n);
    for (int i = 0; i < p->n && !st; i++) {
        const mx_node *n = p->order[i];
        if (n->op == &mx_op_constant)
            st = fill_constant(e, n);
        if (n->op == &mx_op_constant || !mx_program_runs(p, n))
            continue;
        bind_step(e, n);
        step_of[n->id] = e->n_steps;
        if (n->op == &mx_op_wait && mx_collective_is_beside(n->in[0]))
            e->step[e->n_steps - 1].waits_for = step_of[n->in[0]->id];
    }
    mx_arena_fini(&scratch);
    return st;
}

mx_status mx_session_add(mx_session *s, const mx_program *p, mx_exec **out)
{
    return mx_session_add_slot(s, p, (mx_device_buffer){0}, out);
}

mx_status mx_session_add_slot(mx_session *s, const mx_program *p, mx_device_buffer slot,
                              mx_exec **out)
{
    mx_device *d = s->device;
    *out = NULL;
    MX_TRY(mx_session_add_variables(s, p));
    mx_exec *e = mx_realloc(NULL, sizeof *e);
    *e = (mx_exec){.session = s, .program = p, .slot = slot, .next = s->execs};
    s->execs = e;
    e->work_bytes = d->traits->work_bytes ? p->work_bytes : p->host_work_bytes;
    MX_TRY(grow_work(s, e->work_bytes));
    MX_TRY(alloc_values(e));
    MX_TRY(bind_steps(e));
    MX_TRY(d->prepare(d, e, &e->state));
    *out = e;
    return MX_OK;
}

/* --- by name --- */

/* A name that the program does not use has no place. */
static const mx_node *find_used(const mx_exec *e, const char *name)
{
    const mx_node *n = mx_program_find(e->program, name);
    return n && mx_program_place(e->program, n, 0)->root ? n : NULL;
}

mx_device_buffer mx_exec_buffer(mx_exec *e, const char *name)
{
    const mx_node *n = find_used(e, name);
    return n ? buffer_of(e, n, 0) : (mx_device_buffer){0};
}

const mx_type *mx_exec_type(const mx_exec *e, const char *name)
{
    const mx_node *n = find_used(e, name);
    return n ? &n->type : NULL;
}

mx_status mx_exec_write(mx_exec *e, const char *name, const void *src)
{
    mx_device *d = e->session->device;
    mx_device_buffer b = mx_exec_buffer(e, name);
    return b.handle ? d->write(d, b, src) : MX_OK; /* an input that this program has no use for */
}

/* What the box says of src. The memory for it stays: later steps allocate nothing. */
static mx_status write_part(mx_exec *e, const mx_node *n, const mx_box *box, const void *src)
{
    size_t item = mx_dtype_bytes(n->type.dtype), bytes = mx_type_bytes(&n->type);
    mx_box_span p;
    if (bytes > e->part_bytes) {
        mx_free(e->part);
        e->part = NULL;
        e->part_bytes = 0;
        MX_TRY(mx_alloc((void **)&e->part, bytes, n->name));
        e->part_bytes = bytes;
    }
    for (mx_box_walk w = mx_box_begin(box, &n->type); mx_box_next(&w, &p);)
        memcpy(e->part + (size_t)p.local * item, (const char *)src + (size_t)p.whole * item,
               (size_t)p.n * item);
    return mx_exec_write(e, n->name, e->part);
}

mx_status mx_exec_write_whole(mx_exec *e, const char *name, const void *src)
{
    const mx_node *n = mx_program_find(e->program, name);
    return n && n->box ? write_part(e, n, n->box, src) : mx_exec_write(e, name, src);
}

mx_status mx_exec_write_rows_at(mx_exec *e, const char *name, int dim, const void *rows)
{
    const mx_node *n = mx_program_find(e->program, name);
    bool cut = false;
    for (int d = 0; n && n->box && d < n->type.ndim; d++)
        cut |= d != dim && n->box->at.dim[d].n > 0;
    if (!cut)
        return mx_exec_write(e, name, rows);
    mx_box own = *n->box;
    int64_t count = own.whole.dim[dim] = n->type.dim[dim];
    own.at.dim[dim] = (mx_cut){0};
    own.n_runs[dim] = 1;
    own.run[dim][0] = (mx_cut_run){0, count};
    return write_part(e, n, &own, rows);
}

mx_status mx_exec_write_rows(mx_exec *e, const char *name, const void *rows)
{
    return mx_exec_write_rows_at(e, name, 0, rows);
}

mx_status mx_exec_read(mx_exec *e, const char *name, void *dst)
{
    mx_device *d = e->session->device;
    mx_device_buffer b = mx_exec_buffer(e, name);
    MX_ASSERT(b.handle, "the program has no result called %s", name);
    return d->read(d, dst, b);
}

mx_status mx_exec_run(mx_exec *e)
{
    MX_ASSERT(e->work_bytes <= e->session->work.bytes, "%zu bytes of workspace, %zu planned",
              e->session->work.bytes, e->work_bytes);
    mx_threads_use(e->session->n_threads);
    return e->session->device->run(e->session->device, e, e->state);
}

/* session.c - variables by name, programs bound to memory, inputs and results by name. */
#include "device/device.h"

#include "base/rng.h"
#include "base/stack.h"
#include "base/threads.h"
#include "device/cpu/queue.h"
#include "ir/placement.h"
#include "ops.h"
#include "ops/load.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct mx_session {
    mx_device *device; /* owns */
    int n_threads;
    mx_arena arena;
    mx_var **var;
    int n_vars, cap_vars;
    int *slot, n_slots; /* name -> 1 + index, open addressing */
    mx_exec *execs;     /* owns, a list */
    void **block;       /* owns; the variables a program brought lie in one */
    int n_blocks, cap_blocks;
    mx_group_finder find_group; /* NULL: this rank is alone */
    void *group_ctx;
    struct { /* owns; what programs work in, one at a time */
        char *scratch, *stowed;
        size_t scratch_bytes, stowed_bytes;
    } shared;
    void *work;         /* owns; the workspace of all programs */
    size_t work_bytes;
};

enum { ALIGN = 256, RUN = 1 << 20 }; /* of a variable; elements staged at once */

mx_status mx_session_open(mx_session **out, const char *device, int n_threads)
{
    *out = NULL;
    mx_device *d = NULL;
    static const struct {
        const char *name;
        mx_status (*open)(mx_device **out);
    } known[] = {{"cpu", mx_device_open_cpu}, {"cuda", mx_device_open_cuda_plugin}};
#ifdef MX_TEST_BUILD
    if (getenv("MX_TEST_QUEUE"))
        MX_TRY(mx_device_open_queue(&d));
#endif
    if (strcmp(device, "auto") == 0 && !d) {
        mx_status_free(mx_device_has_driver() ? mx_device_open_cuda_plugin(&d) : NULL);
        device = "cpu"; /* where d is not there; device=cuda says what is wrong with a GPU */
    }
    for (size_t i = 0; i < sizeof known / sizeof *known && !d; i++)
        if (strcmp(device, known[i].name) == 0)
            MX_TRY(known[i].open(&d));
    if (!d)
        return mx_fail(MX_USAGE, "device=%s is not known; use auto, cpu or cuda", device);
    mx_session *s = mx_realloc(NULL, sizeof *s);
    *s = (mx_session){.device = d};
    mx_status st = mx_stack_prepare();
    if (!st)
        st = mx_threads_start(n_threads, &s->n_threads);
    if (st)
        mx_session_close(s);
    else
        *out = s;
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
    if (s->work)
        s->device->release(s->device, s->work);
    mx_free(s->block);
    s->device->release(s->device, s->shared.scratch);
    s->device->release(s->device, s->shared.stowed);
    s->device->close(s->device);
    mx_arena_fini(&s->arena);
    mx_free(s->var);
    mx_free(s->slot);
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

int mx_session_count(const mx_session *s)
{
    return s->n_vars;
}

mx_var *mx_session_var(mx_session *s, int i)
{
    return s->var[i];
}

static int *find_slot(mx_session *s, const char *name)
{
    for (uint64_t h = mx_stream_of(name);; h++) {
        int *q = &s->slot[h & (uint64_t)(s->n_slots - 1)];
        if (!*q || strcmp(s->var[*q - 1]->name, name) == 0)
            return q;
    }
}

mx_var *mx_session_find(mx_session *s, const char *name)
{
    int *q = s->n_slots ? find_slot(s, name) : NULL;
    return q && *q ? s->var[*q - 1] : NULL;
}

static void index_vars(mx_session *s)
{
    s->n_slots = s->n_slots ? 2 * s->n_slots : 256;
    s->slot = mx_realloc(s->slot, sizeof *s->slot * (size_t)s->n_slots);
    memset(s->slot, 0, sizeof *s->slot * (size_t)s->n_slots);
    for (int i = 0; i < s->n_vars; i++)
        *find_slot(s, s->var[i]->name) = i + 1;
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
    if (2 * s->n_vars > s->n_slots)
        index_vars(s);
    else
        *find_slot(s, v->name) = s->n_vars;
    return MX_OK;
}

static mx_tensor bind(mx_exec *e, const mx_node *n, int k)
{
    const mx_place *q = mx_program_place(e->program, n, k);
    int64_t given = (int64_t)e->program->given_bytes;
    void *data = q->offset < 0       ? mx_session_find(e->session, q->root->name)->data
                 : q->kept           ? e->slot + q->offset
                 : q->hosted         ? e->stowed + q->offset
                 : q->offset < given ? e->given + q->offset
                                     : e->scratch + (q->offset - given);
    mx_tensor t = {data, *mx_node_type(n, k), q->run, q->pitch};
    t.data = (char *)data + (size_t)q->at * mx_dtype_bytes(t.type.dtype);
    return t;
}

static mx_status fill_constant(mx_exec *e, const mx_node *n)
{
    const mx_const_attr *a = n->attr;
    int64_t count = mx_type_count(&n->type);
    void *host = NULL;
    MX_TRY(mx_alloc(&host, mx_type_bytes(&n->type), "a constant"));
    mx_tensor t = {.data = host, .type = n->type};
    for (int64_t i = 0; i < count; i++)
        mx_store_f64(&t, i, a->table ? a->table[i] : a->value);
    mx_status st = e->session->device->write(e->session->device, bind(e, n, 0).data, host,
                                             mx_type_bytes(&n->type));
    mx_free(host);
    return st;
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
    st->node = n;
    const char *own = n->name ? n->name : n->op->name;
    bool whole = !*n->scope || strchr(own, '.'); /* a variable's name has the scope in it */
    st->label = whole ? own : mx_arena_printf(&e->arena, "%s %s", n->scope, own);
    st->call = (mx_call){n->n_in, n->n_out, in, out, n->attr, e->session->work};
    const mx_collective_attr *c = n->op->collective ? n->attr : NULL;
    if (c && c->size > 1 && e->session->find_group) {
        st->call.group = e->session->find_group(e->session->group_ctx, (mx_axis_set)c->axes);
        st->call.status = &e->failed;
    }
}

/* With room for rows up to the next multiple of 8, which nobody writes: a product may read them as
 * zeros (op_xent.c of the CUDA device), where a neighbour's bits could be NaN. */
static size_t place_bytes(const mx_var *v)
{
    mx_type t = v->type;
    if (t.ndim == 2)
        t.dim[0] = (t.dim[0] + 7) / 8 * 8;
    return (mx_type_bytes(&t) + ALIGN - 1) / ALIGN * ALIGN;
}

typedef mx_status (*allocator)(mx_device *d, void **out, size_t bytes, const char *what);

static bool lies_on_host(const mx_session *s, const mx_var *v)
{
    return v->attr.on_host && s->device->alloc_host;
}

/* One block for all of them: huge pages hold weights of any size, and nothing is rounded up. */
static mx_status place_block(mx_session *s, int first, bool on_host)
{
    size_t total = 0;
    for (int i = first; i < s->n_vars; i++)
        total += lies_on_host(s, s->var[i]) == on_host ? place_bytes(s->var[i]) : 0;
    if (!total)
        return MX_OK;
    MX_GROW(s->block, s->n_blocks, s->cap_blocks);
    allocator take = on_host ? s->device->alloc_host : s->device->alloc;
    MX_TRY(take(s->device, &s->block[s->n_blocks], total,
                on_host ? "optimizer state" : "weights and state"));
    char *at = s->block[s->n_blocks++];
    for (int i = first; i < s->n_vars; i++)
        if (lies_on_host(s, s->var[i]) == on_host) {
            s->var[i]->data = at;
            at += place_bytes(s->var[i]);
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
        s->n_slots /= 2;
        index_vars(s);
    }
    return st;
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
    d->release(d, e->given);
    if (!e->shares) {
        d->release(d, e->scratch);
        d->release(d, e->stowed);
    }
    mx_arena_fini(&e->arena);
    mx_free(e);
}

size_t mx_program_shared_bytes(const mx_program *p)
{
    return p->value_bytes - p->given_bytes;
}

static mx_status take_room(mx_device *d, size_t bytes, size_t host_bytes, char **scratch,
                           char **stowed)
{
    allocator take = d->alloc_host ? d->alloc_host : d->alloc;
    MX_TRY(d->alloc(d, (void **)scratch, bytes, "activations"));
    return host_bytes ? take(d, (void **)stowed, host_bytes, "activations in host memory") : MX_OK;
}

mx_status mx_session_share(mx_session *s, size_t scratch_bytes, size_t host_bytes)
{
    MX_ASSERT(!s->shared.scratch, "shared memory is taken once");
    MX_TRY(take_room(s->device, scratch_bytes, host_bytes, &s->shared.scratch, &s->shared.stowed));
    s->shared.scratch_bytes = scratch_bytes;
    s->shared.stowed_bytes = host_bytes;
    return MX_OK;
}

/* Programs that are there already go on in the new workspace. */
static void move_work(mx_session *s)
{
    for (mx_exec *e = s->execs; e; e = e->next) {
        for (int i = 0; i < e->n_steps; i++)
            e->step[i].call.work = s->work;
        if (s->device->forget && e->state)
            s->device->forget(s->device, e->state);
    }
}

static mx_status take_work(mx_session *s, size_t bytes)
{
    mx_status st = s->device->alloc(s->device, &s->work, bytes, "workspace");
    s->work_bytes = st ? 0 : bytes;
    if (st)
        s->work = NULL;
    return st;
}

/* The one there is goes first, so that no more is used than the larger. */
static mx_status grow_work(mx_session *s, size_t bytes)
{
    size_t had = s->work_bytes;
    if (bytes <= had)
        return MX_OK;
    if (s->work)
        s->device->release(s->device, s->work);
    mx_status st = take_work(s, bytes);
    if (st && had) /* what was there is there again */
        mx_status_free(take_work(s, had));
    move_work(s);
    return st;
}

/* Memory for a program's values. */
static mx_status find_room(mx_exec *e)
{
    const mx_program *p = e->program;
    mx_session *s = e->session;
    MX_TRY(s->device->alloc(s->device, (void **)&e->given, p->given_bytes, "inputs"));
    e->shares = s->shared.scratch && s->shared.scratch_bytes >= mx_program_shared_bytes(p) &&
                s->shared.stowed_bytes >= p->host_bytes;
    if (!e->shares)
        return take_room(s->device, mx_program_shared_bytes(p), p->host_bytes, &e->scratch,
                         &e->stowed);
    e->scratch = s->shared.scratch;
    e->stowed = s->shared.stowed;
    return MX_OK;
}

mx_status mx_session_add(mx_session *s, const mx_program *p, mx_exec **out)
{
    return mx_session_add_slot(s, p, NULL, out);
}

mx_status mx_session_add_slot(mx_session *s, const mx_program *p, void *slot, mx_exec **out)
{
    *out = NULL;
    int first = s->n_vars;
    mx_status st = MX_OK;
    for (int i = 0; i < p->n && !st; i++)
        if (p->order[i]->op == &mx_op_variable)
            st = add_variable(s, p->order[i]);
    mx_status placed = place_variables(s, first);
    mx_status_free(st ? placed : NULL);
    MX_TRY(st ? st : placed);
    mx_exec *e = mx_realloc(NULL, sizeof *e);
    *e = (mx_exec){.session = s, .program = p, .slot = slot, .next = s->execs};
    s->execs = e;
    e->work_bytes = s->device->gpu_work ? p->gpu_work_bytes : p->work_bytes;
    MX_TRY(grow_work(s, e->work_bytes));
    MX_TRY(find_room(e));
    e->step = MX_NEW_N(&e->arena, mx_exec_step, p->n);
    for (int i = 0; i < p->n; i++) {
        const mx_node *n = p->order[i];
        if (n->op == &mx_op_constant)
            MX_TRY(fill_constant(e, n));
        else if (mx_program_runs(p, n))
            bind_step(e, n);
    }
    MX_TRY(s->device->prepare(s->device, e, &e->state));
    *out = e;
    return MX_OK;
}

static double normal(uint64_t seed, uint64_t stream, int64_t i)
{
    mx_random4 r = mx_philox(seed, stream, (uint64_t)i);
    double u = 1.0 - mx_uniform_f64(r.v[0], r.v[1]), w = mx_uniform_f64(r.v[2], r.v[3]);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * w);
}

/* The i-th number of rows of different numbers below init.scale: of a row's draws, those that
 * repeat an earlier one do not count. */
static double chosen(mx_init init, uint64_t seed, uint64_t stream, int64_t i)
{
    int64_t row = i / init.cols, n = i % init.cols + 1;
    double have[64];
    for (int64_t k = 0, draw = 0; k < n; draw++) {
        mx_random4 r = mx_philox(seed, stream + (uint64_t)draw, (uint64_t)row);
        bool again = false;
        have[k] = floor(init.scale * mx_uniform_f64(r.v[0], r.v[1]));
        for (int64_t j = 0; j < k; j++)
            again |= have[j] == have[k];
        k += !again;
    }
    return have[n - 1];
}

static double initial(mx_init init, uint64_t seed, uint64_t stream, int64_t i)
{
    if (init.kind == MX_INIT_CHOICE)
        return chosen(init, seed, stream, i);
    if (init.kind == MX_INIT_NORMAL)
        return init.scale * normal(seed, stream, i);
    if (init.kind == MX_INIT_LOG_UNIFORM) {
        mx_random4 r = mx_philox(seed, stream, (uint64_t)i);
        return log(0.01 + (init.scale - 0.01) * mx_uniform_f64(r.v[0], r.v[1]));
    }
    return init.kind == MX_INIT_ONES ? 1.0 : init.scale;
}

/* Of element i of what a rank has: by its place in the whole tensor, so values do not depend on how
 * that is cut. Padding is 0. */
static double initial_at(const mx_var *v, uint64_t seed, uint64_t stream, int64_t i)
{
    int64_t at = v->box ? mx_box_element(v->box, &v->type, i) : i;
    return at < 0 ? 0 : initial(v->attr.init, seed, stream, at);
}

/* Runs of elements through one buffer: a model that just fits has no room for a second embedding
 * table. */
static mx_status init_variable(mx_session *s, mx_var *v, uint64_t seed, void *buffer)
{
    int64_t n = mx_type_count(&v->type);
    uint64_t stream = mx_stream_of(v->name);
    mx_init init = v->attr.init;
    v->written = true;
    if (init.kind == MX_INIT_ZEROS && lies_on_host(s, v))
        return MX_OK; /* as it was given; a large state takes seconds to write */
    if (s->device->fill && !v->box) {
        mx_fill f = {init, v->type.dtype, n, seed, stream};
        mx_status st = s->device->fill(s->device, v->data, &f);
        if (!st)
            return MX_OK;
        mx_status_free(st); /* not there: by the host, like everything else */
    }
    if (init.kind == MX_INIT_ZEROS)
        memset(buffer, 0, RUN * mx_dtype_bytes(v->type.dtype));
    mx_tensor t = {buffer, v->type};
    for (int64_t from = 0; from < n; from += RUN) {
        int64_t m = n - from < RUN ? n - from : RUN;
        if (init.kind != MX_INIT_ZEROS) {
#pragma omp parallel for schedule(static)
            for (int64_t i = 0; i < m; i++)
                mx_store_f64(&t, i, initial_at(v, seed, stream, from + i));
        }
        MX_TRY(mx_var_write_part(s, v, from, m, buffer));
    }
    return MX_OK;
}

mx_status mx_session_init(mx_session *s, uint64_t seed)
{
    void *buffer = NULL;
    mx_status st = MX_OK;
    MX_TRY(mx_alloc(&buffer, RUN * sizeof(double), "the first weights"));
    for (int i = 0; i < s->n_vars && !st; i++)
        if (!s->var[i]->written && s->var[i]->attr.kind != MX_VAR_COPY)
            st = init_variable(s, s->var[i], seed, buffer);
    mx_free(buffer);
    return st ? st : mx_session_refresh_copies(s);
}

static mx_status refresh_copy(mx_session *s, mx_var *v, const mx_var *from, void *a, void *b)
{
    int64_t n = mx_type_count(&v->type);
    mx_tensor src = {a, from->type}, dst = {b, v->type};
    size_t item = mx_dtype_bytes(from->type.dtype);
    for (int64_t at = 0; at < n; at += RUN) {
        int64_t m = n - at < RUN ? n - at : RUN;
        MX_TRY(mx_var_read_part(s, from, (size_t)at * item, a, (size_t)m * item));
        for (int64_t k = 0; k < m; k += 4096) {
            float tile[4096];
            int64_t w = m - k < 4096 ? m - k : 4096;
            mx_load_run_f32(&src, k, w, tile);
            mx_store_run_f32(&dst, k, w, tile);
        }
        MX_TRY(mx_var_write_part(s, v, at, m, b));
    }
    return MX_OK;
}

mx_status mx_session_refresh_copies(mx_session *s)
{
    void *buffer = NULL;
    mx_status st = MX_OK;
    for (int i = 0; i < s->n_vars && !st; i++) {
        mx_var *v = s->var[i];
        mx_var *from = v->attr.kind == MX_VAR_COPY ? mx_session_find(s, v->attr.copy_of) : NULL;
        bool there = from && s->device->convert;
        if (there)
            st = s->device->convert(s->device, v->data, v->type.dtype, from->data,
                                    from->type.dtype, mx_type_count(&v->type));
        if (from && !there && !buffer)
            st = mx_alloc(&buffer, 2 * RUN * sizeof(double), "copies of weights");
        if (from && !there && !st)
            st = refresh_copy(s, v, from, buffer, (double *)buffer + RUN);
        v->written |= from != NULL;
    }
    mx_free(buffer);
    return st;
}

mx_status mx_var_write_part(mx_session *s, mx_var *v, int64_t at, int64_t n, const void *src)
{
    size_t item = mx_dtype_bytes(v->type.dtype);
    return s->device->write(s->device, (char *)v->data + (size_t)at * item, src, (size_t)n * item);
}

mx_status mx_var_write(mx_session *s, mx_var *v, const void *src)
{
    v->written = true;
    return s->device->write(s->device, v->data, src, mx_type_bytes(&v->type));
}

bool mx_session_on_host(const mx_session *s)
{
    return strcmp(s->device->name, "cpu") == 0;
}

mx_memory_room mx_session_room(const mx_session *s)
{
    size_t bytes = 0;
    if (!s->device->free_bytes)
        return mx_memory_room_now();
    mx_status st = s->device->free_bytes(s->device, &bytes);
    mx_memory_room room = {st ? INT64_MAX : (int64_t)bytes, "the GPU has free"};
    mx_status_free(st); /* what cannot be asked will be found out */
    return room;
}

mx_status mx_var_read_part(mx_session *s, const mx_var *v, size_t at, void *dst, size_t n)
{
    return s->device->read(s->device, dst, (const char *)v->data + at, n);
}

mx_status mx_var_read(mx_session *s, const mx_var *v, void *dst)
{
    return s->device->read(s->device, dst, v->data, mx_type_bytes(&v->type));
}

mx_tensor mx_exec_tensor(mx_exec *e, const char *name)
{
    mx_node *n = mx_program_find(e->program, name);
    /* A name that the program does not use has no place. */
    if (!n || !mx_program_place(e->program, n, 0)->root)
        return (mx_tensor){0};
    return bind(e, n, 0);
}

mx_status mx_exec_write(mx_exec *e, const char *name, const void *src)
{
    mx_tensor t = mx_exec_tensor(e, name);
    if (!t.data)
        return MX_OK; /* an input that this program has no use for */
    return e->session->device->write(e->session->device, t.data, src, mx_type_bytes(&t.type));
}

mx_status mx_exec_write_whole(mx_exec *e, const char *name, const void *src)
{
    const mx_node *n = mx_program_find(e->program, name);
    if (!n || !n->box)
        return mx_exec_write(e, name, src);
    char *part = NULL;
    mx_box_span p;
    size_t item = mx_dtype_bytes(n->type.dtype);
    MX_TRY(mx_alloc((void **)&part, mx_type_bytes(&n->type), name));
    for (mx_box_walk w = mx_box_begin(n->box, &n->type); mx_box_next(&w, &p);)
        memcpy(part + (size_t)p.local * item, (const char *)src + (size_t)p.whole * item,
               (size_t)p.n * item);
    mx_status st = mx_exec_write(e, name, part);
    mx_free(part);
    return st;
}

mx_status mx_exec_read(mx_exec *e, const char *name, void *dst)
{
    mx_tensor t = mx_exec_tensor(e, name);
    MX_ASSERT(t.data, "the program has no result called %s", name);
    return e->session->device->read(e->session->device, dst, t.data, mx_type_bytes(&t.type));
}

mx_status mx_exec_run(mx_exec *e)
{
    MX_ASSERT(e->work_bytes <= e->session->work_bytes, "%zu bytes of workspace, %zu planned",
              e->session->work_bytes, e->work_bytes);
    return e->session->device->run(e->session->device, e, e->state);
}

mx_status mx_late_open(mx_late *t, mx_session *s, int n)
{
    mx_device *d = s->device;
    void *host = NULL;
    size_t bytes = sizeof(double) * ((size_t)n / 2 + 1);
    *t = (mx_late){.session = s, .n = n};
    MX_TRY(d->late_open ? d->late_open(d, bytes + sizeof(double), &host, &t->late)
                        : mx_alloc(&host, bytes + sizeof(double), "the numbers of a step"));
    t->value = host;
    t->clock = (double *)((char *)host + bytes);
    return MX_OK;
}

mx_status mx_exec_take(mx_exec *e, const char *name, mx_late *t, int i)
{
    mx_tensor from = mx_exec_tensor(e, name);
    mx_device *d = t->session->device;
    MX_ASSERT(from.data && from.type.dtype == MX_F32 && i + mx_type_count(&from.type) <= t->n,
              "the program has no %s of at most %d floats", name, t->n - i);
    return (t->late ? d->late_take : d->read)(d, &t->value[i], from.data,
                                              mx_type_bytes(&from.type));
}

mx_status mx_late_clock(mx_late *t)
{
    return t->late ? t->session->device->late_clock(t->session->device, t->clock) : MX_OK;
}

mx_status mx_late_mark(mx_late *t)
{
    return t->late ? t->session->device->late_mark(t->session->device, t->late) : MX_OK;
}

mx_status mx_late_wait(mx_late *t)
{
    return t->late ? t->session->device->late_wait(t->session->device, t->late) : MX_OK;
}

void mx_late_close(mx_late *t)
{
    if (t->late)
        t->session->device->late_close(t->session->device, t->value, t->late);
    else
        mx_free(t->value);
    *t = (mx_late){0};
}

/* pipeline.c - one stage of a pipeline: compiled, bound to slots, and run; see pipeline.h.
 *
 * A program is bound once for each slot, so that nothing is copied between F and B, messages arrive
 * where they are read, and running is a loop over a list.
 */
#include "exec/pipeline.h"

#include "base/clock.h"
#include "base/rng.h"
#include "ops.h"
#include <string.h>

static int chunk_number(const mx_pipeline *p, int i)
{
    return i * p->how.stages + p->how.stage;
}

static mx_exec **execs_of(const mx_pipeline *p, int i, int part)
{
    return p->exec[i * MX_STAGE_PARTS + part];
}

mx_stages mx_pipeline_stages(const mx_pipeline_options *o)
{
    return (mx_stages){.chunks = o->stages * o->repeats, .stages = o->stages, .stage = o->stage,
                       .layers_each = o->layers_each, .as = o->as,
                       .split = o->kind == MX_PIPELINE_ZB_H1};
}

/* In any order: equal sums for equal sets of nodes. */
static void sum_up_work(mx_pipeline *p)
{
    p->work = MX_NEW_N(&p->arena, uint64_t, p->schedule.chunks);
    for (int i = 0; i < p->joint.n_nodes; i++) {
        const mx_node *n = p->joint.node[i];
        uint64_t op = (uint64_t)(uintptr_t)n->op + n->recomputed;
        if (n->op->kind != MX_SOURCE || n->op == &mx_op_variable)
            p->work[n->stage] += mx_hash64(op, mx_type_bytes(&n->type));
    }
}

bool mx_pipeline_is_like(const mx_pipeline *p, int stage, int other)
{
    for (int i = 0; i < p->how.repeats; i++) {
        int a = i * p->how.stages + stage, b = i * p->how.stages + other;
        if (p->work[a] != p->work[b] || p->schedule.n_slots[a] > p->schedule.n_slots[b])
            return false;
    }
    return true;
}

void mx_count_parameters(const mx_graph *g, double *all, double *trained)
{
    *all = *trained = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        const mx_node *n = g->node[i];
        const mx_var_attr *v = n->attr;
        if (n->op != &mx_op_variable || v->kind != MX_VAR_WEIGHT ||
            mx_graph_find(g, n->name) != n) /* several stages may have it */
            continue;
        const mx_type *whole = n->box ? &n->box->whole : &n->type;
        double size = (double)mx_type_bytes(whole) / (double)mx_dtype_bytes(whole->dtype);
        if (v->quantized && n->type.dtype == MX_U8)
            size *= 2; /* two lie in a byte */
        *all += size;
        *trained += v->frozen ? 0 : size;
    }
}

/* The programs of its stage. */
static mx_status compile_chunks(mx_pipeline *p)
{
    mx_compile_options c = p->how.compile;
    c.stages = &p->stages;
    for (int i = 0; i < p->how.repeats; i++)
        MX_TRY(mx_compile_chunk(&p->joint, chunk_number(p, i), &c, &p->chunk[i]));
    return mx_pipeline_share_plan(p);
}

mx_status mx_pipeline_begin(mx_pipeline *p, const mx_pipeline_options *o)
{
    *p = (mx_pipeline){.how = *o, .joint = p->joint};
    MX_TRY(mx_pipeline_schedule_init(&p->schedule, o->kind, o->stages, o->repeats,
                                     o->microbatches));
    p->stages = mx_pipeline_stages(o);
    p->chunk = MX_NEW_N(&p->arena, mx_stage_chunk, o->repeats);
    p->slots = MX_NEW_N(&p->arena, mx_device_buffer, o->repeats);
    p->mirror = MX_NEW_N(&p->arena, char *, o->repeats);
    p->exec = MX_NEW_N(&p->arena, mx_exec **, o->repeats * MX_STAGE_PARTS);
    p->stages.cut = &p->cut;
    return MX_OK;
}

mx_status mx_pipeline_plan(mx_pipeline *p, mx_node *loss, const mx_pipeline_options *o)
{
    mx_compile_options c = o->compile;
    c.stages = &p->stages;
    MX_TRY(mx_pipeline_begin(p, o));
    if (o->kind == MX_PIPELINE_FORWARD)
        MX_TRY(mx_compile_joint_forward(&p->joint, &c));
    else
        MX_TRY(mx_compile_joint(&p->joint, loss, MX_GRADS_ACCUMULATE, &c));
    sum_up_work(p);
    mx_count_parameters(&p->joint, &p->parameters, &p->trainable);
    return compile_chunks(p);
}

static void close_shared(mx_pipeline *p)
{
    for (int i = 0; i < p->n_shared; i++) {
        mx_exec_close(p->shared[i].exec);
        mx_program_fini(&p->shared[i].program);
        mx_graph_fini(&p->shared[i].graph);
    }
    p->n_shared = 0;
    p->others_bytes = 0;
}

mx_status mx_pipeline_replan(mx_pipeline *p, int stage)
{
    MX_ASSERT(!p->session, "it is bound");
    close_shared(p);
    for (int i = 0; i < p->how.repeats; i++)
        mx_stage_chunk_fini(&p->chunk[i]);
    memset(p->chunk, 0, sizeof *p->chunk * (size_t)p->how.repeats);
    p->how.stage = p->stages.stage = stage;
    return compile_chunks(p);
}

static mx_device_buffer slot_of(const mx_pipeline *p, int i, int slot)
{
    size_t bytes = p->chunk[i].slot_bytes;
    return mx_device_range(p->slots[i], bytes * (size_t)slot, bytes);
}

static mx_status bind_chunk(mx_pipeline *p, int i)
{
    const mx_stage_chunk *c = &p->chunk[i];
    mx_device *d = mx_session_device(p->session);
    int n = p->schedule.n_slots[chunk_number(p, i)];
    MX_TRY(d->alloc(d, MX_MEMORY_DEVICE, c->slot_bytes * (size_t)n + 1, "microbatches in flight",
                    &p->slots[i]));
    if (!mx_session_traits(p->session)->host_memory)
        MX_TRY(mx_alloc((void **)&p->mirror[i], c->slot_bytes * (size_t)n + 1,
                        "messages between stages"));
    for (int part = 0; part < MX_STAGE_PARTS; part++) {
        mx_exec **e = MX_NEW_N(&p->arena, mx_exec *, n);
        p->exec[i * MX_STAGE_PARTS + part] = e;
        for (int k = 0; k < n && c->has[part]; k++)
            MX_TRY(mx_session_add_slot(p->session, &c->program[part], slot_of(p, i, k), &e[k]));
    }
    return MX_OK;
}

mx_status mx_pipeline_bind(mx_pipeline *p, mx_session *s, mx_process_group *group)
{
    p->session = s;
    p->group = group;
    if (!group->kind->send)
        return mx_fail(MX_USAGE, "the ranks are joined by %s, which carries no messages between "
                       "stages",
                       group->kind->name);
    for (int i = 0; i < p->how.repeats; i++)
        MX_TRY(bind_chunk(p, i));
    return mx_pipeline_share_bind(p);
}

static void close_execs(mx_pipeline *p, int i)
{
    int n = p->schedule.n_slots[chunk_number(p, i)];
    for (int part = 0; part < MX_STAGE_PARTS; part++)
        for (int k = 0; k < n && execs_of(p, i, part); k++)
            mx_exec_close(execs_of(p, i, part)[k]);
}

void mx_pipeline_close(mx_pipeline *p)
{
    mx_device *d = p->session ? mx_session_device(p->session) : NULL;
    if (p->group && p->group->kind->leave)
        p->group->kind->leave(p->group);
    close_shared(p);
    for (int i = 0; p->chunk && i < p->how.repeats; i++) {
        close_execs(p, i);
        mx_stage_chunk_fini(&p->chunk[i]);
        if (d)
            d->release(d, p->slots[i]);
        mx_free(p->mirror[i]);
    }
    if (d)
        d->release(d, p->others);
    mx_free(p->others_mirror);
    mx_graph_fini(&p->joint);
    mx_pipeline_schedule_fini(&p->schedule);
    mx_arena_fini(&p->arena);
    *p = (mx_pipeline){0};
}

size_t mx_pipeline_slot_bytes(const mx_pipeline *p)
{
    size_t bytes = 0;
    for (int i = 0; i < p->how.repeats; i++)
        bytes += p->chunk[i].slot_bytes * (size_t)p->schedule.n_slots[chunk_number(p, i)];
    return bytes;
}

size_t mx_pipeline_shared_bytes(const mx_pipeline *p)
{
    size_t most = 0;
    for (int i = 0; i < p->how.repeats * MX_STAGE_PARTS; i++) {
        size_t bytes = mx_program_shared_bytes(
            &p->chunk[i / MX_STAGE_PARTS].program[i % MX_STAGE_PARTS]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

double mx_pipeline_flops(const mx_pipeline *p)
{
    double flops = 0;
    for (int i = 0; i < p->how.repeats * MX_STAGE_PARTS; i++)
        flops += p->chunk[i / MX_STAGE_PARTS].program[i % MX_STAGE_PARTS].bytes.flops;
    return flops;
}

/* --- running --- */

static mx_status compute(mx_pipeline *p, const mx_action *a, int part, const mx_pipeline_feed *feed)
{
    mx_exec *e = execs_of(p, a->chunk / p->how.stages, part)[a->slot];
    float first = a->microbatch == 0;
    if (!e)
        return MX_OK;
    MX_TRY(feed->write(feed->ctx, a->microbatch, e));
    MX_TRY(mx_exec_write(e, "first", &first));
    MX_TRY(mx_exec_run(e));
    bool last = part == MX_STAGE_F && a->chunk == p->schedule.chunks - 1;
    return last ? feed->read(feed->ctx, a->microbatch, e) : MX_OK;
}

/* What is sent or received. On a device with memory of its own it is staged in the mirror, host
 * memory as large as the slots, at the same offset. */
typedef struct {
    mx_message m;
    mx_device_buffer there; /* on that device; no handle: nothing is staged */
} staged_message;

/* A message between chunks `upper` - 1 and `upper`. */
static staged_message message(const mx_pipeline *p, const mx_action *a, int upper, bool grad)
{
    int i = a->chunk / p->how.stages, other = a->chunk == upper ? upper - 1 : upper;
    const mx_stage_chunk *c = &p->chunk[i];
    mx_device *d = mx_session_device(p->session);
    const mx_stage_message *m = a->chunk == upper ? (grad ? &c->grad_out : &c->in)
                                                  : (grad ? &c->grad_in : &c->out);
    mx_device_buffer b = mx_device_range(slot_of(p, i, a->slot), (size_t)m->at, (size_t)m->bytes);
    char *mirror = p->mirror[i];
    staged_message it = {
        .m = {.peer = other % p->how.stages,
              .tag = ((int64_t)upper * 2 + grad) * p->how.microbatches + a->microbatch,
              .data = mirror ? mirror + b.offset - p->slots[i].offset : d->address(d, b),
              .bytes = (size_t)m->bytes}};
    if (mirror)
        it.there = b;
    return it;
}

typedef mx_status (*messenger)(mx_process_group *g, const mx_message *m);

static mx_status pass(mx_pipeline *p, messenger how, staged_message it)
{
    mx_device *d = mx_session_device(p->session);
    if (!it.m.bytes)
        return MX_OK;
    if (it.there.handle && how == p->group->kind->send)
        MX_TRY(d->read(d, it.m.data, it.there));
    MX_TRY(how(p->group, &it.m));
    return it.there.handle && how == p->group->kind->receive ? d->write(d, it.there, it.m.data)
                                                             : MX_OK;
}

static mx_status run_action(mx_pipeline *p, const mx_action *a, const mx_pipeline_feed *feed)
{
    const mx_process_group_kind *g = p->group->kind;
    int k = a->chunk;
    switch (a->kind) {
    case MX_DO_F:
        return compute(p, a, MX_STAGE_F, feed);
    case MX_DO_B:
        return compute(p, a, MX_STAGE_B, feed);
    case MX_DO_W:
        return compute(p, a, MX_STAGE_W, feed);
    case MX_DO_RECEIVE:
        return pass(p, g->receive, message(p, a, k, false));
    case MX_DO_SEND:
        return pass(p, g->send, message(p, a, k + 1, false));
    case MX_DO_POST_GRAD:
        return pass(p, g->post, message(p, a, k + 1, true));
    case MX_DO_RECEIVE_GRAD:
        return pass(p, g->receive, message(p, a, k + 1, true));
    case MX_DO_SEND_GRAD:
        return pass(p, g->send, message(p, a, k, true));
    default:
        if (k < p->schedule.chunks - 1)
            MX_TRY(pass(p, g->sent, message(p, a, k + 1, false)));
        return k ? pass(p, g->sent, message(p, a, k, true)) : MX_OK;
    }
}

/* A read comes after everything that was launched before it. */
static mx_status wait_for_device(mx_pipeline *p)
{
    mx_device *d = mx_session_device(p->session);
    char last;
    return d->read(d, &last, mx_device_range(p->slots[0], 0, 1));
}

static mx_status measure_action(mx_pipeline *p, int i, const mx_pipeline_feed *feed)
{
    const mx_action *a = &p->schedule.list[p->how.stage].action[i];
    p->took[2 * i] = mx_clock_now();
    MX_TRY(run_action(p, a, feed));
    if (a->kind <= MX_DO_W)
        MX_TRY(wait_for_device(p));
    p->took[2 * i + 1] = mx_clock_now();
    return MX_OK;
}

mx_status mx_pipeline_run(mx_pipeline *p, const mx_pipeline_feed *feed)
{
    const mx_action_list *l = &p->schedule.list[p->how.stage];
    for (int i = 0; i < l->n; i++)
        MX_TRY(p->took ? measure_action(p, i, feed) : run_action(p, &l->action[i], feed));
    return mx_pipeline_sum_shared(p);
}

/* pipeline_shared.c - weights that several stages have (tied embeddings): each of them has its own
 * copy and its own gradient; after the last microbatch every holder adds up the gradients of all,
 * in the order of stages, so that the copies stay the same to the bit. */
#include "exec/pipeline.h"

#include "ops.h"
#include <stdio.h>
#include <string.h>

enum { ALIGN = 64 };

/* The sum of variable `v` over n chunks; -1 marks its own place among the others. */
static mx_status build_sum(mx_pipeline *p, mx_shared_weight *w, const mx_node *v)
{
    mx_graph *g = &w->graph;
    mx_kept *kept = MX_NEW_N(&p->arena, mx_kept, w->n);
    int64_t bytes = ((int64_t)mx_type_bytes(&v->type) + ALIGN - 1) / ALIGN * ALIGN;
    int n = 0;
    mx_graph_init(g);
    mx_node *own = mx_variable(g, w->name, v->type, *(const mx_var_attr *)v->attr), *sum = NULL;
    own->box = v->box;
    for (int i = 0; i < w->n; i++) {
        mx_node *x = own;
        if (w->holder[i] != p->how.stage) {
            char name[32];
            snprintf(name, sizeof name, "stage:%d", w->holder[i]);
            x = mx_input(g, name, mx_shape_of(&v->type), v->type.dtype);
            kept[n] = (mx_kept){.input = x, .at = n * bytes};
            n++;
        }
        sum = sum ? mx_add(g, sum, x) : x;
    }
    mx_node *all = mx_constant(g, MX_SCALAR, MX_F32, 1);
    mx_graph_root(g, NULL, mx_accumulate(g, own, sum, all));
    mx_pass_fuse(g, true);
    const mx_device_traits *d = p->how.compile.device;
    return mx_program_init_kept(&w->program, g, p->how.compile.n_threads,
                                d ? d : &mx_plain_traits, (mx_kept_list){kept, n});
}

/* The stages whose chunks have a sum of gradients of this name; -1: one has it in two chunks. */
static int find_holders(const mx_pipeline *p, const char *name, int *holder)
{
    int n = 0;
    bool twice = false;
    for (int s = 0; s < p->how.stages; s++) {
        int before = n;
        for (int i = 0; i < p->joint.n_nodes; i++) {
            const mx_node *v = p->joint.node[i];
            if (v->op != &mx_op_accumulate || v->in[0]->op != &mx_op_variable ||
                v->stage % p->how.stages != s || strcmp(v->in[0]->name, name) != 0)
                continue;
            twice |= n > before;
            n = before + 1;
            holder[before] = s;
        }
    }
    return twice ? -1 : n;
}

static bool is_mine(const mx_pipeline *p, const mx_shared_weight *w)
{
    for (int i = 0; i < w->n; i++)
        if (w->holder[i] == p->how.stage)
            return true;
    return false;
}

static mx_status enter(mx_pipeline *p, const mx_node *v, int tag)
{
    mx_shared_weight w = {.name = v->name, .tag = tag};
    w.holder = MX_NEW_N(&p->arena, int, p->how.stages);
    w.n = find_holders(p, v->name, w.holder);
    if (w.n < 0)
        return mx_fail(MX_USAGE,
                       "two chunks of one stage have the weight of %s; use num_pipeline_repeats=1",
                       v->name);
    if (w.n < 2 || !is_mine(p, &w))
        return MX_OK;
    size_t bytes = (mx_type_bytes(&v->type) + ALIGN) * (size_t)(w.n - 1); /* its own is there */
    p->others_bytes = bytes > p->others_bytes ? bytes : p->others_bytes;
    p->shared[p->n_shared++] = w;
    return build_sum(p, &p->shared[p->n_shared - 1], v);
}

/* Is it the first sum of gradients of its name, of which there are several? */
static bool is_doubled(const mx_pipeline *p, const mx_node *v)
{
    bool found = false;
    if (v->op != &mx_op_variable || ((const mx_var_attr *)v->attr)->kind != MX_VAR_GRADIENT ||
        mx_graph_find(&p->joint, v->name) != v)
        return false;
    for (int i = v->id + 1; i < p->joint.n_nodes && !found; i++) {
        const mx_node *u = p->joint.node[i];
        found = u->op == &mx_op_variable && u->name == v->name;
    }
    return found;
}

mx_status mx_pipeline_share_plan(mx_pipeline *p)
{
    int n = 0, tag = 0;
    for (int i = 0; i < p->joint.n_nodes; i++)
        n += is_doubled(p, p->joint.node[i]);
    p->shared = MX_NEW_N(&p->arena, mx_shared_weight, n);
    for (int i = 0; i < p->joint.n_nodes; i++)
        if (is_doubled(p, p->joint.node[i]))
            MX_TRY(enter(p, p->joint.node[i], --tag));
    return MX_OK;
}

mx_status mx_pipeline_share_bind(mx_pipeline *p)
{
    mx_device *d = mx_session_device(p->session);
    if (p->n_shared)
        MX_TRY(d->alloc(d, MX_MEMORY_DEVICE, p->others_bytes, "gradients of shared weights",
                        &p->others));
    if (p->n_shared && !mx_session_traits(p->session)->host_memory)
        MX_TRY(mx_alloc((void **)&p->others_mirror, 2 * p->others_bytes,
                        "gradients of shared weights"));
    for (int i = 0; i < p->n_shared; i++)
        MX_TRY(mx_session_add_slot(p->session, &p->shared[i].program, p->others,
                                   &p->shared[i].exec));
    return MX_OK;
}

typedef mx_status (*messenger)(mx_process_group *g, const mx_message *m);

/* To, or from, every other holder; what arrives lies one after the other. */
static mx_status exchange(mx_pipeline *p, int which, messenger how, bool arrives)
{
    const mx_shared_weight *w = &p->shared[which];
    const mx_var *v = mx_session_find(p->session, w->name);
    mx_device *d = mx_session_device(p->session);
    size_t bytes = mx_type_bytes(&v->type), at = 0;
    for (int i = 0; i < w->n; i++) {
        if (w->holder[i] == p->how.stage)
            continue;
        mx_device_buffer b = arrives ? mx_device_range(p->others, at, bytes) : v->buffer;
        char *mirror = p->others_mirror;
        if (mirror)
            mirror += arrives ? at : p->others_bytes;
        mx_message m = {.peer = w->holder[i], .tag = w->tag, .bytes = bytes,
                        .data = mirror ? mirror : d->address(d, b)};
        at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
        if (mirror && how == p->group->kind->send)
            MX_TRY(d->read(d, mirror, b));
        MX_TRY(how(p->group, &m));
        if (mirror && arrives)
            MX_TRY(d->write(d, b, mirror));
    }
    return MX_OK;
}

mx_status mx_pipeline_sum_shared(mx_pipeline *p)
{
    const mx_process_group_kind *g = p->group->kind;
    for (int i = 0; i < p->n_shared; i++) {
        MX_TRY(exchange(p, i, g->send, false));
        MX_TRY(exchange(p, i, g->receive, true));
        MX_TRY(exchange(p, i, g->sent, false));
        MX_TRY(mx_exec_run(p->shared[i].exec));
    }
    return MX_OK;
}

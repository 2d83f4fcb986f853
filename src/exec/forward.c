/* forward.c - see forward.h. */
#include "exec/forward.h"

/* No message of a pipeline has it: those between chunks are from 2 on (pipeline.c), those of shared
 * weights below 0. MPI's tags end early. */
enum { RESULTS = 0 };

mx_forward_stages mx_forward_other(const mx_forward_stages *on)
{
    mx_forward_stages its = *on;
    its.how.as = NULL;
    its.how.repeats = 1;
    its.how.layers_each = 0;
    return its;
}

mx_status mx_forward_plan(mx_forward *f, const mx_model_spec *m, const mx_step_options *o,
                          const mx_forward_stages *on)
{
    *f = (mx_forward){.piped = on != NULL};
    if (!on)
        return mx_step_plan(&f->step, m, o);
    mx_pipeline_options how = on->how;
    how.kind = MX_PIPELINE_FORWARD;
    how.microbatches = 1;
    how.compile = o->compile;
    mx_graph_init(&f->pipeline.joint);
    if (o->compile.compute == MX_F64)
        f->pipeline.joint.param_dtype = MX_F64;
    return mx_pipeline_plan(&f->pipeline, mx_step_graph(&f->pipeline.joint, m, o), &how);
}

mx_status mx_forward_open(mx_forward *f, mx_session *s, const mx_model_spec *m,
                          const mx_step_options *o, const mx_forward_stages *on)
{
    mx_step_options here = mx_step_options_for(s, o);
    MX_TRY(mx_forward_plan(f, m, &here, on));
    return on ? mx_pipeline_bind(&f->pipeline, s, on->group)
              : mx_session_add(s, &f->step.program, &f->step.exec);
}

void mx_forward_close(mx_forward *f)
{
    if (!f->failed) /* the run's own pipeline goes on */
        f->pipeline.group = NULL;
    mx_pipeline_close(&f->pipeline);
    mx_step_close(&f->step);
    *f = (mx_forward){0};
}

const mx_graph *mx_forward_graph(const mx_forward *f)
{
    return f->piped ? &f->pipeline.joint : &f->step.graph;
}

static void add_program(const mx_program *p, double *added, double *by_itself)
{
    const mx_plan_bytes *b = &p->bytes;
    *added += b->inputs + b->variables[MX_VAR_CACHE];
    *by_itself += b->inputs + b->activations + b->workspace;
    for (int k = 0; k < MX_VAR_KIND_COUNT; k++)
        *by_itself += b->variables[k];
}

void mx_forward_bytes(const mx_forward *f, double *added, double *by_itself)
{
    const mx_pipeline *p = &f->pipeline;
    *added = *by_itself = 0;
    if (!f->piped)
        add_program(&f->step.program, added, by_itself);
    for (int i = 0; f->piped && i < p->how.repeats; i++)
        add_program(&p->chunk[i].program[MX_STAGE_F], added, by_itself);
    double slots = f->piped ? (double)mx_pipeline_slot_bytes(p) : 0;
    *added += slots;
    *by_itself += slots;
}

double mx_forward_caches(const mx_forward *f)
{
    const mx_pipeline *p = &f->pipeline;
    double bytes = f->step.program.bytes.variables[MX_VAR_CACHE];
    for (int i = 0; f->piped && i < p->how.repeats; i++)
        bytes += p->chunk[i].program[MX_STAGE_F].bytes.variables[MX_VAR_CACHE];
    return bytes;
}

mx_status mx_forward_run(mx_forward *f, const mx_pipeline_feed *feed)
{
    if (f->piped) {
        mx_status st = mx_pipeline_run(&f->pipeline, feed);
        f->failed |= st != MX_OK;
        return st;
    }
    MX_TRY(feed->write(feed->ctx, 0, f->step.exec));
    MX_TRY(mx_exec_run(f->step.exec));
    return feed->read(feed->ctx, 0, f->step.exec);
}

mx_status mx_forward_share(const mx_forward *f, void *data, size_t bytes)
{
    const mx_pipeline *p = &f->pipeline;
    mx_message m = {.tag = RESULTS, .data = data, .bytes = bytes};
    if (!f->piped || !bytes)
        return MX_OK;
    m.peer = p->how.stages - 1;
    if (p->how.stage < m.peer)
        return p->group->kind->receive(p->group, &m);
    for (m.peer = 0; m.peer < p->how.stage; m.peer++)
        MX_TRY(p->group->kind->send(p->group, &m));
    for (m.peer = 0; m.peer < p->how.stage; m.peer++)
        MX_TRY(p->group->kind->sent(p->group, &m));
    return MX_OK;
}

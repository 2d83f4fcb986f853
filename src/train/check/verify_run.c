/* verify_run.c - see verify_run.h. */
#include "train/check/verify_run.h"

#include "ir/placement.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A pipeline of what trains; without an update gradients are whole at once. */
static mx_status open_pipeline(mx_verify_run *r, const mx_model_spec *m, const mx_step_options *o,
                               const mx_verify_place *on, const mx_forward_stages *stages)
{
    mx_programs_request q = {.options = mx_step_options_for(r->session, o),
                             .gradients_only = r->kind != MX_STEP_TRAIN,
                             .batch = {.data_ranks = 1}};
    int64_t parts = 1;
    mx_pipeline_configure(&q.pipeline, on->keys, m, &on->mesh_rank->how);
    if (!on->whole)
        MX_TRY(mx_pipeline_parts(on->keys, q.pipeline.stages, o->shape.batch, &parts));
    r->rows = q.batch.microbatch = o->shape.batch / parts;
    q.batch.accumulation = parts;
    q.pipeline.microbatches = (int)parts;
    MX_TRY(mx_programs_plan(&r->programs, m, &q));
    r->programs.stages = stages->group;
    return mx_programs_open(&r->programs, r->session);
}

mx_status mx_verify_run_open(mx_verify_run *r, const mx_model_spec *m, const mx_step_options *o,
                             const mx_verify_place *on)
{
    mx_forward_stages its;
    const mx_forward_stages *stages = mx_mesh_rank_stages(on->mesh_rank, &its);
    mx_step_options here = *o;
    *r = (mx_verify_run){.kind = o->kind, .piped = stages != NULL, .rows = o->shape.batch};
    r->speaks = !stages || its.how.stage == its.how.stages - 1;
    MX_TRY(mx_mesh_rank_session(&r->session, on->mesh_rank, on->device, on->n_threads));
    here.compile.partition = on->mesh_rank ? &on->mesh_rank->how : NULL;
    here.compile.n_threads = mx_session_threads(r->session);
    if (stages)
        mx_session_set_stage(r->session);
    if (o->kind == MX_STEP_LOGITS)
        return mx_forward_open(&r->forward, r->session, m, &here, stages);
    return stages ? open_pipeline(r, m, &here, on, stages)
                  : mx_step_open(&r->step, r->session, m, &here);
}

void mx_verify_run_close(mx_verify_run *r)
{
    if (r->piped)
        mx_forward_close(&r->forward);
    mx_programs_close_pipelines(&r->programs);
    mx_session_close(r->session);
    mx_forward_close(&r->forward);
    mx_programs_close(&r->programs);
    mx_step_close(&r->step);
    *r = (mx_verify_run){0};
}

mx_status mx_verify_run_forward(mx_verify_run *r, const mx_pipeline_feed *feed)
{
    if (r->kind == MX_STEP_LOGITS)
        return mx_forward_run(&r->forward, feed);
    if (r->piped)
        return mx_pipeline_run(&r->programs.pipeline, feed);
    MX_TRY(feed->write(feed->ctx, 0, r->step.exec));
    MX_TRY(mx_exec_run(r->step.exec));
    return feed->read(feed->ctx, 0, r->step.exec);
}

mx_exec *mx_verify_run_last(const mx_verify_run *r)
{
    return r->piped ? r->programs.apply.exec : r->step.exec;
}

mx_status mx_verify_run_update(mx_verify_run *r)
{
    return r->piped ? mx_exec_run(r->programs.apply.exec) : MX_OK;
}

/* --- gradients: results of a step, variables of a pipeline --- */

static const mx_var *sum_of(const mx_verify_run *r, const char *weight)
{
    char name[512];
    snprintf(name, sizeof name, "%s.grad", weight);
    return mx_session_find(r->session, name);
}

/* false: there is no such weight here. */
static bool look_up(const mx_verify_run *r, const char *weight, mx_verify_gradient *g)
{
    char name[512];
    const mx_var *sum = r->piped ? sum_of(r, weight) : NULL;
    snprintf(name, sizeof name, "grad:%s", weight);
    g->weight = mx_session_find(r->session, weight);
    if (g->weight && r->piped)
        g->type = sum ? &sum->type : NULL;
    else if (g->weight)
        g->type = mx_exec_type(r->step.exec, name);
    return g->weight != NULL;
}

mx_verify_gradient mx_verify_gradient_find(const mx_verify_run *r, const char *tensor)
{
    mx_verify_gradient g = {0};
    bool found = look_up(r, tensor, &g);
    for (const char *p = tensor; !found && *p; p++) {
        char name[512], *end = NULL;
        long long i = p > tensor && p[-1] == '.' ? strtoll(p, &end, 10) : 0;
        if (!end || end == p || *end != '.')
            continue;
        snprintf(name, sizeof name, "%.*s*%s", (int)(p - tensor), tensor, end);
        found = look_up(r, name, &g);
        const mx_type *whole = found ? mx_var_whole(g.weight) : NULL;
        if (whole && i < whole->dim[0])
            g.first = i * (mx_type_count(whole) / whole->dim[0]);
    }
    g.elsewhere = r->piped && !found;
    return g;
}

static void narrow(const void *from, mx_dtype dtype, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = dtype == MX_F64 ? (float)((const double *)from)[i] : ((const float *)from)[i];
}

mx_status mx_verify_result(mx_exec *e, const char *name, float *out)
{
    const mx_type *t = mx_exec_type(e, name);
    if (!t || t->dtype != MX_F64)
        return mx_exec_read(e, name, out);
    mx_arena scratch = {0};
    double *wide = MX_NEW_N(&scratch, double, mx_type_count(t));
    mx_status st = mx_exec_read(e, name, wide);
    if (!st)
        narrow(wide, MX_F64, mx_type_count(t), out);
    mx_arena_fini(&scratch);
    return st;
}

static mx_status read_local(const mx_verify_run *r, const mx_verify_gradient *g, mx_arena *scratch,
                            float *out)
{
    char name[512];
    snprintf(name, sizeof name, "grad:%s", g->weight->name);
    if (!r->piped)
        return mx_verify_result(r->step.exec, name, out);
    void *raw = mx_arena_alloc(scratch, mx_type_bytes(g->type));
    MX_TRY(mx_var_read(r->session, sum_of(r, g->weight->name), raw));
    narrow(raw, g->type->dtype, mx_type_count(g->type), out);
    return MX_OK;
}

mx_status mx_verify_gradient_read(const mx_verify_run *r, const mx_verify_gradient *g, int64_t n,
                                  float *out)
{
    const mx_var *w = g->weight;
    int64_t local = mx_type_count(g->type);
    mx_arena scratch = {0};
    float *have = MX_NEW_N(&scratch, float, local);
    mx_status st = read_local(r, g, &scratch, have);
    mx_box_span p = {0, 0, local};
    mx_box_walk walk = {0};
    bool more = !st;
    if (w->box) {
        walk = mx_box_begin(w->box, &w->type);
        more = more && mx_box_next(&walk, &p);
    }
    while (more) {
        int64_t a = p.whole > g->first ? p.whole : g->first;
        int64_t b = p.whole + p.n < g->first + n ? p.whole + p.n : g->first + n;
        if (a < b)
            memcpy(out + (a - g->first), have + p.local + (a - p.whole),
                   sizeof *out * (size_t)(b - a));
        more = w->box && mx_box_next(&walk, &p);
    }
    mx_arena_fini(&scratch);
    return st;
}

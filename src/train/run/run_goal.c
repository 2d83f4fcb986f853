/* run_goal.c - a run that trains for an objective: where the two meet. */
#include "train/run/run_state.h"

#include <string.h>

/* What an objective does not do on a mesh. */
static mx_status check_mesh(mx_run *r, const mx_objective *o)
{
    const mx_mesh *mesh = &r->mesh_rank->mesh->mesh;
    if (!o->meshes)
        return mx_fail(MX_USAGE, "maxc %s%s%s does not run on a mesh yet; leave mesh= and the keys "
                       "of parallelism out", o->verb,
                       strcmp(o->name, o->verb) ? " with loss_type=" : "",
                       strcmp(o->name, o->verb) ? o->name : "");
    MX_TRY(mx_mesh_without_stages(r->mesh_rank->mesh, mx_arena_printf(&r->arena, "maxc %s",
                                                                      o->verb)));
    if (o->feed && mx_mesh_degree(mesh, MX_AXIS_CONTEXT) > 1)
        return mx_fail(MX_USAGE, "the mesh has context=%d, and maxc %s does not cut sequences yet; "
                       "use another axis, for example fsdp=%d",
                       mx_mesh_degree(mesh, MX_AXIS_CONTEXT), o->verb,
                       mx_mesh_degree(mesh, MX_AXIS_CONTEXT));
    if (mx_config_bool(r->c, "precompute_ref_log_probs"))
        return mx_fail(MX_USAGE, "%s: precompute_ref_log_probs on a mesh is not done yet; without "
                       "it the reference runs beside the model, cut as the model is",
                       mx_config_where(r->c, "precompute_ref_log_probs"));
    return MX_OK;
}

mx_status mx_run_goal_read(mx_run *r)
{
    const mx_objective *o = r->goal.objective;
    mx_step_options *s = &r->request.options;
    if (!o)
        return MX_OK;
    if (r->mesh_rank)
        MX_TRY(check_mesh(r, o));
    if (strcmp(mx_config_text(r->c, "semantics"), "verl") == 0 && strcmp(o->verb, "grpo") != 0)
        return mx_fail(MX_USAGE, "%s: verl is about rewards; maxc %s has the semantics of trl and "
                       "maxtext", mx_config_where(r->c, "semantics"), o->verb);
    if (o->adapt)
        MX_TRY(o->adapt(&r->model));
    if (o->read)
        MX_TRY(o->read(r->c, &r->arena, &r->goal.settings));
    if (s->shape.images_per_row && o->rows != MX_ROWS_DOCUMENTS)
        return mx_fail(MX_USAGE, "%s: maxc %s does not take images yet; set use_multimodal=false",
                       mx_config_where(r->c, "use_multimodal"), o->verb);
    mx_objective_apply(o, r->goal.settings, &r->request);
    return MX_OK;
}

/* What it may know of the run, as far as that is there. */
static void tell(mx_run *r)
{
    mx_objective_run *o = &r->goal;
    o->model = &r->model;
    o->options = &r->request.options;
    o->model_dir = r->weights_dir;
    o->session = r->session;
    o->data = &r->data;
    o->microbatch = r->request.batch.microbatch;
    o->accumulation = r->request.batch.accumulation;
    o->folder = r->folder;
    o->rank = r->ranks.data_rank;
    o->n_ranks = r->ranks.data_ranks;
    o->position = r->at.loader;
    o->n_position = r->at.loader_bytes;
}

mx_status mx_run_goal_beside(mx_run *r, mx_beside *out)
{
    const mx_objective *o = r->goal.objective;
    tell(r);
    return o && o->beside ? o->beside(&r->goal, out) : MX_OK;
}

mx_status mx_run_goal_open(mx_run *r)
{
    mx_objective_run *o = &r->goal;
    if (o->objective && o->objective->measure && *mx_config_text(r->c, "task_path"))
        r->rules.task_interval = mx_config_int(r->c, "task_interval");
    if (r->rules.task_interval && r->mesh_rank)
        return mx_fail(MX_USAGE, "%s: tasks are not asked on a mesh yet; leave mesh= or task_path "
                       "out", mx_config_where(r->c, "task_path"));
    tell(r);
    return o->objective && o->objective->open ? o->objective->open(o) : MX_OK;
}

int64_t mx_run_counted(const mx_run *r, const mx_batch *b)
{
    const mx_objective *o = r->goal.objective;
    return o && o->count ? o->count(&r->goal, b) : b->n_trained;
}

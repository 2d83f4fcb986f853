/* run_objective.c - what a run asks of its objective (objective.h), and when. */
#include "train/run/run_state.h"

#include <string.h>

/* The first of the ranks that have the same rows, for each part of the rows. */
static const int *row_leaders(mx_run *r)
{
    const mx_mesh_plan *p = r->mesh_rank->mesh;
    int *first = MX_NEW_N(&r->arena, int, r->ranks.data_ranks);
    for (int rank = p->ranks - 1; rank >= 0; rank--)
        first[mx_mesh_index(&p->mesh, rank, mx_mesh_rows(p))] = rank;
    return first;
}

mx_status mx_run_objective_read(mx_run *r)
{
    const mx_objective *o = r->goal.objective;
    mx_step_options *s = &r->request.options;
    if (!o)
        return MX_OK;
    if (strcmp(mx_config_text(r->c, "semantics"), "verl") == 0 && strcmp(o->verb, "grpo") != 0)
        return mx_fail(MX_USAGE, "%s: verl is about rewards; maxc %s has the semantics of trl and "
                       "maxtext", mx_config_where(r->c, "semantics"), o->verb);
    const json_t *pad = json_object_get(r->model.json, "pad_token_id");
    if (json_is_integer(pad) && json_integer_value(pad) >= 0 &&
        strcmp(mx_config_text(r->c, "semantics"), "trl") == 0)
        s->shape.fixed_pad = json_integer_value(pad) + 1;
    if (o->adapt)
        MX_TRY(o->adapt(&r->model));
    if (o->read)
        MX_TRY(o->read(r->c, &r->arena, &r->goal.settings));
    if (s->shape.images_per_row && o->rows != MX_ROWS_DOCUMENTS)
        return mx_fail(MX_USAGE, "%s: maxc %s does not take images yet; set use_multimodal=false",
                       mx_config_where(r->c, "use_multimodal"), o->verb);
    mx_objective_apply(o, r->goal.settings, r->c, &r->request);
    return MX_OK;
}

/* Gives it what it may know of the run, as far as that exists yet. */
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
    if (r->mesh_rank) {
        o->comm = r->ranks.comm;
        o->row_leader = row_leaders(r);
    }
    if (r->programs.pipelined) { /* cut as the step is: they share its weights */
        r->stages = (mx_forward_stages){r->request.pipeline, r->programs.stages};
        r->stages.how.as = &r->programs.pipeline.cut;
        o->stages = &r->stages;
    }
    o->position = r->at.loader;
    o->n_position = r->at.loader_bytes;
}

mx_status mx_run_objective_beside(mx_run *r, mx_beside *out)
{
    const mx_objective *o = r->goal.objective;
    tell(r);
    return o && o->beside ? o->beside(&r->goal, out) : MX_OK;
}

mx_status mx_run_objective_open(mx_run *r)
{
    mx_objective_run *o = &r->goal;
    if (o->objective && o->objective->measure && *mx_config_text(r->c, "task_path"))
        r->rules.task_interval = mx_config_int(r->c, "task_interval");
    tell(r);
    return o->objective && o->objective->open ? o->objective->open(o) : MX_OK;
}

int64_t mx_run_counted(const mx_run *r, const mx_batch *b)
{
    const mx_objective *o = r->goal.objective;
    return o && o->count ? o->count(&r->goal, b) : b->n_trained;
}

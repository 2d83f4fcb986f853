/* programs.c - see programs.h. */
#include "exec/programs.h"

mx_status mx_pipeline_parts(const mx_config *c, int stages, int64_t rows, int64_t *out)
{
    const char *key = "num_pipeline_microbatches";
    int64_t n = c ? mx_config_int(c, key) : -1;
    if (n < 0)
        for (n = rows < stages ? rows : stages; rows % n;)
            n--;
    *out = n;
    if (rows % n == 0)
        return MX_OK;
    return mx_fail(MX_USAGE,
                   "%s: %s=%lld does not divide the %lld sequences that a data rank has; raise "
                   "per_device_batch_size or choose a divisor",
                   mx_config_where(c, key), key, (long long)n, (long long)rows);
}

/* Microbatches of a pipeline are a part of those that gradients are accumulated over. */
static mx_status share_batch(mx_programs_request *q, const mx_config *c)
{
    int64_t n;
    MX_TRY(mx_pipeline_parts(c, q->pipeline.stages, q->batch.microbatch, &n));
    q->batch.microbatch /= n;
    q->batch.global_microbatch /= n;
    q->batch.accumulation *= n;
    q->pipeline.microbatches = (int)q->batch.accumulation;
    return MX_OK;
}

/* What a pipeline does not go with yet. */
static mx_status check_company(const mx_config *c)
{
    const char *key = "enable_rampup_batch_size";
    if (!mx_config_bool(c, key))
        return MX_OK;
    return mx_fail(MX_USAGE, "%s: %s on a mesh with stages is not built yet; leave one of them out",
                   mx_config_where(c, key), key);
}

void mx_pipeline_configure(mx_pipeline_options *p, const mx_config *c, const mx_model_spec *m,
                           const mx_partition *on)
{
    *p = (mx_pipeline_options){.kind = MX_PIPELINE_1F1B,
                               .stages = mx_mesh_degree(on->mesh, MX_AXIS_STAGE),
                               .stage = mx_mesh_coordinate(on->mesh, on->rank, MX_AXIS_STAGE),
                               .repeats = 1};
    if (!c)
        return;
    const char *schedule = mx_config_text(c, "pipeline_schedule");
    int64_t repeats = mx_config_int(c, "num_pipeline_repeats");
    if (mx_config_is_users(c, "num_layers_per_pipeline_stage"))
        p->layers_each = (int)mx_config_int(c, "num_layers_per_pipeline_stage");
    if (repeats < 0 && p->layers_each)
        repeats = (m->summary.n_layers + p->layers_each * p->stages - 1) /
                  (p->layers_each * p->stages);
    p->repeats = repeats < 1 ? 1 : (int)repeats;
    bool known = mx_pipeline_kind_parse(schedule, &p->kind);
    MX_ASSERT(known, "%s", schedule);
    if (p->repeats > 1 && !mx_config_is_users(c, "pipeline_schedule"))
        p->kind = MX_PIPELINE_INTERLEAVED;
}

static mx_status configure_pipeline(mx_programs_request *q, const mx_config *c,
                                    const mx_model_spec *m, const mx_partition *on)
{
    mx_pipeline_configure(&q->pipeline, c, m, on);
    MX_TRY(check_company(c));
    return share_batch(q, c);
}

mx_status mx_programs_configure(mx_programs_request *q, const mx_config *cfg,
                                const mx_model_spec *m, mx_programs_ranks by, mx_arena *a)
{
    *q = (mx_programs_request){.always_applies = by.ranks > 1 && !by.on};
    MX_TRY(mx_batch_plan_make(&q->batch, cfg, by.ranks, by.data_ranks));
    int64_t rows = q->batch.microbatch;
    if (by.on && mx_mesh_degree(by.on->mesh, MX_AXIS_STAGE) > 1)
        MX_TRY(configure_pipeline(q, cfg, m, by.on));
    double eval = 0;
    if (mx_config_int(cfg, "eval_interval") > 0) {
        eval = mx_config_float(cfg, "eval_per_device_batch_size") * (double)by.ranks /
               (double)by.data_ranks;
        q->eval_batch = eval >= 1 ? (int64_t)eval : q->batch.microbatch;
        q->mtp_eval = mx_config_int(cfg, "mtp_eval_target_module");
    }
    q->eval_parts = eval >= 1 ? 1 : rows / q->batch.microbatch;
    MX_TRY(mx_step_configure(&q->options, cfg, m, MX_STEP_TRAIN, q->batch.microbatch, a));
    q->options.compile.partition = by.on;
    q->options.shape.images_by_row = by.on && q->options.shape.images_per_row;
    return MX_OK;
}

int64_t mx_programs_rows(const mx_programs_request *q, int64_t n)
{
    return q->options.compile.partition ? n * q->batch.data_ranks : n;
}

int mx_programs_list(mx_programs *p, mx_step *list[MX_PROGRAMS])
{
    int n = 0;
    if (p->accumulates)
        list[n++] = &p->apply; /* first: it declares the weights in the model's order */
    if (!p->pipelined)
        list[n++] = &p->step;
    if (p->evaluates && !p->pipelined)
        list[n++] = &p->eval;
    return n;
}

static mx_status plan_pipeline(mx_pipeline *p, const mx_model_spec *m, const mx_step_options *o,
                               const mx_pipeline_options *how)
{
    mx_pipeline_options here = *how;
    here.compile = o->compile;
    mx_graph_init(&p->joint);
    if (o->compile.compute == MX_F64)
        p->joint.param_dtype = MX_F64;
    return mx_pipeline_plan(p, mx_step_build(&p->joint, m, o), &here);
}

mx_pipeline_options mx_programs_eval_pipeline(const mx_programs *p, const mx_programs_request *q)
{
    mx_pipeline_options forward = q->pipeline;
    forward.kind = MX_PIPELINE_FORWARD;
    forward.microbatches = 1;
    forward.as = &p->pipeline.cut;
    return forward;
}

static mx_status plan_evaluation(mx_programs *p, const mx_model_spec *m, const mx_step_options *o,
                                 const mx_programs_request *q)
{
    mx_pipeline_options forward = mx_programs_eval_pipeline(p, q);
    return plan_pipeline(&p->eval_pipeline, m, o, &forward);
}

/* The update of the weights that the rank has. */
static mx_status plan_apply(mx_programs *p, const mx_model_spec *m, const mx_programs_request *q)
{
    mx_step_options o = q->options;
    mx_stages stages = mx_pipeline_stages(&p->pipeline.how);
    o.kind = MX_STEP_APPLY;
    o.compile.sums = p->pipelined ? &p->pipeline.joint : &p->step.graph;
    o.shape.batch = mx_programs_rows(q, q->batch.microbatch);
    stages.as = &p->pipeline.cut;
    o.compile.stages = p->pipelined ? &stages : NULL;
    return mx_step_plan(&p->apply, m, &o);
}

void mx_programs_begin(mx_programs *p, const mx_programs_request *q)
{
    *p = (mx_programs){.pipelined = q->pipeline.stages > 0, .evaluates = q->eval_batch > 0};
    p->accumulates = q->batch.accumulation > 1 || q->always_applies || p->pipelined;
    p->accumulates &= !q->gradients_only;
}

mx_status mx_programs_plan(mx_programs *p, const mx_model_spec *m, const mx_programs_request *q)
{
    mx_step_options o = q->options;
    mx_programs_begin(p, q);
    o.kind = p->accumulates ? MX_STEP_ACCUMULATE : MX_STEP_TRAIN;
    o.shape.batch = mx_programs_rows(q, q->batch.microbatch);
    o.compile.sum_late = p->accumulates;
    if (p->pipelined)
        MX_TRY(plan_pipeline(&p->pipeline, m, &o, &q->pipeline));
    else
        MX_TRY(mx_step_plan(&p->step, m, &o));
    if (p->accumulates)
        MX_TRY(plan_apply(p, m, q));
    o.kind = MX_STEP_LOSS;
    o.shape.batch = mx_programs_rows(q, q->eval_batch);
    o.shape.mtp_eval = q->mtp_eval;
    if (!p->evaluates)
        return MX_OK;
    return p->pipelined ? plan_evaluation(p, m, &o, q) : mx_step_plan(&p->eval, m, &o);
}

mx_status mx_programs_replan(mx_programs *p, const mx_model_spec *m, const mx_programs_request *q,
                             int stage)
{
    MX_TRY(mx_pipeline_replan(&p->pipeline, stage));
    if (p->evaluates)
        MX_TRY(mx_pipeline_replan(&p->eval_pipeline, stage));
    mx_step_close(&p->apply);
    return plan_apply(p, m, q);
}

mx_status mx_programs_open(mx_programs *p, mx_session *s)
{
    mx_step *list[MX_PROGRAMS];
    int n = mx_programs_list(p, list);
    size_t most = 0, most_hosted = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes = mx_program_shared_bytes(&list[i]->program);
        most = bytes > most ? bytes : most;
        bytes = list[i]->program.host_bytes;
        most_hosted = bytes > most_hosted ? bytes : most_hosted;
    }
    for (int i = 0; i < 2; i++) {
        size_t bytes = mx_pipeline_shared_bytes(i ? &p->eval_pipeline : &p->pipeline);
        most = bytes > most ? bytes : most;
    }
    MX_TRY(mx_session_share(s, most, most_hosted));
    for (int i = 0; i < n; i++)
        MX_TRY(mx_session_add(s, &list[i]->program, &list[i]->exec));
    if (p->pipelined)
        MX_TRY(mx_pipeline_bind(&p->pipeline, s, p->stages));
    return p->pipelined && p->evaluates ? mx_pipeline_bind(&p->eval_pipeline, s, p->stages) : MX_OK;
}

void mx_programs_close_pipelines(mx_programs *p)
{
    mx_pipeline_close(&p->eval_pipeline);
    mx_pipeline_close(&p->pipeline);
}

void mx_programs_close(mx_programs *p)
{
    mx_step_close(&p->step);
    mx_step_close(&p->apply);
    mx_step_close(&p->eval);
    mx_programs_close_pipelines(p);
}

/* programs.c - see programs.h. */
#include "exec/programs.h"

mx_status mx_programs_configure(mx_programs_request *q, const mx_config *cfg,
                                const mx_model_spec *m, int64_t ranks, mx_arena *a)
{
    *q = (mx_programs_request){.always_applies = ranks > 1};
    MX_TRY(mx_batch_plan_make(&q->batch, cfg, ranks, ranks));
    double eval = mx_config_float(cfg, "eval_per_device_batch_size");
    if (mx_config_int(cfg, "eval_interval") > 0)
        q->eval_batch = eval >= 1 ? (int64_t)eval : q->batch.microbatch;
    q->mtp_eval = mx_config_int(cfg, "mtp_eval_target_module");
    return mx_step_configure(&q->options, cfg, m, MX_STEP_TRAIN, q->batch.microbatch, a);
}

int mx_programs_list(mx_programs *p, mx_step *list[MX_PROGRAMS])
{
    int n = 0;
    if (p->accumulates)
        list[n++] = &p->apply; /* first: it declares the weights in the model's order */
    list[n++] = &p->step;
    if (p->evaluates)
        list[n++] = &p->eval;
    return n;
}

mx_status mx_programs_plan(mx_programs *p, const mx_model_spec *m, const mx_programs_request *q)
{
    mx_step_options o = q->options;
    *p = (mx_programs){.accumulates = q->batch.accumulation > 1 || q->always_applies,
                       .evaluates = q->eval_batch > 0};
    o.kind = p->accumulates ? MX_STEP_ACCUMULATE : MX_STEP_TRAIN;
    o.shape.batch = q->batch.microbatch;
    MX_TRY(mx_step_plan(&p->step, m, &o));
    o.kind = MX_STEP_APPLY;
    if (p->accumulates)
        MX_TRY(mx_step_plan(&p->apply, m, &o));
    o.kind = MX_STEP_LOSS;
    o.shape.batch = q->eval_batch;
    o.shape.mtp_eval = q->mtp_eval;
    return p->evaluates ? mx_step_plan(&p->eval, m, &o) : MX_OK;
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
    MX_TRY(mx_session_share(s, most, most_hosted));
    for (int i = 0; i < n; i++)
        MX_TRY(mx_session_add(s, &list[i]->program, &list[i]->exec));
    return MX_OK;
}

void mx_programs_close(mx_programs *p)
{
    mx_step_close(&p->step);
    mx_step_close(&p->apply);
    mx_step_close(&p->eval);
}

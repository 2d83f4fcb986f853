/* programs.c - see programs.h. */
#include "exec/programs.h"

mx_status mx_programs_configure(mx_programs_request *q, const mx_config *cfg,
                                const mx_model_spec *m, mx_programs_ranks by, mx_arena *a)
{
    *q = (mx_programs_request){.always_applies = by.ranks > 1 && !by.on};
    MX_TRY(mx_batch_plan_make(&q->batch, cfg, by.ranks, by.data_ranks));
    double eval = mx_config_float(cfg, "eval_per_device_batch_size");
    eval *= (double)by.ranks / (double)by.data_ranks;
    if (mx_config_int(cfg, "eval_interval") > 0)
        q->eval_batch = eval >= 1 ? (int64_t)eval : q->batch.microbatch;
    q->mtp_eval = mx_config_int(cfg, "mtp_eval_target_module");
    MX_TRY(mx_step_configure(&q->options, cfg, m, MX_STEP_TRAIN, q->batch.microbatch, a));
    q->options.compile.partition = by.on;
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
    o.shape.batch = mx_programs_rows(q, q->batch.microbatch);
    MX_TRY(mx_step_plan(&p->step, m, &o));
    o.kind = MX_STEP_APPLY;
    if (p->accumulates)
        MX_TRY(mx_step_plan(&p->apply, m, &o));
    o.kind = MX_STEP_LOSS;
    o.shape.batch = mx_programs_rows(q, q->eval_batch);
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

/* run_eval.c - the loss over data of its own, between steps. */
#include "train/run/run_state.h"

#include <math.h>
#include <stdio.h>

/* How often an MTP layer's prediction was the model's own, of those it made. */
static void say_accepted(mx_run *r, double accepted, double asked)
{
    double rate = asked > 0 ? 100 * accepted / asked : 0;
    mx_progress_say(&r->report.progress,
                    "step %lld: of %.0f tokens that the MTP layer predicted %.2f %% accepted",
                    (long long)r->at.step, asked, rate);
    mx_metric m = {"eval/mtp_acceptance_rate_percent", rate};
    if (r->ranks.leads)
        mx_metrics_log(r->report.metrics, r->at.step, &m, 1);
}

enum { MOST_EXTRA = 16 };

/* A batch under evaluation. */
typedef struct {
    mx_run *r;
    const mx_batch *b;
    bool lm, mtp; /* what there is to read */
    double v[4];      /* sums: loss, tokens, MTP predictions accepted and made */
    const char *extra[MOST_EXTRA]; /* roots "metric:NAME" of the objective: means over the batch */
    double extra_sum[MOST_EXTRA];
    int n_extra;
} evaluation;

/* What the mean is over: of a negative log-likelihood what was predicted, however a step counts. */
static int64_t evaluated(const mx_run *r, const mx_batch *b)
{
    return r->goal.objective && r->goal.objective->is_nll ? b->n_trained : mx_run_counted(r, b);
}

static mx_status feed_evaluated(void *ctx, int microbatch, mx_exec *e)
{
    const evaluation *v = ctx;
    (void)microbatch;
    float counted = (float)evaluated(v->r, v->b);
    MX_TRY(mx_exec_write(e, "aux_scale", &counted));
    return mx_run_feed(v->r, e, v->b, 0, 1);
}

static mx_status add_evaluated(void *ctx, int microbatch, mx_exec *e)
{
    evaluation *v = ctx;
    float loss, accepted, asked;
    (void)microbatch;
    MX_TRY(mx_exec_read(e, v->lm ? "lm_loss" : "loss", &loss));
    v->v[0] += loss;
    for (int i = 0; i < v->n_extra; i++) {
        float mean;
        MX_TRY(mx_exec_read(e, v->extra[i], &mean));
        v->extra_sum[i] += (double)mean * (double)evaluated(v->r, v->b);
    }
    if (v->mtp) {
        MX_TRY(mx_exec_read(e, "mtp_accepted", &accepted));
        MX_TRY(mx_exec_read(e, "mtp_asked", &asked));
        v->v[2] += accepted;
        v->v[3] += asked;
    }
    return MX_OK;
}

static mx_status evaluate_batch(evaluation *v)
{
    mx_programs *p = &v->r->programs;
    const mx_objective *o = v->r->goal.objective;
    mx_pipeline_feed feed = {feed_evaluated, add_evaluated, v};
    v->r->goal.fed = v->r->request.eval_batch;
    if (p->pipelined && o && o->ahead)
        MX_TRY(o->ahead(&v->r->goal, v->b));
    if (p->pipelined)
        return mx_pipeline_run(&p->eval_pipeline, &feed);
    MX_TRY(feed_evaluated(v, 0, p->eval.exec));
    MX_TRY(mx_exec_run(p->eval.exec));
    return add_evaluated(v, 0, p->eval.exec);
}

static bool evaluates_to(const mx_run *r, const char *name)
{
    const mx_programs *p = &r->programs;
    const mx_graph *g = p->pipelined ? &p->eval_pipeline.joint : &p->eval.graph;
    return mx_graph_find_root(g, name) != NULL;
}

static void find_extra(evaluation *v)
{
    const mx_graph *g = &v->r->programs.eval.graph;
    bool there = v->r->goal.objective && !v->r->mesh_rank; /* there a rank has some of the rows */
    for (int i = 0; there && i < g->n_roots && v->n_extra < MOST_EXTRA; i++)
        if (g->root[i]->name && mx_starts_with(g->root[i]->name, MX_METRIC_ROOT))
            v->extra[v->n_extra++] = g->root[i]->name;
}

/* eval/NAME of each, weighted by what the loss is a mean over. */
static mx_status log_extra(evaluation *v)
{
    mx_metric m[MOST_EXTRA];
    char name[MOST_EXTRA][96];
    MX_TRY(mx_comm_sum_f64(v->r->ranks.comm, v->extra_sum, v->n_extra));
    for (int i = 0; i < v->n_extra; i++) {
        snprintf(name[i], sizeof name[i], "eval/%s", v->extra[i] + sizeof MX_METRIC_ROOT - 1);
        m[i] = (mx_metric){name[i], v->v[1] > 0 ? v->extra_sum[i] / v->v[1] : NAN};
    }
    if (v->r->ranks.leads)
        mx_metrics_log(v->r->report.metrics, v->r->at.step, m, v->n_extra);
    return MX_OK;
}

/* On a mesh the programs have added up everything but the tokens. */
static mx_status sum_evaluated(mx_run *r, double v[4])
{
    int64_t tokens = (int64_t)v[1];
    if (!r->mesh_rank)
        return mx_comm_sum_f64(r->ranks.comm, v, 4);
    if (r->programs.pipelined) {
        for (int i = 0; i < 4 && !mx_run_speaks(r); i++)
            v[i] = 0;
        MX_TRY(mx_comm_sum_f64(r->ranks.comm, v, 4));
    }
    MX_TRY(mx_run_sum_rows(r, &tokens, 1));
    v[1] = (double)tokens;
    return MX_OK;
}

mx_status mx_run_evaluate(mx_run *r)
{
    int64_t limit = r->rules.eval_steps * r->request.eval_parts, n = 0;
    evaluation e = {.r = r, .lm = evaluates_to(r, "lm_loss"),
                    .mtp = evaluates_to(r, "mtp_asked")};
    double *v = e.v, *sum = &v[0], *tokens = &v[1];
    find_extra(&e);
    mx_run_spend(r, MX_GOODPUT_EVAL);
    mx_progress_doing(&r->report.progress, "evaluating");
    /* The same batches every time: evaluation starts from the beginning of its data. */
    mx_train_data_close(&r->eval_data);
    MX_TRY(mx_run_open_data(r, &r->eval_data, r->request.eval_batch * r->ranks.data_ranks, true));
    for (; limit < 0 || n < limit; n++) {
        MX_TRY(mx_loader_next(r->eval_data.loader, &e.b));
        if (!e.b)
            break;
        MX_TRY(evaluate_batch(&e));
        *tokens += (double)evaluated(r, e.b);
    }
    MX_TRY(sum_evaluated(r, v));
    r->loop.last_eval = *tokens > 0 ? *sum / *tokens : NAN;
    mx_progress_say(&r->report.progress, "step %lld: evaluation loss %.4f over %.0f tokens",
                    (long long)r->at.step, r->loop.last_eval, *tokens);
    mx_progress_begin(&r->report.progress, r->at.step);
    if (r->ranks.leads)
        mx_metrics_log(r->report.metrics, r->at.step,
                       (mx_metric[]){{"eval/loss", r->loop.last_eval}}, 1);
    if (e.mtp)
        say_accepted(r, v[2], v[3]);
    return e.n_extra ? log_extra(&e) : MX_OK;
}

bool mx_run_evaluates_at(const mx_run *r, int64_t step)
{
    const mx_run_rules *u = &r->rules;
    return r->programs.evaluates && step % u->eval_interval == 0 && step >= u->eval_start_step;
}

bool mx_run_measures_at(const mx_run *r, int64_t step)
{
    int64_t each = r->goal.objective ? r->rules.task_interval : 0;
    return each > 0 && (r->ranks.leads || r->mesh_rank) && (step % each == 0 || step == r->steps);
}

mx_status mx_run_measure(mx_run *r)
{
    mx_metric m[MX_HOST_METRICS];
    mx_str text = {0};
    int n = 0;
    mx_run_spend(r, MX_GOODPUT_EVAL);
    mx_progress_doing(&r->report.progress, "answering tasks");
    MX_TRY(r->goal.objective->measure(&r->goal, r->at.step, m, &n));
    if (!r->ranks.leads) /* on a mesh all have answered */
        return MX_OK;
    for (int i = 0; i < n; i++)
        mx_str_addf(&text, "%s%s %.4g", i ? ", " : "", m[i].name, m[i].value);
    mx_progress_say(&r->report.progress, "step %lld: %s", (long long)r->at.step,
                    mx_str_text(&text));
    mx_str_fini(&text);
    mx_progress_begin(&r->report.progress, r->at.step);
    mx_metrics_log(r->report.metrics, r->at.step, m, n);
    return MX_OK;
}

/* run_batch.c - the batch of a step, and the program for a batch of its size (ramp.h).
 *
 * The program of the full batch is compiled before the run begins, as always: it is the plan.
 * Programs of smaller batches are compiled when their stage begins and run in the scratch memory
 * that all share, so a ramp needs no more memory than the run after it. The loader then gives
 * pieces that divide every batch, which are put together here; its position in the data is, as
 * ever, the one after the last sequence used.
 */
#include "train/run/run_state.h"

#include <string.h>

mx_status mx_run_batch_open(mx_run *r)
{
    r->batch.now = r->programs.step.exec;
    r->batch.microbatch = r->request.batch.microbatch;
    r->batch.stage = r->batch.ramp.n_stages;
    r->batch.stage_flops = r->report.flops_per_step;
    if (!r->batch.ramp.n_stages)
        return MX_OK;
    if (r->request.options.shape.images_per_row)
        return mx_fail(MX_USAGE,
                       "%s: a batch that grows cannot hold images yet; leave one of the two out",
                       mx_config_where(r->c, "enable_rampup_batch_size"));
    const mx_batch_plan *b = &r->request.batch;
    int64_t n = b->microbatch * b->accumulation * b->length;
    int32_t *p = MX_NEW_N(&r->arena, int32_t, 4 * n);
    r->batch.gathered = (mx_batch){.tokens = p,
                             .labels = p + n,
                             .segments = p + 2 * n,
                             .positions = p + 3 * n,
                             .margins = MX_NEW_N(&r->arena, float, n / b->length),
                             .seq_len = b->length};
    return MX_OK;
}

static void leave(mx_run *r)
{
    if (r->batch.now != r->programs.step.exec)
        mx_exec_close(r->batch.now);
    r->batch.now = r->programs.step.exec;
    mx_step_close(&r->batch.small);
}

void mx_run_batch_close(mx_run *r)
{
    if (r->batch.now)
        leave(r);
}

mx_status mx_run_batch_enter(mx_run *r)
{
    int64_t stage = mx_ramp_stage(&r->batch.ramp, r->at.step);
    if (stage == r->batch.stage)
        return MX_OK;
    MX_TRY(mx_run_settle(r, r->at.step)); /* its program goes */
    mx_run_spend(r, MX_GOODPUT_COMPILE);
    leave(r);
    r->batch.stage = stage;
    r->batch.microbatch = mx_ramp_microbatch(&r->batch.ramp, stage);
    if (stage == r->batch.ramp.n_stages) {
        r->batch.stage_flops = r->report.flops_per_step;
    } else {
        mx_step_options o = r->request.options;
        o.kind = r->programs.accumulates ? MX_STEP_ACCUMULATE : MX_STEP_TRAIN;
        o.shape.batch = mx_programs_rows(&r->request, r->batch.microbatch);
        MX_TRY(mx_step_open(&r->batch.small, r->session, &r->model, &o));
        r->batch.now = r->batch.small.exec;
        r->batch.stage_flops =
            r->batch.small.program.bytes.flops * (double)r->request.batch.accumulation;
    }
    mx_progress_say(&r->report.progress, "step %lld: batches of %lld sequences from here on",
                    (long long)r->at.step + 1,
                    (long long)(r->batch.microbatch * r->batch.ramp.per_sequence));
    return MX_OK;
}

static void add_rows(mx_batch *to, const mx_batch *b)
{
    size_t at = (size_t)(to->rows * to->seq_len), n = (size_t)(b->rows * b->seq_len);
    memcpy(to->tokens + at, b->tokens, sizeof(int32_t) * n);
    memcpy(to->labels + at, b->labels, sizeof(int32_t) * n);
    memcpy(to->segments + at, b->segments, sizeof(int32_t) * n);
    memcpy(to->positions + at, b->positions, sizeof(int32_t) * n);
    memcpy(to->margins + to->rows, b->margins, sizeof(float) * (size_t)b->rows);
    to->rows += b->rows;
    to->n_tokens += b->n_tokens;
    to->n_trained += b->n_trained;
    to->n_firsts += b->n_firsts;
}

/* Rows of padding: nothing is trained on them. */
static void pad_rows(mx_batch *to, int64_t rows)
{
    for (int64_t i = to->rows * to->seq_len; i < rows * to->seq_len; i++) {
        to->tokens[i] = to->segments[i] = to->positions[i] = 0;
        to->labels[i] = MX_NO_LABEL;
    }
    for (int64_t i = to->rows; i < rows; i++)
        to->margins[i] = 0;
    to->rows = rows;
}

mx_status mx_run_next_batch(mx_run *r, const mx_batch **out)
{
    r->goal.step = r->at.step + 1;
    if (r->goal.objective && r->goal.objective->next)
        return r->goal.objective->next(&r->goal, out);
    if (!r->batch.ramp.n_stages)
        return mx_loader_next(r->data.loader, out);
    int64_t rows = r->batch.microbatch * r->request.batch.accumulation;
    mx_batch *b = &r->batch.gathered;
    b->rows = b->n_tokens = b->n_trained = b->n_firsts = 0;
    *out = NULL;
    while (b->rows < rows) {
        const mx_batch *piece;
        MX_TRY(mx_loader_next(r->data.loader, &piece));
        if (!piece)
            break;
        add_rows(b, piece);
    }
    if (!b->rows)
        return MX_OK;
    pad_rows(b, rows);
    *out = b;
    return MX_OK;
}

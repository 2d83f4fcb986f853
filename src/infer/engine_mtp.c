/* engine_mtp.c - drafts of a model's own MTP layer (multi-token prediction).
 *
 * Position i of the layer reads the model's hidden state at i and the embedding of token i + 1, and
 * predicts token i + 2; its keys lie in the request's pages, like those of any other layer. So
 * after each batch the layer runs over the same tokens, with those that follow them, and gives for
 * each answer a draft of the token after the one that was just sampled. Further drafts come from
 * the layer's own hidden states. What is drafted decides only how much is computed in vain: the
 * engine checks it like a draft from the text, and entries that a wrong draft has left are written
 * again.
 */
#include "infer/engine_impl.h"

#include "ops/inputs.h"
#include <string.h>

enum { MX_SAMPLE_SETTINGS };

mx_status mx_engine_check_mtp(const mx_model_ref *m)
{
    const json_t *c = m->spec.json;
    bool there = json_integer_value(json_object_get(c, "num_nextn_predict_layers")) > 0 ||
                 json_integer_value(json_object_get(c, "mtp_num_layers")) > 0;
    if (m->spec.family->drafts && there)
        return MX_OK;
    return mx_fail(MX_USAGE,
                   "speculative_method=mtp needs a model with MTP layers that are built here "
                   "(num_nextn_predict_layers of DeepSeek V3 and its relatives), and this is %s "
                   "%s; expected speculative_method=ngram",
                   m->spec.family->name, there ? "with others" : "without them");
}

/* A row of the layer's batch. */
static int64_t put(const mx_seq *s, mx_engine_batch_input *in, int64_t position, int32_t next,
                   const float *before, int64_t width)
{
    int64_t i = in->n++;
    in->token[i] = next;
    in->position[i] = (int32_t)position;
    in->row[i] = s->row;
    in->adapter_slot[i] = -1;
    in->slot[i] = s->page[position / MX_ENGINE_PAGE] * MX_ENGINE_PAGE +
                  (int32_t)(position % MX_ENGINE_PAGE);
    memcpy(in->before + i * width, before, sizeof *before * (size_t)width);
    return i;
}

/* Its next token will be sampled, and drafts after that are of use. */
static bool wants_drafts(const mx_engine *e, const mx_seq *s)
{
    const mx_request *r = &s->r;
    return !r->finish && !s->o.constraint && e->o.draft_tokens > 0 &&
           s->computed + 1 == r->tokens.n && r->tokens.n + 1 < r->n_prompt + s->o.max_new;
}

static void want(mx_engine_batch_input *in, int64_t i)
{
    float *how = in->sampling + in->n_last * N_SETTINGS;
    how[TEMPERATURE] = 0;
    how[TOP_K] = 0;
    how[TOP_P] = 1;
    how[UNIFORM] = 0;
    in->wants_logits[in->n_last] = false;
    in->last[in->n_last++] = (int32_t)i;
}

static int32_t best(const mx_engine *e, int64_t i)
{
    if (e->device_draws)
        return mx_engine_batch_drawn(e->mtp, i);
    const float *x = mx_engine_batch_logits(e->mtp, i);
    int32_t at = 0;
    for (int64_t k = 1; k < e->vocab; k++)
        if (x[k] > x[at])
            at = (int32_t)k;
    return at;
}

static mx_status run(mx_engine *e, mx_engine_batch_input *in)
{
    const mx_engine_batch_input *main = mx_engine_batch_input_of(e->batch);
    size_t bytes = sizeof *in->table * (size_t)(e->o.sequences * in->columns);
    if (in->table_changes != main->table_changes)
        memcpy(in->table, main->table, bytes);
    in->table_changes = main->table_changes;
    return mx_engine_batch_run(e->mtp);
}

/* Each answer's draft; it goes on from the row that it came from. */
static void take(mx_engine *e, const mx_engine_batch_input *in)
{
    int64_t k = 0;
    for (int64_t i = 0; i < e->n_running && k < in->n_last; i++) {
        mx_seq *s = e->running[i];
        if (in->row[in->last[k]] != s->row)
            continue;
        int32_t id = best(e, k++);
        if (id >= 0)
            s->mtp_draft[s->n_mtp_drafts++] = id;
    }
}

/* The layer over the tokens of the model's batch, which gives the first drafts. */
static mx_status read_batch(mx_engine *e, mx_engine_batch_input *in)
{
    const float *hidden;
    const int64_t width = mx_engine_batch_width(e->batch);
    MX_TRY(mx_engine_batch_after(e->batch, &hidden));
    for (int64_t i = 0; i < e->n_running; i++) {
        mx_seq *s = e->running[i];
        const mx_tokens *t = &s->r.tokens;
        s->n_mtp_drafts = 0;
        if (s->r.finish)
            continue;
        int64_t from = s->computed - s->n_kept, at = -1;
        for (int64_t k = 0; k < s->n_kept && s->take && from + k + 1 < t->n; k++)
            at = put(s, in, from + k, t->ids[from + k + 1], hidden + (s->first_in + k) * width,
                     width);
        if (at >= 0 && wants_drafts(e, s))
            want(in, at);
    }
    if (!in->n)
        return MX_OK;
    MX_TRY(run(e, in));
    take(e, in);
    return MX_OK;
}

/* One more draft of every answer, from the layer's own hidden state of the last one. */
static mx_status draft_on(mx_engine *e, mx_engine_batch_input *in)
{
    const float *after;
    const int64_t width = mx_engine_batch_width(e->mtp), n = in->n_last;
    int64_t k = 0;
    MX_TRY(mx_engine_batch_after(e->mtp, &after));
    mx_arena scratch = {0};
    float *before = MX_NEW_N(&scratch, float, n * width);
    int32_t *row = MX_NEW_N(&scratch, int32_t, n);
    for (int64_t i = 0; i < n; i++) {
        row[i] = in->row[in->last[i]];
        memcpy(before + i * width, after + in->last[i] * width, sizeof(float) * (size_t)width);
    }
    in->n = in->n_last = 0;
    for (int64_t i = 0; i < e->n_running && k < n; i++) {
        mx_seq *s = e->running[i];
        if (row[k] != s->row)
            continue;
        const float *from = before + k++ * width;
        int64_t position = s->computed - 1 + s->n_mtp_drafts;
        if (s->n_mtp_drafts && mx_engine_reserve(e, s, position + 1) > position)
            want(in, put(s, in, position, s->mtp_draft[s->n_mtp_drafts - 1], from, width));
    }
    mx_arena_fini(&scratch);
    if (!in->n)
        return MX_OK;
    MX_TRY(run(e, in));
    take(e, in);
    return MX_OK;
}

mx_status mx_engine_mtp_draft(mx_engine *e)
{
    mx_engine_batch_input *in = mx_engine_batch_input_of(e->mtp);
    in->n = in->n_last = 0;
    MX_TRY(read_batch(e, in));
    for (int64_t k = 1; k < e->o.draft_tokens && in->n_last; k++)
        MX_TRY(draft_on(e, in));
    return MX_OK;
}

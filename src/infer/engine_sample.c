/* engine_sample.c - sampling: from the batch's logits to tokens, texts and ends of answers. */
#include "infer/engine_impl.h"

#include "base/clock.h"
#include "ops/inputs.h"
#include <math.h>
#include <omp.h>
#include <string.h>

/* In place of a token: the constraint allows none. */
enum { DEAD_END = -2 };
enum { MX_SAMPLE_SETTINGS };

/* Log-probabilities of token t, whose logits these are. */
static void score(const mx_engine *e, mx_seq *s, int64_t t, const float *logits, char *work)
{
    mx_request *r = &s->r;
    if (!s->o.log_probs)
        return;
    double sum = mx_log_sum_exp(logits, e->vocab);
    r->log_prob[t] = (float)(logits[r->tokens.ids[t]] - sum);
    if (r->n_top)
        mx_most_likely(logits, e->vocab, sum, r->n_top, r->top + t * r->n_top, work);
}

/* Samples token t on the host. */
static mx_choice sample(const mx_engine *e, const mx_seq *s, int64_t t, const float *logits,
                      char *work)
{
    const mx_request *r = &s->r;
    int64_t n_new = t - r->n_prompt;
    bool early = n_new < s->o.min_new;
    const uint32_t *allowed = NULL;
    if (s->o.constraint && early)
        allowed = mx_constraint_mask(s->o.constraint, NULL, 0);
    if (s->o.constraint && !allowed)
        allowed = mx_constraint_mask(s->o.constraint, s->banned, s->n_banned);
    if (s->o.constraint && !allowed)
        return (mx_choice){DEAD_END, 0};
    mx_sample_args a = {.how = s->o.sampling,
                        .logits = logits,
                        .vocab = e->vocab,
                        .seen = r->tokens.ids,
                        .n_prompt = r->n_prompt,
                        .n_seen = t,
                        .banned = s->banned,
                        .n_banned = early && !allowed ? s->n_banned : 0,
                        .allowed = allowed,
                        .bias = s->o.bias,
                        .n_bias = s->o.n_bias,
                        .stream = s->o.stream,
                        .step = (uint64_t)n_new,
                        .no_log_prob = true,
                        .work = work};
    return mx_sample_next(&a);
}

/* Whether the device can sample token t: nothing but temperature, top-k and top-p shapes the
 * choice, and its log-probability is not asked for. */
static bool is_plain(const mx_seq *s, int64_t t)
{
    const mx_request_options *o = &s->o;
    const mx_sampling *h = &o->sampling;
    bool penalties = (h->repetition_penalty > 0 && h->repetition_penalty != 1) ||
                     h->presence_penalty != 0 || h->frequency_penalty != 0;
    return t >= s->r.tokens.n && t - s->r.n_prompt >= o->min_new && !penalties && h->min_p <= 0 &&
           !o->constraint && !o->n_bias && !o->log_probs && !o->embedding;
}

void mx_engine_set_sampling(mx_engine *e)
{
    mx_engine_batch_input *in = mx_engine_batch_input_of(e->batch);
    for (int64_t i = 0; i < e->n_running && e->device_draws; i++) {
        const mx_seq *s = e->running[i];
        const mx_sampling *h = &s->o.sampling;
        for (int64_t k = s->first_row; k < s->first_row + s->n_rows; k++) {
            int64_t t = in->position[in->last[k]] + 1;
            float *how = in->sampling + k * N_SETTINGS;
            in->wants_logits[k] = !is_plain(s, t);
            bool random = h->temperature >= MX_LEAST_TEMPERATURE;
            how[TEMPERATURE] = random ? (float)h->temperature : 0;
            how[TOP_K] = h->top_k > 0 && h->top_k < e->vocab ? (float)h->top_k : 0;
            how[TOP_P] = h->top_p > 0 && h->top_p < 1 ? (float)h->top_p : 1;
            how[UNIFORM] = (float)mx_sample_uniform(h, s->o.stream, (uint64_t)(t - s->r.n_prompt));
        }
    }
}

static bool is_in(int32_t id, const int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static mx_status finish(const mx_engine *e, mx_seq *s, mx_finish how)
{
    s->r.finish = how;
    return e->o.tokenizer ? mx_reply_finish(&s->r.reply) : MX_OK;
}

/* One more token of an answer. */
static mx_status accept(const mx_engine *e, mx_seq *s, mx_choice c)
{
    mx_request *r = &s->r;
    if (isnan(c.log_prob))
        return mx_fail(MX_INPUT,
                       "token %lld of an answer: the model's logits are not numbers; its "
                       "weights are damaged, or dtype=%s is too narrow for it",
                       (long long)(r->tokens.n - r->n_prompt + 1), mx_dtype_name(e->o.compute));
    int64_t n_new = r->tokens.n - r->n_prompt;
    bool eos = !s->o.ignore_eos && is_in(c.id, e->o.stop_ids, e->o.n_stop_ids);
    if (eos || is_in(c.id, s->o.stop_ids, s->o.n_stop_ids)) {
        r->stop_id = c.id;
        return finish(e, s, MX_FINISH_STOP);
    }
    r->n_text++;
    if (s->o.constraint && !mx_constraint_take(s->o.constraint, c.id))
        return mx_fail(MX_INPUT, "the model's logits are not numbers, and no token is allowed");
    if (e->o.tokenizer)
        MX_TRY(mx_reply_push(&r->reply, c.id, n_new > s->o.min_new));
    if (r->reply.stopped_by >= 0 || (s->o.constraint && mx_constraint_done(s->o.constraint)))
        return finish(e, s, MX_FINISH_STOP);
    return n_new >= s->o.max_new ? finish(e, s, MX_FINISH_LENGTH) : MX_OK;
}

/* What was computed is in the cache, but for rejected drafts; requests without new tokens are
 * done. */
static void advance(mx_engine *e, mx_seq *s)
{
    int64_t wrong = s->n_drafted ? s->n_drafted + 1 - s->n_drawn : 0;
    s->n_kept = s->take - wrong;
    s->computed += s->n_kept;
    e->counts.drafted += s->n_drafted;
    e->counts.accepted += s->n_drafted - wrong;
    mx_engine_publish(e, s);
    if (s->computed == s->r.tokens.n && s->o.max_new == 0) {
        mx_status_free(finish(e, s, MX_FINISH_LENGTH));
        s->news = true;
    }
}

static void fail(mx_seq *s, mx_status why)
{
    s->r.error = why;
    s->r.finish = MX_FINISH_ERROR;
    s->news = true;
}

static void settle(mx_engine *e, mx_seq *s, mx_choice c)
{
    mx_request *r = &s->r;
    double now = mx_clock_now();
    mx_tokens_add(&r->tokens, c.id);
    s->scored = r->tokens.n > s->scored ? r->tokens.n : s->scored;
    if (r->tokens.n == r->n_prompt + 1)
        r->first = now;
    r->last = now;
    mx_status st = accept(e, s, c);
    if (st)
        fail(s, st);
    s->news = true;
    e->counts.new_tokens++;
}

/* A token that the device has sampled; NaN where its logits were. */
static mx_choice taken(int32_t id)
{
    return id < 0 ? (mx_choice){0, NAN} : (mx_choice){id, 0};
}

/* Samples from the logits of one sequence, up to the first draft that is rejected: rows after it
 * were computed from another token. What is sampled does not depend on drafts, so that answers are
 * the same tokens with and without. */
static void sample_rows(mx_engine *e, int64_t i, char *work)
{
    const mx_engine_batch_input *in = mx_engine_batch_input_of(e->batch);
    mx_seq *s = e->running[i];
    mx_choice *drawn = e->drawn + i * (1 + e->o.draft_tokens);
    bool right = true;
    s->n_drawn = 0;
    for (int64_t k = 0; k < s->n_rows && right; k++) {
        const float *logits = mx_engine_batch_logits(e->batch, s->first_row + k);
        int64_t t = in->position[in->last[s->first_row + k]] + 1;
        if (s->o.embedding && t == s->r.tokens.n) {
            int64_t width = mx_engine_batch_width(e->batch);
            memcpy(s->r.embedding, e->hidden + (s->first_row + k) * width,
                   sizeof(float) * (size_t)width);
            return;
        }
        if (t >= s->r.tokens.n) {
            mx_choice c = e->device_draws && !in->wants_logits[s->first_row + k]
                              ? taken(mx_engine_batch_drawn(e->batch, s->first_row + k))
                              : sample(e, s, t, logits, work);
            right = c.id == s->r.tokens.ids[t] && s->n_drawn < s->n_drafted;
            s->r.tokens.ids[t] = c.id; /* allocated for all of max_new */
            drawn[s->n_drawn++] = c;
            if (c.id == DEAD_END)
                return;
        }
        score(e, s, t, logits, work);
    }
}

void mx_engine_complete(mx_engine *e, mx_inflight *f)
{
    for (int64_t i = 0; i < f->n; i++) {
        mx_seq *s = f->part[i].s;
        if (!s)
            continue;
        if (f->part[i].n_rows) {
            s->n_pending--;
            settle(e, s, taken(mx_engine_batch_drawn(e->batch, f->part[i].row)));
        }
        mx_engine_publish(e, s);
        if (s->computed == s->r.tokens.n && s->o.max_new == 0) {
            mx_status_free(finish(e, s, MX_FINISH_LENGTH));
            s->news = true;
        }
    }
    f->n = 0;
}

void mx_engine_sample(mx_engine *e)
{
    const mx_engine_batch_input *in = mx_engine_batch_input_of(e->batch);
    size_t room = 8 * (size_t)e->model_vocab;
#pragma omp parallel for schedule(dynamic, 1) num_threads(e->n_threads) if (in->n_last > 1)
    for (int64_t i = 0; i < e->n_running; i++)
        sample_rows(e, i, e->work + room * (size_t)omp_get_thread_num());
    for (int64_t i = 0; i < e->n_running; i++) {
        mx_seq *s = e->running[i];
        const mx_choice *drawn = e->drawn + i * (1 + e->o.draft_tokens);
        bool stuck = s->n_drawn && drawn[0].id == DEAD_END;
        int64_t unread = s->r.n_prompt - s->computed;
        if (unread > 0)
            e->counts.prompt_tokens += s->take < unread ? s->take : unread;
        if (s->r.n_prompt > s->computed && s->n_rows)
            s->scored =
                s->computed + s->take < s->r.n_prompt ? s->computed + s->take + 1 : s->r.n_prompt;
        advance(e, s);
        for (int64_t k = 0; k < s->n_drawn && !stuck && !s->r.finish; k++)
            settle(e, s, drawn[k]);
        if (stuck)
            fail(s, mx_fail(MX_USAGE, "the tokenizer has no token that the answer could go on with "
                                      "under its pattern"));
    }
}

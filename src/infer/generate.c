/* generate.c - prompts in, answers out. */
#include "infer/generate.h"

#include "base/clock.h"
#include "infer/decode.h"
#include "infer/pictures.h"
#include <math.h>
#include <string.h>
#include <time.h>

typedef struct {
    const mx_model_ref *model;
    const mx_tokenizer *tok;
    const mx_tokens *prompts;
    const mx_generate_options *o;
    void (*stream)(void *ctx, const char *text, size_t n);
    void *ctx;
    mx_answer *answers;
    mx_generate_counts *counts;
    mx_decode *decode;
    void *work; /* of the sampler */
    int64_t vocab;
    size_t streamed; /* bytes of answer 0 that were given out */
} job;

static mx_status check_prompts(const job *j, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (j->prompts[i].n == 0)
            return mx_fail(MX_USAGE,
                           "prompt %lld is empty and the tokenizer adds no start token; give "
                           "some text",
                           (long long)(i + 1));
        for (int64_t k = 0; k < j->prompts[i].n; k++)
            if (j->prompts[i].ids[k] < 0 || j->prompts[i].ids[k] >= j->vocab)
                return mx_fail(MX_INPUT,
                               "the tokenizer gives id %d, but the model has %lld tokens; they "
                               "do not belong together",
                               j->prompts[i].ids[k], (long long)j->vocab);
        MX_TRY(mx_pictures_check(&j->model->spec, &j->prompts[i], j->o->n_images));
    }
    return MX_OK;
}

/* The answer's text up to the first stop text in it. What stood before byte `from` has been looked
 * at, but a stop text may begin there. */
static bool cut_at_stop(const job *j, mx_str *text, size_t from)
{
    size_t first = text->len;
    for (int i = 0; i < j->o->n_stop; i++) {
        size_t n = strlen(j->o->stop[i]), at = from >= n ? from - n + 1 : 0;
        const char *hit = n && at < text->len
                              ? memmem(text->text + at, text->len - at, j->o->stop[i], n)
                              : NULL;
        if (hit && (size_t)(hit - text->text) < first)
            first = (size_t)(hit - text->text);
    }
    if (first == text->len)
        return false;
    text->len = first;
    text->text[first] = 0;
    return true;
}

/* How many bytes at the end may be the beginning of a stop text. */
static size_t held_back(const job *j, const mx_str *text)
{
    size_t most = 0;
    for (int i = 0; i < j->o->n_stop; i++)
        for (size_t n = strlen(j->o->stop[i]); n-- > most + 1;)
            if (n <= text->len && memcmp(text->text + text->len - n, j->o->stop[i], n) == 0)
                most = n;
    return most;
}

/* Gives out what is settled of the first answer. */
static void stream(job *j, const mx_answer *a, bool ended)
{
    size_t to = a->text.len - (ended ? 0 : held_back(j, &a->text));
    if (a != j->answers || !j->stream || to <= j->streamed)
        return;
    j->stream(j->ctx, a->text.text + j->streamed, to - j->streamed);
    j->streamed = to;
}

/* Takes a token into the answer; false when the answer is complete. */
static mx_status take(job *j, mx_answer *a, mx_choice c, mx_token_stream *ts, bool *goes_on)
{
    *goes_on = false;
    if (isnan(c.log_prob))
        return mx_fail(MX_INPUT, "token %lld of an answer: the model's logits are not numbers; its "
                       "weights are damaged, or dtype=%s is too narrow for it",
                       (long long)a->ids.n + 1, mx_dtype_name(j->o->compute));
    for (int i = 0; i < j->o->n_stop_ids; i++)
        if (c.id == j->o->stop_ids[i]) {
            a->stopped = true;
            return MX_OK;
        }
    mx_tokens_add(&a->ids, c.id);
    a->log_prob += c.log_prob;
    if (j->tok) {
        size_t before = a->text.len;
        MX_TRY(mx_token_stream_push(ts, c.id, &a->text));
        a->stopped = cut_at_stop(j, &a->text, before);
        stream(j, a, false);
    }
    *goes_on = !a->stopped && a->ids.n < j->o->max_new_tokens;
    return MX_OK;
}

/* The answer is complete: what the tokenizer still held back, and what a stop text did. */
static mx_status finish(job *j, mx_answer *a, mx_token_stream *ts)
{
    size_t before = a->text.len;
    if (j->tok && !a->stopped) {
        MX_TRY(mx_token_stream_finish(ts, &a->text));
        a->stopped = cut_at_stop(j, &a->text, before);
    }
    stream(j, a, true);
    return MX_OK;
}

/* Sequences [from, from + n) of the prompts, together. */
static mx_status run_batch(job *j, int64_t from, int64_t n, int64_t batch)
{
    mx_arena scratch = {0};
    const int32_t **tokens = MX_NEW_N(&scratch, const int32_t *, batch);
    const float **pixels = MX_NEW_N(&scratch, const float *, batch);
    int64_t *count = MX_NEW_N(&scratch, int64_t, batch);
    int32_t *next = MX_NEW_N(&scratch, int32_t, batch);
    mx_tokens *seen = MX_NEW_N(&scratch, mx_tokens, batch);
    mx_token_stream *ts = MX_NEW_N(&scratch, mx_token_stream, batch);
    mx_status st = MX_OK;
    double start = mx_clock_now();
    for (int64_t b = 0; b < batch && !st; b++) {
        st = mx_decode_reset(j->decode, b);
        tokens[b] = b < n ? j->prompts[from + b].ids : NULL;
        count[b] = b < n ? j->prompts[from + b].n : 0;
        pixels[b] = j->o->pixels;
        ts[b] = (mx_token_stream){.tokenizer = j->tok, .skip_special = true};
        for (int64_t k = 0; k < count[b]; k++)
            mx_tokens_add(&seen[b], tokens[b][k]);
        j->counts->prompt_tokens += (double)count[b];
    }
    if (!st)
        st = mx_decode_feed_images(j->decode, tokens, count, pixels);
    j->counts->prompt_s += mx_clock_now() - start;
    start = mx_clock_now();
    for (uint64_t step = 0; !st; step++) {
        bool any = false;
        for (int64_t b = 0; b < n && !st; b++) {
            if (!count[b])
                continue;
            mx_choice c = mx_sample(&j->o->sampling, mx_decode_logits(j->decode, b), j->vocab,
                                    seen[b].ids, seen[b].n, (uint64_t)(from + b), step, j->work);
            bool goes_on;
            st = take(j, &j->answers[from + b], c, &ts[b], &goes_on);
            mx_tokens_add(&seen[b], c.id);
            next[b] = c.id;
            tokens[b] = &next[b];
            count[b] = goes_on;
            any |= goes_on;
            j->counts->new_tokens++;
        }
        if (!any || st)
            break;
        st = mx_decode_feed(j->decode, tokens, count);
    }
    j->counts->decode_s += mx_clock_now() - start;
    for (int64_t b = 0; b < batch; b++) {
        if (b < n && !st)
            st = finish(j, &j->answers[from + b], &ts[b]);
        mx_token_stream_fini(&ts[b]);
        mx_tokens_fini(&seen[b]);
    }
    mx_arena_fini(&scratch);
    return st;
}

static int64_t longest_image(const mx_model_spec *m, const mx_generate_options *o)
{
    mx_image_spec s;
    if (!o->n_images)
        return 0;
    m->family->images(m->config, &s);
    return mx_image_longest(&s, o->pixels, o->n_images);
}

mx_status mx_generate(const mx_model_ref *model, const mx_tokenizer *tok, const mx_tokens *prompts,
                      int64_t n, const mx_generate_options *o,
                      void (*give)(void *ctx, const char *text, size_t n_bytes), void *ctx,
                      mx_answer *answers, mx_generate_counts *counts)
{
    job j = {.model = model, .tok = tok, .prompts = prompts, .o = o, .stream = give, .ctx = ctx,
             .answers = answers, .counts = counts, .vocab = model->spec.summary.vocab};
    *counts = (mx_generate_counts){0};
    MX_TRY(check_prompts(&j, n));
    /* The embedding may be padded beyond the last token; such ids have no text and are not
     * drawn. */
    if (tok && mx_tokenizer_vocab_size(tok) < j.vocab)
        j.vocab = mx_tokenizer_vocab_size(tok);
    mx_session *session = NULL;
    mx_status st;
    int64_t longest = 0, most = o->batch > 0 ? o->batch : 32, batch = n < most ? n : most, length;
    for (int64_t i = 0; i < n; i++)
        longest = prompts[i].n > longest ? prompts[i].n : longest;
    if (__builtin_add_overflow(longest, o->max_new_tokens, &length))
        length = INT64_MAX; /* refused below: no model has so many positions */
    mx_decode_settings ds = {.batch = batch, .max_length = length,
                             .prompt_hint = longest,
                             .image_tokens = longest_image(&model->spec, o),
                             .compile = {.compute = o->compute, .weights_fixed = true,
                                         .partition = o->seat ? &o->seat->how : NULL}};
    MX_TRY_OUT(st, mx_seat_session(&session, o->seat, o->device, o->n_threads));
    MX_TRY_OUT(st, mx_decode_open(&j.decode, session, &model->spec, &ds));
    MX_TRY_OUT(st, mx_model_ref_weights(model, session, o->sampling.seed));
    MX_TRY_OUT(st, mx_alloc(&j.work, 8 * (size_t)j.vocab, "the sampler"));
    for (int64_t from = 0; from < n; from += batch)
        MX_TRY_OUT(st, run_batch(&j, from, n - from < batch ? n - from : batch, batch));
out:
    mx_free(j.work);
    mx_decode_close(j.decode);
    mx_session_close(session);
    return st;
}

void mx_answer_fini(mx_answer *a)
{
    mx_tokens_fini(&a->ids);
    mx_str_fini(&a->text);
    *a = (mx_answer){0};
}

int mx_stop_ids(const mx_model_ref *model, const mx_tokenizer *tok, int32_t *ids, int cap)
{
    const json_t *from[2] = {model->dir.generation_config, model->spec.json};
    int64_t own = tok ? mx_tokenizer_eos(tok) : -1;
    int n = 0;
    for (int i = 0; i < 2; i++) {
        const json_t *eos = json_object_get(from[i], "eos_token_id");
        size_t count = json_is_array(eos) ? json_array_size(eos) : json_is_integer(eos);
        for (size_t k = 0; k < count && n < cap; k++) {
            const json_t *item = json_is_array(eos) ? json_array_get(eos, k) : eos;
            int64_t id = json_is_integer(item) ? json_integer_value(item) : -1;
            if (id >= 0 && id <= INT32_MAX)
                ids[n++] = (int32_t)id;
        }
    }
    if (own >= 0 && n < cap)
        ids[n++] = (int32_t)own;
    return n;
}

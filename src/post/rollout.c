/* rollout.c - groups of answers: sampled with the weights that are being trained, where they lie,
 * or read from a file.
 *
 * Answers are decoded in batches of equal size. A draw is a function of (seed, generation, number
 * of the answer, token), so that neither the size of the batches nor a restart changes it. The
 * log-probability of a token is that of the softmax of logits / temperature over the whole
 * vocabulary, as training computes it; cuts of the distribution (top_k, top_p, min_p) would make
 * the two differ and are not there.
 */
#include "post/grpo.h"

#include "base/rng.h"
#include "infer/decode.h"
#include <math.h>
#include <string.h>

enum { MOST_AT_ONCE = 64 };

struct mx_sampler {
    const mx_objective_run *o;
    const mx_grpo *s;
    mx_decode *decode;
    int64_t batch, vocab, known;
    uint64_t seed;
    int32_t eos, other_eos;
};

void mx_completion_fini(mx_completion *c)
{
    mx_tokens_fini(&c->ids);
    mx_str_fini(&c->text);
    mx_free(c->logp);
    *c = (mx_completion){0};
}

mx_status mx_sampler_open(mx_sampler **out, const mx_objective_run *o, const mx_grpo *s,
                          int64_t rows)
{
    mx_sampler *x = mx_realloc(NULL, sizeof *x);
    const json_t *eos = json_object_get(o->model->json, "eos_token_id");
    *x = (mx_sampler){.o = o, .s = s, .batch = rows < MOST_AT_ONCE ? rows : MOST_AT_ONCE,
                      .vocab = o->model->summary.vocab,
                      .known = mx_tokenizer_vocab_size(o->data->tokenizer),
                      .seed = (uint64_t)mx_config_int(o->config, "data_shuffle_seed"),
                      .eos = mx_tokenizer_eos(o->data->tokenizer),
                      .other_eos = json_is_integer(eos) ? (int32_t)json_integer_value(eos) : -1};
    x->known = x->known < x->vocab ? x->known : x->vocab;
    *out = x;
    const mx_step_options *so = o->options;
    mx_decode_settings d = {.batch = x->batch, .max_length = so->shape.seq, .lora = so->lora,
                            .compile = {.compute = so->compile.compute, .reads_copies = true,
                                        .narrow_frozen = so->compile.narrow_frozen,
                                        .frozen_codes = so->compile.frozen_codes}};
    return mx_decode_open(&x->decode, o->session, o->model, &d);
}

void mx_sampler_close(mx_sampler *s)
{
    if (!s)
        return;
    mx_decode_close(s->decode);
    mx_free(s);
}

/* A token of softmax(z / T), and its log-probability. */
static int32_t draw(const mx_sampler *s, const float *z, double u, float *logp)
{
    double t = s->s->temperature, top = z[0], sum = 0, open = 0, at = 0;
    for (int64_t i = 1; i < s->vocab; i++)
        top = z[i] > top ? z[i] : top;
    for (int64_t i = 0; i < s->vocab; i++) {
        double e = exp((z[i] - top) / t);
        sum += e;
        open += i < s->known ? e : 0; /* ids beyond the tokenizer's have no text */
    }
    int32_t pick = 0;
    for (int64_t i = 0; i < s->known; i++) {
        double e = exp((z[i] - top) / t);
        at += e;
        if (e > 0)
            pick = (int32_t)i;
        if (u * open < at)
            break;
    }
    *logp = (float)((z[pick] - top) / t - log(sum));
    return pick;
}

/* The answers [from, from + n) of the rows, together. */
typedef struct {
    const int32_t **tokens;
    int64_t *count;
    int32_t *next;
    int64_t from, n;
} part;

static mx_status take(mx_sampler *s, const part *p, int64_t b, int64_t generation, mx_completion *a)
{
    float logp;
    mx_random4 r = mx_philox(s->seed ^ 0x726f6c6c6f757473u, /* another stream than the data's */
                             (uint64_t)generation << 24 ^ (uint64_t)(p->from + b),
                             (uint64_t)a->ids.n);
    int32_t id = draw(s, mx_decode_logits(s->decode, b), mx_uniform_f64(r.v[0], r.v[1]), &logp);
    if (!isfinite(logp))
        return mx_fail(MX_CHECK_FAILED, "the logits of an answer's token %lld are not numbers; "
                       "lower learning_rate", (long long)a->ids.n + 1);
    a->logp[a->ids.n] = logp;
    mx_tokens_add(&a->ids, id);
    p->next[b] = id;
    p->tokens[b] = &p->next[b];
    bool ended = id == s->eos || id == s->other_eos;
    a->truncated = !ended && a->ids.n == s->s->max_completion;
    p->count[b] = !ended && !a->truncated;
    return MX_OK;
}

static mx_status run_part(mx_sampler *s, const mx_post_prompt *prompts, part *p, int64_t generation,
                          mx_completion *out)
{
    for (int64_t b = 0; b < s->batch; b++) {
        const mx_post_prompt *q = b < p->n ? &prompts[(p->from + b) / s->s->generations] : NULL;
        MX_TRY(mx_decode_reset(s->decode, b));
        p->tokens[b] = q ? q->ids.ids : NULL;
        p->count[b] = q ? q->ids.n : 0;
    }
    for (bool any = true; any;) {
        MX_TRY(mx_decode_feed(s->decode, p->tokens, p->count));
        any = false;
        for (int64_t b = 0; b < p->n; b++) {
            if (p->count[b])
                MX_TRY(take(s, p, b, generation, &out[p->from + b]));
            any |= p->count[b] > 0;
        }
    }
    return MX_OK;
}

mx_status mx_sampler_run(mx_sampler *s, const mx_post_prompt *prompts, int64_t n,
                         int64_t generation, mx_completion *out)
{
    mx_arena scratch = {0};
    int64_t rows = n * s->s->generations;
    part p = {.tokens = MX_NEW_N(&scratch, const int32_t *, s->batch),
              .count = MX_NEW_N(&scratch, int64_t, s->batch),
              .next = MX_NEW_N(&scratch, int32_t, s->batch)};
    mx_status st = MX_OK;
    for (int64_t i = 0; i < rows; i++) {
        out[i].ids.n = 0;
        out[i].reward = NAN;
        out[i].logp = mx_realloc(out[i].logp, sizeof(float) * (size_t)s->s->max_completion);
    }
    for (p.from = 0; p.from < rows && !st; p.from += s->batch) {
        p.n = rows - p.from < s->batch ? rows - p.from : s->batch;
        st = run_part(s, prompts, &p, generation, out);
    }
    mx_decode_options o = {.skip_special = true};
    for (int64_t i = 0; i < rows && !st; i++) {
        mx_str_clear(&out[i].text);
        st = mx_tokenizer_decode(s->o->data->tokenizer, out[i].ids.ids, out[i].ids.n, &o,
                                 &out[i].text);
    }
    mx_arena_fini(&scratch);
    return st;
}

/* --- recorded ones --- */

static mx_status read_ids(const json_t *list, mx_tokens *out)
{
    out->n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return mx_fail(MX_INPUT, "\"ids\" of a completion: element %zu is no token id", i);
        mx_tokens_add(out, (int32_t)json_integer_value(v));
    }
    return MX_OK;
}

/* The tokens that the text adds to its prompt's, and the end token. */
static mx_status read_text(const mx_train_data *d, const mx_post_prompt *asked, const json_t *text,
                           mx_completion *c)
{
    mx_tokens all = {0};
    mx_str whole = {0};
    mx_encode_options o = {.special_in_text = MX_SPECIAL_PARSE};
    bool chat = !json_is_string(json_object_get(asked->record, "prompt"));
    o.add_special = !chat;
    mx_str_add(&whole, asked->text);
    mx_str_add_n(&whole, json_string_value(text), json_string_length(text));
    mx_status st = mx_tokenizer_encode(d->tokenizer, mx_str_text(&whole), whole.len, &o, &all);
    int64_t n = 0;
    while (!st && n < all.n && n < asked->ids.n && all.ids[n] == asked->ids.ids[n])
        n++;
    if (!st && n < asked->ids.n)
        st = mx_fail(MX_INPUT, "the completion \"%.40s\" changes the tokens of its prompt; give "
                     "its \"ids\"", json_string_value(text));
    c->ids.n = 0;
    for (; !st && n < all.n; n++)
        mx_tokens_add(&c->ids, all.ids[n]);
    int32_t eos = mx_tokenizer_eos(d->tokenizer);
    if (eos >= 0 && (!c->ids.n || c->ids.ids[c->ids.n - 1] != eos))
        mx_tokens_add(&c->ids, eos);
    mx_tokens_fini(&all);
    mx_str_fini(&whole);
    return st;
}

static mx_status read_logps(const json_t *list, mx_completion *c)
{
    mx_free(c->logp);
    c->logp = NULL;
    if (!list || json_is_null(list))
        return MX_OK;
    if ((int64_t)json_array_size(list) != c->ids.n)
        return mx_fail(MX_INPUT, "a completion has %lld tokens and %zu logprobs",
                       (long long)c->ids.n, json_array_size(list));
    c->logp = mx_realloc(NULL, sizeof(float) * (size_t)(c->ids.n + 1));
    for (size_t i = 0; i < json_array_size(list); i++)
        c->logp[i] = (float)json_number_value(json_array_get(list, i));
    return MX_OK;
}

mx_status mx_recorded_answers(const mx_train_data *d, const mx_post_prompt *asked, const mx_grpo *s,
                              mx_completion *out)
{
    const json_t *list = json_object_get(asked->record, "completions");
    if ((int64_t)json_array_size(list) != s->generations)
        return mx_fail(MX_INPUT, "rollout_path: a prompt has %zu completions; expected "
                       "num_generations=%lld", json_array_size(list), (long long)s->generations);
    for (int64_t i = 0; i < s->generations; i++) {
        const json_t *one = json_array_get(list, (size_t)i), *ids = json_object_get(one, "ids");
        const json_t *text = json_object_get(one, "text"), *r = json_object_get(one, "reward");
        mx_completion *c = &out[i];
        if (!json_is_array(ids) && !json_is_string(text))
            return mx_fail(MX_INPUT, "rollout_path: a completion has neither \"ids\" nor \"text\"");
        MX_TRY(json_is_array(ids) ? read_ids(ids, &c->ids) : read_text(d, asked, text, c));
        if (c->ids.n > s->max_completion)
            return mx_fail(MX_INPUT, "rollout_path: a completion has %lld tokens, more than "
                           "max_completion_length=%lld", (long long)c->ids.n,
                           (long long)s->max_completion);
        MX_TRY(read_logps(json_object_get(one, "logprobs"), c));
        c->reward = json_is_number(r) ? json_number_value(r) : NAN;
        int32_t eos = mx_tokenizer_eos(d->tokenizer);
        c->truncated = !c->ids.n || c->ids.ids[c->ids.n - 1] != eos;
        mx_str_clear(&c->text);
        MX_TRY(mx_tokenizer_decode(d->tokenizer, c->ids.ids, c->ids.n,
                                   &(mx_decode_options){.skip_special = true}, &c->text));
    }
    return MX_OK;
}

/* rollout.c - groups of answers: sampled with the weights that are being trained, where they lie,
 * or read from a file.
 *
 * Answers are decoded in batches of equal size. A draw is a function of (seed, generation, number
 * of the answer, token), so that neither the size of the batches nor a restart changes it. On a
 * mesh the program is cut as training's is: all ranks decode the answers of all, each with its part
 * of the weights and caches, and draw the same tokens from the same logits. The
 * log-probability of a token is that of the softmax of logits / temperature over the whole
 * vocabulary, as training computes it, on the CPU to the bit: decoding takes the GEMMs and the
 * attention of a training step (one_path), and the sum over the vocabulary is linear_xent's. Cuts
 * of the distribution (top_k, top_p, min_p) would make the two differ and are not there.
 */
#include "post/grpo.h"

#include "base/rng.h"
#include "compile/lora.h"
#include "infer/decode.h"
#include "ops/cpu/xent_kernel.h"
#include "post/mesh_rows.h"
#include <math.h>
#include <omp.h>
#include <string.h>

/* Answers that are decoded together, unless a key says. */
enum { MOST_AT_ONCE = 64, MOST_ON_GPU = 256 };
/* Of recorded log-probabilities: 0, and what rounding adds. */
#define MOST_LOGP 0.01

struct mx_sampler {
    const mx_objective_run *o;
    const mx_grpo *s;
    mx_decode *decode;
    int64_t batch, vocab, known;
    uint64_t seed;
    int32_t eos, other_eos;
    bool draws;  /* tokens are drawn on the device */
    float *rows; /* (threads, vocab): a row of logits while it is drawn from */
};

void mx_completion_fini(mx_completion *c)
{
    mx_tokens_fini(&c->ids);
    mx_str_fini(&c->text);
    mx_free(c->logp);
    *c = (mx_completion){0};
}

mx_reward_input mx_reward_input_of(const mx_post_prompt *asked, const mx_completion *c,
                                   const mx_grpo *s)
{
    return (mx_reward_input){.prompt = asked->text, .answer = mx_str_text(&c->text),
                             .n_answer = c->text.len, .record = asked->record,
                             .tokens = c->ids.n, .max_tokens = s->max_completion,
                             .truncated = c->truncated};
}

static mx_decode_settings decode_settings(const mx_objective_run *o, const mx_grpo *s,
                                          int64_t rows)
{
    const mx_step_options *so = o->options;
    int64_t most = so->compile.device->host_memory ? MOST_AT_ONCE : MOST_ON_GPU;
    if (s->at_once > 0)
        most = s->at_once;
    most *= mx_rows_parts(o);
    /* Logits of a batch are a quarter of a gigabyte for every token: they stay on a GPU. */
    bool draws = !so->compile.device->host_memory && !so->compile.partition;
    int64_t vocab = o->model->summary.vocab;
    /* a plan has no tokenizer */
    int64_t known = o->data ? mx_tokenizer_vocab_size(o->data->tokenizer) : vocab;
    return (mx_decode_settings){.batch = rows < most ? rows : most,
                                .draw_vocab = !draws ? 0 : known < vocab ? known : vocab,
                                .max_length = so->shape.seq,
                                .lora = so->lora,
                                .stages = o->stages,
                                .temperature = s->temperature,
                                .one_path = true,
                                .compile = {.compute = so->compile.compute,
                                            .reads_copies = true,
                                            .partition = so->compile.partition,
                                            .narrow_frozen = so->compile.narrow_frozen,
                                            .frozen_quant = so->compile.frozen_quant}};
}

mx_status mx_sampler_beside(const mx_objective_run *o, const mx_grpo *s, int64_t rows,
                            mx_beside *out)
{
    double bytes;
    mx_decode_settings d = decode_settings(o, s, rows);
    d.compile.device = o->options->compile.device;
    MX_TRY(mx_decode_bytes(o->model, &d, &bytes));
    mx_beside_add(out, "rollout cache", bytes);
    return MX_OK;
}

mx_status mx_sampler_open(mx_sampler **out, const mx_objective_run *o, const mx_grpo *s,
                          int64_t rows)
{
    mx_sampler *x = mx_realloc(NULL, sizeof *x);
    const json_t *eos = json_object_get(o->model->json, "eos_token_id");
    mx_decode_settings d = decode_settings(o, s, rows);
    *x = (mx_sampler){.o = o, .s = s, .batch = d.batch, .draws = d.draw_vocab > 0,
                      .vocab = o->model->summary.vocab,
                      .known = mx_tokenizer_vocab_size(o->data->tokenizer),
                      .seed = (uint64_t)mx_config_int(o->config, "data_shuffle_seed"),
                      .eos = mx_tokenizer_eos(o->data->tokenizer),
                      .other_eos = json_is_integer(eos) ? (int32_t)json_integer_value(eos) : -1};
    x->known = x->known < x->vocab ? x->known : x->vocab;
    *out = x;
    MX_TRY(mx_alloc((void **)&x->rows,
                    sizeof(float) * (size_t)(x->vocab * mx_session_threads(o->session)),
                    "rows of logits"));
    return mx_decode_open(&x->decode, o->session, o->model, &d);
}

void mx_sampler_close(mx_sampler *s)
{
    if (!s)
        return;
    mx_decode_close(s->decode);
    mx_free(s->rows);
    mx_free(s);
}

static double sum_of(const float *x, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum;
}

/* The token below which u of the weights lie, among the first `known`: a tile, then a token of it.
 * A tile's weights are those of e^z divided by e^top; `last` is what all have in common. */
static int32_t pick_token(const float *weight, const mx_xent_row_facts *f, int64_t known, double u)
{
    double last = (double)f->top[f->n - 1], mass[MX_XENT_ROW_TILES], all = 0, at = 0;
    int tiles = (int)((known + MX_XENT_TILE - 1) / MX_XENT_TILE), t = 0;
    for (int i = 0; i < tiles; i++) {
        int64_t from = i * (int64_t)MX_XENT_TILE, left = known - from;
        mass[i] = exp((double)f->top[i] - last) *
                  sum_of(weight + from, left < MX_XENT_TILE ? left : MX_XENT_TILE);
        all += mass[i];
    }
    while (t + 1 < tiles && at + mass[t] <= u * all)
        at += mass[t++];
    int64_t from = t * (int64_t)MX_XENT_TILE, end = from + MX_XENT_TILE, pick = from;
    double scale = exp((double)f->top[t] - last);
    end = end < known ? end : known;
    for (int64_t i = from; i < end && at <= u * all; i++) {
        at += scale * (double)weight[i];
        pick = weight[i] > 0 ? i : pick;
    }
    return (int32_t)pick;
}

/* A token of softmax(z), z being tempered already, and its log-probability: the bits that
 * linear_xent gives it in training. Ids beyond the tokenizer's have no text and are not drawn. */
static int32_t draw(const mx_sampler *s, const float *z, double u, float *row, float *logp)
{
    mx_xent_row_facts f;
    memcpy(row, z, sizeof *row * (size_t)s->vocab);
    mx_xent_row(row, s->vocab, &f);
    int32_t pick = pick_token(row, &f, s->known, u);
    *logp = -(float)(f.lse - (double)z[pick]);
    return pick;
}

/* The answers [from, from + n) of the rows, together. */
typedef struct {
    const int32_t **tokens;
    int64_t *count;
    int32_t *next;
    float *logp; /* of next */
    int64_t from, n;
} part;

/* What decides the next token of row b. */
static double uniform_of(const mx_sampler *s, const part *p, int64_t b, int64_t generation,
                         const mx_completion *out)
{
    mx_random4 r = mx_philox(s->seed ^ 0x726f6c6c6f757473u, /* another stream than the data's */
                             (uint64_t)generation << 24 ^ (uint64_t)(p->from + b),
                             (uint64_t)out[p->from + b].ids.n);
    return mx_uniform_f64(r.v[0], r.v[1]);
}

/* Feeds the tokens of each sequence, and draws its next. */
static mx_status advance(mx_sampler *s, const part *p, int64_t generation, const mx_completion *out)
{
    for (int64_t b = 0; b < p->n && s->draws; b++)
        mx_decode_decide(s->decode, b, uniform_of(s, p, b, generation, out));
    MX_TRY(mx_decode_feed(s->decode, p->tokens, p->count));
    for (int64_t b = 0; b < p->n && s->draws; b++)
        if (p->count[b])
            p->next[b] = mx_decode_drawn(s->decode, b, &p->logp[b]);
    if (s->draws)
        return MX_OK;
#pragma omp parallel for schedule(dynamic, 1) num_threads(mx_session_threads(s->o->session))
    for (int64_t b = 0; b < p->n; b++)
        if (p->count[b])
            p->next[b] = draw(s, mx_decode_logits(s->decode, b),
                              uniform_of(s, p, b, generation, out),
                              s->rows + s->vocab * omp_get_thread_num(), &p->logp[b]);
    return MX_OK;
}

static mx_status take(mx_sampler *s, const part *p, int64_t b, mx_completion *a)
{
    float logp = p->logp[b];
    int32_t id = p->next[b];
    if (!isfinite(logp))
        return mx_fail(MX_CHECK_FAILED, "the logits of an answer's token %lld are not numbers; "
                       "lower learning_rate", (long long)a->ids.n + 1);
    a->logp[a->ids.n] = logp;
    mx_tokens_add(&a->ids, id);
    p->tokens[b] = &p->next[b];
    bool ended = id == s->eos || id == s->other_eos;
    a->truncated = !ended && a->ids.n == s->s->max_completion;
    p->count[b] = !ended && !a->truncated;
    return MX_OK;
}

static mx_status run_part(mx_sampler *s, const mx_post_prompt *prompts, part *p, int64_t generation,
                          mx_completion *out)
{
    MX_TRY(mx_decode_reset(s->decode, -1));
    for (int64_t b = 0; b < s->batch; b++) {
        const mx_post_prompt *q = b < p->n ? &prompts[(p->from + b) / s->s->generations] : NULL;
        p->tokens[b] = q ? q->ids.ids : NULL;
        p->count[b] = q ? q->ids.n : 0;
    }
    for (bool any = true; any;) {
        any = false;
        MX_TRY(advance(s, p, generation, out));
        for (int64_t b = 0; b < p->n; b++) {
            if (p->count[b])
                MX_TRY(take(s, p, b, &out[p->from + b]));
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
              .next = MX_NEW_N(&scratch, int32_t, s->batch),
              .logp = MX_NEW_N(&scratch, float, s->batch)};
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

bool mx_sampler_is_exact(const mx_sampler *s)
{
    const mx_step_options *so = s->o->options;
    return mx_decode_is_exact(s->decode) && !so->compile.quantization && !so->compile.partition &&
           !so->compile.frozen_quant && so->dropout == 0 && so->attention_dropout == 0 &&
           (!so->lora || so->lora->dropout == 0);
}

/* --- recorded ones --- */

static mx_status read_ids(const json_t *list, mx_tokens *out)
{
    out->n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return mx_fail(MX_INPUT, "\"ids\" of a completion: element %zu is not a token id", i);
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
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        double x = json_is_number(v) ? json_number_value(v) : NAN;
        if (!(x <= MOST_LOGP))
            return mx_fail(MX_INPUT, "\"logprobs\" of a completion: element %zu is not the "
                           "logarithm of a probability; expected a number of at most 0", i);
        c->logp[i] = (float)x;
    }
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
        if (r && !json_is_number(r) && !json_is_null(r))
            return mx_fail(MX_INPUT, "rollout_path: the \"reward\" of a completion is neither a "
                           "number nor null");
        c->reward = json_is_number(r) ? json_number_value(r) : NAN;
        c->unjudged = json_is_null(r);
        int32_t last = c->ids.n ? c->ids.ids[c->ids.n - 1] : -1;
        c->truncated = last < 0 || (last != mx_tokenizer_eos(d->tokenizer) &&
                                    last != mx_tokenizer_pad(d->tokenizer)); /* as TRL */
        mx_str_clear(&c->text);
        MX_TRY(mx_tokenizer_decode(d->tokenizer, c->ids.ids, c->ids.n,
                                   &(mx_decode_options){.skip_special = true}, &c->text));
    }
    return MX_OK;
}

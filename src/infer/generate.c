/* generate.c - prompts in, answers out. */
#include "infer/generate.h"

#include "base/clock.h"
#include "infer/decode.h"
#include "infer/engine.h"
#include "infer/pictures.h"
#include "infer/reply.h"
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

static mx_status check_options(const job *j)
{
    if (j->o->n_adapters && (j->o->mesh_rank || j->o->n_images))
        return mx_fail(MX_USAGE, "several adapters in one batch are for one device and prompts "
                       "without pictures; leave %s out, or give one adapter",
                       j->o->mesh_rank ? "mesh=" : "image=");
    if ((j->o->quant.dtype != MX_F32 || j->o->quant.cache != MX_F32) && j->o->mesh_rank)
        return mx_fail(MX_USAGE, "%s decodes on one device; leave mesh= out",
                       j->o->quant.cache != MX_F32 ? "quantize_kvcache=true" : "quantization=");
    return MX_OK;
}

/* Gives out what is settled of the first answer. */
static void stream(job *j, const mx_answer *a, const mx_reply *r)
{
    if (a != j->answers || !j->stream || r->settled <= j->streamed)
        return;
    j->stream(j->ctx, r->text.text + j->streamed, r->settled - j->streamed);
    j->streamed = r->settled;
}

/* Takes a token into the answer; *goes_on: the answer is not complete. */
static mx_status take(job *j, mx_answer *a, mx_choice c, mx_reply *r, bool *goes_on)
{
    *goes_on = false;
    if (isnan(c.log_prob))
        return mx_fail(MX_INPUT,
                       "token %lld of an answer: the model's logits are not numbers; its "
                       "weights are damaged, or dtype=%s is too narrow for it",
                       (long long)a->ids.n + 1, mx_dtype_name(j->o->compute));
    for (int i = 0; i < j->o->n_stop_ids; i++)
        if (c.id == j->o->stop_ids[i]) {
            a->stopped = true;
            return MX_OK;
        }
    mx_tokens_add(&a->ids, c.id);
    a->log_prob += c.log_prob;
    if (j->tok)
        MX_TRY(mx_reply_push(r, c.id, true));
    stream(j, a, r);
    a->stopped = r->stopped_by >= 0;
    *goes_on = !a->stopped && a->ids.n < j->o->max_new_tokens;
    return MX_OK;
}

/* The answer's text is the reply's. */
static void take_text(mx_answer *a, mx_reply *r)
{
    a->text = r->text;
    r->text = (mx_str){0};
}

/* The answer is complete: what the tokenizer still held back, and what a stop text did. */
static mx_status finish(job *j, mx_answer *a, mx_reply *r)
{
    if (j->tok)
        MX_TRY(mx_reply_finish(r));
    a->stopped |= r->stopped_by >= 0;
    stream(j, a, r);
    take_text(a, r);
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
    mx_reply *reply = MX_NEW_N(&scratch, mx_reply, batch);
    mx_status st = MX_OK;
    double start = mx_clock_now();
    for (int64_t b = 0; b < batch && !st; b++) {
        st = mx_decode_reset(j->decode, b);
        tokens[b] = b < n ? j->prompts[from + b].ids : NULL;
        count[b] = b < n ? j->prompts[from + b].n : 0;
        pixels[b] = j->o->pixels;
        mx_reply_init(&reply[b], j->tok, true, j->o->stop, j->o->n_stop);
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
            st = take(j, &j->answers[from + b], c, &reply[b], &goes_on);
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
            st = finish(j, &j->answers[from + b], &reply[b]);
        mx_reply_fini(&reply[b]);
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

/* Batches of prompts, each until its last answer has ended: for models and prompts that the engine
 * does not take. */
static mx_status run_batches(job *j, mx_session *session, int64_t n, int64_t batch, int64_t length,
                             int64_t longest)
{
    const mx_generate_options *o = j->o;
    mx_status st;
    mx_forward_stages stages;
    mx_decode_settings ds = {.batch = batch,
                             .max_length = length,
                             .stages = mx_mesh_rank_stages(o->mesh_rank, &stages),
                             .prompt_hint = longest,
                             .image_tokens = longest_image(&j->model->spec, o),
                             .compile = {.compute = o->compute, .weights_fixed = true,
                                         .quant = o->quant,
                                         .partition = o->mesh_rank ? &o->mesh_rank->how : NULL},
                             .lora = j->model->has_adapter ? &j->model->adapter.lora : NULL};
    if (ds.stages)
        mx_session_set_stage(session);
    MX_TRY_OUT(st, mx_decode_open(&j->decode, session, &j->model->spec, &ds));
    MX_TRY_OUT(st, mx_model_ref_weights(j->model, session, o->sampling.seed));
    MX_TRY_OUT(st, mx_alloc(&j->work, 8 * (size_t)j->vocab, "the sampler"));
    for (int64_t from = 0; from < n; from += batch)
        MX_TRY_OUT(st, run_batch(j, from, n - from < batch ? n - from : batch, batch));
out:
    mx_free(j->work);
    mx_decode_close(j->decode);
    return st;
}

/* --- through the engine --- */

static mx_status admit_all(job *j, mx_engine *e, int64_t n, mx_image_set *images)
{
    const mx_generate_options *o = j->o;
    for (int64_t i = 0; i < n; i++) {
        mx_request *r;
        mx_request_options q = {.sampling = o->sampling,
                                .stream = (uint64_t)i,
                                .max_new = o->max_new_tokens,
                                .stop = o->stop,
                                .n_stop = o->n_stop,
                                .log_probs = true,
                                .images = images,
                                .adapter = o->n_adapters ? o->adapter_of[i] : 0,
                                .owner = &j->answers[i]};
        MX_TRY(mx_engine_admit(e, &j->prompts[i], &q, &r));
    }
    return MX_OK;
}

/* What a request has new; its answer once it has ended. */
static mx_status follow(job *j, mx_engine *e, mx_request *r)
{
    mx_answer *a = r->owner;
    stream(j, a, &r->reply);
    if (!r->finish)
        return MX_OK;
    mx_status st = r->error;
    r->error = MX_OK;
    for (int64_t i = r->n_prompt; i < r->n_prompt + r->n_text; i++) {
        mx_tokens_add(&a->ids, r->tokens.ids[i]);
        a->log_prob += r->log_prob[i];
    }
    a->stopped = r->finish == MX_FINISH_STOP;
    take_text(a, &r->reply);
    mx_engine_cancel(e, r);
    return st;
}

/* Time of steps goes to prompts and to answers by their tokens. */
static mx_status step(job *j, mx_engine *e)
{
    mx_generate_counts *c = j->counts;
    double start = mx_clock_now();
    MX_TRY(mx_engine_step(e));
    double took = mx_clock_now() - start;
    mx_engine_counts now = mx_engine_count(e);
    double read = (double)now.prompt_tokens - c->prompt_tokens;
    double written = (double)now.new_tokens - c->new_tokens;
    c->prompt_s += read > 0 ? took * read / (read + written) : 0;
    c->decode_s += read > 0 ? took * written / (read + written) : took;
    c->prompt_tokens += read;
    c->new_tokens += written;
    return MX_OK;
}

static int64_t largest_rank(const mx_generate_options *o)
{
    int64_t most = 0;
    for (int i = 0; i < o->n_adapters; i++)
        for (int k = 0; k < o->adapters[i].lora.n_only; k++)
            if (o->adapters[i].lora.only[k].rank > most)
                most = o->adapters[i].lora.only[k].rank;
    return most;
}

/* Takes the session. */
static mx_status run_engine(job *j, mx_session *session, int64_t n, int64_t batch, int64_t length)
{
    const mx_generate_options *o = j->o;
    int64_t total = 0, page = 64, most;
    mx_engine *e = NULL;
    mx_image_set *images = NULL;
    mx_status st;
    for (int64_t i = 0; i < n; i++)
        total += j->prompts[i].n;
    if (length > INT32_MAX || __builtin_mul_overflow(batch, length + page, &most))
        most = 0; /* as much as there is memory for */
    mx_engine_options eo = {.model = j->model,
                            .tokenizer = j->tok,
                            .session = session,
                            .compute = o->compute,
                            .quant = o->quant,
                            .sequences = batch,
                            .step_tokens = total < o->step_tokens ? total : o->step_tokens,
                            .no_prefix_cache = o->no_prefix_cache,
                            .draft_tokens = o->draft_tokens,
                            .mtp = o->mtp,
                            .images = o->n_images > 0,
                            .max_length = length,
                            .cache_tokens = most,
                            .seed = o->sampling.seed,
                            .stop_ids = o->stop_ids,
                            .n_stop_ids = o->n_stop_ids,
                            .adapter_slots = o->n_adapters,
                            .adapter_rank = largest_rank(o)};
    MX_TRY_OUT(st, mx_engine_open(&e, &eo));
    for (int i = 0; i < o->n_adapters; i++)
        MX_TRY_OUT(st, mx_engine_adapt(e, i + 1, &o->adapters[i]));
    if (o->n_images)
        MX_TRY_OUT(st, mx_image_set_new(&images, &j->model->spec, o->pixels, o->n_images));
    MX_TRY_OUT(st, admit_all(j, e, n, images));
    while (mx_engine_busy(e)) {
        MX_TRY_OUT(st, step(j, e));
        for (mx_request *r; (r = mx_engine_take(e));)
            MX_TRY_OUT(st, follow(j, e, r));
    }
out:
    mx_engine_close(e);
    mx_image_set_release(images);
    return st;
}

/* On a GPU, paged attention is not as fast as that over contiguous caches. */
static bool suits_engine(const job *j, const mx_session *session)
{
    if (j->model->has_adapter || !mx_session_traits(session)->host_memory)
        return false;
    mx_status cannot = mx_engine_can(&j->model->spec);
    mx_status_free(cannot);
    return !cannot;
}

mx_status mx_generate(const mx_model_ref *model, const mx_tokenizer *tok, const mx_tokens *prompts,
                      int64_t n, const mx_generate_options *o,
                      void (*give)(void *ctx, const char *text, size_t n_bytes), void *ctx,
                      mx_answer *answers, mx_generate_counts *counts)
{
    job j = {.model = model,
             .tok = tok,
             .prompts = prompts,
             .o = o,
             .stream = give,
             .ctx = ctx,
             .answers = answers,
             .counts = counts,
             .vocab = model->spec.summary.vocab};
    *counts = (mx_generate_counts){0};
    MX_TRY(check_options(&j));
    MX_TRY(check_prompts(&j, n));
    /* The embedding may be padded beyond the last token; such ids have no text and are not
     * sampled. */
    if (tok && mx_tokenizer_vocab_size(tok) < j.vocab)
        j.vocab = mx_tokenizer_vocab_size(tok);
    int64_t longest = 0, most = o->batch > 0 ? o->batch : 32, batch = n < most ? n : most, length;
    for (int64_t i = 0; i < n; i++)
        longest = prompts[i].n > longest ? prompts[i].n : longest;
    if (__builtin_add_overflow(longest, o->max_new_tokens, &length))
        length = INT64_MAX; /* refused below: no model has so many positions */
    mx_session *session;
    MX_TRY(mx_mesh_rank_session(&session, o->mesh_rank, o->device, o->n_threads));
    if (!o->mesh_rank && (o->n_adapters || suits_engine(&j, session)))
        return run_engine(&j, session, n, batch, length);
    mx_status st = run_batches(&j, session, n, batch, length, longest);
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

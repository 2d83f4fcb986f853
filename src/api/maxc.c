/* maxc.c - include/maxc.h on top of the rest: one model, one session, one sequence.
 *
 * Everything is in one file on purpose: a program that uses any of it links all of the archive, and
 * with that whatever the CUDA plug-in looks for in the program that opens it.
 */
#include "maxc.h"

#include "base/version.h"
#include "cmd/verb.h"
#include "infer/decode.h"
#include "infer/generate.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_STOP_IDS = 32, USUAL_LENGTH = 4096, USUAL_ANSWER = 256 };

struct maxc_model {
    mx_model_ref ref;
    mx_tokenizer *tok;    /* NULL: the directory has none */
    mx_status why_no_tok; /* said when text is asked for; owns */
    mx_session *session;
    mx_decode *decode;
    int64_t max_length;
};

/* An error of the library is the program's own status. */
static maxc_error *give(mx_status st)
{
    return (maxc_error *)st;
}

const char *maxc_version(void)
{
    return MX_VERSION;
}

int maxc_error_code(const maxc_error *e)
{
    return (int)mx_status_code((mx_status)e);
}

const char *maxc_error_text(const maxc_error *e)
{
    return mx_status_text((mx_status)e);
}

void maxc_error_free(maxc_error *e)
{
    mx_status_free((mx_status)e);
}

void maxc_free(void *p)
{
    mx_free(p);
}

/* ---- opening ---- */

/* A checkpoint of our own without tokenizer files was trained on bytes. Without a tokenizer, a
 * model can still be fed ids. */
static mx_status open_tokenizer(maxc_model *m, const char *given)
{
    char state[4096];
    const mx_tokenizer_options usual = {0};
    if (given)
        return mx_tokenizer_open(&m->tok, given, &usual);
    snprintf(state, sizeof state, "%s/state.json", m->ref.path ? m->ref.path : "");
    if (m->ref.path)
        m->why_no_tok = mx_tokenizer_open(&m->tok, m->ref.path, &usual);
    if (m->ref.path && (!m->why_no_tok || access(state, R_OK) != 0))
        return MX_OK;
    mx_status_free(m->why_no_tok);
    m->why_no_tok = MX_OK;
    return mx_tokenizer_open(&m->tok, NULL, &usual);
}

static mx_status need_tokenizer(const maxc_model *m)
{
    return m->tok
               ? MX_OK
               : mx_fail(MX_INPUT, "the model has no tokenizer: %s", mx_status_text(m->why_no_tok));
}

static mx_status choose_dtype(const char *name, mx_dtype *out)
{
    *out = MX_F32;
    if (!name || strcmp(name, "float32") == 0)
        return MX_OK;
    if (strcmp(name, "bfloat16") != 0)
        return mx_fail(MX_USAGE, "dtype is float32 or bfloat16, not %s", name);
    *out = MX_BF16;
    return MX_OK;
}

static mx_status open_model(maxc_model *m, const char *path, const maxc_model_options *o)
{
    char home[4096];
    mx_dtype compute;
    mx_config_home(home, sizeof home);
    MX_TRY(choose_dtype(o->dtype, &compute));
    MX_TRY(mx_model_ref_open(&m->ref, path, *home ? home : NULL, NULL));
    MX_TRY(open_tokenizer(m, o->tokenizer));
    int64_t most = m->ref.spec.summary.max_positions;
    m->max_length = most > 0 && most < USUAL_LENGTH ? most : USUAL_LENGTH;
    m->max_length = o->max_length > 0 ? o->max_length : m->max_length;
    mx_decode_settings ds = {.batch = 1,
                             .max_length = m->max_length,
                             .compile = {.compute = compute, .weights_fixed = true}};
    MX_TRY(mx_session_open(&m->session, o->device ? o->device : "auto", o->n_threads));
    MX_TRY(mx_decode_open(&m->decode, m->session, &m->ref.spec, &ds));
    return mx_model_ref_weights(&m->ref, m->session, 0);
}

maxc_error *maxc_model_open(maxc_model **out, const char *path, const maxc_model_options *options)
{
    maxc_model *m = mx_realloc(NULL, sizeof *m);
    *m = (maxc_model){0};
    *out = NULL;
    mx_status st = open_model(m, path, options ? options : &(maxc_model_options){0});
    if (st)
        maxc_model_close(m);
    else
        *out = m;
    return give(st);
}

void maxc_model_close(maxc_model *m)
{
    if (!m)
        return;
    mx_decode_close(m->decode);
    mx_session_close(m->session);
    mx_tokenizer_close(m->tok);
    mx_status_free(m->why_no_tok);
    mx_model_ref_close(&m->ref);
    mx_free(m);
}

int64_t maxc_model_vocab_size(const maxc_model *m)
{
    return m->ref.spec.summary.vocab;
}

int64_t maxc_model_max_length(const maxc_model *m)
{
    return m->max_length;
}

/* ---- text ---- */

maxc_error *maxc_tokenize(const maxc_model *m, const char *text, size_t n_bytes, int32_t **ids,
                          size_t *n)
{
    mx_tokens out = {0};
    mx_encode_options plain = {.add_special = true, .special_in_text = MX_SPECIAL_TEXT};
    mx_status st = need_tokenizer(m);
    if (!st)
        st = mx_tokenizer_encode(m->tok, text, n_bytes, &plain, &out);
    if (st)
        mx_tokens_fini(&out);
    *ids = out.ids;
    *n = (size_t)out.n;
    return give(st);
}

maxc_error *maxc_detokenize(const maxc_model *m, const int32_t *ids, size_t n, char **text)
{
    mx_str out = {0};
    mx_str_add(&out, "");
    mx_decode_options o = {.skip_special = true};
    mx_status st = need_tokenizer(m);
    if (!st)
        st = mx_tokenizer_decode(m->tok, ids, (int64_t)n, &o, &out);
    if (st)
        mx_str_fini(&out);
    *text = out.text;
    return give(st);
}

/* ---- the sequence ---- */

static mx_status feed(maxc_model *m, const int32_t *ids, int64_t n)
{
    int64_t vocab = maxc_model_vocab_size(m);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return mx_fail(MX_INPUT, "token %lld is %d; the model has tokens 0 to %lld",
                           (long long)i, ids[i], (long long)vocab - 1);
    return mx_decode_feed(m->decode, &ids, &n);
}

maxc_error *maxc_feed(maxc_model *m, const int32_t *ids, size_t n)
{
    return give(feed(m, ids, (int64_t)n));
}

const float *maxc_logits(const maxc_model *m)
{
    return mx_decode_length(m->decode, 0) ? mx_decode_logits(m->decode, 0) : NULL;
}

int64_t maxc_length(const maxc_model *m)
{
    return mx_decode_length(m->decode, 0);
}

maxc_error *maxc_reset(maxc_model *m)
{
    return give(mx_decode_reset(m->decode, 0));
}

/* ---- writing ---- */

typedef struct {
    maxc_model *m;
    const maxc_generate_options *o;
    maxc_write *write;
    void *context;
    mx_sampling sampling;
    mx_tokens seen;
    mx_token_stream stream;
    mx_str text; /* not yet given to `write` */
    void *work;  /* of the sampler */
    int32_t stop_ids[MAX_STOP_IDS];
    int n_stop_ids;
} answer;

static bool ends(const answer *a, int32_t id)
{
    for (int i = 0; i < a->n_stop_ids && !a->o->ignore_eos; i++)
        if (a->stop_ids[i] == id)
            return true;
    return false;
}

/* False when the caller wants no more. */
static bool give_text(answer *a)
{
    bool more = !a->text.len || !a->write || a->write(a->context, a->text.text, a->text.len) == 0;
    mx_str_clear(&a->text);
    return more;
}

/* Ids beyond the tokenizer's have no text: an embedding may be padded. */
static int64_t drawn_from(const maxc_model *m)
{
    int64_t vocab = maxc_model_vocab_size(m), known = mx_tokenizer_vocab_size(m->tok);
    return known < vocab ? known : vocab;
}

static mx_status answer_prompt(answer *a, int64_t most)
{
    maxc_model *m = a->m;
    int64_t vocab = drawn_from(m), n_prompt = a->seen.n;
    MX_TRY(feed(m, a->seen.ids, n_prompt));
    MX_TRY(mx_alloc(&a->work, 8 * (size_t)vocab, "the sampler"));
    for (int64_t i = 0; i < most; i++) {
        mx_choice c = mx_sample(&a->sampling, mx_decode_logits(m->decode, 0), vocab, a->seen.ids,
                                a->seen.n, 0, (uint64_t)i, a->work);
        if (ends(a, c.id))
            break;
        mx_tokens_add(&a->seen, c.id);
        MX_TRY(mx_token_stream_push(&a->stream, c.id, &a->text));
        if (!give_text(a))
            return MX_OK;
        if (i + 1 < most)
            MX_TRY(feed(m, &c.id, 1));
    }
    MX_TRY(mx_token_stream_finish(&a->stream, &a->text));
    give_text(a);
    return MX_OK;
}

maxc_error *maxc_generate(maxc_model *m, const char *prompt, const maxc_generate_options *options,
                          maxc_write *write, void *context)
{
    static const maxc_generate_options usual = {0};
    answer a = {.m = m, .o = options ? options : &usual, .write = write, .context = context};
    a.sampling = (mx_sampling){.temperature = a.o->temperature,
                               .top_k = a.o->top_k,
                               .top_p = a.o->top_p,
                               .repetition_penalty = 1,
                               .seed = a.o->seed};
    a.n_stop_ids = mx_stop_ids(&m->ref, m->tok, a.stop_ids, MAX_STOP_IDS);
    mx_token_stream_init(&a.stream, m->tok, true);
    mx_encode_options plain = {.add_special = true, .special_in_text = MX_SPECIAL_TEXT};
    mx_status st = need_tokenizer(m);
    if (!st)
        st = mx_decode_reset(m->decode, 0);
    if (!st)
        st = mx_tokenizer_encode(m->tok, prompt, strlen(prompt), &plain, &a.seen);
    int64_t room = m->max_length - a.seen.n, most = a.o->max_new_tokens;
    if (!st && a.seen.n == 0)
        st = mx_fail(MX_USAGE, "the prompt is empty and the tokenizer adds no begin token");
    if (!st && (room < 1 || most > room))
        st = mx_fail(MX_USAGE, "%lld tokens of prompt and %lld new ones, but max_length is %lld",
                     (long long)a.seen.n, (long long)most, (long long)m->max_length);
    if (!st)
        st = answer_prompt(&a, most > 0 ? most : room < USUAL_ANSWER ? room : USUAL_ANSWER);
    mx_free(a.work);
    mx_tokens_fini(&a.seen);
    mx_token_stream_fini(&a.stream);
    mx_str_fini(&a.text);
    return give(st);
}

/* ---- verbs ---- */

maxc_error *maxc_run(const char *const *words)
{
    int n = 0;
    while (words[n])
        n++;
    char **argv = mx_realloc(NULL, sizeof *argv * (size_t)(n + 2));
    argv[0] = "maxc";
    memcpy(argv + 1, words, sizeof *argv * (size_t)(n + 1));
    mx_status st = mx_dispatch(n + 1, argv, environ);
    fflush(stdout);
    mx_free(argv);
    return give(st);
}

/* eval.c - maxc eval MODEL FILE.jsonl: tasks with known answers, in the forms of lm-eval.
 *
 * A line is one example; its members say what is asked:
 *     {"context": C, "choices": [A, B, ...], "gold": 1}    which choice is likelier after C
 *     {"context": C, "until": ["\n"], "target": T}         what is written after C, greedily
 *     {"text": T}                                          how likely the text is
 * Figures: acc, and acc_norm with log-likelihoods divided by the choices' characters; exact_match,
 * with their standard errors; word_perplexity, byte_perplexity and bits_per_byte. What is counted,
 * and after which tokens, is as in lm-eval, so that its figures are the same.
 */
#include "base/file.h"
#include "base/json_doc.h"
#include "base/utf8.h"
#include "cmd/model_text.h"
#include "infer/engine_mesh.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { USUAL_ANSWER = 256, USUAL_LENGTH = 2048, MOST_CHOICES = 64 };

/* Of figures that are means over examples. */
typedef struct {
    double sum, squares;
    int64_t n;
} mean;

static void add(mean *m, double x)
{
    m->sum += x;
    m->squares += x * x;
    m->n++;
}

typedef struct {
    const mx_invocation *inv;
    mx_model_text m;
    mx_engine *engine;
    mean acc, acc_norm, match;
    double log_prob;
    int64_t texts, words, bytes, line;
    int64_t limit; /* examples; 0: all */
} state;

/* --- the engine, one question at a time in batches of choices --- */

typedef struct {
    mx_tokens ids;
    int64_t from; /* the first token that counts */
    double sum;
    bool greedy; /* each of them was the likeliest */
    mx_str answer;
} question;

static mx_status encode(const state *s, const char *text, bool special, mx_tokens *out)
{
    mx_encode_options o = {.add_special = special, .special_in_text = MX_SPECIAL_TEXT};
    return mx_tokenizer_encode(s->m.tok, text, strlen(text), &o, out);
}

/* What a text without a context comes after: the token that begins texts, else the one that ends
 * them; false: there is neither. */
static bool add_prefix(const state *s, mx_tokens *out)
{
    int32_t id = mx_tokenizer_bos(s->m.tok);
    if (id < 0)
        id = mx_tokenizer_eos(s->m.tok);
    if (id >= 0)
        mx_tokens_add(out, id);
    return id >= 0;
}

/* Text after a context: tokenized together, as it would have been written. Spaces at the end of the
 * context are the text's, as they are in most tokens. */
static mx_status ask_about(const state *s, question *q, const char *context, const char *rest)
{
    mx_tokens before = {0};
    mx_str head = {0}, whole = {0};
    size_t n = strlen(context);
    mx_str_add(&whole, context);
    mx_str_add(&whole, rest);
    while (n > 0 && strchr(" \t\n\v\f\r", context[n - 1]))
        n--;
    mx_str_add_n(&head, context, n);
    bool prefix = !*context && add_prefix(s, &q->ids);
    mx_status st = prefix ? MX_OK : encode(s, mx_str_text(&head), true, &before);
    if (!st)
        st = encode(s, mx_str_text(&whole), !prefix, &q->ids);
    q->from = before.n < q->ids.n ? before.n : q->ids.n - 1;
    if (q->from < 1)
        q->from = 1; /* nothing says how likely the first token is */
    mx_tokens_fini(&before);
    mx_str_fini(&whole);
    mx_str_fini(&head);
    return st;
}

static mx_status take(question *q, const mx_request *r, bool likelihood)
{
    if (!likelihood)
        mx_str_add_n(&q->answer, mx_str_text(&r->reply.text), r->reply.text.len);
    q->greedy = true;
    for (int64_t i = q->from; likelihood && i < r->n_prompt; i++) {
        q->sum += r->log_prob[i];
        q->greedy &= r->top[i].id == r->tokens.ids[i];
    }
    return MX_OK;
}

static mx_status ask(state *s, question *q, int n, mx_request_options o)
{
    bool likelihood = o.max_new == 0;
    o.log_probs = o.prompt_log_probs = likelihood;
    o.n_top = likelihood;
    mx_status st = MX_OK;
    for (int i = 0; i < n && !st; i++) {
        mx_request *r;
        o.owner = &q[i];
        st = mx_engine_admit(s->engine, &q[i].ids, &o, &r);
    }
    while (!st && mx_engine_busy(s->engine)) {
        st = mx_engine_step(s->engine);
        for (mx_request *r; !st && (r = mx_engine_take(s->engine));) {
            if (!r->finish)
                continue;
            st = r->error;
            r->error = MX_OK;
            if (!st)
                st = take(r->owner, r, likelihood);
            mx_engine_cancel(s->engine, r);
        }
    }
    return st;
}

/* --- the forms --- */

static mx_status wrong(const char *what)
{
    return mx_fail(MX_INPUT,
                   "%s; expected {\"context\", \"choices\", \"gold\"}, {\"context\", "
                   "\"until\", \"target\"} or {\"text\"}",
                   what);
}

static double characters(const json_t *text)
{
    const char *s = json_string_value(text);
    double n = 0;
    for (; *s; s++)
        n += (*s & 0xc0) != 0x80;
    return n;
}

static mx_status choose(state *s, const char *context, const json_t *choices, const json_t *gold)
{
    question q[MOST_CHOICES] = {0};
    size_t n = json_array_size(choices);
    int best = 0, best_norm = 0;
    json_int_t right = json_integer_value(gold);
    mx_status st = MX_OK;
    if (n < 2 || n > MOST_CHOICES || !json_is_integer(gold) || right < 0 || right >= (json_int_t)n)
        return wrong("\"choices\" must be 2 to 64 texts, \"gold\" the number of one, from 0");
    for (size_t i = 0; i < n && !st; i++) {
        const char *text = json_string_value(json_array_get(choices, i));
        st = text && *text ? ask_about(s, &q[i], context, text)
                           : wrong("\"choices\" must be texts that are not empty");
    }
    if (!st)
        st = ask(s, q, (int)n, (mx_request_options){.sampling = {.repetition_penalty = 1}});
    for (int i = 1; i < (int)n && !st; i++) {
        double a = characters(json_array_get(choices, (size_t)best_norm));
        double b = characters(json_array_get(choices, (size_t)i));
        best = q[i].sum > q[best].sum ? i : best;
        best_norm = q[i].sum / b > q[best_norm].sum / a ? i : best_norm;
    }
    if (!st) {
        add(&s->acc, best == right);
        add(&s->acc_norm, best_norm == right);
    }
    for (size_t i = 0; i < n; i++)
        mx_tokens_fini(&q[i].ids);
    return st;
}

/* "until": a text, or a list of them. */
static mx_status read_stops(const json_t *until, const char *stop[16], size_t *n)
{
    *n = json_is_array(until) ? json_array_size(until) : until ? 1 : 0;
    for (size_t i = 0; i < *n; i++) {
        const json_t *text = json_is_array(until) ? json_array_get(until, i) : until;
        if (*n > 16 || !json_is_string(text))
            return wrong("\"until\" must be at most 16 texts");
        stop[i] = json_string_value(text);
    }
    return MX_OK;
}

static mx_status write_until(state *s, const char *context, const json_t *until, const char *target,
                             const json_t *most)
{
    const char *stop[16];
    size_t n_stop;
    question q = {0};
    MX_TRY(read_stops(until, stop, &n_stop));
    if (most && json_integer_value(most) < 1)
        return wrong("\"max_tokens\" must be a number from 1");
    mx_status st = encode(s, context, true, &q.ids);
    int64_t room = mx_engine_max_length(s->engine) - q.ids.n;
    int64_t limit = most ? json_integer_value(most) : USUAL_ANSWER;
    limit = limit < room ? limit : room;
    mx_request_options o = {.sampling = {.repetition_penalty = 1},
                            .max_new = limit,
                            .stop = stop,
                            .n_stop = (int)n_stop};
    if (!st && room < 1)
        st = mx_fail(MX_INPUT, "the context leaves no room in the model's context window");
    if (!st)
        st = ask(s, &q, 1, o);
    if (!st)
        add(&s->match, strcmp(mx_str_text(&q.answer), target) == 0);
    mx_tokens_fini(&q.ids);
    mx_str_fini(&q.answer);
    return st;
}

/* Words are what stands between runs of white space, of Unicode's. */
static int64_t words_of(const char *text)
{
    static const unsigned spaces[] = {0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
    size_t n = strlen(text);
    int64_t words = 1;
    bool within = false, any = false;
    for (size_t at = 0; at < n;) {
        uint32_t c;
        /* JSON has checked it */
        at += (size_t)mx_utf8_next((const uint8_t *)text + at, &c);
        bool space = c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) ||
                     (c >= 0x2000 && c <= 0x200a);
        for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
            space |= c == spaces[i];
        words += space && !within;
        any |= !space;
        within = space;
    }
    return any ? words : 0;
}

/* The whole text, in windows as long as the context: the first after the token that begins texts,
 * others after one token of the window before; the last reaches back as far as it can. */
static mx_status read_text(state *s, const char *text)
{
    mx_tokens all = {0};
    question q = {0};
    bool prefix = add_prefix(s, &q.ids);
    mx_status st = encode(s, text, !prefix, &all);
    int64_t window = mx_engine_max_length(s->engine) - 1, done = 0;
    while (done + !prefix < all.n && !st) {
        int64_t n = all.n - done < window ? all.n - done : window, end = done + n;
        int64_t from = done ? end - window - 1 : 0;
        for (int64_t i = from; i < end; i++)
            mx_tokens_add(&q.ids, all.ids[i]);
        q.from = done ? done - from : 1;
        st = ask(s, &q, 1, (mx_request_options){.sampling = {.repetition_penalty = 1}});
        s->log_prob += q.sum;
        mx_tokens_fini(&q.ids);
        q = (question){0};
        done = end;
    }
    s->texts++;
    s->bytes += (int64_t)strlen(text);
    s->words += words_of(text);
    mx_tokens_fini(&q.ids);
    mx_tokens_fini(&all);
    return st;
}

static mx_status example(state *s, const json_t *e)
{
    const char *context = json_string_value(json_object_get(e, "context"));
    const char *target = json_string_value(json_object_get(e, "target"));
    const char *text = json_string_value(json_object_get(e, "text"));
    const json_t *choices = json_object_get(e, "choices");
    if (context && choices)
        return choose(s, context, choices, json_object_get(e, "gold"));
    if (context && target)
        return write_until(s, context, json_object_get(e, "until"), target,
                           json_object_get(e, "max_tokens"));
    if (text)
        return read_text(s, text);
    return wrong("an example of no known form");
}

/* --- the file --- */

static mx_status read_lines(state *s, const char *path)
{
    FILE *f = fopen(path, "r");
    mx_str line = {0};
    mx_status st = MX_OK;
    if (!f)
        return mx_fail_errno(MX_INPUT, "%s", path);
    while (!st && (!s->limit || s->line < s->limit)) {
        json_t *e = NULL;
        s->line++;
        st = mx_file_line(f, false, &line);
        if (!st && !line.len)
            break;
        if (!st && strspn(line.text, " \t\r\n") == line.len)
            continue;
        if (!st)
            st = mx_json_parse(line.text, line.len, "the example", NULL, &e);
        if (!st)
            st = example(s, e);
        st = mx_status_wrap(st, "%s, line %lld", path, (long long)s->line);
        json_decref(e);
    }
    if (!st && ferror(f))
        st = mx_fail_errno(MX_INPUT, "%s cannot be read", path);
    if (!st && !s->acc.n && !s->match.n && !s->words)
        st = mx_status_wrap(wrong("there is nothing to measure"), "%s", path);
    mx_str_fini(&line);
    fclose(f);
    return st;
}

/* error NAN: it has none. */
static void print(const char *name, double value, double error, bool json)
{
    if (isnan(error))
        printf(json ? "{\"name\": \"%s\", \"value\": %.9g, \"stderr\": null}\n" : "%-16s %10.4f\n",
               name, value);
    else if (json)
        printf("{\"name\": \"%s\", \"value\": %.9g, \"stderr\": %.9g}\n", name, value, error);
    else
        printf("%-16s %10.4f  ±%.4f\n", name, value, error);
}

static void print_mean(const char *name, const mean *m, bool json)
{
    if (!m->n)
        return;
    double x = m->sum / (double)m->n;
    double var = m->n > 1 ? (m->squares - m->sum * x) / (double)(m->n - 1) : 0;
    print(name, x, sqrt((var > 0 ? var : 0) / (double)m->n), json);
}

static void report(const state *s, bool json)
{
    print_mean("acc", &s->acc, json);
    print_mean("acc_norm", &s->acc_norm, json);
    print_mean("exact_match", &s->match, json);
    if (!s->texts || !s->bytes || !s->words)
        return;
    print("word_perplexity", exp(-s->log_prob / (double)s->words), NAN, json);
    print("byte_perplexity", exp(-s->log_prob / (double)s->bytes), NAN, json);
    print("bits_per_byte", -s->log_prob / (double)s->bytes / M_LN2, NAN, json);
}

static mx_status measure(void *ctx, mx_engine *e)
{
    state *s = ctx;
    mx_status st = MX_OK;
    s->engine = e;
    for (int i = 1; i < s->inv->n_args && !st; i++)
        st = read_lines(s, s->inv->args[i]);
    return st;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    state s = {.inv = inv, .limit = mx_config_int(c, "limit")};
    mx_status st = mx_model_text_open(&s.m, inv);
    mx_engine_options eo = {.model = &s.m.ref,
                            .tokenizer = s.m.tok,
                            .device = mx_config_text(c, "device"),
                            .n_threads = (int)mx_config_int(c, "num_threads"),
                            .compute = s.m.compute,
                            .stop_ids = s.m.stop_ids,
                            .n_stop_ids = s.m.n_stop_ids};
    int64_t most = s.m.ref.spec.summary.max_positions, asked = mx_config_int(c, "max_model_len");
    eo.max_length = asked ? asked : most > 0 && most < USUAL_LENGTH ? most : USUAL_LENGTH;
    if (!st)
        st = mx_engine_run(&(mx_engine_use){c, &eo, "eval", measure, &s});
    if (!st)
        report(&s, strcmp(mx_config_text(c, "format"), "json") == 0);
    mx_model_text_close(&s.m);
    return st;
}

static const mx_key keys[] = {
    {"format", MX_KEY_ENUM, 0, "text", "text|json", "how to print", .example = "format=json",
     .seen_by = "tests/cli/eval.sh"},
    {"limit", MX_KEY_INT, 0, "0", "0..", "examples; 0: all", .example = "limit=10",
     .seen_by = "tests/cli/eval.sh"},
    {0},
};

const mx_verb mx_verb_eval = {
    .name = "eval",
    .doc = "tasks with known answers, from JSONL files",
    .usage = "MODEL FILE.jsonl ... [limit=100]",
    .help =
        "MODEL as in `maxc help generate`. A line of a file is one example, in one of lm-eval's\n"
        "forms: {\"context\", \"choices\", \"gold\"}: which choice is likelier;\n"
        "{\"context\", \"until\", \"target\"}: what is written; {\"text\"}: how likely it is.",
    .min_args = 2,
    .max_args = 64,
    .keys = keys,
    .run = run,
};

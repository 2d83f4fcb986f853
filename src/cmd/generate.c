/* generate.c - maxc generate MODEL prompt="...": the model writes. */
#include "base/json_doc.h"
#include "cmd/verb.h"
#include "infer/generate.h"
#include "infer/pictures.h"
#include "text/chat_template.h"
#include "train/step_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_STOP_IDS = 32 };

typedef struct {
    mx_model_ref model;
    mx_tokenizer *tok;
    mx_chat_template *chat;
    mx_pictures pictures;
    char **text; /* prompts */
    mx_tokens *ids;
    int64_t n, cap;
    int32_t stop_ids[MAX_STOP_IDS];
    int n_stop_ids;
} state;

static void add_prompt(state *s, const char *text, size_t len)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 16;
        s->text = mx_realloc(s->text, sizeof *s->text * (size_t)s->cap);
    }
    s->text[s->n] = mx_realloc(NULL, len + 1);
    memcpy(s->text[s->n], text, len);
    s->text[s->n++][len] = 0;
}

/* One prompt a line: a JSON string, which may hold newlines, or plain text. */
static mx_status read_prompts(state *s)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    mx_status st = MX_OK;
    while (!st && (len = getline(&line, &cap, stdin)) >= 0) {
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            len--;
        line[len] = 0;
        json_t *j = line[0] == '"' ? json_loads(line, JSON_DECODE_ANY, NULL) : NULL;
        if (json_is_string(j))
            add_prompt(s, json_string_value(j), json_string_length(j));
        else
            add_prompt(s, line, (size_t)len);
        json_decref(j);
    }
    free(line);
    if (!st && !s->n)
        st = mx_fail(MX_USAGE,
                     "there is no prompt: give prompt=\"...\", or prompts on standard input, one "
                     "a line");
    return st;
}

/* The user's message. Pictures that the text has no place for come before it, as parts of a list.
 */
static json_t *message_of(const state *s, const char *text)
{
    if (!s->pictures.n || mx_pictures_marked(&s->pictures, text, strlen(text)))
        return json_pack("[{s:s, s:s}]", "role", "user", "content", text);
    json_t *parts = json_array();
    for (int i = 0; i < s->pictures.n; i++)
        json_array_append_new(parts, json_pack("{s:s}", "type", "image"));
    json_array_append_new(parts, json_pack("{s:s, s:s}", "type", "text", "text", text));
    return json_pack("[{s:s, s:o}]", "role", "user", "content", parts);
}

static mx_status encode(state *s, const char *text, mx_tokens *out)
{
    mx_encode_options plain = {.add_special = true, .special_in_text = MX_SPECIAL_TEXT};
    if (!s->pictures.n && mx_pictures_marked(&s->pictures, text, strlen(text)))
        return mx_fail(MX_USAGE, "the prompt has a place for an image, %s, but none is given; add "
                       "image=FILE", s->pictures.processor.spec.mark);
    if (!s->chat && s->pictures.n)
        return mx_pictures_encode(&s->pictures, s->tok, text, strlen(text), true, out);
    if (!s->chat)
        return mx_tokenizer_encode(s->tok, text, strlen(text), &plain, out);
    mx_str rendered = {0};
    json_t *messages = message_of(s, text);
    size_t len;
    const char *bos = mx_tokenizer_token(s->tok, mx_tokenizer_bos(s->tok), &len);
    const char *eos = mx_tokenizer_token(s->tok, mx_tokenizer_eos(s->tok), &len);
    mx_chat_options o = {.add_generation_prompt = true, .bos_token = bos, .eos_token = eos};
    mx_status st = messages ? mx_chat_render(s->chat, messages, &o, &rendered, NULL)
                            : mx_fail(MX_INPUT, "the prompt is not valid UTF-8");
    mx_encode_options marks = {.special_in_text = MX_SPECIAL_PARSE};
    if (!st && s->pictures.n)
        st = mx_pictures_encode(&s->pictures, s->tok, mx_str_text(&rendered), rendered.len, false,
                                out);
    else if (!st)
        st = mx_tokenizer_encode(s->tok, mx_str_text(&rendered), rendered.len, &marks, out);
    json_decref(messages);
    mx_str_fini(&rendered);
    return st;
}

static void add_stop_id(state *s, int64_t id)
{
    if (id >= 0 && s->n_stop_ids < MAX_STOP_IDS)
        s->stop_ids[s->n_stop_ids++] = (int32_t)id;
}

/* End tokens: what generation_config.json or config.json names, and the tokenizer's own. */
static void find_stop_ids(state *s)
{
    const json_t *from[2] = {s->model.dir.generation_config, s->model.spec.json};
    for (int i = 0; i < 2; i++) {
        const json_t *eos = json_object_get(from[i], "eos_token_id");
        for (size_t k = 0; k < json_array_size(eos); k++)
            add_stop_id(s, json_integer_value(json_array_get(eos, k)));
        if (json_is_integer(eos))
            add_stop_id(s, json_integer_value(eos));
    }
    if (s->tok)
        add_stop_id(s, mx_tokenizer_eos(s->tok));
}

static mx_sampling sampling_of(const mx_config *c)
{
    const char *how = mx_config_text(c, "decode_sampling_strategy");
    mx_sampling s = {.temperature = mx_config_float(c, "decode_sampling_temperature"),
                     .top_k = mx_config_int(c, "decode_sampling_top_k"),
                     .top_p = mx_config_float(c, "decode_sampling_nucleus_p"),
                     .min_p = mx_config_float(c, "min_p"),
                     .repetition_penalty = mx_config_float(c, "repetition_penalty"),
                     .presence_penalty = mx_config_float(c, "presence_penalty"),
                     .frequency_penalty = mx_config_float(c, "frequency_penalty"),
                     .seed = (uint64_t)mx_config_int(c, "seed")};
    bool asked = mx_config_is_set(c, "decode_sampling_temperature") || s.top_k > 0 ||
                 (s.top_p > 0 && s.top_p < 1) || s.min_p > 0;
    if (strcmp(how, "greedy") == 0 || (!*how && !asked))
        s.temperature = 0;
    return s;
}

static void print_stream(void *ctx, const char *text, size_t n)
{
    (void)ctx;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

static void print_answers(const state *s, const mx_answer *a, int64_t copies, bool json, bool echo,
                          bool streamed)
{
    for (int64_t i = 0; i < s->n * copies; i++) {
        const char *prompt = s->text[i / copies];
        if (json) {
            json_t *ids = json_array();
            for (int64_t k = 0; k < a[i].ids.n; k++)
                json_array_append_new(ids, json_integer(a[i].ids.ids[k]));
            json_t *o = json_pack("{s:s, s:s, s:o, s:f}", "prompt", prompt, "text",
                                  mx_str_text(&a[i].text), "ids", ids, "log_prob", a[i].log_prob);
            char *line = o ? json_dumps(o, JSON_COMPACT) : NULL;
            puts(line ? line : "{}");
            mx_free(line);
            json_decref(o);
            if (!o)
                json_decref(ids);
        } else if (streamed && i == 0) {
            puts("");
        } else {
            if (s->n * copies > 1)
                printf("--- %lld\n", (long long)(i + 1));
            printf("%s%s\n", echo ? prompt : "", mx_str_text(&a[i].text));
        }
    }
}

static bool in_dir(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, R_OK) == 0;
}

/* A checkpoint of our own without tokenizer files was trained on bytes. */
static bool trained_on_bytes(const char *dir)
{
    return in_dir(dir, "state.json") && !in_dir(dir, "tokenizer.json") &&
           !in_dir(dir, "tokenizer.model") && !in_dir(dir, "tiktoken.model");
}

static mx_status open_all(state *s, mx_invocation *inv)
{
    const mx_config *c = inv->config;
    MX_TRY(mx_model_ref_open(&s->model, inv->args[0], inv->home));
    const char *path = mx_config_text(c, "tokenizer_path");
    mx_tokenizer_options to = {.pattern = mx_config_text(c, "tokenizer_pattern"),
                               .type = mx_config_text(c, "tokenizer_type")};
    if (!*path && s->model.path && !trained_on_bytes(s->model.path))
        path = s->model.path;
    MX_TRY(mx_tokenizer_open(&s->tok, *path ? path : "byte", &to));
    if (mx_config_bool(c, "use_chat_template"))
        MX_TRY(mx_chat_template_open_dir(&s->chat, s->model.path ? s->model.path : ".", NULL));
    if (*mx_config_text(c, "prompt") || mx_config_is_set(c, "prompt"))
        add_prompt(s, mx_config_text(c, "prompt"), strlen(mx_config_text(c, "prompt")));
    else
        MX_TRY(read_prompts(s));
    if (!mx_config_bool(c, "ignore_eos"))
        find_stop_ids(s);
    const char *const *images;
    int n = mx_config_list(c, "image_path", &images);
    return mx_pictures_open(&s->pictures, &s->model.spec, s->model.path, images, n,
                            mx_config_bool(c, "do_pan_and_scan"));
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    state s = {0};
    mx_answer *answers = NULL;
    mx_generate_counts counts;
    int64_t copies = mx_config_int(c, "n"), total = 0;
    mx_status st;
    MX_TRY_OUT(st, open_all(&s, inv));
    total = s.n * copies;
    s.ids = mx_realloc(NULL, sizeof *s.ids * (size_t)total);
    answers = mx_realloc(NULL, sizeof *answers * (size_t)total);
    memset(s.ids, 0, sizeof *s.ids * (size_t)total);
    memset(answers, 0, sizeof *answers * (size_t)total);
    for (int64_t i = 0; i < total; i++)
        MX_TRY_OUT(st, encode(&s, s.text[i / copies], &s.ids[i]));
    const char *const *stop;
    mx_generate_options o = {.sampling = sampling_of(c),
                             .max_new_tokens = mx_config_int(c, "max_new_tokens"),
                             .batch = mx_config_int(c, "batch"), .stop_ids = s.stop_ids,
                             .n_stop_ids = s.n_stop_ids, .pixels = s.pictures.pixels,
                             .n_images = s.pictures.n_images, .device = mx_config_text(c, "device"),
                             .n_threads = (int)mx_config_int(c, "num_threads")};
    o.n_stop = mx_config_list(c, "stop", &stop);
    o.stop = stop;
    MX_TRY_OUT(st, mx_compute_dtype(c, "float32", &o.compute));
    bool json = strcmp(mx_config_text(c, "format"), "json") == 0;
    bool echo = mx_config_bool(c, "echo"), streamed = !json && total == 1;
    if (streamed && echo)
        fputs(s.text[0], stdout);
    MX_TRY_OUT(st, mx_generate(&s.model, s.tok, s.ids, total, &o, streamed ? print_stream : NULL,
                               NULL, answers, &counts));
    print_answers(&s, answers, copies, json, echo, streamed);
    if (isatty(2))
        fprintf(stderr, "prompt: %.0f tokens in %.2f s; answer: %.0f tokens, %.1f tokens/s\n",
                counts.prompt_tokens, counts.prompt_s, counts.new_tokens,
                counts.decode_s > 0 ? counts.new_tokens / counts.decode_s : 0);
out:
    for (int64_t i = 0; answers && i < total; i++) {
        mx_answer_fini(&answers[i]);
        mx_tokens_fini(&s.ids[i]);
    }
    for (int64_t i = 0; i < s.n; i++)
        mx_free(s.text[i]);
    mx_free(s.text);
    mx_free(s.ids);
    mx_free(answers);
    mx_pictures_close(&s.pictures);
    mx_chat_template_close(s.chat);
    mx_tokenizer_close(s.tok);
    mx_model_ref_close(&s.model);
    return st;
}

static const mx_key keys[] = {MX_KEY_FORMAT, {0}};

const mx_verb mx_verb_generate = {
    .name = "generate",
    .doc = "let a model write",
    .usage = "MODEL prompt=\"...\" [image=FILE] [temperature=0.8] [max_new_tokens=256]",
    .help =
        "Without prompt=, prompts are read from standard input, one a line (plain text or a JSON\n"
        "string). Greedy unless a temperature or a cut is given. use_chat_template=true wraps\n"
        "the prompt as the model's chat template says. image=FILE (JPEG, PNG, WebP; several with\n"
        "commas) shows the model pictures: before the prompt, or where its image mark stands.",
    .min_args = 1,
    .max_args = 1,
    .keys = keys,
    .run = run,
};

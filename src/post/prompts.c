/* prompts.c - see prompts.h. */
#include "post/prompts.h"

#include "data/load/dataset.h"
#include "data/load/encode.h"
#include <string.h>

struct mx_prompts {
    const mx_train_data *d;
    mx_mixture mixture;
    mx_record record;
    mx_bad_records bad;
    int in_a_row; /* bad ones since the last good one */
    bool refused; /* the last one was bad */
    mx_cursor before; /* the last one, of a single dataset */
};

enum { MOST_IN_A_ROW = 4096 }; /* this many bad ones in a row mean a mistake */

mx_status mx_prompts_open(mx_prompts **out, const mx_train_data *d, const mx_config *c,
                          const mx_dataset_options *sets, int n)
{
    mx_prompts *p = mx_realloc(NULL, sizeof *p);
    *p = (mx_prompts){.d = d};
    p->bad.skip = strcmp(mx_config_text(c, "bad_record_policy"), "skip") == 0;
    p->bad.budget = mx_config_float(c, "bad_record_budget");
    *out = p;
    return mx_mixture_open(&p->mixture, sets, n);
}

void mx_prompts_close(mx_prompts *p)
{
    if (!p)
        return;
    mx_mixture_close(&p->mixture);
    mx_record_fini(&p->record);
    mx_free(p);
}

void mx_post_prompt_fini(mx_post_prompt *a)
{
    json_decref(a->record);
    mx_tokens_fini(&a->ids);
    mx_free((char *)a->text);
    *a = (mx_post_prompt){0};
}

/* Every column as JSON: texts as strings, anything else as it is. */
static mx_status to_json(const mx_record *r, json_t **out)
{
    *out = json_object();
    for (int i = 0; i < r->n_cells; i++) {
        const mx_cell *c = &r->cells[i];
        const char *data = mx_record_data(r, i);
        json_t *v = NULL;
        json_error_t error;
        if (c->kind == MX_CELL_TEXT)
            v = json_stringn(data, c->len_bytes);
        else if (c->kind == MX_CELL_JSON)
            v = json_loadb(data, c->len_bytes, JSON_DECODE_ANY, &error);
        else if (c->kind == MX_CELL_NULL)
            v = json_null();
        if (c->kind == MX_CELL_JSON && !v)
            return mx_fail(MX_INPUT, "column \"%s\" is not valid JSON: %s", mx_record_name(r, i),
                           error.text);
        if (v)
            json_object_set_new(*out, mx_record_name(r, i), v);
    }
    return MX_OK;
}

/* Schemas of tools may be given as the text of their list. */
static mx_status parse_tools(json_t *record)
{
    const json_t *tools = json_object_get(record, "tools");
    json_error_t error;
    if (!json_is_string(tools))
        return MX_OK;
    json_t *list = json_loadb(json_string_value(tools), json_string_length(tools), 0, &error);
    if (!json_is_array(list)) {
        json_decref(list);
        return mx_fail(MX_INPUT, "column \"tools\": expected a list of schemas, or its text");
    }
    json_object_set_new(record, "tools", list);
    return MX_OK;
}

static char *copy_text(const char *text, size_t n)
{
    char *s = mx_realloc(NULL, n + 1);
    memcpy(s, text, n);
    s[n] = 0;
    return s;
}

/* A prompt's tokens: a text as the tokenizer has it, messages by the chat template. */
static mx_status prompt_ids(const mx_train_data *d, const json_t *prompt, const json_t *tools,
                        mx_post_prompt *out)
{
    mx_str text = {0};
    bool chat = json_is_array(prompt);
    mx_encoder e = {.tokenizer = d->tokenizer, .chat = d->chat};
    mx_encode_options o = {.add_special = !chat,
                           .special_in_text = chat || d->parse_special ? MX_SPECIAL_PARSE
                                                                : MX_SPECIAL_TEXT};
    mx_status st = MX_OK;
    if (chat && !d->chat)
        st = mx_fail(MX_INPUT, "the prompt is a conversation, and the model has no chat template; "
                     "set chat_template_path");
    else if (chat)
        st = mx_chat_text(&e, (json_t *)prompt, (json_t *)tools, json_array_size(prompt), true,
                          &text);
    else
        mx_str_add_n(&text, json_string_value(prompt), json_string_length(prompt));
    out->ids.n = 0;
    if (!st)
        st = mx_tokenizer_encode(d->tokenizer, mx_str_text(&text), text.len, &o, &out->ids);
    if (!st && !out->ids.n)
        st = mx_fail(MX_INPUT, "the prompt is empty");
    mx_free((char *)out->text);
    out->text = copy_text(mx_str_text(&text), text.len);
    mx_str_fini(&text);
    return st;
}

static mx_status read_next(mx_prompts *p, mx_post_prompt *a, bool *end)
{
    int which;
    mx_post_prompt_fini(a);
    p->bad.records++;
    p->before = p->mixture.at.cursors[0];
    MX_TRY(mx_mixture_next(&p->mixture, &p->record, &which, end));
    if (*end)
        return MX_OK;
    mx_status st = to_json(&p->record, &a->record);
    if (!st)
        st = parse_tools(a->record);
    const json_t *prompt = json_object_get(a->record, "prompt");
    prompt = prompt ? prompt : json_object_get(a->record, "messages");
    prompt = prompt ? prompt : json_object_get(a->record, "question");
    if (!st && !json_is_string(prompt) && !json_array_size(prompt))
        st = mx_fail(MX_INPUT, "expected a prompt (a text or a list of messages), messages or a "
                     "question");
    if (!st)
        st = prompt_ids(p->d, prompt, json_object_get(a->record, "tools"), a);
    return mx_record_place(st, &p->record);
}

/* What is wrong has its place in it. */
static mx_status judge(mx_prompts *p, mx_status st)
{
    if (!st)
        return MX_OK;
    p->refused = true;
    if (p->bad.skip && ++p->in_a_row > MOST_IN_A_ROW)
        return mx_status_wrap(st, "%d records in a row are bad; the latest", p->in_a_row);
    return mx_bad_records_judge(&p->bad, st);
}

mx_status mx_prompts_refuse(mx_prompts *p, mx_status st)
{
    return judge(p, mx_record_place(st, &p->record));
}

mx_status mx_prompts_next(mx_prompts *p, mx_post_prompt *a, bool *end)
{
    mx_status st;
    *end = false;
    p->in_a_row = p->refused ? p->in_a_row : 0;
    while ((st = read_next(p, a, end)) != MX_OK)
        MX_TRY(judge(p, st));
    p->refused = false;
    return MX_OK;
}

/* --- epochs --- */

int64_t mx_prompts_epoch(const mx_prompts *p)
{
    return p->mixture.at.n == 1 ? mx_cursor_epoch_before(&p->mixture.at.cursors[0]) : 0;
}

void mx_prompts_put_back(mx_prompts *p)
{
    if (p->mixture.at.n != 1)
        return;
    p->mixture.at.cursors[0] = p->before;
    p->mixture.at.t--;
    p->bad.records--;
}

bool mx_prompts_at_start(const mx_prompts *p)
{
    const mx_cursor *c = &p->mixture.at.cursors[0];
    return p->mixture.at.n == 1 && c->index == 0 && c->file == 0 && c->record == 0;
}

/* --- the place in the data --- */

void mx_prompts_position(const mx_prompts *p, mx_str *json)
{
    const mx_mixture_position *at = &p->mixture.at;
    mx_str_addf(json, "{\"t\": %lld, \"cursors\": [", (long long)at->t);
    for (int i = 0; i < at->n; i++)
        mx_str_addf(json, "%s[%lld, %lld, %lld, %lld]", i ? ", " : "",
                    (long long)at->cursors[i].epoch, (long long)at->cursors[i].index,
                    (long long)at->cursors[i].file, (long long)at->cursors[i].record);
    mx_str_add(json, "]}");
}

mx_status mx_prompts_seek(mx_prompts *p, const char *text, size_t n)
{
    mx_mixture_position *at = &p->mixture.at;
    json_t *j = json_loadb(text, n, 0, NULL), *list = json_object_get(j, "cursors");
    bool fits = (int)json_array_size(list) == at->n;
    for (int i = 0; i < at->n && fits; i++) {
        json_t *c = json_array_get(list, (size_t)i);
        int64_t v[4];
        for (size_t k = 0; k < 4; k++)
            v[k] = json_integer_value(json_array_get(c, k));
        at->cursors[i] = (mx_cursor){v[0], v[1], v[2], v[3]};
    }
    at->t = json_integer_value(json_object_get(j, "t"));
    json_decref(j);
    return fits ? MX_OK
                : mx_fail(MX_INPUT, "the checkpoint's place in the data is of other datasets");
}

void mx_prompts_rewind(mx_prompts *p)
{
    mx_mixture_position *at = &p->mixture.at;
    memset(at->cursors, 0, sizeof *at->cursors * (size_t)at->n);
    at->t = 0;
    p->bad.records = p->bad.bad = p->in_a_row = 0;
    p->refused = false;
}

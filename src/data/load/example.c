/* example.c - see example.h. Messages are normalised to what chat templates expect: a list of
 * objects with `role` (system, user, assistant, tool) and `content`. Everything else in a message
 * is kept. */
#include "data/load/example.h"

#include <string.h>

const char *const mx_example_columns[] = {
    "text",          "content", "ids",      "input_ids",  "tokens",      "labels", "messages",
    "conversations", "prompt",  "response", "completion", "instruction", "input",  "output",
    "question",      "answer",  "chosen",   "rejected",   "tools",       "system",
    "assistant_masks", MX_VARIABLES_COLUMN, NULL};
const int mx_example_n_columns = sizeof mx_example_columns / sizeof *mx_example_columns - 1;

typedef struct {
    const mx_record *r;
    mx_example *e;
} ctx;

static int find(const ctx *c, const char *name)
{
    int i = mx_record_find(c->r, name);
    return i >= 0 && c->r->cells[i].kind != MX_CELL_NULL ? i : -1;
}

static bool is_text(const ctx *c, int i)
{
    return i >= 0 && c->r->cells[i].kind == MX_CELL_TEXT;
}

/* Token ids, or a list that begins with a number. */
static bool is_ids(const ctx *c, int i)
{
    const mx_cell *cell = &c->r->cells[i];
    const char *p = mx_record_data(c->r, i);
    if (cell->kind != MX_CELL_JSON)
        return cell->kind == MX_CELL_IDS;
    p += strspn(p, " \t\r\n");
    if (*p++ != '[')
        return false;
    p += strspn(p, " \t\r\n");
    return *p == '-' || (*p >= '0' && *p <= '9');
}

static mx_text_range slice(const ctx *c, int i)
{
    if (i < 0)
        return (mx_text_range){0};
    return (mx_text_range){mx_record_data(c->r, i), c->r->cells[i].len_bytes};
}

static mx_status parse(const ctx *c, int i, json_t **out)
{
    json_error_t err;
    mx_text_range s = slice(c, i);
    /* NUL bytes are allowed in content; duplicate keys are not */
    *out =
        json_loadb(s.text, s.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &err);
    if (!*out)
        return mx_fail(MX_INPUT, "column \"%s\" is not valid JSON: %s", mx_record_name(c->r, i),
                       err.text);
    return MX_OK;
}

/* --- messages --- */

static const char *role_name(const char *from)
{
    static const char *const names[][2] = {{"human", "user"},        {"gpt", "assistant"},
                                           {"bot", "assistant"},     {"model", "assistant"},
                                           {"chatgpt", "assistant"}, {"function", "tool"},
                                           {"observation", "tool"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(from, names[i][0]) == 0)
            return names[i][1];
    return from;
}

/* {"from": "human", "value": ...} becomes {"role": "user", "content": ...}. */
static mx_status normalise(const ctx *c, int column, json_t *list)
{
    size_t i;
    json_t *m;
    const char *name = column >= 0 ? mx_record_name(c->r, column) : "messages";
    if (!json_is_array(list) || json_array_size(list) == 0)
        return mx_fail(MX_INPUT, "column \"%s\": expected a list of messages that is not empty",
                       name);
    json_array_foreach (list, i, m) {
        if (!json_is_object(m))
            return mx_fail(MX_INPUT,
                           "column \"%s\": message %zu is not an object with role and content",
                           name, i);
        json_t *from = json_object_get(m, "from"), *value = json_object_get(m, "value");
        if (!json_object_get(m, "role") && json_is_string(from) && value) {
            json_object_set_new(m, "role", json_string(role_name(json_string_value(from))));
            json_object_set(m, "content", value);
            json_object_del(m, "from");
            json_object_del(m, "value");
        }
        if (!json_is_string(json_object_get(m, "role")))
            return mx_fail(MX_INPUT,
                           "column \"%s\": message %zu has no role; expected {\"role\": \"user\", "
                           "\"content\": \"...\"} or {\"from\": \"human\", \"value\": \"...\"}",
                           name, i);
        json_t *text = json_object_get(m, "content");
        if (text && !json_is_string(text) && !json_is_null(text) && !json_is_array(text))
            return mx_fail(MX_INPUT,
                           "column \"%s\": the content of message %zu is neither text nor a list",
                           name, i);
    }
    return MX_OK;
}

static void push(json_t *list, const char *role, const char *text, size_t n)
{
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string(role));
    json_object_set_new(m, "content", json_stringn(text, n));
    json_array_append_new(list, m);
}

/* Appends column i (text: one message with `role`; a list: its messages) to the conversation. */
static mx_status extend(const ctx *c, int i, const char *role, json_t *list)
{
    if (is_text(c, i)) {
        mx_text_range s = slice(c, i);
        push(list, role, s.text, s.len);
        return MX_OK;
    }
    json_t *more;
    MX_TRY(parse(c, i, &more));
    if (json_is_object(more)) { /* a single message */
        json_t *one = json_array();
        json_array_append_new(one, more);
        more = one;
    }
    mx_status st = normalise(c, i, more);
    if (!st)
        json_array_extend(list, more);
    json_decref(more);
    return st;
}

/* A list of schemas, or its text. */
static mx_status read_tools(const ctx *c)
{
    int tools = find(c, "tools");
    return tools >= 0 ? parse(c, tools, &c->e->tools) : MX_OK;
}

static mx_status make_chat(ctx *c, int i)
{
    c->e->kind = MX_EXAMPLE_CHAT;
    c->e->messages = json_array();
    int system = find(c, "system");
    if (is_text(c, system) && slice(c, system).len)
        MX_TRY(extend(c, system, "system", c->e->messages));
    MX_TRY(extend(c, i, "user", c->e->messages));
    return read_tools(c);
}

/* --- the other shapes --- */

static mx_status make_alpaca(ctx *c, int instruction, int output)
{
    int input = find(c, "input");
    mx_text_range a = slice(c, instruction), b = slice(c, input), o = slice(c, output);
    if (!is_text(c, instruction) || !is_text(c, output))
        return mx_fail(MX_INPUT, "columns \"instruction\" and \"output\" must be text");
    mx_str user = {0};
    mx_str_add_n(&user, a.text, a.len);
    if (b.len && is_text(c, input)) {
        mx_str_add(&user, "\n\n");
        mx_str_add_n(&user, b.text, b.len);
    }
    c->e->kind = MX_EXAMPLE_CHAT;
    c->e->messages = json_array();
    push(c->e->messages, "user", mx_str_text(&user), user.len);
    push(c->e->messages, "assistant", o.text, o.len);
    mx_str_fini(&user);
    return MX_OK;
}

static mx_status make_completion(ctx *c, int prompt, int completion)
{
    if (is_text(c, prompt) && is_text(c, completion)) {
        c->e->kind = MX_EXAMPLE_COMPLETION;
        c->e->prompt = slice(c, prompt); /* of none the text is NULL */
        c->e->completion = slice(c, completion);
        return MX_OK;
    }
    c->e->kind = MX_EXAMPLE_CHAT;
    c->e->messages = json_array();
    MX_TRY(extend(c, prompt, "user", c->e->messages));
    c->e->n_prompt = json_array_size(c->e->messages);
    MX_TRY(extend(c, completion, "assistant", c->e->messages));
    return read_tools(c);
}

static mx_status make_preference(ctx *c, int prompt, int chosen, int rejected)
{
    mx_example *e = c->e;
    e->kind = MX_EXAMPLE_PREFERENCE;
    if (is_text(c, chosen) != is_text(c, rejected))
        return mx_fail(MX_INPUT, "columns \"chosen\" and \"rejected\" must be of the same kind");
    if (is_text(c, chosen) && (prompt < 0 || is_text(c, prompt))) {
        e->prompt = slice(c, prompt);
        e->chosen = slice(c, chosen);
        e->rejected = slice(c, rejected);
        return MX_OK;
    }
    e->chosen_messages = json_array();
    e->rejected_messages = json_array();
    json_t *lists[2] = {e->chosen_messages, e->rejected_messages};
    int columns[2] = {chosen, rejected};
    for (int k = 0; k < 2; k++) {
        /* chosen and rejected may hold the whole conversation, or only what follows the prompt */
        json_t *tail = json_array();
        mx_status st = extend(c, columns[k], "assistant", tail);
        const char *role = json_string_value(json_object_get(json_array_get(tail, 0), "role"));
        if (!st && prompt >= 0 && role && strcmp(role, "assistant") == 0)
            st = extend(c, prompt, "user", lists[k]);
        e->n_prompt = json_array_size(lists[k]);
        json_array_extend(lists[k], tail);
        json_decref(tail);
        MX_TRY(st);
    }
    return read_tools(c);
}

static mx_status int_list(ctx *c, int i, int32_t **out, int64_t *n)
{
    json_t *list, *v;
    size_t k;
    MX_TRY(parse(c, i, &list));
    mx_status st = MX_OK;
    *n = (int64_t)json_array_size(list);
    *out = mx_realloc(NULL, sizeof **out * (size_t)(*n ? *n : 1));
    if (!json_is_array(list))
        st = mx_fail(MX_INPUT, "column \"%s\": expected a list of token ids",
                     mx_record_name(c->r, i));
    json_array_foreach (list, k, v) {
        json_int_t x = json_integer_value(v);
        if (!st && (!json_is_integer(v) || x < -100 || x > INT32_MAX))
            st = mx_fail(MX_INPUT, "column \"%s\": element %zu is not a token id",
                         mx_record_name(c->r, i), k);
        (*out)[k] = (int32_t)x;
    }
    json_decref(list);
    return st;
}

static mx_status make_ids(ctx *c, int i, int labels)
{
    mx_example *e = c->e;
    e->kind = MX_EXAMPLE_IDS;
    if (c->r->cells[i].kind == MX_CELL_IDS) {
        e->ids = (const int32_t *)mx_record_data(c->r, i);
        e->n_ids = (int64_t)c->r->cells[i].len_bytes / 4;
        return MX_OK;
    }
    int32_t *ids = NULL, *l = NULL;
    int64_t n_labels = 0;
    mx_status st = int_list(c, i, &ids, &e->n_ids);
    int masks = labels < 0 ? find(c, "assistant_masks") : -1;
    if (!st && (labels >= 0 || masks >= 0))
        st = int_list(c, labels >= 0 ? labels : masks, &l, &n_labels);
    if (!st && l && n_labels != e->n_ids)
        st = mx_fail(MX_INPUT, "%lld %s for %lld token ids", (long long)n_labels,
                     labels >= 0 ? "labels" : "assistant_masks", (long long)e->n_ids);
    for (int64_t k = 0; !st && masks >= 0 && k < n_labels; k++)
        l[k] = l[k] ? ids[k] : -100;
    if (st) {
        mx_free(ids);
        mx_free(l);
        return st;
    }
    size_t n = (size_t)e->n_ids;
    e->own_ids = mx_realloc(ids, sizeof *ids * (2 * n + 1));
    e->ids = e->own_ids;
    if (l) {
        memcpy(e->own_ids + n, l, sizeof *l * n);
        e->labels = e->own_ids + n;
    }
    mx_free(l);
    return MX_OK;
}

static mx_status make_text(ctx *c, int i)
{
    if (is_ids(c, i))
        return make_ids(c, i, -1);
    if (c->r->cells[i].kind == MX_CELL_BYTES)
        return mx_fail(MX_INPUT, "column \"%s\" holds bytes that are not text",
                       mx_record_name(c->r, i));
    if (!is_text(c, i))
        return make_chat(c, i);
    c->e->kind = MX_EXAMPLE_TEXT;
    c->e->text = slice(c, i);
    return MX_OK;
}

static mx_status no_columns(const ctx *c, const char *wanted)
{
    mx_str have = {0};
    for (int i = 0; i < c->r->n_cells; i++)
        mx_str_addf(&have, "%s%s", i ? ", " : "", mx_record_name(c->r, i));
    mx_status st = mx_fail(MX_INPUT,
                           "no column to train on: expected %s%s%s; name the columns with "
                           "train_data_columns",
                           wanted, have.len ? ", found " : "", mx_str_text(&have));
    mx_str_fini(&have);
    return st;
}

/* A column that is there but null makes an empty document: datasets have such rows. */
static bool null_column(const ctx *c, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (mx_record_find(c->r, names[i]) >= 0 && find(c, names[i]) < 0)
            return true;
    return false;
}

static mx_status by_user(ctx *c, const char *const *columns, int n)
{
    int at[3] = {-1, -1, -1};
    if (null_column(c, columns, n))
        return MX_OK;
    for (int i = 0; i < n && i < 3; i++)
        if ((at[i] = find(c, columns[i])) < 0)
            return no_columns(c, columns[i]);
    if (n == 1)
        return make_text(c, at[0]);
    if (n == 2 && strcmp(columns[0], "chosen") == 0)
        return make_preference(c, -1, at[0], at[1]);
    if (n == 2 && is_ids(c, at[0]))
        return make_ids(c, at[0], at[1]);
    if (n == 2)
        return make_completion(c, at[0], at[1]);
    if (n == 3)
        return make_preference(c, at[0], at[1], at[2]);
    return mx_fail(MX_USAGE,
                   "train_data_columns has %d names: expected one (text, messages or ids), two "
                   "(prompt, completion; ids, labels) or three (prompt, chosen, rejected)",
                   n);
}

static const char *const answered[][2] = {
    {"prompt", "completion"}, {"prompt", "response"}, {"prompt", "answer"}, {"question", "answer"}};
enum { N_ANSWERED = sizeof answered / sizeof *answered };

/* Half of what is asked and answered is no empty document. */
static mx_status check_halves(const ctx *c)
{
    for (int i = 0; i < N_ANSWERED; i++)
        for (int k = 0; k < 2; k++) {
            const char *none = answered[i][k], *there = answered[i][!k];
            if (mx_record_find(c->r, none) >= 0 && find(c, none) < 0 && find(c, there) >= 0)
                return mx_fail(MX_INPUT, "column \"%s\" is null, and \"%s\" is not; expected "
                               "both (an empty text is one)", none, there);
        }
    return MX_OK;
}

static mx_status by_name(ctx *c)
{
    int a = find(c, "chosen"), b = find(c, "rejected");
    if (a >= 0 && b >= 0)
        return make_preference(c, find(c, "prompt"), a, b);
    for (int i = 0; i < N_ANSWERED; i++)
        if ((a = find(c, answered[i][0])) >= 0 && (b = find(c, answered[i][1])) >= 0)
            return make_completion(c, a, b);
    if ((a = find(c, "instruction")) >= 0 && (b = find(c, "output")) >= 0)
        return make_alpaca(c, a, b);
    if ((a = find(c, "messages")) >= 0 || (a = find(c, "conversations")) >= 0)
        return make_chat(c, a);
    if ((a = find(c, "input_ids")) >= 0)
        return make_ids(c, a, find(c, "labels"));
    if ((a = find(c, "text")) >= 0 || (a = find(c, "content")) >= 0)
        return make_text(c, a);
    if ((a = find(c, "ids")) >= 0 || (a = find(c, "tokens")) >= 0)
        return make_ids(c, a, find(c, "labels"));
    MX_TRY(check_halves(c));
    if (null_column(c, mx_example_columns, mx_example_n_columns))
        return MX_OK;
    return no_columns(
        c, "text, messages, prompt and completion, instruction and output, or chosen and "
           "rejected");
}

mx_status mx_refuse_variables(void)
{
    return mx_fail(MX_INPUT, "column \"" MX_VARIABLES_COLUMN "\": variables of the chat template "
                   "are not read from records yet; remove the column, or set what it says in a "
                   "template of your own (chat_template_path)");
}

static mx_status check_variables(const ctx *c)
{
    int i = find(c, MX_VARIABLES_COLUMN);
    mx_text_range s = slice(c, i);
    return i < 0 || (s.len == 2 && memcmp(s.text, "{}", 2) == 0) ? MX_OK : mx_refuse_variables();
}

mx_status mx_example_from_record(mx_example *e, const mx_record *r, const char *const *columns,
                                 int n_columns)
{
    *e = (mx_example){.kind = MX_EXAMPLE_TEXT, .text = {"", 0}};
    ctx c = {r, e};
    mx_status st = columns && n_columns ? by_user(&c, columns, n_columns) : by_name(&c);
    if (!st && (e->messages || e->chosen_messages))
        st = check_variables(&c);
    if (st)
        mx_example_fini(e);
    return st;
}

void mx_example_fini(mx_example *e)
{
    json_decref(e->messages);
    json_decref(e->chosen_messages);
    json_decref(e->rejected_messages);
    json_decref(e->tools);
    mx_free(e->own_ids);
    *e = (mx_example){0};
}

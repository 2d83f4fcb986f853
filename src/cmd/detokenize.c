/* detokenize.c - maxc detokenize: token ids on standard input, text on standard output.
 *
 *     maxc detokenize tokenizer=PATH < ids                   numbers between blanks; gives bytes
 *     maxc detokenize tokenizer=PATH format=jsonl < lines    JSON arrays, one a line; gives strings
 */
#include "base/file.h"
#include "base/json_tree.h"
#include "cmd/verb.h"
#include "train/input/tokenizer_path.h"

#include <stdio.h>
#include <string.h>

/* Numbers between white space (commas and brackets are taken as white space too). */
static mx_status read_ids(const char *text, size_t n, mx_tokens *ids)
{
    static const char between[] = " \t\r\n,[]";
    for (size_t i = 0; i < n;) {
        size_t k = strspn(text + i, between), m = strcspn(text + i + k, between);
        char word[24];
        int64_t id;
        i += k;
        if (i >= n)
            break;
        snprintf(word, sizeof word, "%.*s", m < 20 ? (int)m : 20, text + i);
        if (!mx_parse_i64(word, &id) || id < 0 || id > INT32_MAX)
            return mx_fail(MX_INPUT, "standard input, byte %zu: expected a token id, found \"%s\"",
                           i, word);
        mx_tokens_add(ids, (int32_t)id);
        i += m;
    }
    return MX_OK;
}

static mx_status detokenize_text(const mx_tokenizer *t, mx_decode_options o)
{
    mx_arena a = {0};
    mx_tokens ids = {0};
    mx_str out = {0};
    char *text;
    size_t n;
    o.raw = true; /* what was tokenized comes back, even where it was not UTF-8 */
    mx_status st = mx_file_read(&a, "-", mx_file_most_of_stdin(), &text, &n);
    if (!st)
        st = read_ids(text, n, &ids);
    if (!st)
        st = mx_tokenizer_decode(t, ids.ids, ids.n, &o, &out);
    if (!st)
        fwrite(mx_str_text(&out), 1, out.len, stdout);
    mx_str_fini(&out);
    mx_tokens_fini(&ids);
    mx_arena_fini(&a);
    return st;
}

static mx_status parse_ids(const mx_json_node *v, mx_tokens *ids)
{
    if (v->type != MX_JSON_ARRAY)
        return mx_fail(MX_INPUT, "expected a JSON array of ids, found %s",
                       mx_json_type_name(v->type));
    for (const mx_json_node *m = v->first; m; m = m->next) {
        if (m->type != MX_JSON_INT || m->i < 0 || m->i > INT32_MAX)
            return mx_fail(MX_INPUT, "byte %u: expected a token id", m->at);
        mx_tokens_add(ids, (int32_t)m->i);
    }
    return MX_OK;
}

static mx_status detokenize_line(const mx_tokenizer *t, const mx_decode_options *o,
                                 const char *line, size_t n, mx_tokens *ids)
{
    mx_arena a = {0};
    mx_str text = {0}, json = {0};
    const mx_json_node *v;
    mx_status st = mx_json_tree_parse(&v, &a, line, n, "the line");
    if (!st)
        st = parse_ids(v, ids);
    if (!st)
        st = mx_tokenizer_decode(t, ids->ids, ids->n, o, &text);
    if (!st) {
        mx_json_add_string(&json, mx_str_text(&text), text.len);
        printf("%s\n", json.text);
    }
    mx_str_fini(&text);
    mx_str_fini(&json);
    mx_arena_fini(&a);
    return st;
}

static mx_status detokenize_lines(const mx_tokenizer *t, const mx_decode_options *o)
{
    mx_str line = {0};
    mx_tokens ids = {0};
    mx_status st = MX_OK;
    for (int64_t number = 1; !st; number++) {
        st = mx_status_wrap(mx_file_line(stdin, false, &line), "standard input, line %lld",
                            (long long)number);
        if (st || !line.len)
            break;
        if (strspn(line.text, " \t\r\n") == line.len)
            continue;
        ids.n = 0;
        st = mx_status_wrap(detokenize_line(t, o, line.text, line.len, &ids),
                            "standard input, line %lld", (long long)number);
    }
    mx_str_fini(&line);
    mx_tokens_fini(&ids);
    return st;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    mx_arena a = {0};
    mx_tokenizer *t;
    mx_status st = mx_tokenizer_from_config(&t, c, NULL, &a, NULL);
    mx_arena_fini(&a);
    MX_TRY(st);
    mx_decode_options o = {.skip_special = mx_config_bool(c, "skip_special_tokens")};
    bool lines = strcmp(mx_config_text(c, "format"), "jsonl") == 0;
    st = lines ? detokenize_lines(t, &o) : detokenize_text(t, o);
    mx_tokenizer_close(t);
    return st;
}

static const mx_key keys[] = {
    {"format", MX_KEY_ENUM, 0, "text", "text|jsonl",
     "jsonl: one JSON array of ids per line in, one JSON string per line out",
     .example = "format=jsonl"},
    {"skip_special_tokens", MX_KEY_BOOL, 0, "false", 0, "leave special tokens out",
     .example = "skip_special_tokens=true"},
    {0},
};

const mx_verb mx_verb_detokenize = {
    .name = "detokenize",
    .doc = "token ids to text",
    .usage = "tokenizer=PATH [format=jsonl] [key=value ...]",
    .keys = keys,
    .run = run,
};

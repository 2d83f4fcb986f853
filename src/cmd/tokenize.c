/* tokenize.c - maxc tokenize: text on standard input, token ids on standard output.
 *
 *     maxc tokenize tokenizer=PATH < text                    all of it is one text; a line of ids
 *     maxc tokenize tokenizer=PATH format=jsonl < lines      JSON strings, one a line; JSON arrays
 */
#include "base/file.h"
#include "base/json_tree.h"
#include "cmd/tokenize_train.h"
#include "train/input/tokenizer_path.h"

#include <stdio.h>
#include <string.h>

static void print_ids(const mx_tokens *ids, bool json, mx_str *buf)
{
    mx_str_clear(buf);
    mx_str_add(buf, json ? "[" : "");
    for (int64_t i = 0; i < ids->n; i++) {
        char digits[16];
        int k = snprintf(digits, sizeof digits, i ? (json ? ",%d" : " %d") : "%d", ids->ids[i]);
        mx_str_add_n(buf, digits, (size_t)k);
    }
    mx_str_add(buf, json ? "]\n" : "\n");
    fwrite(buf->text, 1, buf->len, stdout);
}

static mx_status tokenize_text(const mx_tokenizer *t, const mx_encode_options *o)
{
    mx_arena a = {0};
    mx_tokens ids = {0};
    mx_str buf = {0};
    char *text;
    size_t n;
    mx_status st = mx_file_read(&a, "-", mx_file_most_of_stdin(), &text, &n);
    if (!st)
        st = mx_tokenizer_encode(t, text, n, o, &ids);
    if (!st)
        print_ids(&ids, false, &buf);
    mx_str_fini(&buf);
    mx_tokens_fini(&ids);
    mx_arena_fini(&a);
    return st;
}

static mx_status tokenize_line(const mx_tokenizer *t, const mx_encode_options *o, const char *line,
                               size_t n, int64_t number, mx_tokens *ids)
{
    mx_arena a = {0};
    const mx_json_node *v;
    char where[64];
    snprintf(where, sizeof where, "standard input, line %lld", (long long)number);
    mx_status st = mx_json_tree_parse(&v, &a, line, n, where);
    if (!st && v->type != MX_JSON_STRING)
        st = mx_fail(MX_INPUT, "%s: expected a JSON string, found %s", where,
                     mx_json_type_name(v->type));
    if (!st)
        st = mx_status_wrap(mx_tokenizer_encode(t, v->s, v->n, o, ids), "%s", where);
    mx_arena_fini(&a);
    return st;
}

static mx_status tokenize_lines(const mx_tokenizer *t, const mx_encode_options *o)
{
    mx_tokens ids = {0};
    mx_str buf = {0}, line = {0};
    mx_status st = MX_OK;
    for (int64_t number = 1; !st; number++) {
        st = mx_status_wrap(mx_file_line(stdin, false, &line), "standard input, line %lld",
                            (long long)number);
        if (st || !line.len)
            break;
        if (strspn(line.text, " \t\r\n") == line.len)
            continue;
        ids.n = 0;
        st = tokenize_line(t, o, line.text, line.len, number, &ids);
        if (!st)
            print_ids(&ids, true, &buf);
    }
    mx_str_fini(&line);
    mx_str_fini(&buf);
    mx_tokens_fini(&ids);
    return st;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    if (inv->n_args && strcmp(inv->args[0], "train") == 0)
        return mx_tokenize_train(inv);
    if (inv->n_args)
        return mx_fail(MX_USAGE,
                       "unexpected argument `%s`; text is read from standard input, and `maxc "
                       "tokenize train FILE ...` makes a tokenizer",
                       inv->args[0]);
    const char *add = mx_config_text(c, "add_special_tokens");
    const char *how = mx_config_text(c, "special_in_text");
    mx_arena a = {0};
    mx_tokenizer *t;
    mx_status st = mx_tokenizer_from_config(&t, c, NULL, &a, NULL);
    mx_arena_fini(&a);
    MX_TRY(st);
    mx_encode_options o = {
        .add_special =
            strcmp(add, "auto") == 0 ? mx_tokenizer_adds_special(t) : strcmp(add, "true") == 0,
        .special_in_text = strcmp(how, "parse") == 0  ? MX_SPECIAL_PARSE
                           : strcmp(how, "text") == 0 ? MX_SPECIAL_TEXT
                                                      : MX_SPECIAL_AS_LIBRARY,
    };
    bool lines = strcmp(mx_config_text(c, "format"), "jsonl") == 0;
    st = lines ? tokenize_lines(t, &o) : tokenize_text(t, &o);
    mx_tokenizer_close(t);
    return st;
}

static const mx_key keys[] = {
    {"format", MX_KEY_ENUM, 0, "text", "text|jsonl",
     "jsonl: one JSON string per line in, one JSON array of ids per line out",
     .example = "format=jsonl"},
    {"add_special_tokens", MX_KEY_ENUM, 0, "auto", "auto|true|false",
     "begin and end tokens; auto: as the format's own library",
     .example = "add_special_tokens=false"},
    {"output", MX_KEY_STRING, 0, "", 0, "train: folder for the new tokenizer", 0,
     MX_KEY_PATH, .example = "output=mine", .seen_by = "tests/cli/tokenize.sh"},
    {"tokenizer_size", MX_KEY_INT, 0, "32000", "256..16777216", "train: tokens, bytes included",
     "=vocab_size", .example = "tokenizer_size=300", .seen_by = "tests/cli/tokenize.sh"},
    {"min_frequency", MX_KEY_INT, 0, "2", "0..", "train: pairs seen less often are not merged",
     .example = "min_frequency=50", .seen_by = "tests/cli/tokenize.sh"},
    {0},
};

const mx_verb mx_verb_tokenize = {
    .name = "tokenize",
    .doc = "text to token ids; `tokenize train` makes a tokenizer",
    .usage = "[train FILE ...] tokenizer=PATH [format=jsonl] [key=value ...]",
    .max_args = 100000,
    .help = "Reads standard input, writes token ids to standard output. Without format=jsonl the "
            "whole\n"
            "input is one text.\n\n"
            "maxc tokenize train FILE ... output=DIRECTORY vocab_size=N learns a byte-level BPE "
            "tokenizer\n"
            "from plain text, .jsonl and any other kind of data file (its column `text`).",
    .keys = keys,
    .run = run,
};

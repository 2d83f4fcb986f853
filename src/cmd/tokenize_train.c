/* tokenize_train.c - maxc tokenize train FILE ... vocab_size=N output=DIRECTORY
 *
 * Reads plain text line by line, .jsonl files as one string, or one object with a "text" member,
 * per line, and every other kind of data file (data/formats) by its column `text`, until
 * max_corpus_chars bytes have been read. Writes DIRECTORY/tokenizer.json and tokenizer_config.json.
 */
#include "cmd/tokenize_train.h"

#include "base/file.h"
#include "base/io.h"
#include "base/json_tree.h"
#include "data/formats/source.h"
#include "text/tokenizer/bpe_train.h"

#include <stdio.h>
#include <string.h>

static const char *const special[] = {"<|begin_of_text|>", "<|end_of_text|>", NULL};

static mx_status feed_json(mx_bpe_trainer *t, const char *line, size_t n, const char *path,
                           int64_t number)
{
    mx_arena a = {0};
    const mx_json_node *v;
    mx_status st = mx_json_tree_parse(&v, &a, line, n, path);
    if (!st && v->type == MX_JSON_OBJECT)
        v = mx_json_get(v, "text");
    if (!st && (!v || v->type != MX_JSON_STRING))
        st = mx_fail(MX_INPUT, "expected a JSON string or an object with a \"text\" string");
    if (!st)
        mx_bpe_trainer_feed(t, v->s, v->n);
    mx_arena_fini(&a);
    return mx_status_wrap(st, "%s:%lld", path, (long long)number);
}

/* Text, a line after the other. */
static mx_status feed_lines(mx_bpe_trainer *t, const char *path, int64_t limit)
{
    bool json = mx_ends_with(path, ".jsonl");
    FILE *f = fopen(path, "re");
    mx_str line = {0};
    mx_status st = MX_OK;
    if (!f)
        return mx_fail_errno(MX_INPUT, "%s: cannot be opened", path);
    for (int64_t number = 1; !st && mx_bpe_trainer_bytes(t) < limit; number++) {
        st = mx_status_wrap(mx_file_line(f, !json, &line), "%s:%lld", path, (long long)number);
        if (st || !line.len)
            break;
        if (number == 1 && mx_starts_with(line.text, "\xef\xbb\xbf")) { /* a byte order mark */
            memmove(line.text, line.text + 3, line.len - 2);
            line.len -= 3;
        }
        if (!json && memchr(line.text, 0, line.len))
            st = mx_fail(MX_INPUT, "%s:%lld: expected text and found a NUL byte", path,
                         (long long)number);
        else if (!json)
            mx_bpe_trainer_feed(t, line.text, line.len);
        else if (strspn(line.text, " \t\r\n") != line.len)
            st = feed_json(t, line.text, line.len, path, number);
    }
    if (!st && ferror(f))
        st = mx_fail_errno(MX_INPUT, "%s: reading failed", path);
    mx_str_fini(&line);
    fclose(f);
    return st;
}

static mx_status feed_record(mx_bpe_trainer *t, const mx_record *r, const char *path)
{
    int at = mx_record_find(r, "text");
    if (at >= 0 && r->cells[at].kind == MX_CELL_NULL)
        return MX_OK;
    if (at >= 0 && r->cells[at].kind == MX_CELL_TEXT) {
        mx_bpe_trainer_feed(t, mx_record_data(r, at), r->cells[at].len_bytes);
        return MX_OK;
    }
    mx_str columns = {0};
    mx_source_columns(path, &columns);
    mx_status st = mx_fail(MX_INPUT, "expected a column `text` with text; there are: %s",
                           mx_str_text(&columns));
    mx_str_fini(&columns);
    return mx_record_place(st, r);
}

static mx_status feed_records(mx_bpe_trainer *t, const char *path, const mx_source_kind *kind,
                              int64_t limit)
{
    static const char *const columns[] = {"text"};
    mx_source_options o = {.columns = columns, .n_columns = 1};
    mx_source s;
    mx_record r = {0};
    bool end = false;
    MX_TRY(mx_source_open(&s, path, kind, &o));
    mx_status st = MX_OK;
    for (int64_t i = 0; !st && (s.n_records < 0 || i < s.n_records); i++) {
        st = s.n_records < 0 ? mx_source_next(&s, &r, &end) : mx_source_read(&s, i, &r);
        if (st || end || mx_bpe_trainer_bytes(t) >= limit)
            break;
        st = feed_record(t, &r, path);
    }
    mx_record_fini(&r);
    mx_source_close(&s);
    return st;
}

/* What is no file, or of no known kind, is text. */
static mx_status feed_file(mx_bpe_trainer *t, const char *path, int64_t limit)
{
    const mx_source_kind *kind = NULL;
    if (!mx_ends_with(path, ".jsonl"))
        mx_status_free(mx_source_kind_detect(path, &kind));
    return kind && strcmp(kind->name, "text") ? feed_records(t, path, kind, limit)
                                              : feed_lines(t, path, limit);
}

static mx_status write_files(const char *dir, const mx_str *json)
{
    static const char config[] = "{\n  \"bos_token\": \"<|begin_of_text|>\",\n"
                                 "  \"eos_token\": \"<|end_of_text|>\",\n"
                                 "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n";
    mx_arena a = {0};
    mx_status st = mx_io_make_dir(NULL, dir);
    if (!st)
        st = mx_io_write_file(NULL, mx_arena_printf(&a, "%s/tokenizer.json", dir), json->text,
                              json->len);
    if (!st)
        st = mx_io_write_file(NULL, mx_arena_printf(&a, "%s/tokenizer_config.json", dir), config,
                              sizeof config - 1);
    mx_arena_fini(&a);
    return st;
}

mx_status mx_tokenize_train(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    const char *dir = mx_config_text(c, "output");
    mx_bpe_train_options o = {.pattern = mx_config_text(c, "tokenizer_pattern"),
                              .vocab_size = (int32_t)mx_config_int(c, "tokenizer_size"),
                              .min_frequency = mx_config_int(c, "min_frequency"),
                              .special = special};
    mx_bpe_trainer *t = NULL;
    mx_str json = {0};
    int32_t n_tokens = 0;
    mx_status st = MX_OK;
    if (inv->n_args < 2 || !*dir)
        return mx_fail(MX_USAGE, "train needs text and a place for the result: maxc tokenize train "
                                 "FILE ... output=DIRECTORY");
    MX_TRY_OUT(st, mx_bpe_trainer_open(&t, &o));
    for (int i = 1; i < inv->n_args; i++)
        MX_TRY_OUT(st, feed_file(t, inv->args[i], mx_config_int(c, "max_corpus_chars")));
    if (!mx_bpe_trainer_bytes(t))
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: no text to train on", inv->args[1]));
    if (mx_bpe_trainer_bad_bytes(t) > mx_bpe_trainer_bytes(t) / 10)
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: %lld of %lld bytes are not UTF-8: this is no text",
                               inv->args[1], (long long)mx_bpe_trainer_bad_bytes(t),
                               (long long)mx_bpe_trainer_bytes(t)));
    mx_bpe_trainer_finish(t, &json, &n_tokens);
    MX_TRY_OUT(st, write_files(dir, &json));
    printf("%s/tokenizer.json: %d tokens from %lld bytes", dir, n_tokens,
           (long long)mx_bpe_trainer_bytes(t));
    if (mx_bpe_trainer_bad_bytes(t))
        printf(", %lld of them not UTF-8 and left out", (long long)mx_bpe_trainer_bad_bytes(t));
    printf("\n");
out:
    mx_bpe_trainer_close(t);
    mx_str_fini(&json);
    return st;
}

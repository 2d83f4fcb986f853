/* data.c - maxc data: what training will see, before any training.
 *
 * Opens the data exactly as `maxc train`, `maxc sft` or `maxc dpo` would, makes batches, and shows
 * rows as text: what is trained in one colour, what is masked in another, documents separated.
 * Without colour, masked text stands between ‹ and ›. Then the counts: documents, tokens, how
 * full the rows are, what was cut off.
 *
 *     maxc data dataset_path=my.jsonl tokenizer=DIR max_target_length=512
 *     maxc data sft dataset_path=chat.jsonl loss_on=assistant show=tokens
 */
#include "base/clock.h"
#include "base/file.h"
#include "base/shown.h"
#include "cmd/verb.h"
#include "exec/model_ref.h"
#include "train/run/objective.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    const mx_train_data *d;
    bool colour, tokens;
    mx_str text;
} view;

/* --- rows --- */

/* Is the token at place i what some place must predict? */
static bool is_trained(const mx_batch *b, int64_t row, int64_t i)
{
    const int32_t *seg = b->segments + row * b->seq_len, *lab = b->labels + row * b->seq_len;
    return i > 0 && seg[i] == seg[i - 1] && lab[i - 1] != MX_NO_LABEL;
}

static mx_status show_run(view *v, const int32_t *ids, int64_t n, bool trained)
{
    mx_str text = {0};
    mx_status st = MX_OK;
    mx_str_add(&v->text, v->colour ? (trained ? "\x1b[32m" : "\x1b[90m") : trained ? "" : "‹");
    for (int64_t i = 0; v->tokens && i < n; i++) {
        size_t len = 0;
        const char *t = mx_tokenizer_token(v->d->tokenizer, ids[i], &len);
        mx_str_addf(&v->text, "%s%d:", i ? " " : "", ids[i]);
        mx_str_add_shown(&v->text, t ? t : "?", t ? len : 1);
    }
    if (!v->tokens)
        st = mx_tokenizer_decode(v->d->tokenizer, ids, n, NULL, &text);
    mx_str_add_shown(&v->text, mx_str_text(&text), text.len);
    mx_str_add(&v->text, v->colour ? "\x1b[0m" : trained ? "" : "›");
    if (v->tokens)
        mx_str_add(&v->text, " ");
    mx_str_fini(&text);
    return st;
}

static mx_status show_row(view *v, const mx_batch *b, int64_t row)
{
    const int32_t *ids = b->tokens + row * b->seq_len, *seg = b->segments + row * b->seq_len;
    int64_t used = 0, trained = 0, s = b->seq_len;
    int32_t documents = 0;
    for (int64_t i = 0; i < s; i++) {
        used += seg[i] != 0;
        trained += b->labels[row * s + i] != MX_NO_LABEL;
        documents = seg[i] > documents ? seg[i] : documents;
    }
    mx_str_clear(&v->text);
    mx_str_addf(&v->text,
                "--- step %lld, row %lld: %d document%s, %lld tokens, %lld trained, %lld padding\n",
                (long long)b->step, (long long)row, documents, documents == 1 ? "" : "s",
                (long long)used, (long long)trained, (long long)(s - used));
    for (int64_t i = 0, k; i < used; i = k) {
        bool on = is_trained(b, row, i);
        for (k = i + 1; k < used && seg[k] == seg[i] && is_trained(b, row, k) == on;)
            k++;
        MX_TRY(show_run(v, ids + i, k - i, on));
        if (k < used && seg[k] != seg[i])
            mx_str_addf(&v->text, "\n- - - document %d\n", seg[k]);
    }
    mx_str_add(&v->text, "\n");
    fwrite(v->text.text, 1, v->text.len, stdout);
    return MX_OK;
}

/* --- counts --- */

static void print_counts(const mx_loader_counts *c, double elapsed, int64_t batches, bool json)
{
    const mx_pack_counts *p = &c->pack;
    double full = p->places ? (double)p->tokens / (double)p->places : 0;
    double trained = p->tokens ? (double)p->trained_tokens / (double)p->tokens : 0;
    if (json) {
        printf(
            "{\"batches\": %lld, \"records\": %lld, \"bad_records\": %lld, \"documents\": %lld, "
            "\"empty_documents\": %lld, \"truncated_documents\": %lld, \"truncated_tokens\": %lld, "
            "\"tokens\": %lld, \"trained_tokens\": %lld, \"rows\": %lld, \"efficiency\": %.6f, "
            "\"tokens_per_second\": %.0f}\n",
            (long long)batches, (long long)c->records, (long long)c->bad_records,
            (long long)p->documents, (long long)p->empty, (long long)p->truncated,
            (long long)p->truncated_tokens, (long long)p->tokens, (long long)p->trained_tokens,
            (long long)p->rows, full, (double)p->tokens / elapsed);
        return;
    }
    printf(
        "=== %lld batches: %lld records, %lld documents (%lld empty), %lld tokens in %lld rows\n",
        (long long)batches, (long long)c->records, (long long)p->documents, (long long)p->empty,
        (long long)p->tokens, (long long)p->rows);
    printf("rows are %.1f %% full; %.1f %% of tokens are trained\n", 100 * full, 100 * trained);
    printf("cut off: %lld documents, %lld tokens%s\n", (long long)p->truncated,
           (long long)p->truncated_tokens,
           p->truncated ? " (use_truncation=false keeps them as further rows)" : "");
    if (c->bad_records)
        printf("bad records left out: %lld; the first: %s\n", (long long)c->bad_records,
               c->first_bad ? c->first_bad : "");
    printf("%.2f million tokens a second\n", (double)p->tokens / elapsed / 1e6);
}

static mx_status show_all(view *v, const mx_config *c)
{
    int64_t rows = mx_config_int(c, "rows"), batches = mx_config_int(c, "batches"), done = 0,
            shown = 0;
    bool json = strcmp(mx_config_text(c, "format"), "json") == 0;
    double from = mx_clock_now();
    for (; done < batches; done++) {
        const mx_batch *b;
        MX_TRY(mx_loader_next(v->d->loader, &b));
        if (!b)
            break;
        for (int64_t r = 0; r < b->rows && shown < rows && !json; r++) {
            if (b->segments[r * b->seq_len] == 0)
                continue; /* nothing but padding, at the end of the data */
            MX_TRY(show_row(v, b, r));
            shown++;
        }
    }
    mx_loader_counts counts = mx_loader_report(v->d->loader);
    print_counts(&counts, mx_clock_now() - from, done, json);
    return MX_OK;
}

/* The objective whose verb the first argument is; NULL: train, or none is given. */
static mx_status objective_of(const mx_invocation *inv, const mx_objective **out)
{
    const char *verb = inv->n_args ? inv->args[0] : "train";
    for (int i = 0; i < mx_objective_count && !*out; i++)
        if (strcmp(mx_objective_table[i]->name, verb) == 0) /* others share its verb */
            *out = mx_objective_table[i];
    if (*out && (*out)->rows == MX_ROWS_SAMPLED)
        return mx_fail(MX_USAGE, "maxc %s makes its rows as it goes: there are none to show", verb);
    if (*out || strcmp(verb, "train") == 0)
        return MX_OK;
    return mx_fail(MX_USAGE,
                   "`%s` is not a verb that trains; expected train, or one that `maxc help "
                   "objectives` lists",
                   verb);
}

/* Tokenizer and chat template are looked for beside the weights, as the run does. */
static mx_status find_model(const mx_config *c, mx_arena *a, const char **dir)
{
    const char *from = mx_config_text(c, "load_parameters_path");
    if (!*from)
        return MX_OK;
    MX_TRY(mx_model_place(from, MX_FETCH_CONFIG, c, a, dir));
    return mx_dir_exists(*dir) ? MX_OK
                               : mx_fail(MX_INPUT, "%s: load_parameters_path=%s is no folder",
                                         mx_config_where(c, "load_parameters_path"), from);
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    const char *colour = mx_config_text(c, "colour");
    mx_train_data d = {0};
    const mx_objective *o = NULL;
    mx_train_data_request r = {.config = c, .rows = mx_config_int(c, "batch_rows"),
                               .evaluation = mx_config_bool(c, "evaluation")};
    MX_TRY(objective_of(inv, &o));
    mx_objective_request(o, c, &r);
    if (!o) {
        bool answers = mx_config_is_set(c, "sft_train_on_completion_only") &&
                       mx_config_bool(c, "sft_train_on_completion_only");
        r.loss_on = answers ? MX_LOSS_ASSISTANT : MX_LOSS_ALL;
        r.pairs = mx_config_bool(c, "pairs");
    }
    mx_arena a = {0};
    view v = {.d = &d,
              .tokens = strcmp(mx_config_text(c, "show"), "tokens") == 0,
              .colour =
                  strcmp(colour, "always") == 0 || (strcmp(colour, "auto") == 0 && isatty(1))};
    mx_status st = find_model(c, &a, &r.model_dir);
    if (!st)
        st = mx_train_data_open(&d, &r);
    if (!st)
        st = show_all(&v, c);
    mx_arena_fini(&a);
    mx_str_fini(&v.text);
    mx_train_data_close(&d);
    return st;
}

static const mx_key keys[] = {
    {"rows", MX_KEY_INT, 0, "4", "0..", "rows to show", .example = "rows=1"},
    {"batches", MX_KEY_INT, 0, "10", "1..", "batches to make and count",
     .example = "batches=1"},
    {"batch_rows", MX_KEY_INT, 0, "8", "1..65536", "rows of a batch", .example = "batch_rows=2"},
    {"show", MX_KEY_ENUM, 0, "text", "text|tokens", "rows as text, or as ids and tokens",
     .example = "show=tokens"},
    {"colour", MX_KEY_ENUM, 0, "auto", "auto|always|never", "colours on the terminal", "color",
     .example = "colour=always"},
    {"evaluation", MX_KEY_BOOL, 0, "false", 0, "the evaluation data",
     .example = "evaluation=true eval_dataset_path=eval.jsonl dataset_path=data.jsonl"},
    {"pairs", MX_KEY_BOOL, 0, "false", 0, "chosen and rejected, two rows each",
     .example = "pairs=true dataset_path=pairs.jsonl"},
    MX_KEY_FORMAT,
    {0},
};

const mx_verb mx_verb_data = {
    .name = "data",
    .doc = "look at what training will see: tokenized, packed, masked",
    .usage = "[VERB] [FILE.yml] [key=value ...]",
    .max_args = 1,
    .takes_verb = true,
    .help = "VERB is the one whose data is shown: train (the default), sft, dpo. Rows are printed\n"
            "as text; trained parts and masked parts differ in colour (without colour, masked\n"
            "parts stand between ‹ and ›). Counts follow.",
    .takes_file = true,
    .like = "train",
    .keys = keys,
    .run = run,
};

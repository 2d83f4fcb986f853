/* encode.c - see encode.h. Prompt and completion are tokenized separately: at generation the prompt
 * is tokenized alone as well, so the model sees in training the very tokens it will see then. */
#include "data/load/encode.h"

#include "data/image/encode_image.h"

#include <math.h>
#include <string.h>

void mx_document_fini(mx_document *d)
{
    mx_tokens_fini(&d->ids);
    mx_free(d->trained);
    *d = (mx_document){0};
}

void mx_encode_mark(mx_document *d, int64_t from, bool trained)
{
    if (d->ids.n > d->cap_trained) {
        d->cap_trained = d->ids.n > 2 * d->cap_trained ? d->ids.n : 2 * d->cap_trained;
        d->trained = mx_realloc(d->trained, (size_t)d->cap_trained);
    }
    if (d->ids.n > from)
        memset(d->trained + from, trained, (size_t)(d->ids.n - from));
}

mx_status mx_encode_text(const mx_encoder *e, const char *text, size_t n, bool parse, bool trained,
                         mx_document *d)
{
    int64_t from = d->ids.n;
    bool done = false;
    d->mark_trained = trained;
    if (d->pictures)
        MX_TRY(mx_encode_marks(e, text, n, d, &done));
    if (done)
        return MX_OK;
    mx_encode_options o = {.special_in_text = parse ? MX_SPECIAL_PARSE : MX_SPECIAL_TEXT};
    MX_TRY(mx_tokenizer_encode(e->tokenizer, text, n, &o, &d->ids));
    mx_encode_mark(d, from, trained);
    return MX_OK;
}

void mx_encode_id(int32_t id, bool trained, mx_document *d)
{
    if (id < 0)
        return;
    mx_tokens_add(&d->ids, id);
    mx_encode_mark(d, d->ids.n - 1, trained);
}

static void begin(const mx_encoder *e, mx_document *d)
{
    if (e->add_bos)
        mx_encode_id(mx_tokenizer_bos(e->tokenizer), false, d);
}

static void finish(const mx_encoder *e, mx_document *d)
{
    if (e->add_eos)
        mx_encode_id(mx_tokenizer_eos(e->tokenizer), true, d);
}

static mx_status encode_completion(const mx_encoder *e, mx_text_range prompt,
                                   mx_text_range completion, mx_document *d)
{
    begin(e, d);
    bool all = e->loss_on == MX_LOSS_ALL;
    MX_TRY(mx_encode_text(e, prompt.text, prompt.len, e->parse_special, all, d));
    MX_TRY(mx_encode_text(e, completion.text, completion.len, e->parse_special, true, d));
    finish(e, d);
    return MX_OK;
}

static mx_status encode_ids(const mx_encoder *e, const mx_example *x, mx_document *d)
{
    int64_t limit = e->vocab_size ? e->vocab_size : INT32_MAX;
    mx_tokens_reserve(&d->ids, x->n_ids);
    for (int64_t i = 0; i < x->n_ids; i++) {
        if (x->ids[i] < 0 || x->ids[i] >= limit)
            return mx_fail(MX_INPUT,
                           "token %lld is %d, outside the vocabulary of %lld; was the data made "
                           "with another tokenizer?",
                           (long long)i, x->ids[i], (long long)limit);
        mx_encode_id(x->ids[i], !x->labels || x->labels[i] >= 0, d);
    }
    return MX_OK;
}

/* Strings: chosen and rejected may repeat the prompt (and, without a prompt column, do: what they
 * have in common up to the last line break is the prompt). Only what differs is trained. */
static mx_status encode_preference(const mx_encoder *e, const mx_example *x, mx_document out[2])
{
    mx_text_range side[2] = {x->chosen, x->rejected}, prompt = x->prompt;
    if (!prompt.text) {
        size_t n = 0, cut = 0;
        while (n < side[0].len && n < side[1].len && side[0].text[n] == side[1].text[n])
            if (side[0].text[n++] == '\n')
                cut = n;
        prompt = (mx_text_range){side[0].text, cut};
        for (int k = 0; k < 2; k++)
            side[k] = (mx_text_range){side[k].text + cut, side[k].len - cut};
    }
    for (int k = 0; k < 2; k++) {
        begin(e, &out[k]);
        MX_TRY(mx_encode_text(e, prompt.text, prompt.len, e->parse_special, false, &out[k]));
        MX_TRY(mx_encode_text(e, side[k].text, side[k].len, e->parse_special, true, &out[k]));
        finish(e, &out[k]);
    }
    return MX_OK;
}

static mx_status encode_example(const mx_encoder *e, const mx_example *x, mx_document out[2])
{
    if (x->kind != MX_EXAMPLE_IDS && !e->tokenizer)
        return mx_fail(MX_USAGE, "the data is text and there is no tokenizer; set tokenizer_path");
    if (e->whole && !e->images && x->kind != MX_EXAMPLE_IDS)
        return mx_encode_whole(e, x, out);
    switch (x->kind) {
    case MX_EXAMPLE_TEXT:
        begin(e, &out[0]);
        MX_TRY(mx_encode_text(e, x->text.text, x->text.len, e->parse_special, true, &out[0]));
        finish(e, &out[0]);
        return MX_OK;
    case MX_EXAMPLE_IDS: return encode_ids(e, x, &out[0]);
    case MX_EXAMPLE_CHAT: return mx_encode_chat(e, x->messages, x->tools, &out[0]);
    case MX_EXAMPLE_COMPLETION: return encode_completion(e, x->prompt, x->completion, &out[0]);
    case MX_EXAMPLE_PREFERENCE:
        if (!x->chosen_messages)
            return encode_preference(e, x, out);
        MX_TRY(mx_encode_chat(e, x->chosen_messages, x->tools, &out[0]));
        return mx_encode_chat(e, x->rejected_messages, x->tools, &out[1]);
    }
    MX_ASSERT(false, "example kind %d", x->kind);
    return MX_OK;
}

/* With the record's pictures in their places. */
static mx_status encode_with_pictures(const mx_encoder *e, const mx_record *r, mx_example *x,
                                      mx_document out[2], int n)
{
    mx_record_pictures p;
    mx_encoder with = *e;
    mx_status st = mx_record_pictures_open(&p, e->images, r, x);
    bool any = p.n > 0;
    with.parse_special |= any;
    for (int k = 0; k < n && any; k++)
        out[k].pictures = &p;
    if (!st)
        st = encode_example(&with, x, out);
    for (int k = 0; k < n && any && !st; k++)
        st = mx_encode_pictures_end(&out[k]);
    for (int k = 0; k < n && any; k++) {
        out[k].pictures = NULL;
        if (st) /* their numbers are given back */
            mx_status_free(mx_row_pictures(e->images, out[k].ids.ids, out[k].ids.n, NULL, 0, 0));
    }
    mx_record_pictures_close(&p);
    return st;
}

/* How much better the chosen answer is; 0 where the record does not say. */
static mx_status read_margin(const mx_record *r, float *margin)
{
    int i = mx_record_find(r, MX_MARGIN_COLUMN);
    double x = 0;
    *margin = 0;
    if (i < 0 || r->cells[i].kind == MX_CELL_NULL)
        return MX_OK;
    char text[64] = "";
    if (r->cells[i].kind == MX_CELL_JSON && r->cells[i].len_bytes < sizeof text)
        memcpy(text, mx_record_data(r, i), r->cells[i].len_bytes);
    if (!mx_parse_f64(text, &x) || !isfinite(x))
        return mx_fail(
            MX_INPUT,
            "column \"" MX_MARGIN_COLUMN
            "\": expected a number: by how much the score of the chosen answer should be higher");
    *margin = (float)x;
    return MX_OK;
}

/* A preference says which of two answers is better: to train on both of them would be wrong. */
static mx_status check_kind(const mx_encoder *e, const mx_example *x)
{
    bool pair = x->kind == MX_EXAMPLE_PREFERENCE;
    if (pair && !e->takes_pairs)
        return mx_fail(MX_INPUT, "the record has a chosen and a rejected answer, which `maxc dpo` "
                       "trains on; to train on the chosen ones alone, name the columns: "
                       "train_data_columns=prompt,chosen");
    if (!pair && e->takes_pairs)
        return mx_fail(MX_INPUT, "expected preferences: columns prompt (it may be part of the "
                       "others), chosen and rejected");
    return MX_OK;
}

mx_status mx_encode_record(const mx_encoder *e, const mx_record *r, mx_document out[2], int *n)
{
    mx_example x;
    for (int k = 0; k < 2; k++)
        out[k].ids.n = out[k].next_picture = 0;
    *n = 0;
    MX_TRY(mx_example_from_record(&x, r, e->columns, e->n_columns));
    *n = x.kind == MX_EXAMPLE_PREFERENCE ? 2 : 1;
    float margin = 0;
    mx_status st = check_kind(e, &x);
    if (!st && e->takes_margins)
        st = read_margin(r, &margin);
    out[0].margin = out[1].margin = margin;
    if (!st)
        st = e->images ? encode_with_pictures(e, r, &x, out, *n) : encode_example(e, &x, out);
    /* an empty text is an empty document, not one of two marks; post-training keeps it, as TRL */
    if (!st && x.kind == MX_EXAMPLE_TEXT && x.text.len == 0 && !e->whole)
        out[0].ids.n = 0;
    mx_example_fini(&x);
    if (!st && *n == 2 && (out[0].ids.n == 0 || out[1].ids.n == 0))
        st = mx_fail(MX_INPUT, "one side of the pair (chosen, rejected) is empty");
    return st;
}

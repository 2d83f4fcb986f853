/* kto.c - Kahneman-Tversky optimisation: answers that are good or bad by themselves, as TRL has it.
 *
 *     x = sum over the answer's tokens of log p - log p_ref
 *     kto                 good: 1 - s(beta (x - k))   bad: 1 - s(beta (k - x))
 *     apo_zero_unpaired   good: 1 - s(beta x)         bad: s(beta x)
 * weighted by desirable_weight and undesirable_weight, mean over the answers. k is the mean of x
 * over the microbatch's prompts with each other's answers (that of the row before; the first has
 * the last one's), without gradient, at least 0. On a mesh a microbatch has rows of all ranks. An
 * epoch's last batch has fewer rows, as TRL's.
 */
#include "data/load/encode.h"
#include "exec/step.h"
#include "ops.h"
#include "post/distill.h"
#include "post/mesh_rows.h"
#include "post/pairs.h"
#include "post/prompts.h"
#include "post/reference.h"
#include "post/tasks.h"
#include <string.h>

typedef struct {
    double beta, good, bad;
    bool uses_kl;
} settings;

static mx_status read_as(const mx_config *c, mx_arena *a, bool uses_kl, const void **out)
{
    settings *s = MX_NEW(a, settings);
    *s = (settings){.beta = mx_beta_of(c, "dpo.dpo_beta"), .uses_kl = uses_kl,
                    .good = mx_config_float(c, "desirable_weight"),
                    .bad = mx_config_float(c, "undesirable_weight")};
    *out = s;
    if (mx_config_int(c, "eval_interval") > 0)
        return mx_fail(MX_USAGE, "%s: loss_type=kto has no evaluation yet; leave eval_interval out",
                       mx_config_where(c, "eval_interval"));
    return MX_OK;
}

static mx_status read(const mx_config *c, mx_arena *a, const void **out)
{
    return read_as(c, a, true, out);
}

static mx_status read_apo(const mx_config *c, mx_arena *a, const void **out)
{
    return read_as(c, a, false, out);
}

/* --- the loss --- */

/* NAN where there is none: a microbatch without good answers has no part in their mean. */
static mx_node *mean_where(mx_graph *g, mx_node *x, mx_node *of)
{
    return mx_div(g, mx_sum_all(g, mx_mul(g, x, of)), mx_sum_all(g, of));
}

/* The mean of x (B, 1) over rows of which `of` is 1; and the logits' of their tokens. */
static void side_metrics(mx_graph *g, const mx_token_logps *t, const mx_token_facts *f,
                         mx_node *const x[2], mx_node *const of[2])
{
    static const char *const names[2][3] = {
        {"rewards/chosen", "logps/chosen", "logits/chosen"},
        {"rewards/rejected", "logps/rejected", "logits/rejected"}};
    mx_node *mean[2];
    for (int k = 0; k < 2; k++) {
        mx_shape rows = MX_SHAPE(t->batch, t->seq);
        mx_node *tokens = mx_mul(g, mx_reshape(g, t->counts, rows), of[k]);
        mean[k] = mean_where(g, x[0], of[k]);
        mx_metric_root(g, names[k][0], mean[k]);
        mx_metric_root(g, names[k][1], mean_where(g, x[1], of[k]));
        mx_metric_root(g, names[k][2], mean_where(g, mx_reshape(g, f->logit, rows), tokens));
    }
    mx_metric_root(g, "rewards/margins", mx_sub(g, mean[0], mean[1]));
    mx_metric_root(g, "entropy", mx_mean_counted(g, f->entropy, t->counts));
}

static mx_node *loss(mx_graph *g, const mx_head *h, mx_build *b, const void *given)
{
    const settings *s = given;
    mx_token_logps t = mx_logps_of(g, h, b, 1);
    mx_node *ref = mx_reshape(g, mx_rows_input(g, "reference", MX_SHAPE(b->batch, b->seq), MX_F32,
                                            MX_ROWS_AXES), MX_SHAPE(b->batch * b->seq));
    mx_node *good = mx_reshape(g, mx_rows_input(g, "desirable", MX_SHAPE(b->batch), MX_F32,
                                             MX_BATCH_AXES), MX_SHAPE(b->batch, 1));
    mx_node *kl = mx_input(g, "kl", MX_SCALAR, MX_F32), *own = mx_row_sums(g, &t, t.logp);
    mx_node *half = mx_constant(g, MX_SCALAR, MX_F32, 0.5);
    mx_node *there = mx_greater(g, mx_row_sums(g, &t, t.counts), half); /* (B, 1): not padding */
    mx_node *x = mx_sub(g, own, mx_row_sums(g, &t, ref));
    mx_node *bad = mx_mul(g, mx_affine(g, good, -1, 1), there);
    good = mx_mul(g, good, there);
    mx_node *up = mx_affine(g, mx_sub(g, x, kl), s->beta, 0);
    /* 1 - s(u) of good ones, s(u) = 1 - s(-u) of bad ones */
    mx_node *liked = mx_affine(g, mx_sigmoid(g, up), -s->good, s->good);
    mx_node *disliked = mx_affine(g, mx_sigmoid(g, up), s->bad, 0);
    mx_node *each = mx_add(g, mx_mul(g, liked, good), mx_mul(g, disliked, bad));
    if (b->training) {
        mx_token_facts f = mx_facts_of(g, h, &t);
        mx_node *values[2] = {mx_affine(g, x, s->beta, 0), own}, *of[2] = {good, bad};
        side_metrics(g, &t, &f, values, of);
        mx_metric_root(g, "kl", kl);
    }
    mx_node *share = mx_mul(g, mx_sum_all(g, there), t.scale);
    return mx_loss_root(g, b, mx_mul(g, mx_sum_all(g, each), t.scale), share);
}

/* --- the run --- */

enum { MOST_UNTRAINED = 4096 }; /* records without anything to train on: a mistake */

typedef struct {
    const settings *s;
    mx_prompts *prompts;
    mx_reference *reference, *policy;
    mx_batch batch, crossed; /* crossed: prompts with other answers */
    mx_post_prompt asked;
    mx_document *row; /* (rows): on a mesh those of all ranks */
    float *good;      /* likewise */
    float *kl;        /* of each microbatch, in stages */
    int64_t rows, own, first; /* own ones begin with `first` */
    int64_t there;            /* of rows: an epoch's last batch has fewer */
    mx_arena arena;
} kto_run;

static mx_status beside(const mx_objective_run *o, mx_beside *out)
{
    const settings *s = o->settings;
    MX_TRY(mx_reference_beside(o, 1, false, out));
    return s->uses_kl ? mx_reference_beside(o, 1, true, out) : MX_OK;
}

static void close(mx_objective_run *o)
{
    kto_run *r = o->state;
    if (!r)
        return;
    for (int64_t i = 0; r->row && i <= r->rows; i++)
        mx_document_fini(&r->row[i]);
    mx_post_prompt_fini(&r->asked);
    mx_prompts_close(r->prompts);
    mx_reference_close(r->reference);
    mx_reference_close(r->policy);
    mx_free(r->batch.tokens);
    mx_free(r->crossed.tokens);
    mx_arena_fini(&r->arena);
    mx_free(r);
    o->state = NULL;
}

static mx_status read_label(const json_t *record, float *good)
{
    const json_t *label = json_object_get(record, "label");
    if (!json_is_boolean(label) && !json_is_integer(label))
        return mx_fail(MX_INPUT, "expected prompt, completion and label (true: a good answer); "
                       "this record has %s", label ? "another kind of label" : "no label");
    *good = json_is_true(label) || json_integer_value(label) > 0;
    return MX_OK;
}

static mx_status encode(const kto_run *r, const mx_objective_run *o, mx_document *out)
{
    const json_t *p = json_object_get(r->asked.record, "prompt");
    const json_t *c = json_object_get(r->asked.record, "completion");
    mx_encoder e = {.tokenizer = o->data->tokenizer, .chat = o->data->chat, .whole = true,
                    .parse_special = o->data->parse_special, .loss_on = MX_LOSS_COMPLETION,
                    .add_bos = mx_config_bool(o->config, "add_bos"),
                    .add_eos = mx_config_bool(o->config, "add_eos")};
    mx_example x = {.tools = json_object_get(r->asked.record, "tools")};
    out->ids.n = 0;
    if (json_is_string(p) && json_is_string(c)) {
        x.kind = MX_EXAMPLE_COMPLETION;
        x.prompt = (mx_text_range){json_string_value(p), json_string_length(p)};
        x.completion = (mx_text_range){json_string_value(c), json_string_length(c)};
        return mx_encode_whole(&e, &x, out);
    }
    if (!json_is_array(p) || !json_is_array(c))
        return mx_fail(MX_INPUT, "expected prompt and completion, two texts or two lists of "
                       "messages");
    if (json_object_size(json_object_get(r->asked.record, MX_VARIABLES_COLUMN)))
        return mx_refuse_variables();
    x.kind = MX_EXAMPLE_CHAT;
    x.n_prompt = json_array_size(p);
    x.messages = json_copy((json_t *)p);
    json_array_extend(x.messages, (json_t *)c);
    mx_status st = mx_encode_whole(&e, &x, out);
    json_decref(x.messages);
    return st;
}

static int64_t prompt_of(const mx_document *d)
{
    int64_t n = 0;
    while (n < d->ids.n && !d->trained[n])
        n++;
    return n;
}

/* Row `to` of b: the prompt of p, the answer of a, cut to the length; p NULL: an empty one. */
static void put_row(mx_batch *b, int64_t to, const mx_document *p, const mx_document *a)
{
    int64_t at = to * b->seq_len, n = p ? prompt_of(p) : 0, skip = p ? prompt_of(a) : 0;
    int64_t all = p ? n + a->ids.n - skip : 0;
    for (int64_t i = 0; i < b->seq_len; i++) {
        bool there = i < all, label = i + 1 >= n && i + 1 < all && i + 1 < b->seq_len;
        b->tokens[at + i] = !there ? 0 : i < n ? p->ids.ids[i] : a->ids.ids[i - n + skip];
        b->segments[at + i] = there;
        b->positions[at + i] = there ? (int32_t)i : 0;
        b->labels[at + i] = label ? a->ids.ids[i + 1 - n + skip] : MX_NO_LABEL;
        b->n_tokens += there;
        b->n_trained += label;
    }
}

/* The next record with something left to train on. */
static mx_status take(kto_run *r, const mx_objective_run *o, mx_document *d, float *good, bool *end)
{
    for (int untrained = 0; untrained < MOST_UNTRAINED;) {
        MX_TRY(mx_prompts_next(r->prompts, &r->asked, end));
        if (*end)
            return MX_OK;
        mx_status st = read_label(r->asked.record, good);
        if (!st)
            st = encode(r, o, d);
        bool refused = st != MX_OK;
        MX_TRY(mx_prompts_refuse(r->prompts, st));
        if (!refused && prompt_of(d) < r->batch.seq_len && prompt_of(d) < d->ids.n)
            return MX_OK;
        untrained += !refused;
    }
    return mx_fail(MX_INPUT,
                   "%d records, and nothing to train on in any of them: their completions are "
                   "empty, or their prompts fill max_target_length=%lld",
                   MOST_UNTRAINED, (long long)r->batch.seq_len);
}

/* Where the run is in the data. The first record is taken on trial: data that cannot be used is
 * known before anything is begun. */
static mx_status find_place(kto_run *r, const mx_objective_run *o)
{
    bool end;
    float good;
    MX_TRY(take(r, o, &r->row[r->rows], &good, &end));
    mx_prompts_rewind(r->prompts);
    return o->position ? mx_prompts_seek(r->prompts, o->position, o->n_position) : MX_OK;
}

static mx_status open(mx_objective_run *o)
{
    kto_run *r = mx_realloc(NULL, sizeof *r);
    *r = (kto_run){.s = o->settings, .own = o->microbatch * o->accumulation};
    r->rows = r->own * mx_rows_parts(o);
    r->first = r->own * mx_rows_part(o);
    o->state = r;
    if (r->s->uses_kl && o->microbatch * mx_rows_parts(o) < 2)
        return mx_fail(MX_USAGE, "%s: loss_type=kto pairs every prompt with another one's answer; "
                       "set per_device_batch_size=2 or more",
                       mx_config_where(o->config, "per_device_batch_size"));
    r->good = MX_NEW_N(&r->arena, float, r->rows);
    r->kl = MX_NEW_N(&r->arena, float, o->accumulation);
    r->row = MX_NEW_N(&r->arena, mx_document, r->rows + 1); /* an example may take two */
    MX_TRY(mx_prompts_open(&r->prompts, o->data, o->config, o->data->sets, o->data->n_sets));
    MX_TRY(mx_batch_room(&r->batch, r->own, o->options->shape.seq));
    MX_TRY(mx_batch_room(&r->crossed, r->own, o->options->shape.seq));
    MX_TRY(find_place(r, o));
    MX_TRY(mx_reference_open(&r->reference, o, 1, false));
    if (r->s->uses_kl)
        MX_TRY(mx_reference_open(&r->policy, o, 1, true));
    return MX_OK;
}

/* The row before own row i in its microbatch, which has as many of every part; before the first is
 * the last, and rows that are not there do not count. */
static int64_t row_before(const kto_run *r, const mx_objective_run *o, int64_t i)
{
    int64_t parts = mx_rows_parts(o), begin = i / o->microbatch * o->microbatch;
    int64_t part = mx_rows_part(o), at;
    do {
        part = i > begin ? part : (part + parts - 1) % parts;
        i = i > begin ? i - 1 : begin + o->microbatch - 1;
        at = part * r->own + i;
    } while (at >= r->there);
    return at;
}

/* Reads the records of a batch: *n of all ranks, none at the end of the data. */
static mx_status take_all(kto_run *r, const mx_objective_run *o, int64_t *n)
{
    int64_t ranks = o->comm ? 1 : o->n_ranks, rank = o->comm ? 0 : o->rank, epoch = 0;
    bool end = false, trl = strcmp(mx_config_text(o->config, "semantics"), "trl") == 0;
    for (*n = 0; *n < r->rows * ranks; ++*n) {
        int64_t k = *n - rank * r->rows;
        bool mine = k >= 0 && k < r->rows;
        float other;
        MX_TRY(take(r, o, &r->row[mine ? k : r->rows], mine ? &r->good[k] : &other, &end));
        bool turns = *n > 0 && mx_prompts_epoch(r->prompts) != epoch;
        epoch = mx_prompts_epoch(r->prompts);
        if (end)
            break;
        if (turns && trl) {
            mx_prompts_put_back(r->prompts);
            break;
        }
    }
    int64_t own = *n - rank * r->rows;
    r->there = own < 0 ? 0 : own < r->rows ? own : r->rows;
    return MX_OK;
}

static mx_status next(mx_objective_run *o, const mx_batch **b)
{
    kto_run *r = o->state;
    int64_t n;
    *b = NULL;
    MX_TRY(take_all(r, o, &n));
    uint64_t digest = 0;
    for (int64_t i = 0; i < r->there; i++)
        digest = mx_rows_digest(digest, &r->row[i].ids);
    MX_TRY(mx_rows_check_same(o, digest));
    if (!n)
        return MX_OK;
    r->batch.n_tokens = r->batch.n_trained = 0;
    r->batch.step = o->step;
    for (int64_t i = 0; i < r->own; i++) {
        bool there = r->first + i < r->there;
        const mx_document *d = there ? &r->row[r->first + i] : NULL;
        put_row(&r->batch, i, d, d);
        put_row(&r->crossed, i, d, there ? &r->row[row_before(r, o, i)] : NULL);
    }
    *b = &r->batch;
    return MX_OK;
}

/* The mean over rows of log p - log p_ref of crossed answers, at least 0. */
static mx_status measure_kl(kto_run *r, const mx_objective_run *o, int64_t row, int64_t rows,
                            float *kl)
{
    const float *logps;
    double sum = 0;
    int64_t n = rows * mx_rows_parts(o) * r->crossed.seq_len, all = 0;
    for (int64_t part = 0; part < mx_rows_parts(o); part++)
        for (int64_t i = row; i < row + rows; i++)
            all += part * r->own + i < r->there;
    *kl = 0;
    if (!r->policy || !all)
        return MX_OK;
    MX_TRY(mx_reference_run(r->policy, &r->crossed, row, rows, &logps));
    logps = mx_reference_of_all(r->policy, rows);
    for (int64_t i = 0; i < n; i++)
        sum += logps[i];
    MX_TRY(mx_reference_run(r->reference, &r->crossed, row, rows, &logps));
    logps = mx_reference_of_all(r->reference, rows);
    for (int64_t i = 0; i < n; i++)
        sum -= logps[i];
    *kl = sum > 0 ? (float)(sum / (double)all) : 0;
    return MX_OK;
}

static mx_status feed(mx_objective_run *o, mx_exec *e, const mx_batch *b, int64_t row)
{
    kto_run *r = o->state;
    const float *logps;
    float *kl = &r->kl[row / o->fed];
    if (!o->stages)
        MX_TRY(measure_kl(r, o, row, o->fed, kl));
    MX_TRY(mx_exec_write(e, "kl", kl));
    MX_TRY(mx_exec_write(e, "desirable", r->good + r->first + row));
    MX_TRY(mx_reference_find(r->reference, b, row, o->fed, &logps));
    return mx_exec_write_rows(e, "reference", logps);
}

static mx_status ahead(mx_objective_run *o, const mx_batch *b)
{
    kto_run *r = o->state;
    for (int64_t row = 0; row < b->rows; row += o->fed)
        MX_TRY(measure_kl(r, o, row, o->fed, &r->kl[row / o->fed]));
    return mx_reference_ahead(r->reference, b, o->fed);
}

static int64_t rows_each(const void *given)
{
    (void)given;
    return 1;
}

/* Rows that are there. */
static int64_t count(const mx_objective_run *o, const mx_batch *b)
{
    int64_t n = 0;
    (void)o;
    for (int64_t row = 0; row < b->rows; row++)
        for (int64_t i = 0; i < b->seq_len; i++)
            if (b->labels[row * b->seq_len + i] >= 0) {
                n++;
                break;
            }
    return n;
}

static void position(const mx_objective_run *o, mx_str *json)
{
    mx_prompts_position(((kto_run *)o->state)->prompts, json);
}

/* What both objectives have: answers with labels are read, trained on and measured alike. */
#define ANSWERS_WITH_LABELS                                                                       \
    .verb = "dpo", .data = "prompt, completion and label", .rows = MX_ROWS_SAMPLED,               \
    .balances = true, .mean_of_microbatches = true,                                               \
    .rows_each = rows_each, .loss = loss, .count = count, .open = open, .beside = beside,         \
    .close = close, .next = next, .feed = feed, .ahead = ahead, .position = position,            \
    .measure = mx_tasks_measure, .measure_end = mx_tasks_close

const mx_objective mx_objective_kto = {
    .name = "kto",
    .doc = "good and bad answers, against a reference",
    .place = 4,
    .read = read,
    ANSWERS_WITH_LABELS,
};

const mx_objective mx_objective_apo_zero_unpaired = {
    .name = "apo_zero_unpaired",
    .doc = "the same without what the model says of other answers",
    .place = 5,
    .read = read_apo,
    ANSWERS_WITH_LABELS,
};

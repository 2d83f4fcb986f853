/* distill.c - distillation from a live teacher: its logits for every batch, and, for GKD, answers
 * that student or teacher give themselves.
 *
 * Whether a step is on policy is drawn from (seed, step). Then each row keeps its prompt, the
 * tokens before the first with a label, and what follows is sampled; a row whose prompt leaves no
 * room for max_completion_length tokens stays as it is. On a mesh the rows of all ranks are
 * answered together (mesh_rows.h).
 */
#include "base/rng.h"
#include "post/distill.h"
#include "post/grpo.h"
#include "post/mesh_rows.h"
#include "post/teacher.h"
#include <string.h>

typedef struct {
    const mx_distill *s;
    mx_teacher *teacher;
    mx_grpo sampling;
    mx_sampler *own, *other;    /* the student's, the teacher's; NULL: none */
    mx_objective_run as_teacher;
    mx_batch batch;             /* with sampled answers */
    mx_post_prompt *asked;
    mx_completion *answer;
    int64_t rows, parts;        /* own rows; ranks of a mesh with such rows */
    int32_t *prompts;           /* (parts, rows, 1 + S): length and tokens of each row's prompt */
    bool sampled;               /* the present batch was */
    mx_arena arena;
} distill_run;

static mx_grpo sampling_of(const mx_distill *s)
{
    return (mx_grpo){.generations = 1, .max_completion = s->max_completion,
                     .temperature = s->temperature};
}

static mx_status open_samplers(distill_run *d, mx_objective_run *o)
{
    const mx_distill *s = d->s;
    d->rows = o->microbatch * o->accumulation;
    d->sampling = sampling_of(s);
    int64_t all = d->rows * d->parts;
    d->asked = MX_NEW_N(&d->arena, mx_post_prompt, all);
    d->answer = MX_NEW_N(&d->arena, mx_completion, all);
    d->prompts = MX_NEW_N(&d->arena, int32_t, all * (1 + o->options->shape.seq));
    MX_TRY(mx_batch_room(&d->batch, d->rows, o->options->shape.seq));
    if (s->on_policy > 0)
        MX_TRY(mx_sampler_open(&d->own, o, &d->sampling, all));
    if (!s->seq_kd)
        return MX_OK;
    mx_teacher_as_run(d->teacher, o, &d->as_teacher);
    return mx_sampler_open(&d->other, &d->as_teacher, &d->sampling, all);
}

static mx_teacher_request request_of(const mx_objective_run *o)
{
    const mx_distill *s = o->settings;
    return (mx_teacher_request){.config = o->config, .path = s->teacher, .options = o->options,
                                .vocab = o->model->summary.vocab,
                                .d_model = o->model->summary.d_model, .top_k = s->top_k,
                                .layers = s->layers, .n_layers = s->n_layers,
                                .stages = o->stages};
}

static mx_status check_layers(const mx_objective_run *o)
{
    const mx_distill *s = o->settings;
    if (!s->features || s->n_layers == o->model->summary.n_layers ||
        mx_config_is_users(o->config, "distill_layer_indices"))
        return MX_OK;
    return mx_fail(MX_USAGE, "the student has %lld layers, the teacher %d; set "
                   "distill_layer_indices to those whose features are compared",
                   (long long)o->model->summary.n_layers, s->n_layers);
}

static mx_status beside(const mx_objective_run *o, mx_beside *out)
{
    const mx_distill *s = o->settings;
    mx_teacher_request r = request_of(o);
    mx_grpo sampling = sampling_of(s);
    MX_TRY(check_layers(o));
    MX_TRY(mx_teacher_beside(&r, out));
    return s->on_policy > 0
               ? mx_sampler_beside(o, &sampling,
                                    o->microbatch * o->accumulation * mx_rows_parts(o), out)
               : MX_OK;
}

static mx_status open(mx_objective_run *o)
{
    distill_run *d = mx_realloc(NULL, sizeof *d);
    const mx_distill *s = o->settings;
    *d = (distill_run){.s = s, .parts = mx_rows_parts(o)};
    o->state = d;
    MX_TRY(check_layers(o));
    mx_teacher_request r = request_of(o);
    r.tokenizer = o->data->tokenizer;
    r.rows = o->microbatch;
    r.parts = d->parts;
    r.beside = o->comm ? o->session : NULL;
    r.threads = mx_session_threads(o->session);
    MX_TRY(mx_teacher_open(&d->teacher, &r));
    return s->on_policy > 0 || s->seq_kd ? open_samplers(d, o) : MX_OK;
}

static void close(mx_objective_run *o)
{
    distill_run *d = o->state;
    if (!d)
        return;
    mx_sampler_close(d->own);
    mx_sampler_close(d->other);
    mx_teacher_close(d->teacher);
    for (int64_t i = 0; d->asked && i < d->rows * d->parts; i++)
        mx_post_prompt_fini(&d->asked[i]);
    for (int64_t i = 0; d->answer && i < d->rows * d->parts; i++)
        mx_completion_fini(&d->answer[i]);
    mx_free(d->batch.tokens);
    mx_arena_fini(&d->arena);
    mx_free(d);
    o->state = NULL;
}

/* --- sampled answers --- */

/* Tokens before the first that has a label; 0: the row has none, or no room for an answer. */
static int64_t prompt_of(const distill_run *d, const mx_batch *b, int64_t row)
{
    const int32_t *label = b->labels + row * b->seq_len;
    for (int64_t i = 0; i < b->seq_len - d->s->max_completion; i++)
        if (label[i] >= 0)
            return i + 1;
    return 0;
}

static void put_answer(distill_run *d, int64_t row, int64_t prompt, const mx_tokens *a)
{
    mx_batch *b = &d->batch;
    int64_t at = row * b->seq_len;
    for (int64_t i = prompt; i < b->seq_len; i++) {
        int64_t k = i - prompt;
        b->tokens[at + i] = k < a->n ? a->ids[k] : 0;
        b->segments[at + i] = k < a->n;
        b->positions[at + i] = k < a->n ? (int32_t)i : 0;
    }
    for (int64_t i = 0; i < b->seq_len; i++) {
        int64_t next = i + 1 - prompt;
        b->labels[at + i] = next >= 0 && next < a->n ? a->ids[next] : MX_NO_LABEL;
    }
}

/* The prompts of all rows, those without one left out; *asked of them. */
static mx_status share_prompts(distill_run *d, const mx_objective_run *o, const mx_batch *from,
                               int64_t *asked)
{
    int64_t S = from->seq_len, all = d->rows * d->parts;
    int32_t *own = d->prompts + mx_rows_part(o) * d->rows * (1 + S);
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t n = r < from->rows ? prompt_of(d, from, r) : 0;
        own[r * (1 + S)] = (int32_t)n;
        memcpy(own + r * (1 + S) + 1, from->tokens + r * S, sizeof *own * (size_t)n);
    }
    MX_TRY(mx_rows_share(o, MX_OK, d->prompts, sizeof *own * (size_t)(d->rows * (1 + S))));
    *asked = 0;
    for (int64_t r = 0; r < all; r++) {
        const int32_t *p = d->prompts + r * (1 + S);
        mx_tokens *ids = &d->asked[*asked].ids;
        for (int64_t i = ids->n = 0; i < *p; i++)
            mx_tokens_add(ids, p[1 + i]);
        *asked += *p > 0;
    }
    return MX_OK;
}

static mx_status answer(distill_run *d, const mx_objective_run *o, mx_sampler *by,
                        const mx_batch *from)
{
    mx_batch *b = &d->batch;
    int64_t n = from->rows * from->seq_len, asked, first = mx_rows_part(o) * d->rows;
    memcpy(b->tokens, from->tokens, sizeof(int32_t) * (size_t)n);
    memcpy(b->labels, from->labels, sizeof(int32_t) * (size_t)n);
    memcpy(b->segments, from->segments, sizeof(int32_t) * (size_t)n);
    memcpy(b->positions, from->positions, sizeof(int32_t) * (size_t)n);
    int64_t draws = o->comm ? o->step : o->step * o->n_ranks + o->rank;
    MX_TRY(share_prompts(d, o, from, &asked));
    MX_TRY(mx_sampler_run(by, d->asked, asked, draws, d->answer));
    for (int64_t r = 0, k = 0; r < first + from->rows; r++) {
        int64_t prompt = d->prompts[r * (1 + from->seq_len)];
        if (prompt && r >= first)
            put_answer(d, r - first, prompt, &d->answer[k].ids);
        k += prompt > 0;
    }
    b->rows = from->rows;
    b->step = from->step;
    b->n_tokens = b->n_trained = 0;
    for (int64_t i = 0; i < n; i++) {
        b->n_tokens += b->segments[i] > 0;
        b->n_trained += b->labels[i] >= 0;
    }
    return MX_OK;
}

static mx_status next(mx_objective_run *o, const mx_batch **b)
{
    distill_run *d = o->state;
    MX_TRY(mx_loader_next(o->data->loader, b));
    d->sampled = false;
    if (!*b || (!d->own && !d->other))
        return MX_OK;
    uint64_t seed = (uint64_t)mx_config_int(o->config, "data_shuffle_seed");
    mx_random4 r = mx_philox(seed ^ 0x6f6e706f6c696379u, (uint64_t)o->step, 0);
    bool own = d->own && mx_uniform_f64(r.v[0], r.v[1]) < d->s->on_policy;
    if (!own && !d->other)
        return MX_OK;
    MX_TRY(answer(d, o, own ? d->own : d->other, *b));
    d->sampled = own;
    *b = &d->batch;
    return MX_OK;
}

static mx_status feed(mx_objective_run *o, mx_exec *e, const mx_batch *b, int64_t row)
{
    distill_run *d = o->state;
    mx_taught t;
    MX_TRY(mx_teacher_find(d->teacher, b, row, o->fed, &t));
    if (t.logits)
        MX_TRY(mx_exec_write(e, "teacher_logits", t.logits));
    if (t.ids)
        MX_TRY(mx_exec_write(e, "teacher_ids", t.ids));
    if (t.features)
        MX_TRY(mx_exec_write(e, "teacher_features", t.features));
    return mx_distill_feed_weights(d->s, o->step, e);
}

static mx_status ahead(mx_objective_run *o, const mx_batch *b)
{
    return mx_teacher_ahead(((distill_run *)o->state)->teacher, b, o->fed);
}

static int report(const mx_objective_run *o, mx_metric *out)
{
    const distill_run *d = o->state;
    if (!d->own)
        return 0;
    out[0] = (mx_metric){"on_policy", d->sampled};
    return 1;
}

/* TRL's GKD takes all messages but the last for the prompt. */
static bool answers_last(const mx_config *c)
{
    return strcmp(mx_config_text(c, "loss_type"), "gkd") == 0;
}

const mx_objective mx_objective_distill = {
    .name = "distill",
    .doc = "the distributions of a teacher: MaxText's loss, GKD",
    .verb = "distill",
    .data = "what sft takes",
    .place = 8,
    .rows = MX_ROWS_DOCUMENTS,
    .answers_last = answers_last,
    .read = mx_distill_read,
    .loss = mx_distill_build,
    .open = open,
    .beside = beside,
    .close = close,
    .next = next,
    .feed = feed,
    .ahead = ahead,
    .report = report,
};

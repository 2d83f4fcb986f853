/* grpo_held.c - answers that wait to be learned from, in a checkpoint.
 *
 * They were given by weights that the checkpoint does not have any more, so they are written down,
 * beside the place in the data before their prompts:
 *
 *     {"t": .., "cursors": [..], "held": [{"generation": g, "updates": u, "answers":
 *      [{"ids": [..], "drawn": [..], "old": [..], "truncated": bool, "scores": [..]}, ..]}, ..]}
 *
 * drawn and old are log-probabilities, sampling's and the policy's, as the 32 bits of each. scores
 * are absent where the judge had failed: then it is asked again. Only one rank has the answers of
 * all; of several none are written, and a generation that was interrupted is sampled again.
 */
#include "post/grpo_batch.h"

#include <math.h>
#include <string.h>

/* Are generations that were answered and not learned from written to checkpoints? */
static bool is_written(const mx_objective_run *o)
{
    const mx_grpo *s = o->settings;
    return s->sampled && s->policy_moves && !o->comm && o->n_ranks == 1;
}

/* --- writing --- */

static json_t *bits_of(const float *x, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        json_array_append_new(list, json_integer(bits));
    }
    return list;
}

/* Where the first token of answer i is predicted, in (rows, S). */
static int64_t row_start(const mx_grpo_run *r, const mx_grpo_batch *b, int64_t i)
{
    return i * r->seq + b->asked[i / r->s->generations].ids.n - 1;
}

static json_t *answer_json(const mx_grpo_run *r, const mx_grpo_batch *b, int64_t i)
{
    const mx_completion *c = &b->answer[i];
    int count = r->rewards ? mx_rewards_count(r->rewards) : 0;
    json_t *ids = json_array(), *o = json_object();
    for (int64_t k = 0; k < c->ids.n; k++)
        json_array_append_new(ids, json_integer(c->ids.ids[k]));
    json_object_set_new(o, "ids", ids);
    json_object_set_new(o, "drawn", bits_of(c->logp, c->ids.n));
    json_object_set_new(o, "old", bits_of(b->old + row_start(r, b, i), c->ids.n));
    json_object_set_new(o, "truncated", json_boolean(c->truncated));
    if (b->said)
        return o;
    json_t *scores = json_array();
    for (int k = 0; k < count; k++) {
        double x = b->score[i * count + k];
        json_array_append_new(scores, isnan(x) ? json_null() : json_real(x));
    }
    json_object_set_new(o, "scores", scores);
    return o;
}

static json_t *batch_json(const mx_grpo_run *r, const mx_grpo_batch *b)
{
    json_t *answers = json_array();
    for (int64_t i = 0; i < r->rows; i++)
        json_array_append_new(answers, answer_json(r, b, i));
    return json_pack("{s:I, s:I, s:o}", "generation", (json_int_t)b->generation, "updates",
                     (json_int_t)b->updates, "answers", answers);
}

void mx_grpo_position(const mx_objective_run *o, mx_str *json)
{
    mx_grpo_run *r = o->state;
    int64_t next = o->step / r->s->iterations; /* the generation of the next step */
    const mx_grpo_batch *first = NULL;
    json_t *held = json_array();
    for (int64_t g = next; g < next + r->n_sets && is_written(o); g++) {
        mx_grpo_batch *b = &r->set[g % r->n_sets];
        if (b->generation != g)
            continue;
        mx_grpo_join(b);
        first = first ? first : b;
        json_array_append_new(held, batch_json(r, b));
    }
    if (first) {
        char *text = json_dumps(held, JSON_COMPACT);
        mx_str_add_n(json, first->from.text, first->from.len - 1); /* without its last brace */
        mx_str_addf(json, ", \"held\": %s}", text);
        free(text);
    } else {
        mx_prompts_position(r->prompts, json);
    }
    json_decref(held);
}

/* --- reading --- */

mx_status mx_grpo_seek(mx_grpo_run *r, const mx_objective_run *o)
{
    if (!o->position)
        return MX_OK;
    json_t *j = json_loadb(o->position, o->n_position, 0, NULL);
    r->held = json_incref(json_object_get(j, "held"));
    json_decref(j);
    return mx_prompts_seek(r->prompts, o->position, o->n_position);
}

static json_t *find(const mx_grpo_run *r, int64_t generation, size_t *at)
{
    for (*at = 0; *at < json_array_size(r->held); ++*at) {
        json_t *one = json_array_get(r->held, *at);
        if (json_integer_value(json_object_get(one, "generation")) == generation)
            return one;
    }
    return NULL;
}

static void read_bits(const json_t *list, float *x)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t bits = (uint32_t)json_integer_value(json_array_get(list, i));
        memcpy(&x[i], &bits, sizeof bits);
    }
}

static mx_status read_answer(const mx_grpo_run *r, const mx_objective_run *o, const json_t *j,
                             mx_completion *c)
{
    const json_t *ids = json_object_get(j, "ids"), *drawn = json_object_get(j, "drawn");
    size_t n = json_array_size(ids);
    if (!n || (int64_t)n > r->s->max_completion || json_array_size(drawn) != n ||
        json_array_size(json_object_get(j, "old")) != n)
        return mx_fail(MX_INPUT, "an answer of the checkpoint has %zu tokens and %zu "
                       "log-probabilities; expected as many, at most max_completion_length=%lld",
                       n, json_array_size(drawn), (long long)r->s->max_completion);
    c->ids.n = 0;
    for (size_t k = 0; k < n; k++)
        mx_tokens_add(&c->ids, (int32_t)json_integer_value(json_array_get(ids, k)));
    c->logp = mx_realloc(c->logp, sizeof(float) * (size_t)r->s->max_completion);
    read_bits(drawn, c->logp);
    c->truncated = json_is_true(json_object_get(j, "truncated"));
    c->reward = NAN;
    mx_str_clear(&c->text);
    return mx_tokenizer_decode(o->data->tokenizer, c->ids.ids, c->ids.n,
                               &(mx_decode_options){.skip_special = true}, &c->text);
}

/* Are they there for every answer, of as many rewards as there are? */
static bool read_scores(const mx_grpo_run *r, const json_t *answers, double *score)
{
    int count = r->rewards ? mx_rewards_count(r->rewards) : 0;
    for (int64_t i = 0; i < r->rows; i++) {
        const json_t *list = json_object_get(json_array_get(answers, (size_t)i), "scores");
        if (!list || json_array_size(list) != (size_t)count)
            return false;
        for (int k = 0; k < count; k++) {
            const json_t *x = json_array_get(list, (size_t)k);
            score[i * count + k] = json_is_number(x) ? json_number_value(x) : NAN;
        }
    }
    return true;
}

mx_status mx_grpo_take_held(mx_grpo_run *r, const mx_objective_run *o, mx_grpo_batch *b,
                            int64_t generation, bool *found)
{
    size_t at;
    const json_t *one = find(r, generation, &at), *list = json_object_get(one, "answers");
    *found = one != NULL;
    if (!one)
        return MX_OK;
    if ((int64_t)json_array_size(list) != r->rows)
        return mx_fail(MX_INPUT, "the checkpoint holds %zu answers of a step and this run has "
                       "%lld; resume with its per_device_batch_size and num_generations",
                       json_array_size(list), (long long)r->rows);
    for (int64_t i = 0; i < r->rows; i++)
        MX_TRY(read_answer(r, o, json_array_get(list, (size_t)i), &b->answer[i]));
    b->updates = json_integer_value(json_object_get(one, "updates"));
    b->scored = read_scores(r, list, b->score);
    return MX_OK;
}

void mx_grpo_take_old(mx_grpo_run *r, mx_grpo_batch *b, int64_t generation)
{
    size_t at;
    const json_t *list = json_object_get(find(r, generation, &at), "answers");
    for (int64_t i = 0; i < r->rows; i++) {
        read_bits(json_object_get(json_array_get(list, (size_t)i), "old"),
                  b->old + row_start(r, b, i));
        b->has_old[i] = 1;
    }
    json_array_remove(r->held, at); /* a run that goes back samples again */
}

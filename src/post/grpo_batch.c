/* grpo_batch.c - the answers of a step and what is learned from them: prompts, answers, rewards,
 * advantages, a row of the batch for each answer.
 *
 *     begin     asks, samples, and has the answers judged
 *     finish    waits for the judge; then the batch can be trained on
 *
 * Between the two the judge works in a thread of its own, while the device trains on the batch
 * before (rl.off_policy_steps); without that they follow each other. A reward model shares the
 * device with training and judges at once.
 */
#include "post/grpo_batch.h"

#include "base/clock.h"
#include "post/mesh_rows.h"
#include <math.h>
#include <string.h>

/* --- room --- */

mx_status mx_grpo_batch_open(mx_grpo_run *r, mx_grpo_batch *b)
{
    size_t n = (size_t)(r->rows * r->seq), rows = (size_t)r->rows;
    int64_t at = r->first * r->seq;
    int32_t *p;
    float *f;
    MX_TRY(mx_alloc((void **)&p, 4 * sizeof *p * n, "a batch of answers"));
    b->tokens = p;
    b->batch = (mx_batch){.tokens = p + at, .labels = p + n + at, .segments = p + 2 * n + at,
                          .positions = p + 3 * n + at, .rows = r->own, .seq_len = r->seq};
    MX_TRY(mx_alloc((void **)&f, sizeof *f * (2 * n + 2 * rows), "log-probabilities of answers"));
    b->old = f;
    b->drawn = f + n;
    b->advantage = f + 2 * n;
    b->has_old = f + 2 * n + rows;
    int64_t k = r->rewards ? mx_rewards_count(r->rewards) : 1;
    b->score = MX_NEW_N(&r->arena, double, r->rows * k);
    b->reward = MX_NEW_N(&r->arena, double, r->rows);
    b->judged = MX_NEW_N(&r->arena, mx_reward_input, r->own);
    b->asked = MX_NEW_N(&r->arena, mx_post_prompt, r->n_prompts);
    b->answer = MX_NEW_N(&r->arena, mx_completion, r->rows);
    b->generation = -1;
    return MX_OK;
}

void mx_grpo_batch_close(mx_grpo_run *r, mx_grpo_batch *b)
{
    mx_grpo_join(b);
    mx_status_free(b->said);
    for (int64_t i = 0; b->asked && i < r->n_prompts; i++)
        mx_post_prompt_fini(&b->asked[i]);
    for (int64_t i = 0; b->answer && i < r->rows; i++)
        mx_completion_fini(&b->answer[i]);
    mx_str_fini(&b->from);
    mx_free(b->tokens);
    mx_free(b->old);
}

/* --- prompts --- */

/* This rank's prompts of the next step; the others' are passed over. On a mesh there are none of
 * others. As TRL's, a batch is of one epoch, whose last prompts are passed over where they do not
 * fill another; an epoch of fewer than a batch is repeated in it. */
static mx_status ask(mx_grpo_run *r, const mx_objective_run *o, mx_grpo_batch *b, bool *end)
{
    mx_post_prompt other = {0};
    mx_status st = MX_OK;
    *end = false;
    bool trl = strcmp(r->s->of->name, "trl") == 0, small = mx_prompts_at_start(r->prompts);
    int64_t ranks = o->comm ? 1 : o->n_ranks, rank = o->comm ? 0 : o->rank, epoch = 0;
    for (int64_t i = 0; i < r->n_prompts * ranks && !st && !*end; i++) {
        int64_t k = i - rank * r->n_prompts;
        bool mine = k >= 0 && k < r->n_prompts;
        st = mx_prompts_next(r->prompts, mine ? &b->asked[k] : &other, end);
        bool turns = i > 0 && mx_prompts_epoch(r->prompts) != epoch;
        epoch = mx_prompts_epoch(r->prompts);
        if (!st && !*end && turns && trl && !small) {
            mx_prompts_put_back(r->prompts);
            small = true;
            i = -1;
            continue;
        }
        if (!st && mine && !*end && b->asked[k].ids.n + r->s->max_completion > r->seq)
            st = mx_fail(MX_INPUT,
                         "a prompt has %lld tokens; with max_completion_length=%lld it does not "
                         "fit max_target_length=%lld: \"%.60s\"",
                         (long long)b->asked[k].ids.n, (long long)r->s->max_completion,
                         (long long)r->seq, b->asked[k].text);
    }
    mx_post_prompt_fini(&other);
    uint64_t digest = 0;
    for (int64_t i = 0; i < r->n_prompts && !st && !*end; i++)
        digest = mx_rows_digest(digest, &b->asked[i].ids);
    return st ? st : mx_rows_check_same(o, digest);
}

/* --- judging --- */

/* Own rows, judged by the rank that leads them: a reward program may say something else when it is
 * asked again. */
static void *score(void *batch)
{
    mx_grpo_batch *b = batch;
    b->said = mx_rewards_score(b->by, b->judged, b->n_judged, b->to);
    return NULL;
}

static mx_status start_judge(mx_grpo_run *r, const mx_objective_run *o, mx_grpo_batch *b)
{
    int64_t G = r->s->generations;
    int count = r->rewards ? mx_rewards_count(r->rewards) : 0;
    for (int64_t i = 0; i < r->own; i++)
        b->judged[i] = mx_reward_input_of(&b->asked[(r->first + i) / G], &b->answer[r->first + i],
                                          r->s);
    b->by = r->rewards;
    b->n_judged = r->own;
    b->to = b->score + r->first * count;
    if (!count || b->scored || !mx_rows_leads(o))
        return MX_OK;
    b->in_thread = r->s->off_policy_steps > 0 && !mx_rewards_have_model(r->rewards) &&
                   pthread_create(&b->thread, NULL, score, b) == 0;
    if (!b->in_thread)
        score(b);
    return MX_OK;
}

void mx_grpo_join(mx_grpo_batch *b)
{
    if (b->in_thread)
        pthread_join(b->thread, NULL);
    b->in_thread = false;
}

/* The rewards of all rows, once the judge has spoken. */
static mx_status take_rewards(mx_grpo_run *r, const mx_objective_run *o, mx_grpo_batch *b)
{
    int count = r->rewards ? mx_rewards_count(r->rewards) : 0;
    mx_grpo_join(b);
    mx_status st = b->said;
    b->said = MX_OK;
    st = mx_rows_share(o, st, b->score, sizeof *b->score * (size_t)(r->own * count));
    for (int64_t i = 0; i < r->rows && !st; i++) {
        b->reward[i] = count ? mx_rewards_sum(r->rewards, b->score + i * count)
                             : b->answer[i].reward;
        if (isinf(b->reward[i]))
            st = mx_fail(MX_INPUT, "the reward of answer %lld is infinite; nothing was updated",
                         (long long)i);
        if (!count && isnan(b->reward[i]) && !b->answer[i].unjudged)
            st = mx_fail(MX_INPUT, "rollout_path: a completion has no \"reward\", and neither "
                         "reward= nor reward_command= is set");
    }
    b->scored = !st;
    return st;
}

/* --- rows --- */

/* Prompt and answer i as a row of the batch. An answer that teaches nothing since it did not end is
 * padding to the model, as TRL's: experts are not balanced over it. */
static void fill_row(const mx_grpo_run *r, mx_grpo_batch *b, int64_t i)
{
    const mx_tokens *p = &b->asked[i / r->s->generations].ids, *a = &b->answer[i].ids;
    const float *logp = b->answer[i].logp;
    mx_batch *to = &b->batch;
    int64_t at = i * r->seq, own = at - r->first * r->seq;
    bool trains = !(r->s->mask_truncated && b->answer[i].truncated);
    for (int64_t k = 0; k < r->seq; k++) {
        int64_t q = k - p->n, next = q + 1;
        bool there = q < a->n;
        to->tokens[own + k] = k < p->n ? p->ids[k] : there ? a->ids[q] : 0;
        to->segments[own + k] = there && (trains || q < 0);
        to->positions[own + k] = there ? (int32_t)k : 0;
        bool label = next >= 0 && next < a->n && trains;
        to->labels[own + k] = label ? a->ids[next] : MX_NO_LABEL;
        b->old[at + k] = b->drawn[at + k] = label && logp ? logp[next] : 0;
        to->n_tokens += there;
        to->n_trained += label;
    }
    b->has_old[i] = !r->s->sampled && logp;
}

/* Where the policy will have moved before the answers are learned from: their log-probabilities
 * under the policy that gave them, computed by the training program, unless a file has them. */
static mx_status keep_policy(mx_grpo_run *r, mx_grpo_batch *b, int64_t microbatch)
{
    for (int64_t row = 0; r->policy && row < r->own; row += microbatch) {
        const float *logps;
        MX_TRY(mx_reference_run(r->policy, &b->batch, row, microbatch, &logps));
        for (int64_t i = 0; i < microbatch; i++) {
            int64_t at = r->first + row + i;
            if (b->has_old[at])
                continue;
            memcpy(b->old + at * r->seq, logps + i * r->seq, sizeof(float) * (size_t)r->seq);
            b->has_old[at] = 1;
        }
    }
    return MX_OK;
}

/* How far sampling's log-probabilities are from those of the same weights in training. */
static void find_gap(const mx_grpo_run *r, mx_grpo_batch *b)
{
    double sum = 0, most = 0;
    for (int64_t i = 0; i < r->own * r->seq; i++) {
        int64_t at = r->first * r->seq + i;
        double gap = b->batch.labels[i] == MX_NO_LABEL
                         ? 0
                         : fabs((double)b->old[at] - (double)b->drawn[at]);
        sum += gap;
        most = gap > most || isnan(gap) ? gap : most;
    }
    b->gap_mean = sum / (double)(b->batch.n_trained ? b->batch.n_trained : 1);
    b->gap_most = most;
}

/* --- numbers --- */

static void add(mx_grpo_batch *b, const char *name, double value)
{
    if (b->n_metrics < MX_HOST_METRICS)
        b->metric[b->n_metrics++] = (mx_metric){name, value};
}

static void reward_metrics(const mx_grpo_run *r, mx_grpo_batch *b, const mx_reward_facts *f)
{
    int count = r->rewards ? mx_rewards_count(r->rewards) : 0;
    add(b, "reward", f->mean);
    add(b, "reward_std", f->std);
    add(b, "frac_reward_zero_std", f->zero_share);
    for (int k = 0; k < count; k++) {
        double sum = 0, squares = 0, n = 0;
        for (int64_t i = 0; i < r->rows; i++) {
            double x = b->score[i * count + k];
            if (!isnan(x))
                sum += x, squares += x * x, n++;
        }
        double mean = n > 0 ? sum / n : 0, var = n > 1 ? (squares - n * mean * mean) / (n - 1) : 0;
        snprintf(b->names[2 * k], 64, "rewards/%s/mean", mx_rewards_name(r->rewards, k));
        snprintf(b->names[2 * k + 1], 64, "rewards/%s/std", mx_rewards_name(r->rewards, k));
        add(b, b->names[2 * k], mean);
        add(b, b->names[2 * k + 1], sqrt(fmax(var, 0)));
    }
}

static void length_metrics(const mx_grpo_run *r, mx_grpo_batch *b)
{
    double sum[2] = {0}, least[2] = {INFINITY, INFINITY}, most[2] = {0}, n[2] = {0};
    for (int64_t i = 0; i < r->rows; i++)
        for (int k = 0; k < 1 + !b->answer[i].truncated; k++) {
            double x = (double)b->answer[i].ids.n;
            sum[k] += x;
            least[k] = fmin(least[k], x);
            most[k] = fmax(most[k], x);
            n[k]++;
        }
    add(b, "completions/mean_length", sum[0] / n[0]);
    add(b, "completions/min_length", least[0]);
    add(b, "completions/max_length", most[0]);
    add(b, "completions/clipped_ratio", 1 - n[1] / n[0]);
    add(b, "completions/mean_terminated_length", n[1] > 0 ? sum[1] / n[1] : 0);
    add(b, "completions/min_terminated_length", n[1] > 0 ? least[1] : 0);
    add(b, "completions/max_terminated_length", most[1]);
}

/* The groups as rollout_path reads them. */
static mx_status write_record(mx_grpo_run *r, const mx_grpo_batch *b, int64_t step)
{
    int64_t G = r->s->generations;
    for (int64_t p = 0; r->record && p < r->n_prompts; p++) {
        json_t *list = json_array(), *o = json_object();
        for (int64_t i = p * G; i < (p + 1) * G; i++) {
            const mx_completion *c = &b->answer[i];
            json_t *ids = json_array(), *logps = json_array();
            for (int64_t k = 0; k < c->ids.n; k++) {
                json_array_append_new(ids, json_integer(c->ids.ids[k]));
                if (c->logp)
                    json_array_append_new(logps, json_real(c->logp[k]));
            }
            json_t *text = json_stringn(mx_str_text(&c->text), c->text.len);
            json_t *one = json_pack("{s:o, s:o, s:o, s:o}", "text", text ? text : json_null(),
                                    "ids", ids, "logprobs", logps, "reward",
                                    isnan(b->reward[i]) ? json_null() : json_real(b->reward[i]));
            json_array_append_new(list, one);
        }
        const json_t *asked = json_object_get(b->asked[p].record, "prompt");
        json_object_set_new(o, "step", json_integer(step));
        json_object_set_new(o, "prompt", asked ? json_deep_copy(asked)
                                               : json_string(b->asked[p].text));
        json_object_set_new(o, "completions", list);
        json_dumpf(o, r->record, JSON_COMPACT);
        fputc('\n', r->record);
        json_decref(o);
    }
    if (r->record && fflush(r->record))
        return mx_fail_errno(MX_DEVICE, "rollouts.jsonl could not be written");
    return MX_OK;
}

/* --- a generation --- */

static mx_status answer(mx_grpo_run *r, const mx_objective_run *o, mx_grpo_batch *b,
                        int64_t generation)
{
    bool held = false;
    double began = mx_clock_now();
    for (int64_t p = 0; p < r->n_prompts && !r->s->sampled; p++)
        MX_TRY(mx_status_wrap(mx_recorded_answers(o->data, &b->asked[p], r->s,
                                                  &b->answer[p * r->s->generations]),
                              "the group of \"%.60s\"", b->asked[p].text));
    b->updates = o->step - 1;
    b->scored = false;
    MX_TRY(mx_grpo_take_held(r, o, b, generation, &held));
    int64_t draws = o->comm ? generation : generation * o->n_ranks + o->rank;
    if (r->s->sampled && !held)
        MX_TRY(mx_sampler_run(r->sampler, b->asked, r->n_prompts, draws, b->answer));
    b->sampling_s = mx_clock_now() - began;
    b->batch.n_tokens = b->batch.n_trained = 0;
    for (int64_t i = 0; i < r->own; i++)
        fill_row(r, b, r->first + i);
    if (held)
        mx_grpo_take_old(r, b, generation);
    else
        MX_TRY(keep_policy(r, b, o->microbatch));
    find_gap(r, b);
    return start_judge(r, o, b);
}

mx_status mx_grpo_begin(mx_grpo_run *r, const mx_objective_run *o, mx_grpo_batch *b,
                        int64_t generation, bool *end)
{
    b->generation = -1;
    b->finished = false;
    mx_grpo_join(b); /* of a generation that is not wanted any more */
    mx_status_free(b->said);
    b->said = MX_OK;
    mx_str_clear(&b->from);
    mx_prompts_position(r->prompts, &b->from);
    MX_TRY(ask(r, o, b, end));
    if (*end)
        return MX_OK;
    MX_TRY(answer(r, o, b, generation));
    b->generation = generation;
    return MX_OK;
}

mx_status mx_grpo_finish(mx_grpo_run *r, const mx_objective_run *o, mx_grpo_batch *b)
{
    double began = mx_clock_now(), tokens = 0;
    if (b->finished)
        return MX_OK;
    MX_TRY(take_rewards(r, o, b));
    int count = r->rewards ? mx_rewards_count(r->rewards) : 0;
    mx_group_rewards rewards = {b->reward, count ? b->score : NULL,
                                count ? mx_rewards_weights(r->rewards) : NULL, count};
    mx_reward_facts f = mx_advantages(r->s, &rewards, r->rows, b->advantage);
    for (int64_t i = 0; i < r->rows; i++)
        tokens += (double)b->answer[i].ids.n;
    b->n_metrics = 0;
    reward_metrics(r, b, &f);
    length_metrics(r, b);
    if (r->s->sampled) {
        add(b, "rollout_seconds", b->sampling_s);
        add(b, "rollout_tokens_per_second", tokens / b->sampling_s);
        add(b, "reward_wait_seconds", mx_clock_now() - began);
    }
    if (r->s->sampled && r->policy) {
        add(b, "sampling/sampling_logp_difference/mean", b->gap_mean);
        add(b, MX_LOGP_GAP, b->gap_most);
    }
    b->finished = true;
    return write_record(r, b, o->step);
}

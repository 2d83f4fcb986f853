/* grpo.c - group-relative policy optimisation: the keys, and a batch for every step.
 *
 * A step: P prompts, G answers to each, rewards, advantages, one row of the batch for each answer.
 * With num_iterations = n the same answers serve n steps, weighted by how much likelier they are
 * now than when they were given (grpo_loss.c).
 */
#include "post/grpo.h"

#include "base/clock.h"
#include "base/io.h"
#include "post/mesh_rows.h"
#include "post/pairs.h"
#include "post/reference.h"
#include "post/tasks.h"
#include "exec/step.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const mx_grpo *s;
    mx_prompts *prompts;
    mx_sampler *sampler;
    mx_rewards *rewards; /* NULL: recorded ones alone */
    mx_reference *reference, *policy; /* NULL: not needed */
    int64_t n_prompts, rows, seq; /* of a step, on this rank; on a mesh on all ranks */
    int64_t own, first;           /* rows of this rank's, and where they begin */
    mx_post_prompt *asked;
    mx_completion *answer;
    mx_batch batch;       /* own rows */
    int32_t *tokens;      /* owns: of all rows */
    float *advantage, *old, *has_old, *drawn; /* (rows), (rows, S), (rows), (rows, S) */
    double *score, *reward;
    int64_t generation; /* of the batch; -1: none */
    mx_metric metric[MX_HOST_METRICS];
    int n_metrics;
    char names[2 * MX_MAX_REWARDS][64];
    mx_arena arena;
    FILE *record;
} grpo_run;

/* --- keys --- */

static bool in_words(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; *p; p += strcspn(p, " "), p += strspn(p, " "))
        if (strcspn(p, " ") == n && memcmp(p, word, n) == 0)
            return true;
    return false;
}

/* What semantics=NAME has for a key that nobody set. */
static const char *default_loss(const mx_grpo_semantics *of, mx_arena *a)
{
    const char *all = of && of->losses ? of->losses : "dapo";
    return mx_arena_printf(a, "%.*s", (int)strcspn(all, " "), all);
}

static mx_status check(const mx_config *c, mx_arena *a, const mx_grpo *s, const char *type)
{
    if (!s->of)
        return mx_fail(MX_USAGE, "%s: grpo has the semantics of trl, maxtext and verl",
                       mx_config_where(c, "semantics"));
    if (!s->loss)
        return mx_fail(MX_USAGE, "%s: loss_type=%s is none of grpo's: %s",
                       mx_config_where(c, "loss_type"), type, mx_grpo_loss_names(a));
    if (s->of->losses && !in_words(s->of->losses, type))
        return mx_fail(MX_USAGE, "%s: loss_type=%s is none of those that semantics=%s has: %s",
                       mx_config_where(c, "loss_type"), type, s->of->name, s->of->losses);
    if (s->of->kl != MX_KL_K3 && mx_config_is_users(c, "use_bias_correction_kl"))
        return mx_fail(MX_USAGE, "%s: semantics=%s does not weigh the KL by the ratio; leave "
                       "use_bias_correction_kl out",
                       mx_config_where(c, "use_bias_correction_kl"), s->of->name);
    if (s->temperature <= 0)
        return mx_fail(MX_USAGE, "%s: answers of temperature 0 are all equal, and nothing is "
                       "learned from them", mx_config_where(c, "decode_sampling_temperature"));
    if (mx_config_int(c, "eval_interval") > 0)
        return mx_fail(MX_USAGE, "%s: grpo has no evaluation yet; leave eval_interval out",
                       mx_config_where(c, "eval_interval"));
    if (s->max_completion >= mx_config_int(c, "max_target_length"))
        return mx_fail(MX_USAGE, "%s: max_completion_length=%lld leaves no room for a prompt in "
                       "max_target_length=%lld", mx_config_where(c, "max_completion_length"),
                       (long long)s->max_completion,
                       (long long)mx_config_int(c, "max_target_length"));
    return MX_OK;
}

static mx_status read(const mx_config *c, mx_arena *a, const void **out)
{
    mx_grpo *s = MX_NEW(a, mx_grpo);
    const char *type = mx_config_text(c, "loss_type");
    double high = mx_config_float(c, "rl.epsilon_high");
    const mx_grpo_semantics *of = mx_grpo_semantics_find(mx_config_text(c, "semantics"));
    type = *type ? type : default_loss(of, a);
    *s = (mx_grpo){.of = of, .loss = mx_grpo_loss_find(type),
                   .generations = mx_config_int(c, "rl.num_generations"),
                   .iterations = mx_config_int(c, "rl.num_iterations"),
                   .max_completion = mx_config_int(c, "max_completion_length"),
                   .at_once = mx_config_int(c, "rl.rollout_micro_batch_size"),
                   .temperature = mx_config_float(c, "decode_sampling_temperature"),
                   .beta = mx_beta_of(c, "rl.grpo_beta"),
                   .epsilon = mx_config_float(c, "rl.grpo_epsilon"),
                   .delta = mx_config_float(c, "delta"),
                   .sapo_positive = mx_config_float(c, "sapo_temperature_pos"),
                   .sapo_negative = mx_config_float(c, "sapo_temperature_neg"),
                   .vespo_k = {mx_config_float(c, "vespo_k_pos"),
                               mx_config_float(c, "vespo_k_neg")},
                   .vespo_lambda = {mx_config_float(c, "vespo_lambda_pos"),
                                    mx_config_float(c, "vespo_lambda_neg")},
                   .off_policy = mx_config_float(c, "off_policy_mask_threshold"),
                   .bias_correction = mx_config_bool(c, "use_bias_correction_kl"),
                   .mask_truncated = mx_config_bool(c, "mask_truncated_completions"),
                   .record = mx_config_bool(c, "record_rollouts"),
                   .sampled = !*mx_config_text(c, "rollout_path"),
                   .logp_limit = mx_config_float(c, "rollout_logprob_limit"),
                   .scale = mx_config_text(c, "scale_rewards")};
    s->epsilon_high = high >= 0 ? high : s->epsilon;
    if (of && !mx_config_is_users(c, "rl.num_generations"))
        s->generations = of->generations;
    if (of && !mx_config_is_users(c, "rl.grpo_beta") && mx_config_float(c, "beta") < 0)
        s->beta = of->beta;
    s->by_sequence = strcmp(mx_config_text(c, "importance_sampling_level"), "sequence") == 0 ||
                     strcmp(type, "gspo") == 0;
    *out = s;
    return check(c, a, s, type);
}

static int64_t rows_each(const void *settings)
{
    return ((const mx_grpo *)settings)->generations;
}

static int64_t count(const mx_objective_run *o, const mx_batch *b)
{
    const mx_grpo *s = o->settings;
    switch (s->loss->mean) {
    case MX_MEAN_OF_MICROBATCH: /* on a mesh ranks share one */
        return mx_rows_part(o) == 0 ? b->rows / o->microbatch : 0;
    case MX_SUM_BY_LENGTH: return b->rows * s->max_completion;
    case MX_MEAN_OF_TOKENS: return b->n_trained ? b->n_trained : 1;
    default: return b->rows;
    }
}

/* --- opening --- */

static mx_status room(grpo_run *r)
{
    size_t n = (size_t)(r->rows * r->seq), rows = (size_t)r->rows;
    int64_t at = r->first * r->seq;
    int32_t *p;
    float *f;
    MX_TRY(mx_alloc((void **)&p, 4 * sizeof *p * n, "a batch of answers"));
    r->tokens = p;
    r->batch = (mx_batch){.tokens = p + at, .labels = p + n + at, .segments = p + 2 * n + at,
                          .positions = p + 3 * n + at, .rows = r->own, .seq_len = r->seq};
    MX_TRY(mx_alloc((void **)&f, sizeof *f * (2 * n + 2 * rows), "log-probabilities of answers"));
    r->old = f;
    r->drawn = f + n;
    r->advantage = f + 2 * n;
    r->has_old = f + 2 * n + rows;
    int64_t k = r->rewards ? mx_rewards_count(r->rewards) : 1;
    r->score = MX_NEW_N(&r->arena, double, r->rows * k);
    r->reward = MX_NEW_N(&r->arena, double, r->rows);
    r->asked = MX_NEW_N(&r->arena, mx_post_prompt, r->n_prompts);
    r->answer = MX_NEW_N(&r->arena, mx_completion, r->rows);
    return MX_OK;
}

/* The prompts are those of rollout_path, if that is set. */
static mx_status open_prompts(grpo_run *r, mx_objective_run *o)
{
    const char *path = mx_config_text(o->config, "rollout_path");
    mx_dataset_options *one = MX_NEW(&r->arena, mx_dataset_options);
    if (!*path)
        return mx_prompts_open(&r->prompts, o->data, o->config, o->data->sets, o->data->n_sets);
    int64_t epochs = mx_config_int(o->config, "num_epoch");
    *one = (mx_dataset_options){.paths = path, .n_epochs = epochs < 0 ? 0 : epochs,
                                .source = o->data->sets[0].source};
    return mx_prompts_open(&r->prompts, o->data, o->config, one, 1);
}

/* The first prompt, before anything is begun: data that cannot be used is known then. */
static mx_status look(grpo_run *r)
{
    bool end;
    MX_TRY(mx_prompts_next(r->prompts, &r->asked[0], &end));
    mx_prompts_rewind(r->prompts);
    return MX_OK;
}

static mx_status open(mx_objective_run *o)
{
    grpo_run *r = mx_realloc(NULL, sizeof *r);
    const mx_grpo *s = o->settings;
    *r = (grpo_run){.s = s, .generation = -1, .seq = o->options->shape.seq};
    o->state = r;
    r->own = o->microbatch * o->accumulation;
    r->rows = r->own * mx_rows_parts(o);
    r->first = r->own * mx_rows_part(o);
    r->n_prompts = r->rows / s->generations;
    if (s->sampled || mx_rewards_are_set(o->config))
        MX_TRY(mx_rewards_open(&r->rewards, o->config));
    MX_TRY(open_prompts(r, o));
    MX_TRY(room(r));
    MX_TRY(look(r));
    if (s->sampled)
        MX_TRY(mx_sampler_open(&r->sampler, o, s, r->rows));
    if (s->beta > 0)
        MX_TRY(mx_reference_open(&r->reference, o, s->temperature, false));
    if (s->iterations > 1)
        MX_TRY(mx_reference_open(&r->policy, o, s->temperature, true));
    if (s->record && (!o->comm || o->comm->rank == 0)) {
        const char *path = mx_arena_printf(&r->arena, "%s/rollouts.jsonl", o->folder);
        r->record = fopen(path, "a");
        if (!r->record)
            return mx_fail_errno(MX_DEVICE, "cannot write %s", path);
    }
    return o->position ? mx_prompts_seek(r->prompts, o->position, o->n_position) : MX_OK;
}

static mx_status beside(const mx_objective_run *o, mx_beside *out)
{
    const mx_grpo *s = o->settings;
    if (s->sampled)
        MX_TRY(mx_sampler_beside(o, s, o->microbatch * o->accumulation * mx_rows_parts(o), out));
    if (s->beta > 0)
        MX_TRY(mx_reference_beside(o, s->temperature, false, out));
    return s->iterations > 1 ? mx_reference_beside(o, s->temperature, true, out) : MX_OK;
}

static void close(mx_objective_run *o)
{
    grpo_run *r = o->state;
    if (!r)
        return;
    for (int64_t i = 0; r->asked && i < r->n_prompts; i++)
        mx_post_prompt_fini(&r->asked[i]);
    for (int64_t i = 0; r->answer && i < r->rows; i++)
        mx_completion_fini(&r->answer[i]);
    mx_sampler_close(r->sampler);
    mx_reference_close(r->reference);
    mx_reference_close(r->policy);
    mx_rewards_close(r->rewards);
    mx_prompts_close(r->prompts);
    mx_free(r->tokens);
    mx_free(r->old);
    if (r->record)
        fclose(r->record);
    mx_arena_fini(&r->arena);
    mx_free(r);
    o->state = NULL;
}

/* --- a batch --- */

/* This rank's prompts of the next step; the others' are passed over. On a mesh there are none of
 * others. */
static mx_status ask(grpo_run *r, const mx_objective_run *o, bool *end)
{
    mx_post_prompt other = {0};
    mx_status st = MX_OK;
    *end = false;
    int64_t ranks = o->comm ? 1 : o->n_ranks, rank = o->comm ? 0 : o->rank;
    for (int64_t i = 0; i < r->n_prompts * ranks && !st && !*end; i++) {
        int64_t k = i - rank * r->n_prompts;
        bool mine = k >= 0 && k < r->n_prompts;
        st = mx_prompts_next(r->prompts, mine ? &r->asked[k] : &other, end);
        if (!st && mine && !*end && r->asked[k].ids.n + r->s->max_completion > r->seq)
            st = mx_fail(MX_INPUT,
                         "a prompt has %lld tokens; with max_completion_length=%lld it does not "
                         "fit max_target_length=%lld: \"%.60s\"",
                         (long long)r->asked[k].ids.n, (long long)r->s->max_completion,
                         (long long)r->seq, r->asked[k].text);
    }
    mx_post_prompt_fini(&other);
    uint64_t digest = 0;
    for (int64_t i = 0; i < r->n_prompts && !st && !*end; i++)
        digest = mx_rows_digest(digest, &r->asked[i].ids);
    return st ? st : mx_rows_check_same(o, digest);
}

/* Own rows, by whoever leads them: a program that judges may say something else when it is asked
 * again. */
static mx_status judge_own(grpo_run *r, const mx_objective_run *o)
{
    int64_t G = r->s->generations;
    int count = r->rewards ? mx_rewards_count(r->rewards) : 0;
    mx_reward_input *j = mx_realloc(NULL, sizeof *j * (size_t)r->own);
    for (int64_t i = 0; i < r->own; i++)
        j[i] = mx_reward_input_of(&r->asked[(r->first + i) / G], &r->answer[r->first + i], r->s);
    mx_status st = MX_OK;
    if (count && mx_rows_leads(o))
        st = mx_rewards_score(r->rewards, j, r->own, r->score + r->first * count);
    mx_free(j);
    return mx_rows_share(o, st, r->score, sizeof *r->score * (size_t)(r->own * count));
}

static mx_status judge(grpo_run *r, const mx_objective_run *o)
{
    int64_t n = r->rows;
    int count = r->rewards ? mx_rewards_count(r->rewards) : 0;
    mx_status st = judge_own(r, o);
    for (int64_t i = 0; i < n && !st; i++) {
        r->reward[i] = count ? mx_rewards_sum(r->rewards, r->score + i * count)
                             : r->answer[i].reward;
        if (isinf(r->reward[i]))
            st = mx_fail(MX_INPUT, "the reward of answer %lld is infinite; nothing was updated",
                         (long long)i);
        if (!count && isnan(r->reward[i]))
            st = mx_fail(MX_INPUT, "rollout_path: a completion has no \"reward\", and neither "
                         "reward= nor reward_command= is set");
    }
    return st;
}

/* Prompt and answer i as a row of the batch. */
static void fill_row(grpo_run *r, int64_t i)
{
    const mx_tokens *p = &r->asked[i / r->s->generations].ids, *a = &r->answer[i].ids;
    mx_batch *b = &r->batch;
    int64_t at = i * r->seq, to = at - r->first * r->seq;
    bool trains = !(r->s->mask_truncated && r->answer[i].truncated);
    for (int64_t k = 0; k < r->seq; k++) {
        int64_t q = k - p->n, next = q + 1;
        bool there = q < a->n;
        b->tokens[to + k] = k < p->n ? p->ids[k] : there ? a->ids[q] : 0;
        b->segments[to + k] = there;
        b->positions[to + k] = there ? (int32_t)k : 0;
        bool label = next >= 0 && next < a->n && trains;
        b->labels[to + k] = label ? a->ids[next] : MX_NO_LABEL;
        r->old[at + k] = r->drawn[at + k] = label && r->answer[i].logp ? r->answer[i].logp[next]
                                                                       : 0;
        b->n_tokens += there;
        b->n_trained += label;
    }
    r->has_old[i] = !r->s->sampled && r->answer[i].logp;
}

/* With several steps on the same answers: what the policy at their first thinks of those that no
 * file says it of. */
static mx_status keep_policy(grpo_run *r, int64_t microbatch)
{
    for (int64_t row = 0; r->policy && row < r->own; row += microbatch) {
        const float *logps;
        MX_TRY(mx_reference_run(r->policy, &r->batch, row, microbatch, &logps));
        for (int64_t i = 0; i < microbatch; i++) {
            int64_t at = r->first + row + i;
            if (r->has_old[at])
                continue;
            memcpy(r->old + at * r->seq, logps + i * r->seq, sizeof(float) * (size_t)r->seq);
            r->has_old[at] = 1;
        }
    }
    return MX_OK;
}

static void add(grpo_run *r, const char *name, double value)
{
    if (r->n_metrics < MX_HOST_METRICS)
        r->metric[r->n_metrics++] = (mx_metric){name, value};
}

static void reward_metrics(grpo_run *r, const mx_reward_facts *f)
{
    int count = r->rewards ? mx_rewards_count(r->rewards) : 0;
    add(r, "reward", f->mean);
    add(r, "reward_std", f->std);
    add(r, "frac_reward_zero_std", f->zero_share);
    for (int k = 0; k < count; k++) {
        double sum = 0, squares = 0, n = 0;
        for (int64_t i = 0; i < r->rows; i++) {
            double x = r->score[i * count + k];
            if (!isnan(x))
                sum += x, squares += x * x, n++;
        }
        double mean = n > 0 ? sum / n : 0, var = n > 1 ? (squares - n * mean * mean) / (n - 1) : 0;
        snprintf(r->names[2 * k], 64, "rewards/%s/mean", mx_rewards_name(r->rewards, k));
        snprintf(r->names[2 * k + 1], 64, "rewards/%s/std", mx_rewards_name(r->rewards, k));
        add(r, r->names[2 * k], mean);
        add(r, r->names[2 * k + 1], sqrt(fmax(var, 0)));
    }
}

static void length_metrics(grpo_run *r)
{
    double sum[2] = {0}, least[2] = {INFINITY, INFINITY}, most[2] = {0}, n[2] = {0};
    for (int64_t i = 0; i < r->rows; i++)
        for (int k = 0; k < 1 + !r->answer[i].truncated; k++) {
            double x = (double)r->answer[i].ids.n;
            sum[k] += x;
            least[k] = fmin(least[k], x);
            most[k] = fmax(most[k], x);
            n[k]++;
        }
    add(r, "completions/mean_length", sum[0] / n[0]);
    add(r, "completions/min_length", least[0]);
    add(r, "completions/max_length", most[0]);
    add(r, "completions/clipped_ratio", 1 - n[1] / n[0]);
    add(r, "completions/mean_terminated_length", n[1] > 0 ? sum[1] / n[1] : 0);
    add(r, "completions/min_terminated_length", n[1] > 0 ? least[1] : 0);
    add(r, "completions/max_terminated_length", most[1]);
}

/* The groups as rollout_path reads them. */
static mx_status write_record(grpo_run *r, int64_t step)
{
    int64_t G = r->s->generations;
    for (int64_t p = 0; r->record && p < r->n_prompts; p++) {
        json_t *list = json_array(), *o = json_object();
        for (int64_t i = p * G; i < (p + 1) * G; i++) {
            const mx_completion *c = &r->answer[i];
            json_t *ids = json_array(), *logps = json_array();
            for (int64_t k = 0; k < c->ids.n; k++) {
                json_array_append_new(ids, json_integer(c->ids.ids[k]));
                if (c->logp)
                    json_array_append_new(logps, json_real(c->logp[k]));
            }
            json_t *text = json_stringn(mx_str_text(&c->text), c->text.len);
            json_t *one = json_pack("{s:o, s:o, s:o, s:o}", "text", text ? text : json_null(),
                                    "ids", ids, "logprobs", logps, "reward",
                                    isnan(r->reward[i]) ? json_null() : json_real(r->reward[i]));
            json_array_append_new(list, one);
        }
        const json_t *asked = json_object_get(r->asked[p].record, "prompt");
        json_object_set_new(o, "step", json_integer(step));
        json_object_set_new(o, "prompt", asked ? json_deep_copy(asked)
                                               : json_string(r->asked[p].text));
        json_object_set_new(o, "completions", list);
        json_dumpf(o, r->record, JSON_COMPACT);
        fputc('\n', r->record);
        json_decref(o);
    }
    if (r->record && fflush(r->record))
        return mx_fail_errno(MX_DEVICE, "rollouts.jsonl could not be written");
    return MX_OK;
}

static mx_status make(grpo_run *r, const mx_objective_run *o, int64_t generation, bool *end)
{
    double began = mx_clock_now(), tokens = 0;
    r->generation = -1;
    MX_TRY(ask(r, o, end));
    if (*end)
        return MX_OK;
    for (int64_t p = 0; p < r->n_prompts && !r->s->sampled; p++)
        MX_TRY(mx_recorded_answers(o->data, &r->asked[p], r->s,
                                   &r->answer[p * r->s->generations]));
    int64_t draws = o->comm ? generation : generation * o->n_ranks + o->rank;
    if (r->s->sampled)
        MX_TRY(mx_sampler_run(r->sampler, r->asked, r->n_prompts, draws, r->answer));
    double sampled = mx_clock_now();
    MX_TRY(judge(r, o));
    mx_reward_facts f = mx_advantages(r->s, r->reward, r->rows, r->advantage);
    r->batch.n_tokens = r->batch.n_trained = 0;
    for (int64_t i = 0; i < r->own; i++)
        fill_row(r, r->first + i);
    for (int64_t i = 0; i < r->rows; i++)
        tokens += (double)r->answer[i].ids.n;
    MX_TRY(keep_policy(r, o->microbatch));
    r->n_metrics = 0;
    reward_metrics(r, &f);
    length_metrics(r);
    if (r->s->sampled) {
        add(r, "rollout_seconds", sampled - began);
        add(r, "rollout_tokens_per_second", tokens / (sampled - began));
    }
    r->generation = generation;
    r->batch.step = o->step;
    return write_record(r, o->step);
}

static mx_status next(mx_objective_run *o, const mx_batch **b)
{
    grpo_run *r = o->state;
    int64_t generation = (o->step - 1) / r->s->iterations;
    bool end = false;
    if (r->generation != generation)
        MX_TRY(make(r, o, generation, &end));
    *b = end ? NULL : &r->batch;
    return MX_OK;
}

static mx_status feed(mx_objective_run *o, mx_exec *e, const mx_batch *b, int64_t row)
{
    grpo_run *r = o->state;
    int64_t rows = mx_exec_type(e, "tokens")->dim[0], of = r->first + row, at = of * r->seq;
    if (r->reference) {
        const float *logps;
        MX_TRY(mx_reference_run(r->reference, b, row, rows, &logps));
        MX_TRY(mx_exec_write_rows(e, "reference", logps));
    }
    MX_TRY(mx_exec_write(e, "advantage", r->advantage + of));
    MX_TRY(mx_exec_write(e, "has_old", r->has_old + of));
    MX_TRY(mx_exec_write_rows(e, "old", r->old + at));
    return mx_exec_write_rows(e, "drawn", r->drawn + at);
}

static int report(const mx_objective_run *o, mx_metric *out)
{
    const grpo_run *r = o->state;
    memcpy(out, r->metric, sizeof *out * (size_t)r->n_metrics);
    return r->n_metrics;
}

/* Of the first step on answers: on the others the policy has moved. */
static mx_status check_step(const mx_objective_run *o, int64_t step, const mx_metric *m, int n)
{
    const grpo_run *r = o->state;
    double limit = r->s->logp_limit;
    bool judged = r->s->sampled && (step - 1) % r->s->iterations == 0 &&
                  (limit >= 0 || mx_sampler_is_exact(r->sampler));
    limit = limit >= 0 ? limit : 0;
    for (int i = 0; i < n && judged; i++)
        if (strcmp(m[i].name, MX_LOGP_GAP) == 0 && !(m[i].value <= limit))
            return mx_fail(MX_CHECK_FAILED,
                           "step %lld: log-probabilities of sampling and of training differ by %g, "
                           "and rollout_logprob_limit is %g; what is sampled is not what is "
                           "trained. Set rollout_logprob_limit to allow for it (a capacity of "
                           "experts that drops tokens does this)",
                           (long long)step, m[i].value, limit);
    return MX_OK;
}

static bool repeats(const mx_objective_run *o)
{
    return (o->step - 1) % ((const mx_grpo *)o->settings)->iterations != 0;
}

static void position(const mx_objective_run *o, mx_str *json)
{
    mx_prompts_position(((grpo_run *)o->state)->prompts, json);
}

const mx_objective mx_objective_grpo = {
    .name = "grpo",
    .doc = "rewards, relative to a group of own answers: dapo, grpo, dr_grpo, bnpo, gspo, cispo, "
           "sapo, luspo, vespo",
    .verb = "grpo",
    .data = "prompt, and what its rewards need: answer, solution",
    .place = 7,
    .rows = MX_ROWS_SAMPLED,
    .balances = true,
    .rows_each = rows_each,
    .read = read,
    .loss = mx_grpo_build,
    .count = count,
    .open = open,
    .beside = beside,
    .close = close,
    .next = next,
    .feed = feed,
    .report = report,
    .check = check_step,
    .repeats = repeats,
    .position = position,
    .measure = mx_tasks_measure,
    .measure_end = mx_tasks_close,
};

/* grpo.c - group-relative policy optimisation: the keys, and a batch for every step.
 *
 * A step: P prompts, G answers to each, rewards, advantages, one row of the batch for each answer.
 * With num_iterations = n the same answers serve n steps, weighted by how much likelier they are
 * now than when they were given (grpo_loss.c).
 *
 * With rl.off_policy_steps=1 the answers of the next generation are given when the steps on the
 * present one begin, and judged while these run:
 *
 *     step k      sample k + 1 with the weights of k - 1 updates, launch the training on k
 *                 ... the judge of k + 1 works beside the device ...
 *     step k + 1  wait for the judge, sample k + 2, launch
 *
 * Every answer but the first generation's is one generation old when it is learned from, and the
 * ratio to the policy that gave it weighs it. Sampling reads the weights in place and training
 * writes them, so the two follow each other on a device: what is hidden is the judge. Nothing
 * depends on who is faster, so equal seeds give equal bits.
 */
#include "post/grpo_batch.h"

#include "base/io.h"
#include "post/mesh_rows.h"
#include "post/pairs.h"
#include "post/reference.h"
#include "post/tasks.h"
#include "exec/step.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- keys --- */

static bool in_words(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; *p; p += strcspn(p, " "), p += strspn(p, " "))
        if (strcspn(p, " ") == n && memcmp(p, word, n) == 0)
            return true;
    return false;
}

/* What semantics=NAME has for a key that is not set. */
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
        return mx_fail(MX_USAGE, "%s: loss_type=%s is not one of grpo's: %s",
                       mx_config_where(c, "loss_type"), type, mx_grpo_loss_names(a));
    if (s->of->losses && !in_words(s->of->losses, type))
        return mx_fail(MX_USAGE, "%s: loss_type=%s is not one of those that semantics=%s has: %s",
                       mx_config_where(c, "loss_type"), type, s->of->name, s->of->losses);
    if (s->of->kl != MX_KL_K3 && mx_config_is_users(c, "use_bias_correction_kl"))
        return mx_fail(MX_USAGE, "%s: semantics=%s does not weigh the KL by the ratio; leave "
                       "use_bias_correction_kl out",
                       mx_config_where(c, "use_bias_correction_kl"), s->of->name);
    if (s->temperature <= 0)
        return mx_fail(MX_USAGE, "%s: answers of temperature 0 are all equal, and nothing is "
                       "learned from them", mx_config_where(c, "decode_sampling_temperature"));
    if (s->off_policy_steps && !s->sampled)
        return mx_fail(MX_USAGE, "%s: the answers of rollout_path are as old as they are; leave "
                       "rl.off_policy_steps out, and give their logprobs",
                       mx_config_where(c, "rl.off_policy_steps"));
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

/* Keys of one loss; others do not read them, so that the run says that they have no effect. */
static void read_own(const mx_config *c, const char *type, mx_grpo *s)
{
    if (strcmp(type, "sapo") == 0) {
        s->sapo_positive = mx_config_float(c, "sapo_temperature_pos");
        s->sapo_negative = mx_config_float(c, "sapo_temperature_neg");
    }
    if (strcmp(type, "vespo") == 0)
        for (int i = 0; i < 2; i++) {
            s->vespo_k[i] = mx_config_float(c, i ? "vespo_k_neg" : "vespo_k_pos");
            s->vespo_lambda[i] = mx_config_float(c, i ? "vespo_lambda_neg" : "vespo_lambda_pos");
        }
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
                   .off_policy = mx_config_float(c, "off_policy_mask_threshold"),
                   .top_entropy = mx_config_float(c, "top_entropy_quantile"),
                   .bias_correction = mx_config_bool(c, "use_bias_correction_kl"),
                   .mask_truncated = mx_config_bool(c, "mask_truncated_completions"),
                   .record = mx_config_bool(c, "record_rollouts"),
                   .sampled = !*mx_config_text(c, "rollout_path"),
                   .off_policy_steps = mx_config_int(c, "rl.off_policy_steps"),
                   .logp_limit = mx_config_float(c, "rollout_logprob_limit"),
                   .scale = mx_config_text(c, "scale_rewards")};
    read_own(c, type, s);
    s->each_normalized = strcmp(mx_config_text(c, "multi_objective_aggregation"),
                                "normalize_then_sum") == 0;
    s->policy_moves = s->iterations > 1 || s->off_policy_steps > 0;
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

/* The prompts are those of rollout_path, if that is set. */
static mx_status open_prompts(mx_grpo_run *r, mx_objective_run *o)
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
static mx_status look(mx_grpo_run *r)
{
    bool end;
    MX_TRY(mx_prompts_next(r->prompts, &r->set[0].asked[0], &end));
    mx_prompts_rewind(r->prompts);
    return MX_OK;
}

static mx_status open(mx_objective_run *o)
{
    mx_grpo_run *r = mx_realloc(NULL, sizeof *r);
    const mx_grpo *s = o->settings;
    *r = (mx_grpo_run){.s = s, .seq = o->options->shape.seq,
                       .n_sets = s->off_policy_steps ? 2 : 1};
    o->state = r;
    if (s->off_policy_steps && (o->comm || o->n_ranks > 1))
        return mx_fail(MX_USAGE, "%s: answers are sampled ahead on one rank only, and there are "
                       "%d; leave rl.off_policy_steps out",
                       mx_config_where(o->config, "rl.off_policy_steps"),
                       o->comm ? o->comm->size : o->n_ranks);
    r->own = o->microbatch * o->accumulation;
    r->rows = r->own * mx_rows_parts(o);
    r->first = r->own * mx_rows_part(o);
    r->n_prompts = r->rows / s->generations;
    if (s->sampled || mx_rewards_are_set(o->config))
        MX_TRY(mx_rewards_open(&r->rewards, o->config));
    MX_TRY(open_prompts(r, o));
    for (int i = 0; i < r->n_sets; i++)
        MX_TRY(mx_grpo_batch_open(r, &r->set[i]));
    MX_TRY(look(r));
    if (s->sampled)
        MX_TRY(mx_sampler_open(&r->sampler, o, s, r->rows));
    if (s->beta > 0)
        MX_TRY(mx_reference_open(&r->reference, o, s->temperature, false));
    if (s->policy_moves)
        MX_TRY(mx_reference_open(&r->policy, o, s->temperature, true));
    if (s->record && (!o->comm || o->comm->rank == 0)) {
        const char *path = mx_arena_printf(&r->arena, "%s/rollouts.jsonl", o->folder);
        r->record = fopen(path, "a");
        if (!r->record)
            return mx_fail_errno(MX_DEVICE, "cannot write %s", path);
    }
    return mx_grpo_seek(r, o);
}

static mx_status beside(const mx_objective_run *o, mx_beside *out)
{
    const mx_grpo *s = o->settings;
    if (s->sampled)
        MX_TRY(mx_sampler_beside(o, s, o->microbatch * o->accumulation * mx_rows_parts(o), out));
    if (s->beta > 0)
        MX_TRY(mx_reference_beside(o, s->temperature, false, out));
    return s->policy_moves ? mx_reference_beside(o, s->temperature, true, out) : MX_OK;
}

static void close(mx_objective_run *o)
{
    mx_grpo_run *r = o->state;
    if (!r)
        return;
    for (int i = 0; i < r->n_sets; i++)
        mx_grpo_batch_close(r, &r->set[i]);
    json_decref(r->held);
    mx_sampler_close(r->sampler);
    mx_reference_close(r->reference);
    mx_reference_close(r->policy);
    mx_rewards_close(r->rewards);
    mx_prompts_close(r->prompts);
    if (r->record)
        fclose(r->record);
    mx_arena_fini(&r->arena);
    mx_free(r);
    o->state = NULL;
}

/* --- steps --- */

static mx_grpo_batch *set_of(mx_grpo_run *r, int64_t generation)
{
    return &r->set[generation % r->n_sets];
}

static int64_t generation_of(const mx_objective_run *o)
{
    return (o->step - 1) / ((const mx_grpo *)o->settings)->iterations;
}

/* The answers of the next generation, with the weights as they are. */
static mx_status go_ahead(mx_grpo_run *r, const mx_objective_run *o, int64_t generation)
{
    mx_grpo_batch *b = set_of(r, generation);
    int64_t steps = mx_config_int(o->config, "steps");
    bool wanted = steps < 0 || generation * r->s->iterations < steps, end = false;
    if (!r->s->off_policy_steps || !wanted || b->generation == generation)
        return MX_OK;
    return mx_grpo_begin(r, o, b, generation, &end);
}

static mx_status next(mx_objective_run *o, const mx_batch **b)
{
    mx_grpo_run *r = o->state;
    int64_t generation = generation_of(o);
    mx_grpo_batch *now = set_of(r, generation);
    bool end = false;
    if (now->generation != generation)
        MX_TRY(mx_grpo_begin(r, o, now, generation, &end));
    *b = NULL;
    if (end)
        return MX_OK;
    MX_TRY(mx_grpo_finish(r, o, now));
    MX_TRY(go_ahead(r, o, generation + 1));
    now->batch.step = o->step;
    *b = &now->batch;
    return MX_OK;
}

static mx_status feed(mx_objective_run *o, mx_exec *e, const mx_batch *b, int64_t row)
{
    mx_grpo_run *r = o->state;
    const mx_grpo_batch *now = set_of(r, generation_of(o));
    int64_t of = r->first + row, at = of * r->seq;
    if (r->reference) {
        const float *logps;
        MX_TRY(mx_reference_find(r->reference, b, row, o->fed, &logps));
        MX_TRY(mx_exec_write_rows(e, "reference", logps));
    }
    MX_TRY(mx_exec_write(e, "advantage", now->advantage + of));
    MX_TRY(mx_exec_write(e, "has_old", now->has_old + of));
    MX_TRY(mx_exec_write_rows(e, "old", now->old + at));
    return mx_exec_write_rows(e, "drawn", now->drawn + at);
}

static mx_status ahead(mx_objective_run *o, const mx_batch *b)
{
    mx_grpo_run *r = o->state;
    return r->reference ? mx_reference_ahead(r->reference, b, o->fed) : MX_OK;
}

static int report(const mx_objective_run *o, mx_metric *out)
{
    const mx_grpo_batch *now = set_of(o->state, generation_of(o));
    memcpy(out, now->metric, sizeof *out * (size_t)now->n_metrics);
    out[now->n_metrics] = (mx_metric){"sampling/staleness", (double)(o->step - 1 - now->updates)};
    return now->n_metrics + ((const mx_grpo *)o->settings)->policy_moves;
}

/* Log-probabilities of sampling against those of training with the same weights: in the step
 * itself, or, where the policy moves before it, by the program that found the old ones; these must
 * be the step's own then, in the first that learns from answers of the present weights. */
static bool is_judged(const mx_grpo *s, int64_t step, const char *name)
{
    if (strcmp(name, MX_LOGP_GAP) == 0)
        return true;
    return strcmp(name, MX_OLD_GAP) == 0 && (step - 1) % s->iterations == 0 &&
           !s->off_policy_steps;
}

static mx_status check_step(const mx_objective_run *o, int64_t step, const mx_metric *m, int n)
{
    const mx_grpo_run *r = o->state;
    double limit = r->s->logp_limit;
    bool judged = r->s->sampled && (limit >= 0 || mx_sampler_is_exact(r->sampler));
    limit = limit >= 0 ? limit : 0;
    for (int i = 0; i < n && judged; i++)
        if (is_judged(r->s, step, m[i].name) && !(m[i].value <= limit))
            return mx_fail(MX_CHECK_FAILED,
                           "step %lld: log-probabilities of sampling and of training differ by %g, "
                           "and rollout_logprob_limit is %g (%s); what is sampled is not what is "
                           "trained. Set rollout_logprob_limit to allow for it (a capacity of "
                           "experts that drops tokens does this)",
                           (long long)step, m[i].value, limit, m[i].name);
    return MX_OK;
}

static bool repeats(const mx_objective_run *o)
{
    return (o->step - 1) % ((const mx_grpo *)o->settings)->iterations != 0;
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
    .followed = "reward",
    .rows_each = rows_each,
    .read = read,
    .loss = mx_grpo_build,
    .count = count,
    .open = open,
    .beside = beside,
    .close = close,
    .next = next,
    .feed = feed,
    .ahead = ahead,
    .report = report,
    .check = check_step,
    .repeats = repeats,
    .position = mx_grpo_position,
    .measure = mx_tasks_measure,
    .measure_end = mx_tasks_close,
};

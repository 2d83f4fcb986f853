/* tasks.c - see tasks.h. */
#include "post/tasks.h"

#include "base/io.h"
#include "exec/step.h"
#include "post/grpo.h"
#include "post/mesh_rows.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN = 8 }; /* prompts that samples are written of */

/* The same draws at every step, other than those of training. */
static const int64_t GENERATION = (int64_t)1 << 38;

typedef struct {
    mx_grpo s;
    mx_sampler *sampler;
    mx_rewards *rewards;
    mx_post_prompt *asked; /* n */
    mx_completion *answer; /* n x task_samples */
    double *score;         /* n x task_samples x rewards */
    int64_t n, room;
    char pass_name[32];
} tasks;

/* --- opening --- */

static mx_status read_prompts(tasks *t, const mx_objective_run *o, const char *path)
{
    mx_prompts *p = NULL;
    mx_dataset_options set = {.paths = path, .n_epochs = 1, .source = o->data->sets[0].source};
    bool end = false;
    mx_status st = mx_prompts_open(&p, o->data, o->config, &set, 1);
    while (!st && !end) {
        if (t->n == t->room) {
            t->room = t->room ? 2 * t->room : 64;
            t->asked = mx_realloc(t->asked, sizeof *t->asked * (size_t)t->room);
        }
        mx_post_prompt *q = &t->asked[t->n];
        *q = (mx_post_prompt){0};
        st = mx_prompts_next(p, q, &end);
        if (st || end)
            mx_post_prompt_fini(q);
        else
            t->n++;
        if (!st && !end && q->ids.n + t->s.max_completion > o->options->shape.seq)
            st = mx_fail(MX_INPUT, "a prompt has %lld tokens; with max_completion_length=%lld it "
                         "does not fit max_target_length=%lld: \"%.60s\"", (long long)q->ids.n,
                         (long long)t->s.max_completion, (long long)o->options->shape.seq, q->text);
    }
    mx_prompts_close(p);
    if (!st && !t->n)
        st = mx_fail(MX_INPUT, "there is no prompt in it");
    return mx_status_wrap(st, "task_path=%s", path);
}

static mx_status open_tasks(tasks *t, const mx_objective_run *o)
{
    const mx_config *c = o->config;
    int64_t k = mx_config_int(c, "task_samples"), rows;
    double temperature = mx_config_float(c, "task_temperature");
    if (temperature < 0)
        temperature = k > 1 ? 1 : 0.01;
    t->s = (mx_grpo){.generations = k, .temperature = temperature,
                     .at_once = mx_config_int(c, "rl.rollout_micro_batch_size"),
                     .max_completion = mx_config_int(c, "max_completion_length")};
    snprintf(t->pass_name, sizeof t->pass_name, "eval/pass@%lld", (long long)k);
    if (t->s.max_completion >= o->options->shape.seq)
        return mx_fail(MX_USAGE, "%s: max_completion_length=%lld leaves no room for a prompt of "
                       "task_path in max_target_length=%lld",
                       mx_config_where(c, "max_completion_length"), (long long)t->s.max_completion,
                       (long long)o->options->shape.seq);
    MX_TRY(mx_rewards_open(&t->rewards, c));
    MX_TRY(read_prompts(t, o, mx_config_text(c, "task_path")));
    uint64_t digest = 0;
    for (int64_t i = 0; i < t->n; i++)
        digest = mx_rows_digest(digest, &t->asked[i].ids);
    MX_TRY(mx_rows_check_same(o, digest));
    rows = t->n * k;
    t->answer = mx_realloc(NULL, sizeof *t->answer * (size_t)rows);
    memset(t->answer, 0, sizeof *t->answer * (size_t)rows);
    t->score = mx_realloc(NULL, sizeof *t->score * (size_t)(rows * mx_rewards_count(t->rewards)));
    /* Beside a sampler of the objective's own the two share caches, which have its size. */
    if (o->objective->rows == MX_ROWS_SAMPLED)
        rows = o->microbatch * o->accumulation * mx_rows_parts(o);
    return mx_sampler_open(&t->sampler, o, &t->s, rows);
}

void mx_tasks_close(mx_objective_run *o)
{
    tasks *t = o->measured;
    if (!t)
        return;
    for (int64_t i = 0; t->answer && i < t->n * t->s.generations; i++)
        mx_completion_fini(&t->answer[i]);
    for (int64_t i = 0; i < t->n; i++)
        mx_post_prompt_fini(&t->asked[i]);
    mx_sampler_close(t->sampler);
    mx_rewards_close(t->rewards);
    mx_free(t->asked);
    mx_free(t->answer);
    mx_free(t->score);
    mx_free(t);
    o->measured = NULL;
}

/* --- measuring --- */

/* On a mesh all ranks have the answers, and the first judges them. */
static mx_status judge(tasks *t, const mx_objective_run *o)
{
    int64_t G = t->s.generations, rows = t->n * G;
    mx_reward_input *j = mx_realloc(NULL, sizeof *j * (size_t)rows);
    for (int64_t i = 0; i < rows; i++)
        j[i] = mx_reward_input_of(&t->asked[i / G], &t->answer[i], &t->s);
    mx_status st = MX_OK;
    if (!o->comm || o->comm->rank == 0)
        st = mx_rewards_score(t->rewards, j, rows, t->score);
    mx_free(j);
    return o->comm ? mx_comm_agree(o->comm, st) : st;
}

static void count(const tasks *t, mx_metric *out, int *n)
{
    int64_t G = t->s.generations;
    int rewards = mx_rewards_count(t->rewards);
    double sum = 0, judged = 0, right = 0, some = 0, tokens = 0, cut = 0;
    for (int64_t p = 0; p < t->n; p++) {
        bool any = false;
        for (int64_t i = p * G; i < (p + 1) * G; i++) {
            double r = mx_rewards_sum(t->rewards, t->score + i * rewards);
            bool good = t->score[i * rewards] >= 1;
            sum += isnan(r) ? 0 : r;
            judged += !isnan(r);
            right += good;
            any |= good;
            tokens += (double)t->answer[i].ids.n;
            cut += t->answer[i].truncated;
        }
        some += any;
    }
    double all = (double)(t->n * G);
    out[(*n)++] = (mx_metric){"eval/reward", judged > 0 ? sum / judged : NAN};
    out[(*n)++] = (mx_metric){"eval/pass@1", right / all};
    if (G > 1)
        out[(*n)++] = (mx_metric){t->pass_name, some / (double)t->n};
    out[(*n)++] = (mx_metric){"eval/completions/mean_length", tokens / all};
    out[(*n)++] = (mx_metric){"eval/completions/clipped_ratio", cut / all};
}

/* The first answer to each of the first prompts. */
static mx_status write_samples(const tasks *t, const char *folder, int64_t step)
{
    char path[4096], buf[64];
    int rewards = mx_rewards_count(t->rewards);
    snprintf(path, sizeof path, "%s/samples.jsonl", folder);
    FILE *f = fopen(path, "a");
    if (!f)
        return mx_fail_errno(MX_DEVICE, "cannot write %s", path);
    for (int64_t p = 0; p < t->n && p < SHOWN; p++) {
        int64_t i = p * t->s.generations;
        const mx_completion *a = &t->answer[i];
        const char *want = mx_reference_answer(t->asked[p].record, buf, sizeof buf);
        double r = mx_rewards_sum(t->rewards, t->score + i * rewards);
        json_t *text = json_stringn(mx_str_text(&a->text), a->text.len), *asked;
        asked = json_string(t->asked[p].text);
        json_t *o = json_pack("{s:I, s:o, s:o, s:o}", "step", (json_int_t)step, "prompt",
                              asked ? asked : json_null(), "completion",
                              text ? text : json_null(), "reward",
                              isnan(r) ? json_null() : json_real(r));
        if (want)
            json_object_set_new(o, "answer", json_string(want));
        json_dumpf(o, f, JSON_COMPACT);
        fputc('\n', f);
        json_decref(o);
    }
    return fclose(f) ? mx_fail_errno(MX_DEVICE, "%s could not be written", path) : MX_OK;
}

mx_status mx_tasks_measure(mx_objective_run *o, int64_t step, mx_metric *out, int *n)
{
    tasks *t = o->measured;
    *n = 0;
    if (!t) {
        t = mx_realloc(NULL, sizeof *t);
        *t = (tasks){0};
        o->measured = t;
        MX_TRY(open_tasks(t, o));
    }
    MX_TRY(mx_sampler_run(t->sampler, t->asked, t->n, GENERATION, t->answer));
    MX_TRY(judge(t, o));
    if (o->comm && o->comm->rank != 0)
        return MX_OK;
    count(t, out, n);
    return write_samples(t, o->folder, step);
}

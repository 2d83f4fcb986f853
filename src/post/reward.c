/* reward.c - the rewards that a configuration names, and what built-in ones share. */
#include "post/reward.h"

#include "base/str.h"
#include "post/reward_command.h"
#include "post/reward_library.h"
#include "post/reward_model.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

struct mx_rewards {
    const mx_reward *built_in[MX_MAX_REWARDS];
    int n_built_in;
    /* After these, in this order; NULL: none. */
    mx_reward_model *model;
    mx_reward_library *library;
    mx_reward_command *command;
    double weight[MX_MAX_REWARDS];
    mx_reward_context context;
};

static const mx_reward *find(const char *name, size_t n)
{
    for (int i = 0; i < mx_reward_count; i++)
        if (strlen(mx_reward_table[i]->name) == n && !memcmp(mx_reward_table[i]->name, name, n))
            return mx_reward_table[i];
    return NULL;
}

static mx_status unknown(const mx_config *c, const char *name, size_t n)
{
    mx_str names = {0};
    for (int i = 0; i < mx_reward_count; i++)
        mx_str_addf(&names, "%s%s", i ? ", " : "", mx_reward_table[i]->name);
    mx_status st = mx_fail(MX_USAGE, "%s: there is no reward `%.*s`; there are %s, and "
                           "reward_library and reward_command",
                           mx_config_where(c, "rl.reward"), (int)n, name, mx_str_text(&names));
    mx_str_fini(&names);
    return st;
}

static mx_status read_names(mx_rewards *r, const mx_config *c)
{
    for (const char *p = mx_config_text(c, "rl.reward"); *p;) {
        size_t k = strcspn(p, ", ");
        const mx_reward *one = find(p, k);
        if (!one || r->n_built_in == MX_MAX_REWARDS - 3)
            return unknown(c, p, k);
        r->built_in[r->n_built_in++] = one;
        p += k + strspn(p + k, ", ");
    }
    return MX_OK;
}

static mx_status read_weights(mx_rewards *r, const mx_config *c)
{
    const char *const *items;
    int n = mx_config_list(c, "reward_weights", &items), count = mx_rewards_count(r);
    for (int i = 0; i < count; i++)
        r->weight[i] = 1;
    for (int i = 0; i < n && n == count; i++)
        if (!mx_parse_f64(items[i], &r->weight[i]) || !isfinite(r->weight[i]))
            n = -1;
    if (n && n != count)
        return mx_fail(MX_USAGE, "%s: expected a number for each of the %d rewards",
                       mx_config_where(c, "reward_weights"), count);
    return MX_OK;
}

bool mx_rewards_are_set(const mx_config *c)
{
    static const char *const keys[] = {"rl.reward", "reward_model_path", "reward_library",
                                       "reward_command"};
    bool any = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        any |= *mx_config_text(c, keys[i]) != 0;
    return any;
}

mx_status mx_rewards_open(mx_rewards **out, const mx_config *c)
{
    mx_rewards *r = mx_realloc(NULL, sizeof *r);
    *r = (mx_rewards){0};
    *out = r;
    const char *pattern = mx_config_text(c, "reward_pattern");
    MX_TRY(read_names(r, c));
    if (*mx_config_text(c, "reward_model_path"))
        MX_TRY(mx_reward_model_open(&r->model, c));
    if (*mx_config_text(c, "reward_library"))
        MX_TRY(mx_reward_library_open(&r->library, c));
    if (*mx_config_text(c, "reward_command"))
        MX_TRY(mx_reward_command_open(&r->command, c));
    MX_TRY(mx_status_wrap(mx_regex_open(&r->context.pattern, pattern, strlen(pattern)), "%s",
                          mx_config_where(c, "reward_pattern")));
    r->context.scratch = mx_regex_scratch_new();
    MX_TRY(mx_schemas_open(&r->context.schemas, c));
    MX_TRY(read_weights(r, c));
    if (!mx_rewards_count(r))
        return mx_fail(MX_USAGE, "nothing says what an answer is worth; set reward=exact (or "
                       "another that `maxc help rewards` lists), reward_model_path=DIR, "
                       "reward_library=FILE or reward_command=PROGRAM");
    return MX_OK;
}

void mx_rewards_close(mx_rewards *r)
{
    if (!r)
        return;
    mx_reward_command_close(r->command);
    mx_reward_library_close(r->library);
    mx_reward_model_close(r->model);
    mx_schemas_close(r->context.schemas);
    mx_status_free(r->context.error);
    mx_regex_scratch_free(r->context.scratch);
    mx_regex_close(r->context.pattern);
    mx_free(r);
}

bool mx_rewards_have_model(const mx_rewards *r)
{
    return r->model != NULL;
}

int mx_rewards_count(const mx_rewards *r)
{
    return r->n_built_in + (r->model != NULL) + (r->library != NULL) + (r->command != NULL);
}

const char *mx_rewards_name(const mx_rewards *r, int k)
{
    if (k < r->n_built_in)
        return r->built_in[k]->name;
    k -= r->n_built_in;
    if (r->model && k-- == 0)
        return "model";
    return r->library && k == 0 ? mx_reward_library_name(r->library) : "command";
}

const double *mx_rewards_weights(const mx_rewards *r)
{
    return r->weight;
}

double mx_rewards_sum(const mx_rewards *r, const double *score)
{
    double sum = 0;
    bool any = false;
    for (int k = 0; k < mx_rewards_count(r); k++)
        if (!isnan(score[k])) {
            sum += r->weight[k] * score[k];
            any = true;
        }
    return any ? sum : NAN;
}

mx_status mx_rewards_score(mx_rewards *r, const mx_reward_input *answers, int64_t n, double *score)
{
    int count = mx_rewards_count(r);
    double *next = score + r->n_built_in;
    for (int64_t i = 0; i < n && !r->context.error; i++)
        for (int k = 0; k < r->n_built_in; k++)
            score[i * count + k] = r->built_in[k]->score(&r->context, &answers[i]);
    mx_status st = r->context.error;
    r->context.error = MX_OK;
    MX_TRY(st);
    if (r->model)
        MX_TRY(mx_reward_model_judge(r->model, answers, n, next++, count));
    if (r->library)
        MX_TRY(mx_reward_library_judge(r->library, answers, n, next, count));
    if (r->command)
        MX_TRY(mx_reward_command_judge(r->command, answers, n, score + count - 1, count));
    return MX_OK;
}

/* --- what built-in rewards share --- */

const char *mx_reference_answer(const json_t *record, char *buf, size_t cap)
{
    static const char *const names[] = {"answer", "solution", "ground_truth", "completion"};
    const json_t *v = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !v; i++)
        v = json_object_get(record, names[i]);
    if (json_is_integer(v))
        snprintf(buf, cap, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(buf, cap, "%.17g", json_real_value(v));
    if (json_is_number(v))
        return buf;
    const char *text = json_string_value(v), *mark = text ? strstr(text, "#### ") : NULL;
    return mark ? mark + 5 : text;
}

static void trim(const char **text, size_t *n)
{
    while (*n && (unsigned char)**text <= ' ')
        ++*text, --*n;
    while (*n && (unsigned char)(*text)[*n - 1] <= ' ')
        --*n;
}

void mx_extracted_answer(const mx_reward_input *j, const char **text, size_t *n)
{
    static const char open[] = "<answer>", close[] = "</answer>";
    *text = j->answer;
    *n = j->n_answer;
    const char *from = memmem(*text, *n, open, strlen(open));
    if (from) {
        from += strlen(open);
        size_t left = *n - (size_t)(from - *text);
        const char *to = memmem(from, left, close, strlen(close));
        *text = from;
        *n = to ? (size_t)(to - from) : left;
    }
    trim(text, n);
}

/* advantage.c - rewards to advantages: (r - mean of the group) / (std + epsilon), which TRL has as
 * 1e-4.
 *
 * std has n - 1 below. An answer that was not judged (NAN) is left out of mean and std, and its
 * advantage is 0. scale_rewards=batch divides by the std of all answers, none by nothing.
 * normalize_then_sum does this for each reward by itself, sums, and once more over the batch.
 */
#include "post/grpo.h"

#include <math.h>
#include <string.h>

static double mean_of(const double *x, int64_t n)
{
    double sum = 0, k = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i]))
            sum += x[i], k++;
    return k > 0 ? sum / k : NAN;
}

static double std_of(const double *x, int64_t n)
{
    double mean = mean_of(x, n), sum = 0, k = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i]))
            sum += (x[i] - mean) * (x[i] - mean), k++;
    return k > 1 ? sqrt(sum / (k - 1)) : 0;
}

/* Rewards that do not differ; of one alone that cannot be said. */
static bool all_equal(const double *x, int64_t n, double std)
{
    int64_t judged = 0;
    for (int64_t i = 0; i < n; i++)
        judged += !isnan(x[i]);
    return judged > 1 && fabs(std) <= 1e-8;
}

/* Adds to the sums of a group of G what reward k says, in standard deviations from their mean. */
static void add_standing(const mx_grpo *s, const mx_group_rewards *r, int64_t from, int k,
                         double *x, double *sum)
{
    int64_t G = s->generations;
    for (int64_t g = 0; g < G; g++)
        x[g] = r->score ? r->score[(from + g) * r->count + k] : r->reward[from + g];
    double mean = mean_of(x, G), std = std_of(x, G), weight = r->score ? r->weight[k] : 1;
    for (int64_t g = 0; g < G; g++)
        if (!isnan(x[g]))
            sum[g] = (isnan(sum[g]) ? 0 : sum[g]) +
                     weight * (x[g] - mean) / (std + s->of->std_epsilon);
}

/* normalize_then_sum: the sums of such numbers are compared with those of the whole batch. */
static mx_reward_facts of_each(const mx_grpo *s, const mx_group_rewards *r, int64_t n,
                               float *advantage)
{
    double *sum = mx_realloc(NULL, sizeof *sum * (size_t)(n + s->generations));
    for (int64_t i = 0; i < n; i++)
        sum[i] = NAN;
    for (int64_t i = 0; i < n; i += s->generations)
        for (int k = 0; k < (r->score ? r->count : 1); k++)
            add_standing(s, r, i, k, sum + n, sum + i);
    double mean = mean_of(sum, n), std = std_of(sum, n);
    for (int64_t i = 0; i < n; i++)
        advantage[i] = isnan(sum[i]) ? 0 : (float)((sum[i] - mean) / (std + s->of->std_epsilon));
    mx_free(sum);
    return (mx_reward_facts){mean_of(r->reward, n), std_of(r->reward, n), std <= 1e-8};
}

mx_reward_facts mx_advantages(const mx_grpo *s, const mx_group_rewards *r, int64_t n,
                              float *advantage)
{
    const double *reward = r->reward;
    if (s->each_normalized)
        return of_each(s, r, n, advantage);
    int64_t G = s->generations, zero = 0;
    bool batch = strcmp(s->scale, "batch") == 0, none = strcmp(s->scale, "none") == 0;
    double all = std_of(reward, n);
    for (int64_t i = 0; i < n; i += G) {
        double mean = mean_of(reward + i, G), std = batch ? all : std_of(reward + i, G);
        zero += all_equal(batch ? reward : reward + i, batch ? n : G, std) ? G : 0;
        for (int64_t k = i; k < i + G; k++) {
            double a = isnan(reward[k]) ? 0 : reward[k] - mean;
            advantage[k] = (float)(none ? a : a / (std + s->of->std_epsilon));
        }
    }
    return (mx_reward_facts){mean_of(reward, n), all, (double)zero / (double)n};
}

/* advantage.c - rewards to advantages: (r - mean of the group) / (std + epsilon), which TRL has as
 * 1e-4.
 *
 * std has n - 1 below. An answer that was not judged (NAN) is left out of mean and std, and its
 * advantage is 0. scale_rewards=batch divides by the std of all answers, none by nothing.
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

mx_reward_facts mx_advantages(const mx_grpo *s, const double *reward, int64_t n, float *advantage)
{
    int64_t G = s->generations, zero = 0;
    bool batch = strcmp(s->scale, "batch") == 0, none = strcmp(s->scale, "none") == 0;
    double all = std_of(reward, n);
    for (int64_t i = 0; i < n; i += G) {
        double mean = mean_of(reward + i, G), std = batch ? all : std_of(reward + i, G);
        zero += fabs(std) <= 1e-8 ? G : 0;
        for (int64_t k = i; k < i + G; k++) {
            double a = isnan(reward[k]) ? 0 : reward[k] - mean;
            advantage[k] = (float)(none ? a : a / (std + s->of->std_epsilon));
        }
    }
    return (mx_reward_facts){mean_of(reward, n), all, (double)zero / (double)n};
}

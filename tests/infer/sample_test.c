/* sample_test.c - what each knob of the sampler does, and in which order. */
#include "../test.h"

#include "infer/sample.h"
#include <math.h>
#include <string.h>

enum { V = 8, DRAWS = 4000 };

static const float logits[V] = {2, 1, 1, 0, -1, -1, -2, -9};

static mx_sample_args usual(void)
{
    static char work[8 * V];
    return (mx_sample_args){.how = {.temperature = 1, .repetition_penalty = 1},
                            .logits = logits,
                            .vocab = V,
                            .work = work};
}

/* How often each id is drawn. */
static void count(mx_sample_args a, int n[V])
{
    memset(n, 0, sizeof(int) * V);
    for (int i = 0; i < DRAWS; i++) {
        a.step = (uint64_t)i;
        n[mx_sample_next(&a).id]++;
    }
}

/* Only the ids of the mask are drawn, each about as often as `z` says. */
static void check(const char *what, mx_sample_args a, unsigned mask, const float *z)
{
    int n[V];
    double sum = 0;
    count(a, n);
    for (int i = 0; i < V; i++)
        sum += mask >> i & 1 ? exp(z[i]) : 0;
    for (int i = 0; i < V; i++) {
        double p = mask >> i & 1 ? exp(z[i]) / sum : 0;
        double far = fabs(n[i] - p * DRAWS), sd = sqrt(DRAWS * p * (1 - p));
        MX_CHECK(far <= 5 * sd, "%s: id %d %d times, expected %.0f", what, i, n[i], p * DRAWS);
    }
}

MX_TEST(sampling_draws_what_the_cuts_leave)
{
    mx_sample_args a = usual();
    check("nothing", a, 255, logits);
    a.how.top_k = 1;
    check("top_k", a, 1, logits);
    a.how.top_k = 2; /* the third is as likely as the second */
    check("top_k with a tie", a, 7, logits);
    a = usual();
    a.how.top_p = 0.51; /* e^2 of 14.7 is 0.503: not yet enough */
    check("top_p", a, 3, logits);
    a.how.top_p = 0.5;
    check("top_p of the first", a, 1, logits);
    a = usual();
    a.how.min_p = 0.2; /* e^-1 = 0.37 stays, e^-2 = 0.14 goes */
    check("min_p", a, 7, logits);
    a.how.top_p = 0.6; /* of what min_p has left: 0.576 is not yet enough */
    check("min_p, then top_p", a, 3, logits);
    a = usual();
    a.how.top_k = 3;
    a.how.top_p = 0.57; /* of the three: 0.576 is enough */
    check("top_k, then top_p", a, 1, logits);
}

MX_TEST(sampling_changes_logits_in_order)
{
    mx_sample_args a = usual();
    float z[V];
    const int32_t seen[] = {0, 4, 0, 3, 0, 1}, banned[] = {0, 99};
    const uint32_t allowed[] = {6};
    const mx_logit_bias bias[] = {{5, 3}, {7, -100}, {-1, 5}, {99, 5}};
    a.how.temperature = 2;
    for (int i = 0; i < V; i++)
        z[i] = logits[i] / 2;
    check("temperature", a, 255, z);
    a = usual();
    a.banned = banned, a.n_banned = 2;
    check("banned", a, 254, logits);
    a.allowed = allowed;
    check("allowed", a, 6, logits);
    a = usual();
    a.bias = bias, a.n_bias = 4;
    memcpy(z, logits, sizeof z);
    z[5] += 3, z[7] -= 100;
    check("bias", a, 255, z);
    a = usual();
    a.seen = seen, a.n_prompt = 3, a.n_seen = 6;
    a.how.repetition_penalty = 2; /* of prompt and answer, once each */
    a.how.presence_penalty = 0.5, a.how.frequency_penalty = 0.25; /* of the answer: 3, 0, 1 */
    memcpy(z, logits, sizeof z);
    z[0] = 2 / 2 - 0.75f, z[4] = -1 * 2, z[3] = 0 - 0.75f, z[1] = 1 / 2.0f - 0.75f;
    check("penalties", a, 255, z);
    a.how.temperature = 0;
    MX_CHECK(mx_sample_next(&a).id == 2, "greedy after penalties: %d", mx_sample_next(&a).id);
    a.n_seen = a.n_prompt = 0;
    mx_choice c = mx_sample_next(&a);
    MX_CHECK(c.id == 0 && fabs(c.log_prob - (2 - mx_log_sum_exp(logits, V))) < 1e-6, "%g",
             c.log_prob);
}

MX_TEST(sampling_is_a_function_of_seed_stream_and_step)
{
    mx_sample_args a = usual(), b = a;
    int same = 0, other = 0;
    b.stream = 1;
    for (int i = 0; i < 200; i++) {
        a.step = b.step = (uint64_t)i;
        mx_choice x = mx_sample_next(&a), y = mx_sample_next(&a);
        MX_CHECK(memcmp(&x, &y, sizeof x) == 0, "step %d", i);
        same += x.id == mx_sample_next(&b).id;
        a.how.seed = 1;
        other += x.id == mx_sample_next(&a).id;
        a.how.seed = 0;
    }
    MX_CHECK(same < 150 && other < 150, "%d, %d", same, other);
}

MX_TEST(the_most_likely_tokens_and_broken_logits)
{
    mx_choice top[V + 2];
    char work[8 * V];
    double sum = mx_log_sum_exp(logits, V), all = 0;
    int n = mx_most_likely(logits, V, sum, V + 2, top, work);
    const int32_t order[V] = {0, 1, 2, 3, 4, 5, 6, 7};
    MX_CHECK(n == V, "%d", n);
    for (int i = 0; i < n; i++) {
        MX_CHECK(top[i].id == order[i], "%d: %d", i, top[i].id);
        all += exp(top[i].log_prob);
    }
    MX_CHECK(fabs(all - 1) < 1e-6, "probabilities add up to %g", all);
    float broken[V];
    memcpy(broken, logits, sizeof broken);
    broken[3] = NAN;
    MX_CHECK(isnan(mx_log_sum_exp(broken, V)), "a logit that is no number");
    mx_sample_args a = usual();
    for (int i = 0; i < V; i++)
        broken[i] = NAN;
    a.logits = broken;
    MX_CHECK(isnan(mx_sample_next(&a).log_prob), "logits that are no numbers");
    a.how.temperature = 0;
    a.no_log_prob = true;
    MX_CHECK(isnan(mx_sample_next(&a).log_prob), "greedily");
}

/* Greedy answers by the maximum in vectors, beside the loop over candidates that a bias needs. */
MX_TEST(greedy_takes_the_first_of_the_best)
{
    enum { MANY = 1537 };
    static float z[MANY];
    static char work[8 * MANY];
    const mx_logit_bias nothing = {MANY - 1, 0};
    for (int i = 0; i < 400; i++) {
        mx_sample_args a = {.logits = z, .vocab = MANY, .work = work, .no_log_prob = true};
        for (int k = 0; k < MANY; k++) {
            uint32_t x = (uint32_t)(k * 2654435761u + i * 40503u) >> 16;
            z[k] = i % 4 == 3 || (x % 5 == 0 && i % 2) ? NAN : (float)(x % (3 + i)) - 100;
        }
        for (int k = 0; k < MANY && i % 8 == 7; k++)
            z[k] = k == i ? -INFINITY : z[k];
        mx_choice fast = mx_sample_next(&a);
        a.bias = &nothing;
        a.n_bias = 1;
        mx_choice slow = mx_sample_next(&a);
        MX_CHECK(fast.id == slow.id && isnan(fast.log_prob) == isnan(slow.log_prob),
                 "round %d: %d, not %d", i, fast.id, slow.id);
    }
}

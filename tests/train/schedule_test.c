/* schedule_test.c - the learning rate at chosen steps, against values worked out by hand. */
#include "train/run/schedule.h"

#include "../test.h"
#include "keys/keys.h"
#include <math.h>

static mx_schedule make(const char *const *args, int n)
{
    mx_config_request r = {
        .schema = &mx_keys, .args = args, .n_args = n};
    mx_config *cfg = NULL;
    MX_CHECK_OK(mx_config_load(&cfg, &r));
    mx_schedule s = {0};
    if (cfg)
        s = mx_schedule_make(cfg);
    mx_config_free(cfg);
    return s;
}

static void at(const mx_schedule *s, int64_t step, double expected)
{
    double got = mx_schedule_rate(s, step);
    MX_CHECK(fabs(got - expected) <= 1e-12 * fabs(expected), "step %lld: %.17g, expected %.17g",
             (long long)step, got, expected);
}

MX_TEST(schedule_cosine)
{
    const char *args[] = {"steps=111", "learning_rate=2", "warmup_steps_fraction=0.1",
                          "learning_rate_final_fraction=0.1", "learning_rate_schedule_steps=101"};
    mx_schedule s = make(args, 5);
    MX_CHECK(s.warmup == 10 && s.decay == 91, "warmup=%lld decay=%lld", (long long)s.warmup,
             (long long)s.decay);
    at(&s, 0, 0);
    at(&s, 5, 1);
    at(&s, 9, 1.8);
    at(&s, 10, 2);
    at(&s, 55, 1.1); /* the middle of the cosine: half way between 2 and 0.2 */
    at(&s, 40, 0.2 + 1.8 * 0.5 * (cos(M_PI / 3) + 1));
    at(&s, 100, 0.2);
    at(&s, 101, 0);
    at(&s, 110, 0);
}

MX_TEST(schedule_wsd)
{
    const char *args[] = {"steps=100",
                          "learning_rate=1",
                          "warmup_steps_fraction=0.1",
                          "lr_schedule_type=wsd",
                          "wsd_decay_steps_fraction=0.21",
                          "learning_rate_final_fraction=0.2"};
    mx_schedule s = make(args, 6);
    MX_CHECK(s.decay == 21 && s.shape == MX_DECAY_LINEAR);
    at(&s, 9, 0.9);
    at(&s, 10, 1);
    at(&s, 78, 1);
    at(&s, 79, 1);
    at(&s, 89, 0.6);
    at(&s, 99, 0.2);
    at(&s, 100, 0);
    const char *cosine[] = {"steps=100", "learning_rate=1", "lr_schedule_type=wsd",
                            "wsd_decay_steps_fraction=0.21", "wsd_decay_style=cosine"};
    s = make(cosine, 5);
    at(&s, 84, 0.1 + 0.9 * 0.5 * (cos(M_PI / 4) + 1));
    at(&s, 99, 0.1);
}

MX_TEST(schedule_edges)
{
    const char *constant[] = {"steps=10", "learning_rate=3", "lr_schedule_type=constant"};
    mx_schedule s = make(constant, 3);
    at(&s, 0, 0);
    at(&s, 1, 3);
    at(&s, 9, 3);
    const char *one[] = {"steps=1", "learning_rate=3", "warmup_steps_fraction=0"};
    s = make(one, 3);
    at(&s, 0, 0.3);
    const char *warm[] = {"steps=4", "learning_rate=4", "warmup_steps_fraction=1"};
    s = make(warm, 3);
    at(&s, 3, 3);
    const char *length[] = {"steps=-1", "learning_rate_schedule_steps=20",
                            "warmup_steps_fraction=0"};
    s = make(length, 3);
    MX_CHECK(s.steps == 20);
    /* more steps than 31 bits hold */
    const char *large[] = {"steps=4e10", "learning_rate=1"};
    s = make(large, 2);
    MX_CHECK(s.steps == 40000000000 && s.warmup == 4000000000);
    at(&s, 2000000000, 0.5);
}

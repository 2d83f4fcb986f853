/* schedule.c - the formulas of schedule.h. */
#include "train/run/schedule.h"

#include <math.h>
#include <string.h>

int64_t mx_schedule_run_steps(const mx_config *cfg)
{
    int64_t steps = mx_config_int(cfg, "steps");
    return steps > 0 ? steps : mx_config_int(cfg, "learning_rate_schedule_steps");
}

static mx_schedule make(const mx_config *cfg, bool open)
{
    const char *type = mx_config_text(cfg, "lr_schedule_type");
    bool wsd = strcmp(type, "wsd") == 0, cosine = strcmp(type, "cosine") == 0;
    int64_t n = mx_config_int(cfg, "learning_rate_schedule_steps");
    mx_schedule s = {.peak = mx_config_float(cfg, "learning_rate"), .open = open};
    if (cosine || wsd) /* a key without effect is not read: the run then says so */
        s.final = s.peak * mx_config_float(cfg, "learning_rate_final_fraction");
    s.steps = n > 0 ? n : mx_schedule_run_steps(cfg);
    double warmup = (double)s.steps * mx_config_float(cfg, "warmup_steps_fraction");
    s.warmup = (int64_t)(open ? ceil(warmup) : warmup);
    if (cosine) {
        s.shape = MX_DECAY_COSINE;
        s.decay = s.steps - s.warmup;
    } else if (wsd) {
        bool linear = strcmp(mx_config_text(cfg, "wsd_decay_style"), "linear") == 0;
        s.shape = linear ? MX_DECAY_LINEAR : MX_DECAY_COSINE;
        s.decay = (int64_t)((double)s.steps * mx_config_float(cfg, "wsd_decay_steps_fraction"));
    }
    if (strcmp(type, "linear") == 0) {
        s.shape = MX_DECAY_TO_ZERO;
        s.decay = s.steps - s.warmup;
    }
    return s;
}

mx_schedule mx_schedule_make(const mx_config *cfg)
{
    return make(cfg, false);
}

mx_schedule mx_schedule_make_open(const mx_config *cfg)
{
    return make(cfg, true);
}

double mx_schedule_rate(const mx_schedule *s, int64_t step)
{
    MX_ASSERT(step >= 0, "step=%lld", (long long)step);
    if (step >= s->steps)
        return 0;
    if (step < s->warmup)
        return s->peak * (double)step / (double)s->warmup;
    int64_t i = step - (s->steps - s->decay);
    if (i < 0 || s->shape == MX_DECAY_NONE)
        return s->peak;
    if (s->shape == MX_DECAY_TO_ZERO)
        return s->peak * (double)(s->decay - i) / (double)s->decay;
    int64_t last = s->open ? s->decay : s->decay - 1;
    double x = last > 0 ? (double)i / (double)last : 1;
    if (s->shape == MX_DECAY_LINEAR)
        return s->peak + (s->final - s->peak) * x;
    double a = 0.5 * (cos(M_PI * x) + 1);
    return s->peak * a + s->final * (1 - a);
}

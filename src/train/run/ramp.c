/* ramp.c - see ramp.h. */
#include "train/run/ramp.h"

#include <math.h>

/* A number of sequences per device as whole sequences of a data rank. */
static mx_status whole(const mx_config *cfg, const char *key, const mx_batch_plan *b, int64_t *out)
{
    double all = mx_config_float(cfg, key) * (double)b->devices;
    int64_t n = (int64_t)llround(all);
    *out = n / b->data_ranks;
    if (fabs(all - (double)n) > 1e-9 * all || n < 1 || n % b->data_ranks)
        return mx_fail(MX_USAGE,
                       "%s: %s x %lld devices is %g sequences, which %lld data ranks cannot share "
                       "evenly",
                       mx_config_where(cfg, key), key, (long long)b->devices, all,
                       (long long)b->data_ranks);
    return MX_OK;
}

mx_status mx_ramp_make(mx_ramp *r, const mx_config *cfg, const mx_batch_plan *full)
{
    *r = (mx_ramp){0};
    if (!mx_config_bool(cfg, "enable_rampup_batch_size"))
        return MX_OK;
    MX_TRY(whole(cfg, "per_device_batch_size_start", full, &r->start));
    MX_TRY(whole(cfg, "per_device_batch_size_increment", full, &r->increment));
    int64_t growth = full->microbatch - r->start;
    if (growth <= 0 || growth % r->increment)
        return mx_fail(MX_USAGE,
                       "%s: from %lld sequences per_device_batch_size=%lld is not reached in steps "
                       "of %lld; change per_device_batch_size_start or "
                       "per_device_batch_size_increment",
                       mx_config_where(cfg, "per_device_batch_size_start"), (long long)r->start,
                       (long long)full->microbatch, (long long)r->increment);
    r->n_stages = growth / r->increment;
    r->per_sequence = full->data_ranks * full->accumulation;
    r->share = (double)mx_config_int(cfg, "global_rampup_samples") / (double)r->n_stages;
    return MX_OK;
}

int64_t mx_ramp_microbatch(const mx_ramp *r, int64_t stage)
{
    return r->start + stage * r->increment;
}

static int64_t stage_steps(const mx_ramp *r, int64_t stage)
{
    return (int64_t)ceil(r->share / (double)(mx_ramp_microbatch(r, stage) * r->per_sequence));
}

int64_t mx_ramp_stage(const mx_ramp *r, int64_t step)
{
    int64_t stage = 0;
    for (; stage < r->n_stages; stage++) {
        int64_t steps = stage_steps(r, stage);
        if (step < steps)
            break;
        step -= steps;
    }
    return stage;
}

int64_t mx_ramp_steps(const mx_ramp *r)
{
    int64_t steps = 0;
    for (int64_t k = 0; k < r->n_stages; k++)
        steps += stage_steps(r, k);
    return steps;
}

int64_t mx_ramp_unit(const mx_ramp *r)
{
    int64_t a = r->start, b = r->increment;
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a * r->per_sequence;
}

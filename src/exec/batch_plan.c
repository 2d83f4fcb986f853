/* batch_plan.c - see batch_plan.h. */
#include "exec/batch_plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

mx_status mx_batch_plan_make(mx_batch_plan *b, const mx_config *cfg, int64_t devices,
                             int64_t data_ranks)
{
    MX_ASSERT(devices >= 1 && data_ranks >= 1 && devices % data_ranks == 0,
              "%lld devices, %lld data ranks", (long long)devices, (long long)data_ranks);
    double per_device = mx_config_float(cfg, "per_device_batch_size");
    double all = per_device * (double)devices;
    *b = (mx_batch_plan){.devices = devices, .data_ranks = data_ranks};
    b->accumulation = mx_config_int(cfg, "gradient_accumulation_steps");
    b->length = mx_config_int(cfg, "max_target_length");
    b->global_microbatch = (int64_t)llround(all);
    const char *where = mx_config_where(cfg, "per_device_batch_size");
    if (fabs(all - (double)b->global_microbatch) > 1e-9 * all || b->global_microbatch < 1)
        return mx_fail(
            MX_USAGE,
            "%s: per_device_batch_size %g x %lld devices is %g sequences, which is not a whole "
            "number; use a multiple of %g",
            where, per_device, (long long)devices, all, 1.0 / (double)devices);
    if (b->global_microbatch % data_ranks != 0)
        return mx_fail(
            MX_USAGE,
            "%s: per_device_batch_size %g x %lld devices is %lld sequences, which %lld data ranks "
            "cannot share evenly; use a multiple of %g",
            where, per_device, (long long)devices, (long long)b->global_microbatch,
            (long long)data_ranks, (double)data_ranks / (double)devices);
    b->microbatch = b->global_microbatch / data_ranks;
    if (__builtin_mul_overflow(b->global_microbatch, b->accumulation, &b->global_sequences) ||
        __builtin_mul_overflow(b->global_sequences, b->length, &b->global_tokens))
        return mx_fail(MX_USAGE, "%s: more than 2^63 tokens in an update", where);
    return MX_OK;
}

static void add_count(mx_str *out, int64_t n, const char *unit, const char *after)
{
    char digits[32];
    int len = snprintf(digits, sizeof digits, "%lld", (long long)n);
    for (int i = 0; i < len; i++) {
        mx_str_add(out, i && (len - i) % 3 == 0 ? "," : "");
        mx_str_add_n(out, &digits[i], 1);
    }
    mx_str_addf(out, " %s%s%s", unit,
                n == 1                          ? ""
                : unit[strlen(unit) - 1] == 'h' ? "es"
                                                : "s",
                after);
}

void mx_batch_plan_print(const mx_batch_plan *b, mx_str *out)
{
    add_count(out, b->global_tokens, "token", " per step = ");
    add_count(out, b->data_ranks, "data rank", " x ");
    add_count(out, b->microbatch, "sequence", " x ");
    add_count(out, b->accumulation, "microbatch", " x ");
    add_count(out, b->length, "token", "");
}

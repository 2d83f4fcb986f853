/* distill_keys.c - the keys of distillation, and weights that change over the run. */
#include "post/distill.h"

#include "device/device.h"
#include "exec/model_ref.h"
#include "post/teacher.h"
#include "post/teacher_file.h"
#include "train/run/schedule.h"
#include <math.h>
#include <string.h>

double mx_distill_schedule_at(const mx_distill_schedule *c, int64_t step, int64_t steps)
{
    double x = steps > 0 ? (double)step / (double)steps : 0;
    x = x < 0 ? 0 : x > 1 ? 1 : x;
    switch (c->how) {
    case MX_LINEAR: return c->first + (c->last - c->first) * x;
    case MX_COSINE: return c->last + (c->first - c->last) * (1 + cos(acos(-1) * x)) / 2;
    default: return c->first;
    }
}

/* distill_NAME, distill_NAME_end, distill_NAME_schedule. What has no effect is not read, here and
 * below: the run then says so. */
static mx_distill_schedule schedule_of(const mx_config *c, const char *first, const char *end,
                                       const char *how)
{
    const char *text = mx_config_text(c, how);
    mx_distill_schedule k = {.first = mx_config_float(c, first)};
    k.how = strcmp(text, "linear") == 0 ? MX_LINEAR : strcmp(text, "cosine") == 0 ? MX_COSINE
                                                                                   : MX_STAYS;
    double last = k.how == MX_STAYS ? -1 : mx_config_float(c, end);
    k.last = last >= 0 ? last : k.first;
    return k;
}

static mx_status check(const mx_config *c, const mx_distill *s, const char *type)
{
    if (*type && !s->gkd && strcmp(type, "maxtext") != 0)
        return mx_fail(MX_USAGE, "%s: loss_type=%s is not one of distill's: maxtext, gkd",
                       mx_config_where(c, "loss_type"), type);
    if (s->gkd && s->jsd > 1)
        return mx_fail(MX_USAGE, "%s: GKD's beta is a share, 0 to 1", mx_config_where(c, "beta"));
    if (!*s->teacher && !*s->recorded)
        return mx_fail(MX_USAGE, "there is no teacher; set teacher_path, or offline_data_dir to "
                       "what `maxc distill write_teacher=DIR` has written");
    if (*s->recorded && s->features)
        return mx_fail(MX_USAGE, "%s: a recorded teacher has no features; set distill_beta=0",
                       mx_config_where(c, "distill_beta"));
    if ((s->on_policy > 0 || s->seq_kd) && *s->recorded)
        return mx_fail(MX_USAGE, "a recorded teacher cannot judge new answers; set lmbda=0 and "
                       "seq_kd=false, or teacher_path instead of offline_data_dir");
    if ((s->on_policy > 0 || s->seq_kd) && mx_config_bool(c, "packing"))
        return mx_fail(MX_USAGE, "%s: answers are sampled to one prompt a row; set packing=false, "
                       "or lmbda=0", mx_config_where(c, "packing"));
    if ((s->on_policy > 0 || s->seq_kd) &&
        s->max_completion >= mx_config_int(c, "max_target_length"))
        return mx_fail(MX_USAGE, "%s: max_completion_length=%lld leaves no room for a prompt in "
                       "max_target_length=%lld", mx_config_where(c, "max_completion_length"),
                       (long long)s->max_completion,
                       (long long)mx_config_int(c, "max_target_length"));
    return MX_OK;
}

/* The programs are compiled for the teacher's vocabulary, and for its layers. */
static mx_status know_teacher(const mx_config *c, mx_arena *a, mx_distill *s)
{
    mx_model_ref m = {0};
    mx_status st = mx_status_wrap(mx_model_ref_open(&m, s->teacher, NULL, c), "the teacher");
    if (!st) {
        s->width = m.spec.summary.vocab;
        if (s->features)
            st = mx_feature_layers(c, m.spec.summary.n_layers, a, &s->layers, &s->n_layers);
    }
    mx_model_ref_close(&m);
    return st;
}

static mx_status know_recorded(const mx_config *c, mx_distill *s)
{
    mx_teacher_file f = {0};
    mx_status st = mx_teacher_file_open(&f, s->recorded);
    s->top_k = f.top_k;
    s->width = f.vocab;
    if (!st && f.seq != mx_config_int(c, "max_target_length"))
        st = mx_fail(MX_USAGE, "%s: rows of %s have %lld tokens; set max_target_length=%lld",
                     mx_config_where(c, "max_target_length"), s->recorded, (long long)f.seq,
                     (long long)f.seq);
    mx_teacher_file_close(&f);
    return st;
}

mx_status mx_distill_read(const mx_config *c, mx_arena *a, const void **out)
{
    mx_distill *s = MX_NEW(a, mx_distill);
    const char *type = mx_config_text(c, "loss_type");
    double beta = mx_config_float(c, "beta");
    bool gkd = strcmp(type, "gkd") == 0;
    *s = (mx_distill){
        .gkd = gkd,
        .jsd = beta >= 0 ? beta : 0.5,
        .on_policy = gkd ? mx_config_float(c, "lmbda") : 0,
        .seq_kd = gkd && mx_config_bool(c, "seq_kd"),
        .temperature = mx_config_float(c, "decode_sampling_temperature"),
        .max_completion = mx_config_int(c, "max_completion_length"),
        .alpha = schedule_of(c, "distill_alpha", "distill_alpha_end", "distill_alpha_schedule"),
        .kd_temperature = schedule_of(c, "distill_temperature", "distill_temperature_end",
                                      "distill_temperature_schedule"),
        .beta = schedule_of(c, "distill_beta", "distill_beta_end", "distill_beta_schedule"),
        .cosine = strcmp(mx_config_text(c, "distill_feature_loss_type"), "cosine") == 0,
        .top_k = mx_config_int(c, "distill_top_k"),
        .width = INT64_MAX,
        .steps = mx_schedule_run_steps(c),
        .teacher = mx_config_text(c, "teacher_path"),
        .recorded = mx_config_text(c, "offline_data_dir")};
    s->features = !gkd && (s->beta.first > 0 || s->beta.last > 0);
    *out = s;
    MX_TRY(check(c, s, type));
    return *s->recorded ? know_recorded(c, s) : know_teacher(c, a, s);
}

mx_status mx_distill_feed_weights(const mx_distill *s, int64_t step, mx_exec *e)
{
    const struct {
        const char *name;
        const mx_distill_schedule *over;
    } all[] = {{"distill_alpha", &s->alpha}, {"distill_temperature", &s->kd_temperature},
               {"distill_beta", &s->beta}};
    for (int i = 0; i < 3; i++) {
        float x = (float)mx_distill_schedule_at(all[i].over, step - 1, s->steps);
        MX_TRY(mx_exec_write(e, all[i].name, &x));
    }
    return MX_OK;
}

mx_status mx_batch_room(mx_batch *b, int64_t rows, int64_t seq)
{
    int64_t n = rows * seq;
    int32_t *p;
    MX_TRY(mx_alloc((void **)&p, 4 * sizeof *p * (size_t)n, "a batch"));
    *b = (mx_batch){.tokens = p, .labels = p + n, .segments = p + 2 * n, .positions = p + 3 * n,
                    .rows = rows, .seq_len = seq};
    return MX_OK;
}

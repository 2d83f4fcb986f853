/* qk_clip_test.c - QK-clip: which rows of which weights it rescales and by how much, that the next
 * scores keep to the threshold, and that microbatches and ranks agree. */
#include "../test.h"
#include "small_step.h"
#include "tiny_run.h"

#include "base/io.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void open_step(small_step *s, const char *fixture, double threshold, mx_dtype compute)
{
    mx_step_options o = {.shape = {.qk_clip = threshold},
                         .compile = {.compute = compute},
                         .optimizer = {.b1 = 0.9, .b2 = 0.95, .eps = 1e-8}};
    float nothing = 0;
    small_step_open(s, fixture, o);
    MX_CHECK_OK(mx_exec_write(s->step.exec, "lr", &nothing)); /* what changes is the clip's */
}

static float largest(small_step *s)
{
    float x = NAN;
    MX_CHECK_OK(mx_exec_run(s->step.exec));
    MX_CHECK_OK(mx_exec_read(s->step.exec, "metric:max_logits", &x));
    return x;
}

/* A head's rows in a weight: `n` of them, whose factor is the head's f to this power. */
typedef struct {
    int64_t n;
    double power;
} part;

/* Runs a step; gives how many heads were rescaled. Of each part of a head all rows have one factor,
 * and the factors of the parts are powers of one number, which is below 1 or exactly 1. */
static int check_rows(small_step *s, const char *pattern, const part *p, int n_parts)
{
    const mx_var *v = small_step_weight(s, pattern);
    int64_t rows = 0, d = v->type.ndim == 2 ? v->type.dim[1] : 1;
    for (int i = 0; i < n_parts; i++)
        rows += p[i].n;
    float *before = small_step_values(s, v);
    MX_CHECK_OK(mx_exec_run(s->step.exec));
    float *after = small_step_values(s, v);
    int clipped = 0;
    for (int64_t h = 0; h < v->type.dim[0] / rows; h++) {
        int64_t at = h * rows * d;
        double f = pow(after[at] / before[at], 1 / p[0].power);
        MX_CHECK(f > 0 && f <= 1 + 1e-6, "%s: head %lld has the factor %g", v->name, (long long)h,
                 f);
        clipped += f < 0.999;
        for (int i = 0; i < n_parts; i++)
            for (int64_t k = 0; k < p[i].n * d; k++, at++) {
                double want = before[at] * pow(f, p[i].power);
                MX_CHECK(fabs(after[at] - want) <= 2e-6 * fabs(before[at]),
                         "%s: %g became %g, expected %g", v->name, before[at], after[at], want);
            }
    }
    free(before), free(after);
    return clipped;
}

/* With a threshold in the middle of the heads' largest scores some heads are rescaled and some are
 * not; afterwards the same batch reaches the threshold and no more. */
static void check_family(const char *fixture, const char *weight[2], const part p[2][2],
                         const int n_parts[2])
{
    small_step s = {0};
    open_step(&s, fixture, 1e6, MX_F32);
    float most = largest(&s), limit = 0.7f * most;
    small_step_close(&s);
    MX_CHECK(most > 0, "%s: the largest score is %g", fixture, most);
    for (int i = 0; i < 2 && weight[i]; i++) {
        s = (small_step){0};
        open_step(&s, fixture, limit, MX_F32);
        int n = check_rows(&s, weight[i], p[i], n_parts[i]);
        MX_CHECK(n > 0 && n < 4, "%s: %d of 4 heads were rescaled", weight[i], n);
        small_step_close(&s);
    }
    s = (small_step){0};
    open_step(&s, fixture, limit, MX_F32);
    float first = largest(&s), second = largest(&s);
    MX_CHECK(fabsf(first - most) < 1e-6f * most, "%g and %g", first, most);
    /* a later layer's inputs have changed with the layers before it */
    MX_CHECK(fabsf(second - limit) < 1e-3f * limit, "%s: %g after clipping at %g", fixture, second,
             limit);
    small_step_close(&s);
}

MX_TEST(qk_clip_rescales_the_right_rows)
{
    /* q_b_proj: 8 unrotated and 8 rotated rows a head; kv_b_proj: 8 for keys and 12 for values */
    static const part mla[2][2] = {{{8, 0.5}, {8, 1}}, {{8, 0.5}, {12, 0}}};
    check_family("kimi-k2-hub", (const char *[]){"*.1.self_attn.q_b_proj.weight",
                                                 "*.1.self_attn.kv_b_proj.weight"},
                 mla, (const int[]){2, 2});
    /* four query heads on two key heads: queries alone, with their bias */
    static const part plain[2][2] = {{{8, 1}}, {{8, 1}}};
    check_family("qwen2", (const char *[]){"*.0.self_attn.q_proj.weight", NULL}, plain,
                 (const int[]){1, 1});
}

/* The copy that matmuls read is rescaled with the weight. */
MX_TEST(qk_clip_reaches_the_bfloat16_copy)
{
    small_step s = {0};
    open_step(&s, "kimi-k2-hub", 1e6, MX_BF16);
    float most = largest(&s), limit = 0.5f * most;
    small_step_close(&s);
    s = (small_step){0};
    open_step(&s, "kimi-k2-hub", limit, MX_BF16);
    largest(&s);
    float second = largest(&s);
    MX_CHECK(second < 1.02f * limit && second > 0.9f * limit, "%g after clipping %g at %g", second,
             most, limit);
    small_step_close(&s);
}

MX_TEST(qk_clip_refuses_a_family_without_such_projections)
{
    mx_model_spec m = {0};
    mx_step s = {0};
    static const char path[] = "tests/fixtures/models/qwen3/config.json";
    json_t *json = json_load_file(path, 0, NULL);
    MX_CHECK_OK(mx_model_from_json(&m, json, path));
    mx_step_options o = {.kind = MX_STEP_TRAIN, .shape = {.batch = 1, .seq = 8, .qk_clip = 100}};
    MX_CHECK_ERROR(mx_step_plan(&s, &m, &o), "use_qk_clip: this family has no projections");
    o.kind = MX_STEP_LOSS; /* an evaluation clips nothing */
    MX_CHECK_OK(mx_step_plan(&s, &m, &o));
    mx_step_close(&s);
    mx_model_spec_fini(&m);
    json_decref(json);
}

/* Without a learning rate only the clip moves weights, and the largest of all scores does not
 * depend on how the batch is divided: in one batch, in microbatches, on two ranks, on meshes that
 * cut rows, heads, lengths and weights. */
MX_TEST(qk_clip_is_one_decision_of_microbatches_and_ranks)
{
#define CLIP                                                                                       \
    "load_parameters_path=tests/fixtures/models/kimi-k2-hub", "steps=2", "learning_rate=0",        \
        "dataset_type=synthetic", "use_qk_clip=true", "opt_type=sgd",       \
        "packing=false", "checkpoint_period=2"
    char folder[256];
    tiny_folder(folder, sizeof folder);
    const char *one[] = {CLIP, "per_device_batch_size=4", "qk_clip_threshold=0.02", NULL};
    const char *split[] = {CLIP, "per_device_batch_size=1", "gradient_accumulation_steps=4",
                           "qk_clip_threshold=0.02", NULL};
    const char *ranks[] = {CLIP, "per_device_batch_size=2", "qk_clip_threshold=0.02", NULL};
    static const char *const meshes[] = {"mesh=data=2,tensor=2", "mesh=fsdp=2,context=2"};
    const char *never[] = {CLIP, "per_device_batch_size=4", "qk_clip_threshold=1000", NULL};
    tiny_train_ranks(folder, 1, "one", one);
    tiny_train_ranks(folder, 1, "split", split);
    tiny_train_ranks(folder, 2, "ranks", ranks);
    tiny_train_ranks(folder, 1, "never", never);
    double b = tiny_difference(folder, "one", "split", 2);
    double c = tiny_difference(folder, "one", "ranks", 2);
    double d = tiny_difference(folder, "one", "never", 2);
    MX_CHECK(b < 2e-6 && c < 2e-6, "microbatches differ by %g, ranks by %g", b, c);
    MX_CHECK(d > 0.1, "nothing was clipped");
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "mesh1" : "mesh0";
        tiny_train_ranks(folder, 1, name,
                         (const char *[]){CLIP, "per_device_batch_size=1",
                                          "qk_clip_threshold=0.02", meshes[i],
                                          "sharding_tolerance=1", NULL});
        double e = tiny_difference(folder, "one", name, 2);
        MX_CHECK(e < 2e-6, "%s differs by %g", meshes[i], e);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* trl_test.c - three AdamW steps of every objective against TRL and PEFT (fixtures/post/trl.json):
 * loss, gradient norm and every metric of each step, and the weights afterwards.
 *
 * Of each weight's change two numbers are recorded: its norm, and its sum weighted by
 * cos(0.7 i + 1). Elements are not compared: Adam divides by the size of a gradient that may be
 * rounding noise.
 */
#include "post_run.h"

#include "../test.h"
#include "base/str.h"
#include "cmd/verb.h"
#include "store/safetensors.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- weights --- */

static float *read_tensor(const mx_st_file *f, const char *name, int64_t *n)
{
    const mx_st_tensor *t = mx_st_find(f, name);
    *n = t ? t->n : 0;
    float *x = calloc((size_t)*n + 1, sizeof *x);
    if (t)
        MX_CHECK_OK(mx_st_read(t, 0, t->n, mx_st_dtype_of(MX_F32), x, NULL));
    return x;
}

/* How far the weights have gone elsewhere, as a share of how far they have gone. */
static double weights_off(const mx_st_file *before, const mx_st_file *after, const json_t *wanted)
{
    double off = 0, all = 0;
    const char *name;
    json_t *v;
    json_object_foreach ((json_t *)wanted, name, v) {
        int64_t n, m;
        float *a = read_tensor(before, name, &n), *b = read_tensor(after, name, &m);
        MX_CHECK(n == m && n > 0, "%s has %lld and %lld values", name, (long long)n, (long long)m);
        double sum = 0, want = json_number_value(json_array_get(v, 0));
        double norm = json_number_value(json_array_get(v, 1));
        for (int64_t i = 0; i < n && n == m; i++)
            sum += ((double)b[i] - a[i]) * cos(0.7 * (double)i + 1);
        off += (sum - want) * (sum - want);
        all += norm * norm;
        free(a);
        free(b);
    }
    return sqrt(off / all);
}

static void check_weights(const json_t *c, const char *folder)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    const char *adapter = json_string_value(json_object_get(c, "adapter"));
    const char *stem = adapter ? "adapter_model" : "model";
    const char *base = json_string_value(json_object_get(c, "base"));
    char from[300], to[700];
    snprintf(from, sizeof from, POST "%s/%s.safetensors", adapter ? adapter : base ? base : "model",
             stem);
    snprintf(to, sizeof to, "%s/%s/checkpoints/3/%s.safetensors", folder, name, stem);
    mx_st_file before = {0}, after = {0};
    MX_CHECK_OK(mx_st_open(&before, from));
    MX_CHECK_OK(mx_st_open(&after, to));
    double off = weights_off(&before, &after, json_object_get(c, "weights"));
    MX_CHECK(off < 1e-3, "%s: weights are off by %g of their change", name, off);
    mx_st_close(&before);
    mx_st_close(&after);
}

/* --- metrics --- */

static void check_steps(const json_t *c, const json_t *ours)
{
    const char *name = json_string_value(json_object_get(c, "name")), *metric;
    const json_t *steps = json_object_get(c, "steps");
    MX_CHECK(json_array_size(ours) == 3, "%s: %zu steps", name, json_array_size(ours));
    for (size_t i = 0; i < json_array_size(steps); i++) {
        json_t *want;
        json_object_foreach (json_array_get(steps, i), metric, want) {
            double w = json_number_value(want), is = post_number(ours, i, metric);
            MX_CHECK(fabs(is - w) <= 1e-4 * fabs(w) + 3e-5, "%s, step %zu: %s is %.8g, "
                     "expected %.8g", name, i + 1, metric, is, w);
        }
    }
}

/* The case's settings with the fixture's paths. */
static void settings_of(const json_t *c, mx_str *out)
{
    static const char paths[] = "adapter=*,rollout_path=*,teacher_path=*,reference_path=*,"
                                "load_parameters_path=*";
    const char *data = json_string_value(json_object_get(c, "data"));
    size_t i;
    json_t *v;
    if (strcmp(data, "none") != 0)
        mx_str_addf(out, "dataset_path=" POST "%s ", data);
    json_array_foreach (json_object_get(c, "args"), i, v) {
        const char *arg = json_string_value(v), *equals = strchr(arg, '=') + 1;
        bool path = mx_glob_any(paths, arg);
        mx_str_addf(out, "%.*s%s%s ", (int)(equals - arg), arg, path ? POST : "", equals);
    }
}

static void check_case(const json_t *c, const char *folder)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    mx_str settings = {0};
    settings_of(c, &settings);
    MX_CHECK_OK(post_run(json_string_value(json_object_get(c, "verb")), folder, name,
                         mx_str_text(&settings)));
    json_t *ours = post_metrics(folder, name);
    check_steps(c, ours);
    check_weights(c, folder);
    json_decref(ours);
    mx_str_fini(&settings);
}

/* Cases of a file whose names begin so; at least one. */
static void check_cases_of(const char *file, const char *prefix)
{
    char folder[300];
    json_t *all = json_load_file(file, 0, NULL), *c;
    size_t i, n = 0;
    post_folder(folder, sizeof folder);
    json_array_foreach (json_object_get(all, "cases"), i, c)
        if (mx_starts_with(json_string_value(json_object_get(c, "name")), prefix)) {
            check_case(c, folder);
            n++;
        }
    MX_CHECK(n > 0, "no case %s*", prefix);
    post_remove(folder);
    json_decref(all);
}

static void check_cases(const char *prefix)
{
    check_cases_of(POST "trl.json", prefix);
}

/* The formulas of MaxText (Tunix) and verl in torch. */
MX_TEST(post_grpo_semantics)
{
    check_cases_of(POST "formulas.json", "maxtext");
    check_cases_of(POST "formulas.json", "verl");
}

MX_TEST(post_sft_is_trl)
{
    check_cases("completion");
    check_cases("messages");
    check_cases("assistant");
    check_cases("text");
    check_cases("dft");
    check_cases("packed");
}

MX_TEST(post_adapters_are_peft)
{
    check_cases("lora_");
}

/* An adapter a module of every expert: their sum in torch. */
MX_TEST(post_adapters_of_each_expert)
{
    check_cases_of(POST "formulas.json", "lora_experts_each");
}

/* With bitsandbytes' NF4 underneath. */
MX_TEST(post_qlora_is_peft)
{
    check_cases("qlora_");
}

MX_TEST(post_dpo_is_trl)
{
    check_cases("dpo_");
}

MX_TEST(post_orpo_is_trl)
{
    check_cases("orpo_");
}

/* The balance loss of experts. */
MX_TEST(post_mixtures_are_trl)
{
    check_cases("moe_");
}

MX_TEST(post_grpo_is_trl)
{
    check_cases("grpo_");
}

/* MaxText's loss against the formula in float32 by torch; GKD against TRL. */
MX_TEST(post_distill_is_maxtext_and_trl)
{
    check_cases("distill_");
    check_cases("gkd_");
}

MX_TEST(post_kto_is_trl)
{
    check_cases("kto_");
}

MX_TEST(post_reward_models_are_trl)
{
    check_cases("reward_");
}

/* The loss of a first step with the adapter beside the model, and with it in the weights. */
static void check_merge(const char *base, const char *adapter)
{
    char folder[300], model[200], with[200], output[400], settings[500];
    post_folder(folder, sizeof folder);
    snprintf(model, sizeof model, POST "%s", base);
    snprintf(with, sizeof with, "adapter=" POST "%s", adapter);
    snprintf(output, sizeof output, "output=%s/merged", folder);
    char *argv[] = {"maxc", "merge", model, with, output, NULL};
    MX_CHECK_OK(mx_dispatch(5, argv, NULL));
    snprintf(settings, sizeof settings, "dataset_path=" POST "text.jsonl steps=1 "
             "load_parameters_path=%s/merged", folder);
    MX_CHECK_OK(post_run("sft", folder, "merged", settings));
    snprintf(settings, sizeof settings, "dataset_path=" POST "text.jsonl steps=1 "
             "load_parameters_path=%s %s", model, with);
    MX_CHECK_OK(post_run("sft", folder, "beside", settings));
    json_t *a = post_metrics(folder, "merged"), *b = post_metrics(folder, "beside");
    double x = post_number(a, 0, "loss"), y = post_number(b, 0, "loss");
    MX_CHECK(fabs(x - y) < 1e-5 * y, "%s: loss %.8g merged, %.8g beside", adapter, x, y);
    json_decref(a);
    json_decref(b);
    post_remove(folder);
}

MX_TEST(post_embedding_adapters_merge)
{
    check_merge("model", "lora_embedding");
}

MX_TEST(post_expert_adapters_merge)
{
    check_merge("mixtral", "lora_experts");
    check_merge("qwen3_moe", "lora_experts_down");
    check_merge("qwen3_moe", "lora_experts_each");
    check_merge("gpt_oss", "lora_experts_turned");
}

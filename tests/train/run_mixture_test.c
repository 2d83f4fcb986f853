/* run_mixture_test.c - training runs of models with experts: what they report, and keys of a run
 * that win over the config.json of the checkpoint it starts from. */
#include "../store/test_dir.h"
#include "../test.h"
#include "tiny_run.h"

#include "base/io.h"
#include "models/from_config.h"
#include "store/hf_dir.h"
#include "store/weights.h"
#include "keys/keys.h"
#include "train/report/metrics.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mx_status load(mx_config **cfg, const char *const *args)
{
    int n = 0;
    while (args[n])
        n++;
    mx_config_request q = {.schema = &mx_keys, .user = "train",
                           .args = args, .n_args = n};
    return mx_config_load(cfg, &q);
}

/* Two steps into FOLDER/r, without a word; extra arguments end with NULL. */
static void train(const char *folder, const char *const *extra)
{
    char out[512];
    const char *args[32] = {"run_name=r", "dtype=float32", "enable_tensorboard=false",
                            "enable_checkpointing=false", "dataset_type=synthetic", "steps=2",
                            "max_target_length=32", "per_device_batch_size=2", "num_threads=1"};
    int n = 9;
    snprintf(out, sizeof out, "base_output_directory=%s", folder);
    args[n++] = out;
    while (*extra)
        args[n++] = *extra++;
    MX_CHECK_OK(tiny_run(args, n));
}

/* The metric's value at the first step; NaN when it is not there. */
static double first(const char *folder, const char *name)
{
    char path[512];
    mx_arena a = {0};
    mx_series s;
    snprintf(path, sizeof path, "%s/r/metrics.jsonl", folder);
    MX_CHECK_OK(mx_metrics_read(path, name, &a, &s));
    double v = s.n ? s.y[0] : NAN;
    mx_arena_fini(&a);
    return v;
}

#define TINY                                                                                       \
    "decoder_block=qwen3_moe", "vocab_size=300", "base_emb_dim=16", "base_num_query_heads=2",      \
        "base_num_kv_heads=1", "head_dim=8", "base_moe_mlp_dim=8", "base_num_decoder_layers=2"

MX_TEST(run_reports_expert_load)
{
    test_dir d;
    test_dir_make(&d);
    train(d.path, (const char *[]){TINY, "num_experts=8", "num_experts_per_tok=2", NULL});
    double most = first(d.path, "expert_load_max"), least = first(d.path, "expert_load_min");
    MX_CHECK(most > 1 && most <= 4, "the most loaded expert has %g shares", most);
    MX_CHECK(least >= 0 && least < 1, "the least loaded expert has %g shares", least);
    /* 128 entries for 8 experts: loads are whole numbers of entries, 16 to a share */
    MX_CHECK(most * 16 == floor(most * 16) && least * 16 == floor(least * 16), "%g, %g", most,
             least);
    MX_CHECK(isnan(first(d.path, "router_balance_loss")), "no loss was asked for");
    test_dir_remove(&d);
    test_dir_make(&d);
    train(d.path, (const char *[]){TINY, "num_experts=2", "num_experts_per_tok=2",
                                   "load_balance_loss_weight=0.5", NULL});
    most = first(d.path, "expert_load_max"), least = first(d.path, "expert_load_min");
    MX_CHECK(most == 1 && least == 1, "every expert has every token, not %g and %g", most, least);
    double loss = first(d.path, "router_balance_loss"); /* E sum_e 1 p_e times the weight */
    MX_CHECK(fabs(loss - 1) < 1e-5, "the balance loss is %g", loss);
    test_dir_remove(&d);
}

static json_t *changed(const char *family, const char *const *args)
{
    char path[256];
    mx_config *cfg = NULL;
    mx_model_spec m = {0};
    MX_CHECK_OK(load(&cfg, args));
    snprintf(path, sizeof path, "tests/fixtures/models/%s/config.json", family);
    json_t *json = json_load_file(path, 0, NULL);
    MX_CHECK_OK(mx_model_from_checkpoint(&m, cfg, json, path));
    json_t *out = json_incref(m.json);
    json_decref(json);
    mx_model_spec_fini(&m);
    mx_config_free(cfg);
    return out;
}

MX_TEST(run_keys_enter_the_configuration)
{
    json_t *j = changed("deepseek-v3", (const char *[]){"routed_bias_update_rate=0.001",
                                                        "mtp_num_layers=1", "capacity_factor=1.5",
                                                        NULL});
    MX_CHECK(json_real_value(json_object_get(j, "routed_bias_update_rate")) == 0.001);
    MX_CHECK(json_integer_value(json_object_get(j, "mtp_num_layers")) == 1);
    MX_CHECK(json_real_value(json_object_get(j, "capacity_factor")) == 1.5);
    MX_CHECK(!json_object_get(j, "router_aux_loss_coef"), "what was not given stays as it was");
    json_decref(j);
    j = changed("deepseek-v3.2", (const char *[]){"indexer_loss_scaling_factor=0.1",
                                                  "indexer_sparse_training=true", NULL});
    MX_CHECK(json_real_value(json_object_get(j, "indexer_loss_scaling_factor")) == 0.1);
    MX_CHECK(json_is_true(json_object_get(j, "indexer_sparse_training")));
    json_decref(j);
    j = changed("llama4-vision", (const char *[]){"load_balance_loss_weight=0.25", NULL});
    const json_t *text = json_object_get(j, "text_config");
    MX_CHECK(json_real_value(json_object_get(text, "router_aux_loss_coef")) == 0.25);
    MX_CHECK(json_is_true(json_object_get(text, "output_router_logits")));
    json_decref(j);
}

/* Two steps from the fixture, saved: tensors of the encoder are as they were and the others are
 * trained, all under the names they came with, and the configuration is of both. */
static void keeps_encoder(const char *fixture, const char *encoder)
{
    char folder[256], saved[512], from[256], load[300];
    mx_hf_dir a = {0}, b = {0};
    snprintf(from, sizeof from, "tests/fixtures/models/%s", fixture);
    snprintf(load, sizeof load, "load_parameters_path=%s", from);
    tiny_folder(folder, sizeof folder);
    const char *args[] = {load, "dataset_type=synthetic", "steps=2", NULL};
    MX_CHECK_OK(tiny_train(folder, "kept", args));
    snprintf(saved, sizeof saved, "%s/kept/r/checkpoints/2", folder);
    MX_CHECK_OK(mx_hf_dir_open(&a, from, MX_HF_ALL));
    MX_CHECK_OK(mx_hf_dir_open(&b, saved, MX_HF_ALL));
    MX_CHECK(a.n_tensors == b.n_tensors, "%lld and %lld tensors", (long long)a.n_tensors,
             (long long)b.n_tensors);
    int same = 0, trained = 0;
    for (int64_t i = 0; i < a.n_tensors; i++) {
        const mx_st_tensor *x = a.tensors[i], *y = mx_hf_dir_find(&b, x->name);
        mx_arena scratch = {0};
        float *p = MX_NEW_N(&scratch, float, x->n), *q = MX_NEW_N(&scratch, float, x->n);
        MX_CHECK(y && y->n == x->n, "%s is missing", x->name);
        MX_CHECK_OK(mx_st_read(x, 0, x->n, MX_ST_F32, p, NULL));
        MX_CHECK_OK(mx_st_read(y, 0, x->n, MX_ST_F32, q, NULL));
        bool equal = memcmp(p, q, sizeof(float) * (size_t)x->n) == 0;
        *(equal ? &same : &trained) += 1;
        MX_CHECK(equal || !mx_glob_any(encoder, x->name), "%s has changed", x->name);
        mx_arena_fini(&scratch);
    }
    MX_CHECK(same >= 10 && trained >= 40, "%d tensors kept, %d trained", same, trained);
    MX_CHECK(json_object_get(b.config, "vision_config") != NULL);
    mx_hf_dir_close(&a);
    mx_hf_dir_close(&b);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(an_image_encoder_that_is_not_built_is_kept)
{
    keeps_encoder("qwen3.5-moe", "model.visual.*");
    keeps_encoder("kimi-k2.5", "vision_tower.*,mm_projector.*");
}

/* Released weights of Kimi K2.5 are packed, and its text_config says so; what is written is not. */
MX_TEST(a_quantised_language_part_is_written_plain)
{
    json_error_t e;
    mx_model_spec m = {0};
    static const char path[] = "tests/fixtures/models/kimi-k2.5/config.json";
    json_t *json = json_load_file(path, 0, &e);
    json_object_set_new(json_object_get(json, "text_config"), "quantization_config",
                        json_pack("{s:s}", "quant_method", "compressed-tensors"));
    MX_CHECK_OK(mx_model_from_json(&m, json, path));
    char *text = mx_weights_config(&m, MX_BF16);
    MX_CHECK(strstr(text, "text_config") && !strstr(text, "quantization_config"), "%s", text);
    mx_free(text);
    mx_model_spec_fini(&m);
    json_decref(json);
}

/* A router's bias is moved by steps and trained by none: metrics of a run that went on are those of
 * one that was never stopped. */
MX_TEST(run_with_a_bias_that_moves_resumes_with_the_same_metrics)
{
#define MOVING                                                                                     \
    "decoder_block=deepseek", "routed_score_func=sigmoid", "routed_bias=true",                     \
        "routed_bias_update_rate=0.01", "num_experts=4", "num_experts_per_tok=2",                  \
        "kv_lora_rank=16", "qk_nope_head_dim=8", "qk_rope_head_dim=4", "v_head_dim=8",             \
        "q_lora_rank=8", "dataset_type=corpus", "learning_rate_schedule_steps=8"
    static const struct {
        const char *name, *steps;
    } runs[] = {{"whole", "steps=4"}, {"parts", "steps=2"}, {"parts", "steps=4"}};
    char folder[256];
    tiny_folder(folder, sizeof folder);
    for (int i = 0; i < 3; i++)
        MX_CHECK_OK(tiny_train(folder, runs[i].name,
                               (const char *[]){MOVING, runs[i].steps, NULL}));
    char *a = tiny_metrics(folder, "whole"), *b = tiny_metrics(folder, "parts");
    MX_CHECK(strlen(a) > 100 && strcmp(a, b) == 0, "whole:\n%sin parts:\n%s", a, b);
    free(a), free(b);
    tiny_same(folder, "whole", "parts", 4);
    mx_status_free(mx_io_remove_tree(NULL, folder));
#undef MOVING
}

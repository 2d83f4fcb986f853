/* from_config_test.c - models described by YAML keys: every file whose family exists, and the
 * details that are not one to one. */
#include "models/decoder.h"
#include "models/from_config.h"

#include "../test.h"
#include "ops.h"
#include "keys/keys.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mx_config *try_load(const char *const *args, int n)
{
    static char home[4096];
    mx_config_request r = {.schema = &mx_keys,
                           .home = mx_config_home(home, sizeof home),
                           .args = args,
                           .n_args = n};
    mx_config *cfg = NULL;
    mx_status_free(mx_config_load(&cfg, &r));
    return cfg;
}

static mx_config *load(const char *const *args, int n)
{
    mx_config *cfg = try_load(args, n);
    MX_ASSERT(cfg, "%s", args[0]);
    return cfg;
}

static json_t *json_of(const char *const *args, int n)
{
    mx_config *cfg = load(args, n);
    json_t *json = NULL;
    MX_CHECK_OK(mx_model_config_json(cfg, &json));
    mx_config_free(cfg);
    return json;
}

/* The value at "a.b" as compact text. */
static void is(const json_t *json, const char *path, const char *expected)
{
    const json_t *v = json;
    char part[64];
    for (const char *p = path; v && p;) {
        const char *dot = strchr(p, '.');
        snprintf(part, sizeof part, "%.*s", dot ? (int)(dot - p) : (int)strlen(p), p);
        v = json_object_get(v, part);
        p = dot ? dot + 1 : NULL;
    }
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    MX_CHECK(strcmp(text ? text : "(absent)", expected) == 0, "%s is %s, expected %s", path,
             text ? text : "(absent)", expected);
    free(text);
}

MX_TEST(models_llama_scaling_of_rotary_frequencies)
{
    const char *new[] = {"model_name=llama3.2-1b"}, *old[] = {"model_name=llama2-7b"},
               *plain[] = {"rope_type=llama3.1"};
    json_t *json = json_of(new, 1);
    is(json, "model_type", "\"llama\"");
    is(json, "hidden_size", "2048");
    is(json, "num_hidden_layers", "16");
    is(json, "hidden_act", "\"silu\"");
    is(json, "tie_word_embeddings", "true");
    is(json, "max_position_embeddings", "131072");
    is(json, "rms_norm_eps", "1.0000000000000001e-5");
    is(json, "rope_parameters.rope_type", "\"llama3\"");
    is(json, "rope_parameters.rope_theta", "500000.0");
    is(json, "rope_parameters.factor", "32.0");
    is(json, "rope_parameters.original_max_position_embeddings", "8192");
    json_decref(json);
    json = json_of(old, 1);
    is(json, "rope_parameters.rope_type", "\"default\"");
    is(json, "rope_parameters.factor", "(absent)");
    is(json, "tie_word_embeddings", "false");
    json_decref(json);
    json = json_of(plain, 1);
    is(json, "rope_parameters.factor", "8.0");
    is(json, "max_position_embeddings", "2048");
    json_decref(json);
}

MX_TEST(models_gemma_pairs_scalars_and_bases)
{
    const char *two[] = {"model_name=gemma2-27b"}, *three[] = {"model_name=gemma3-4b"};
    json_t *json = json_of(two, 1);
    is(json, "num_hidden_layers", "46");
    is(json, "query_pre_attn_scalar", "144");
    is(json, "attn_logit_softcapping", "50.0");
    is(json, "hidden_activation", "\"gelu_pytorch_tanh\"");
    is(json, "sliding_window", "4096");
    json_decref(json);
    json = json_of(three, 1);
    is(json, "num_hidden_layers", "34");
    is(json, "query_pre_attn_scalar", "256");
    is(json, "rope_parameters.full_attention.rope_theta", "1000000.0");
    is(json, "rope_parameters.full_attention.rope_type", "\"linear\"");
    is(json, "rope_parameters.full_attention.factor", "8.0");
    is(json, "rope_parameters.sliding_attention.rope_theta", "10000.0");
    json_decref(json);
}

/* One decoder_block, three families: the router and the indexer tell them apart. */
MX_TEST(models_deepseek_by_router)
{
    const char *two[] = {"model_name=deepseek2-16b"}, *three[] = {"model_name=deepseek3-671b"},
               *grouped[] = {"model_name=deepseek3-671b-batchsplit"},
               *sparse[] = {"model_name=deepseek3.2-671b"},
               *next[] = {"model_name=qwen3-next-80b-a3b"};
    json_t *json = json_of(two, 1);
    is(json, "model_type", "\"deepseek_v2\"");
    is(json, "q_lora_rank", "0");
    is(json, "topk_method", "\"greedy\"");
    is(json, "rope_parameters.mscale_all_dim", "0.70699999999999996");
    json_decref(json);
    json = json_of(three, 1);
    is(json, "model_type", "\"deepseek_v3\"");
    is(json, "q_lora_rank", "1536");
    is(json, "first_k_dense_replace", "3");
    is(json, "n_group", "1");
    json_decref(json);
    json = json_of(grouped, 1);
    is(json, "n_group", "8");
    is(json, "topk_group", "4");
    json_decref(json);
    json = json_of(sparse, 1);
    is(json, "model_type", "\"deepseek_v32\"");
    is(json, "index_topk", "2048");
    json_decref(json);
    json = json_of(next, 1);
    is(json, "model_type", "\"qwen3_next\"");
    is(json, "shared_expert_intermediate_size", "512");
    is(json, "full_attention_interval", "4");
    json_decref(json);
}

/* The form in which it is released, which transformers completes. */
MX_TEST(models_deepseek_v4_is_written_as_released)
{
    const char *args[] = {"model_name=deepseek4-284b"};
    json_t *json = json_of(args, 1);
    is(json, "rope_theta", "10000.0");
    is(json, "compress_rope_theta", "160000.0");
    is(json, "rope_scaling.rope_type", "\"yarn\"");
    is(json, "rope_scaling.factor", "16.0");
    is(json, "rope_scaling.original_max_position_embeddings", "65536");
    is(json, "rope_parameters", "(absent)");
    is(json, "qk_rope_head_dim", "64");
    is(json, "num_hash_layers", "3");
    is(json, "scoring_func", "\"sqrtsoftplus\"");
    json_decref(json);
}

MX_TEST(models_global_parameter_scale)
{
    static const int expected[][5] = {{1, 0, 0, 0, 0}, {2, 0, 1, 1, 0},  {4, 1, 1, 1, 0},
                                      {8, 1, 1, 1, 1}, {16, 1, 2, 2, 1}, {64, 2, 2, 2, 2}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        mx_scale_shares s = mx_scale_split(expected[i][0]);
        MX_CHECK(s.width == expected[i][1] && s.heads == expected[i][2] &&
                     s.mlp == expected[i][3] && s.layers == expected[i][4],
                 "scale %d: %d %d %d %d", expected[i][0], s.width, s.heads, s.mlp, s.layers);
    }
    const char *args[] = {"global_parameter_scale=4"};
    json_t *json = json_of(args, 1);
    is(json, "hidden_size", "4096");
    is(json, "num_attention_heads", "32");
    is(json, "num_key_value_heads", "32");
    is(json, "intermediate_size", "14336");
    is(json, "num_hidden_layers", "16");
    is(json, "head_dim", "128");
    json_decref(json);
}

MX_TEST(models_unknown_block_names_those_there_are)
{
    const char *args[] = {"decoder_block=llama9"};
    mx_config *cfg = load(args, 1);
    mx_model_spec m;
    MX_CHECK_ERROR(
        mx_model_from_config(&m, cfg),
        "argument decoder_block=llama9: decoder_block `llama9` is not supported; supported: ");
    mx_config_free(cfg);
}

static const char *family_of(const char *const *args, int n)
{
    mx_config *cfg = load(args, n);
    mx_model_spec m;
    MX_CHECK_OK(mx_model_from_config(&m, cfg));
    const char *name = m.family->name;
    mx_model_spec_fini(&m);
    mx_config_free(cfg);
    return name;
}

MX_TEST(models_have_images_where_they_are_asked_for)
{
    static const struct {
        const char *args[2], *family;
    } cases[] = {
        {{"model_name=gemma3-4b"}, "gemma3"},
        {{"model_name=gemma4-26b"}, "gemma4"},
        {{"model_name=gemma4-26b", "use_multimodal=true"}, "gemma4_vision"},
        {{"model_name=qwen3-vl-2b"}, "qwen3_vl"}, /* its file says so */
        {{"model_name=qwen3-vl-2b", "use_multimodal=false"}, "qwen3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *family = family_of(cases[i].args, cases[i].args[1] ? 2 : 1);
        MX_CHECK(strcmp(family, cases[i].family) == 0, "%s %s: %s", cases[i].args[0],
                 cases[i].args[1] ? cases[i].args[1] : "", family);
    }
    const char *args[] = {"model_name=qwen3-vl-2b"};
    json_t *json = json_of(args, 1);
    is(json, "model_type", "\"qwen3_vl\"");
    is(json, "tie_word_embeddings", "true");
    is(json, "text_config.hidden_size", "2048");
    is(json, "text_config.rope_parameters.rope_theta", "5000000.0");
    is(json, "text_config.rope_parameters.mrope_section", "[24,20,20]");
    is(json, "vision_config.hidden_size", "1024");
    is(json, "vision_config.deepstack_visual_indexes", "[5,11,17]");
    is(json, "vision_config.hidden_act", "(absent)");
    json_decref(json);
}

/* OLMo 3's rope_theta: of the two kinds of layers, of both, or outside of rope_parameters. */
MX_TEST(olmo3_reads_every_spelling_of_rope_theta)
{
    static const struct {
        const char *json;
        double theta;
    } rows[] = {
        {"{\"rope_theta\": 20000}", 20000},
        {"{\"rope_parameters\": {\"rope_theta\": 10000, \"rope_type\": \"default\"}}", 10000},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 30000, \"rope_type\": "
         "\"default\"}, \"sliding_attention\": {\"rope_theta\": 40000, \"rope_type\": "
         "\"default\"}}}", 30000},
        {"{}", 500000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *json = json_loads(rows[i].json, 0, NULL);
        json_object_set_new(json, "model_type", json_string("olmo3"));
        mx_model_spec m = {0};
        MX_CHECK_OK(mx_model_from_json(&m, json, "config.json"));
        double theta = ((const mx_decoder *)m.config)->rope.theta;
        MX_CHECK(theta == rows[i].theta, "%s: theta is %g", rows[i].json, theta);
        mx_model_spec_fini(&m);
        json_decref(json);
    }
}

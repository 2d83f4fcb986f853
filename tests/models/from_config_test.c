/* from_config_test.c - models described by YAML keys: every file whose family exists, and the
 * details that are not one to one. */
#include "models/from_config.h"

#include "../test.h"
#include "ops.h"
#include "train/keys.h"
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

static bool has_family(const mx_config *cfg)
{
    const char *block = mx_config_text(cfg, "decoder_block");
    for (int i = 0; i < mx_model_count; i++) {
        const char *list = mx_model_table[i]->decoder_block;
        for (const char *p = list ? strstr(list, block) : NULL; p; p = strstr(p + 1, block)) {
            char after = p[strlen(block)];
            if ((p == list || p[-1] == ',') && (after == ',' || !after))
                return true;
        }
    }
    return false;
}

MX_TEST(models_every_file_with_a_family_makes_a_model)
{
    char home[4096], **names = NULL;
    mx_arena a = {0};
    int n = mx_config_models(&a, mx_config_home(home, sizeof home), &names), made = 0;
    for (int i = 0; i < n; i++) {
        const char *arg = mx_arena_printf(&a, "model_name=%s", names[i]);
        mx_config *cfg = try_load(&arg, 1);
        mx_model_spec m;
        if (!cfg)
            continue; /* asks for what is not built: tests/train/keys_test.c */
        if (has_family(cfg)) {
            mx_status st = mx_model_from_config(&m, cfg);
            MX_CHECK(!st, "%s: %s", names[i], mx_status_text(st));
            if (!st) {
                MX_CHECK(m.summary.vocab == mx_config_int(cfg, "vocab_size"), "%s", names[i]);
                MX_CHECK(m.summary.d_model == mx_config_int(cfg, "base_emb_dim"), "%s", names[i]);
                mx_model_spec_fini(&m);
                made++;
            }
            mx_status_free(st);
        } else {
            MX_CHECK_ERROR(mx_model_from_config(&m, cfg), "is not supported; supported: ");
        }
        mx_config_free(cfg);
    }
    MX_CHECK(made >= 40, "%d models of %d files", made, n);
    mx_arena_fini(&a);
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

static double count_weights(const mx_model_spec *m, bool images)
{
    mx_graph g;
    mx_build b;
    mx_graph_init(&g);
    mx_model_build(&g, m, (mx_model_shape){.batch = 1, .seq = 16, .images = images}, &b);
    MX_CHECK_OK(mx_graph_check(&g));
    double n = 0;
    bool head = false;
    for (int i = 0; i < g.n_nodes; i++)
        if (g.node[i]->op == &mx_op_variable) {
            n += (double)mx_type_bytes(&g.node[i]->type) /
                 (double)mx_dtype_bytes(g.node[i]->type.dtype);
            head |= mx_ends_with(g.node[i]->name, "lm_head.weight");
        }
    if (!m->summary.tied && !head)
        n += (double)m->summary.vocab * (double)m->summary.d_model;
    mx_graph_fini(&g);
    return n;
}

/* The number of weights each release has. Gemma's vocabulary is padded by 128 rows, as in MaxText.
 */
MX_TEST(models_have_as_many_weights_as_released)
{
    static const struct {
        const char *arg;
        double n;
    } known[] = {
        {"model_name=llama2-7b", 6738415616},
        {"model_name=llama2-70b", 68976648192},
        {"model_name=llama3.1-8b", 8030261248},
        {"model_name=llama3.1-405b", 405853388800},
        {"model_name=llama3.2-1b", 1235814400},
        {"model_name=llama3.2-3b", 3212749824},
        {"model_name=smollm2-135m", 134515008},
        {"model_name=smollm2-360m", 361821120},
        {"model_name=smollm2-1.7b", 1711376384},
        {"model_name=mistral-7b", 7241732096},
        {"model_name=gpt2-124m", 124439808},
        {"model_name=gpt2-355m", 354823168},
        {"model_name=gpt2-774m", 774030080},
        {"model_name=gpt2-1.5b", 1557611200},
        {"model_name=qwen2.5-7b", 7615616512},
        {"model_name=qwen3-0.6b", 596049920},
        {"model_name=qwen3-8b", 8190735360},
        {"model_name=mixtral-8x7b", 46702792704},
        {"model_name=mixtral-8x22b", 140630071296},
        {"model_name=qwen3-30b-a3b", 30532122624},
        {"model_name=qwen3-235b-a22b", 235093634560},
        {"model_name=gpt-oss-20b", 20914757184},
        {"model_name=gpt-oss-120b", 116829156672},
        {"model_name=llama4-17b-16e", 107769861120}, /* without vision, as the next */
        {"model_name=llama4-17b-128e", 400711848960},
        {"model_name=gemma4-26b", 25233141790},
        {"model_name=gemma4-31b", 30697345340},
        {"model_name=gemma4-e2b", 4628569379},
        {"model_name=gemma4-e4b", 7463013418},
        {"model_name=llama2-13b", 13015864320},
        {"model_name=llama3-8b", 8030261248},
        {"model_name=llama3-70b", 70553706496},
        {"model_name=llama3-405b", 405853388800},
        {"model_name=llama3.1-70b", 70553706496},
        {"model_name=llama3.3-70b", 70553706496},
        {"model_name=qwen2.5-1.5b", 1543714304},
        {"model_name=qwen2.5-14b", 14770033664},
        {"model_name=qwen3-1.7b", 1720574976},
        {"model_name=qwen3-1.7b-base", 1720574976},
        {"model_name=qwen3-4b", 4022468096},
        {"model_name=qwen3-4b-base", 4022468096},
        {"model_name=qwen3-4b-thinking-2507", 4022468096},
        {"model_name=qwen3-8b-base", 8190735360},
        {"model_name=qwen3-14b", 14768307200},
        {"model_name=qwen3-14b-base", 14768307200},
        {"model_name=qwen3-32b", 32762123264},
        {"model_name=qwen3-30b-a3b-base", 30532122624},
        {"model_name=qwen3-480b-a35b", 480154875392},
        {"model_name=qwen3-next-80b-a3b", 79674391296},
        {"model_name=qwen3.5-35b-a3b", 34660610688}, /* without vision, as the next */
        {"model_name=qwen3.5-397b-a17b", 396346350336},
        {"model_name=olmo3-7b", 7298011136},
        {"model_name=olmo3-7b-pt", 7298011136},
        {"model_name=olmo3-32b", 32233522176},
        {"model_name=smollm3-3b", 3075098624},
        /* with the biases of the routers, without the layers that predict further tokens */
        {"model_name=deepseek2-16b", 15706484224},
        {"model_name=deepseek2-236b", 235741434880},
        {"model_name=deepseek3-671b", 671026419200},
        {"model_name=kimi-k2-1t", 1026408232448},
        {"model_name=glm-4.5-air", 106852245504 + 45.0 * 128},
        {"model_name=glm-4.5", 352797814784 + 89.0 * 160},
        {"model_name=gemma-7b", 8537680896 + 128.0 * 3072},
        {"model_name=gemma2-9b", 9241705984 + 128.0 * 3584},
        /* text; MaxText has 64 rows fewer */
        {"model_name=gemma3-4b", 3880263168 - 64.0 * 2560},
        {"model_name=gemma3-12b", 11766034176 - 64.0 * 3840},
        {"model_name=gemma3-27b", 27009346304 - 64.0 * 5376},
        {"model_name=gemma-2b", 2506172416 + 128.0 * 2048},
        {"model_name=gemma2-2b", 2614341888 + 128.0 * 2304},
        {"model_name=gemma2-27b", 27227128320 + 128.0 * 4608},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        mx_config *cfg = load(&known[i].arg, 1);
        mx_model_spec m;
        mx_status st = mx_model_from_config(&m, cfg);
        MX_CHECK(!st, "%s: %s", known[i].arg, mx_status_text(st));
        if (!st) {
            double n = count_weights(&m, false);
            MX_CHECK(n == known[i].n, "%s: %.0f weights, released with %.0f", known[i].arg, n,
                     known[i].n);
            mx_model_spec_fini(&m);
        }
        mx_status_free(st);
        mx_config_free(cfg);
    }
}

/* With images where use_multimodal asks for them, here or in the model's file; and the encoder of
 * the right one is built. */
MX_TEST(models_with_images_have_as_many_weights_as_released)
{
    static const struct {
        const char *name, *family;
        double n;
    } known[] = {
        {"model_name=gemma3-4b", "gemma3_vision", 4300079472 - 64.0 * 2560},
        {"model_name=gemma4-e2b", "gemma4_vision", 4797113635}, /* without its audio part */
        {"model_name=llama4-17b-16e", "llama4_vision", 108641793536},
        {"model_name=qwen3-vl-2b", "qwen3_vl", 2127532032},
        {"model_name=qwen3-vl-4b", "qwen3_vl", 4437815808},
        {"model_name=qwen3-vl-30b-a3b", "qwen3_vl_moe", 31070754032},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *args[] = {known[i].name, "use_multimodal=true"};
        mx_config *cfg = load(args, 2);
        mx_model_spec m;
        mx_status st = mx_model_from_config(&m, cfg);
        MX_CHECK(!st, "%s: %s", known[i].name, mx_status_text(st));
        if (!st) {
            double n = count_weights(&m, true);
            MX_CHECK(strcmp(m.family->name, known[i].family) == 0, "%s: %s", known[i].name,
                     m.family->name);
            MX_CHECK(n == known[i].n, "%s: %.0f weights, released with %.0f", known[i].name, n,
                     known[i].n);
            mx_model_spec_fini(&m);
        }
        mx_status_free(st);
        mx_config_free(cfg);
    }
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
        {{"model_name=qwen3-0.6b", "use_multimodal=true"}, "qwen3"}, /* has no encoder */
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

/* model_files_test.c - every file of configs/models makes the model it is named after: its graph is
 * built and its weights are counted, or it is refused with the reason. */
#include "../test.h"

#include "base/config.h"
#include "models/from_config.h"
#include "keys/keys.h"
#include <string.h>

typedef struct {
    const char *name;
    int64_t weights;
} size;

/* As transformers counts the published configurations: parameters, and buffers that checkpoints
 * hold. Without the image encoder where the file does not ask for it. */
static const size published[] = {
    {"deepseek2-16b", 15706484224},
    {"deepseek2-236b", 235741434880},
    {"deepseek3-671b", 671026419200},
    {"deepseek3-671b-2dfsdp", 671026419200},
    {"deepseek3-671b-batchsplit", 671026419200},
    {"deepseek3.2-671b", 671877944064},
    {"deepseek4-284b", 284334567511},
    {"gemma-2b", 2506172416},
    {"gemma-7b", 8537680896},
    {"gemma2-27b", 27227128320},
    {"gemma2-2b", 2614341888},
    {"gemma2-9b", 9241705984},
    {"gemma3-12b", 11766034176},
    {"gemma3-27b", 27009346304},
    {"gemma3-4b", 3880263168},
    {"gemma4-26b", 25233141790},
    {"gemma4-31b", 30697345340},
    {"gemma4-e2b", 4628569379},
    {"gemma4-e4b", 7463013418},
    {"glm-4.5", 352797829024},
    {"glm-4.5-air", 106852251264},
    {"gpt-oss-120b", 116829156672},
    {"gpt-oss-20b", 20914757184},
    {"gpt2-1.5b", 1557611200},
    {"gpt2-124m", 124439808},
    {"gpt2-355m", 354823168},
    {"gpt2-774m", 774030080},
    {"kimi-k2-1t", 1026408232448},
    {"llama2-13b", 13015864320},
    {"llama2-70b", 68976648192},
    {"llama2-7b", 6738415616},
    {"llama3-405b", 405853388800},
    {"llama3-70b", 70553706496},
    {"llama3-8b", 8030261248},
    {"llama3.1-405b", 405853388800},
    {"llama3.1-70b", 70553706496},
    {"llama3.1-8b", 8030261248},
    {"llama3.2-1b", 1235814400},
    {"llama3.2-3b", 3212749824},
    {"llama3.3-70b", 70553706496},
    {"llama4-17b-128e", 400711848960},
    {"llama4-17b-16e", 107769861120},
    {"mistral-7b", 7241732096},
    {"mixtral-8x22b", 140630071296},
    {"mixtral-8x7b", 46702792704},
    {"olmo3-32b", 32233522176},
    {"olmo3-7b", 7298011136},
    {"olmo3-7b-pt", 7298011136},
    {"qwen2.5-1.5b", 1543714304},
    {"qwen2.5-14b", 14770033664},
    {"qwen2.5-7b", 7615616512},
    {"qwen3-0.6b", 596049920},
    {"qwen3-1.7b", 1720574976},
    {"qwen3-1.7b-base", 1720574976},
    {"qwen3-14b", 14768307200},
    {"qwen3-14b-base", 14768307200},
    {"qwen3-235b-a22b", 235093634560},
    {"qwen3-30b-a3b", 30532122624},
    {"qwen3-30b-a3b-base", 30532122624},
    {"qwen3-32b", 32762123264},
    {"qwen3-480b-a35b", 480154875392},
    {"qwen3-4b", 4022468096},
    {"qwen3-4b-base", 4022468096},
    {"qwen3-4b-thinking-2507", 4022468096},
    {"qwen3-8b", 8190735360},
    {"qwen3-8b-base", 8190735360},
    {"qwen3-next-80b-a3b", 79674391296},
    {"qwen3-vl-2b", 2127532032},
    {"qwen3-vl-30b-a3b", 31070754032},
    {"qwen3-vl-4b", 4437815808},
    {"qwen3.5-35b-a3b", 34660610688},
    {"qwen3.5-397b-a17b", 396346350336},
    {"smollm2-1.7b", 1711376384},
    {"smollm2-135m", 134515008},
    {"smollm2-360m", 361821120},
    {"smollm3-3b", 3075098624},
    {0},
};

/* MaxText's and maxc's own, which nobody has published weights of. */
static const size unpublished[] = {
    {"deepseek3-test", 15851427840},
    {"deepseek3-tiny", 33706448},
    {"deepseek4-tiny", 28719315},
    {"delta-40m", 226343264},
    {"gpt3-175b", 174780997632},
    {"gpt3-22b", 22049107968},
    {"gpt3-52k", 52464},
    {"gpt3-6b", 5588736000},
    {"llama-110m", 109529856},
    {"llama-15m", 15191712},
    {"moe-100m", 516853760},
    {0},
};

static const struct {
    const char *name, *why;
} refused[] = {
    {"deepseek-custom", "`engram_layers` (layers with n-gram memory) cannot be [1, 4] yet"},
    {"envy-switch-base", "decoder_block `envy` is not supported"},
    {"envy-switch-large", "decoder_block `envy` is not supported"},
    {"envy-switch-xxl", "decoder_block `envy` is not supported"},
    {"envy-test", "decoder_block `envy` is not supported"},
    {"qwen3-custom-30b-a3b", "`moe_expert_input_dim` (width of what enters experts"},
    {"qwen3-omni-30b-a3b", "`use_audio` (sound as input) cannot be true yet"},
};

static mx_status try_load(mx_config **cfg, const char *const *args, int n)
{
    static char home[4096];
    mx_config_request r = {.schema = &mx_keys, .home = mx_config_home(home, sizeof home),
                           .args = args, .n_args = n};
    return mx_config_load(cfg, &r);
}

static mx_config *load(const char *const *args, int n)
{
    mx_config *cfg = NULL;
    MX_CHECK_OK(try_load(&cfg, args, n));
    MX_ASSERT(cfg);
    return cfg;
}

static int64_t listed(const size *list, const char *name)
{
    for (; list->name; list++)
        if (strcmp(list->name, name) == 0)
            return list->weights;
    return 0;
}

static void check_refusal(const char *name, mx_status st)
{
    int n = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (strcmp(refused[i].name, name) == 0) {
            MX_CHECK(strstr(mx_status_text(st), refused[i].why), "%s: %s", name,
                     mx_status_text(st));
            n++;
        }
    MX_CHECK(n, "%s is refused: %s", name, mx_status_text(st));
}

MX_TEST(model_files_have_the_published_numbers_of_weights)
{
    char home[4096], **names = NULL;
    mx_arena a = {0};
    int n = mx_config_models(&a, mx_config_home(home, sizeof home), &names), built = 0;
    for (int i = 0; i < n; i++) {
        const char *arg = mx_arena_printf(&a, "model_name=%s", names[i]);
        mx_config *cfg = NULL;
        mx_model_spec m = {0};
        int64_t have = 0, want = listed(published, names[i]) + listed(unpublished, names[i]);
        mx_status st = try_load(&cfg, &arg, 1);
        if (!st)
            st = mx_model_from_config(&m, cfg);
        if (st) {
            check_refusal(names[i], st);
            MX_CHECK(!want, "%s is refused and has a size", names[i]);
        } else {
            MX_CHECK_OK(mx_model_weights(&m, &have));
            MX_CHECK(have == want, "%s has %lld weights, published are %lld", names[i],
                     (long long)have, (long long)want);
            built++;
        }
        mx_status_free(st);
        mx_model_spec_fini(&m);
        mx_config_free(cfg);
    }
    MX_CHECK(built >= 80, "%d models of %d files", built, n);
    mx_arena_fini(&a);
}

/* With images where use_multimodal asks for them; and the encoder of the right family is built. */
MX_TEST(model_files_with_images_have_the_published_numbers_of_weights)
{
    static const struct {
        const char *name, *family;
        int64_t weights;
    } known[] = {
        {"model_name=gemma3-4b", "gemma3_vision", 4300079472},
        {"model_name=gemma4-e2b", "gemma4_vision", 4797113635}, /* without its audio part */
        {"model_name=llama4-17b-16e", "llama4_vision", 108641793536},
        {"model_name=qwen3-vl-2b", "qwen3_vl", 2127532032},
        {"model_name=qwen3-vl-4b", "qwen3_vl", 4437815808},
        {"model_name=qwen3-vl-30b-a3b", "qwen3_vl_moe", 31070754032},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *args[] = {known[i].name, "use_multimodal=true"};
        mx_config *cfg = load(args, 2);
        mx_model_spec m = {0};
        int64_t n = 0;
        MX_CHECK_OK(mx_model_from_config(&m, cfg));
        MX_CHECK_OK(mx_model_weights(&m, &n));
        MX_CHECK(strcmp(m.family->name, known[i].family) == 0, "%s: %s", known[i].name,
                 m.family->name);
        MX_CHECK(n == known[i].weights, "%s has %lld weights, published are %lld", known[i].name,
                 (long long)n, (long long)known[i].weights);
        mx_model_spec_fini(&m);
        mx_config_free(cfg);
    }
}

/* Keys that would describe another model than the one that is built. */
MX_TEST(model_files_and_arguments_are_the_model_or_refused)
{
    static const struct {
        const char *args[3], *why; /* NULL: fine */
    } row[] = {
        {{"model_name=qwen3-0.6b", "use_qk_norm=false"},
         "`use_qk_norm` is always true in the family qwen3"},
        {{"model_name=qwen3-0.6b", "use_qk_norm=true"}, NULL},
        {{"model_name=llama3.1-8b", "attention_type=local_sliding"},
         "`attention_type` is \"local_sliding\", but nothing of this model (family llama)"},
        {{"model_name=llama3.1-8b", "mhc_expansion_rate=4"}, "it is part of deepseek_v4"},
        {{"model_name=gpt2-124m", "head_dim=32"}, "`head_dim` is always 64 in the family gpt2"},
        {{"model_name=gpt2-124m", "base_num_query_heads=24"},
         "`base_num_kv_heads` is always 24 in the family gpt2"},
        {{"model_name=gpt2-124m", "base_num_query_heads=24", "base_num_kv_heads=24"},
         "`head_dim` is always 32 in the family gpt2"},
        {{"model_name=mixtral-8x7b", "base_moe_mlp_dim=512"}, NULL},
        {{"model_name=mixtral-8x7b", "base_mlp_dim=512"}, "depends on it"},
        {{"model_name=mixtral-8x7b", "base_mlp_dim=512", "base_moe_mlp_dim=-1"}, NULL},
        {{"model_name=qwen3-omni-30b-a3b", "use_multimodal=false", "use_audio=false"}, NULL},
        {{"model_name=qwen3-omni-30b-a3b", "use_audio=false"}, "without images"},
        {{"model_name=gemma3-4b", "use_multimodal=true"}, NULL},
        {{"model_name=gemma4-26b", "use_multimodal=true"}, NULL},
        {{"model_name=gemma4-26b", "use_multimodal=true", "conv_stride_for_vit=8"},
         "the stride is patch_size_for_vit"},
        {{"model_name=llama4-17b-16e", "use_multimodal=true"}, NULL},
        {{"model_name=gemma-2b", "use_multimodal=true"}, "gemma is a family without images"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        int n = 0;
        while (n < 3 && row[i].args[n])
            n++;
        mx_config *cfg = NULL;
        mx_model_spec m = {0};
        mx_status st = try_load(&cfg, row[i].args, n);
        if (!st)
            st = mx_model_from_config(&m, cfg);
        if (row[i].why)
            MX_CHECK(st && strstr(mx_status_text(st), row[i].why), "%s %s: %s", row[i].args[0],
                     row[i].args[1], mx_status_text(st));
        else
            MX_CHECK(!st, "%s %s: %s", row[i].args[0], row[i].args[1], mx_status_text(st));
        mx_status_free(st);
        mx_model_spec_fini(&m);
        mx_config_free(cfg);
    }
}

/* The size of an expert is the experts' key, where every layer has them. */
MX_TEST(model_files_of_mixtures_read_the_size_of_an_expert)
{
    const char *args[] = {"model_name=mixtral-8x7b", "base_moe_mlp_dim=512"};
    mx_config *cfg = load(args, 2);
    json_t *json = NULL;
    MX_CHECK_OK(mx_model_config_json(cfg, &json));
    MX_CHECK(json_integer_value(json_object_get(json, "intermediate_size")) == 512);
    json_decref(json);
    mx_config_free(cfg);
}

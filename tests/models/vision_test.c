/* vision_test.c - families with images: configurations as the hub has them, models with and without
 * images. Their numbers are in goldens_test.c. */
#include "../test.h"

#include "models/model.h"
#include "train/check/verify.h"
#include <string.h>

static mx_status from_text(mx_model_spec *m, const char *text)
{
    json_t *json = json_loads(text, 0, NULL);
    MX_CHECK(json != NULL, "the test's own JSON is wrong");
    mx_status st = mx_model_from_json(m, json, "config.json");
    json_decref(json);
    return st;
}

static bool has_weight(const mx_graph *g, const char *pattern)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (g->node[i]->name && mx_glob_match(pattern, g->node[i]->name))
            return true;
    return false;
}

/* The released 4B checkpoint says no more than this about its language part. */
static const char gemma[] =
    "{\"model_type\": \"gemma3\", \"mm_tokens_per_image\": 256, \"image_token_index\": 262144,"
    "\"text_config\": {\"hidden_size\": 2560, \"intermediate_size\": 10240,"
    "\"num_hidden_layers\": 34, \"sliding_window\": 1024, \"model_type\": \"gemma3_text\","
    "\"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}},"
    "\"vision_config\": {\"hidden_size\": 1152, \"image_size\": 896, \"intermediate_size\": 4304,"
    "\"num_attention_heads\": 16, \"num_hidden_layers\": 27, \"patch_size\": 14}}";

MX_TEST(vision_config_of_the_hub_reads_its_language_part)
{
    mx_model_spec m;
    mx_image_spec s;
    MX_CHECK_OK(from_text(&m, gemma));
    MX_CHECK(m.summary.vocab == 262208 && m.summary.d_model == 2560 && m.summary.n_layers == 34,
             "vocabulary %lld, width %lld, %lld layers", (long long)m.summary.vocab,
             (long long)m.summary.d_model, (long long)m.summary.n_layers);
    m.family->images(m.config, &s);
    MX_CHECK(s.channels == 3 && s.size == 896 && s.tokens == 256 && s.token == 262144,
             "%lld tokens of id %lld", (long long)s.tokens, (long long)s.token);
    mx_model_spec_fini(&m);
}

static void build_both(const mx_model_spec *m)
{
    mx_build b;
    mx_graph g;
    mx_graph_init(&g);
    mx_model_build(&g, m, (mx_model_shape){.batch = 1, .seq = 300, .images = 1}, &b);
    MX_CHECK_OK(mx_graph_check(&g));
    MX_CHECK(b.pixels && b.spans && has_weight(&g, "vision_tower.*"), "images are not read");
    mx_graph_fini(&g);
    mx_graph_init(&g);
    mx_model_build(&g, m, (mx_model_shape){.batch = 2, .seq = 1, .cache_len = 64}, &b);
    MX_CHECK_OK(mx_graph_check(&g));
    MX_CHECK(!b.pixels && !b.spans && !has_weight(&g, "vision_tower.*"), "text needs no tower");
    MX_CHECK(has_weight(&g, "language_model.model.layers.33.mlp.up_proj.weight"), "names");
    mx_graph_fini(&g);
}

MX_TEST(vision_model_builds_with_and_without_images)
{
    mx_model_spec m;
    MX_CHECK_OK(from_text(&m, gemma));
    build_both(&m);
    mx_model_spec_fini(&m);
}

/* As the released E2B and 2B say it. */
#define GEMMA4                                                                                     \
    "{\"model_type\": \"gemma4\", \"image_token_id\": 258880, \"text_config\": {"                  \
    "\"model_type\": \"gemma4_text\", \"vocab_size\": 262144, \"hidden_size\": 1536,"              \
    "\"intermediate_size\": 6144, \"num_hidden_layers\": 35, \"num_attention_heads\": 8,"          \
    "\"num_key_value_heads\": 1, \"num_kv_shared_layers\": 20, \"use_double_wide_mlp\": true},"
#define QWEN                                                                                       \
    "{\"model_type\": \"qwen3_vl\", \"tie_word_embeddings\": true, \"text_config\": {"             \
    "\"hidden_size\": 2048, \"intermediate_size\": 6144, \"num_hidden_layers\": 28,"               \
    "\"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"rope_theta\": 5000000,"            \
    "\"rope_scaling\": {\"rope_type\": \"default\", \"mrope_interleaved\": true,"                  \
    "\"mrope_section\": [24, 20, 20]}},"

static void check_pieces(const char *json, int64_t token, int64_t pixels, const char *tower,
                         const char *text)
{
    mx_model_spec m;
    mx_image_spec s;
    mx_build b;
    mx_graph g;
    MX_CHECK_OK(from_text(&m, json));
    m.family->images(m.config, &s);
    MX_CHECK(s.size == 0 && s.token == token && s.max_pixels == pixels, "%lld pixels of token %lld",
             (long long)s.max_pixels, (long long)s.token);
    mx_graph_init(&g);
    mx_model_build(&g, &m, (mx_model_shape){.batch = 2, .seq = 300, .images_per_row = 300,
                                            .places = s.places}, &b);
    MX_CHECK_OK(mx_graph_check(&g));
    MX_CHECK(has_weight(&g, tower) && has_weight(&g, text), "%s, %s", tower, text);
    mx_graph_fini(&g);
    mx_graph_init(&g);
    mx_model_build(&g, &m, (mx_model_shape){.batch = 2, .seq = 1, .cache_len = 64}, &b);
    MX_CHECK_OK(mx_graph_check(&g));
    MX_CHECK(!has_weight(&g, tower) && has_weight(&g, text), "text needs no tower");
    mx_graph_fini(&g);
    mx_model_spec_fini(&m);
}

MX_TEST(vision_of_pieces_builds_as_the_hub_has_it)
{
    check_pieces(GEMMA4 "\"vision_config\": {}}", 258880, 280 * 48 * 48,
                 "model.vision_tower.encoder.layers.15.mlp.up_proj.linear.weight",
                 "model.language_model.layers.34.mlp.up_proj.weight");
    check_pieces(QWEN "\"vision_config\": {\"depth\": 24, \"hidden_size\": 1024,"
                      "\"intermediate_size\": 4096, \"out_hidden_size\": 2048,"
                      "\"deepstack_visual_indexes\": [5, 11, 17]}}",
                 151655, 16777216, "model.visual.deepstack_merger_list.2.linear_fc2.weight",
                 "model.language_model.layers.27.mlp.up_proj.weight");
}

MX_TEST(vision_config_refuses_towers_that_cannot_be)
{
    static const char *const bad[] = {
        "{\"model_type\": \"gemma3\", \"mm_tokens_per_image\": 250}",
        "{\"model_type\": \"gemma3\", \"vision_config\": {\"patch_size\": 15}}",
        "{\"model_type\": \"gemma3\", \"vision_config\": {\"num_attention_heads\": 7}}",
        "{\"model_type\": \"gemma3\", \"vision_config\": {\"num_hidden_layers\": 0}}",
        "{\"model_type\": \"gemma3\", \"text_config\": {\"num_attention_heads\": 0}}",
        GEMMA4 "\"vision_config\": {\"head_dim\": 62}}",
        GEMMA4 "\"vision_config\": {\"num_key_value_heads\": 5}}",
        GEMMA4 "\"vision_config\": {\"pooling_kernel_size\": 0}}",
        GEMMA4 "\"vision_config\": {\"position_embedding_size\": 2}}",
        GEMMA4 "\"vision_soft_tokens_per_image\": 0}",
        QWEN "\"vision_config\": {\"out_hidden_size\": 2000}}",
        QWEN "\"vision_config\": {\"out_hidden_size\": 2048, \"num_position_embeddings\": 2305}}",
        QWEN "\"vision_config\": {\"out_hidden_size\": 2048, \"deepstack_visual_indexes\": [27]}}",
        QWEN "\"vision_config\": {\"out_hidden_size\": 2048,"
             "\"deepstack_visual_indexes\": [2, 1]}}",
        QWEN "\"vision_config\": {\"out_hidden_size\": 2048, \"spatial_merge_size\": 0}}",
        QWEN "\"vision_config\": {\"out_hidden_size\": 2048, \"num_heads\": 7}}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mx_model_spec m;
        mx_status st = from_text(&m, bad[i]);
        MX_CHECK(st != NULL, "accepted: %s", bad[i]);
        if (!st)
            mx_model_spec_fini(&m);
        mx_status_free(st);
    }
}

MX_TEST(vision_images_for_a_text_family_are_refused)
{
    mx_verify_report r;
    mx_verify_options o = {.tolerance = 2e-4, .device = "cpu", .n_threads = 1,
                           .golden = "tests/fixtures/models/gemma3-vision/golden.safetensors"};
    mx_status st = mx_verify("tests/fixtures/models/gemma3", &o, &r);
    MX_CHECK(st && strstr(mx_status_text(st), "without images"), "%s", mx_status_text(st));
    mx_status_free(st);
}

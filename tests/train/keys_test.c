/* keys_test.c - the schema against itself, configs/base.yml and the models' files. */
#include "keys/keys.h"

#include "../test.h"
#include "cmd/verb.h"
#include "models/from_config.h"
#include <stdio.h>
#include <string.h>

static const mx_key *find(const char *name)
{
    const mx_key *k = NULL;
    for (const mx_key *const *t = mx_keys.tables; !k && *t; t++)
        k = mx_key_find(*t, name);
    return k;
}

static mx_status load(mx_config **cfg, const char *const *args, int n)
{
    static char home[4096];
    mx_config_request r = {.schema = &mx_keys,
                           .home = mx_config_home(home, sizeof home),
                           .args = args,
                           .n_args = n};
    return mx_config_load(cfg, &r);
}

MX_TEST(keys_have_help_sections_and_readable_defaults)
{
    mx_arena a = {0};
    for (const mx_key *const *t = mx_keys.tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++) {
            mx_str why = {0};
            mx_value v;
            MX_CHECK(k->help && *k->help, "%s", k->name);
            MX_CHECK(k->section >= 0 && k->section < MX_SECTION_COUNT, "%s", k->name);
            MX_CHECK(find(k->name) == k, "%s is in the tables twice", k->name);
            if (k->type != MX_KEY_FOREIGN)
                MX_CHECK(mx_value_read_text(&a, k, k->fallback, &v, &why) &&
                             mx_value_is_built(k, &v, &why),
                         "%s: %s", k->name, mx_str_text(&why));
            mx_str_fini(&why);
        }
    mx_arena_fini(&a);
}

static void check_path(const mx_key *k)
{
    static const char *const ends[] = {"_path", "_file", "_files", "_dir", "_directory"};
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    const char *value = k->example ? strchr(k->example, '=') + 1 : "";
    size_t stem = strcspn(value, " .");
    bool named = value[stem] == '.' && strcspn(value, "*{") > stem; /* no pattern */
    size_t n = named ? strspn(value + stem + 1, letters) : 0;
    bool file = n > 1 && strchr(" ,", value[stem + 1 + n]); /* mine.yml; also the end of the text */
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        file = file || mx_ends_with(k->name, ends[i]);
    bool text = k->type == MX_KEY_STRING || k->type == MX_KEY_LIST;
    bool modules = strcmp(k->name, "lora.lora_module_path") == 0;
    MX_CHECK(!text || !file || modules || k->flags & MX_KEY_PATH,
             "%s (%s) takes files, and is no MX_KEY_PATH", k->name, value);
}

/* What takes files refuses those of another machine, gs://bucket/x: those keys are told apart by
 * their flag. */
MX_TEST(keys_that_take_files_are_paths)
{
    for (const mx_key *const *t = mx_keys.tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++)
            check_path(k);
    for (int i = 0; i < mx_verb_count; i++)
        for (const mx_key *k = mx_verb_table[i]->keys; k && k->name; k++)
            check_path(k);
}

/* Every alias that is accepted as it is belongs to one key, and is no key itself. */
MX_TEST(keys_accepted_aliases_are_unique)
{
    for (const mx_key *const *t = mx_keys.tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++)
            for (const char *s = k->aliases ? strchr(k->aliases, '=') : NULL; s;
                 s = strchr(s + 1, '=')) {
                char name[64];
                snprintf(name, sizeof name, "%.*s", (int)strcspn(s + 1, " "), s + 1);
                MX_CHECK(find(name) == k, "`%s` is an alias of %s, but finds %s", name, k->name,
                         find(name) ? find(name)->name : "nothing");
            }
}

/* A model's file gives the model that it names, or is refused because something of it is not built;
 * it never gives another one. */
MX_TEST(keys_every_model_file_builds_or_is_refused)
{
    char home[4096], **names = NULL;
    mx_arena a = {0};
    int n = mx_config_models(&a, mx_config_home(home, sizeof home), &names), built = 0;
    MX_CHECK(n >= 78, "%d files", n);
    for (int i = 0; i < n; i++) {
        const char *arg = mx_arena_printf(&a, "model_name=%s", names[i]);
        mx_config *cfg = NULL;
        mx_model_spec m = {0};
        mx_status st = load(&cfg, &arg, 1);
        if (!st)
            st = mx_model_from_config(&m, cfg);
        const char *text = mx_status_text(st);
        bool refused = strstr(text, " yet; ") || strstr(text, "is not supported");
        MX_CHECK(!st || refused, "%s: %s", names[i], text);
        built += !st;
        mx_status_free(st);
        mx_model_spec_fini(&m);
        mx_config_free(cfg);
    }
    MX_CHECK(built >= 80, "%d of %d models are built", built, n);
    mx_arena_fini(&a);
}

/* A key of the model's shape is read by its family, agrees with it, or is refused. */
MX_TEST(keys_of_the_shape_fit_the_family)
{
    static const struct {
        const char *args[2], *part;
    } bad[] = {
        {{"decoder_block=llama2", "use_qk_norm=true"}, "nothing of this model (family llama) dep"},
        {{"decoder_block=qwen3", "use_qk_norm=false"}, "is always true in the family qwen3"},
        {{"decoder_block=llama2", "rope_factor=4"}, "depends on it"},
        {{"decoder_block=deepseek", "vocab_size=300"}, "not supported without routed_score_func"},
        {{"decoder_block=gpt2", "head_dim=32"}, "`head_dim` is always 128 in the family gpt2"},
        {{"model_name=qwen3-0.6b", "attention_sink=true"}, "it is part of gpt_oss"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mx_config *cfg = NULL;
        mx_model_spec m = {0};
        MX_CHECK_OK(load(&cfg, bad[i].args, 2));
        MX_CHECK_ERROR(cfg ? mx_model_from_config(&m, cfg) : MX_OK, bad[i].part);
        mx_config_free(cfg);
    }
}

MX_TEST(keys_model_sizes_are_those_released)
{
    static const struct {
        const char *arg;
        int64_t width, heads, kv, mlp, layers, vocab;
    } known[] = {
        {"model_name=llama3.1-8b", 4096, 32, 8, 14336, 32, 128256},
        {"model_name=llama3.2-1b", 2048, 32, 8, 8192, 16, 128256},
        {"model_name=smollm2-135m", 576, 9, 3, 1536, 30, 49152},
        {"model_name=gpt2-124m", 768, 12, 12, 3072, 12, 50257},
        {"model_name=qwen3-0.6b", 1024, 16, 8, 3072, 28, 151936},
        {"model_name=deepseek3-671b", 7168, 128, 128, 18432, 61, 129280},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        mx_config *c = NULL;
        MX_CHECK_OK(load(&c, &known[i].arg, 1));
        if (!c)
            continue;
        MX_CHECK(mx_config_int(c, "base_emb_dim") == known[i].width, "%s", known[i].arg);
        MX_CHECK(mx_config_int(c, "base_num_query_heads") == known[i].heads, "%s", known[i].arg);
        MX_CHECK(mx_config_int(c, "base_num_kv_heads") == known[i].kv, "%s", known[i].arg);
        MX_CHECK(mx_config_int(c, "base_mlp_dim") == known[i].mlp, "%s", known[i].arg);
        MX_CHECK(mx_config_int(c, "base_num_decoder_layers") == known[i].layers, "%s",
                 known[i].arg);
        MX_CHECK(mx_config_int(c, "vocab_size") == known[i].vocab, "%s", known[i].arg);
        mx_config_free(c);
    }
}

MX_TEST(keys_relations)
{
    static const struct {
        const char *args[2], *part;
    } bad[] = {
        {{"chat_template=a", "chat_template_path=b"}, "exclude each other"},
        {{"ici_data_parallelism=-1", "steps=1"}, "are both -1; only one axis"},
        {{"lr_schedule_type=wsd", "warmup_steps_fraction=0.95"}, "at most 1 is possible"},
        {{"base_num_query_heads=6", "base_num_kv_heads=4"},
         "not a multiple of base_num_kv_heads, 4"},
        {{"run_name=..", "steps=1"}, "`.` and `..` are no names"},
        {{"run_name=a/../b", "steps=1"}, "`.` and `..` are no names"},
        {{"run_name=.", "steps=1"}, "`.` and `..` are no names"},
        {{"run_name=/tmp/a", "steps=1"}, "base_output_directory, which takes a whole path"},
        {{"run_name=a\033[31mb", "steps=1"}, "it has a control character"},
        {{"num_experts=4", "num_experts_per_tok=8"}, "more than `num_experts`, which is 4"},
        {{"global_parameter_scale=6", "steps=1"}, "must be a power of two, found 6"},
        {{"steps=-1", "learning_rate=1"}, "learning_rate_schedule_steps must give the length"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mx_config *cfg = NULL;
        MX_CHECK_ERROR(load(&cfg, bad[i].args, 2), bad[i].part);
    }
}

/* Names of other programs lead to ours. */
MX_TEST(keys_offer_names_of_other_programs)
{
    static const char *const pairs[][2] = {
        {"max_seq_len=1", "max_target_length"},
        {"hidden_size=1", "base_emb_dim"},
        {"num_hidden_layers=1", "base_num_decoder_layers"},
        {"max_grad_norm=1", "gradient_clipping_threshold"},
        {"per_device_train_batch_size=1", "per_device_batch_size"},
        {"rope_theta=1", "rope_max_timescale"},
        {"tie_word_embeddings=1", "logits_via_embedding"},
        {"num_train_epochs=1", "num_epoch"},
        {"warmup_ratio=1", "warmup_steps_fraction"},
        {"weight_decay=1", "adam_weight_decay"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        mx_config *cfg = NULL;
        char part[128];
        snprintf(part, sizeof part, "did you mean `%s`", pairs[i][1]);
        MX_CHECK_ERROR(load(&cfg, &pairs[i][0], 1), part);
    }
}

MX_TEST(keys_every_recipe_loads)
{
    static const char *const names[] = {"pretrain", "demo"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char home[4096], path[4200];
        mx_config_home(home, sizeof home);
        snprintf(path, sizeof path, "%s/recipes/%s.yml", home, names[i]);
        mx_config_request r = {.schema = &mx_keys,
                               .home = home,
                               .file = path};
        mx_config *cfg = NULL;
        MX_CHECK_OK(mx_config_load(&cfg, &r));
        MX_CHECK(cfg && mx_config_is_set(cfg, "learning_rate"), "%s", names[i]);
        mx_config_free(cfg);
    }
}

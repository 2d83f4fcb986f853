/* run_config_test.c - a run's configuration written, given back, compared;
 * the arithmetic of batches. */
#include "train/run/run_config.h"

#include "../test.h"
#include "exec/batch_plan.h"
#include "keys/keys.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mx_config *load(const char *const *args, int n, const char *file)
{
    char home[4096];
    mx_config_request r = {.schema = &mx_keys,
                           .home = mx_config_home(home, sizeof home),
                           .file = file,
                           .args = args,
                           .n_args = n};
    mx_config *cfg = NULL;
    MX_CHECK_OK(mx_config_load(&cfg, &r));
    MX_ASSERT(cfg);
    return cfg;
}

MX_TEST(run_config_survives_and_is_compared)
{
    char folder[] = "/tmp/maxc_run_XXXXXX", path[64], command[64];
    MX_ASSERT(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.yml", folder);
    snprintf(command, sizeof command, "rm -r %s", folder);
    const char *first[] = {"model_name=llama3.2-1b",
                           "steps=10",
                           "mlp_activations=[gelu,linear]",
                           "trainable_parameters_mask=['*norm*', '*,x*']",
                           "hf_access_token=sesame",
                           "run_name=a b",
                           "adam_eps=1e-9",
                           "mlp_activations_limit=0.1"};
    mx_config *cfg = load(first, 8, NULL), *back = NULL;
    mx_str report = {0}, a = {0}, b = {0};
    MX_CHECK_OK(mx_run_config_compare(cfg, folder, &report)); /* a new folder */
    MX_CHECK(report.len == 0);
    MX_CHECK_OK(mx_run_config_save(cfg, folder, "maxc train", NULL));
    const char *changed[] = {"base_emb_dim=64"};
    back = load(changed, 1, path); /* no step was made: nothing to compare with */
    MX_CHECK_OK(mx_run_config_compare(back, folder, &report));
    MX_CHECK(report.len == 0, "%s", mx_str_text(&report));
    mx_config_free(back);
    snprintf(command, sizeof command, "%s/metrics.jsonl", folder);
    MX_CHECK_OK(mx_io_write_file(NULL, command, "{}\n", 3));
    snprintf(command, sizeof command, "rm -r %s", folder);
    MX_CHECK_OK(mx_run_config_compare(cfg, folder, &report)); /* the same again */
    MX_CHECK(report.len == 0, "%s", mx_str_text(&report));

    back = load(NULL, 0, path); /* given back as it is */
    mx_config_write(cfg, &a);
    mx_config_write(back, &b);
    MX_CHECK(strcmp(a.text, b.text) == 0);
    MX_CHECK(!strstr(a.text, "sesame"));
    mx_config_free(back);

    const char *more[] = {"steps=20", "learning_rate=1", "run_name=moved",
                          "allow_config_change=true", "base_output_directory=/elsewhere"};
    back = load(more, 5, path); /* what may change is reported, and nothing else */
    MX_CHECK_OK(mx_run_config_compare(back, folder, &report));
    MX_CHECK(strstr(mx_str_text(&report), "  steps: 10 -> 20\n") &&
                 strstr(mx_str_text(&report), "  learning_rate: ") &&
                 strchr(strchr(mx_str_text(&report), '\n') + 1, '\n')[1] == 0,
             "%s", mx_str_text(&report));
    mx_config_free(back);

    const char *other[] = {"base_emb_dim=64", "opt_type=muon", "allow_config_change=false"};
    mx_str_clear(&report);
    back = load(other, 3, path); /* what may not is refused, all of it */
    mx_status st = mx_run_config_compare(back, folder, &report);
    MX_CHECK(mx_status_code(st) == MX_USAGE);
    MX_CHECK(st && strstr(mx_status_text(st), "base_emb_dim: 2048 -> 64") &&
                 strstr(mx_status_text(st), "opt_type: \"adamw\" -> \"muon\"") &&
                 strstr(mx_status_text(st), "allow_config_change=true"),
             "%s", mx_status_text(st));
    mx_status_free(st);
    mx_config_free(back);

    other[2] = "allow_config_change=true";
    back = load(other, 3, path);
    MX_CHECK_OK(mx_run_config_compare(back, folder, &report));
    mx_config_free(back);
    mx_config_free(cfg);
    mx_str_fini(&report);
    mx_str_fini(&a);
    mx_str_fini(&b);
    MX_CHECK(system(command) == 0);
}

MX_TEST(run_folder_name)
{
    const char *named[] = {"base_output_directory=out/", "run_name=x"},
               *unnamed[] = {"model_name=gpt2-124m"};
    mx_arena arena = {0};
    mx_config *cfg = load(named, 2, NULL);
    MX_CHECK(strcmp(mx_run_folder(cfg, &arena), "out/x") == 0, "%s", mx_run_folder(cfg, &arena));
    mx_config_free(cfg);
    cfg = load(unnamed, 1, NULL);
    MX_CHECK(mx_glob_match("runs/gpt2-124m-2*-*", mx_run_folder(cfg, &arena)), "%s",
             mx_run_folder(cfg, &arena));
    mx_config_free(cfg);
    mx_arena_fini(&arena);
}

MX_TEST(batch_arithmetic)
{
    const char *args[] = {"per_device_batch_size=8", "gradient_accumulation_steps=2",
                          "max_target_length=2048"};
    mx_config *cfg = load(args, 3, NULL);
    mx_batch_plan b;
    mx_str line = {0};
    MX_CHECK_OK(mx_batch_plan_make(&b, cfg, 4, 2));
    MX_CHECK(b.microbatch == 16 && b.global_microbatch == 32 && b.global_sequences == 64 &&
             b.global_tokens == 131072);
    mx_batch_plan_print(&b, &line);
    MX_CHECK(strcmp(mx_str_text(&line), "131,072 tokens per step = 2 data ranks x 16 sequences x 2 "
                                        "microbatches x 2,048 tokens") == 0,
             "%s", mx_str_text(&line));
    mx_str_fini(&line);
    mx_config_free(cfg);

    const char *half[] = {"per_device_batch_size=0.5"};
    cfg = load(half, 1, NULL);
    MX_CHECK_OK(mx_batch_plan_make(&b, cfg, 4, 2));
    MX_CHECK(b.microbatch == 1);
    MX_CHECK_ERROR(mx_batch_plan_make(&b, cfg, 1, 1),
                   "is 0.5 sequences, which is not a whole number");
    MX_CHECK_ERROR(mx_batch_plan_make(&b, cfg, 6, 6), "which 6 data ranks cannot share evenly");
    mx_config_free(cfg);
}

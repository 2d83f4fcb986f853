/* run_keys_test.c - keys of a run do what they say, and those that do nothing are named. */
#include "../test.h"

#include "base/arena.h"
#include "base/io.h"
#include "data/load/loader_impl.h"
#include "tiny_run.h"
#include "keys/keys.h"
#include "train/input/train_data.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

MX_TEST(keys_without_effect_are_named)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "a", (const char *[]){"steps=1", "skip_step_interval=5",
                                                         "rollback_after_skips=3", NULL}));
    char *log = tiny_text(folder, "a", "log.txt");
    MX_CHECK(strstr(log, "have no effect on this run: skip_step_interval\n"), "%s", log);
    free(log);
    MX_CHECK_OK(tiny_train(folder, "b", (const char *[]){"steps=1", NULL}));
    log = tiny_text(folder, "b", "log.txt");
    MX_CHECK(!strstr(log, "have no effect"), "%s", log);
    free(log);
    MX_CHECK_OK(tiny_train(folder, "d", (const char *[]){"steps=1", "remat_policy=full",
                                                         "query_proj=device", NULL}));
    log = tiny_text(folder, "d", "log.txt");
    MX_CHECK(strstr(log, "have no effect on this run: query_proj\n"), "%s", log);
    free(log);
    MX_CHECK_OK(tiny_train(folder, "e", (const char *[]){"steps=1", "remat_policy=custom",
                                                         "query_proj=device", NULL}));
    log = tiny_text(folder, "e", "log.txt");
    MX_CHECK(!strstr(log, "have no effect"), "%s", log);
    free(log);
    MX_CHECK_ERROR(tiny_train(folder, "f", (const char *[]){"steps=1", "remat_policy=full",
                                                            "query_proj=offload", NULL}),
                   "query_proj=offload goes with remat_policy=custom");
    MX_CHECK_ERROR(tiny_train(folder, "c", (const char *[]){"steps=1", "enable_wandb=true", NULL}),
                   "wandb sync --sync-tensorboard");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* Keys of a part that is off are not read, and so named. */
MX_TEST(keys_of_what_is_off_are_named)
{
    static const char *const off[][2] = {
        {"wsd_decay_style=cosine", "lr_schedule_type=cosine"},
        {"learning_rate_final_fraction=0.5", "lr_schedule_type=linear"},
        {"packing_type=concat_then_split", "packing=false"},
        {"max_segments_per_seq=1", "packing=false"},
        {"mtp_eval_target_module=1", "eval_interval=-1"},
        {"eval_steps=3", "eval_interval=-1"},
        {"eval_start_step=2", "eval_interval=-1"},
        {"eval_per_device_batch_size=3", "eval_interval=-1"},
        {"target_eval_loss=1", "eval_interval=-1"},
        {"mlpwi_0=device", "remat_policy=none"}};
    char folder[256], name[16], expected[128];
    tiny_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        snprintf(name, sizeof name, "r%zu", i);
        snprintf(expected, sizeof expected, "have no effect on this run: %.*s\n",
                 (int)strcspn(off[i][0], "="), off[i][0]);
        MX_CHECK_OK(tiny_train(folder, name, (const char *[]){"steps=1", off[i][0], off[i][1],
                                                              NULL}));
        char *log = tiny_text(folder, name, "log.txt");
        MX_CHECK(strstr(log, expected), "%s, %s: %s", off[i][0], off[i][1], log);
        free(log);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(evaluation_starts_late_and_may_end_the_run)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "a", (const char *[]){"steps=8", "eval_interval=2",
                                                         "eval_start_step=5", "eval_steps=1",
                                                         "eval_per_device_batch_size=3", NULL}));
    char *text = tiny_text(folder, "a", "metrics.jsonl");
    MX_CHECK(tiny_count(text, "eval/loss") == 2, "%s", text);
    free(text);
    MX_CHECK_OK(tiny_train(folder, "b", (const char *[]){"steps=8", "eval_interval=2",
                                                         "eval_steps=1", "target_eval_loss=100",
                                                         NULL}));
    text = tiny_metrics(folder, "b");
    MX_CHECK(tiny_count(text, "\"grad_norm\"") == 2, "the run did not stop: %s", text);
    free(text);
    free(tiny_tensors(folder, "b", 2)); /* saved at its end */
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(continuous_saves_need_no_period)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "a",
                           (const char *[]){"steps=3", "enable_continuous_checkpointing=true",
                                            "async_checkpointing=false", NULL}));
    for (int step = 1; step <= 3; step++)
        free(tiny_tensors(folder, "a", step));
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* The loader as the keys of threads and batches ahead make it. */
MX_TEST(loader_has_its_threads_and_batches_ahead)
{
    const char *args[] = {"loader_threads=3", "prefetch_batches=7", "max_target_length=32"};
    mx_config_request q = {.schema = &mx_keys, .user = "train", .args = args, .n_args = 3};
    mx_config *cfg = NULL;
    mx_train_data d = {0};
    MX_CHECK_OK(mx_config_load(&cfg, &q));
    MX_CHECK_OK(mx_train_data_open(&d, &(mx_train_data_request){cfg, .vocab = 300, .rows = 2}));
    MX_CHECK(d.loader && d.loader->o.n_threads == 3 && d.loader->o.n_ahead == 7 &&
             d.loader->n_slots == 9);
    mx_train_data_close(&d);
    mx_config_free(cfg);
}

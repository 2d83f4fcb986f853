/* run_start_test.c - starts: those that fail leave nothing in the way of the next, those with
 * nothing to do say so, and progress is shown before the first step. */
#include "../test.h"
#include "base/io.h"
#include "base/str.h"
#include "tiny_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool there(const char *folder, const char *name)
{
    char path[1024];
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &s) == 0;
}

static void clear(const char *folder)
{
    MX_CHECK_OK(mx_io_remove_tree(NULL, folder));
}

MX_TEST(starts_that_fail_leave_no_folder)
{
    char buf[256], *d = tiny_folder(buf, sizeof buf);
    const char *no_data[] = {"steps=3", "dataset_type=jsonl", "dataset_path=/nonexistent", NULL};
    const char *no_model[] = {"steps=3", "load_parameters_path=/nonexistent", NULL};
    const char *no_state[] = {"steps=3", "load_full_state_path=/nonexistent", NULL};
    MX_CHECK_ERROR(tiny_train(d, "a", no_data), "/nonexistent");
    MX_CHECK_ERROR(tiny_train(d, "a", no_model), "/nonexistent");
    MX_CHECK_ERROR(tiny_train(d, "a", no_state), "/nonexistent");
    MX_CHECK(!there(d, "a"), "a failed start left its folder");
    /* with the mistake mended, and anything else changed, it begins */
    MX_CHECK_OK(tiny_train(d, "a", (const char *[]){"steps=3", "base_emb_dim=16", NULL}));
    clear(d);
}

MX_TEST(starts_that_fail_change_nothing_of_a_run)
{
    char buf[256], *d = tiny_folder(buf, sizeof buf);
    MX_CHECK_OK(tiny_train(d, "a", (const char *[]){"steps=3", NULL}));
    char *before = tiny_text(d, "a", "config.yml");
    MX_CHECK_ERROR(tiny_train(d, "a", (const char *[]){"steps=9", "dataset_type=jsonl",
                                                       "dataset_path=/nonexistent", NULL}),
                   "/nonexistent");
    char *after = tiny_text(d, "a", "config.yml");
    MX_CHECK(strcmp(before, after) == 0, "%s", after);
    MX_CHECK(there(d, "a/r/checkpoints/3"));
    MX_CHECK_OK(tiny_train(d, "a", (const char *[]){"steps=4", NULL}));
    free(before), free(after);
    clear(d);
}

/* A folder that is there stays, with what is in it; a configuration that no step was made with is
 * nobody's. */
MX_TEST(starts_in_a_folder_that_is_there)
{
    char buf[256], path[512], *d = tiny_folder(buf, sizeof buf);
    const char *bad[] = {"steps=3", "dataset_type=jsonl", "dataset_path=/nonexistent", NULL};
    snprintf(path, sizeof path, "%s/a", d);
    MX_CHECK(mkdir(path, 0755) == 0);
    snprintf(path, sizeof path, "%s/a/r", d);
    MX_CHECK(mkdir(path, 0755) == 0);
    snprintf(path, sizeof path, "%s/a/r/notes.txt", d);
    MX_CHECK_OK(mx_io_write_file(NULL, path, "mine", 4));
    MX_CHECK_ERROR(tiny_train(d, "a", bad), "/nonexistent");
    MX_CHECK(there(d, "a/r/notes.txt") && !there(d, "a/r/config.yml"));
    MX_CHECK_OK(tiny_train(d, "a", (const char *[]){"steps=3", NULL}));
    clear(d);
}

MX_TEST(runs_that_are_over_say_so)
{
    char buf[256], *d = tiny_folder(buf, sizeof buf);
    const char *again[] = {"steps=3", NULL};
    MX_CHECK_OK(tiny_train(d, "a", again));
    char *tensors = tiny_tensors(d, "a", 3), *metrics = tiny_metrics(d, "a");
    MX_CHECK_OK(tiny_train(d, "a", again));
    MX_CHECK_OK(tiny_train(d, "a", again));
    char *log = tiny_text(d, "a", "log.txt"), *config = tiny_text(d, "a", "config.yml");
    MX_CHECK(tiny_count(log, "already finished at step 3 (steps=3)") == 2 &&
                 tiny_count(log, "compiling") == 1 && tiny_count(log, "goodput") == 1,
             "%s", log);
    char *t = tiny_tensors(d, "a", 3), *m = tiny_metrics(d, "a");
    MX_CHECK(strcmp(t, tensors) == 0 && strcmp(m, metrics) == 0 && strstr(config, "steps: 3\n"));
    free(log), free(config), free(t), free(m), free(tensors), free(metrics);
    MX_CHECK_OK(tiny_train(d, "a", (const char *[]){"steps=5", NULL}));
    log = tiny_text(d, "a", "log.txt");
    MX_CHECK(strstr(log, "changed since the run was last started:\n  steps: 3 -> 5\n") &&
                 strstr(log, "resuming: step 3"),
             "%s", log);
    free(log);
    clear(d);
}

/* A last checkpoint that is damaged is no end. */
MX_TEST(runs_that_are_over_are_whole)
{
    char buf[256], path[512], *d = tiny_folder(buf, sizeof buf);
    const char *args[] = {"steps=4", "checkpoint_period=2", NULL};
    MX_CHECK_OK(tiny_train(d, "a", args));
    char *tensors = tiny_tensors(d, "a", 4);
    snprintf(path, sizeof path, "%s/a/r/checkpoints/4/optimizer.safetensors", d);
    FILE *f = fopen(path, "r+b");
    MX_CHECK(f && fseek(f, -5, SEEK_END) == 0);
    int c = fgetc(f);
    MX_CHECK(fseek(f, -5, SEEK_END) == 0 && fputc(c ^ 1, f) != EOF && fclose(f) == 0);
    MX_CHECK_OK(tiny_train(d, "a", args));
    char *log = tiny_text(d, "a", "log.txt"), *again = tiny_tensors(d, "a", 4);
    MX_CHECK(!strstr(log, "already finished") && strstr(log, "resuming: step 2"), "%s", log);
    MX_CHECK(strcmp(tensors, again) == 0, "other bits");
    free(log), free(again), free(tensors);
    clear(d);
}

MX_TEST(what_happens_before_the_first_step_is_said)
{
    char buf[256], path[512], data[600], *d = tiny_folder(buf, sizeof buf);
    snprintf(path, sizeof path, "%s/few.jsonl", d);
    snprintf(data, sizeof data, "dataset_path=%s", path);
    mx_str text = {0};
    for (int i = 0; i < 40; i++)
        mx_str_addf(&text, "{\"text\": \"%0*d\"}\n", i % 2 ? 10 : 60, i);
    MX_CHECK_OK(mx_io_write_file(NULL, path, text.text, text.len));
    mx_str_fini(&text);
    MX_CHECK_OK(tiny_train(d, "a", (const char *[]){"steps=100", "dataset_type=jsonl", data,
                                                    "packing=false", NULL}));
    char *log = tiny_text(d, "a", "log.txt"), *at = log;
    const char *order[] = {
        "opening the data\n", "data: 40 records, ",
        "; one epoch is 20 steps; steps=100, but the data ends after 20 (num_epoch=1)\n",
        "of the tokens are cut off: 50% of the documents are longer than max_target_length=32",
        "compiling\n", "model: llama", "memory: ", "making the first weights\n", "step 1/100 ",
        "step 10/100 ", "step 20/100 ", "the data ended after 20 steps"};
    for (size_t i = 0; at && i < sizeof order / sizeof *order; i++) {
        at = strstr(at, order[i]);
        MX_CHECK(at != NULL, "%s\nis not there, or too early, in\n%s", order[i], log);
    }
    MX_CHECK(tiny_count(log, "step 20/100 ") == 1, "%s", log);
    free(log);
    MX_CHECK_OK(tiny_train(d, "b", (const char *[]){"steps=1", NULL}));
    log = tiny_text(d, "b", "log.txt");
    MX_CHECK(strstr(log, "data: the built-in stories and sums, without an end"), "%s", log);
    free(log);
    clear(d);
}

/* run_test.c - whole training runs on a tiny model: same bits when resumed, same numbers when
 * accumulated, no allocation after the first step. */
#include "../test.h"
#include "tiny_run.h"

#include "base/io.h"
#include "exec/step.h"
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const tiny[] = {
    "model_name=default", "decoder_block=llama2", "vocab_size=300", "base_emb_dim=32",
    "base_num_query_heads=4", "base_num_kv_heads=2", "head_dim=8", "base_mlp_dim=64",
    "base_num_decoder_layers=2", "max_target_length=48", "dtype=float32",
    "learning_rate=1e-2", "warmup_steps_fraction=0.1", "enable_tensorboard=false", "num_threads=2"};
enum { N_TINY = sizeof tiny / sizeof *tiny };

/* A run in its own folder; extra arguments end with NULL. Quiet: standard output goes nowhere. */
static mx_status train(const char *folder, const char *const *extra)
{
    char out[512];
    const char *args[N_TINY + 16];
    int n = 0;
    for (int i = 0; i < N_TINY; i++)
        args[n++] = tiny[i];
    snprintf(out, sizeof out, "base_output_directory=%s", folder);
    args[n++] = out;
    args[n++] = "run_name=r";
    for (; *extra; extra++)
        args[n++] = *extra;
    return tiny_run(args, n);
}

/* Digest of every weight and moment of a checkpoint, from its manifest. */
static char *tensors_of(const char *folder, int step)
{
    char path[512];
    snprintf(path, sizeof path, "%s/r/checkpoints/%d", folder, step);
    return tiny_checkpoint(path);
}

MX_TEST(a_resumed_run_has_the_bits_of_one_never_stopped)
{
    char a[256], b[256];
    tiny_folder(a, sizeof a);
    tiny_folder(b, sizeof b);
    MX_CHECK_OK(train(a, (const char *[]){"steps=6", "learning_rate_schedule_steps=6",
                                          "per_device_batch_size=2", NULL}));
    for (int stop = 1; stop <= 6; stop += 2) {
        char steps[32];
        snprintf(steps, sizeof steps, "steps=%d", stop);
        MX_CHECK_OK(train(b, (const char *[]){steps, "learning_rate_schedule_steps=6",
                                              "per_device_batch_size=2", NULL}));
    }
    MX_CHECK_OK(train(b, (const char *[]){"steps=6", "learning_rate_schedule_steps=6",
                                          "per_device_batch_size=2", NULL}));
    char *x = tensors_of(a, 6), *y = tensors_of(b, 6);
    MX_CHECK(strlen(x) > 100 && strcmp(x, y) == 0, "the two runs differ");
    free(x);
    free(y);
    mx_status_free(mx_io_remove_tree(NULL, a));
    mx_status_free(mx_io_remove_tree(NULL, b));
}

/* The last loss in metrics.jsonl. */
static double last_loss(const char *folder)
{
    char path[512], line[4096];
    double loss = NAN;
    snprintf(path, sizeof path, "%s/r/metrics.jsonl", folder);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *p = strstr(line, "\"loss\": ");
        if (!p)
            p = strstr(line, "\"loss\":");
        if (p)
            loss = strtod(strchr(p, ':') + 1, NULL);
    }
    if (f)
        fclose(f);
    return loss;
}

MX_TEST(accumulation_changes_nothing_but_memory)
{
    char a[256], b[256];
    tiny_folder(a, sizeof a);
    tiny_folder(b, sizeof b);
    MX_CHECK_OK(train(a, (const char *[]){"steps=5", "per_device_batch_size=4", NULL}));
    MX_CHECK_OK(train(b, (const char *[]){"steps=5", "per_device_batch_size=1",
                                          "gradient_accumulation_steps=4", NULL}));
    double x = last_loss(a), y = last_loss(b);
    MX_CHECK(fabs(x - y) < 1e-5 * fabs(x), "%.9g and %.9g", x, y);
    mx_status_free(mx_io_remove_tree(NULL, a));
    mx_status_free(mx_io_remove_tree(NULL, b));
}

MX_TEST(training_on_stories_learns)
{
    char a[256];
    tiny_folder(a, sizeof a);
    MX_CHECK_OK(train(a, (const char *[]){"steps=30", "per_device_batch_size=4", NULL}));
    MX_CHECK(last_loss(a) < 4.5, "loss %g after 30 steps, 5.7 at the start", last_loss(a));
    mx_status_free(mx_io_remove_tree(NULL, a));
}

MX_TEST(a_model_that_starts_from_weights_has_them)
{
    char a[256];
    tiny_folder(a, sizeof a);
    mx_status st = tiny_train(a, "a", (const char *[]){
                                          "steps=1", "per_device_batch_size=1",
                                          "load_parameters_path=tests/fixtures/models/llama2",
                                          NULL});
    /* The byte tokenizer has more tokens than this tiny vocabulary of 160. */
    MX_CHECK_ERROR(st, "vocabulary");
    mx_status_free(mx_io_remove_tree(NULL, a));
}

/* One program, run again and again: neither our allocators nor malloc give out anything. */
MX_TEST(after_the_first_step_nothing_allocates)
{
    json_t *j = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "model_type", "llama", "vocab_size", 64,
                          "hidden_size", 32, "intermediate_size", 64, "num_hidden_layers", 2,
                          "num_attention_heads", 4);
    mx_model_spec m;
    mx_session *s = NULL;
    mx_step step;
    MX_CHECK_OK(mx_model_from_json(&m, j, "test"));
    json_decref(j);
    MX_CHECK_OK(mx_session_open(&s, "cpu", 2));
    mx_step_options o = {.kind = MX_STEP_TRAIN, .shape = {.batch = 2, .seq = 16},
                         .optimizer = {.b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .clip = 1},
                         .compile = {.n_threads = 2}};
    MX_CHECK_OK(mx_step_open(&step, s, &m, &o));
    MX_CHECK_OK(mx_session_init(s, 1));
    int32_t ids[32] = {1, 2, 3};
    float one = 1;
    MX_CHECK_OK(mx_exec_write(step.exec, "tokens", ids));
    MX_CHECK_OK(mx_exec_write(step.exec, "labels", ids));
    MX_CHECK_OK(mx_exec_write(step.exec, "loss_scale", &one));
    MX_CHECK_OK(mx_exec_write(step.exec, "lr", &one));
    MX_CHECK_OK(mx_exec_write(step.exec, "step", &one));
    MX_CHECK_OK(mx_exec_run(step.exec));
    int64_t before = mx_alloc_count();
    size_t heap = mallinfo2().uordblks;
    for (int i = 0; i < 3; i++)
        MX_CHECK_OK(mx_exec_run(step.exec));
    MX_CHECK(mx_alloc_count() == before, "%lld allocations",
             (long long)(mx_alloc_count() - before));
    MX_CHECK(mallinfo2().uordblks == heap, "the heap grew");
    mx_session_close(s);
    mx_step_close(&step);
    mx_model_spec_fini(&m);
}

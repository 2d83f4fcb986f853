/* ranks_test.c - a run on several ranks is the run that one rank makes of the same batches: equal
 * up to the order of additions, and to the bit from one time to the next and through a restart. */
#include "../dist/ranks.h"
#include "../test.h"
#include "tiny_run.h"

#include "base/arena.h"
#include "base/io.h"
#include "store/safetensors.h"
#include "train/report/metrics.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double metrics_differ(const char *folder, const char *a, const char *b, const char *metric,
                             int n)
{
    char path[1024];
    mx_arena mem = {0};
    mx_series s[2] = {0};
    double worst = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s/r/metrics.jsonl", folder, i ? b : a);
        MX_CHECK_OK(mx_metrics_read(path, metric, &mem, &s[i]));
        MX_CHECK(s[i].n == n, "%s has %lld values of %s, not %d", path, (long long)s[i].n, metric,
                 n);
    }
    for (int64_t i = 0; i < s[0].n && i < s[1].n; i++)
        worst = fmax(worst, fabs(s[0].y[i] - s[1].y[i]) / fabs(s[0].y[i]));
    mx_arena_fini(&mem);
    return worst;
}

#define RUN                                                                                        \
    "learning_rate_schedule_steps=8", "steps=8", "eval_interval=4", "eval_steps=2",                \
        "checkpoint_period=4", "base_num_decoder_layers=2", "dataset_type=corpus", "packing=false"

/* Eight rows a step, on one, two and four ranks (the four in two microbatches). Documents have
 * different lengths, so ranks have different numbers of labels. What AdamW does with a gradient
 * near zero hangs on its last bits (m / sqrt(v)), so weights are compared after SGD as well. */
static void compare_ranks(const char *folder, const char *optimizer, double tolerance)
{
    tiny_train_ranks(folder, 1, "one", (const char *[]){RUN, optimizer, "per_device_batch_size=8",
                                                 "eval_per_device_batch_size=8", NULL});
    tiny_train_ranks(folder, 2, "two", (const char *[]){RUN, optimizer, "per_device_batch_size=4",
                                                 "eval_per_device_batch_size=4", NULL});
    tiny_train_ranks(folder, 4, "four", (const char *[]){RUN, optimizer, "per_device_batch_size=1",
                                                  "eval_per_device_batch_size=2",
                                                  "gradient_accumulation_steps=2", NULL});
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "four" : "two";
        double w = tiny_difference(folder, "one", name, 8);
        MX_CHECK(w < tolerance && w > 0, "%s: weights differ by %g", name, w);
        double l = metrics_differ(folder, "one", name, "loss", 8);
        MX_CHECK(l < 1e-6, "%s: losses differ by %g", name, l);
        double g = metrics_differ(folder, "one", name, "grad_norm", 8);
        MX_CHECK(g < 1e-5, "%s: norms differ by %g", name, g);
        double e = metrics_differ(folder, "one", name, "eval/loss", 2);
        MX_CHECK(e < 1e-6, "%s: evaluations differ by %g", name, e);
        double t = metrics_differ(folder, "one", name, "tokens", 8);
        MX_CHECK(t == 0, "%s: tokens differ", name);
        printf("    %s, %s ranks: weights %.1e, loss %.1e, norm %.1e\n", optimizer, name, w, l, g);
    }
}

MX_TEST(ranks_train_as_one_rank_does)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    compare_ranks(folder, "opt_type=sgd", 1e-6);
    mx_status_free(mx_io_remove_tree(NULL, folder));
    compare_ranks(folder, "opt_type=adamw", 1e-4);
    tiny_train_ranks(folder, 2, "again",
                     (const char *[]){RUN, "opt_type=adamw", "per_device_batch_size=4",
                                      "eval_per_device_batch_size=4", NULL});
    char *a = tiny_tensors(folder, "two", 8), *b = tiny_tensors(folder, "again", 8);
    MX_CHECK(strlen(a) > 100 && strcmp(a, b) == 0, "the bits do not repeat");
    char *x = tiny_metrics(folder, "two"), *y = tiny_metrics(folder, "again");
    MX_CHECK(strcmp(x, y) == 0, "the metrics do not repeat");
    free(a), free(b), free(x), free(y);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* In pieces, and with a step that goes back, as one: the same bits. */
MX_TEST(ranks_resume_with_the_bits_of_a_run_never_stopped)
{
#define SPIKY                                                                                      \
    "learning_rate_schedule_steps=24", "checkpoint_period=4", "skip_step_on_spikes=true",          \
        "skip_step_interval=8", "skip_step_scaling_factor=0.8", "rollback_after_skips=2"
    static const char *const stops[] = {"steps=3", "steps=8", "steps=24"};
    char folder[256];
    tiny_folder(folder, sizeof folder);
    tiny_train_ranks(folder, 2, "a", (const char *[]){SPIKY, "steps=24", NULL});
    for (int i = 0; i < 3; i++)
        tiny_train_ranks(folder, 2, "b", (const char *[]){SPIKY, stops[i], NULL});
    char *log = tiny_text(folder, "a", "log.txt");
    MX_CHECK(tiny_count(log, "going back from step") > 0, "the run never went back:\n%s", log);
    char *a = tiny_tensors(folder, "a", 24), *b = tiny_tensors(folder, "b", 24);
    MX_CHECK(strlen(a) > 100 && strcmp(a, b) == 0, "the runs differ");
    mx_free(log);
    free(a), free(b);
    /* One rank may go on with what two have written, and says that bits will differ. */
    tiny_train_ranks(folder, 1, "a",
              (const char *[]){SPIKY, "steps=26", "per_device_batch_size=4",
                               "allow_config_change=true", NULL});
    log = tiny_text(folder, "a", "log.txt");
    MX_CHECK(strstr(log, "2 ranks before and uses 1 now"), "%s", log);
    mx_free(log);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* Ranks of different configurations are refused, and rank 0 names what differs. */
static int train_otherwise(int rank, void *ctx)
{
    int bad;
    const char *const args[] = {RUN, rank ? "learning_rate=1" : "learning_rate=2", NULL};
    mx_status st = tiny_train(ctx, "x", args);
    bad = mx_status_code(st) != MX_USAGE ||
          (rank ? *mx_status_text(st) != 0
                : !strstr(mx_status_text(st), "was started otherwise than rank 0: it differs in "
                                              "learning_rate;"));
    if (bad)
        printf("    rank %d: %s\n", rank, mx_status_text(st));
    mx_status_free(st);
    return bad;
}

typedef struct {
    const char *folder, *text[2]; /* of each rank's file; NULL: it has none */
    mx_code code;
    const char *says; /* rank 0 */
} other_data;

/* The same path, on machines that have other files there. */
static int train_on_other_data(int rank, void *ctx)
{
    const other_data *o = ctx;
    char dir[320];
    snprintf(dir, sizeof dir, "%s/machine%d", o->folder, rank);
    mx_status st = mx_io_make_dir(NULL, dir);
    if (!st && chdir(dir) == 0 && o->text[rank])
        st = mx_io_write_file(NULL, "t.txt", o->text[rank], strlen(o->text[rank]));
    if (!st)
        st = tiny_train(o->folder, "x", (const char *[]){"steps=2", "dataset_path=t.txt",
                                                   "vocab_size=300", "mesh=tensor=2",
                                                   "sharding_tolerance=1", NULL});
    bool said = strstr(mx_status_text(st), o->says);
    int bad = mx_status_code(st) != o->code || (rank ? *mx_status_text(st) != 0 : !said);
    if (bad)
        printf("    rank %d: %s\n", rank, mx_status_text(st));
    mx_status_free(st);
    return bad;
}

MX_TEST(ranks_with_different_data_are_refused)
{
    static const char differs[] = "rank 1 has other data than rank 0";
    other_data o[] = {
        {.text = {"one line\n", "one line\nand another\n"}, .code = MX_USAGE, .says = differs},
        {.text = {"one line\n", "one word\n"}, .code = MX_USAGE, .says = differs},
        {.text = {"one line\n", NULL}, .code = MX_INPUT, .says = "has ended: t.txt: no such"}};
    for (int i = 0; i < 3; i++) {
        char folder[256];
        tiny_folder(folder, sizeof folder);
        o[i].folder = folder;
        ranks_run(2, train_on_other_data, &o[i]);
        mx_status_free(mx_io_remove_tree(NULL, folder));
    }
}

MX_TEST(ranks_of_different_configurations_are_refused)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    ranks_run(2, train_otherwise, folder);
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

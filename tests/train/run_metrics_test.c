/* run_metrics_test.c - the numbers in metrics.jsonl are what their names say. */
#include "../test.h"

#include "base/arena.h"
#include "base/io.h"
#include "store/hf_dir.h"
#include "tiny_run.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number of the line of `step`; NAN when there is none. */
static double metric(const char *folder, const char *name, int step, const char *key)
{
    char *text = tiny_metrics(folder, name);
    json_t *all = json_loads(text, 0, NULL), *o;
    size_t i;
    double found = NAN;
    json_array_foreach (all, i, o)
        if (json_integer_value(json_object_get(o, "step")) == step && json_object_get(o, key))
            found = json_number_value(json_object_get(o, key));
    json_decref(all);
    free(text);
    return found;
}

MX_TEST(lm_loss_is_the_cross_entropy_alone)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(folder, "a", (const char *[]){"steps=1", NULL}));
    MX_CHECK_OK(tiny_train(folder, "b", (const char *[]){"steps=1", "z_loss_multiplier=0.01",
                                                         "eval_interval=1", "eval_steps=1", NULL}));
    double plain = metric(folder, "a", 1, "loss"), lm = metric(folder, "b", 1, "lm_loss");
    double whole = metric(folder, "b", 1, "loss");
    MX_CHECK(metric(folder, "a", 1, "lm_loss") == plain, "nothing is added, yet they differ");
    MX_CHECK(fabs(lm - plain) < 1e-5 * plain, "%.9g, not %.9g", lm, plain);
    /* the logarithm of the sum is about that of the vocabulary of 300 */
    MX_CHECK(fabs(whole - lm - 0.01 * log(300) * log(300)) < 0.05, "%g more", whole - lm);
    MX_CHECK(fabs(metric(folder, "b", 1, "perplexity") - exp(lm)) < 1e-6 * exp(lm), "perplexity");
    MX_CHECK(metric(folder, "b", 1, "eval/loss") < whole - 0.1, "evaluation counts the z-loss");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

static double norm_of_checkpoint(const char *folder, const char *name, int step)
{
    char path[512];
    mx_hf_dir dir = {0};
    double sum = 0;
    snprintf(path, sizeof path, "%s/%s/r/checkpoints/%d", folder, name, step);
    MX_CHECK_OK(mx_hf_dir_open(&dir, path, MX_HF_ALL));
    for (int f = 0; f < dir.n_files; f++)
        for (int64_t i = 0; i < dir.files[f].n_tensors; i++) {
            const mx_st_tensor *t = &dir.files[f].tensors[i];
            double *x = calloc((size_t)t->n, sizeof *x);
            MX_CHECK_OK(mx_st_read(t, 0, t->n, MX_ST_F64, x, NULL));
            for (int64_t k = 0; k < t->n; k++)
                sum += x[k] * x[k];
            free(x);
        }
    mx_hf_dir_close(&dir);
    return sqrt(sum);
}

MX_TEST(param_norm_is_that_of_all_weights_after_the_step)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    static const char *const cases[][2] = {{"opt_type=adamw", "dtype=float32"},
                                           {"opt_type=muon", "gradient_accumulation_steps=2"},
                                           {"opt_type=sgd", "dtype=bfloat16"},
                                           {"trainable_parameters_mask=*mlp*", "dtype=float32"}};
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        MX_CHECK_OK(tiny_train(folder, name,
                               (const char *[]){"steps=3", cases[i][0], cases[i][1], NULL}));
        double got = metric(folder, name, 3, "param_norm");
        double want = norm_of_checkpoint(folder, name, 3);
        MX_CHECK(fabs(got - want) < 1e-5 * want, "%s: %.9g, not %.9g", cases[i][0], got, want);
        MX_CHECK(metric(folder, name, 2, "param_norm") != got, "%s: it does not move", cases[i][0]);
    }
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

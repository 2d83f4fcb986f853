/* settled_test.c - a run that has settled gets no more memory: neither its loader nor its loop. */
#include "../test.h"

#include "base/arena.h"
#include "base/io.h"
#include "data/load/loader.h"
#include "tiny_run.h"
#include "keys/keys.h"
#include "train/input/train_data.h"
#include <stdio.h>
#include <stdlib.h>

/* Allocations while `n` batches are taken after `first` others. */
static int64_t taken(const char *const *extra, int first, int n)
{
    const char *args[16] = {"max_target_length=64", "vocab_size=300"};
    int k = 2;
    for (; *extra; extra++)
        args[k++] = *extra;
    mx_config *cfg = NULL;
    mx_train_data d = {0};
    mx_config_request q = {
        .schema = &mx_keys, .user = "train", .args = args, .n_args = k};
    MX_CHECK_OK(mx_config_load(&cfg, &q));
    MX_CHECK_OK(mx_train_data_open(&d, &(mx_train_data_request){cfg, .vocab = 300, .rows = 8}));
    const mx_batch *b;
    int64_t before = 0;
    for (int i = 0; i < first + n; i++) {
        if (i == first)
            before = mx_alloc_count();
        MX_CHECK_OK(mx_loader_next(d.loader, &b));
        MX_CHECK(b != NULL, "the data ended");
    }
    int64_t count = mx_alloc_count() - before;
    mx_train_data_close(&d);
    mx_config_free(cfg);
    return count;
}

MX_TEST(a_settled_loader_gets_no_memory)
{
    int64_t n = taken((const char *[]){"dataset_type=synthetic", NULL}, 400, 400);
    MX_CHECK(n == 0, "synthetic: %lld allocations in 400 batches", (long long)n);
    static const char *const kinds[] = {"packing_type=first_fit", "packing_type=best_fit",
                                        "packing_type=concat_then_split", "packing=false"};
    for (int i = 0; i < 4; i++) {
        n = taken((const char *[]){"dataset_type=corpus", kinds[i], NULL}, 1000, 400);
        MX_CHECK(n == 0, "stories, %s: %lld allocations in 400 batches", kinds[i], (long long)n);
    }
}

/* data_size_test.c - how long data lasts: the arithmetic, and samples of real files against a count
 * of everything. */
#include "train/input/data_size.h"

#include "../test.h"
#include "base/io.h"
#include "data/load/loader.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(const mx_data_size_request *q, const char *want)
{
    mx_str out = {0};
    mx_data_size_print(q, &out);
    MX_CHECK(strcmp(mx_str_text(&out), want) == 0, "%s", mx_str_text(&out));
    mx_str_fini(&out);
}

MX_TEST(data_size_in_steps)
{
    mx_data_sample s[2] = {
        {.records = 30000, .looked_at = 1000, .documents = 1000, .tokens = 40000, .rows = 500},
        {.records = 100, .exact = true, .looked_at = 100, .documents = 100, .tokens = 900,
         .rows = 100}};
    const double weights[] = {3, 1};
    mx_data_size_request q = {.samples = s, .weights = weights, .n = 1, .rows = 10, .length = 64,
                              .steps = 100000, .epochs = 1};
    check(&q, "data: about 30.0 k records, about 1.20 M tokens; one epoch is about 1500 steps; "
              "steps=100000, but the data ends after about 1500 (num_epoch=1)\n");
    q.epochs = 0;
    q.steps = 15000;
    check(&q, "data: about 30.0 k records, about 1.20 M tokens; one epoch is about 1500 steps; "
              "steps=15000 are about 10 epochs\n");
    q.samples = &s[1];
    q.steps = 7;
    check(&q, "data: 100 records, 900 tokens; one epoch is 10 steps; steps=7\n");
    q.length = 1024;
    check(&q, "data: 100 records, 900 tokens; one epoch is 10 steps; steps=7\n"
              "data: rows are 0.88% full, the rest is padding: a max_target_length of less than "
              "1024, or packing=true where documents may share a row, saves its time\n");
    s[1].documents = 101; /* some rows hold two */
    check(&q, "data: 100 records, 900 tokens; one epoch is 10 steps; steps=7\n");
    s[1].documents = 100;
    q.length = 64;
    s[1].cut_documents = 10;
    s[1].cut_tokens = 90;
    check(&q, "data: 100 records, 900 tokens; one epoch is 10 steps; steps=7\n"
              "data: 10% of the tokens are cut off: 10% of the documents are longer than "
              "max_target_length=64 (use_truncation=false trains on all of them)\n");
    /* three of four records are of the first: 0.625 rows on average, 16 records a step */
    q = (mx_data_size_request){.samples = s, .weights = weights, .n = 2, .rows = 10, .length = 64,
                               .steps = 50, .epochs = 0};
    s[1].cut_documents = s[1].cut_tokens = 0;
    check(&q, "data: dataset 1: about 30.0 k records, about 1.20 M tokens; one epoch is about 2500 "
              "steps; steps=50\n"
              "data: dataset 2: about 100 records, about 900 tokens; one epoch is about 25 steps; "
              "steps=50 are about 2 epochs\n");
    s[0] = s[1] = (mx_data_sample){0}; /* made up, or not looked at */
    check(&q, "");
}

static void write_lines(const char *path, int n)
{
    mx_str text = {0};
    unsigned x = 1;
    for (int i = 0; i < n; i++) {
        x = x * 1103515245 + 12345;
        mx_str_addf(&text, "{\"text\": \"%0*d\"}\n", (int)(5 + x / 65536 % 60), i);
    }
    MX_CHECK_OK(mx_io_write_file(NULL, path, text.text, text.len));
    mx_str_fini(&text);
}

/* The sample of a loader over this file, against all of its batches. */
static void check_file(const char *path, mx_pack_kind kind, bool exact)
{
    mx_tokenizer *t;
    mx_dataset_options set = {.paths = path, .n_epochs = 1, .shuffle = true};
    MX_CHECK_OK(mx_tokenizer_open(&t, "byte", NULL));
    mx_loader_options o = {.datasets = &set, .n_datasets = 1, .encoder = {.tokenizer = t},
                           .pack = {.kind = kind, .seq_len = 48, .truncate = true},
                           .batch_rows = 1, .sample_seconds = 60};
    mx_loader *l;
    const mx_batch *b;
    double rows = 0;
    MX_CHECK_OK(mx_loader_open(&l, &o));
    mx_data_sample s = *mx_loader_samples(l);
    do {
        MX_CHECK_OK(mx_loader_next(l, &b));
        rows += b != NULL;
    } while (b);
    mx_pack_counts all = mx_loader_report(l).pack;
    double times = s.records / (double)s.looked_at, near = exact ? 1e-9 : 0.1;
    MX_CHECK(s.exact == exact, "%s: exact %d", path, s.exact);
    MX_CHECK(fabs(s.records / (double)all.documents - 1) < near, "%s: %g records of %lld", path,
             s.records, (long long)all.documents);
    MX_CHECK(fabs(times * (double)s.rows / rows - 1) < near, "%s: %g rows of %g", path,
             times * (double)s.rows, rows);
    MX_CHECK(kind == MX_PACK_CONCAT ? s.cut_tokens == 0
                                    : fabs(times * (double)s.cut_tokens /
                                           (double)all.truncated_tokens - 1) < near,
             "%s: %g cut off, of %lld", path, times * (double)s.cut_tokens,
             (long long)all.truncated_tokens);
    mx_loader_close(l);
    mx_tokenizer_close(t);
}

MX_TEST(data_samples_are_near_the_truth)
{
    char dir[] = "/tmp/maxc-size-XXXXXX", path[64], command[256];
    MX_CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/few.jsonl", dir);
    write_lines(path, 500);
    check_file(path, MX_PACK_FIRST_FIT, true);
    check_file(path, MX_PACK_CONCAT, true);
    check_file(path, MX_PACK_NONE, true);
    snprintf(path, sizeof path, "%s/many.jsonl", dir);
    write_lines(path, 20000);
    check_file(path, MX_PACK_FIRST_FIT, false);
    check_file(path, MX_PACK_CONCAT, false);
    snprintf(command, sizeof command, "gzip %s", path);
    MX_CHECK(system(command) == 0);
    snprintf(path, sizeof path, "%s/many.jsonl.gz", dir);
    check_file(path, MX_PACK_FIRST_FIT, false);
    snprintf(command, sizeof command, "rm -r %s", dir);
    MX_CHECK(system(command) == 0);
}

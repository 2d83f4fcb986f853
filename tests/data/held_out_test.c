/* held_out_test.c - a share of the records held out for evaluation: the two sides are apart, are
 * all there is, and do not depend on the order. */
#include "../test.h"

#include "data/load/dataset.h"
#include "files.h"
#include <stdio.h>
#include <string.h>
#include <zstd.h>

enum { N = 1000 };

/* Marks the records of one epoch by the number in their text. */
static int collect(const char *path, bool held_out, uint64_t seed, bool *seen)
{
    mx_dataset_options o = {.paths = path,
                            .shuffle = seed != 0,
                            .seed = seed,
                            .n_epochs = 1,
                            .shuffle_window = 64,
                            .held_share = 0.1,
                            .held_out = held_out};
    mx_dataset *d = NULL;
    mx_cursor c = {0};
    mx_record r = {0};
    bool end = false;
    int n = 0;
    MX_CHECK_OK(mx_dataset_open(&d, &o));
    while (d && !end) {
        MX_CHECK_OK(mx_dataset_next(d, &c, &r, &end));
        int i = end ? -1 : mx_record_find(&r, "text"), k = -1;
        if (i >= 0 && sscanf(mx_record_data(&r, i), "n%d.", &k) == 1 && k >= 0 && k < N) {
            MX_CHECK(!seen[k], "record %d is given twice", k);
            seen[k] = true;
            n++;
        }
    }
    mx_record_fini(&r);
    mx_dataset_close(d);
    return n;
}

static void parts(const char *path, bool exact)
{
    bool train[N] = {0}, held[N] = {0}, again[N] = {0};
    int n = collect(path, false, 7, train), m = collect(path, true, 0, held);
    MX_CHECK(n + m == N && (exact ? m == N / 10 : m > N / 20 && m < N / 5), "%d and %d", n, m);
    for (int i = 0; i < N; i++)
        MX_CHECK(train[i] != held[i], "record %d", i);
    collect(path, true, 99, again); /* another order, the same records */
    MX_CHECK(memcmp(held, again, sizeof held) == 0);
}

MX_TEST(held_out_records_are_apart_whatever_the_order)
{
    mx_str text = {0};
    for (int i = 0; i < N; i++)
        mx_str_addf(&text, "{\"text\": \"n%d.\"}\n", i);
    char path[512];
    snprintf(path, sizeof path, "%s", temp_file("held.jsonl", text.text, text.len));
    parts(path, true);
    char *z = mx_realloc(NULL, ZSTD_compressBound(text.len));
    size_t n = ZSTD_compress(z, ZSTD_compressBound(text.len), text.text, text.len, 3);
    snprintf(path, sizeof path, "%s", temp_file("held.jsonl.zst", z, n));
    parts(path, false);
    mx_free(z);
    mx_str_fini(&text);
}

/* Two records: one for each side. One record, or a stream whose side is empty: an error. */
MX_TEST(held_out_shares_of_little_data)
{
    const char *two = temp_file("two.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n", 28);
    mx_dataset_options o = {.paths = two, .held_share = 0.001};
    for (int side = 0; side < 2; side++) {
        mx_dataset *d = NULL;
        mx_cursor c = {0};
        mx_record r = {0};
        bool end = false;
        o.held_out = side;
        MX_CHECK_OK(mx_dataset_open(&d, &o)); /* epochs without end: every turn gives a record */
        for (int i = 0; d && i < 5; i++)
            MX_CHECK_OK(mx_dataset_next(d, &c, &r, &end));
        MX_CHECK(!end);
        mx_record_fini(&r);
        mx_dataset_close(d);
    }
    mx_dataset *d = NULL;
    o.paths = temp_file("one.jsonl", "{\"text\": \"a\"}\n", 14);
    MX_CHECK_ERROR(mx_dataset_open(&d, &o), "one record cannot be divided");
    char z[256];
    size_t n = ZSTD_compress(z, sizeof z, "{\"text\": \"a\"}\n", 14, 3);
    o.paths = temp_file("one.jsonl.zst", z, n);
    o.held_share = 1e-9;
    o.held_out = true;
    mx_cursor c = {0};
    mx_record r = {0};
    bool end;
    MX_CHECK_OK(mx_dataset_open(&d, &o));
    MX_CHECK_ERROR(mx_dataset_next(d, &c, &r, &end), "leaves no record on the evaluation side");
    mx_record_fini(&r);
    mx_dataset_close(d);
}

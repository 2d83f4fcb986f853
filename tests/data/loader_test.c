/* loader_test.c - batches are a pure function of the options: threads, ranks and restarts change
 * nothing. */
#include "../test.h"

#include "data/load/loader.h"
#include "files.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

typedef struct {
    mx_tokenizer *tokenizer;
    mx_dataset_options sets[4];
    mx_loader_options o;
    char paths[4][512];
} setup;

/* Set 0: JSON lines with random access; set 1: the same kind of lines as a zstd stream; set 2:
 * Parquet in three row groups; set 3: ArrayRecord. n_datasets says how many are mixed. */
static void make_setup(setup *s, mx_pack_kind kind)
{
    mx_str text = {0};
    *s = (setup){0};
    for (int i = 0; i < 300; i++)
        mx_str_addf(&text, "{\"text\": \"a%d%.*s\"}\n", i, i * 7 % 90,
                    ".............................................................................."
                    ".........."
                    "....");
    snprintf(s->paths[0], 512, "%s", temp_file("l.jsonl", text.text, text.len));
    mx_str_clear(&text);
    for (int i = 0; i < 200; i++)
        mx_str_addf(&text, "{\"text\": \"b%d%.*s\"}\n", i, i * 13 % 60,
                    "-----------------------------------------------------------------");
    char *z = mx_realloc(NULL, ZSTD_compressBound(text.len));
    size_t n = ZSTD_compress(z, ZSTD_compressBound(text.len), text.text, text.len, 3);
    snprintf(s->paths[1], 512, "%s", temp_file("l.jsonl.zst", z, n));
    mx_free(z);
    mx_str_fini(&text);
    MX_CHECK_OK(mx_tokenizer_open(&s->tokenizer, "byte", NULL));
    snprintf(s->paths[2], 512, "%s", fixture("snappy_v1.parquet"));
    snprintf(s->paths[3], 512, "%s", fixture("group.arrayrecord"));
    for (int k = 0; k < 4; k++)
        s->sets[k] = (mx_dataset_options){.paths = s->paths[k],
                                          .weight = k ? 1 : 3,
                                          .shuffle = true,
                                          .seed = 11,
                                          .shuffle_window = 50};
    s->o = (mx_loader_options){
        .datasets = s->sets, .n_datasets = 2, .batch_rows = 8, .rank = 0, .n_ranks = 1,
        .encoder = {.tokenizer = s->tokenizer, .add_bos = true, .add_eos = true},
        .pack = {.kind = kind, .seq_len = 96, .window_rows = 12, .truncate = kind != MX_PACK_CONCAT,
                 .seed = 11}};
}

static uint64_t hash_rows(const mx_batch *b, uint64_t seed)
{
    size_t n = sizeof(int32_t) * (size_t)(b->rows * b->seq_len);
    uint64_t h = XXH3_64bits_withSeed(b->tokens, n, seed);
    h = XXH3_64bits_withSeed(b->labels, n, h);
    h = XXH3_64bits_withSeed(b->segments, n, h);
    return XXH3_64bits_withSeed(b->positions, n, h);
}

enum { STEPS = 120 };

/* Hash of each row of each batch of a run over `ranks` loaders, so that ranks can be compared. */
static void run(setup *s, int ranks, int threads, int from, const char *position,
                uint64_t rows[][8])
{
    for (int rank = 0; rank < ranks; rank++) {
        mx_loader *l = NULL;
        mx_loader_options o = s->o;
        o.rank = rank;
        o.n_ranks = ranks;
        o.n_threads = threads;
        MX_CHECK_OK(mx_loader_open(&l, &o));
        if (!l)
            return;
        if (position)
            MX_CHECK_OK(mx_loader_seek(l, position, strlen(position)));
        for (int step = from; step < STEPS; step++) {
            const mx_batch *b = NULL;
            MX_CHECK_OK(mx_loader_next(l, &b));
            if (!b)
                break;
            MX_CHECK(b->step == step && b->rows == 8 / ranks, "step %d", (int)b->step);
            for (int64_t r = 0; r < b->rows; r++) {
                mx_batch one = *b;
                one.tokens += r * b->seq_len, one.labels += r * b->seq_len;
                one.segments += r * b->seq_len, one.positions += r * b->seq_len;
                one.rows = 1;
                rows[step][rank * b->rows + r] = hash_rows(&one, 0);
            }
        }
        mx_loader_close(l);
    }
}

static void same_everywhere(mx_pack_kind kind)
{
    static uint64_t first[STEPS][8], other[STEPS][8];
    setup s;
    make_setup(&s, kind);
    s.o.n_datasets = 4; /* every kind of access; each goes through several epochs */
    s.o.encoder.columns = (const char *[]){"text"};
    s.o.encoder.n_columns = 1;
    run(&s, 1, 1, 0, NULL, first);
    run(&s, 1, 4, 0, NULL, other);
    MX_CHECK(memcmp(first, other, sizeof first) == 0, "threads change the batches");
    memset(other, 0, sizeof other);
    run(&s, 8, 1, 0, NULL, other);
    MX_CHECK(memcmp(first, other, sizeof first) == 0, "8 ranks see other batches");
    memset(other, 0, sizeof other);
    run(&s, 2, 2, 0, NULL, other);
    MX_CHECK(memcmp(first, other, sizeof first) == 0, "2 ranks see other batches");
    /* stop after every seventh step, go on with another number of ranks */
    mx_loader *l = NULL;
    MX_CHECK_OK(mx_loader_open(&l, &s.o));
    for (int step = 0; l && step < STEPS; step++) {
        const mx_batch *b;
        MX_CHECK_OK(mx_loader_next(l, &b));
        if (step % 7 != 3)
            continue;
        mx_str json = {0};
        mx_loader_position(l, &json);
        MX_CHECK(json.len < 600, "a position of %zu bytes", json.len);
        memset(other, 0, sizeof other);
        run(&s, 2, 1, step + 1, json.text, other);
        MX_CHECK(memcmp(first[step + 1], other[step + 1], sizeof first[0] * (STEPS - step - 1)) ==
                     0,
                 "resumed after step %d: other batches", step);
        mx_str_fini(&json);
    }
    mx_loader_close(l);
    mx_tokenizer_close(s.tokenizer);
}

MX_TEST(loader_same_batches_none) { same_everywhere(MX_PACK_NONE); }
MX_TEST(loader_same_batches_first_fit) { same_everywhere(MX_PACK_FIRST_FIT); }
MX_TEST(loader_same_batches_best_fit) { same_everywhere(MX_PACK_BEST_FIT); }
MX_TEST(loader_same_batches_concat) { same_everywhere(MX_PACK_CONCAT); }

MX_TEST(loader_gives_every_document_once_an_epoch)
{
    for (int stream = 0; stream < 2; stream++)
        for (int kind = 0; kind < 4; kind++) {
            setup s;
            make_setup(&s, (mx_pack_kind)kind);
            int total = stream ? 200 : 300, count[300] = {0}, n_batches = 0;
            s.o.datasets = &s.sets[stream];
            s.o.n_datasets = 1;
            s.sets[stream].n_epochs = 2;
            mx_loader *l;
            const mx_batch *b = NULL;
            MX_CHECK_OK(mx_loader_open(&l, &s.o));
            do {
                MX_CHECK_OK(mx_loader_next(l, &b));
                for (int64_t i = 0; b && i < b->rows * b->seq_len; i++)
                    if (b->tokens[i] == 256 &&
                        b->segments[i]) { /* begin of a document: its number follows */
                        int n = 0;
                        for (int64_t j = i + 2;
                             (j % b->seq_len) && b->tokens[j] <= '9' && b->tokens[j] >= '0'; j++)
                            n = n * 10 + b->tokens[j] - '0';
                        count[n]++;
                    }
                n_batches += b != NULL;
            } while (b);
            int bad = 0;
            for (int i = 0; i < total; i++)
                bad += count[i] != 2;
            /* concat may cut a row inside the number; nothing else may */
            MX_CHECK(bad <= (kind == MX_PACK_CONCAT ? 40 : 0),
                     "kind %d, stream %d: %d documents not seen twice", kind, stream, bad);
            mx_loader_counts c = mx_loader_report(l);
            MX_CHECK(c.records == 2 * total && c.pack.documents == 2 * total, "%d records",
                     (int)c.records);
            MX_CHECK_OK(mx_loader_next(l, &b));
            MX_CHECK(!b && n_batches > 3);
            mx_loader_close(l);
            mx_tokenizer_close(s.tokenizer);
        }
}

MX_TEST(loader_refuses_a_position_of_other_data)
{
    setup s;
    mx_loader *l;
    const mx_batch *b;
    mx_str json = {0};
    make_setup(&s, MX_PACK_FIRST_FIT);
    MX_CHECK_OK(mx_loader_open(&l, &s.o));
    MX_CHECK_OK(mx_loader_next(l, &b));
    mx_loader_position(l, &json);
    mx_loader_close(l);
    s.o.pack.seq_len = 100;
    MX_CHECK_OK(mx_loader_open(&l, &s.o));
    MX_CHECK_ERROR(mx_loader_seek(l, json.text, json.len), "other data or settings");
    MX_CHECK_ERROR(mx_loader_seek(l, "{}", 2), "not valid");
    MX_CHECK_ERROR(mx_loader_seek(l, "{", 1), "not valid");
    MX_CHECK_OK(mx_loader_next(l, &b));
    MX_CHECK(b && b->step == 0);
    mx_loader_close(l);
    s.o.batch_rows = 9;
    s.o.n_ranks = 2;
    MX_CHECK_ERROR(mx_loader_open(&l, &s.o), "does not divide over 2");
    mx_str_fini(&json);
    mx_tokenizer_close(s.tokenizer);
}

static mx_loader *open_bad(setup *s, int n_bad, bool skip)
{
    mx_str text = {0};
    for (int i = 0; i < 100; i++)
        mx_str_addf(
            &text, i % 10 == 3 && i / 10 < n_bad ? "{\"text\": \"%d\n" : "{\"text\": \"%d\"}\n", i);
    make_setup(s, MX_PACK_FIRST_FIT);
    snprintf(s->paths[0], 512, "%s", temp_file("bad.jsonl", text.text, text.len));
    mx_str_fini(&text);
    s->o.n_datasets = 1;
    s->sets[0].n_epochs = 2;
    s->sets[0].shuffle = false;
    s->o.skip_bad = skip;
    mx_loader *l = NULL;
    MX_CHECK_OK(mx_loader_open(&l, &s->o));
    return l;
}

/* A record that fills a chunk and a window by itself and is cut to one row: the batch is not full
 * when the data ends with a window of no rows. */
static void one_long_record(mx_pack_kind kind)
{
    setup s;
    mx_str text = {0};
    const mx_batch *b = NULL;
    mx_loader *l = NULL;
    int batches = 0;
    make_setup(&s, kind);
    mx_str_add(&text, "{\"text\": \"");
    for (int i = 0; i < 11000; i++)
        mx_str_addf(&text, "%0100d", i);
    mx_str_add(&text, "\"}\n");
    s.sets[0] = (mx_dataset_options){
        .paths = temp_file("long.jsonl", text.text, text.len), .weight = 1, .n_epochs = 1};
    s.o.n_datasets = 1;
    MX_CHECK_OK(mx_loader_open(&l, &s.o));
    do {
        MX_CHECK_OK(mx_loader_next(l, &b));
        batches += b != NULL;
    } while (b);
    MX_CHECK(kind == MX_PACK_CONCAT ? batches > 1000 : batches == 1, "%d batches", batches);
    mx_loader_close(l);
    mx_tokenizer_close(s.tokenizer);
    mx_str_fini(&text);
}

MX_TEST(loader_ends_after_a_window_without_rows)
{
    one_long_record(MX_PACK_NONE);
    one_long_record(MX_PACK_FIRST_FIT);
    one_long_record(MX_PACK_BEST_FIT);
    one_long_record(MX_PACK_CONCAT);
}

MX_TEST(loader_stops_or_skips_bad_records)
{
    setup s;
    const mx_batch *b = NULL;
    mx_loader *l = open_bad(&s, 1, false);
    MX_CHECK_ERROR(mx_loader_next(l, &b),
                   "bad.jsonl: record 3 at offset 42: not a valid JSON line");
    MX_CHECK_ERROR(mx_loader_next(l, &b), "record 3");
    mx_loader_close(l);
    mx_tokenizer_close(s.tokenizer);

    l = open_bad(&s, 5, true);
    do
        MX_CHECK_OK(mx_loader_next(l, &b));
    while (b);
    mx_loader_counts c = mx_loader_report(l);
    MX_CHECK(c.bad_records == 10 && c.records == 200, "%d bad of %d", (int)c.bad_records,
             (int)c.records);
    MX_CHECK(c.first_bad && strstr(c.first_bad, "record 3"));
    mx_loader_close(l);
    mx_tokenizer_close(s.tokenizer);

    l = open_bad(&s, 6, true); /* eleven in 200 records: over the budget, in the second epoch */
    mx_status st = MX_OK;
    do
        st = mx_loader_next(l, &b);
    while (!st && b);
    MX_CHECK_ERROR(st, "more than bad_record_budget");
    mx_loader_close(l);
    mx_tokenizer_close(s.tokenizer);
}

MX_TEST(loader_cache_gives_the_same_batches)
{
    static uint64_t plain[STEPS][8], first[STEPS][8], second[STEPS][8];
    setup s;
    make_setup(&s, MX_PACK_BEST_FIT);
    run(&s, 1, 2, 0, NULL, plain);
    char dir[512];
    snprintf(dir, sizeof dir, "%s", temp_path("cache"));
    s.o.cache_dir = dir;
    run(&s, 1, 2, 0, NULL, first);
    run(&s, 1, 2, 0, NULL, second);
    MX_CHECK(memcmp(plain, first, sizeof plain) == 0 && memcmp(plain, second, sizeof plain) == 0);
    mx_loader *l;
    const mx_batch *b;
    MX_CHECK_OK(mx_loader_open(&l, &s.o));
    for (int i = 0; i < 20; i++)
        MX_CHECK_OK(mx_loader_next(l, &b));
    mx_loader_counts c = mx_loader_report(l);
    MX_CHECK(c.cache_hits > 100 && c.cache_hits == c.records, "%d hits of %d", (int)c.cache_hits,
             (int)c.records);
    mx_loader_close(l);
    /* other settings never see these entries */
    s.o.encoder.add_eos = false;
    MX_CHECK_OK(mx_loader_open(&l, &s.o));
    MX_CHECK_OK(mx_loader_next(l, &b));
    for (int64_t i = 0; i < b->rows * b->seq_len; i++)
        MX_CHECK(b->tokens[i] != 257);
    mx_loader_close(l);
    mx_tokenizer_close(s.tokenizer);
}

MX_TEST(loader_synthetic_and_story)
{
    for (int k = 0; k < 2; k++) {
        setup s;
        make_setup(&s, k ? MX_PACK_FIRST_FIT : MX_PACK_NONE);
        s.sets[0] =
            (mx_dataset_options){.kind = k ? "story" : "synthetic",
                                 .shuffle = true,
                                 .seed = 5,
                                 .source = {.seed = 5, .record_tokens = 96, .vocab_size = 50}};
        s.o.n_datasets = 1;
        s.o.encoder.vocab_size = 300;
        mx_loader *l;
        const mx_batch *b;
        MX_CHECK_OK(mx_loader_open(&l, &s.o));
        MX_CHECK_OK(mx_loader_next(l, &b));
        MX_CHECK(b->n_tokens > 8 * 96 * 3 / 4 && b->n_trained > 8 * 96 / 2);
        if (k == 0)
            MX_CHECK(b->n_trained == 8 * 96, "every place is trained: %d", (int)b->n_trained);
        mx_loader_close(l);
        mx_tokenizer_close(s.tokenizer);
    }
}

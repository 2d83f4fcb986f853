/* bench_data.c - maxc bench data: how fast records are read, rows are packed and batches are made.
 *
 * With dataset_path, its files are read in order and, where they can be, at random. Without, the
 * built-in corpus is written to a temporary folder as JSON lines, plain and zstd, and read back;
 * then every packer and the whole loader run on the corpus. Rates are per second of processor
 * time of one core for readers and packers, and per second on the clock for the loader with its
 * threads.
 */
#include "cmd/bench.h"
#include "data/load/dataset.h"
#include "data/formats/json_scan.h"
#include "data/formats/story.h"
#include "train/input/train_data.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

/* --- readers --- */

typedef struct {
    double bytes, seconds;
    int64_t records;
} rate;

static mx_status read_some(mx_source *s, bool random, rate *r)
{
    mx_record rec = {0};
    mx_status st = MX_OK;
    bool end = false;
    double from = mx_clock_of(CLOCK_THREAD_CPUTIME_ID);
    *r = (rate){0};
    while (!st && !end && r->seconds < 3 && (s->n_records < 0 || r->records < s->n_records)) {
        for (int k = 0; k < 256 && !st && !end && (s->n_records < 0 || r->records < s->n_records);
             k++) {
            int64_t i = random ? mx_permute(s->n_records, 7, r->records) : r->records;
            st = s->n_records < 0 ? mx_source_next(s, &rec, &end) : mx_source_read(s, i, &rec);
            for (int c = 0; !st && !end && c < rec.n_cells; c++)
                r->bytes += (double)rec.cells[c].len_bytes;
            r->records += !st && !end;
        }
        r->seconds = mx_clock_of(CLOCK_THREAD_CPUTIME_ID) - from;
    }
    mx_record_fini(&rec);
    return st;
}

static mx_status bench_file(const mx_invocation *inv, const char *path)
{
    mx_source s;
    rate r;
    char name[256];
    const char *base = strrchr(path, '/');
    mx_source_options o = {.columns = (const char *[]){"text"}, .n_columns = 1};
    base = base ? base + 1 : path;
    MX_TRY(mx_source_open(&s, path, NULL, &o));
    mx_status st = read_some(&s, false, &r);
    if (!st) {
        snprintf(name, sizeof name, "read %s in order", base);
        mx_bench_print(inv, name, r.bytes / 1e6 / r.seconds, "MB of text/s/core");
        mx_bench_print(inv, name, (double)r.records / r.seconds, "records/s/core");
    }
    if (!st && s.n_records > 0 && !s.n_blocks) {
        st = read_some(&s, true, &r);
        snprintf(name, sizeof name, "read %s at random", base);
        if (!st)
            mx_bench_print(inv, name, (double)r.records / r.seconds, "records/s/core");
    }
    mx_source_close(&s);
    return st;
}

static mx_status write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(data, 1, n, f) == n;
    if (f)
        ok = fclose(f) == 0 && ok;
    return ok ? MX_OK : mx_fail_errno(MX_DEVICE, "%s: cannot be written", path);
}

/* Ten stories to a record, so that records have the length of web documents. */
static mx_status bench_generated(const mx_invocation *inv, const char *dir)
{
    mx_str lines = {0}, text = {0};
    size_t want = (size_t)mx_config_int(inv->config, "megabytes") * 1000000;
    for (uint64_t i = 0; lines.len < want; i += 10) {
        mx_str_clear(&text);
        for (uint64_t k = 0; k < 10; k++)
            mx_story_write(&text, 1, i + k);
        mx_str_add(&lines, "{\"id\": 1, \"text\": ");
        mx_json_write_string(&lines, text.text, text.len);
        mx_str_add(&lines, "}\n");
    }
    mx_bench_print(inv, "generated text", (double)lines.len / 1e6, "MB");
    char plain[512], packed[512];
    snprintf(plain, sizeof plain, "%s/corpus.jsonl", dir);
    snprintf(packed, sizeof packed, "%s/corpus.jsonl.zst", dir);
    size_t cap = ZSTD_compressBound(lines.len);
    void *z = mx_realloc(NULL, cap);
    size_t n = ZSTD_compress(z, cap, lines.text, lines.len, 3);
    mx_status st = write_file(plain, lines.text, lines.len);
    if (!st)
        st = write_file(packed, z, n);
    mx_free(z);
    mx_str_fini(&lines);
    mx_str_fini(&text);
    if (!st)
        st = bench_file(inv, plain);
    if (!st)
        st = bench_file(inv, packed);
    unlink(plain);
    unlink(packed);
    return st;
}

/* --- packers --- */

static void bench_packers(const mx_invocation *inv)
{
    static const char *const names[] = {"none", "first_fit", "best_fit", "concat"};
    enum { DOCUMENT = 4096, S = 2048 };
    int32_t *ids = mx_realloc(NULL, sizeof *ids * DOCUMENT),
            *row = mx_realloc(NULL, sizeof *row * 4 * S);
    uint8_t *trained = mx_realloc(NULL, DOCUMENT);
    memset(ids, 0, sizeof *ids * DOCUMENT);
    memset(trained, 1, DOCUMENT);
    for (int kind = 0; kind < 4; kind++) {
        mx_packer *p = mx_packer_new(&(mx_pack_options){.kind = (mx_pack_kind)kind, .seq_len = S});
        double from = mx_clock_of(CLOCK_THREAD_CPUTIME_ID);
        for (uint64_t w = 1; w <= 20; w++) {
            for (int64_t i = 0; !mx_packer_full(p); i++)
                mx_packer_add(p, ids, trained, 50 + (i * 7919 + (int64_t)w) % 1200);
            mx_packer_close(p, false);
            for (int64_t r = 0; r < mx_packer_rows(p); r++)
                mx_packer_write(p, r, row, row + S, row + 2 * S, row + 3 * S);
            mx_packer_next(p, w);
        }
        mx_pack_counts c = mx_packer_counts(p);
        char name[64];
        snprintf(name, sizeof name, "pack %s", names[kind]);
        mx_bench_print(inv, name,
                       (double)c.tokens / 1e6 / (mx_clock_of(CLOCK_THREAD_CPUTIME_ID) - from),
                       "million tokens/s/core");
        mx_bench_print(inv, name, 100 * (double)c.tokens / (double)c.places, "% full");
        mx_packer_free(p);
    }
    mx_free(ids);
    mx_free(row);
    mx_free(trained);
}

/* --- the whole loader --- */

static mx_status bench_loader(const mx_invocation *inv)
{
    mx_train_data d = {0};
    mx_train_data_request r = {.config = inv->config, .rows = 16};
    const mx_batch *b = NULL;
    mx_status st = mx_train_data_open(&d, &r);
    double from = mx_clock_of(CLOCK_MONOTONIC), tokens = 0;
    while (!st && mx_clock_of(CLOCK_MONOTONIC) - from < 3) {
        st = mx_loader_next(d.loader, &b);
        if (st || !b)
            break;
        tokens += (double)b->n_tokens;
    }
    if (!st) {
        char name[96];
        snprintf(name, sizeof name, "loader, %s tokenizer", mx_tokenizer_kind(d.tokenizer));
        mx_bench_print(inv, name, tokens / 1e6 / (mx_clock_of(CLOCK_MONOTONIC) - from),
                       "million tokens/s");
    }
    mx_train_data_close(&d);
    return st;
}

static mx_status run(mx_invocation *inv)
{
    const char *paths = mx_config_text(inv->config, "dataset_path");
    char dir[] = "/tmp/maxc-bench-XXXXXX";
    mx_arena a = {0};
    mx_status st = MX_OK;
    if (*paths) {
        char **files;
        int n = 0;
        st = mx_paths_expand(paths, &a, &files, &n);
        for (int i = 0; !st && i < n; i++)
            st = bench_file(inv, files[i]);
    } else if (!mkdtemp(dir)) {
        st = mx_fail_errno(MX_DEVICE, "%s: no temporary folder can be made", dir);
    } else {
        st = bench_generated(inv, dir);
        rmdir(dir);
    }
    mx_arena_fini(&a);
    MX_TRY(st);
    bench_packers(inv);
    return bench_loader(inv);
}

const mx_bench mx_bench_data = {
    .name = "data",
    .doc = "reading, packing and batching of training data",
    .run = run,
};

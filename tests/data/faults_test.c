/* faults_test.c - files that are missing, empty, rewritten, far too large, or are bombs. Damage
 * inside the formats is in table_test.c, text that is no text in source_test.c. */
#include "../test.h"

#include "base/arena.h"
#include "data/load/dataset.h"
#include "files.h"
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static int64_t peak_bytes(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_maxrss * 1024;
}

MX_TEST(empty_and_missing_files_are_refused)
{
    mx_source s;
    static const char *const names[] = {"e.jsonl", "e.txt", "e.parquet", "e.arrow", "e.tfrecord",
                                        "e.arrayrecord", "e.npy", "e.jsonl.zst"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        MX_CHECK_ERROR(mx_source_open(&s, temp_file(names[i], "", 0), NULL, NULL),
                       "the file is empty (0 bytes)");
        unlink(temp_path(names[i]));
        MX_CHECK_ERROR(mx_source_open(&s, temp_path(names[i]), NULL, NULL), names[i]);
    }
}

/* Of other length after it was counted; shorter while it is open. */
MX_TEST(files_rewritten_during_a_run_are_refused)
{
    mx_source s;
    mx_record r = {0};
    const char *path = temp_text("w.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    MX_CHECK_OK(mx_source_open(&s, path, NULL, NULL));
    mx_shard_park(&s.file);
    s.file.n = 0; /* as if other records had been read in between */
    temp_text("w.jsonl", "{\"text\": \"other\"}\n{\"text\": \"two\"}\n");
    MX_CHECK_ERROR(mx_source_read(&s, 0, &r), "w.jsonl");
    mx_source_close(&s);
    MX_CHECK_OK(mx_source_open(&s, path, NULL, NULL));
    s.file.n = 0;
    MX_CHECK(truncate(path, 5) == 0);
    MX_CHECK_ERROR(mx_source_read(&s, 0, &r), "became shorter");
    mx_source_close(&s);
    mx_record_fini(&r);
}

/* A line of a gibibyte is one bad record: it costs no memory, and its neighbours are read. */
MX_TEST(line_of_a_gibibyte_is_one_bad_record)
{
    const char *path = temp_text("g.jsonl", "{\"text\": \"first\"}\n{\"text\": \"");
    FILE *f = fopen(path, "ab");
    MX_CHECK(f && fseek(f, 0, SEEK_END) == 0);
    MX_CHECK(ftruncate(fileno(f), (1 << 30) + 28) == 0); /* a hole: no disk is used */
    fclose(f);
    f = fopen(path, "ab");
    fputs("\"}\n{\"text\": \"last\"}\n", f);
    fclose(f);
    mx_source s;
    mx_record r = {0};
    int64_t before = peak_bytes();
    MX_CHECK_OK(mx_source_open(&s, path, NULL, NULL));
    MX_CHECK(s.n_records == 3, "%d records", (int)s.n_records);
    MX_CHECK_OK(mx_source_read(&s, 0, &r));
    MX_CHECK_ERROR(mx_source_read(&s, 1, &r), "max_record_bytes is 268435456");
    MX_CHECK_OK(mx_source_read(&s, 2, &r));
    MX_CHECK(strcmp(mx_record_data(&r, 0), "last") == 0);
    MX_CHECK(peak_bytes() - before < 100 << 20, "%d MiB", (int)((peak_bytes() - before) >> 20));
    mx_source_close(&s);
    mx_record_fini(&r);
}

/* One value of 300 MiB in a few hundred bytes; the limit is 256 MiB. */
static void check_bomb(const char *name, int64_t good, int64_t bad)
{
    mx_source s;
    mx_record r = {0};
    int64_t before = peak_bytes();
    mx_status st = mx_source_open(&s, fixture(name), NULL, NULL);
    if (st) { /* refusing the whole file is as good */
        mx_status_free(st);
        return;
    }
    if (good >= 0)
        MX_CHECK_OK(mx_source_read(&s, good, &r));
    MX_CHECK_ERROR(mx_source_read(&s, bad, &r), "bytes");
    MX_CHECK(peak_bytes() - before < 1000 << 20, "%s: %d MiB", name,
             (int)((peak_bytes() - before) >> 20));
    mx_source_close(&s);
    mx_record_fini(&r);
}

MX_TEST(bombs_in_parquet_and_arrayrecord_are_refused)
{
    check_bomb("bomb.parquet", -1, 1);
    check_bomb("bomb_dictionary.parquet", -1, 1);
    check_bomb("bomb.arrayrecord", 0, 1);
}

MX_TEST(bomb_in_gzip_is_refused)
{
    z_stream z = {0};
    static char blanks[1 << 20], out[1 << 20];
    memset(blanks, ' ', sizeof blanks);
    MX_CHECK(deflateInit2(&z, 9, Z_DEFLATED, 31, 9, Z_DEFAULT_STRATEGY) == Z_OK);
    z.next_out = (Bytef *)out;
    z.avail_out = sizeof out;
    for (int i = 0; i < 300; i++) {
        z.next_in = (Bytef *)blanks;
        z.avail_in = sizeof blanks;
        MX_CHECK(deflate(&z, i == 299 ? Z_FINISH : Z_NO_FLUSH) != Z_STREAM_ERROR);
    }
    size_t n = sizeof out - z.avail_out;
    deflateEnd(&z);
    mx_source s;
    mx_record r = {0};
    bool end = false;
    int64_t before = peak_bytes();
    MX_CHECK_OK(mx_source_open(&s, temp_file("bomb.jsonl.gz", out, n), NULL, NULL));
    mx_status st = mx_source_next(&s, &r, &end);
    MX_CHECK(st != MX_OK, "300 MiB of blanks were read");
    mx_status_free(st);
    MX_CHECK(peak_bytes() - before < 800 << 20, "%d MiB", (int)((peak_bytes() - before) >> 20));
    mx_source_close(&s);
    mx_record_fini(&r);
}

/* Going to a place reads only what the next record needs: the first row group is damaged, and a
 * record of the third is read all the same. */
MX_TEST(seek_touches_only_what_it_needs)
{
    size_t n;
    char *p = read_whole(fixture("snappy_v1.parquet"), &n);
    memset(p + 4, 0x55, 400);
    mx_dataset *d;
    mx_record r = {0};
    bool end = false;
    mx_dataset_options o = {.paths = temp_file("seek.parquet", p, n), .n_epochs = 1,
                            .source = {.columns = (const char *[]){"text"}, .n_columns = 1}};
    MX_CHECK_OK(mx_dataset_open(&d, &o));
    MX_CHECK_OK(mx_dataset_next(d, &(mx_cursor){.index = 45}, &r, &end));
    mx_status st = mx_dataset_next(d, &(mx_cursor){.index = 0}, &r, &end);
    MX_CHECK(st != MX_OK, "the damage was not met");
    mx_status_free(st);
    mx_dataset_close(d);
    mx_record_fini(&r);
    mx_free(p);
}

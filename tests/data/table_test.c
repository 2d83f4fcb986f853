/* table_test.c - Parquet, Arrow and the record formats: files written by other programs hold the
 * same rows as a JSON-lines file written beside them. */
#include "../test.h"

#include "data/load/order.h"
#include "data/formats/source.h"
#include "data/formats/payload.h"
#include "files.h"
#include <jansson.h>
#include <string.h>

/* The record as a JSON object. Text cells become strings. */
static json_t *as_object(const mx_record *r)
{
    json_t *o = json_object();
    for (int i = 0; i < r->n_cells; i++) {
        const mx_cell *c = &r->cells[i];
        const char *p = mx_record_data(r, i);
        json_t *v = c->kind == MX_CELL_TEXT   ? json_stringn(p, c->len_bytes)
                    : c->kind == MX_CELL_NULL ? json_null()
                                              : json_loadb(p, c->len_bytes, JSON_DECODE_ANY, NULL);
        MX_CHECK(v != NULL, "cell %s is not JSON: %s", mx_record_name(r, i), p);
        json_object_set_new(o, mx_record_name(r, i), v ? v : json_null());
    }
    return o;
}

static void compare(const char *file, const char *rows, const char *only)
{
    mx_source s, want;
    mx_record a = {0}, b = {0};
    mx_source_options o = {.columns = &only, .n_columns = 1};
    if (!only)
        o = (mx_source_options){0};
    mx_status st = mx_source_open(&s, fixture(file), NULL, &o);
    MX_CHECK_OK(mx_source_open(&want, fixture(rows), NULL, &o));
    if (st) {
        MX_CHECK_OK(st);
        mx_source_close(&want);
        return;
    }
    MX_CHECK(s.n_records == want.n_records, "%s: %d records", file, (int)s.n_records);
    int bad = 0;
    for (int64_t k = 0; k < 2 * want.n_records && s.n_records == want.n_records && bad < 3; k++) {
        int64_t i = k < want.n_records ? k : mx_permute(want.n_records, 4, k - want.n_records);
        st = mx_source_read(&s, i, &a);
        bad += st != MX_OK;
        MX_CHECK_OK(st);
        MX_CHECK_OK(mx_source_read(&want, i, &b));
        json_t *x = as_object(&a), *y = as_object(&b);
        if (!bad && !json_equal(x, y)) {
            char *xs = json_dumps(x, JSON_SORT_KEYS), *ys = json_dumps(y, JSON_SORT_KEYS);
            MX_CHECK(false, "%s row %d:\n  %s\n  %s", file, (int)i, xs, ys);
            mx_free(xs), mx_free(ys);
            bad++;
        }
        json_decref(x), json_decref(y);
    }
    mx_str out = {0};
    MX_CHECK_OK(mx_source_inspect(&s, &out));
    MX_CHECK(strstr(mx_str_text(&out), "records: "));
    mx_str_fini(&out);
    mx_record_fini(&a), mx_record_fini(&b);
    mx_source_close(&s), mx_source_close(&want);
}

MX_TEST(parquet_files_of_other_writers)
{
    static const char *const files[] = {"snappy_v1.parquet",  "zstd_v2.parquet",
                                        "delta_gzip.parquet", "plain.parquet",
                                        "lz4.parquet",        "brotli.parquet"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        compare(files[i], "rows.jsonl", NULL);
        compare(files[i], "rows.jsonl", "text");
        compare(files[i], "rows.jsonl", "messages");
    }
    compare("fast.parquet", "fast.jsonl", NULL);
}

/* Every truncation and many flipped bytes: an error or the same rows, never a crash. Returns how
 * many of the flips were noticed. */
static int damage(const char *file, int step)
{
    size_t n;
    char *whole = read_whole(fixture(file), &n);
    int noticed = 0;
    const mx_source_kind *kind = NULL;
    MX_CHECK_OK(mx_source_kind_detect(fixture(file), &kind));
    for (size_t k = 0; kind && k < 2 * n; k += (size_t)step) {
        mx_source s;
        mx_record r = {0};
        bool cut = k >= n;
        size_t at = cut ? k - n : k;
        char old = whole[at];
        whole[at] = (char)(old ^ (1 << k % 8));
        const char *path = temp_file("damaged", whole, cut ? at : n);
        whole[at] = old;
        mx_status st = mx_source_open(&s, path, kind, NULL);
        if (!st) {
            bool end = false;
            for (int64_t i = 0; !st && !end && i < (s.n_records < 0 ? 1000 : s.n_records); i++)
                st = s.n_records < 0 ? mx_source_next(&s, &r, &end) : mx_source_read(&s, i, &r);
            mx_source_close(&s);
        }
        noticed += st && !cut;
        MX_CHECK(!st || mx_status_code(st) == MX_INPUT, "%s", mx_status_text(st));
        MX_CHECK(!cut || st, "%s cut to %zu bytes is accepted", file, at);
        mx_status_free(st);
        mx_record_fini(&r);
    }
    mx_free(whole);
    return noticed;
}

MX_TEST(parquet_damage_is_refused)
{
    damage("snappy_v1.parquet", 31);
    damage("zstd_v2.parquet", 31);
    damage("delta_gzip.parquet", 31);
    damage("plain.parquet", 97);
}

MX_TEST(tfrecord_files_of_other_writers)
{
    compare("examples.tfrecord", "examples.jsonl", NULL);
    compare("examples.tfrecord", "examples.jsonl", "text");
    /* gzip: the same records as a stream */
    mx_source a, b;
    mx_record x = {0}, y = {0};
    bool end = false;
    int64_t n = 0;
    MX_CHECK_OK(mx_source_open(&a, fixture("examples.tfrecord.gz"), NULL, NULL));
    MX_CHECK_OK(mx_source_open(&b, fixture("examples.tfrecord"), NULL, NULL));
    for (;; n++) {
        MX_CHECK_OK(mx_source_next(&a, &x, &end));
        if (end || n == b.n_records)
            break;
        MX_CHECK_OK(mx_source_read(&b, n, &y));
        MX_CHECK(x.bytes.len == y.bytes.len &&
                 memcmp(x.bytes.text, y.bytes.text, x.bytes.len) == 0);
    }
    MX_CHECK(end && n == 60, "%d records", (int)n);
    mx_source_close(&a), mx_source_close(&b);
    mx_record_fini(&x), mx_record_fini(&y);
}

MX_TEST(arrayrecord_files_of_other_writers)
{
    compare("zstd.arrayrecord", "examples.jsonl", NULL);
    compare("group.arrayrecord", "examples.jsonl", NULL);
    compare("brotli.arrayrecord", "examples.jsonl", NULL);
    compare("snappy.arrayrecord", "examples.jsonl", NULL);
    compare("plain.arrayrecord", "examples.jsonl", "text");
    compare("text.arrayrecord", "fast.jsonl", "text");
}

static void varint(mx_str *s, size_t v)
{
    for (; v >= 128; v >>= 7)
        mx_str_add_n(s, &(char){(char)(v | 128)}, 1);
    mx_str_add_n(s, &(char){(char)v}, 1);
}

/* Field `number` of a message, of wire type 2. Takes `inner`. */
static mx_str wrapped(char number, mx_str inner)
{
    mx_str s = {0};
    mx_str_add_n(&s, &(char){(char)(number << 3 | 2)}, 1);
    varint(&s, inner.len);
    mx_str_add_n(&s, mx_str_text(&inner), inner.len);
    mx_str_fini(&inner);
    return s;
}

/* An Example with the feature "a": a list of kind `kind` that holds `list`. Takes `list`. */
static mx_str example_of(char kind, mx_str list)
{
    mx_str entry = {0}, value = wrapped(2, wrapped(kind, list));
    mx_str_add_n(&entry, "\x0a\x01" "a", 3);
    mx_str_add_n(&entry, value.text, value.len);
    mx_str_fini(&value);
    return wrapped(1, wrapped(1, entry));
}

/* What is short in the file and long as text is a bad record. */
MX_TEST(records_that_grow_are_refused)
{
    mx_source s = {.options = {.max_record_bytes = 50000}};
    mx_record r = {0};
    for (int kind = 1; kind <= 3; kind++) {
        mx_str list = {0}, one = {0};
        for (int i = 0; i < (kind == 1 ? 20000 : 40000); i++)
            mx_str_add_n(&one, "\0", 1);
        for (int i = 0; kind == 1 && i < 2; i++) { /* two strings of zero bytes */
            mx_str_add_n(&list, "\x0a", 1);
            varint(&list, one.len);
            mx_str_add_n(&list, one.text, one.len);
        }
        mx_str m = example_of((char)kind, kind == 1 ? list : wrapped(1, one));
        if (kind == 1)
            mx_str_fini(&one);
        mx_record_clear(&r);
        mx_status st = mx_payload_decode(&s, (const uint8_t *)m.text, m.len, &r);
        if (kind == 2) /* 10,000 floats, "0, " each */
            MX_CHECK_OK(st);
        else
            MX_CHECK_ERROR(st, "max_record_bytes, 50000");
        MX_CHECK(r.bytes.len < 400000, "%zu bytes", r.bytes.len);
        mx_str_fini(&m);
    }
    mx_record_fini(&r);
}

MX_TEST(record_damage_is_refused)
{
    size_t n;
    /* a cut at the end of a record leaves a shorter file that is whole: only flips are counted
     * here */
    char *p = read_whole(fixture("examples.tfrecord"), &n);
    mx_source s;
    mx_record r = {0};
    int noticed = 0;
    for (size_t at = 0; at < n; at += 11) {
        p[at] ^= 4;
        mx_status st = mx_source_open(&s, temp_file("d.tfrecord", p, n), NULL, NULL);
        for (int64_t i = 0; !st && i < s.n_records; i++)
            st = mx_source_read(&s, i, &r);
        noticed += st != MX_OK;
        mx_status_free(st);
        mx_source_close(&s);
        p[at] ^= 4;
    }
    MX_CHECK(noticed == (int)((n + 10) / 11), "%d of %d flips were noticed", noticed,
             (int)((n + 10) / 11));
    MX_CHECK_ERROR(mx_source_open(&s, temp_file("c.tfrecord", p, n - 3), NULL, NULL), "truncated");
    MX_CHECK_ERROR(mx_source_open(&s, temp_file("c.tfrecord", p + 1, n - 1), NULL, NULL),
                   "checksum");
    mx_free(p);
    damage("examples.tfrecord.gz", 37);
    /* every flip inside a used chunk is noticed; the rest of the 128 KiB is padding */
    noticed = damage("group.arrayrecord", 1009);
    MX_CHECK(noticed > 2, "%d flips were noticed", noticed);
    p = read_whole(fixture("zstd.arrayrecord"), &n);
    p[64 + 24 + 100] ^= 1;
    MX_CHECK_OK(mx_source_open(&s, temp_file("d.arrayrecord", p, n), NULL, NULL));
    MX_CHECK_ERROR(mx_source_read(&s, 0, &r), "hash of the chunk");
    mx_source_close(&s);
    mx_free(p);
    mx_record_fini(&r);
}

MX_TEST(arrow_files_of_other_writers)
{
    static const char *const files[] = {"file.arrow", "stream.arrow", "lz4.arrow", "zstd.arrow"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        compare(files[i], "rows.jsonl", NULL);
        compare(files[i], "rows.jsonl", "text");
        compare(files[i], "rows.jsonl", "messages");
    }
    compare("types.arrow", "types.jsonl", NULL);
    /* dictionaries that are replaced from batch to batch, or grow, in a stream and in a file */
    compare("replaced.arrow", "replaced.jsonl", NULL);
    compare("delta.arrow", "delta.jsonl", NULL);
    compare("delta_file.arrow", "delta.jsonl", NULL);
}

MX_TEST(arrow_damage_is_refused)
{
    damage("file.arrow", 131);
    damage("types.arrow", 131);
    damage("zstd.arrow", 131);
    damage("lz4.arrow", 131);
    damage("delta_file.arrow", 17); /* a stream may end after any message */
}

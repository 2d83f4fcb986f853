/* source_test.c - text, JSON lines and token files: what is read, and what is refused with a place.
 */
#include "../test.h"

#include "data/formats/source.h"
#include "files.h"
#include <stdio.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

static const char *cell(const mx_record *r, const char *name)
{
    int i = mx_record_find(r, name);
    return i < 0 ? "(none)" : mx_record_data(r, i);
}

static mx_status open_one(mx_source *s, const char *path, mx_source_options o)
{
    return mx_source_open(s, path, NULL, &o);
}

MX_TEST(jsonl_reads_every_line_in_any_order)
{
    mx_str text = {0};
    for (int i = 0; i < 100; i++)
        mx_str_addf(&text,
                    "%s{\"text\": \"line %d\", \"n\": [%d, {\"a\": null}], \"skip\": \"%0*d\"}%s",
                    i == 0 ? "\xef\xbb\xbf" : "", i, i, i * 7, 0, i % 3 ? "\n" : "\r\n\n");
    mx_source s;
    mx_record r = {0};
    MX_CHECK_OK(
        open_one(&s, temp_file("a.jsonl", text.text, text.len),
                 (mx_source_options){.columns = (const char *[]){"text", "n"}, .n_columns = 2}));
    MX_CHECK(s.n_records == 100, "%d records", (int)s.n_records);
    for (int k = 0; k < 300; k++) {
        char want[64];
        int i = k < 100 ? k : k * 37 % 100;
        MX_CHECK_OK(mx_source_read(&s, i, &r));
        snprintf(want, sizeof want, "line %d", i);
        MX_CHECK(strcmp(cell(&r, "text"), want) == 0, "record %d is \"%s\"", i, cell(&r, "text"));
        snprintf(want, sizeof want, "[%d, {\"a\": null}]", i);
        MX_CHECK(strcmp(cell(&r, "n"), want) == 0, "record %d: n is %s", i, cell(&r, "n"));
        MX_CHECK(mx_record_find(&r, "skip") < 0);
    }
    mx_source_close(&s);
    mx_record_fini(&r);
    mx_str_fini(&text);
}

/* Records of a JSON array lie where they lie, whatever is between and inside them. */
MX_TEST(json_array_gives_its_elements)
{
    static const char text[] = "\xef\xbb\xbf \n[\n  {\"text\": \"a ], [ \\\" } ,\"},"
                               "{\"text\": \"b\", "
                               "\"x\": [[1], {\"y\": []}]}\n ,\n{\"text\": \"\\\\\"}\n]\n";
    static const char *const want[] = {"a ], [ \" } ,", "b", "\\"};
    mx_source s;
    mx_record r = {0};
    MX_CHECK_OK(open_one(&s, temp_text("array.json", text), (mx_source_options){0}));
    MX_CHECK(s.n_records == 3, "%d records", (int)s.n_records);
    for (int k = 0; k < 9; k++) {
        int i = k * 2 % 3;
        MX_CHECK_OK(mx_source_read(&s, i, &r));
        MX_CHECK(strcmp(cell(&r, "text"), want[i]) == 0, "%d: %s", i, cell(&r, "text"));
        MX_CHECK(text[r.offset] == '{', "record %d begins at %d", i, (int)r.offset);
    }
    mx_source_close(&s);
    mx_str many = {0};
    for (int i = 0; i < 60000; i++) /* more than one look at the file */
        mx_str_addf(&many, "%s{\"text\": \"element number %d\"}", i ? ", " : "[", i);
    mx_str_add(&many, "]");
    MX_CHECK_OK(open_one(&s, temp_file("many.json", many.text, many.len), (mx_source_options){0}));
    MX_CHECK(s.n_records == 60000, "%d records", (int)s.n_records);
    MX_CHECK_OK(mx_source_read(&s, 59999, &r));
    MX_CHECK(strcmp(cell(&r, "text"), "element number 59999") == 0, "%s", cell(&r, "text"));
    mx_source_close(&s);
    mx_str_fini(&many);
    mx_record_fini(&r);
}

MX_TEST(json_array_damage_is_refused)
{
    static const char *const bad[][2] = {{"[{\"text\": \"a\"}, {\"text\": \"b", "never closed"},
                                         {"[{\"text\": \"a\"}", "never closed"},
                                         {"[{\"text\": \"a\"},,{}]", "offset 15"},
                                         {"[{\"text\": \"a\"},]", "offset 15"},
                                         {"[{}}]", "offset 3"},
                                         {"[] x", "offset 3"}};
    mx_source s;
    mx_record r = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        MX_CHECK_ERROR(open_one(&s, temp_text("bad.json", bad[i][0]), (mx_source_options){0}),
                       bad[i][1]);
    MX_CHECK_OK(open_one(&s, temp_text("odd.json", "[{\"text\": \"a\"}, 5, {\"a\" 1}]"),
                         (mx_source_options){.max_record_bytes = 100}));
    MX_CHECK_OK(mx_source_read(&s, 0, &r));
    MX_CHECK_ERROR(mx_source_read(&s, 1, &r), "record 1 at offset 16");
    MX_CHECK_ERROR(mx_source_read(&s, 2, &r), "record 2 at offset 19");
    mx_source_close(&s);
    mx_record_fini(&r);
}

MX_TEST(jsonl_undoes_escapes)
{
    static const char line[] = "{\"text\": \"q\\\" b\\\\ s\\/ \\b\\f\\n\\r\\t \\u0041 \\u00e9 "
                               "\\u4e2d \\ud83d\\ude00 \\u0000 end\"}";
    static const char want[] =
        "q\" b\\ s/ \b\f\n\r\t A \xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80 \0 end";
    mx_source s;
    mx_record r = {0};
    MX_CHECK_OK(open_one(&s, temp_text("e.jsonl", line), (mx_source_options){0}));
    MX_CHECK_OK(mx_source_read(&s, 0, &r));
    MX_CHECK(r.n_cells == 1 && r.cells[0].len_bytes == sizeof want - 1 &&
             memcmp(mx_record_data(&r, 0), want, sizeof want) == 0);
    mx_source_close(&s);
    mx_record_fini(&r);
}

MX_TEST(jsonl_refuses_bad_lines_with_their_place)
{
    static const struct {
        const char *line, *error;
    } cases[] = {
        {"[1]", "object was expected"},
        {"{\"text\": \"a\"", "'}' was expected"},
        {"{\"text\": \"a}", "does not end"},
        {"{\"text\": \"a\"} x", "follows the object"},
        {"{\"text\": \"\\ud800\"}", "high surrogate"},
        {"{\"text\": \"\\ud800\\u0041\"}", "high surrogate"},
        {"{\"text\": \"\\udc00\"}", "low surrogate"},
        {"{\"text\": \"\\x\"}", "unknown escape"},
        {"{\"text\": \"\\u12g4\"}", "hexadecimal"},
        {"{\"text\": \"a\tb\"}", "control character"},
        {"{\"text\": \"\xff\"}", "not UTF-8"},
        {"{\"text\": \"\xed\xa0\x80\"}", "not UTF-8"},
        {"{\"text\": \"\xc0\x80\"}", "not UTF-8"},
        {"{\"text\": 01}", "'}' was expected"},
        {"{\"text\": 1.}", "decimal point"},
        {"{\"text\": 1e}", "exponent"},
        {"{\"text\": nul}", "value was expected"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "twice"},
        {"{text: 1}", "key in quotes"},
        {"{\"a\": [1,]}", "value was expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mx_str text = {0};
        mx_source s;
        mx_record r = {0};
        mx_str_addf(&text, "{\"text\": \"fine\"}\n%s\n", cases[i].line);
        /* "01" is the number 0 and then rubbish */
        const char *want = strstr(cases[i].line, "01}") ? "expected" : cases[i].error;
        MX_CHECK_OK(
            open_one(&s, temp_file("bad.jsonl", text.text, text.len), (mx_source_options){0}));
        MX_CHECK_OK(mx_source_read(&s, 0, &r));
        MX_CHECK_ERROR(mx_source_read(&s, 1, &r), want);
        MX_CHECK_ERROR(mx_source_read(&s, 1, &r), "bad.jsonl: record 1 at offset 17");
        MX_CHECK_OK(mx_source_read(&s, 0, &r));
        mx_source_close(&s);
        mx_record_fini(&r);
        mx_str_fini(&text);
    }
}

MX_TEST(jsonl_depth_and_length_are_limited)
{
    mx_str text = {0};
    mx_str_add(&text, "{\"text\": ");
    for (int i = 0; i < 100000; i++)
        mx_str_add(&text, "[");
    mx_str_add(&text, "\n{\"text\": \"ok\"}\n");
    mx_source s;
    mx_record r = {0};
    MX_CHECK_OK(open_one(&s, temp_file("deep.jsonl", text.text, text.len),
                         (mx_source_options){.max_record_bytes = 200000}));
    MX_CHECK_ERROR(mx_source_read(&s, 0, &r), "128 deep");
    mx_source_close(&s);
    MX_CHECK_OK(
        open_one(&s, temp_path("deep.jsonl"), (mx_source_options){.max_record_bytes = 5000}));
    MX_CHECK_ERROR(mx_source_read(&s, 0, &r), "max_record_bytes is 5000");
    MX_CHECK_OK(mx_source_read(&s, 1, &r));
    MX_CHECK(strcmp(cell(&r, "text"), "ok") == 0);
    mx_source_close(&s);
    mx_record_fini(&r);
    mx_str_fini(&text);
}

static size_t zstd_of(const mx_str *t, char *out, size_t cap)
{
    /* two frames, as `cat a.zst b.zst` makes them */
    size_t half = t->len / 2, a = ZSTD_compress(out, cap, t->text, half, 3);
    return a + ZSTD_compress(out + a, cap - a, t->text + half, t->len - half, 3);
}

static size_t gzip_of(const mx_str *t, char *out, size_t cap)
{
    size_t n = 0;
    for (int part = 0; part < 2; part++) {
        z_stream z = {0};
        deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
        size_t half = t->len / 2;
        z.next_in = (unsigned char *)t->text + (part ? half : 0);
        z.avail_in = (unsigned)(part ? t->len - half : half);
        z.next_out = (unsigned char *)out + n;
        z.avail_out = (unsigned)(cap - n);
        deflate(&z, Z_FINISH);
        n += z.total_out;
        deflateEnd(&z);
    }
    return n;
}

MX_TEST(jsonl_streams_gzip_and_zstd)
{
    mx_str text = {0};
    for (int i = 0; i < 5000; i++)
        mx_str_addf(&text, "{\"text\": \"%d %d\"}\n", i, i * i % 9973);
    size_t cap = text.len + 1000;
    char *packed = mx_realloc(NULL, cap);
    mx_record r = {0};
    for (int gz = 0; gz < 2; gz++) {
        size_t n = gz ? gzip_of(&text, packed, cap) : zstd_of(&text, packed, cap);
        const char *path = temp_file(gz ? "a.jsonl.gz" : "a.jsonl.zst", packed, n);
        mx_source s;
        bool end;
        MX_CHECK_OK(open_one(&s, path, (mx_source_options){0}));
        MX_CHECK(s.n_records == -1);
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < 5000; i++) {
                char want[64];
                snprintf(want, sizeof want, "%d %d", i, i * i % 9973);
                MX_CHECK_OK(mx_source_next(&s, &r, &end));
                MX_CHECK(!end && strcmp(cell(&r, "text"), want) == 0, "%d: %s", i,
                         cell(&r, "text"));
            }
            MX_CHECK_OK(mx_source_next(&s, &r, &end));
            MX_CHECK(end);
            MX_CHECK_OK(mx_source_rewind(&s));
        }
        mx_source_close(&s);
        /* cut anywhere: an error at the cut, then the end; never a silent short file */
        for (size_t cut = n - 1; cut > n / 2 + 10; cut -= n / 40) {
            mx_status st = MX_OK;
            path = temp_file(gz ? "c.jsonl.gz" : "c.jsonl.zst", packed, cut);
            MX_CHECK_OK(open_one(&s, path, (mx_source_options){0}));
            for (end = false; !st && !end;)
                st = mx_source_next(&s, &r, &end);
            MX_CHECK_ERROR(st, "truncated or damaged");
            MX_CHECK_OK(mx_source_next(&s, &r, &end));
            MX_CHECK(end);
            mx_source_close(&s);
        }
    }
    mx_record_fini(&r);
    mx_free(packed);
    mx_str_fini(&text);
}

MX_TEST(compression_bomb_is_refused)
{
    /* 80 MiB of blank lines in a few kilobytes */
    size_t chunk = 4 << 20, cap = 1 << 20, n = 0;
    char *zeros = mx_realloc(NULL, chunk), *out = mx_realloc(NULL, cap);
    memset(zeros, ' ', chunk);
    zeros[chunk - 1] = '\n';
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_outBuffer o = {out, cap, 0};
    for (int i = 0; i < 20; i++) {
        ZSTD_inBuffer in = {zeros, chunk, 0};
        ZSTD_compressStream2(c, &o, &in, i == 19 ? ZSTD_e_end : ZSTD_e_continue);
    }
    n = o.pos;
    ZSTD_freeCCtx(c);
    mx_source s;
    mx_record r = {0};
    bool end = false;
    MX_CHECK_OK(open_one(&s, temp_file("bomb.jsonl.zst", out, n), (mx_source_options){0}));
    MX_CHECK_ERROR(mx_source_next(&s, &r, &end), "bomb");
    mx_source_close(&s);
    mx_record_fini(&r);
    mx_free(zeros);
    mx_free(out);
}

MX_TEST(text_blocks_tile_the_file)
{
    mx_str text = {0}, back = {0};
    for (int i = 0; i < 40000; i++)
        mx_str_addf(&text, "line %d \xe4\xb8\xad%s", i, i % 9000 < 100 ? "" : "\n");
    for (int i = 0; i < 100000; i++)
        mx_str_add(&text, "\xc3\xa9"); /* no line end for 200 KB: cuts fall between characters */
    mx_source s;
    mx_record r = {0};
    MX_CHECK_OK(open_one(&s, temp_file("a.txt", text.text, text.len), (mx_source_options){0}));
    for (int64_t i = 0; i < s.n_records; i++) {
        MX_CHECK_OK(mx_source_read(&s, i, &r));
        MX_CHECK(r.cells[0].len_bytes <= 3 * 65536);
        mx_str_add_n(&back, mx_record_data(&r, 0), r.cells[0].len_bytes);
    }
    MX_CHECK(back.len == text.len && memcmp(back.text, text.text, text.len) == 0);
    mx_source_close(&s);
    mx_str_fini(&text), mx_str_fini(&back);
    mx_record_fini(&r);
}

MX_TEST(text_lines_and_paragraphs)
{
    const char *path = temp_text("p.txt", "\n\none\ntwo\n\n\n \t\nthree\r\n\r\nfour");
    static const char *const lines[] = {"one", "two", "three", "four"};
    static const char *const paragraphs[] = {"one\ntwo", "three", "four"};
    for (int k = 0; k < 2; k++) {
        mx_source s;
        mx_record r = {0};
        MX_CHECK_OK(open_one(&s, path, (mx_source_options){.text_unit = k ? "paragraph" : "line"}));
        MX_CHECK(s.n_records == (k ? 3 : 4), "%d", (int)s.n_records);
        for (int i = 0; i < (int)s.n_records; i++) {
            MX_CHECK_OK(mx_source_read(&s, i, &r));
            const char *want = k ? paragraphs[i] : lines[i];
            MX_CHECK(strcmp(cell(&r, "text"), want) == 0, "%d: \"%s\"", i, cell(&r, "text"));
        }
        mx_source_close(&s);
        mx_record_fini(&r);
    }
    mx_source s;
    MX_CHECK_ERROR(open_one(&s, path, (mx_source_options){.text_unit = "page"}), "text_unit=page");
    MX_CHECK_ERROR(open_one(&s, temp_text("z.txt", ""), (mx_source_options){0}), "empty (0 bytes)");
    MX_CHECK_ERROR(open_one(&s, temp_path("missing.txt"), (mx_source_options){0}), "cannot open");
    MX_CHECK_ERROR(open_one(&s, temp_text("what", "????"), (mx_source_options){0}), "dataset_type");
}

MX_TEST(token_files_train_every_prediction_once)
{
    uint16_t ids[1001];
    for (int i = 0; i < 1001; i++)
        ids[i] = (uint16_t)(i * 31 % 500);
    mx_source s;
    mx_record r = {0};
    int64_t predictions = 0;
    MX_CHECK_OK(open_one(&s, temp_file("t.bin", ids, sizeof ids),
                         (mx_source_options){.record_tokens = 64, .vocab_size = 500}));
    for (int64_t i = 0; i < s.n_records; i++) {
        MX_CHECK_OK(mx_source_read(&s, i, &r));
        const int32_t *v = (const int32_t *)mx_record_data(&r, 0);
        int64_t n = (int64_t)r.cells[0].len_bytes / 4;
        MX_CHECK(v[0] == ids[i * 64] && v[n - 1] == ids[i * 64 + n - 1]);
        predictions += n - 1;
    }
    MX_CHECK(predictions == 1000, "%d predictions", (int)predictions);
    mx_source_close(&s);
    MX_CHECK_OK(open_one(&s, temp_path("t.bin"), (mx_source_options){.vocab_size = 400}));
    MX_CHECK_ERROR(mx_source_read(&s, 0, &r), "outside the vocabulary of 400");
    mx_source_close(&s);
    MX_CHECK_ERROR(open_one(&s, temp_path("t.bin"), (mx_source_options){.token_type = "uint32"}),
                   "not a whole number");
    mx_record_fini(&r);
}

MX_TEST(npy_headers_are_matched_not_evaluated)
{
    static const struct {
        const char *header, *error;
    } cases[] = {
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }", NULL},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (2, 2), }", NULL},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }", "truncated"},
        {"{'descr': '<u2', 'fortran_order': True, 'shape': (2, 2), }", "C-order"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (4,), }", "C-order"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "C-order"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (-1,), }", "C-order"},
        {"{'descr': '<u8', 'fortran_order': False, 'shape': (4611686018427387904, 4), }",
         "overflow"},
        {"__import__('os')", "C-order"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[256] = "\x93NUMPY\x01\0\x76\0";
        memset(file + 10, ' ', 118);
        memcpy(file + 10, cases[i].header, strlen(cases[i].header));
        uint16_t data[4] = {5, 6, 7, 8};
        memcpy(file + 128, data, 8);
        mx_source s;
        mx_record r = {0};
        mx_status st = open_one(&s, temp_file("x.npy", file, 136), (mx_source_options){0});
        if (cases[i].error) {
            MX_CHECK_ERROR(st, cases[i].error);
            continue;
        }
        MX_CHECK_OK(st);
        MX_CHECK_OK(mx_source_read(&s, 0, &r));
        MX_CHECK(((const int32_t *)mx_record_data(&r, 0))[1] == 6);
        MX_CHECK(s.n_records == (i == 1 ? 2 : 1));
        mx_source_close(&s);
        mx_record_fini(&r);
    }
}

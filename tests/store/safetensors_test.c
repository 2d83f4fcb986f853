/* safetensors_test.c - files that must open, headers that must not, and reading. */
#include "../test.h"
#include "base/arena.h"
#include "base/vmath.h"
#include "store/st_write.h"
#include "faulty_io.h"
#include "test_dir.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Opens, then closes; for files that are expected to be refused. */
static mx_status try_open(const char *path)
{
    mx_st_file f;
    mx_status st = mx_st_open(&f, path);
    if (!st)
        mx_st_close(&f);
    return st;
}

#define T(dtype, shape, begin, end)                                                                \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

MX_TEST(safetensors_hostile_headers)
{
    static const struct {
        const char *header;
        size_t data;
        const char *error;
    } cases[] = {
        {" {}", 0, "must begin with '{'"},
        {"[]", 0, "must begin with '{'"},
        {"{", 0, "not valid JSON"},
        {"{}x", 0, "not valid JSON"},
        {"{\"a\xff\":1}", 0, "not valid JSON"},
        {"{\"a\":" T("F32", "[1]", "0", "4") ",\"a\":" T("F32", "[1]", "4", "8") "}", 8,
         "duplicate"},
        {"{\"a\":3}", 0, "must be an object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "two integers"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" must be a string"},
        {"{\"a\":" T("F31", "[1]", "0", "4") "}", 4, "unknown dtype \"F31\""},
        {"{\"a\":" T("F4", "[2]", "0", "1") "}", 1, "F4 is not supported"},
        {"{\"a\":" T("F32", "3", "0", "4") "}", 4, "\"shape\" must be an array"},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "9 dims"},
        {"{\"a\":" T("F32", "[-1]", "0", "4") "}", 4, "negative"},
        {"{\"a\":" T("F32", "[1.0]", "0", "4") "}", 4, "a real number"},
        {"{\"a\":" T("F32", "[4294967296,4294967296]", "0", "4") "}", 4, "more than 2^63"},
        {"{\"a\":" T("F32", "[0,9223372036854775807,3]", "0", "4") "}", 4, "does not fill"},
        {"{\"a\":" T("F32", "[4611686018427387904]", "0", "0") "}", 0, "does not fill"},
        {"{\"a\":" T("F32", "[1]", "0", "99999999999999999999") "}", 4,
         "must be two integers"},
        {"{\"a\":" T("F32", "[1]", "0", "1e308") "}", 4, "two integers"},
        {"{\"a\":" T("F32", "[1]", "0", "4.0") "}", 4, "two integers"},
        {"{\"a\":" T("F32", "[1]", "-4", "0") "}", 4, "negative"},
        {"{\"a\":" T("F32", "[1]", "4", "0") "}", 4, "reversed"},
        {"{\"a\":" T("F32", "[1]", "0", "8") "}", 8, "does not fill"},
        {"{\"a\":" T("F32", "[2]", "0", "8") "}", 7, "truncated"},
        {"{\"a\":" T("F32", "[2]", "0", "8") "}", 9, "belong to no tensor"},
        {"{\"a\":" T("F32", "[2]", "0", "8") ",\"b\":" T("F32", "[1]", "4", "8") "}", 8, "overlap"},
        {"{\"a\":" T("F32", "[1]", "0", "4") ",\"b\":" T("F32", "[1]", "8", "12") "}", 12,
         "a hole of 4 bytes"},
        {"{\"a\":" T("F32", "[1]", "4", "8") "}", 8, "a hole of 4 bytes"},
        {"{\"a\":" T("F32", "[[1]]", "0", "4") "}", 4, "an array"},
        {"{\"a\":[[[[[[[[]]]]]]]]}", 0, "nested more than"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "must be a string"},
        {"{\"__metadata__\":[]}", 0, "an object of strings"},
        {"{\"\":" T("F32", "[1]", "0", "4") "}", 4, "a tensor name of 0 bytes"},
        {"{\"a\\u0000b\":" T("F32", "[1]", "0", "4") "}", 4, "not valid JSON"},
    };
    test_dir d;
    test_dir_make(&d);
    const char *path = test_dir_file(&d, "x.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_put_st(path, cases[i].header, cases[i].data);
        mx_status st = try_open(path);
        MX_CHECK(st && strstr(mx_status_text(st), cases[i].error), "case %zu (%s): got \"%s\"", i,
                 cases[i].header, mx_status_text(st));
        MX_CHECK(!st || strstr(mx_status_text(st), path), "case %zu does not name the file", i);
        mx_status_free(st);
    }
    test_dir_remove(&d);
}

MX_TEST(safetensors_hostile_lengths)
{
    test_dir d;
    test_dir_make(&d);
    const char *path = test_dir_file(&d, "x.safetensors");
    test_put(path, "", 0);
    MX_CHECK_ERROR(try_open(path), "too few");
    test_put(path, "\0\0\0\0\0\0\0", 7);
    MX_CHECK_ERROR(try_open(path), "too few");
    static const uint64_t lengths[] = {0, 3, 100000001, UINT64_C(1) << 63, UINT64_MAX};
    for (size_t i = 0; i < 5; i++) {
        unsigned char bytes[10] = {0};
        memcpy(bytes, &lengths[i], 8);
        bytes[8] = '{', bytes[9] = '}';
        test_put(path, bytes, sizeof bytes);
        MX_CHECK_ERROR(try_open(path), "a header of");
    }
    MX_CHECK_ERROR(try_open(d.path), "found a directory");
    MX_CHECK_ERROR(try_open(test_dir_file(&d, "absent")), "No such file");
    test_dir_remove(&d);
}

MX_TEST(safetensors_accepts_what_the_format_allows)
{
    test_dir d;
    test_dir_make(&d);
    const char *path = test_dir_file(&d, "x.safetensors");
    mx_st_file f;
    test_put_st(path, "{}", 0);
    MX_CHECK_OK(mx_st_open(&f, path));
    MX_CHECK(f.n_tensors == 0 && !mx_st_find(&f, "a"));
    mx_st_close(&f);
    test_put_st(path,
                "{\"s\":" T("F32", "[]", "8", "12") ",\"empty\":" T("I64", "[0,5]", "8", "8") //
                ",\"w\":" T("BF16", "[2,2]", "0", "8") ",\"__metadata__\":{\"format\":\"pt\"}}   ",
                12);
    MX_CHECK_OK(mx_st_open(&f, path));
    MX_CHECK(f.n_tensors == 3);
    const mx_st_tensor *s = mx_st_find(&f, "s"), *w = mx_st_find(&f, "w");
    MX_CHECK(s && s->n == 1 && s->ndim == 0 && w && w->n == 4 && w->dim[1] == 2);
    MX_CHECK(strcmp(mx_st_metadata(&f, "format"), "pt") == 0 && !mx_st_metadata(&f, "x"));
    char buf[64];
    MX_CHECK(strcmp(mx_st_describe(w, buf, sizeof buf), "BF16 (2, 2)") == 0, "%s", buf);
    mx_st_close(&f);
    mx_st_close(&f); /* closing twice is safe */
    test_dir_remove(&d);
}

/* Written, read back whole, in ranges, as boxes and through the parallel loader. */
MX_TEST(safetensors_round_trip)
{
    enum { R = 37, C = 53 };
    test_dir d;
    test_dir_make(&d);
    static float w[R * C], back[R * C];
    static uint8_t bytes[5] = {1, 2, 3, 4, 5};
    for (int i = 0; i < R * C; i++)
        w[i] = (float)i * 0.25f;
    mx_st_source src[2] = {{"odd", MX_ST_U8, 1, {5}, bytes, 0}, {"w", MX_ST_F32, 2, {R, C}, w, 0}};
    const mx_st_source *list[2] = {&src[0], &src[1]};
    mx_st_writer wr = {.metadata = &(mx_st_pair){"format", "pt"}, .n_metadata = 1};
    mx_digest dig[2];
    mx_st_written done;
    const char *path = test_dir_file(&d, "x.safetensors");
    MX_CHECK_OK(mx_st_write(path, list, 2, &wr, dig, &done));
    MX_CHECK(!test_exists(test_dir_file(&d, "x.safetensors.tmp")));
    MX_CHECK(mx_digest_equal(dig[1], mx_digest_of(w, sizeof w)));
    mx_st_file f;
    MX_CHECK_OK(mx_st_open(&f, path));
    MX_CHECK(f.size_bytes == done.size_bytes && f.data_at == done.header_bytes);
    const mx_st_tensor *t = mx_st_find(&f, "w");
    MX_CHECK(t && t->at % 64 == 0 && mx_st_find(&f, "odd")->at > t->at);
    MX_CHECK_OK(mx_st_read(t, 100, 200, MX_ST_F32, back, NULL));
    MX_CHECK(memcmp(back, w + 100, 200 * 4) == 0);
    double dd[10];
    MX_CHECK_OK(mx_st_read(t, 1950, 10, MX_ST_F64, dd, NULL));
    MX_CHECK(dd[9] == (double)w[1959]);
    MX_CHECK_ERROR(mx_st_read(t, 0, 1, MX_ST_I32, back, NULL), "cannot be loaded as I32");
    mx_st_seen seen = {.tensor = t, .count = t->n};
    MX_CHECK_OK(mx_st_read(t, 0, t->n, MX_ST_F32, back, &seen.scan));
    MX_CHECK(memcmp(back, w, sizeof w) == 0);
    MX_CHECK_OK(mx_st_check_finite(&seen, 1));
    mx_st_close(&f);
    test_dir_remove(&d);
}

/* Larger than a piece that is converted at once, 16-bit in the file, with values that are not
 * finite. */
MX_TEST(safetensors_read_counts_nan)
{
    enum { N = 5000000 };
    test_dir d;
    test_dir_make(&d);
    uint16_t *h = mx_realloc(NULL, N * 2);
    float *back = mx_realloc(NULL, N * sizeof *back);
    for (int i = 0; i < N; i++)
        h[i] = (uint16_t)(i % 0x7f00);
    h[17] = 0x7fc0, h[N - 1] = 0xffc1, h[N / 2] = 0xff80;
    mx_st_source src = {"model.w", MX_ST_BF16, 1, {N}, h, 0};
    const mx_st_source *list = &src;
    const char *path = test_dir_file(&d, "x.safetensors");
    MX_CHECK_OK(mx_st_write(path, &list, 1, &(mx_st_writer){0}, NULL, NULL));
    mx_st_file f;
    MX_CHECK_OK(mx_st_open(&f, path));
    mx_st_seen seen = {.tensor = &f.tensors[0], .count = N};
    MX_CHECK_OK(mx_st_read(seen.tensor, 0, N, MX_ST_F32, back, &seen.scan));
    MX_CHECK(seen.scan.n_nan == 2 && seen.scan.n_inf == 1);
    MX_CHECK_ERROR(mx_st_check_finite(&seen, 1), "model.w: 2 NaN, 1 Inf");
    bool same = true;
    for (int i = 0; i < N; i++)
        same = same && (h[i] >= 0x7f80 || mx_bf16_of_float(back[i]) == h[i]);
    MX_CHECK(same);
    mx_st_close(&f);
    mx_free(h);
    mx_free(back);
    test_dir_remove(&d);
}

/* A file cut short after it was opened: an error, not SIGBUS. */
MX_TEST(safetensors_truncated_while_open)
{
    test_dir d;
    test_dir_make(&d);
    const char *path = test_dir_file(&d, "x.safetensors");
    test_put_st(path, "{\"a\":" T("F32", "[1000]", "0", "4000") "}", 4000);
    mx_st_file f;
    float x[1000];
    MX_CHECK_OK(mx_st_open(&f, path));
    MX_CHECK(truncate(path, 500) == 0);
    MX_CHECK_ERROR(mx_st_read(&f.tensors[0], 0, 1000, MX_ST_F32, x, NULL), "truncated");
    MX_CHECK_ERROR(mx_st_read(&f.tensors[0], 0, 1000, MX_ST_F64, (double[1000]){0}, NULL),
                   "truncated");
    mx_st_close(&f);
    test_dir_remove(&d);
}

/* More than 2^31 elements in a sparse file: offsets are 64-bit throughout. */
MX_TEST(safetensors_beyond_two_to_31)
{
    test_dir d;
    test_dir_make(&d);
    const char *path = test_dir_file(&d, "x.safetensors");
    test_put_st(path, "{\"a\":" T("U8", "[3,1073741824]", "0", "3221225472") "}", 3221225472u);
    FILE *fp = fopen(path, "r+b");
    MX_CHECK(fp && fseek(fp, -1, SEEK_END) == 0 && fputc(9, fp) == 9);
    fclose(fp);
    mx_st_file f;
    MX_CHECK_OK(mx_st_open(&f, path));
    int32_t last[2];
    MX_CHECK_OK(mx_st_read(&f.tensors[0], f.tensors[0].n - 2, 2, MX_ST_I32, last, NULL));
    MX_CHECK(last[0] == 0 && last[1] == 9);
    mx_st_close(&f);
    test_dir_remove(&d);
}

MX_TEST(safetensors_writer_refuses_two_of_a_name)
{
    test_dir d;
    test_dir_make(&d);
    float x = 1;
    mx_st_source a = {"w", MX_ST_F32, 0, {0}, &x, 0};
    const mx_st_source *list[2] = {&a, &a};
    const char *path = test_dir_file(&d, "x.safetensors");
    MX_CHECK_ERROR(mx_st_write(path, list, 2, &(mx_st_writer){0}, NULL, NULL), "two tensors");
    MX_CHECK(!test_exists(path));
    test_dir_remove(&d);
}

/* Tensors that lie in memory as they will in the file are written from where they are: the same
 * bytes and digests as otherwise, also when any one call fails on the way. */
MX_TEST(safetensors_written_in_place)
{
    enum { A = 2500000, B = 1001, C = 5 };
    test_dir d;
    test_dir_make(&d);
    char *memory = mx_realloc(NULL, A * 4 + B * 4 + C + 4096);
    char *p = (char *)(((uintptr_t)memory + 4095) / 4096 * 4096);
    for (int i = 0; i < A * 4 + B * 4 + C; i++)
        p[i] = (char)(i * 31 % 253);
    mx_st_source src[3] = {{"a", MX_ST_F32, 1, {A}, p, 0},
                           {"b", MX_ST_F32, 1, {B}, p + A * 4, 0},
                           {"c", MX_ST_U8, 1, {C}, p + A * 4 + B * 4, 0}};
    const mx_st_source *list[3] = {&src[0], &src[1], &src[2]};
    const char *path = test_dir_file(&d, "x.safetensors");
    static faulty_io f;
    int n_calls = 1, n_done = 0;
    for (int at = 0; at <= n_calls; at++) {
        f = (faulty_io){.fail_at = at, .error = EIO};
        mx_io io = faulty_io_make(&f);
        mx_digest dig[3] = {{0}};
        mx_st_written done;
        mx_status st = mx_st_write(path, list, 3, &(mx_st_writer){.io = &io}, dig, &done);
        if (at == 0)
            n_calls = f.calls;
        MX_CHECK(at || !st, "%s", mx_status_text(st));
        MX_CHECK(!test_exists(test_dir_file(&d, "x.safetensors.tmp")));
        bool written = !st;
        mx_status_free(st);
        if (!written)
            continue;
        n_done++;
        mx_st_file file;
        MX_CHECK_OK(mx_st_open(&file, path));
        MX_CHECK(file.data_at == 4096 && file.n_tensors == 3 && done.size_bytes == file.size_bytes);
        uint8_t *back = mx_realloc(NULL, A * 4);
        for (int i = 0; i < 3; i++) {
            const mx_st_tensor *t = mx_st_find(&file, src[i].name);
            MX_CHECK_OK(mx_st_read(t, 0, t->n, t->dtype, back, NULL));
            MX_CHECK(memcmp(back, src[i].data, t->n_bytes) == 0, "tensor %d, call %d", i, at);
            MX_CHECK(mx_digest_equal(dig[i], mx_digest_of(src[i].data, t->n_bytes)));
        }
        mx_free(back);
        mx_st_close(&file);
    }
    MX_CHECK(n_done >= n_calls - 2, "one failure is survived by a second attempt: %d of %d", n_done,
             n_calls);
    mx_free(memory);
    test_dir_remove(&d);
}

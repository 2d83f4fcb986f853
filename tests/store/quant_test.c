/* quant_test.c - quantized weights against what transformers and compressed-tensors read, and the
 * ways in which they can be broken. The fixtures are made by fixtures/make_quant.py. */
#include "../test.h"
#include "base/arena.h"
#include "store/hf_save.h"
#include "store/quant.h"
#include "test_dir.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char FIXTURE[] = "tests/store/fixtures/quant";

/* Every weight, whole and in ragged pieces, in the type the reference gave it. */
MX_TEST(quant_matches_reference)
{
    mx_hf_dir d;
    mx_quant_set q;
    mx_st_file want;
    char path[100];
    snprintf(path, sizeof path, "%s/expected.safetensors", FIXTURE);
    MX_CHECK_OK(mx_hf_dir_open(&d, FIXTURE, MX_HF_ALL));
    MX_CHECK_OK(mx_quant_open(&q, &d));
    MX_CHECK_OK(mx_st_open(&want, path));
    MX_CHECK(q.n_tensors == want.n_tensors && q.n_quantized == want.n_tensors - 2,
             "%d weights, %d expected", (int)q.n_tensors, (int)want.n_tensors);
    for (int64_t i = 0; i < want.n_tensors; i++) {
        const mx_st_tensor *w = &want.tensors[i];
        const mx_quant_tensor *t = mx_quant_find(&q, w->name);
        MX_CHECK(t && t->ndim == w->ndim && t->n == w->n, "%s", w->name);
        if (!t)
            continue;
        for (int k = 0; k < w->ndim; k++)
            MX_CHECK(t->dim[k] == w->dim[k], "%s dim %d", w->name, k);
        size_t size = (size_t)mx_st_dtype_bytes(w->dtype);
        char *a = mx_realloc(NULL, w->n_bytes), *b = mx_realloc(NULL, w->n_bytes);
        MX_CHECK_OK(mx_st_read(w, 0, w->n, w->dtype, a, NULL));
        mx_st_scan scan = {0};
        MX_CHECK_OK(mx_quant_read(t, 0, t->n, w->dtype, b, &scan));
        MX_CHECK(memcmp(a, b, w->n_bytes) == 0, "%s differs", w->name);
        MX_CHECK(!scan.n_nan && !scan.n_inf);
        memset(b, 0, w->n_bytes);
        for (int64_t at = 0, k = 1; at < w->n; at += k, k = k * 2 + 3) {
            k = k < w->n - at ? k : w->n - at;
            MX_CHECK_OK(mx_quant_read(t, at, k, w->dtype, b + (size_t)at * size, NULL));
        }
        MX_CHECK(memcmp(a, b, w->n_bytes) == 0, "%s differs in pieces", w->name);
        mx_free(a);
        mx_free(b);
    }
    int32_t ints[4];
    MX_CHECK_ERROR(mx_quant_read(mx_quant_find(&q, "int8.weight"), 0, 4, MX_ST_I32, ints, NULL),
                   "is quantized");
    mx_st_close(&want);
    mx_quant_close(&q);
    mx_quant_close(&q);
    mx_hf_dir_close(&d);
}

typedef struct {
    const char *name;
    mx_st_dtype dtype;
    int ndim;
    int64_t dim[4];
} part;

static mx_status open_parts(const test_dir *d, const char *config, const part *parts, int n)
{
    static const char zeros[1 << 16];
    mx_st_source src[8];
    for (int i = 0; i < n; i++) {
        src[i] = (mx_st_source){parts[i].name, parts[i].dtype, parts[i].ndim, {0}, zeros, 0};
        memcpy(src[i].dim, parts[i].dim, sizeof parts[i].dim);
    }
    MX_CHECK_OK(mx_hf_save(d->path, src, n, NULL, 0, NULL));
    test_put_text(test_dir_file(d, "config.json"), config);
    mx_hf_dir h;
    mx_quant_set q = {0};
    mx_status st = mx_hf_dir_open(&h, d->path, MX_HF_ALL);
    if (!st)
        st = mx_quant_open(&q, &h);
    mx_quant_close(&q);
    mx_hf_dir_close(&h);
    return st;
}

MX_TEST(quant_broken_tensors_are_named)
{
    static const struct {
        const char *error;
        int n;
        part parts[4];
    } cases[] = {
        {"a.weight: F8_E4M3 without scales (a.weight_scale_inv is missing)",
         1,
         {{"a.weight", MX_ST_F8_E4M3, 2, {4, 4}}}},
        {"a.weight_scale_inv: F32 (3, 1) do not fit 1 matrices of 256 x 4",
         2,
         {{"a.weight", MX_ST_F8_E4M3, 2, {256, 4}}, {"a.weight_scale_inv", MX_ST_F32, 2, {3, 1}}}},
        {"scales of dtype I64",
         2,
         {{"a.weight", MX_ST_F8_E4M3, 2, {4, 4}}, {"a.weight_scale_inv", MX_ST_I64, 2, {1, 1}}}},
        {"w_blocks: its scales (w_scales) are missing",
         1,
         {{"w_blocks", MX_ST_U8, 4, {2, 3, 2, 16}}}},
        {"w_blocks: blocks U8 (2, 3, 2, 16) and scales U8 (2, 3, 1) do not belong",
         2,
         {{"w_blocks", MX_ST_U8, 4, {2, 3, 2, 16}}, {"w_scales", MX_ST_U8, 3, {2, 3, 1}}}},
        {"w_blocks: blocks U8 (2, 3, 2, 15)",
         2, /* a truncated block */
         {{"w_blocks", MX_ST_U8, 4, {2, 3, 2, 15}}, {"w_scales", MX_ST_U8, 3, {2, 3, 2}}}},
        {"b.weight_packed: its scales (b.weight_scale) are missing",
         1,
         {{"b.weight_packed", MX_ST_I32, 2, {4, 4}}}},
        {"b.weight_packed: its _shape is missing",
         2,
         {{"b.weight_packed", MX_ST_I32, 2, {4, 4}}, {"b.weight_scale", MX_ST_BF16, 2, {4, 1}}}},
        {"b.weight_shape: does not fit",
         3, /* its numbers are zeros */
         {{"b.weight_packed", MX_ST_I32, 2, {4, 4}},
          {"b.weight_scale", MX_ST_BF16, 2, {4, 1}},
          {"b.weight_shape", MX_ST_I64, 1, {2}}}},
        {"b.weight_shape: 3 numbers",
         3,
         {{"b.weight_packed", MX_ST_I32, 2, {4, 4}},
          {"b.weight_scale", MX_ST_BF16, 2, {4, 1}},
          {"b.weight_shape", MX_ST_I64, 1, {3}}}},
        {"b.weight_shape: does not fit",
         4,
         {{"b.weight_packed", MX_ST_I32, 2, {4, 4}},
          {"b.weight_scale", MX_ST_BF16, 2, {4, 1}},
          {"b.weight_shape", MX_ST_I64, 1, {2}},
          {"b.weight_g_idx", MX_ST_I32, 1, {4}}}},
        {"is there twice",
         3,
         {{"w_blocks", MX_ST_U8, 4, {2, 3, 2, 16}},
          {"w_scales", MX_ST_U8, 3, {2, 3, 2}},
          {"w", MX_ST_F32, 1, {2}}}},
    };
    test_dir d;
    test_dir_make(&d);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        MX_CHECK_ERROR(open_parts(&d, "{}", cases[i].parts, cases[i].n), cases[i].error);
    part plain = {"w", MX_ST_F32, 1, {2}};
    MX_CHECK_ERROR(
        open_parts(&d, "{\"quantization_config\":{\"quant_method\":\"hqq\"}}", &plain, 1),
        "\"hqq\" is not supported");
    MX_CHECK_OK(
        open_parts(&d, "{\"quantization_config\":{\"quant_method\":\"mxfp4\"}}", &plain, 1));
    part scaled[] = {{"a.weight", MX_ST_F8_E4M3, 2, {4, 4}},
                     {"a.weight_scale_inv", MX_ST_F32, 2, {1, 1}}};
    MX_CHECK_ERROR(open_parts(&d,
                              "{\"quantization_config\":{\"quant_method\":\"fp8\","
                              "\"weight_block_size\":[9223372036854775807,-9223372036854775808]}}",
                              scaled, 2), "expected two whole numbers from 1 to");
    test_dir_remove(&d);
}

/* Values of quantization_config that mean nothing are errors that name them, whatever is stored. */
MX_TEST(quant_config_values_are_checked)
{
#define CT "\"quant_method\":\"compressed-tensors\",\"config_groups\":"
    static const char *const cases[][2] = {
        {"5", "quantization_config is 5; expected an object"},
        {"[]", "quantization_config is []; expected an object"},
        {"{}", "quant_method is null; expected fp8 mxfp4"},
        {"{\"quant_method\":7}", "quant_method is 7; expected fp8 mxfp4"},
        {"{\"quant_method\":\"\"}", "quantization method \"\" is not supported"},
        {"{\"quant_method\":\"a\\u001b[31m\"}", "\"a\\u001B[31m\" is not supported"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":128}",
         "weight_block_size is 128; expected"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", "is [128]; expected two whole"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[0,1]}", "is [0,1]; expected two whole"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[1e30,1]}", "expected two whole numbers"},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e3m4\"}", "fmt is \"e3m4\"; expected one of: e4m3"},
        {"{\"quant_method\":\"gptq\",\"bits\":\"4\"}", "bits is \"4\"; expected a whole number"},
        {"{\"quant_method\":\"gptq\"}", "gptq with 0 bits; 4 are read"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-2}", "group_size is -2; expected"},
        {"{\"quant_method\":\"awq\",\"bits\":8}", "awq with 8 bits; 4 are read"},
        {"{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":1}", "expected true or false"},
        {"{\"load_in_8bit\":1}", "load_in_8bit is 1; expected"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\"}",
         "format is \"nvfp4-pack-quantized\"; expected one of: pack-quantized"},
        {"{" CT "[1]}", "config_groups is [1]; expected an object"},
        {"{" CT "{\"g\":5}}", "config_groups.g is 5; expected an object"},
        {"{" CT "{\"g\":{\"weights\":true}}}",
         "config_groups.g.weights is true; expected an object"},
        {"{" CT "{\"g\":{\"weights\":{\"num_bits\":-4}}}}",
         "num_bits is -4; expected a whole number"},
        {"{" CT "{\"g\":{\"weights\":{\"num_bits\":3}}}}", "num_bits to be 4 or 8"},
        {"{" CT "{\"g\":{\"weights\":{\"group_size\":4611686018427387904}}}}",
         "group_size is 4611"},
        {"{" CT "{\"g\":{\"weights\":{\"type\":\"nf4\"}}}}",
         "type is \"nf4\"; expected one of: int"},
        {"{" CT "{\"g\":{\"input_activations\":{\"dynamic\":5}}}}", "dynamic to be true or false"},
    };
    test_dir d;
    test_dir_make(&d);
    part plain = {"w", MX_ST_F32, 1, {2}};
    char config[400];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(config, sizeof config, "{\"quantization_config\":%s}", cases[i][0]);
        MX_CHECK_ERROR(open_parts(&d, config, &plain, 1), cases[i][1]);
        snprintf(config, sizeof config,
                 "{\"text_config\":{\"quantization_config\":%s}}", cases[i][0]);
        MX_CHECK_ERROR(open_parts(&d, config, &plain, 1), cases[i][1]);
    }
    MX_CHECK_OK(open_parts(&d, "{\"quantization_config\":null}", &plain, 1));
    MX_CHECK_OK(open_parts(&d, "{\"quantization_config\":{" CT "{\"W4A16\":[\"Linear\"],\"g\":"
                           "{\"weights\":{\"num_bits\":4,\"group_size\":null,\"actorder\":null},"
                           "\"input_activations\":null}}}}", &plain, 1));
    test_dir_remove(&d);
#undef CT
}

/* Twenty-four inputs and eight outputs in groups of eight, in each of the three forms: number
 * (o + 3 i) % 16, zero (o + g) % 16, scale (1 + g) / 4. A zero of 0 less one is
 * 15 of four bits. Inputs are in groups 2, 1 and 0 where
 * the order is given. */
static void check_gptq(const test_dir *d, const char *config, bool awq, int stored_less, bool order)
{
    enum { IN = 12 * 2, OUT = 8, GROUP = 8, GROUPS = 3 };
    static const int column[8] = {0, 2, 4, 6, 1, 3, 5, 7}; /* of AWQ's nibbles */
    uint32_t words[IN] = {0}, zeros[GROUPS] = {0};
    float scales[GROUPS * OUT], got[OUT * IN];
    int32_t group_of[IN];
    for (int i = 0; i < IN; i++) {
        group_of[i] = order ? GROUPS - 1 - i / GROUP : i / GROUP;
        for (int n = 0; n < 8; n++) {
            int o = awq ? column[n] : i % 8, in = awq ? i : i / 8 * 8 + n;
            words[i] |= (uint32_t)((o + 3 * in) % 16) << 4 * n;
        }
    }
    for (int g = 0; g < GROUPS; g++)
        for (int n = 0; n < 8; n++) {
            int o = awq ? column[n] : n;
            zeros[g] |= (uint32_t)((o + g - stored_less) % 16 & 15) << 4 * n;
            scales[g * OUT + n] = (float)(1 + g) / 4;
        }
    mx_st_source src[5] = {
        {"a.qweight", MX_ST_I32, 2, {awq ? IN : IN / 8, awq ? OUT / 8 : OUT}, words, 0},
        {"a.qzeros", MX_ST_I32, 2, {GROUPS, OUT / 8}, zeros, 0},
        {"a.scales", MX_ST_F32, 2, {GROUPS, OUT}, scales, 0},
        {"a.bias", MX_ST_F32, 1, {OUT}, scales, 0},
        {"a.g_idx", MX_ST_I32, 1, {IN}, group_of, 0}};
    mx_hf_extra extra = {.name = "config.json", .data = config, .n_bytes = strlen(config)};
    mx_hf_dir h;
    mx_quant_set q;
    MX_CHECK_OK(mx_hf_save(d->path, src, order ? 5 : 4, &extra, 1, NULL));
    MX_CHECK_OK(mx_hf_dir_open(&h, d->path, MX_HF_ALL));
    MX_CHECK_OK(mx_quant_open(&q, &h));
    const mx_quant_tensor *t = mx_quant_find(&q, "a.weight");
    MX_CHECK(t && q.n_tensors == 2 && t->dim[0] == OUT && t->dim[1] == IN);
    for (int at = 0, n = 1; t && at < OUT * IN; at += n, n = n * 2 + 3) {
        n = n < OUT * IN - at ? n : OUT * IN - at;
        MX_CHECK_OK(mx_quant_read(t, at, n, MX_ST_F32, got + at, NULL));
    }
    for (int k = 0; t && k < OUT * IN; k++) {
        int o = k / IN, i = k % IN, g = group_of[i];
        float want = (float)((o + 3 * i) % 16 - (o + g) % 16) * (float)(1 + g) / 4;
        MX_CHECK(got[k] == want, "%s: output %d, input %d: %g, not %g", config, o, i,
                 (double)got[k], (double)want);
    }
    mx_quant_close(&q);
    mx_hf_dir_close(&h);
}

#define GPTQ_OF(group)                                                                             \
    "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":" group "}}"

MX_TEST(quant_gptq_and_awq_are_read)
{
    test_dir d[4];
    for (int i = 0; i < 4; i++)
        test_dir_make(&d[i]);
    check_gptq(&d[0], "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,"
               "\"group_size\":8}}", false, 1, false);
    check_gptq(&d[1], "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,"
               "\"group_size\":8,\"checkpoint_format\":\"gptq_v2\",\"desc_act\":true}}", false, 0,
               true);
    check_gptq(&d[2], "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,"
               "\"version\":\"gemm\"}}", true, 0, false);
    const char gptq[] = "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}";
    part bad[] = {{"a.qweight", MX_ST_I32, 2, {2, 8}},
                  {"a.qzeros", MX_ST_I32, 2, {2, 1}},
                  {"a.scales", MX_ST_F32, 2, {2, 7}}};
    MX_CHECK_ERROR(open_parts(&d[3], gptq, bad, 1), "its .qzeros or .scales are missing");
    MX_CHECK_ERROR(open_parts(&d[3], gptq, bad, 3), "do not fit 16 inputs and 8 outputs");
    bad[2].dim[1] = 8;
    MX_CHECK_OK(open_parts(&d[3], gptq, bad, 3));
    MX_CHECK_OK(open_parts(&d[3], GPTQ_OF("8"), bad, 3));
    MX_CHECK_OK(open_parts(&d[3], GPTQ_OF("4,\"dynamic\":{}"), bad, 3));
    MX_CHECK_ERROR(open_parts(&d[3], GPTQ_OF("4"), bad, 3),
                   "2 groups of 16 inputs, which is not what group_size says (4)");
    MX_CHECK_ERROR(open_parts(&d[3], GPTQ_OF("-1"), bad, 3), "group_size says (-1)");
    part eight[] = {{"a.qweight", MX_ST_I32, 2, {4, 8}}, {"a.qzeros", MX_ST_I32, 2, {2, 2}},
                    {"a.scales", MX_ST_F32, 2, {2, 8}}, {"b.qweight", MX_ST_I32, 2, {2, 8}},
                    {"b.qzeros", MX_ST_I32, 2, {2, 1}}, {"b.scales", MX_ST_F32, 2, {2, 8}}};
    MX_CHECK_OK(open_parts(&d[3], GPTQ_OF("8,\"dynamic\":{}"), eight, 6));
    MX_CHECK_ERROR(open_parts(&d[3], GPTQ_OF("8"), eight, 6), "do not fit 32 inputs");
    bad[0].dtype = MX_ST_F32;
    MX_CHECK_ERROR(open_parts(&d[3], gptq, bad, 3), "expected an I32 matrix");
    MX_CHECK_ERROR(open_parts(&d[3], "{\"quantization_config\":{\"quant_method\":\"gptq\","
                              "\"bits\":3}}", bad, 3), "gptq with 3 bits");
    for (int i = 0; i < 4; i++)
        test_dir_remove(&d[i]);
}

typedef struct {
    mx_hf_dir dir;
    mx_quant_set set;
    mx_status st; /* of opening the set */
} written;

static void write_and_open(written *w, const test_dir *d, const mx_st_source *src, int n)
{
    const char config[] = "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}";
    mx_hf_extra extra = {.name = "config.json", .data = config, .n_bytes = strlen(config)};
    MX_CHECK_OK(mx_hf_save(d->path, src, n, &extra, 1, NULL));
    MX_CHECK_OK(mx_hf_dir_open(&w->dir, d->path, MX_HF_ALL));
    w->st = mx_quant_open(&w->set, &w->dir);
}

static void close_written(written *w)
{
    mx_quant_close(&w->set);
    mx_hf_dir_close(&w->dir);
}

/* bitsandbytes' int8: a row's largest magnitude stands for 127. Without it bytes are no weight. */
MX_TEST(quant_int8_of_bitsandbytes_is_read)
{
    int8_t codes[2][4] = {{127, -127, 0, 64}, {1, 2, -3, 127}};
    float most[2] = {254, 12.7f}, got[8];
    uint8_t order = 0;
    mx_st_source src[3] = {{"a.weight", MX_ST_I8, 2, {2, 4}, codes, 0},
                           {"a.SCB", MX_ST_F32, 1, {2}, most, 0},
                           {"a.weight_format", MX_ST_U8, 1, {1}, &order, 0}};
    test_dir d[4];
    written w;
    for (int i = 0; i < 4; i++)
        test_dir_make(&d[i]);
    write_and_open(&w, &d[0], src, 3);
    MX_CHECK_OK(w.st);
    const mx_quant_tensor *t = mx_quant_find(&w.set, "a.weight");
    MX_CHECK(t && w.set.n_tensors == 1);
    MX_CHECK_OK(mx_quant_read(t, 0, 8, MX_ST_F32, got, NULL));
    for (int i = 0; i < 8; i++)
        MX_CHECK(got[i] == (float)codes[i / 4][i % 4] * (most[i / 4] * (1 / 127.f)), "%d: %g", i,
                 (double)got[i]);
    close_written(&w);
    write_and_open(&w, &d[1], src, 1);
    MX_CHECK_ERROR(w.st, "a.weight: I8 without scales");
    close_written(&w);
    order = 2;
    write_and_open(&w, &d[2], src, 3);
    MX_CHECK_ERROR(w.st, "its .weight_format is 2");
    close_written(&w);
    src[1].dim[0] = 1;
    write_and_open(&w, &d[3], src, 2);
    MX_CHECK_ERROR(w.st, "its .SCB does not have a number for each row");
    close_written(&w);
    for (int i = 0; i < 4; i++)
        test_dir_remove(&d[i]);
}

/* Bytes with zero points, (rows, groups) like their scales. */
MX_TEST(quant_zero_points_of_bytes_are_read)
{
    int8_t codes[2][4] = {{127, -128, 0, 64}, {1, 2, -3, 127}}, zero[4] = {-5, 7, 0, 100};
    float scale[4] = {2, 0.5f, 1, 3}, got[8];
    mx_st_source src[3] = {{"a.weight", MX_ST_I8, 2, {2, 4}, codes, 0},
                           {"a.weight_scale", MX_ST_F32, 2, {2, 2}, scale, 0},
                           {"a.weight_zero_point", MX_ST_I8, 2, {2, 2}, zero, 0}};
    test_dir d[2];
    written w;
    for (int i = 0; i < 2; i++)
        test_dir_make(&d[i]);
    write_and_open(&w, &d[0], src, 3);
    MX_CHECK_OK(w.st);
    const mx_quant_tensor *t = mx_quant_find(&w.set, "a.weight");
    MX_CHECK(t && w.set.n_tensors == 1);
    for (int at = 0, n = 3; t && at < 8; at += n, n = 5)
        MX_CHECK_OK(mx_quant_read(t, at, n, MX_ST_F32, got + at, NULL));
    for (int i = 0; i < 8; i++)
        MX_CHECK(got[i] == (float)(codes[i / 4][i % 4] - zero[i / 2]) * scale[i / 2], "%d: %g", i,
                 (double)got[i]);
    close_written(&w);
    src[2].dim[1] = 1;
    write_and_open(&w, &d[1], src, 3);
    MX_CHECK_ERROR(w.st, "a.weight_zero_point: expected 4 zero points, I8");
    close_written(&w);
    for (int i = 0; i < 2; i++)
        test_dir_remove(&d[i]);
}

/* What loaders quantize activations and caches with belongs to no weight. Without a method it is a
 * tensor like others. */
MX_TEST(quant_scales_of_activations_are_no_weights)
{
    static const char *const methods[] = {"{\"quant_method\":\"fp8\"}", "null"};
    for (int i = 0; i < 2; i++) {
        char config[80];
        snprintf(config, sizeof config, "{\"quantization_config\":%s}", methods[i]);
        float one = 1;
        uint8_t codes[4] = {0x38, 0x38, 0x38, 0x38};
        mx_st_source src[7] = {{"a.weight", MX_ST_F8_E4M3, 2, {2, 2}, codes, 0},
                               {"a.weight_scale", MX_ST_F32, 0, {0}, &one, 0},
                               {"a.input_scale", MX_ST_F32, 1, {1}, &one, 0},
                               {"a.input_scale_ub", MX_ST_F32, 1, {1}, &one, 0},
                               {"a.k_scale", MX_ST_F32, 1, {1}, &one, 0},
                               {"attn.v_scale", MX_ST_F32, 1, {1}, &one, 0},
                               {"b.input_scale", MX_ST_F32, 1, {1}, &one, 0}};
        mx_hf_extra extra = {.name = "config.json", .data = config, .n_bytes = strlen(config)};
        test_dir d;
        written w;
        test_dir_make(&d);
        MX_CHECK_OK(mx_hf_save(d.path, src, 7, &extra, 1, NULL));
        MX_CHECK_OK(mx_hf_dir_open(&w.dir, d.path, MX_HF_ALL));
        MX_CHECK_OK(mx_quant_open(&w.set, &w.dir));
        MX_CHECK(w.set.n_tensors == (i ? 6 : 2), "%s: %d weights", config, (int)w.set.n_tensors);
        MX_CHECK(mx_quant_find(&w.set, "b.input_scale") != NULL);
        close_written(&w);
        test_dir_remove(&d);
    }
}

/* Scales that fit the weight evenly, but not as config.json says they lie: of a file that was cut,
 * or of another one. */
MX_TEST(quant_grids_are_those_of_the_config)
{
#define CT(...)                                                                                    \
    "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\","                           \
    "\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8," __VA_ARGS__ "}}}}}"
    const char block[] = "{\"quantization_config\":{\"quant_method\":\"fp8\","
                         "\"weight_block_size\":[128,128]}}";
    const char group[] = CT("\"strategy\":\"group\",\"group_size\":64");
    const char row[] = CT("\"strategy\":\"channel\""), whole[] = CT("\"strategy\":\"tensor\"");
    const char square[] = CT("\"strategy\":\"block\",\"block_structure\":[128,64]");
    const struct {
        const char *config;
        int64_t rows, cols; /* of scales */
        bool fits;
    } cases[] = {{block, 2, 2, true},   {block, 2, 1, false}, {block, 1, 2, false},
                 {block, 4, 4, false},  {group, 256, 4, true}, {group, 256, 2, false},
                 {group, 128, 4, false}, {row, 256, 1, true},  {row, 128, 1, false},
                 {row, 256, 2, false},  {whole, 1, 1, true},  {whole, 2, 1, false},
                 {square, 2, 4, true},  {square, 2, 2, false}, {"{}", 128, 2, true}};
    test_dir d;
    test_dir_make(&d);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        part p[] = {{"a.weight", MX_ST_F8_E4M3, 2, {256, 256}},
                    {cases[i].config == block ? "a.weight_scale_inv" : "a.weight_scale", MX_ST_F32,
                     2, {cases[i].rows, cases[i].cols}}};
        if (cases[i].fits)
            MX_CHECK_OK(open_parts(&d, cases[i].config, p, 2));
        else
            MX_CHECK_ERROR(open_parts(&d, cases[i].config, p, 2),
                           "do not fit 1 matrices of 256 x 256");
    }
    test_dir_remove(&d);
#undef CT
}

/* Columns of a group that lie anywhere, as llm-compressor's actorder "group" stores them. */
MX_TEST(quant_reordered_groups_are_read)
{
    uint32_t words[2][2] = {{0x76543210, 0xfedcba98}, {0x01234567, 0x89abcdef}};
    float scales[2][2] = {{1, 2}, {0.5f, -4}}, got[32];
    int64_t shape[2] = {2, 16};
    int32_t group_of[16];
    for (int c = 0; c < 16; c++)
        group_of[c] = c % 3 == 0;
    mx_st_source src[4] = {{"a.weight_packed", MX_ST_I32, 2, {2, 2}, words, 0},
                           {"a.weight_scale", MX_ST_F32, 2, {2, 2}, scales, 0},
                           {"a.weight_shape", MX_ST_I64, 1, {2}, shape, 0},
                           {"a.weight_g_idx", MX_ST_I32, 1, {16}, group_of, 0}};
    test_dir d[2];
    written w;
    test_dir_make(&d[0]);
    test_dir_make(&d[1]);
    write_and_open(&w, &d[0], src, 4);
    MX_CHECK_OK(w.st);
    const mx_quant_tensor *t = mx_quant_find(&w.set, "a.weight");
    MX_CHECK(t && w.set.n_tensors == 1 && t->n == 32);
    MX_CHECK_OK(mx_quant_read(t, 0, 32, MX_ST_F32, got, NULL));
    for (int i = 0; i < 32; i++) {
        int r = i / 16, c = i % 16, q = (int)(words[r][c / 8] >> c % 8 * 4 & 15) - 8;
        MX_CHECK(got[i] == (float)q * scales[r][group_of[c]], "%d: %g", i, (double)got[i]);
    }
    close_written(&w);
    group_of[7] = 2;
    write_and_open(&w, &d[1], src, 4);
    MX_CHECK_ERROR(w.st, "a.weight_g_idx: expected an I32 for each of 16 columns, below 2");
    close_written(&w);
    test_dir_remove(&d[0]);
    test_dir_remove(&d[1]);
}

/* A scale byte of 255 is NaN, and the loader's count says so. */
MX_TEST(quant_nan_scales_are_counted)
{
    test_dir d;
    test_dir_make(&d);
    uint8_t blocks[2][16], scales[2] = {127, 255};
    memset(blocks, 0x22, sizeof blocks);
    mx_st_source src[2] = {{"w_blocks", MX_ST_U8, 3, {1, 2, 16}, blocks, 0},
                           {"w_scales", MX_ST_U8, 2, {1, 2}, scales, 0}};
    MX_CHECK_OK(mx_hf_save(d.path, src, 2, NULL, 0, NULL));
    mx_hf_dir h;
    mx_quant_set q;
    float x[64];
    mx_st_scan scan = {0};
    MX_CHECK_OK(mx_hf_dir_open(&h, d.path, MX_HF_WEIGHTS_ONLY));
    MX_CHECK_OK(mx_quant_open(&q, &h));
    MX_CHECK(q.n_tensors == 1 && q.tensors[0].ndim == 2 && q.tensors[0].dim[1] == 64);
    MX_CHECK_OK(mx_quant_read(&q.tensors[0], 0, 64, MX_ST_F32, x, &scan));
    MX_CHECK(x[0] == 1.0f && x[31] == 1.0f && isnan(x[32]) && scan.n_nan == 32);
    mx_quant_close(&q);
    mx_hf_dir_close(&h);
    test_dir_remove(&d);
}

/* Weights "e.0.w", "e.1.w"... as one of a further dim, some of them quantized. */
MX_TEST(quant_stacks)
{
    test_dir d;
    test_dir_make(&d);
    static const float w[4][6] = {{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}, {0}, {0}};
    int8_t q8[6] = {1, -2, 3, -4, 5, -6};
    float two = 2;
    mx_st_source src[6] = {
        {"e.0.w", MX_ST_F32, 2, {2, 3}, w[0], 0}, {"e.1.w", MX_ST_F32, 2, {2, 3}, w[1], 0},
        {"e.2.w", MX_ST_I8, 2, {2, 3}, q8, 0},    {"e.2.w_scale", MX_ST_F32, 1, {1}, &two, 0},
        {"x.0.w", MX_ST_F32, 2, {2, 3}, w[2], 0}, {"x.1.w", MX_ST_F32, 2, {3, 2}, w[3], 0}};
    MX_CHECK_OK(mx_hf_save(d.path, src, 6, NULL, 0, NULL));
    mx_hf_dir h;
    mx_quant_set q;
    mx_quant_tensor t;
    mx_arena a = {0};
    char buf[200];
    float got[18], want[18];
    for (int i = 0; i < 18; i++)
        want[i] = i < 12 ? (float)(i + 1) : (float)q8[i - 12] * 2;
    MX_CHECK_OK(mx_hf_dir_open(&h, d.path, MX_HF_WEIGHTS_ONLY));
    MX_CHECK_OK(mx_quant_open(&q, &h));
    MX_CHECK_OK(mx_quant_resolve(&q, "e.*.w", &a, &t));
    MX_CHECK(t.name && t.ndim == 3 && t.dim[0] == 3 && t.dim[1] == 2 && t.dim[2] == 3 && t.n == 18);
    MX_CHECK(strcmp(mx_quant_describe(&t, buf, sizeof buf), "F32 (3, 2, 3)") == 0, "%s", buf);
    MX_CHECK_OK(mx_quant_read(&t, 0, t.n, MX_ST_F32, got, NULL));
    MX_CHECK(memcmp(got, want, sizeof want) == 0);
    memset(got, 0, sizeof got);
    for (int i = 0; i < 18; i += 5)
        MX_CHECK_OK(mx_quant_read(&t, i, i + 5 < 18 ? 5 : 18 - i, MX_ST_F32, got + i, NULL));
    MX_CHECK(memcmp(got, want, sizeof want) == 0);
    MX_CHECK_OK(mx_quant_resolve(&q, "e.1.w", &a, &t));
    MX_CHECK(t.name && t.ndim == 2);
    MX_CHECK_OK(mx_quant_resolve(&q, "y.*.w", &a, &t));
    MX_CHECK(!t.name);
    MX_CHECK_ERROR(mx_quant_resolve(&q, "x.*.w", &a, &t), "x.1.w has dims (3, 2)");
    mx_arena_fini(&a);
    mx_quant_close(&q);
    mx_hf_dir_close(&h);
    test_dir_remove(&d);
}

/* hf_dir_test.c - model directories: single, sharded, cached, broken, hostile; and saving. */
#include "../test.h"
#include "base/arena.h"
#include "store/hf_dir.h"
#include "store/hf_save.h"
#include "test_dir.h"
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define F32(begin, end) "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" #begin "," #end "]}"
static const char ONE_A[] = "{\"a\":" F32(0, 4) "}";
static const char ONE_B[] = "{\"b\":" F32(0, 4) "}";

static mx_status try_dir(const char *path)
{
    mx_hf_dir h;
    mx_status st = mx_hf_dir_open(&h, path, MX_HF_ALL);
    mx_hf_dir_close(&h);
    return st;
}

static void put_index(const test_dir *d, const char *map)
{
    char text[1000];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":8},\"weight_map\":%s}", map);
    test_put_text(test_dir_file(d, "model.safetensors.index.json"), text);
}

MX_TEST(hf_dir_single_and_sharded)
{
    test_dir d;
    test_dir_make(&d);
    mx_hf_dir h;
    test_put_text(test_dir_file(&d, "config.json"), "{\"model_type\":\"llama\"}");
    test_put_st(test_dir_file(&d, "model.safetensors"), ONE_A, 4);
    char slash[300];
    snprintf(slash, sizeof slash, "%s//", d.path);
    MX_CHECK_OK(mx_hf_dir_open(&h, slash, MX_HF_ALL));
    MX_CHECK(h.n_tensors == 1 && mx_hf_dir_find(&h, "a") && !mx_hf_dir_find(&h, "b"));
    MX_CHECK(!h.generation_config && json_object_get(h.config, "model_type"));
    mx_hf_dir_close(&h);
    unlink(test_dir_file(&d, "model.safetensors"));
    test_put_st(test_dir_file(&d, "model-00001-of-00002.safetensors"), ONE_A, 4);
    test_put_st(test_dir_file(&d, "model-00002-of-00002.safetensors"), ONE_B, 4);
    MX_CHECK_ERROR(try_dir(d.path), "no model.safetensors.index.json");
    put_index(&d, "{\"b\":\"model-00002-of-00002.safetensors\","
                  "\"a\":\"model-00001-of-00002.safetensors\"}");
    MX_CHECK_OK(mx_hf_dir_open(&h, d.path, MX_HF_ALL));
    MX_CHECK(h.n_tensors == 2 && h.n_files == 2 && h.total_bytes == 8);
    MX_CHECK(strcmp(h.tensors[0]->name, "a") == 0 && strcmp(h.tensors[1]->name, "b") == 0);
    mx_hf_dir_close(&h);
    unlink(test_dir_file(&d, "model-00002-of-00002.safetensors"));
    MX_CHECK_ERROR(try_dir(d.path), "shard model-00002-of-00002.safetensors is missing");
    test_put_st(test_dir_file(&d, "model-00002-of-00002.safetensors"), ONE_A, 4);
    MX_CHECK_ERROR(try_dir(d.path), "b, which should be in");
    test_dir_remove(&d);
}

MX_TEST(hf_dir_parts)
{
    test_dir d;
    test_dir_make(&d);
    mx_hf_dir h;
    MX_CHECK_ERROR(try_dir(d.path), "no config.json");
    MX_CHECK_ERROR(try_dir(test_dir_file(&d, "absent")), "cannot find");
    test_put_text(test_dir_file(&d, "config.json"), "{}");
    MX_CHECK_ERROR(try_dir(test_dir_file(&d, "config.json")), "expected a directory");
    MX_CHECK_ERROR(try_dir(d.path), "no weights");
    MX_CHECK_OK(mx_hf_dir_open(&h, d.path, MX_HF_CONFIG_ONLY));
    mx_hf_dir_close(&h);
    test_put_text(test_dir_file(&d, "pytorch_model.bin"), "x");
    MX_CHECK_ERROR(try_dir(d.path), "is a pickle");
    test_put_st(test_dir_file(&d, "model.safetensors"), ONE_A, 4);
    unlink(test_dir_file(&d, "config.json"));
    MX_CHECK_OK(mx_hf_dir_open(&h, d.path, MX_HF_WEIGHTS_ONLY));
    MX_CHECK(h.n_tensors == 1 && !h.config);
    mx_hf_dir_close(&h);
    test_dir_remove(&d);
}

MX_TEST(hf_dir_config_errors_have_lines)
{
    test_dir d;
    test_dir_make(&d);
    const char *path = test_dir_file(&d, "config.json");
    test_put_text(path, "{\n \"a\": 1,\n \"a\": 2}");
    MX_CHECK_ERROR(try_dir(d.path), "config.json:3");
    test_put_text(path, "{\n \"a\": 1,\n}");
    MX_CHECK_ERROR(try_dir(d.path), "config.json:3");
    test_put_text(path, "[1]");
    MX_CHECK_ERROR(try_dir(d.path), "expected an object and found an array");
    test_put_text(path, "");
    MX_CHECK_ERROR(try_dir(d.path), "not valid JSON");
    char deep[300];
    memset(deep, '[', sizeof deep);
    test_put(path, deep, sizeof deep);
    MX_CHECK_ERROR(try_dir(d.path), "nested more than 64");
    MX_CHECK(truncate(path, (off_t)65 << 20) == 0);
    MX_CHECK_ERROR(try_dir(d.path), "at most");
    test_dir_remove(&d);
}

MX_TEST(hf_dir_hostile_index)
{
    test_dir d;
    test_dir_make(&d);
    test_put_text(test_dir_file(&d, "config.json"), "{}");
    static const char *const cases[][2] = {
        {"{\"a\":\"../../etc/x.safetensors\"}", "not a plain file name"},
        {"{\"a\":\"/etc/x.safetensors\"}", "not a plain file name"},
        {"{\"a\":\"x/../y.safetensors\"}", "not a plain file name"},
        {"{\"a\":\"pytorch_model.bin\"}", "not a safetensors file"},
        {"{\"a\":7}", "must be a file name and is an integer"},
        {"{}", "is empty"},
        {"[]", "is an array"},
        {"{\"a\":\".safetensors\"}", "missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_index(&d, cases[i][0]);
        MX_CHECK_ERROR(try_dir(d.path), cases[i][1]);
    }
    test_dir_remove(&d);
}

MX_TEST(hf_dir_links)
{
    test_dir d;
    test_dir_make(&d);
    char path[600];
    static const char *const dirs[] = {"out", "models--x--y", "models--x--y/blobs",
                                       "models--x--y/snapshots", "models--x--y/snapshots/abc"};
    for (int i = 0; i < 5; i++)
        MX_CHECK(mkdir(test_dir_file(&d, dirs[i]), 0755) == 0);
    snprintf(path, sizeof path, "%s/models--x--y/snapshots/abc", d.path);
    test_put_st(test_dir_file(&d, "models--x--y/blobs/1234"), ONE_A, 4);
    test_put_text(test_dir_file(&d, "models--x--y/blobs/5678"), "{}");
    test_put_st(test_dir_file(&d, "out/secret"), ONE_A, 4);
    const char *weights = test_dir_file(&d, "models--x--y/snapshots/abc/model.safetensors");
    const char *config = test_dir_file(&d, "models--x--y/snapshots/abc/config.json");
    MX_CHECK(symlink("../../blobs/5678", config) == 0);
    MX_CHECK(symlink("../../blobs/1234", weights) == 0);
    MX_CHECK_OK(try_dir(path));
    unlink(weights);
    MX_CHECK(symlink("../../../out/secret", weights) == 0);
    MX_CHECK_ERROR(try_dir(path), "outside the model's directory");
    unlink(weights);
    MX_CHECK(symlink("model.safetensors", weights) == 0); /* a loop */
    MX_CHECK_ERROR(try_dir(path), "leads nowhere");
    unlink(weights);
    MX_CHECK(mkfifo(weights, 0600) == 0); /* must not block */
    MX_CHECK_ERROR(try_dir(path), "special file");
    /* A blobs link counts only in the cache's own layout. */
    snprintf(path, sizeof path, "%s/out", d.path);
    test_put_text(test_dir_file(&d, "out/config.json"), "{}");
    const char *link = test_dir_file(&d, "out/model.safetensors");
    MX_CHECK(symlink("../models--x--y/blobs/1234", link) == 0);
    MX_CHECK_ERROR(try_dir(path), "outside the model's directory");
    test_dir_remove(&d);
}

MX_TEST(hf_dir_few_file_descriptors)
{
    test_dir d;
    test_dir_make(&d);
    test_put_text(test_dir_file(&d, "config.json"), "{}");
    char map[1000] = "{";
    for (int i = 0; i < 16; i++) {
        char name[40];
        snprintf(name, sizeof name, "s%d.safetensors", i);
        test_put_st(test_dir_file(&d, name), ONE_A, 4);
        size_t n = strlen(map);
        snprintf(map + n, sizeof map - n, "%s\"%s%d\":\"%s\"", i ? "," : "", i ? "x" : "a", i,
                 name);
    }
    strncat(map, "}", 2);
    put_index(&d, map);
    struct rlimit lim = {12, 12};
    setrlimit(RLIMIT_NOFILE, &lim);
    MX_CHECK_ERROR(try_dir(d.path), "ulimit -n");
    lim.rlim_cur = lim.rlim_max;
    unlink(test_dir_file(&d, "config.json"));
    test_dir_remove(&d);
}

/* Saving: one file, then shards, then one file again; each time the directory means one model. */
MX_TEST(hf_save_round_trip)
{
    test_dir d;
    test_dir_make(&d);
    static float w[3][100];
    for (int i = 0; i < 300; i++)
        w[i / 100][i % 100] = (float)i;
    mx_st_source src[3] = {{"model.x", MX_ST_F32, 2, {10, 10}, w[0], 0},
                           {"model.y", MX_ST_F32, 1, {100}, w[1], 0},
                           {"lm_head", MX_ST_F32, 1, {100}, w[2], 0}};
    mx_hf_extra extra[2] = {{.name = "config.json", .data = "{\"a\":1}", .n_bytes = 7},
                            {.name = "copy.json"}};
    test_put_text(test_dir_file(&d, "source.json"), "{\"b\":2}");
    extra[1].from = test_dir_file(&d, "source.json");
    const char *out = test_dir_file(&d, "out");
    static const uint64_t limits[] = {0, 400, 800, 0};
    static const int shards[] = {1, 3, 2, 1};
    for (int i = 0; i < 4; i++) {
        mx_hf_save_opts o = {.max_shard_bytes = limits[i], .n_threads = 2};
        MX_CHECK_OK(mx_hf_save(out, src, 3, extra, 2, &o));
        mx_hf_dir h;
        MX_CHECK_OK(mx_hf_dir_open(&h, out, MX_HF_ALL));
        MX_CHECK(h.n_files == shards[i] && h.n_tensors == 3, "%d files", h.n_files);
        float back[100] = {0};
        const mx_st_tensor *t = mx_hf_dir_find(&h, "lm_head");
        MX_CHECK(t);
        MX_CHECK_OK(mx_st_read(t, 0, 100, MX_ST_F32, back, NULL));
        MX_CHECK(memcmp(back, w[2], sizeof back) == 0);
        MX_CHECK(strcmp(mx_st_metadata(t->file, "format"), "pt") == 0);
        mx_hf_dir_close(&h);
    }
    size_t n;
    char *copy = test_get(test_dir_file(&d, "out/copy.json"), &n);
    MX_CHECK(n == 7 && memcmp(copy, "{\"b\":2}", 7) == 0);
    mx_free(copy);
    test_dir_remove(&d);
}

static mx_status fetch_counting(void *ctx, const mx_st_source *s, uint64_t at, void *dst, size_t n)
{
    (void)s;
    uint64_t *expected = ctx;
    MX_CHECK(at == *expected, "pieces come in order");
    *expected += n;
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)dst)[i] = (unsigned char)((at + i) % 251);
    return MX_OK;
}

/* A tensor that comes from a callback, larger than one piece. */
MX_TEST(hf_save_from_callback)
{
    enum { N = 9 << 20 };
    test_dir d;
    test_dir_make(&d);
    mx_st_source s = {.name = "w", .dtype = MX_ST_U8, .ndim = 1, .dim = {N}};
    uint64_t at = 0;
    mx_hf_save_opts o = {.writer = {.fetch = fetch_counting, .fetch_ctx = &at}};
    MX_CHECK_OK(mx_hf_save(d.path, &s, 1, NULL, 0, &o));
    MX_CHECK(at == N);
    mx_hf_dir h;
    MX_CHECK_OK(mx_hf_dir_open(&h, d.path, MX_HF_WEIGHTS_ONLY));
    uint8_t *back = mx_realloc(NULL, N);
    MX_CHECK_OK(mx_st_read(h.tensors[0], 0, N, MX_ST_U8, back, NULL));
    bool same = true;
    for (int i = 0; i < N; i++)
        same = same && back[i] == i % 251;
    MX_CHECK(same);
    mx_free(back);
    mx_hf_dir_close(&h);
    test_dir_remove(&d);
}

/* A stack is written part by part, whether it has data or comes from a callback. */
MX_TEST(hf_save_takes_stacks_apart)
{
    test_dir d;
    test_dir_make(&d);
    static const float w[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
    uint64_t at = 0;
    mx_st_source src[2] = {
        {.name = "e.*.w", .dtype = MX_ST_F32, .ndim = 3, .dim = {3, 2, 2}, .data = w},
        {.name = "f.*.w", .dtype = MX_ST_U8, .ndim = 2, .dim = {4, 50}}};
    mx_hf_save_opts o = {.writer = {.fetch = fetch_counting, .fetch_ctx = &at}};
    MX_CHECK_OK(mx_hf_save(d.path, src, 2, NULL, 0, &o));
    MX_CHECK(at == 200);
    mx_hf_dir h;
    MX_CHECK_OK(mx_hf_dir_open(&h, d.path, MX_HF_WEIGHTS_ONLY));
    MX_CHECK(h.n_tensors == 7);
    const mx_st_tensor *e = mx_hf_dir_find(&h, "e.2.w"), *f = mx_hf_dir_find(&h, "f.3.w");
    MX_CHECK(e && e->ndim == 2 && e->n == 4 && f && f->ndim == 1 && f->n == 50);
    float back[4];
    uint8_t bytes[50];
    MX_CHECK_OK(mx_st_read(e, 0, 4, MX_ST_F32, back, NULL));
    MX_CHECK(memcmp(back, w[2], sizeof back) == 0);
    MX_CHECK_OK(mx_st_read(f, 0, 50, MX_ST_U8, bytes, NULL));
    MX_CHECK(bytes[0] == 150 && bytes[49] == 199);
    mx_hf_dir_close(&h);
    test_dir_remove(&d);
}

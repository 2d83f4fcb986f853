/* staged_load_test.c - many tensors to a device at once: the values are those that a plain read
 * gives, on the host and through staging buffers (device/cpu/queue.h), past the page cache and
 * through it. */
#include "../compile/graph_run.h"
#include "../test.h"
#include "base/io.h"
#include "ops.h"
#include "models/from_config.h"
#include "store/staged_load.h"
#include "store/weights.h"
#include "test_dir.h"
#include "exec/step.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Tensors larger and smaller than a piece of 8 MiB, of types that a device converts and that it
 * does not; `pad` more bytes of header move all of them off their boundaries. */
enum { N = 6 };
static const struct {
    const char *name, *stored;
    int64_t n;
    mx_dtype to;
} wanted[N] = {{"a", "BF16", 5000001, MX_F32}, {"b", "F32", 2500003, MX_BF16},
               {"c", "BF16", 4500000, MX_BF16}, {"d", "F16", 70001, MX_F32},
               {"e", "F64", 1048577, MX_F32}, {"f", "BF16", 3, MX_F32}};

static int64_t size_of(int i)
{
    return mx_st_dtype_bytes(mx_st_dtype_parse(wanted[i].stored));
}

static void write_file(const char *path, int pad)
{
    mx_str head = {0};
    int64_t at = 0;
    uint32_t x = 12345;
    for (int i = 0; i < N; i++, at += wanted[i - 1].n * size_of(i - 1))
        mx_str_addf(&head, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [%lld], \"data_offsets\": "
                    "[%lld, %lld]}", i ? ", " : "{", wanted[i].name, wanted[i].stored,
                    (long long)wanted[i].n, (long long)at,
                    (long long)(at + wanted[i].n * size_of(i)));
    mx_str_addf(&head, "}%*s", pad, "");
    while ((head.len + 8) % 8 != (size_t)pad % 8)
        mx_str_add(&head, " ");
    test_put_st(path, mx_str_text(&head), (size_t)at);
    /* Finite in every type: the top bits of each 16 are those of small numbers. */
    uint16_t *data = mx_realloc(NULL, (size_t)at);
    for (int64_t i = 0; i < at / 2; i++, x = x * 1664525 + 1013904223)
        data[i] = (uint16_t)((x >> 16 & 0x8fff) | 0x3000);
    FILE *f = fopen(path, "r+b");
    MX_ASSERT(f && fseek(f, (long)(8 + head.len), SEEK_SET) == 0);
    MX_ASSERT(fwrite(data, 1, (size_t)at, f) == (size_t)at);
    fclose(f);
    mx_free(data);
    mx_str_fini(&head);
}

static void drop_from_cache(const char *path)
{
    int fd = open(path, O_RDONLY);
    MX_ASSERT(fd >= 0 && fsync(fd) == 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* A session with the variables. */
static void open_session(mx_graph_run *r, bool queued)
{
    if (queued)
        setenv("MX_TEST_QUEUE", "1", 1);
    mx_graph_run_init(r);
    for (int i = 0; i < N; i++) {
        mx_type t = mx_type_of(wanted[i].to, MX_SHAPE(wanted[i].n));
        mx_node *v = mx_variable(&r->graph, wanted[i].name, t, (mx_var_attr){.init = MX_ONES});
        mx_graph_root(&r->graph, wanted[i].name, v);
    }
    MX_CHECK_OK(mx_graph_run_compile(r, true));
    unsetenv("MX_TEST_QUEUE");
}

static mx_status load(mx_session *s, mx_st_file *f, mx_staged_load *h)
{
    static mx_quant_tensor from[N];
    for (int i = 0; i < N; i++) {
        const mx_st_tensor *t = mx_st_find(f, wanted[i].name);
        from[i] = (mx_quant_tensor){.name = t->name, .kind = MX_QUANT_PLAIN, .n = t->n, .data = t};
        h[i] = (mx_staged_load){.var = mx_session_find(s, wanted[i].name), .from = &from[i]};
    }
    return mx_staged_load_all(s, h, N);
}

static void compare(mx_session *s, const mx_st_file *f)
{
    for (int i = 0; i < N; i++) {
        const mx_var *v = mx_session_find(s, wanted[i].name);
        size_t bytes = mx_type_bytes(&v->type);
        char *got = mx_realloc(NULL, bytes), *want = mx_realloc(NULL, bytes);
        MX_CHECK_OK(mx_var_read(s, v, got));
        MX_CHECK_OK(mx_st_read(mx_st_find(f, v->name), 0, wanted[i].n, mx_st_dtype_of(wanted[i].to),
                               want, NULL));
        MX_CHECK(memcmp(got, want, bytes) == 0, "%s", v->name);
        mx_free(got);
        mx_free(want);
    }
}

static void load_and_compare(bool queued, int pad)
{
    test_dir d;
    mx_graph_run r;
    mx_st_file f;
    mx_staged_load h[N];
    test_dir_make(&d);
    const char *path = test_dir_file(&d, "x.safetensors");
    write_file(path, pad);
    open_session(&r, queued);
    MX_CHECK_OK(mx_st_open(&f, path));
    drop_from_cache(path);
    MX_CHECK_OK(load(r.session, &f, h));
    compare(r.session, &f); /* which has it in the page cache again */
    MX_CHECK_OK(load(r.session, &f, h));
    compare(r.session, &f);
    for (int i = 0; i < N; i++)
        MX_CHECK(h[i].scan.n_nan == 0 && h[i].scan.n_inf == 0, "%s", wanted[i].name);
    mx_st_close(&f);
    mx_graph_run_fini(&r);
    test_dir_remove(&d);
}

MX_TEST(a_staged_load_gives_what_is_stored)
{
    load_and_compare(false, 0);
    load_and_compare(false, 3);
}

MX_TEST(a_load_through_staging_buffers_gives_what_is_stored)
{
    load_and_compare(true, 0);
    load_and_compare(true, 3);
}

MX_TEST(a_staged_load_counts_what_is_not_finite)
{
    for (int queued = 0; queued < 2; queued++) {
        test_dir d;
        mx_graph_run r;
        mx_st_file f;
        mx_staged_load h[N];
        test_dir_make(&d);
        const char *path = test_dir_file(&d, "x.safetensors");
        write_file(path, 0);
        MX_CHECK_OK(mx_st_open(&f, path));
        int fd = open(path, O_WRONLY);
        const uint16_t bad[3] = {0x7fc0, 0xff80, 0x7f80}; /* NaN, -inf, inf */
        uint64_t at = mx_st_find(&f, "c")->at;
        MX_CHECK(pwrite(fd, bad, 2, (off_t)at) == 2);
        MX_CHECK(pwrite(fd, bad + 1, 4, (off_t)(at + 2 * 4499998)) == 4);
        close(fd);
        open_session(&r, queued);
        MX_CHECK_OK(load(r.session, &f, h));
        MX_CHECK(h[2].scan.n_nan == 1 && h[2].scan.n_inf == 2, "%lld NaN, %lld Inf",
                 (long long)h[2].scan.n_nan, (long long)h[2].scan.n_inf);
        MX_CHECK(h[0].scan.n_nan + h[1].scan.n_nan + h[3].scan.n_nan == 0);
        mx_st_close(&f);
        mx_graph_run_fini(&r);
        test_dir_remove(&d);
    }
}

MX_TEST(a_staged_load_from_a_file_cut_short_names_file_and_byte)
{
    for (int queued = 0; queued < 2; queued++) {
        test_dir d;
        mx_graph_run r;
        mx_st_file f;
        mx_staged_load h[N];
        char expected[1200];
        test_dir_make(&d);
        const char *path = test_dir_file(&d, "x.safetensors");
        write_file(path, 0);
        MX_CHECK_OK(mx_st_open(&f, path));
        uint64_t end = mx_st_find(&f, "f")->at + 2;
        MX_CHECK(truncate(path, (off_t)end) == 0);
        open_session(&r, queued);
        for (int i = 0; i < N; i++)
            mx_session_find(r.session, wanted[i].name)->written = false;
        snprintf(expected, sizeof expected, "%s: the file ends at byte %llu", path,
                 (unsigned long long)end);
        MX_CHECK_ERROR(load(r.session, &f, h), expected);
        MX_CHECK(!h[0].var->written && !h[5].var->written, "taken for loaded");
        mx_st_close(&f);
        mx_graph_run_fini(&r);
        test_dir_remove(&d);
    }
}

/* Every offset inside blocks, lengths across them, up to the end of the file; cold and warm. */
MX_TEST(a_fetch_past_the_page_cache_gives_the_same_bytes)
{
    test_dir d;
    mx_st_file f;
    test_dir_make(&d);
    const char *path = test_dir_file(&d, "x.safetensors");
    write_file(path, 2);
    MX_CHECK_OK(mx_st_open(&f, path));
    mx_st_go_direct(&f);
    if (!f.is_direct)
        printf("%s: no O_DIRECT here, plain reads are tested\n", d.path);
    const mx_st_tensor *t = mx_st_find(&f, "c");
    enum { MOST = 20000 };
    char *memory = mx_realloc(NULL, 2 * MOST + 4 * MX_ST_BLOCK);
    void *room = memory + (MX_ST_BLOCK - (uintptr_t)memory % MX_ST_BLOCK);
    uint16_t want[MOST];
    for (int i = 0; i < 400; i++) {
        int64_t n = 1 + i * 7919 % MOST, first = i % 4 ? i * 104729 % (t->n - n) : t->n - n;
        const void *got;
        if (i % 8 < 4)
            drop_from_cache(path);
        MX_CHECK_OK(mx_st_fetch(t, first, n, room, &got));
        MX_CHECK_OK(mx_st_read(t, first, n, MX_ST_BF16, want, NULL));
        MX_CHECK((const char *)got >= (char *)room &&
                 (const char *)got + 2 * n <= (char *)room + 2 * n + 2 * MX_ST_BLOCK);
        MX_CHECK(memcmp(got, want, 2 * (size_t)n) == 0, "%lld+%lld", (long long)first,
                 (long long)n);
    }
    mx_free(memory);
    mx_st_close(&f);
    test_dir_remove(&d);
}

/* Weights of a model on the CPU and through staging buffers, against each tensor read whole. */
static void compare_model(const char *path, bool queued, int64_t *quantized, int64_t *stacks)
{
    mx_arena a = {0};
    mx_hf_dir dir = {0};
    mx_model_spec m = {0};
    mx_quant_set q = {0};
    mx_session *s = NULL;
    mx_step step = {0};
    mx_step_options o = {.kind = MX_STEP_LOGITS, .shape = {.batch = 1, .seq = 4}};
    if (queued)
        setenv("MX_TEST_QUEUE", "1", 1);
    MX_CHECK_OK(mx_hf_dir_open(&dir, path, MX_HF_ALL));
    MX_CHECK_OK(mx_model_from_json(&m, dir.config, path));
    MX_CHECK_OK(mx_session_open(&s, "cpu", 2));
    unsetenv("MX_TEST_QUEUE");
    MX_CHECK_OK(mx_step_open(&step, s, &m, &o));
    MX_CHECK_OK(mx_weights_load(s, &m, &dir, (mx_load_options){0}));
    MX_CHECK_OK(mx_quant_open(&q, &dir));
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i);
        mx_quant_tensor t;
        MX_CHECK_OK(mx_quant_resolve(&q, v->name, &a, &t));
        if (!t.name || t.n != mx_type_count(&v->type))
            continue; /* under another name, or made from parts */
        char *got = mx_arena_alloc(&a, mx_type_bytes(&v->type));
        char *want = mx_arena_alloc(&a, mx_type_bytes(&v->type));
        MX_CHECK_OK(mx_var_read(s, v, got));
        MX_CHECK_OK(mx_quant_read(&t, 0, t.n, mx_st_dtype_of(v->type.dtype), want, NULL));
        MX_CHECK(memcmp(got, want, mx_type_bytes(&v->type)) == 0, "%s: %s", path, v->name);
        *stacks += t.kind == MX_QUANT_STACK;
        *quantized += t.kind != MX_QUANT_STACK && t.kind != MX_QUANT_PLAIN;
    }
    mx_session_close(s);
    mx_step_close(&step);
    mx_model_spec_fini(&m);
    mx_quant_close(&q);
    mx_hf_dir_close(&dir);
    mx_arena_fini(&a);
}

MX_TEST(quantized_and_stacked_weights_are_loaded_as_they_are_read)
{
    for (int queued = 0; queued < 2; queued++) {
        int64_t quantized = 0, stacks = 0;
        compare_model("tests/store/fixtures/llama_fp8", queued, &quantized, &stacks);
        compare_model("tests/fixtures/models/qwen3-moe", queued, &quantized, &stacks);
        MX_CHECK(quantized > 5 && stacks > 1, "%lld quantized, %lld stacks", (long long)quantized,
                 (long long)stacks);
    }
}

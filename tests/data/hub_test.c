/* hub_test.c - fetching from a hub: a server of our own on the loopback speaks the hub's routes. */
#include "../test.h"
#include "keys/keys.h"
#include "train/input/train_sets.h"

#include "data/hub/hub.h"
#include "data/hub/sha.h"
#include "files.h"
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BIG = 3000000 };
static char big[BIG];
static const char small[] = "{\"text\": \"small\"}\n";

typedef struct {
    struct MHD_Daemon *daemon;
    int port;
    /* how it behaves */
    bool needs_token, wrong_bytes, evil_path, ignore_ranges;
    int cut_after; /* break the connection after so many bytes, `cuts` times */
    int cuts, failures;
    /* what it saw */
    int n_listings, n_files, n_ranges;
    char sha_big[65], sha_small[65];
} server;

typedef struct {
    server *s;
    int64_t from, end;
} body;

static ssize_t give(void *arg, uint64_t pos, char *buf, size_t max)
{
    body *b = arg;
    int64_t at = b->from + (int64_t)pos, n = b->end - at;
    if (n <= 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (b->s->cuts > 0 && (int64_t)pos >= b->s->cut_after) {
        b->s->cuts--;
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    n = n < (int64_t)max ? n : (int64_t)max;
    n = n < 100000 ? n : 100000;
    memcpy(buf, big + at, (size_t)n);
    return n;
}

static enum MHD_Result answer(struct MHD_Connection *c, int code, const char *text, size_t n)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(n, (void *)text, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result ok = MHD_queue_response(c, (unsigned)code, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result answer_listing(server *s, struct MHD_Connection *c)
{
    char json[2000];
    s->n_listings++;
    snprintf(json, sizeof json,
             "{\"id\": \"org/name\", \"sha\": \"0123456789abcdef0123456789abcdef01234567\", "
             "\"siblings\": ["
             "{\"rfilename\": \"README.md\", \"size\": 3, \"blobId\": \"1\"},"
             "{\"rfilename\": \"%s\", \"size\": %d, \"blobId\": \"ab\", \"lfs\": {\"sha256\": "
             "\"%s\", \"size\": %d}},"
             "{\"rfilename\": \"data/validation 1.jsonl\", \"size\": %d, \"blobId\": \"%s\"}]}",
             s->evil_path ? "../../evil" : "data/train.jsonl", BIG, s->sha_big, BIG,
             (int)sizeof small - 1, s->sha_small);
    return answer(c, 200, json, strlen(json));
}

static enum MHD_Result answer_big(server *s, struct MHD_Connection *c)
{
    const char *range = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Range");
    body *b = malloc(sizeof *b);
    long long from = 0;
    s->n_files++;
    if (range && !s->ignore_ranges && sscanf(range, "bytes=%lld-", &from) == 1)
        s->n_ranges++;
    *b = (body){s, from, BIG};
    struct MHD_Response *r =
        MHD_create_response_from_callback((uint64_t)(BIG - from), 65536, give, b, free);
    enum MHD_Result ok = MHD_queue_response(c, from ? 206 : 200, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *n_data, void **ctx)
{
    server *s = arg;
    (void)method, (void)version, (void)data, (void)n_data, (void)ctx;
    const char *auth = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    if (s->failures > 0)
        return s->failures--, answer(c, 503, "busy", 4);
    if (s->needs_token && (!auth || strcmp(auth, "Bearer secret") != 0))
        return answer(c, 401, "no", 2);
    if (strcmp(url, "/api/datasets/org/name/revision/main") == 0)
        return answer_listing(s, c);
    static const char base[] =
        "/datasets/org/name/resolve/0123456789abcdef0123456789abcdef01234567/";
    if (strncmp(url, base, sizeof base - 1) != 0)
        return answer(c, 404, "none", 4);
    url += sizeof base - 1;
    if (strcmp(url, "data/train.jsonl") == 0) { /* large files are served from elsewhere */
        char location[200];
        snprintf(location, sizeof location, "http://127.0.0.1:%d%s/elsewhere", s->port, base);
        struct MHD_Response *r = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
        MHD_add_response_header(r, "Location", location);
        enum MHD_Result ok = MHD_queue_response(c, 302, r);
        MHD_destroy_response(r);
        return ok;
    }
    if (strcmp(url, "/elsewhere") == 0)
        return answer_big(s, c);
    s->n_files++;
    if (strcmp(url, "data/validation 1.jsonl") == 0)
        return answer(c, 200, s->wrong_bytes ? "{\"text\": \"smaLl\"}\n" : small, sizeof small - 1);
    return answer(c, 404, "none", 4);
}

static void start(server *s)
{
    mx_sha h;
    char head[64];
    *s = (server){0};
    for (int i = 0; i < BIG; i++)
        big[i] = (char)((unsigned)i * 7919u >> 5);
    mx_sha256_init(&h);
    mx_sha_add(&h, big, BIG);
    mx_sha_hex(&h, s->sha_big);
    int n = snprintf(head, sizeof head, "blob %d", (int)sizeof small - 1);
    mx_sha1_init(&h);
    mx_sha_add(&h, head, (size_t)n + 1);
    mx_sha_add(&h, small, sizeof small - 1);
    mx_sha_hex(&h, s->sha_small);
    s->daemon =
        MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, handle, s, MHD_OPTION_END);
    MX_CHECK(s->daemon != NULL);
    s->port = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", s->port);
    setenv("HF_ENDPOINT", url, 1);
    setenv("HF_HOME", temp_path("hf"), 1);
    unsetenv("HF_TOKEN"), unsetenv("HF_HUB_OFFLINE"), unsetenv("HF_HUB_CACHE");
}

static mx_status fetch(const char *pattern, mx_arena *a, char ***paths, int *n)
{
    char *folder;
    mx_hub_request r = {.repo = "org/name", .pattern = pattern};
    return mx_hub_fetch(&r, a, paths, n, &folder);
}

static void check_big(const char *path)
{
    size_t n;
    char *p = read_whole(path, &n);
    MX_CHECK(n == BIG && memcmp(p, big, n) == 0, "%zu bytes", n);
    free(p);
}

MX_TEST(sha_of_known_texts)
{
    mx_sha s;
    char hex[65];
    mx_sha256_init(&s);
    mx_sha_add(&s, "abc", 3);
    mx_sha_hex(&s, hex);
    MX_CHECK(!strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"), "%s",
             hex);
    mx_sha1_init(&s);
    mx_sha_add(&s, "abc", 3);
    mx_sha_hex(&s, hex);
    MX_CHECK(!strcmp(hex, "a9993e364706816aba3e25717850c26c9cd0d89d"), "%s", hex);
    mx_sha256_init(&s);
    for (int i = 0; i < 1000; i++)
        mx_sha_add(&s, "0123456789", (size_t)(i % 11 > 10 ? 10 : i % 11));
    mx_sha_hex(&s, hex);
    MX_CHECK(strlen(hex) == 64);
}

MX_TEST(hub_fetches_once_and_works_offline)
{
    server s;
    mx_arena a = {0};
    char **paths;
    int n;
    start(&s);
    MX_CHECK_OK(fetch("data/*", &a, &paths, &n));
    MX_CHECK(n == 2 && s.n_files == 2 && s.n_listings == 1, "%d files, %d requests", n, s.n_files);
    MX_CHECK(strstr(paths[0],
                    "hf/hub/datasets--org--name/snapshots/0123456789abcdef0123456789abcdef01234567/"
                    "data/train.jsonl"),
             "%s", paths[0]);
    check_big(paths[0]);
    struct stat st;
    MX_CHECK(lstat(paths[0], &st) == 0 && S_ISLNK(st.st_mode), "a link into blobs/");
    MX_CHECK_OK(fetch("data/*", &a, &paths, &n));
    MX_CHECK(n == 2 && s.n_files == 2, "fetched again");
    MHD_stop_daemon(s.daemon);
    MX_CHECK_OK(fetch("data/*", &a, &paths, &n)); /* nobody answers */
    MX_CHECK(n == 2);
    setenv("HF_HUB_OFFLINE", "1", 1);
    MX_CHECK_OK(fetch("data/*", &a, &paths, &n));
    MX_CHECK(n == 2);
    check_big(paths[0]);
    setenv("HF_HOME", temp_path("other"), 1);
    MX_CHECK_ERROR(fetch("data/*", &a, &paths, &n), "HF_HUB_OFFLINE is set");
    mx_arena_fini(&a);
}

MX_TEST(hub_goes_on_where_it_stopped)
{
    for (int ignore = 0; ignore < 2; ignore++) {
        server s;
        mx_arena a = {0};
        char **paths;
        int n;
        start(&s);
        setenv("HF_HOME", temp_path(ignore ? "hf1" : "hf0"), 1);
        s.cut_after = 1000000;
        s.cuts = 2;
        s.failures = 1;
        s.ignore_ranges = ignore;
        MX_CHECK_OK(fetch("data/train*", &a, &paths, &n));
        MX_CHECK(n == 1 && s.cuts == 0 && (ignore || s.n_ranges == 2), "%d ranges", s.n_ranges);
        check_big(paths[0]);
        MHD_stop_daemon(s.daemon);
        mx_arena_fini(&a);
    }
}

MX_TEST(hub_refuses_what_it_must)
{
    server s;
    mx_arena a = {0};
    char **paths;
    int n;
    start(&s);
    s.wrong_bytes = true;
    MX_CHECK_ERROR(fetch("data/val*", &a, &paths, &n), "has the hash");
    s.wrong_bytes = false;
    MX_CHECK_OK(fetch("data/val*", &a, &paths, &n));
    MX_CHECK_ERROR(fetch("nothing*", &a, &paths, &n), "matches \"nothing*\"");
    s.evil_path = true;
    MX_CHECK_ERROR(fetch("", &a, &paths, &n), "not a safe path");
    s.evil_path = false;
    s.needs_token = true;
    MX_CHECK_ERROR(fetch("data/*", &a, &paths, &n), "HF_TOKEN");
    setenv("HF_TOKEN", "secret", 1);
    MX_CHECK_OK(fetch("data/*", &a, &paths, &n));
    mx_hub_request r = {.repo = "org/other"};
    char *folder;
    MX_CHECK_ERROR(mx_hub_fetch(&r, &a, &paths, &n, &folder), "not found (404)");
    r.repo = "../etc";
    MX_CHECK_ERROR(mx_hub_fetch(&r, &a, &paths, &n, &folder), "not the name");
    MHD_stop_daemon(s.daemon);
    mx_arena_fini(&a);
}

MX_TEST(hub_chooses_the_files_of_a_split)
{
    char *names[] = {"README.md",
                     "data/train-00000-of-00002.parquet",
                     "data/train-00001-of-00002.parquet",
                     "data/validation-00000.parquet",
                     "en/c4-train.00000.json.gz",
                     "dataset_infos.json"};
    mx_str out = {0};
    mx_hub_choose(names, 6, "", "data", "train", &out);
    MX_CHECK(
        !strcmp(out.text, "data/train-00000-of-00002.parquet,data/train-00001-of-00002.parquet"),
        "%s", out.text);
    mx_str_clear(&out);
    mx_hub_choose(names, 6, "en", "", "train", &out);
    MX_CHECK(!strcmp(out.text, "en/c4-train.00000.json.gz"), "%s", out.text);
    mx_str_clear(&out);
    mx_hub_choose(names, 6, "", "", "validation", &out);
    MX_CHECK(!strcmp(out.text, "data/validation-00000.parquet"), "%s", out.text);
    mx_str_clear(&out);
    char *plain[] = {"a.jsonl", "b.jsonl", "test.jsonl"};
    mx_hub_choose(plain, 3, "", "", "train", &out);
    MX_CHECK(!strcmp(out.text, "a.jsonl,b.jsonl"), "%s", out.text);
    mx_str_fini(&out);
}

MX_TEST(hub_token_is_the_key_hf_access_token)
{
    server s;
    mx_arena a = {0};
    start(&s);
    setenv("HF_HOME", temp_path("hf_key"), 1);
    s.needs_token = true;
    for (int with = 0; with < 2; with++) {
        const char *args[] = {"hf_path=org/name", "hf_train_files=data/val*",
                              with ? "hf_access_token=secret" : "hf_access_token=wrong"};
        mx_config_request q = {.schema = &mx_keys, .args = args, .n_args = 3};
        mx_config *cfg = NULL;
        mx_dataset_options *sets;
        int n = 0;
        MX_CHECK_OK(mx_config_load(&cfg, &q));
        if (with)
            MX_CHECK_OK(mx_train_sets(cfg, false, &a, &sets, &n));
        else
            MX_CHECK_ERROR(mx_train_sets(cfg, false, &a, &sets, &n), "HF_TOKEN");
        MX_CHECK(n == with, "%d sets", n);
        mx_config_free(cfg);
    }
    MHD_stop_daemon(s.daemon);
    mx_arena_fini(&a);
}

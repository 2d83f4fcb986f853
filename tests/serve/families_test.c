/* families_test.c - families' goldens through the server: greedy answers over HTTP are
 * transformers' tokens, alone and among requests that arrive at any time.
 *
 * Some families, 8 requests at a time; MX_SERVE_FAMILIES=all and MX_SERVE_REQUESTS=64 are all of
 * them in wide batches: make test-serve-families.
 */
#include "../test.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/signals.h"
#include "serve/server.h"
#include "store/safetensors.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char root[] = "tests/fixtures/models";
enum { N_PROMPT = 12, N_ALL = 24, MOST = 256 };

/* One golden, and a server of its family. */
typedef struct {
    const char *name;
    mx_model_ref model;
    int32_t want[N_ALL];
    mx_tokenizer *tokenizer;
    mx_engine *engine;
    mx_token_bytes *bytes;
    mx_served served;
    mx_server_options options;
    mx_server *server;
    pthread_t thread;
} stand;

static bool read_golden(stand *s)
{
    char path[512];
    mx_st_file f;
    snprintf(path, sizeof path, "%s/%s/golden.safetensors", root, s->name);
    MX_CHECK_OK(mx_st_open(&f, path));
    const mx_st_tensor *t = mx_st_find(&f, "generated");
    bool there = t && t->dim[t->ndim - 1] == N_ALL && !mx_st_find(&f, "pixel_values");
    if (there)
        MX_CHECK_OK(mx_st_read(t, 0, N_ALL, MX_ST_I32, s->want, NULL));
    mx_st_close(&f);
    return there;
}

/* Token i is the text <i>. */
static void write_tokenizer(const char *dir, int64_t vocab)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    MX_ASSERT(f, "%s", path);
    fprintf(f, "{\"added_tokens\":[],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
               "\"add_prefix_space\":false,\"use_regex\":true},\"post_processor\":null,"
               "\"decoder\":{\"type\":\"ByteLevel\"},"
               "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int64_t i = 0; i < vocab; i++)
        fprintf(f, "%s\"<%lld>\":%lld", i ? "," : "", (long long)i, (long long)i);
    fprintf(f, "}}}");
    fclose(f);
}

static void *run(void *server)
{
    MX_CHECK_OK(mx_server_run(server));
    return NULL;
}

static void stand_open(stand *s, const char *dir, int64_t sequences)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, s->name);
    MX_CHECK_OK(mx_model_ref_open(&s->model, path, NULL, NULL));
    write_tokenizer(dir, s->model.spec.summary.vocab);
    MX_CHECK_OK(mx_tokenizer_open(&s->tokenizer, dir, NULL));
    mx_engine_options eo = {.model = &s->model, .tokenizer = s->tokenizer, .device = "cpu",
                            .n_threads = 2, .compute = MX_F32, .sequences = sequences,
                            .step_tokens = sequences + 29, .max_length = 48,
                            .cache_tokens = 24 * sequences};
    MX_CHECK_OK(mx_engine_open(&s->engine, &eo));
    MX_CHECK_OK(mx_token_bytes_open(&s->bytes, s->tokenizer, mx_engine_vocab(s->engine)));
    s->served = (mx_served){.model = &s->model, .tokenizer = s->tokenizer, .name = "m",
                            .bytes = s->bytes, .max_length = 48,
                            .vocab = mx_engine_vocab(s->engine),
                            .width = mx_engine_width(s->engine),
                            .usual = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};
    s->options = (mx_server_options){.host = "127.0.0.1", .most_calls = MOST, .body_bytes = 10000,
                                     .drain_s = 30, .stuck_s = 60};
    MX_CHECK_OK(mx_server_open(&s->server, s->engine, &s->served, &s->options));
    pthread_create(&s->thread, NULL, run, s->server);
}

static void stand_close(stand *s)
{
    mx_stop_request(SIGTERM);
    pthread_join(s->thread, NULL);
    mx_server_close(s->server);
    mx_stop_clear();
    mx_token_bytes_close(s->bytes);
    mx_engine_close(s->engine);
    mx_tokenizer_close(s->tokenizer);
    mx_model_ref_close(&s->model);
}

/* A request, of the golden's prompt or of another one, that comes after a while. */
typedef struct {
    const stand *s;
    int64_t number;
    bool golden;
    char answer[4096];
} call;

static void compose(const call *c, char *text, size_t cap)
{
    char body[1024];
    int at = snprintf(body, sizeof body, "{\"prompt\":[");
    mx_random4 x = mx_philox(11, 3, (uint64_t)c->number);
    int n = c->golden ? N_PROMPT : 1 + (int)(x.v[1] % 20);
    for (int i = 0; i < n; i++) {
        bool alike = c->golden || i < (int)(x.v[2] % 16); /* many begin like the golden */
        at += snprintf(body + at, sizeof body - (size_t)at, "%s%d", i ? "," : "",
                       alike && i < N_PROMPT ? c->s->want[i] : (int)(3 + x.v[3] % 20));
    }
    at += snprintf(body + at, sizeof body - (size_t)at,
                   "],\"ignore_eos\":true,\"max_tokens\":%d,\"temperature\":%d,\"seed\":%lld}",
                   c->golden ? N_ALL - N_PROMPT : 1 + (int)(x.v[1] % 25), !c->golden,
                   (long long)c->number);
    snprintf(text, cap,
             "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
             "Content-Length: %d\r\n\r\n%s", at, body);
}

static void *ask(void *call_)
{
    call *c = call_;
    char text[2048];
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)mx_server_port(c->s->server)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t have = 0;
    compose(c, text, sizeof text);
    usleep(mx_philox(11, 4, (uint64_t)c->number).v[0] % 60000);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
        send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text))
        for (ssize_t k; (k = read(fd, c->answer + have, sizeof c->answer - 1 - have)) > 0;)
            have += (size_t)k;
    close(fd);
    return NULL;
}

static void compare(const call *c)
{
    char want[512];
    int at = snprintf(want, sizeof want, "\"text\":\"");
    for (int i = N_PROMPT; i < N_ALL; i++)
        at += snprintf(want + at, sizeof want - (size_t)at, "<%d>", c->s->want[i]);
    snprintf(want + at, sizeof want - (size_t)at, "\"");
    MX_CHECK(strstr(c->answer, c->golden ? want : "\"text\":\"<") != NULL,
             "%s, request %d: expected %s in: %s", c->s->name, (int)c->number, want, c->answer);
}

static void ask_together(const stand *s, int64_t n)
{
    pthread_t thread[MOST];
    call *c = calloc((size_t)n, sizeof *c);
    for (int64_t i = 0; i < n; i++) {
        c[i] = (call){.s = s, .number = i, .golden = i % 2 == 0};
        pthread_create(&thread[i], NULL, ask, &c[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        compare(&c[i]);
    }
    free(c);
}

static void check_family(const char *name, const char *dir, int64_t n)
{
    stand s = {.name = name};
    if (!read_golden(&s))
        return;
    stand_open(&s, dir, n);
    ask_together(&s, 1);
    ask_together(&s, n);
    stand_close(&s);
}

MX_TEST(serve_gives_goldens)
{
    static const char *const some[] = {"llama3", "gemma3", "qwen3-next", "deepseek-v3.2"};
    const char *which = getenv("MX_SERVE_FAMILIES"), *requests = getenv("MX_SERVE_REQUESTS");
    long n = requests && *requests ? strtol(requests, NULL, 10) : 8;
    char dir[] = "/tmp/maxc-test-XXXXXX", path[64];
    MX_ASSERT(mkdtemp(dir) && n > 0 && n <= MOST, "%s, %ld requests", dir, n);
    for (size_t i = 0; !which && i < sizeof some / sizeof *some; i++)
        check_family(some[i], dir, n);
    DIR *d = which ? opendir(root) : NULL;
    for (struct dirent *x; d && (x = readdir(d));)
        if (x->d_name[0] != '.')
            check_family(x->d_name, dir, n);
    if (d)
        closedir(d);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
}

/* readers_test.c - a request that costs seconds to read keeps nobody waiting: with a body of 20 MB
 * and a form of 200,000 choices on their way, the stream of another client goes on and /health
 * answers. */
#include "../test.h"
#include "process_state.h"

#include "base/clock.h"
#include "base/signals.h"
#include "base/str.h"
#include "serve/server.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int connect_to(int port)
{
    int s = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    MX_CHECK(connect(s, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    return s;
}

static void send_all(int s, const char *text, size_t n)
{
    for (ssize_t k; n > 0; text += k, n -= (size_t)k)
        if ((k = send(s, text, n, MSG_NOSIGNAL)) <= 0)
            return;
}

/* A POST of a completion, sent whole. */
static int post(int port, const mx_str *body)
{
    char head[128];
    int s = connect_to(port);
    int n = snprintf(head, sizeof head,
                     "POST /v1/completions HTTP/1.0\r\nContent-Length: %zu\r\n\r\n", body->len);
    send_all(s, head, (size_t)n);
    send_all(s, mx_str_text(body), body->len);
    return s;
}

/* The status of an answer, which is read to its end; *gap: the longest wait between two pieces of
 * it. */
static int read_answer(int s, double *gap)
{
    char text[4096], head[32] = {0};
    int status = 0, pieces = 0;
    double heard = 0;
    for (ssize_t k; (k = read(s, text, sizeof text)) > 0; pieces++) {
        double now = mx_clock_now();
        if (!pieces)
            memcpy(head, text, (size_t)k < sizeof head ? (size_t)k : sizeof head - 1);
        if (pieces > 1 && now - heard > *gap)
            *gap = now - heard;
        heard = now;
    }
    close(s);
    sscanf(head, "HTTP/%*s %d", &status);
    return status;
}

/* A client that sends the same again and again until it is over. */
typedef struct {
    int port, wanted, wrong;
    const mx_str *body;
    atomic_bool *over;
    double gap;
    int n;
} streamer;

static void *stream(void *ctx)
{
    streamer *t = ctx;
    for (; !atomic_load(t->over); t->n++)
        t->wrong += read_answer(post(t->port, t->body), &t->gap) != t->wanted;
    return NULL;
}

/* One that asks once for what costs much. */
typedef struct {
    int port, status;
    const mx_str *body;
    double took;
    atomic_int *left;
} costly;

static void *ask(void *ctx)
{
    costly *c = ctx;
    double gap = 0, began = mx_clock_now();
    c->status = read_answer(post(c->port, c->body), &gap);
    c->took = mx_clock_now() - began;
    atomic_fetch_sub(c->left, 1);
    return NULL;
}

static double health(int port)
{
    double gap = 0, began = mx_clock_now();
    int s = connect_to(port);
    send_all(s, "GET /health HTTP/1.0\r\n\r\n", 24);
    MX_CHECK(read_answer(s, &gap) == 200, "/health");
    return mx_clock_now() - began;
}

/* Sanitizers keep what is freed. */
static bool sanitized(void)
{
    return dlsym(RTLD_DEFAULT, "__asan_init") || dlsym(RTLD_DEFAULT, "__tsan_init");
}

static void *run(void *server)
{
    MX_CHECK_OK(mx_server_run(server));
    return NULL;
}

static void load(int port)
{
    mx_str large = {0}, choices = {0}, small = {0};
    atomic_int left = 2;
    atomic_bool over = false;
    mx_str_add(&large, "{\"max_tokens\": 1, \"prompt\": \"");
    while (large.len < 20 << 20)
        mx_str_add(&large, "the sea is wide and so is the sky, ");
    mx_str_add(&large, "\"}");
    mx_str_add(&choices, "{\"prompt\": \"a\", \"max_tokens\": 9, \"structured_outputs\": "
                         "{\"choice\": [\"w\"");
    for (int i = 0; i < 200000; i++)
        mx_str_addf(&choices, ",\"w%06d\"", i);
    mx_str_add(&choices, "]}}");
    mx_str_add(&small, "{\"prompt\": \"hello\", \"max_tokens\": 50, \"ignore_eos\": true, "
                       "\"stream\": true}");
    streamer t = {.port = port, .wanted = 200, .body = &small, .over = &over};
    costly c[] = {{.port = port, .body = &large, .left = &left},
                  {.port = port, .body = &choices, .left = &left}};
    pthread_t thread[3];
    pthread_create(&thread[2], NULL, stream, &t);
    for (int i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, ask, &c[i]);
    double worst = 0;
    for (; atomic_load(&left); usleep(10000)) {
        double took = health(port);
        worst = took > worst ? took : worst;
    }
    atomic_store(&over, true);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    printf("        20 MB read in %.2f s, choices in %.2f s; meanwhile /health within %.3f s, a "
           "stream's gaps below %.3f s\n", c[0].took, c[1].took, worst, t.gap);
    MX_CHECK(c[0].status == 400 && c[1].status == 200, "%d, %d", c[0].status, c[1].status);
    MX_CHECK(t.n > 0 && !t.wrong, "%d streams, %d of them wrong", t.n, t.wrong);
    MX_CHECK(worst < c[0].took / 3 && t.gap < c[0].took / 3,
             "a body read in %.2f s kept /health waiting for %.2f s, a stream for %.2f s",
             c[0].took, worst, t.gap);
    mx_str_fini(&large);
    mx_str_fini(&choices);
    mx_str_fini(&small);
}

MX_TEST(costly_requests_keep_nobody_waiting)
{
    static const char model[] = "tests/fixtures/post/model";
    mx_model_ref m;
    mx_tokenizer *t;
    mx_engine *e;
    mx_token_bytes *bytes;
    mx_server *s;
    pthread_t thread;
    signal(SIGPIPE, SIG_IGN);
    MX_CHECK_OK(mx_model_ref_open(&m, model, NULL, NULL));
    MX_CHECK_OK(mx_tokenizer_open(&t, model, NULL));
    mx_engine_options eo = {.model = &m, .tokenizer = t, .device = "cpu", .n_threads = 1,
                            .compute = MX_F32, .sequences = 4, .step_tokens = 16,
                            .max_length = 128, .cache_tokens = 512};
    MX_CHECK_OK(mx_engine_open(&e, &eo));
    MX_CHECK_OK(mx_token_bytes_open(&bytes, t, mx_engine_vocab(e)));
    mx_served served = {.model = &m, .tokenizer = t, .name = "m", .bytes = bytes,
                        .max_length = mx_engine_max_length(e), .vocab = mx_engine_vocab(e),
                        .usual = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};
    mx_server_options so = {.host = "127.0.0.1", .most_calls = 16, .body_bytes = 32 << 20,
                            .drain_s = 30, .stuck_s = 60};
    MX_CHECK_OK(mx_server_open(&s, e, &served, &so));
    pthread_create(&thread, NULL, run, s);
    long before = resident_kb();
    load(mx_server_port(s));
    long kept = (resident_kb() - before) >> 10;
    MX_CHECK(kept < 100 || sanitized(), "%ld MB are kept of what the requests took", kept);
    mx_stop_request(SIGTERM);
    pthread_join(thread, NULL);
    mx_server_close(s);
    mx_stop_clear();
    mx_token_bytes_close(bytes);
    mx_engine_close(e);
    mx_tokenizer_close(t);
    mx_model_ref_close(&m);
}

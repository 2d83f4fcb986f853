/* soak_test.c - a server under mixed load: many connections that stream, wait, send nonsense, stop
 * in the middle of a request or of an answer, or say nothing at all. Afterwards nothing runs, no
 * page is held, no file is open that was not before, and memory has not grown.
 *
 * MX_SOAK_SECONDS and MX_SOAK_CONNECTIONS make it longer and wider: make soak-serve.
 */
#include "../test.h"
#include "process_state.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/signals.h"
#include "serve/server.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GAPS = 192, GAPS_PER_OCTAVE = 8, LONG = 150000, TOO_LONG = 200000 };

typedef struct {
    int fd;
    char text[1024]; /* what it sends */
    const char *more; /* and then this, of the load */
    size_t n, n_more, sent;
    bool begun;   /* the answer has */
    bool unasked; /* its request is never whole: there will be no answer */
    double leaves;
    double heard; /* when the last piece of the answer came; 0: none has */
    int pieces;   /* so many have */
    char head[16];
} client;

typedef struct {
    mx_server *server;
    client *client;
    int n;
    uint64_t draws;
    double seconds;
    char *long_body; /* a prompt of LONG bytes, which takes a while to read and is refused */
    int64_t answered, refused, cut, opened, stuck;
    int64_t gaps[GAPS], n_gaps; /* between pieces of answers, by gap_of */
} load;

static uint32_t draw(load *l, uint32_t n)
{
    return mx_philox(5, 1, l->draws++).v[0] % n;
}

static long env(const char *name, long usual)
{
    const char *s = getenv(name);
    return s && *s ? strtol(s, NULL, 10) : usual;
}

/* A small picture, and what is none. */
#define PICTURE                                                                                    \
    "iVBORw0KGgoAAAANSUhEUgAAABcAAAARAQAAAAAeCAoQAAAAT0lEQVR4nAFEALv/AP/2/gS/7bMB" \
    "6wIJBNP3qQIdoBgCkgA2AkjvDgKg5vIBqNnTAUTgMAApAqoAkAhIAEIipAAgAFACaApEASIjCwJu" \
    "5AS8Ghdf4zywvwAAAABJRU5ErkJggg=="
#define WITH_IMAGE(data, more)                                                                     \
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "                \
    "\"image_url\": {\"url\": \"data:image/png;base64," data "\"}}, "                              \
    "{\"type\": \"text\", \"text\": \"?\"}]}], "                                                   \
    "\"max_tokens\": 9" more "}"

/* A request of some kind. */
static void compose(load *l, client *c)
{
    static const char *const bodies[] = {
        "{\"prompt\": \"hello\", \"max_tokens\": 12, \"ignore_eos\": true}",
        "{\"prompt\": \"hello\", \"max_tokens\": 90, \"ignore_eos\": true, \"stream\": true}",
        "{\"prompt\": [\"a\", \"b\", \"c\"], \"n\": 2, \"max_tokens\": 5, \"temperature\": 1}",
        "{\"prompt\": \"hello\", \"max_tokens\": 0, \"echo\": true, \"logprobs\": 1}",
        "{\"prompt\": \"x\", \"structured_outputs\": {\"regex\": \"[0-9]{3}\"}, \"max_tokens\": 9}",
        WITH_IMAGE(PICTURE, ", \"stream\": true"),
        WITH_IMAGE(PICTURE, ", \"n\": 2"),
        WITH_IMAGE("aGVsbG8=", ""),
        "{\"prompt\": 5}",
        "{\"prompt\": \"hello\", \"max_tokens\": 1e99",
        "{\"input\": \"hello\"}",
        "\377\376",
        "",
    };
    static const char *const paths[] = {"/v1/completions", "/v1/completions", "/v1/completions",
                                        "/v1/embeddings", "/v1/messages", "/tokenize", "/nowhere"};
    const char *body = bodies[draw(l, sizeof bodies / sizeof *bodies)];
    const char *path = paths[draw(l, sizeof paths / sizeof *paths)];
    if (strstr(body, "messages"))
        path = "/v1/chat/completions";
    switch (draw(l, 60)) {
    case 3: /* much to read */
        c->more = l->long_body;
        c->n_more = LONG;
        c->n = (size_t)snprintf(c->text, sizeof c->text,
                                "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                "Content-Length: %d\r\n\r\n", LONG);
        break;
    case 4: /* more than is taken */
        c->n = (size_t)snprintf(c->text, sizeof c->text,
                                "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                "Content-Length: %d\r\n\r\n", TOO_LONG + 1);
        break;
    case 0: /* a body that is not all there */
        c->unasked = true;
        c->n = (size_t)snprintf(c->text, sizeof c->text,
                                "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n%s",
                                path, body);
        break;
    case 1:
    case 6:
        c->n = (size_t)snprintf(c->text, sizeof c->text, "GET /metrics HTTP/1.0\r\n\r\n");
        break;
    case 2:
    case 5:
    case 7:
        c->n = (size_t)snprintf(c->text, sizeof c->text, "NONSENSE\r\n%s\r\n\r\n", path);
        break;
    default:
        c->n = (size_t)snprintf(c->text, sizeof c->text,
                                "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                "Content-Length: %zu\r\n\r\n%s",
                                path, strlen(body), body);
    }
}

static void open_client(load *l, client *c)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)mx_server_port(l->server)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    *c = (client){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    double patience = draw(l, 4) ? 1e9 : 0.001 * draw(l, 300);
    c->leaves = mx_clock_now() + patience;
    compose(l, c);
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(c->fd);
        c->fd = -1;
        return;
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    l->opened++;
}

static void close_client(load *l, client *c, bool whole)
{
    int status = 0;
    sscanf(c->head, "HTTP/1.%*d %d", &status);
    l->answered += whole && status == 200;
    l->refused += whole && status >= 400;
    l->cut += !whole;
    close(c->fd);
    c->fd = -1;
}

/* The longest gap that is counted in this place, in seconds. */
static double gap_of(int i)
{
    return 1e-4 * pow(2, (double)i / GAPS_PER_OCTAVE);
}

/* Time before the second piece is that of waiting: headers, and the role that a stream begins with,
 * come before the first token. */
static void note_gap(load *l, client *c)
{
    double now = mx_clock_now();
    bool counts = ++c->pieces > 2;
    int i = 0;
    while (counts && i < GAPS - 1 && now - c->heard > gap_of(i))
        i++;
    l->gaps[i] += counts;
    l->n_gaps += counts;
    c->heard = now;
}

/* Seconds that this share of the gaps stayed below. */
static double gap_below(const load *l, double share)
{
    int64_t seen = 0;
    int i = 0;
    while (i < GAPS - 1 && (double)(seen += l->gaps[i]) < share * (double)l->n_gaps)
        i++;
    return gap_of(i);
}

/* Sends a piece of what there is to send: a request slowly, a long body as fast as it goes. */
static void send_piece(load *l, client *c)
{
    bool more = c->sent >= c->n;
    const char *from = more ? c->more + (c->sent - c->n) : c->text + c->sent;
    size_t left = (more ? c->n + c->n_more : c->n) - c->sent;
    size_t piece = more ? left : 1 + draw(l, 200);
    ssize_t k = send(c->fd, from, piece < left ? piece : left, MSG_NOSIGNAL);
    c->sent += k > 0 ? (size_t)k : 0;
}

static void serve_client(load *l, client *c, short events)
{
    char rest[4096];
    if (events & POLLOUT && c->sent < c->n + c->n_more)
        send_piece(l, c);
    if (events & (POLLIN | POLLHUP | POLLERR)) {
        ssize_t k = read(c->fd, rest, sizeof rest);
        if (k > 0 && !c->begun)
            memcpy(c->head, rest, (size_t)k < sizeof c->head - 1 ? (size_t)k : sizeof c->head - 1);
        c->begun |= k > 0;
        if (k > 0)
            note_gap(l, c);
        if (k == 0 || (k < 0 && errno != EAGAIN))
            close_client(l, c, true);
    }
}

static void drive(load *l)
{
    struct pollfd *p = calloc((size_t)l->n, sizeof *p);
    double end = mx_clock_now() + l->seconds;
    for (bool open = true; open;) {
        double now = mx_clock_now();
        open = false;
        for (int i = 0; i < l->n; i++) {
            client *c = &l->client[i];
            if (c->fd < 0 && now < end)
                open_client(l, c);
            bool late = now > end + (c->unasked ? 0 : 60 + 0.1 * l->n); /* all wait in a queue */
            l->stuck += c->fd >= 0 && late && !c->unasked;
            if (c->fd >= 0 && (now > c->leaves || late))
                close_client(l, c, false);
            p[i] = (struct pollfd){c->fd, POLLIN | (c->sent < c->n + c->n_more ? POLLOUT : 0), 0};
            open |= c->fd >= 0;
        }
        if (poll(p, (nfds_t)l->n, 20) > 0)
            for (int i = 0; i < l->n; i++)
                if (p[i].revents && l->client[i].fd >= 0)
                    serve_client(l, &l->client[i], p[i].revents);
    }
    free(p);
}

static void *run(void *server)
{
    MX_CHECK_OK(mx_server_run(server));
    return NULL;
}

MX_TEST(soak_serve)
{
    static const char model[] = "tests/fixtures/vision/gemma3";
    mx_model_ref m;
    mx_tokenizer *t;
    mx_chat_template *chat;
    mx_image_spec images;
    mx_image_processor processor;
    mx_engine *e;
    mx_token_bytes *bytes;
    pthread_t thread;
    load l = {.n = (int)env("MX_SOAK_CONNECTIONS", 40)};
    double seconds = (double)env("MX_SOAK_SECONDS", 2);
    struct rlimit files = {(rlim_t)l.n * 4 + 256, (rlim_t)l.n * 4 + 256};
    if (l.n > 300)
        setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    MX_CHECK_OK(mx_model_ref_open(&m, model, NULL, NULL));
    MX_CHECK_OK(mx_tokenizer_open(&t, model, NULL));
    MX_CHECK_OK(mx_chat_template_open_dir(&chat, model, NULL));
    m.spec.family->images(m.spec.config, &images);
    MX_CHECK_OK(mx_image_processor_open(&processor, &images, model));
    mx_engine_options eo = {.model = &m, .tokenizer = t, .device = "cpu", .n_threads = 1,
                            .compute = MX_F32, .sequences = 8, .step_tokens = 32,
                            .max_length = 128, .cache_tokens = 512, .draft_tokens = 2,
                            .images = true};
    MX_CHECK_OK(mx_engine_open(&e, &eo));
    MX_CHECK_OK(mx_token_bytes_open(&bytes, t, mx_engine_vocab(e)));
    mx_served served = {.model = &m, .tokenizer = t, .name = "m", .bytes = bytes, .chat = chat,
                        .images = &processor, .most_images = 2, .most_pixels = 10000,
                        .max_length = mx_engine_max_length(e), .vocab = mx_engine_vocab(e),
                        .width = mx_engine_width(e),
                        .usual = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};
    mx_server_options so = {.host = "127.0.0.1", .most_calls = 2 * l.n, .body_bytes = TOO_LONG,
                            .drain_s = 30, .stuck_s = 60};
    int before = open_files();
    MX_CHECK_OK(mx_server_open(&l.server, e, &served, &so));
    pthread_create(&thread, NULL, run, l.server);
    l.long_body = malloc(LONG);
    memset(l.long_body, 'a', LONG);
    memcpy(l.long_body, "{\"prompt\": \"", 12);
    memcpy(l.long_body + LONG - 2, "\"}", 2);
    l.client = calloc((size_t)l.n, sizeof *l.client);
    for (int i = 0; i < l.n; i++)
        l.client[i].fd = -1;
    if (seconds >= 60)
        printf("http://127.0.0.1:%d, %ld MB before the load\n", mx_server_port(l.server),
               resident_kb() >> 10);
    fflush(stdout);
    l.seconds = seconds / 2; /* warm */
    drive(&l);
    long warm = resident_kb();
    drive(&l);
    long at_end = resident_kb(), grown = (at_end - warm) >> 10;
    mx_stop_request(SIGTERM);
    pthread_join(thread, NULL);
    mx_engine_counts c = mx_engine_count(e);
    MX_CHECK(c.running == 0 && c.waiting == 0 && c.pages_held == 0,
             "%d requests run, %d wait, %d pages are held", (int)c.running, (int)c.waiting,
             (int)c.pages_held);
    mx_server_close(l.server);
    MX_CHECK(open_files() == before, "%d files are open, %d were", open_files(), before);
    MX_CHECK(l.stuck == 0, "%d requests had no answer", (int)l.stuck);
    MX_CHECK(l.answered > 0 && l.refused > 0 && l.cut > 0, "%d answered, %d refused, %d cut",
             (int)l.answered, (int)l.refused, (int)l.cut);
    MX_CHECK(seconds < 60 || grown < 64, "memory has grown by %ld MB", grown);
    if (seconds >= 60)
        printf("%lld connections: %lld answered, %lld refused, %lld cut; memory %ld MB, "
               "+%ld MB in the second half; between pieces of an answer half below %.3g s, 99 of "
               "100 below %.3g s\n",
               (long long)l.opened, (long long)l.answered, (long long)l.refused, (long long)l.cut,
               at_end >> 10, grown, gap_below(&l, 0.5), gap_below(&l, 0.99));
    mx_stop_clear();
    free(l.client);
    free(l.long_body);
    mx_token_bytes_close(bytes);
    mx_engine_close(e);
    mx_chat_template_close(chat);
    mx_tokenizer_close(t);
    mx_model_ref_close(&m);
}

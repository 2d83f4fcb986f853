/* health_test.c - /health tells the truth: an engine that makes no step for stuck_seconds is not
 * well. */
#include "../test.h"

#include "serve/server.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* The status of a GET. */
static int get(int port, const char *path)
{
    char text[512];
    int s = socket(AF_INET, SOCK_STREAM, 0), status = 0;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int n = snprintf(text, sizeof text, "GET %s HTTP/1.0\r\n\r\n", path);
    if (connect(s, (struct sockaddr *)&to, sizeof to) == 0 && write(s, text, (size_t)n) == n) {
        ssize_t got = read(s, text, sizeof text - 1);
        text[got > 0 ? got : 0] = 0;
        sscanf(text, "HTTP/%*s %d", &status);
    }
    close(s);
    return status;
}

/* Nobody runs the engine: it is well at first, and stuck when its time is over. */
MX_TEST(server_says_that_the_engine_is_stuck)
{
    mx_model_ref m;
    mx_tokenizer *t;
    mx_engine *e;
    mx_server *s;
    MX_CHECK_OK(mx_model_ref_open(&m, "tests/fixtures/post/model", NULL, NULL));
    MX_CHECK_OK(mx_tokenizer_open(&t, "tests/fixtures/post/model", NULL));
    mx_engine_options eo = {.model = &m, .tokenizer = t, .device = "cpu", .n_threads = 1,
                            .compute = MX_F32, .sequences = 1, .step_tokens = 8, .max_length = 32,
                            .cache_tokens = 64};
    MX_CHECK_OK(mx_engine_open(&e, &eo));
    mx_served served = {.model = &m, .tokenizer = t, .name = "m", .max_length = 32, .vocab = 64};
    mx_server_options so = {
        .host = "127.0.0.1", .most_calls = 4, .body_bytes = 1000, .stuck_s = 60};
    MX_CHECK_OK(mx_server_open(&s, e, &served, &so));
    MX_CHECK(get(mx_server_port(s), "/health") == 200, "at first");
    mx_server_close(s);
    so.stuck_s = 0.01;
    MX_CHECK_OK(mx_server_open(&s, e, &served, &so));
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    MX_CHECK(get(mx_server_port(s), "/health") == 503, "stuck");
    mx_server_close(s);
    mx_engine_close(e);
    mx_tokenizer_close(t);
    mx_model_ref_close(&m);
}

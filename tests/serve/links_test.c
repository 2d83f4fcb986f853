/* links_test.c - clients that leave in the middle of a request, with the last bytes that they send,
 * are let go at once, not after a minute. */
#include "../test.h"
#include "process_state.h"

#include "base/signals.h"
#include "serve/server.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 60 };

/* Sends a part of a request and leaves. */
static void leave(int port, int i)
{
    static const char part[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000"
                               "\r\n\r\n{\"prompt\": \"hello\"";
    int s = socket(AF_INET, SOCK_STREAM, 0);
    size_t n = i % 2 ? sizeof part - 1 : 20;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    MX_CHECK(connect(s, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    MX_CHECK(send(s, part, n, MSG_NOSIGNAL) == (ssize_t)n, "send");
    close(s);
}

static void *run(void *server)
{
    MX_CHECK_OK(mx_server_run(server));
    return NULL;
}

MX_TEST(clients_that_leave_keep_no_connection)
{
    static const char model[] = "tests/fixtures/post/model";
    mx_model_ref m;
    mx_tokenizer *t;
    mx_engine *e;
    mx_server *s;
    pthread_t thread;
    MX_CHECK_OK(mx_model_ref_open(&m, model, NULL, NULL));
    MX_CHECK_OK(mx_tokenizer_open(&t, model, NULL));
    mx_engine_options eo = {.model = &m, .tokenizer = t, .device = "cpu", .n_threads = 1,
                            .compute = MX_F32, .sequences = 1, .step_tokens = 8, .max_length = 32,
                            .cache_tokens = 64};
    MX_CHECK_OK(mx_engine_open(&e, &eo));
    mx_served served = {.model = &m, .tokenizer = t, .name = "m", .max_length = 32, .vocab = 64};
    mx_server_options so = {.host = "127.0.0.1", .most_calls = 4, .body_bytes = 10000,
                            .drain_s = 1, .stuck_s = 60};
    MX_CHECK_OK(mx_server_open(&s, e, &served, &so));
    int before = open_files(), now = 0;
    for (int i = 0; i < CLIENTS; i++)
        leave(mx_server_port(s), i);
    pthread_create(&thread, NULL, run, s);
    for (int i = 0; i < 200 && (now = open_files()) > before; i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    MX_CHECK(now <= before, "%d of %d connections are open after 20 s", now - before, CLIENTS);
    mx_stop_request(SIGTERM);
    pthread_join(thread, NULL);
    mx_stop_clear();
    mx_server_close(s);
    mx_engine_close(e);
    mx_tokenizer_close(t);
    mx_model_ref_close(&m);
}

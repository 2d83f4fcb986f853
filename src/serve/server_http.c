/* server_http.c - connections: requests in, answers out. Runs in libmicrohttpd's thread, except
 * where it says otherwise. */
#include "base/clock.h"
#include "base/machine.h"
#include "base/signals.h"
#include "serve/server_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    CONNECTIONS = 4096,
    OTHER_FILES = 256,
    CONNECTION_BYTES = 64 << 10,
    IDLE_S = 60,
    PIECE = 16 << 10,
    LARGE = 64 << 10, /* a body beyond this */
    LARGE_BODIES = 8  /* of the largest size may be held at a time */
};

static const mx_api *const apis[] = {&mx_api_completions, &mx_api_chat, &mx_api_embeddings,
                                     &mx_api_messages};

const mx_api *mx_api_of_path(const char *path)
{
    for (size_t i = 0; i < sizeof apis / sizeof *apis && path; i++) {
        size_t n = strlen(apis[i]->path);
        if (strncmp(apis[i]->path, path, n) == 0 && (path[n] == 0 || path[n] == '/'))
            return apis[i];
    }
    return NULL;
}

/* --- answers --- */

/* From any thread that has the exchange. */
void mx_exchange_drop_body(mx_exchange *x)
{
    atomic_fetch_sub(&x->server->body_bytes, x->counted);
    x->counted = 0;
    mx_str_fini(&x->body);
}

void mx_exchange_release(mx_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool last = --x->holders == 0;
    pthread_mutex_unlock(&x->lock);
    if (!last)
        return;
    if (x->is_call)
        mx_api_call_fini(&x->call);
    mx_exchange_drop_body(x);
    mx_str_fini(&x->out);
    pthread_mutex_destroy(&x->lock);
    mx_free(x);
}

/* The lock is held. */
static void resume(mx_exchange *x)
{
    if (!x->suspended)
        return;
    x->suspended = false;
    x->server->mhd.resume_connection(x->connection);
}

/* From a reader's thread or the engine's, as the next three. */
void mx_exchange_give(mx_exchange *x, const mx_str *text, int status, bool done)
{
    pthread_mutex_lock(&x->lock);
    if (text)
        mx_str_add_n(&x->out, mx_str_text(text), text->len);
    if (!x->status && (done || x->out.len))
        x->status = status;
    x->done |= done;
    if (done || (x->streams && x->given < x->out.len))
        resume(x);
    pthread_mutex_unlock(&x->lock);
}

void mx_exchange_stream(mx_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->streams = true;
    x->status = 200;
    resume(x);
    pthread_mutex_unlock(&x->lock);
}

void mx_exchange_refuse(mx_exchange *x, const mx_api_error *e)
{
    mx_str text = {0};
    mx_error_object(&text, mx_api_of_path(x->path), e);
    mx_exchange_give(x, &text, e->status, true);
    mx_str_fini(&text);
}

bool mx_exchange_hung_up(mx_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone;
    if (!x->gone && x->suspended) {
        const union MHD_ConnectionInfo *i = x->server->mhd.get_connection_info(
            x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct pollfd p = {.fd = i ? i->connect_fd : -1, .events = POLLRDHUP};
        gone = poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL);
    }
    pthread_mutex_unlock(&x->lock);
    return gone;
}

static ssize_t read_stream(void *ctx, uint64_t at, char *buf, size_t room)
{
    mx_exchange *x = ctx;
    (void)at;
    pthread_mutex_lock(&x->lock);
    size_t n = x->out.len - x->given;
    n = n < room ? n : room;
    memcpy(buf, mx_str_text(&x->out) + x->given, n);
    x->given += n;
    if (x->given == x->out.len) {
        mx_str_clear(&x->out);
        x->given = 0;
    }
    ssize_t result = n || !x->done ? (ssize_t)n : MHD_CONTENT_READER_END_OF_STREAM;
    if (!result) {
        x->suspended = true;
        x->server->mhd.suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return result;
}

static enum MHD_Result queue(mx_exchange *x, struct MHD_Response *r, const char *type)
{
    mx_mhd *mhd = &x->server->mhd;
    if (!r)
        return MHD_NO;
    mhd->add_response_header(r, "Content-Type", type);
    mhd->add_response_header(r, "Cache-Control", "no-cache");
    mhd->add_response_header(r, "X-Content-Type-Options", "nosniff");
    mhd->add_response_header(r, "Content-Security-Policy",
                             "default-src 'none'; script-src 'unsafe-inline'; style-src "
                             "'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors "
                             "'none'");
    if (x->status == 401)
        mhd->add_response_header(r, "WWW-Authenticate", "Bearer");
    if (x->status == 415)
        mhd->add_response_header(r, "Accept-Encoding", "identity");
    if (x->status == 405)
        mhd->add_response_header(r, "Allow", x->allowed);
    if (x->status == 429 || x->status == 503)
        mhd->add_response_header(r, "Retry-After", "1");
    enum MHD_Result ok = mhd->queue_response(x->connection, (unsigned)x->status, r);
    mhd->destroy_response(r);
    return ok;
}

static enum MHD_Result queue_whole(mx_exchange *x, const char *type)
{
    return queue(x,
                 x->server->mhd.create_response_from_buffer(
                     x->out.len, (void *)mx_str_text(&x->out), MHD_RESPMEM_MUST_COPY),
                 type);
}

static enum MHD_Result queue_error(mx_exchange *x, int status, const char *message,
                                   const char *code)
{
    x->status = status;
    mx_str_clear(&x->out);
    mx_error_object(&x->out, mx_api_of_path(x->path),
                    &(mx_api_error){status, message, NULL, code});
    return queue_whole(x, "application/json");
}

/* --- requests --- */

static const char *header(const mx_exchange *x, const char *name)
{
    return x->server->mhd.lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* Authorization: Bearer KEY, or Anthropic's x-api-key: KEY. Takes as long for a wrong key as for a
 * right one. */
static bool key_is_right(const mx_exchange *x)
{
    const char *key = x->server->o.api_key, *bearer = header(x, "Authorization");
    const char *given =
        bearer && strncasecmp(bearer, "Bearer ", 7) == 0 ? bearer + 7 + strspn(bearer + 7, " ")
                                                         : header(x, "x-api-key");
    if (!key || !*key)
        return true;
    if (!given)
        return false;
    size_t n = strlen(key), m = strlen(given);
    unsigned differ = n != m;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)key[i] ^ (unsigned char)given[m ? i % m : 0];
    return !differ;
}

/* The connection is suspended until a reader or the engine has something for it. */
static enum MHD_Result hand_to_reader(mx_exchange *x)
{
    mx_server *s = x->server;
    pthread_mutex_lock(&x->lock);
    x->holders++;
    x->suspended = true;
    s->mhd.suspend_connection(x->connection);
    pthread_mutex_unlock(&x->lock);
    if (!mx_readers_add(s->readers, x, x->body.len > LARGE)) {
        mx_exchange_refuse(x, &(mx_api_error){503, "the server is stopping", NULL, "unavailable"});
        mx_exchange_release(x);
    }
    return MHD_YES;
}

/* Is this what the path stands for? */
static bool is_at(const mx_endpoint *e, const char *path)
{
    size_t n = strlen(e->path);
    bool below = e->path[n - 1] == '/' && n > 1 && strncmp(path, e->path, n) == 0;
    return strcmp(path, e->path) == 0 || below;
}

/* Finds what answers: an endpoint or an API of the engine; neither: `allowed` has the methods that
 * the path takes, if there are any. */
static void find(mx_exchange *x, const char *method, mx_str *allowed)
{
    for (const mx_endpoint *e = mx_endpoints; e->path; e++) {
        bool get = strcmp(e->method, "GET") == 0;
        if (!is_at(e, x->path))
            continue;
        mx_str_addf(allowed, "%s%s%s", allowed->len ? ", " : "", e->method, get ? ", HEAD" : "");
        if (strcmp(method, e->method) == 0 || (get && strcmp(method, "HEAD") == 0))
            x->endpoint = e;
    }
    for (size_t i = 0; i < sizeof apis / sizeof *apis; i++)
        if (strcmp(x->path, apis[i]->path) == 0) {
            mx_str_add(allowed, "POST");
            if (strcmp(method, "POST") == 0)
                x->api = apis[i];
        }
}

/* A connection has come, or goes; *context is its mx_link. */
static void note_connection(void *ctx, struct MHD_Connection *connection, void **context,
                            enum MHD_ConnectionNotificationCode what)
{
    mx_server *s = ctx;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *i =
            s->mhd.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = i ? mx_link_open(&s->links, i->connect_fd) : NULL;
    } else if (*context) {
        mx_link_close(&s->links, *context);
        *context = NULL;
    }
}

static void link_receives(mx_server *s, struct MHD_Connection *connection, bool receives)
{
    const union MHD_ConnectionInfo *i =
        s->mhd.get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (i && i->socket_context)
        mx_link_receives(&s->links, i->socket_context, receives);
}

static enum MHD_Result route(mx_exchange *x, const char *method, const char *path)
{
    x->routed = true;
    link_receives(x->server, x->connection, false);
    x->path = path;
    mx_str allowed = {0};
    find(x, method, &allowed);
    enum MHD_Result answer;
    if (!x->trusted && !(x->endpoint && x->endpoint->open)) {
        answer = queue_error(x, 401, "the API key is missing or wrong", "invalid_api_key");
    } else if (x->api || (x->endpoint && strcmp(method, "POST") == 0)) {
        answer = hand_to_reader(x);
    } else if (x->endpoint) {
        x->endpoint->answer(x);
        answer = queue_whole(x, x->endpoint->type);
    } else if (allowed.len) {
        x->allowed = mx_str_text(&allowed);
        answer = queue_error(x, 405, "this path does not take this method", "method_not_allowed");
    } else {
        answer = queue_error(x, 404, "there is nothing at this path", "not_found");
    }
    mx_str_fini(&allowed);
    return answer;
}

static enum MHD_Result count_length(void *ctx, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
    (void)kind, (void)value;
    *(int *)ctx += strcasecmp(key, "Content-Length") == 0 ||
                   strcasecmp(key, "Transfer-Encoding") == 0;
    return MHD_YES;
}

/* With two lengths a proxy and this server could disagree where the next request begins. */
static bool length_is_clear(const mx_exchange *x)
{
    int n = 0;
    x->server->mhd.get_connection_values(x->connection, MHD_HEADER_KIND, count_length, &n);
    return n <= 1;
}

/* What the headers say that is not taken, before the body is there (RFC 9110, 9112). */
static bool headers_are_wrong(mx_exchange *x, const char *version, enum MHD_Result *answer)
{
    const char *coding = header(x, "Content-Encoding"), *transfer = header(x, "Transfer-Encoding");
    bool coded = coding && *coding && strcasecmp(coding, "identity") != 0;
    if (!length_is_clear(x))
        *answer = queue_error(x, 400, "the request says more than once how long its body is",
                              "invalid_length");
    else if (strcmp(version, "HTTP/1.1") == 0 && !header(x, "Host"))
        *answer = queue_error(x, 400, "a request of HTTP/1.1 must have a Host", "invalid_host");
    else if (transfer && strcasecmp(transfer, "chunked") != 0)
        *answer = queue_error(x, 501, "the one Transfer-Encoding that is taken is chunked",
                              "transfer_encoding");
    else if (coded)
        *answer = queue_error(x, 415, "a compressed body is not taken; send it as it is",
                              "content_encoding");
    else
        return false;
    return true;
}

/* The path of "http://HOST/PATH", which proxies ask for, as of "/PATH". */
static const char *path_of(const char *url)
{
    if (strncasecmp(url, "http://", 7) != 0)
        return url;
    const char *slash = strchr(url + 7, '/');
    return slash ? slash : "/";
}

/* Keeps a piece of the body. Large bodies of all requests together have a limit: connections that
 * send one slowly could otherwise take any memory. Of a client without the key nothing is kept. */
static void keep_body(mx_exchange *x, const char *data, size_t n)
{
    mx_server *s = x->server;
    size_t most = (size_t)s->o.body_bytes, len = x->body.len + n;
    if (!x->trusted || x->refused)
        return;
    if (len > LARGE) {
        size_t more = len - x->counted;
        if (atomic_fetch_add(&s->body_bytes, more) + more > LARGE_BODIES * most)
            x->refused = 429;
        x->counted += more;
    }
    if (len > most)
        x->refused = 413;
    if (x->refused)
        mx_exchange_drop_body(x);
    else
        mx_str_add_n(&x->body, data, n);
}

static enum MHD_Result queue_refusal(mx_exchange *x, int status)
{
    return status == 413
               ? queue_error(x, 413, "the body of the request is too large", "too_large")
               : queue_error(x, 429, "too many large requests are being read; come back later",
                             "queue_full");
}

/* What a reader or the engine has given. */
static enum MHD_Result queue_given(mx_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool done = x->done, streams = x->streams;
    pthread_mutex_unlock(&x->lock);
    if (streams)
        return queue(x, x->server->mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, PIECE,
                                                                     read_stream, x, NULL),
                     "text/event-stream; charset=utf-8");
    return done ? queue_whole(x, "application/json") : MHD_NO;
}

/* Called when the headers are there, for each piece of the body, at its end, and once more when a
 * call that was waited for has its answer. */
static enum MHD_Result handle(void *ctx, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *n_data, void **state)
{
    mx_server *s = ctx;
    mx_exchange *x = *state;
    if (!x) {
        *state = x = mx_realloc(NULL, sizeof *x);
        *x = (mx_exchange){
            .server = s, .connection = connection, .holders = 1, .began = mx_clock_now()};
        pthread_mutex_init(&x->lock, NULL);
        x->path = url;
        x->trusted = key_is_right(x);
        enum MHD_Result answer;
        if (headers_are_wrong(x, version, &answer))
            return answer;
        const char *length = header(x, "Content-Length"); /* checked by libmicrohttpd */
        if (length && strtoull(length, NULL, 10) > (unsigned long long)s->o.body_bytes)
            return queue_refusal(x, 413); /* before it is sent */
        return MHD_YES;
    }
    if (*n_data) {
        keep_body(x, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    if (x->refused)
        return queue_refusal(x, x->refused);
    return x->routed ? queue_given(x) : route(x, method, path_of(url));
}

/* The connection lets go: the answer is out, or no longer wanted. */
static void complete(void *ctx, struct MHD_Connection *connection, void **state,
                     enum MHD_RequestTerminationCode why)
{
    mx_exchange *x = *state;
    *state = NULL;
    link_receives(ctx, connection, true);
    if (!x)
        return;
    pthread_mutex_lock(&x->lock);
    x->gone = why != MHD_REQUEST_TERMINATED_COMPLETED_OK || !x->done;
    x->connection = NULL;
    pthread_mutex_unlock(&x->lock);
    pthread_mutex_lock(&x->server->lock);
    pthread_cond_signal(&x->server->wake);
    pthread_mutex_unlock(&x->server->lock);
    mx_exchange_release(x);
}

/* libmicrohttpd's log is about mistakes of clients: it is not shown to the operator. */
static void say_nothing(void *ctx, const char *fmt, va_list ap)
{
    (void)ctx, (void)fmt, (void)ap;
}

/* Why an address cannot be listened on: libmicrohttpd 1.0 leaves another errno than bind's. */
static int why_not(const struct addrinfo *at, int otherwise)
{
    int on = 1, why = otherwise, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return why;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, at->ai_addr, at->ai_addrlen) || listen(fd, 1))
        why = errno;
    close(fd);
    return why;
}

mx_status mx_http_start(mx_server *s)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char port[16];
    MX_TRY(mx_mhd_open(&s->mhd));
    mx_machine_allow_files(CONNECTIONS + OTHER_FILES);
    snprintf(port, sizeof port, "%d", (int)s->o.port);
    int e = getaddrinfo(s->o.host && *s->o.host ? s->o.host : NULL, port, &hints, &found);
    if (e)
        return mx_fail(MX_USAGE, "host=%s is not an address of this machine: %s", s->o.host,
                       gai_strerror(e));
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC;
    if (found->ai_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    s->daemon = s->mhd.start_daemon(
        flags | MHD_USE_ERROR_LOG, (uint16_t)s->o.port, NULL, NULL, handle, s,
        MHD_OPTION_EXTERNAL_LOGGER, say_nothing, NULL, MHD_OPTION_SOCK_ADDR, found->ai_addr,
        MHD_OPTION_NOTIFY_COMPLETED, complete, s, MHD_OPTION_NOTIFY_CONNECTION, note_connection, s,
        MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
        IDLE_S, MHD_OPTION_END);
    int why = s->daemon ? 0 : why_not(found, errno);
    freeaddrinfo(found);
    errno = why;
    if (!s->daemon)
        return mx_fail_errno(MX_DEVICE,
                             "cannot listen on %s port %d; give another port=", s->o.host,
                             (int)s->o.port);
    return MX_OK;
}

void mx_http_stop(mx_server *s)
{
    if (s->daemon)
        s->mhd.stop_daemon(s->daemon);
    s->daemon = NULL;
}

int mx_server_port(const mx_server *s)
{
    const union MHD_DaemonInfo *i = s->mhd.get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return i ? i->port : (int)s->o.port;
}

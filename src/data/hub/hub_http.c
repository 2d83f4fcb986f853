/* hub_http.c - libcurl, set up so that nothing hangs and nothing is unbounded.
 *
 * A transfer that dies is taken up where it stopped: what has arrived is in the file, and the
 * next try asks for the rest. A server that answers a range with 200 sends everything, so the
 * file is emptied first. curl itself drops the token when a redirect leads to another host.
 */
#include "data/hub/hub_http.h"

#include "base/arena.h"
#include "data/hub/hub_curl.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 5 };

typedef struct {
    mx_http *h;
    const mx_curl *lib;
    CURL *curl;
    int64_t got; /* bytes of this try */
    int error;   /* errno of a failed write */
    bool too_long;
} transfer;

static size_t on_data(char *p, size_t size, size_t n, void *arg)
{
    transfer *t = arg;
    mx_http *h = t->h;
    size_t bytes = size * n;
    long code = 0;
    t->lib->easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    if (code >= 400 || code < 200) { /* an error page: keep its beginning for the message */
        if (h->body.len < 500)
            mx_str_add_n(&h->body, p, bytes < 500 ? bytes : 500);
        return bytes;
    }
    if (t->got == 0 && h->fd >= 0 && h->from > 0 && code == 200) {
        h->from = 0;
        if (ftruncate(h->fd, 0) != 0)
            return t->error = errno, 0;
    }
    t->got += (int64_t)bytes;
    if (h->from + t->got > h->max_bytes)
        return t->too_long = true, 0;
    if (h->fd < 0) {
        mx_str_add_n(&h->body, p, bytes);
        return bytes;
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t k = pwrite(h->fd, p + done, bytes - done,
                           h->from + t->got - (int64_t)(bytes - done));
        if (k < 0 && errno != EINTR)
            return t->error = errno, 0;
        done += k > 0 ? (size_t)k : 0;
    }
    if (h->progress)
        h->progress(h->ctx, h->name, h->from + t->got, h->max_bytes);
    return bytes;
}

static void set_up(transfer *t, struct curl_slist *headers, const char *range)
{
    const mx_http *h = t->h;
    CURL *c = t->curl;
    __typeof__(&curl_easy_setopt) set = t->lib->easy_setopt;
    bool plain = strncmp(h->url, "http://", 7) == 0; /* only where the endpoint itself is so */
    set(c, CURLOPT_URL, h->url);
    set(c, CURLOPT_FOLLOWLOCATION, 1L);
    set(c, CURLOPT_MAXREDIRS, 10L);
    set(c, CURLOPT_PROTOCOLS_STR, plain ? "http,https" : "https");
    set(c, CURLOPT_REDIR_PROTOCOLS_STR, plain ? "http,https" : "https");
    set(c, CURLOPT_CONNECTTIMEOUT, 20L);
    set(c, CURLOPT_LOW_SPEED_LIMIT, 100L);
    set(c, CURLOPT_LOW_SPEED_TIME, 60L);
    set(c, CURLOPT_NOSIGNAL, 1L);
    set(c, CURLOPT_USERAGENT, "maxc");
    set(c, CURLOPT_WRITEFUNCTION, on_data);
    set(c, CURLOPT_WRITEDATA, t);
    set(c, CURLOPT_HTTPHEADER, headers);
    if (range)
        set(c, CURLOPT_RANGE, range);
}

/* *again: worth another try. */
static mx_status outcome(const transfer *t, CURLcode rc, long code, bool *again)
{
    const mx_http *h = t->h;
    *again = false;
    if (t->error) {
        errno = t->error;
        return mx_fail_errno(MX_DEVICE, "%s: writing to the cache failed", h->url);
    }
    if (t->too_long)
        return mx_fail(MX_INPUT, "%s: more than the %lld bytes that were expected", h->url,
                       (long long)h->max_bytes);
    if (code == 401 || code == 403)
        return mx_fail(MX_INPUT,
                       "%s: the hub refuses access (%ld); set HF_TOKEN to a token that may read "
                       "it, and accept its terms on its page if it has some",
                       h->url, code);
    if (code == 404)
        return mx_fail(MX_INPUT, "%s: not found (404); check the name and the revision", h->url);
    if (rc == CURLE_OK && code >= 200 && code < 300)
        return MX_OK;
    *again = rc != CURLE_OK || code == 429 || code >= 500;
    if (rc != CURLE_OK)
        return mx_fail(MX_DEVICE,
                       "%s: %s; check the network, or set HF_HUB_OFFLINE=1 to use what is in "
                       "the cache",
                       h->url, t->lib->easy_strerror(rc));
    return mx_fail(MX_DEVICE, "%s: the hub answers %ld: %.200s", h->url, code,
                   mx_str_text(&h->body));
}

static mx_status try_once(mx_http *h, const mx_curl *lib, bool *again)
{
    transfer t = {.h = h, .lib = lib, .curl = lib->easy_init()};
    struct curl_slist *headers = NULL;
    char range[64];
    mx_str auth = {0};
    long code = 0;
    *again = false;
    if (!t.curl)
        return mx_fail(MX_MEMORY, "libcurl could not be started");
    if (h->token && *h->token) {
        mx_str_addf(&auth, "Authorization: Bearer %s", h->token);
        headers = lib->slist_append(headers, auth.text);
    }
    mx_str_clear(&h->body);
    snprintf(range, sizeof range, "%lld-", (long long)h->from);
    set_up(&t, headers, h->fd >= 0 && h->from > 0 ? range : NULL);
    CURLcode rc = lib->easy_perform(t.curl);
    lib->easy_getinfo(t.curl, CURLINFO_RESPONSE_CODE, &code);
    mx_status st = outcome(&t, rc, code, again);
    h->from += h->fd >= 0 && code >= 200 && code < 300 ? t.got : 0;
    if (code == 416) { /* the part we have is no part of the file: begin again */
        *again = h->from > 0 && ftruncate(h->fd, 0) == 0;
        h->from = 0;
    }
    lib->slist_free_all(headers);
    lib->easy_cleanup(t.curl);
    mx_str_fini(&auth);
    return st;
}

mx_status mx_http_get(mx_http *h)
{
    mx_status st = MX_OK;
    mx_curl lib;
    MX_TRY(mx_curl_open(&lib));
    int tries = h->tries ? h->tries : TRIES;
    for (int i = 0; i < tries; i++) {
        bool again;
        int64_t before = h->from;
        mx_status_free(st);
        st = try_once(h, &lib, &again);
        if (!st || !again)
            return st;
        if (h->from > before)
            i = 0; /* it moves: that is not a failure */
        struct timespec wait = {.tv_sec = i ? 1 << (i - 1) : 0, .tv_nsec = 200000000};
        if (i + 1 < tries)
            nanosleep(&wait, NULL);
    }
    return st;
}

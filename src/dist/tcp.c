/* tcp.c - collectives over TCP, each rank connected with each.
 *
 * There is one primitive: exchange. Every rank sends every other rank a header (which call this is,
 * the how many-th, how many bytes follow) and its bytes, and receives as much; all at once, in the
 * order in which the sockets are ready. A header that does not fit is a rank that made another
 * call. From it follow
 *
 *     gather      everybody sends the same bytes to everybody
 *     broadcast   only the root's header is followed by bytes
 *     sum         the vector is cut into one slice a rank: slice s of each goes to rank s, which
 *                 adds them up in the order of ranks, ((x0 + x1) + x2) + ..., and sends the sum to
 *                 everybody. Each rank sends and receives 2 (R-1)/R of the vector, as in a ring,
 *                 and the order of additions is one for every element.
 *
 * A rank that leaves because of an error first says why on its control connections. So when a
 * connection closes in the middle of a call, the words of the one who closed it decide whom to
 * blame; only a rank that closed without a word is called gone. What is heard is said on, once, so
 * all ranks end with the same name. A rank that leaves behind a call has taken part in it: what it
 * sent is read first, and its words end this call only if the others keep silent, too.
 *
 * Not done: trees for many ranks (R^2 connections are fine up to some hundred), encryption,
 * authentication beyond a random token. Ranks belong into a private network, as with MPI.
 */
#include "dist/tcp_impl.h"

#include "base/clock.h"
#include "base/str.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { JOIN_SECONDS = 300, CALL_SECONDS = 600, LAST_WORDS_SECONDS = 5 };
enum { STAGE_NUMBERS = 4 << 20, MIN_SLICE = 16 << 10 };

typedef struct {
    char call[16];
    uint64_t number, bytes;
} header;

/* What goes to and comes from one rank in an exchange. */
typedef struct mx_tcp_move {
    header say, heard;
    const char *out;
    char *in;
    size_t out_bytes, in_bytes;
    size_t sent, got; /* header included */
} move;

static bool has_come(const move *m)
{
    return m->got == sizeof m->heard + m->in_bytes;
}

static bool is_done(const move *m)
{
    return m->sent == sizeof m->say + m->out_bytes && has_come(m);
}

/* --- failing -------------------------------------------------------------------------------- */

static void tell(mx_tcp *t)
{
    double deadline = mx_clock_now() + 1;
    for (int r = 0; r < t->base.size && !t->told; r++)
        if (t->peer[r].control >= 0)
            (void)mx_tcp_send_all(t->peer[r].control, t->why, sizeof t->why, deadline);
    t->told = true;
}

static mx_status fail(mx_tcp *t, const char *fmt, ...) MX_PRINTF(2, 3);
static mx_status fail(mx_tcp *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!t->why[0])
        vsnprintf(t->why, sizeof t->why, fmt, ap);
    va_end(ap);
    tell(t);
    return mx_fail(MX_DEVICE, "%s", t->why);
}

/* A connection has closed, or a control connection has something: the words of that rank, or none.
 */
static mx_status left(mx_tcp *t, int r)
{
    char words[MX_TCP_WHY];
    bool heard = mx_tcp_receive_all(t->peer[r].control, words, sizeof words,
                                    mx_clock_now() + LAST_WORDS_SECONDS);
    words[sizeof words - 1] = 0;
    if (heard)
        return fail(t, "%s", words);
    return fail(t, "%s is gone: it crashed or was killed; its own output may say more",
                t->peer[r].who);
}

static mx_status silent(mx_tcp *t, const char *call)
{
    mx_str who = {0};
    int n = 0;
    for (int r = 0; r < t->base.size; r++)
        if (r != t->base.rank && !is_done(&t->move[r]) && ++n <= 8)
            mx_str_addf(&who, "%s%s", n > 1 ? ", " : "", t->peer[r].who);
    mx_status st = fail(t, "nothing heard for %.0f s, in %s number %llu, from %s%s: hung, stopped "
                        "or cut off", t->call_timeout_s, call, (unsigned long long)t->calls,
                        mx_str_text(&who), n > 8 ? " and others" : "");
    mx_str_fini(&who);
    return st;
}

/* --- exchange ------------------------------------------------------------------------------- */

static ssize_t push(int fd, move *m)
{
    size_t h = sizeof m->say;
    bool head = m->sent < h;
    const char *from = head ? (const char *)&m->say + m->sent : m->out + (m->sent - h);
    size_t n = head ? h - m->sent : m->out_bytes - (m->sent - h);
    ssize_t k = send(fd, from, n, MSG_NOSIGNAL | (head && m->out_bytes ? MSG_MORE : 0));
    m->sent += k > 0 ? (size_t)k : 0;
    return k;
}

static ssize_t pull(int fd, move *m)
{
    size_t h = sizeof m->heard;
    bool head = m->got < h;
    char *to = head ? (char *)&m->heard + m->got : m->in + (m->got - h);
    size_t n = head ? h - m->got : m->in_bytes - (m->got - h);
    ssize_t k = recv(fd, to, n, 0);
    m->got += k > 0 ? (size_t)k : 0;
    return k;
}

static bool may_retry(ssize_t k)
{
    return k > 0 || (k < 0 && (errno == EAGAIN || errno == EINTR));
}

static mx_status check_header(mx_tcp *t, int r, const char *call)
{
    header *h = &t->move[r].heard;
    h->call[sizeof h->call - 1] = 0;
    if (strcmp(h->call, call) == 0 && h->number == t->calls && h->bytes == t->move[r].in_bytes)
        return MX_OK;
    return fail(t, "%s is at %s number %llu with %llu bytes, and %s at %s number %llu with %zu: "
                "ranks do not do the same; were they started with one command?", t->peer[r].who,
                h->call, (unsigned long long)h->number, (unsigned long long)h->bytes,
                t->peer[t->base.rank].who, call, (unsigned long long)t->calls, t->move[r].in_bytes);
}

/* What is ready at one rank's sockets. */
static mx_status serve(mx_tcp *t, int r, short data, short control, const char *call, bool *moved,
                       int *leaving)
{
    move *m = &t->move[r];
    size_t before = m->got;
    if ((data & POLLOUT) && !may_retry(push(t->peer[r].data, m)))
        return left(t, r);
    if ((data & (POLLIN | POLLHUP | POLLERR)) && !is_done(m)) {
        ssize_t k = !has_come(m) ? pull(t->peer[r].data, m) : -1;
        if (!may_retry(k))
            return left(t, r);
    }
    while (control && !has_come(m) && pull(t->peer[r].data, m) > 0)
        ;
    if (before < sizeof m->heard && m->got >= sizeof m->heard)
        MX_TRY(check_header(t, r, call));
    char word;
    if (control && recv(t->peer[r].control, &word, 1, MSG_PEEK) > 0) {
        if (!has_come(m))
            return left(t, r);
        *leaving = r;
    } else if (control) {
        /* It has closed, perhaps in an orderly way behind data that is still on its way: that
         * connection will tell. */
        t->peer[r].quiet = true;
    }
    *moved |= data || control;
    return MX_OK;
}

static mx_status exchange(mx_tcp *t, const char *call)
{
    int n = t->base.size, me = t->base.rank;
    int leaving = -1; /* has done its part and then said why it ends */
    double heard_at = mx_clock_now();
    for (;;) {
        bool done = true, moved = false;
        for (int r = 0; r < n; r++) {
            move *m = &t->move[r];
            bool over = r == me || is_done(m);
            bool deaf = r == me || t->peer[r].quiet || (leaving >= 0 && has_come(m));
            short want = m->sent < sizeof m->say + m->out_bytes ? POLLOUT : 0;
            want |= has_come(m) ? 0 : POLLIN;
            t->polls[2 * r] = (struct pollfd){over ? -1 : t->peer[r].data, want, 0};
            t->polls[2 * r + 1] = (struct pollfd){deaf ? -1 : t->peer[r].control, POLLIN, 0};
            done &= over;
        }
        if (done)
            return MX_OK;
        double patience = leaving < 0 ? t->call_timeout_s : LAST_WORDS_SECONDS;
        double rest = patience - (mx_clock_now() - heard_at);
        if (rest <= 0)
            return leaving < 0 ? silent(t, call) : left(t, leaving);
        if (poll(t->polls, 2 * (nfds_t)n, (int)(rest * 1000) + 1) < 0)
            continue; /* interrupted */
        for (int r = 0; r < n; r++)
            if (t->polls[2 * r].revents || t->polls[2 * r + 1].revents)
                MX_TRY(serve(t, r, t->polls[2 * r].revents, t->polls[2 * r + 1].revents, call,
                             &moved, &leaving));
        heard_at = moved ? mx_clock_now() : heard_at;
    }
}

static mx_status begin(mx_tcp *t)
{
    if (t->why[0])
        return mx_fail(MX_DEVICE, "%s", t->why);
    t->calls++;
    return MX_OK;
}

static void plan(mx_tcp *t, int r, const char *call, const void *out, size_t out_bytes, void *in,
                 size_t in_bytes)
{
    move *m = &t->move[r];
    *m = (move){.out = out, .out_bytes = out_bytes, .in = in, .in_bytes = in_bytes};
    snprintf(m->say.call, sizeof m->say.call, "%s", call);
    m->say.number = t->calls;
    m->say.bytes = out_bytes;
}

/* --- the collectives ------------------------------------------------------------------------ */

static mx_status tcp_gather(mx_comm *c, const void *mine, size_t bytes, void *all)
{
    mx_tcp *t = (mx_tcp *)c;
    MX_TRY(begin(t));
    if (bytes)
        memmove((char *)all + bytes * (size_t)c->rank, mine, bytes);
    for (int r = 0; r < c->size; r++)
        plan(t, r, bytes ? "gather" : "barrier", mine, bytes, (char *)all + bytes * (size_t)r,
             bytes);
    return exchange(t, bytes ? "gather" : "barrier");
}

static mx_status tcp_broadcast(mx_comm *c, void *data, size_t bytes, int root)
{
    mx_tcp *t = (mx_tcp *)c;
    MX_TRY(begin(t));
    for (int r = 0; r < c->size; r++)
        plan(t, r, "broadcast", data, c->rank == root ? bytes : 0, data, r == root ? bytes : 0);
    return exchange(t, "broadcast");
}

/* Moves numbers [at, at + n) of the spans into `stage`, or back out of it. */
static void stage_spans(const mx_span *spans, int n_spans, int64_t at, int64_t n, float *stage,
                        bool back)
{
    int64_t start = 0;
    for (int i = 0; i < n_spans; start += spans[i++].n) {
        int64_t from = at > start ? at : start;
        int64_t end = at + n < start + spans[i].n ? at + n : start + spans[i].n;
        if (from >= end)
            continue;
        float *here = spans[i].data + (from - start), *there = stage + (from - at);
        memcpy(back ? here : there, back ? there : here, sizeof(float) * (size_t)(end - from));
    }
}

static int64_t slice_of(int64_t n, int64_t slice, int r)
{
    int64_t rest = n - slice * r;
    return rest < 0 ? 0 : rest < slice ? rest : slice;
}

/* n numbers of the stage, cut into slices. */
static mx_status sum_stage(mx_tcp *t, int64_t n)
{
    int me = t->base.rank, size = t->base.size;
    int64_t slice = (n + size - 1) / size, mine = slice_of(n, slice, me);
    float *sum = t->stage + slice * me;
    MX_TRY(begin(t));
    for (int r = 0; r < size; r++)
        plan(t, r, "sum", t->stage + slice * r, sizeof(float) * (size_t)slice_of(n, slice, r),
             t->arrived + t->slice * r, sizeof(float) * (size_t)mine);
    MX_TRY(exchange(t, "sum"));
    if (me != 0 && mine) {
        memcpy(t->arrived + t->slice * me, sum, sizeof(float) * (size_t)mine);
        memcpy(sum, t->arrived, sizeof(float) * (size_t)mine);
    }
    for (int r = 1; r < size; r++) {
        const float *x = t->arrived + t->slice * r;
        for (int64_t i = 0; i < mine; i++)
            sum[i] += x[i];
    }
    MX_TRY(begin(t));
    for (int r = 0; r < size; r++)
        plan(t, r, "share", sum, sizeof(float) * (size_t)mine, t->stage + slice * r,
             sizeof(float) * (size_t)slice_of(n, slice, r));
    return exchange(t, "share");
}

static mx_status tcp_sum(mx_comm *c, const mx_span *spans, int n_spans)
{
    mx_tcp *t = (mx_tcp *)c;
    int64_t total = 0, room;
    for (int i = 0; i < n_spans; i++)
        total += spans[i].n;
    if (!t->stage) { /* the first time, so that nothing is allocated later */
        int64_t most = STAGE_NUMBERS / c->size, need = (total + c->size - 1) / c->size;
        t->slice = need < most ? need : most;
        t->slice = t->slice > MIN_SLICE ? t->slice : MIN_SLICE;
        size_t bytes = sizeof(float) * (size_t)(t->slice * c->size);
        MX_TRY(mx_alloc((void **)&t->stage, bytes, "sums over ranks"));
        MX_TRY(mx_alloc((void **)&t->arrived, bytes, "sums over ranks"));
    }
    room = t->slice * c->size;
    for (int64_t at = 0; at < total; at += room) {
        int64_t n = total - at < room ? total - at : room;
        stage_spans(spans, n_spans, at, n, t->stage, false);
        MX_TRY(sum_stage(t, n));
        stage_spans(spans, n_spans, at, n, t->stage, true);
    }
    return MX_OK;
}

/* --- life ----------------------------------------------------------------------------------- */

static void tcp_abort(mx_comm *c, const char *why)
{
    mx_tcp *t = (mx_tcp *)c;
    if (!t->why[0])
        snprintf(t->why, sizeof t->why, "%s has ended: %s", t->peer[c->rank].who, why);
    tell(t);
}

static void tcp_close(mx_comm *c)
{
    mx_tcp *t = (mx_tcp *)c;
    for (int r = 0; r < c->size; r++) {
        if (t->peer[r].data >= 0)
            close(t->peer[r].data);
        if (t->peer[r].control >= 0)
            close(t->peer[r].control);
    }
    mx_free(t->stage);
    mx_free(t->arrived);
    mx_free(c->small);
    mx_arena_fini(&t->arena);
    mx_free(t);
}

static mx_status tcp_split_off(mx_comm *c, mx_comm **out);

static const mx_comm_kind kind = {.name = "tcp",
                                  .gather = tcp_gather,
                                  .broadcast = tcp_broadcast,
                                  .sum_f32 = tcp_sum,
                                  .split_off = tcp_split_off,
                                  .abort = tcp_abort,
                                  .close = tcp_close};

static mx_status make(mx_tcp **out, int rank, int size)
{
    mx_tcp *t = NULL;
    MX_TRY(mx_alloc((void **)&t, sizeof *t, "a communicator"));
    t->base = (mx_comm){.kind = &kind, .rank = rank, .size = size};
    mx_status st = mx_alloc((void **)&t->base.small, (size_t)MX_COMM_SMALL * (size_t)size,
                            "a communicator");
    if (st) {
        mx_free(t);
        return st;
    }
    t->peer = MX_NEW_N(&t->arena, mx_tcp_peer, size);
    t->move = MX_NEW_N(&t->arena, move, size);
    t->polls = MX_NEW_N(&t->arena, struct pollfd, 2 * size);
    for (int r = 0; r < size; r++)
        t->peer[r].data = t->peer[r].control = -1;
    *out = t;
    return MX_OK;
}

mx_status mx_tcp_open(mx_comm **out, const mx_place *p, const mx_comm_options *o)
{
    mx_tcp *t;
    int listener;
    *out = NULL;
    MX_TRY(make(&t, p->rank, p->size));
    t->join_timeout_s = o->join_timeout_s > 0 ? o->join_timeout_s : JOIN_SECONDS;
    t->call_timeout_s = o->call_timeout_s > 0 ? o->call_timeout_s : CALL_SECONDS;
    double deadline = mx_clock_now() + t->join_timeout_s;
    mx_status st = mx_tcp_meet(t, p, deadline, &listener);
    if (!st)
        st = mx_tcp_mesh(t, listener, deadline);
    if (st)
        tcp_close(&t->base);
    else
        *out = &t->base;
    return st;
}

static mx_status tcp_split_off(mx_comm *c, mx_comm **out)
{
    mx_tcp *from = (mx_tcp *)c, *t;
    int listener = -1;
    MX_TRY(make(&t, c->rank, c->size));
    t->join_timeout_s = from->join_timeout_s;
    t->call_timeout_s = from->call_timeout_s;
    t->token = from->token * 6364136223846793005u + from->calls; /* nobody else knows the first */
    struct sockaddr_storage *at = MX_NEW_N(&t->arena, struct sockaddr_storage, c->size);
    t->peer[c->rank].at = from->peer[c->rank].at;
    mx_status st = mx_tcp_listen(t, &listener);
    if (!st)
        st = tcp_gather(c, &t->peer[c->rank].at, sizeof *at, at);
    for (int r = 0; r < c->size && !st; r++) {
        memcpy(t->peer[r].who, from->peer[r].who, sizeof t->peer[r].who);
        if (r == c->rank)
            continue;
        /* A rank's own idea of its address may be "any": the one it was reached at counts. */
        t->peer[r].at = from->peer[r].at;
        *mx_tcp_port(&t->peer[r].at) = *mx_tcp_port(&at[r]);
    }
    if (!st)
        st = mx_tcp_mesh(t, listener, mx_clock_now() + t->join_timeout_s);
    else if (listener >= 0)
        close(listener);
    if (st)
        tcp_close(&t->base);
    else
        *out = &t->base;
    return st;
}

/* fuzz_ranks.c - any bytes from other ranks: to rank 0, from rank 0, and on data connections.
 *
 *     make MODE=fuzz build/fuzz/fuzz_ranks
 *
 * The first byte says who is spoken to. Then come records: a byte that says what to do, a length,
 * and so many bytes. Frames may be signed with the true keys, so that what stands behind the check
 * is reached, too. Everything runs over socket pairs in this thread, without a network.
 *
 * Whatever comes, text that reaches a message is printable and codes are those of failures.
 */
#include "base/clock.h"
#include "base/utf8.h"
#include "dist/coord_impl.h"
#include "dist/tcp_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { RANKS = 3, CALLERS = 4 };
static const mx_coord_part parts[] = {{"program", 1}, {"steps", 2}, {"seed", 3}};

typedef struct {
    const uint8_t *at, *end;
} input;

static size_t take(input *in, uint8_t *out, size_t most)
{
    size_t n = in->at < in->end ? *in->at++ : 0;
    n = n == 255 ? 1024 : n; /* frames can be longer than a byte says */
    n = n < (size_t)(in->end - in->at) ? n : (size_t)(in->end - in->at);
    n = n < most ? n : most;
    if (n)
        memcpy(out, in->at, n);
    in->at += n;
    return n;
}

static mx_coord *make(int rank)
{
    mx_coord *c;
    mx_launch l = {.rank = rank, .size = RANKS, .host = "fuzz", .port = 1};
    mx_coord_options o = {.secret = "a secret of the fuzzer", .parts = parts, .n_parts = 3};
    if (mx_coord_new(&c, &l, &o) || mx_auth_key_of_text(&c->secret, o.secret))
        abort();
    c->alarm = eventfd(0, EFD_NONBLOCK);
    return c;
}

/* What every verdict keeps to. */
static void check(mx_coord *c)
{
    mx_status st = mx_coord_check(c);
    char shown[4 * MX_COORD_WHY];
    const char *text = mx_status_text(st);
    if (st && (strcmp(mx_printable(shown, sizeof shown, text, sizeof shown), text) != 0 ||
               (mx_status_code(st) != MX_USAGE && mx_status_code(st) != MX_DEVICE)))
        abort();
    mx_status_free(st);
}

static void pair(int fd[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd))
        abort();
}

/* A frame of a kind with any body, ended as its sender would; or nothing, where that is no frame
 * anybody could end. */
static void send_frame(int fd, const uint8_t *p, size_t n, mx_wire_keys *keys, bool forged)
{
    mx_wire_frame f = {0};
    uint8_t kind = n ? p[0] : 0;
    if (kind == 0 || kind >= MX_WIRE_KINDS)
        return;
    mx_wire_begin(&f, (mx_wire_kind)kind);
    mx_wire_put(&f, p + 1, n - 1);
    if (f.bad)
        return;
    f.bytes[6] = (uint8_t)(n - 1);
    f.bytes[7] = (uint8_t)((n - 1) >> 8);
    if (mx_wire_is_signed(f.kind)) {
        mx_auth_sign(&keys->out, keys->sent++, f.bytes, f.n, f.bytes + f.n);
        f.n += MX_AUTH_MAC;
        f.bytes[f.n - 1] ^= forged;
    }
    (void)!send(fd, f.bytes, f.n, MSG_NOSIGNAL);
}

/* --- to rank 0 ------------------------------------------------------------------------------ */

typedef struct {
    int fd; /* -1: none */
    mx_wire_keys keys;
} caller;

static void step_root(mx_coord *c, double later_s)
{
    struct pollfd p[MX_ACCEPTOR_POLLS + RANKS];
    int n = mx_coord_root_polls_locked(c, p, 0);
    poll(p, (nfds_t)n, 0);
    mx_coord_root_step_locked(c, p, mx_clock_now() + later_s);
    if (c->why[0])
        mx_coord_tell_verdict_locked(c);
}

/* A handshake as a rank makes it: the caller knows its keys from then on. */
static void greet(mx_coord *c, caller *k)
{
    mx_coord_nonces nonce = {{1}, {0}};
    mx_wire_frame f, in = {0};
    mx_wire_begin(&f, MX_WIRE_HELLO);
    mx_wire_put_int(&f, MX_WIRE_VERSION, 2);
    mx_wire_put(&f, nonce.member, sizeof nonce.member);
    mx_wire_end(&f, NULL);
    (void)!send(k->fd, f.bytes, f.n, MSG_NOSIGNAL);
    step_root(c, 0);
    if (mx_wire_receive(k->fd, &in) != MX_WIRE_WHOLE || in.kind != MX_WIRE_CHALLENGE)
        return;
    mx_wire_get_int(&in, 3);
    mx_wire_get(&in, &(uint64_t){0}, MX_AUTH_ID);
    mx_wire_get(&in, nonce.root, sizeof nonce.root);
    k->keys = mx_coord_agree(&c->secret, &nonce, false);
}

static void to_root(input *in)
{
    uint8_t p[1200], drain[8192];
    caller k[CALLERS] = {{-1}, {-1}, {-1}, {-1}};
    mx_coord *c = make(0);
    c->acceptor.take = mx_coord_root_take;
    c->acceptor.ctx = c;
    if (mx_acceptor_open(&c->acceptor, -1))
        abort();
    while (in->at < in->end) {
        uint8_t op = *in->at++;
        caller *to = &k[op % CALLERS];
        size_t n = take(in, p, sizeof p);
        if (to->fd < 0 && !c->all_here) {
            int fd[2];
            pair(fd);
            *to = (caller){.fd = fd[0]};
            mx_acceptor_add(&c->acceptor, fd[1], &(struct sockaddr_storage){.ss_family = AF_INET},
                            mx_clock_now());
        }
        if (op / 4 % 4 == 0)
            (void)!send(to->fd, p, n, MSG_NOSIGNAL);
        else if (op / 4 % 4 == 1)
            send_frame(to->fd, p, n, &to->keys, op & 16);
        else if (op / 4 % 4 == 2)
            greet(c, to);
        else
            mx_socket_close(&to->fd);
        step_root(c, op & 128 ? 1000 : op & 64 ? 2 : 0); /* a silence, or time for a beat */
        while (to->fd >= 0 && recv(to->fd, drain, sizeof drain, 0) > 0)
            ;
        check(c);
    }
    for (int i = 0; i < CALLERS; i++)
        mx_socket_close(&k[i].fd);
    mx_coord_close(c);
}

/* --- from rank 0 ---------------------------------------------------------------------------- */

static void step_member(mx_coord *c, double later_s)
{
    struct pollfd p;
    mx_coord_member_polls_locked(c, &p, 0);
    poll(&p, 1, 0);
    mx_coord_member_step_locked(c, &p, mx_clock_now() + later_s);
}

static void from_root(input *in, bool greets)
{
    uint8_t p[1200], drain[8192];
    int fd[2];
    mx_coord *c = make(1);
    mx_coord_link *l = c->member[0].link;
    pair(fd);
    if (greets) { /* everything it will hear is there already */
        bool again;
        (void)!send(fd[0], in->at, (size_t)(in->end - in->at), MSG_NOSIGNAL);
        shutdown(fd[0], SHUT_WR);
        mx_status_free(mx_coord_member_greet(c, fd[1], &(mx_wait){0, -1, false}, &again));
        in->at = in->end;
        if (l->keys.agreed)
            step_member(c, 0);
        check(c);
    }
    mx_coord_nonces nonce = {{1}, {2}};
    mx_wire_keys root = mx_coord_agree(&c->secret, &nonce, true);
    l->fd = fd[1];
    l->keys = mx_coord_agree(&c->secret, &nonce, false);
    c->member[0].state = MX_RANK_HERE;
    mx_coord_name(c, 0, "root", 1);
    c->gathers = 1; /* it waits for what others bring */
    c->blob_bytes = 7;
    while (in->at < in->end) {
        uint8_t op = *in->at++;
        size_t n = take(in, p, sizeof p);
        if (op % 4 == 0)
            (void)!send(fd[0], p, n, MSG_NOSIGNAL);
        else if (op % 4 == 1 && fd[0] >= 0)
            shutdown(fd[0], SHUT_WR);
        else
            send_frame(fd[0], p, n, &root, op & 16);
        step_member(c, op & 128 ? 1000 : op & 64 ? 2 : 0);
        while (recv(fd[0], drain, sizeof drain, 0) > 0)
            ;
        check(c);
    }
    mx_socket_close(&fd[0]);
    mx_coord_close(c);
}

/* --- data ----------------------------------------------------------------------------------- */

/* The alarm rings from the start, so that a call ends as soon as nothing comes any more. */
static void data(input *in)
{
    uint8_t p[MX_COMM_SMALL * 4];
    struct {
        char call[16];
        uint64_t number, bytes;
    } head;
    static const struct {
        const char *call;
        size_t bytes;
    } calls[] = {{"gather", MX_COMM_SMALL - 4}, {"gather", 16}, {"broadcast", 4096}};
    int fd[2];
    mx_arena a = {0};
    mx_tcp *t;
    mx_coord *c = make(1);
    c->size = 2;
    (void)!write(c->alarm, &(uint64_t){1}, sizeof(uint64_t));
    if (mx_tcp_new(&t, c))
        abort();
    pair(fd);
    t->peer[0].fd = fd[1];
    for (uint64_t i = 0; in->at < in->end; i++) {
        uint8_t op = *in->at++;
        size_t k = op % 3, n = take(in, p, sizeof p);
        if (op / 4 % 2) { /* the header that the call expects, and as much as follows */
            head.number = i + 1;
            head.bytes = calls[k].bytes;
            snprintf(head.call, sizeof head.call, "%s", calls[k].call);
            (void)!send(fd[0], &head, sizeof head, MSG_NOSIGNAL);
            memset(p + n, op, sizeof p - n);
            n = calls[k].bytes;
        }
        (void)!send(fd[0], p, n, MSG_NOSIGNAL);
    }
    shutdown(fd[0], SHUT_WR);
    mx_status st = mx_comm_agree(&t->base, MX_OK);
    if (st && (mx_status_code(st) < MX_CHECK_FAILED || mx_status_code(st) > MX_DEVICE))
        abort();
    mx_status_free(st);
    const char *path = NULL;
    mx_status_free(mx_comm_share_path(&t->base, &a, &path));
    if (path && strlen(path) >= 4096)
        abort();
    mx_socket_close(&fd[0]);
    mx_comm_close(&t->base);
    mx_arena_fini(&a);
    mx_coord_close(c);
}

static int n_linked(const mx_tcp *t)
{
    int n = 0;
    for (int r = 0; r < RANKS; r++)
        n += t->peer[r].fd >= 0;
    return n;
}

/* The first frame of a data connection: only one that is signed makes a link. */
static void links(input *in)
{
    uint8_t p[64];
    int fd[2];
    mx_tcp *t;
    mx_coord *c = make(0);
    mx_wire_keys keys = {.agreed = true, .out = mx_coord_key(c)};
    mx_acceptor a = {.take = mx_tcp_take_link};
    if (mx_tcp_new(&t, c) || mx_acceptor_open(&a, -1))
        abort();
    a.ctx = t;
    while (in->at < in->end) {
        struct pollfd polls[MX_ACCEPTOR_POLLS];
        uint8_t op = *in->at++;
        size_t n = take(in, p, sizeof p);
        pair(fd);
        mx_acceptor_add(&a, fd[1], &(struct sockaddr_storage){.ss_family = AF_INET6}, 0);
        keys.sent = 0;
        if (op % 2)
            send_frame(fd[0], p, n, &keys, op & 16);
        else
            (void)!send(fd[0], p, n, MSG_NOSIGNAL);
        poll(polls, (nfds_t)mx_acceptor_polls(&a, polls, 0), 0);
        bool forged = op % 2 == 0 || (op & 16);
        int before = n_linked(t);
        mx_acceptor_serve(&a, polls, op & 128 ? 1000 : 0);
        if (forged && n_linked(t) != before)
            abort();
        mx_socket_close(&fd[0]);
    }
    mx_acceptor_close(&a);
    mx_comm_close(&t->base);
    mx_coord_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    input in = {bytes + (n > 0), bytes + n};
    uint8_t who = n ? bytes[0] % 5 : 0;
    if (who == 0)
        to_root(&in);
    else if (who == 3)
        data(&in);
    else if (who == 4)
        links(&in);
    else
        from_root(&in, who == 2);
    return 0;
}

/* coord_member.c - the side of every rank but rank 0: how it joins, and what rank 0 says. */
#include "dist/coord_impl.h"

#include "base/clock.h"
#include "base/signals.h"
#include "base/str.h"
#include "dist/rendezvous.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PARTS_A_FRAME = (MX_WIRE_BODY - 4) / 4 };
static const double FIRST_NOTE_S = 5; /* of waiting for rank 0; then twice as long */

/* --- what rank 0 says ----------------------------------------------------------------------- */

/* Rank 0 has refused this rank, which the user must know; nothing of it is rank 0's text. */
static mx_status refused(const mx_coord *c, mx_wire_reason why, uint64_t detail)
{
    const char *host = c->launch.host;
    int port = c->launch.port;
    if (why == MX_WIRE_SECRET)
        return mx_fail(MX_USAGE,
                       "rank 0 at %s:%d does not accept the secret of rank %d; give all ranks the "
                       "same rendezvous_secret, or none and a folder that they share",
                       host, port, c->rank);
    if (why == MX_WIRE_ANOTHER_VERSION)
        return mx_fail(MX_USAGE,
                       "rank 0 at %s:%d is another version of maxc (protocol %llu, here %d); start "
                       "all ranks with the same program",
                       host, port, (unsigned long long)detail, MX_WIRE_VERSION);
    if (why == MX_WIRE_ANOTHER_SIZE)
        return mx_fail(MX_USAGE,
                       "this is rank %d of %d, and rank 0 at %s:%d was started as one of %llu; "
                       "start all ranks with the same number",
                       c->rank, c->size, host, port, (unsigned long long)detail);
    if (why == MX_WIRE_TWICE)
        return mx_fail(MX_USAGE,
                       "rank 0 at %s:%d has a rank %d already; end the earlier one, or choose "
                       "another MASTER_PORT",
                       host, port, c->rank);
    return mx_fail(MX_USAGE,
                   "rank 0 at %s:%d belongs to another job of the launcher; choose another "
                   "MASTER_PORT, or wait until that job has ended",
                   host, port);
}

static void note_reported(mx_coord *c)
{
    if (c->o.rank0_reports)
        *c->o.rank0_reports |= !c->why[0];
}

static void take_refusal(mx_coord *c, mx_wire_frame *f)
{
    uint64_t why = mx_wire_get_int(f, 1), size = mx_wire_get_int(f, 4), n = mx_wire_get_int(f, 2);
    mx_str names = {0};
    if (why != MX_WIRE_ANOTHER_JOB) /* rank 0 has ended its own run for it, and says so */
        note_reported(c);
    if (why != MX_WIRE_OTHER_PARTS) {
        mx_status st = refused(c, (mx_wire_reason)why, size);
        mx_coord_judge_locked(c, MX_USAGE, c->rank, "%s", mx_status_text(st));
        mx_status_free(st);
        return;
    }
    for (uint64_t i = 0; i < n && i < MX_COORD_DIFFERENT; i++) {
        uint64_t k = mx_wire_get_int(f, 2);
        bool known = !f->bad && k < (uint64_t)c->o.n_parts && c->o.parts;
        mx_str_addf(&names, "%s%s", i ? ", " : "", known ? c->o.parts[k].name : "program");
    }
    if (n > MX_COORD_DIFFERENT)
        mx_str_addf(&names, " and %d more", (int)n - MX_COORD_DIFFERENT);
    mx_coord_judge_locked(c, MX_USAGE, c->rank,
                          "rank %d was started otherwise than rank 0 at %s:%d: it differs in %s; "
                          "give all ranks the same program, command, files and MAXC_ variables",
                          c->rank, c->launch.host, c->launch.port, mx_str_text(&names));
    mx_str_fini(&names);
}

static bool take_member(mx_coord *c, mx_wire_frame *f)
{
    uint8_t address[MX_WIRE_ADDRESS];
    char host[MX_COORD_HOST];
    uint64_t rank = mx_wire_get_int(f, 4);
    int32_t pid = (int32_t)mx_wire_get_int(f, 4);
    uint64_t family = mx_wire_get_int(f, 2);
    mx_wire_get(f, address, sizeof address);
    mx_wire_get_text(f, host, sizeof host);
    if (!mx_wire_is_read(f) || c->n_listed < 0 || rank != (uint64_t)c->n_listed ||
        rank >= (uint64_t)c->size || (family != 4 && family != 6))
        return false;
    c->n_listed++;
    if ((int)rank == c->rank)
        return true;
    mx_coord_name(c, (int)rank, host, pid);
    if (rank == 0) /* it does not know under which of its addresses it is reached */
        return true;
    struct sockaddr_storage *at = &c->member[rank].at;
    memset(at, 0, sizeof *at);
    at->ss_family = family == 6 ? AF_INET6 : AF_INET;
    if (family == 6)
        memcpy(&((struct sockaddr_in6 *)at)->sin6_addr, address, 16);
    else
        memcpy(&((struct sockaddr_in *)at)->sin_addr, address, 4);
    return true;
}

static bool take_welcome(mx_coord *c, mx_wire_frame *f)
{
    uint64_t size = mx_wire_get_int(f, 4);
    mx_wire_get(f, c->session_nonce, sizeof c->session_nonce);
    if (c->n_listed >= 0 || size != (uint64_t)c->size)
        return false;
    c->session = mx_auth_derive(&c->secret, "data", c->session_nonce, sizeof c->session_nonce);
    c->n_listed = 0;
    return true;
}

static bool take_verdict(mx_coord *c, mx_wire_frame *f)
{
    char words[MX_COORD_WHY];
    int32_t culprit = (int32_t)mx_wire_get_int(f, 4);
    int64_t code = (int64_t)mx_wire_get_int(f, 1);
    bool alone = mx_wire_get_int(f, 1) != 0;
    mx_wire_get_text(f, words, sizeof words);
    if (!mx_wire_is_read(f) || culprit < -1 || culprit >= c->size)
        return false;
    if (alone)
        note_reported(c);
    mx_coord_judge_locked(c, mx_coord_code(code), culprit, "%s",
                          *words ? words : "rank 0 ends the run");
    return true;
}

/* False: it is not what rank 0 says now. */
static bool take_frame(mx_coord *c, mx_wire_frame *f)
{
    mx_rank *root = &c->member[0];
    mx_coord_link *l = root->link;
    if (f->kind == MX_WIRE_DENIED && l->keys.received == 0) {
        mx_status st = refused(c, MX_WIRE_SECRET, 0);
        mx_coord_judge_locked(c, MX_USAGE, c->rank, "%s", mx_status_text(st));
        mx_status_free(st);
        return true;
    }
    if (!mx_wire_is_signed(f->kind) || !mx_wire_verify(f, &l->keys))
        return false;
    l->heard_at = mx_clock_now();
    switch (f->kind) {
    case MX_WIRE_BEAT:
        return mx_coord_take_beat(root, f);
    case MX_WIRE_REFUSED:
        if (c->started)
            return false;
        take_refusal(c, f);
        return true;
    case MX_WIRE_WELCOME:
        return take_welcome(c, f);
    case MX_WIRE_MEMBER:
        return take_member(c, f);
    case MX_WIRE_START:
        c->started |= c->n_listed == c->size;
        return c->started;
    case MX_WIRE_GATHERED:
        return c->started && mx_coord_take_gathered_locked(c, f);
    case MX_WIRE_VERDICT:
        return take_verdict(c, f);
    case MX_WIRE_BYE:
        root->state = MX_RANK_LEFT;
        return true;
    default:
        return false;
    }
}

/* --- the handshake -------------------------------------------------------------------------- */

/* The next frame, as long as it takes. */
static mx_wire_state receive(int fd, mx_wire_frame *f, const mx_wait *w)
{
    mx_wire_state st;
    while ((st = mx_wire_receive(fd, f)) == MX_WIRE_MORE)
        if (!mx_socket_wait(fd, POLLIN, w))
            break;
    return st;
}

static mx_status find_secret(mx_coord *c, bool in_file, const uint8_t id[MX_AUTH_ID])
{
    if (in_file && !c->from_file)
        return mx_fail(MX_USAGE,
                       "rank %d was given a rendezvous_secret and rank 0 was not; give it to all "
                       "ranks",
                       c->rank);
    if (!in_file && c->from_file)
        return mx_fail(MX_USAGE,
                       "rank 0 was given a rendezvous_secret and rank %d was not; give it to all "
                       "ranks (MAXC_RENDEZVOUS_SECRET in the environment is the best place)",
                       c->rank);
    return in_file ? mx_auth_file_read(c->o.folder, id, &c->secret) : MX_OK;
}

static bool send_frame(mx_coord_link *l, mx_wire_frame *f, const mx_wait *w)
{
    mx_wire_end(f, &l->keys);
    return mx_socket_send(l->fd, f->bytes, f->n, w);
}

static bool introduce(mx_coord *c, const mx_wait *w)
{
    mx_coord_link *l = c->member[0].link;
    mx_wire_frame f;
    int sent = 0, total = c->o.n_parts;
    mx_wire_begin(&f, MX_WIRE_CARD);
    mx_wire_put_int(&f, (uint64_t)c->rank, 4);
    mx_wire_put_int(&f, (uint64_t)c->size, 4);
    mx_wire_put_int(&f, (uint64_t)c->member[c->rank].pid, 4);
    mx_wire_put_int(&f, c->job, 4);
    mx_wire_put_text(&f, c->member[c->rank].host);
    bool good = send_frame(l, &f, w);
    do {
        int n = total - sent < PARTS_A_FRAME ? total - sent : PARTS_A_FRAME;
        mx_wire_begin(&f, MX_WIRE_PARTS);
        mx_wire_put_int(&f, (uint64_t)total, 2);
        mx_wire_put_int(&f, (uint64_t)n, 2);
        for (int i = 0; i < n; i++)
            mx_wire_put_int(&f, c->o.parts[sent + i].hash, 4);
        good = good && send_frame(l, &f, w);
        sent += n;
    } while (sent < total);
    return good;
}

mx_status mx_coord_member_greet(mx_coord *c, int fd, const mx_wait *w, bool *again)
{
    mx_coord_nonces nonce;
    uint8_t id[MX_AUTH_ID];
    mx_wire_frame f, in = {0};
    mx_coord_link *l = c->member[0].link;
    l->fd = fd;
    c->member[0].state = MX_RANK_HERE;
    *again = true;
    MX_TRY(mx_auth_random(nonce.member, sizeof nonce.member));
    mx_wire_begin(&f, MX_WIRE_HELLO);
    mx_wire_put_int(&f, MX_WIRE_VERSION, 2);
    mx_wire_put(&f, nonce.member, sizeof nonce.member);
    if (!send_frame(l, &f, w) || receive(fd, &in, w) != MX_WIRE_WHOLE)
        return MX_OK;
    uint64_t reason = in.kind == MX_WIRE_DENIED ? mx_wire_get_int(&in, 1) : 0;
    uint64_t version = mx_wire_get_int(&in, 2);
    if (in.kind == MX_WIRE_DENIED && reason == MX_WIRE_ANOTHER_VERSION)
        return refused(c, MX_WIRE_ANOTHER_VERSION, version);
    if (in.kind != MX_WIRE_CHALLENGE || version != MX_WIRE_VERSION)
        return MX_OK;
    bool in_file = mx_wire_get_int(&in, 1) != 0;
    mx_wire_get(&in, id, sizeof id);
    mx_wire_get(&in, nonce.root, sizeof nonce.root);
    MX_TRY(find_secret(c, in_file, id));
    l->keys = mx_coord_agree(&c->secret, &nonce, false);
    l->in = (mx_wire_frame){0};
    /* Rank 0 answers who it has admitted, with anything signed. Whom it refuses it may have left
     * before all was said to it: its answer is there all the same. */
    (void)introduce(c, w);
    *again = receive(fd, &l->in, w) != MX_WIRE_WHOLE || !take_frame(c, &l->in);
    return MX_OK;
}

/* --- finding rank 0 ------------------------------------------------------------------------- */

/* Rank 1 speaks for all who wait. */
static void say_waiting(const mx_coord *c, double begun, double *next, const char *why)
{
    char text[MX_COORD_NOTE];
    if (c->rank != 1 || !c->o.say || mx_clock_now() - begun < *next)
        return;
    snprintf(text, sizeof text, "rank 0 does not answer at %s:%d yet: %s", c->launch.host,
             c->launch.port, why);
    c->o.say(c->o.ctx, text);
    *next *= 2;
}

/* One attempt. OK and *again: nothing answered, or something other than rank 0. */
static mx_status call_once(mx_coord *c, double deadline, bool *again, char why[MX_RENDEZVOUS_WHY])
{
    mx_rank *root = &c->member[0];
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    mx_wait w = {.deadline = deadline, .alarm = -1, .stops = true};
    *again = true;
    int fd = mx_rendezvous_connect(&c->launch, &w, &root->at, why);
    if (fd < 0)
        return MX_OK;
    double begun = mx_clock_now(), limit = c->o.heartbeat_timeout_s;
    w.deadline = begun + limit < deadline ? begun + limit : deadline;
    mx_status st = mx_coord_member_greet(c, fd, &w, again);
    if (!st && *again && mx_clock_now() - begun >= limit)
        st = mx_fail(MX_DEVICE,
                     "nothing heard for %.0f s from rank 0, which takes connections at %s:%d: "
                     "stopped or hung, or another program is there",
                     limit, c->launch.host, c->launch.port);
    if (!st && !*again && getsockname(fd, (struct sockaddr *)&own, &n) == 0)
        c->member[c->rank].at = own;
    if (st || *again)
        mx_socket_close(&root->link->fd);
    snprintf(why, MX_RENDEZVOUS_WHY, "what answers there is not rank 0 of a run");
    return st;
}

mx_status mx_coord_member_connect(mx_coord *c, double deadline)
{
    char why[MX_RENDEZVOUS_WHY] = "";
    double begun = mx_clock_now(), next = FIRST_NOTE_S;
    bool again = true;
    const mx_wait w = {.deadline = deadline, .alarm = -1, .stops = true};
    snprintf(c->member[0].who, sizeof c->member[0].who, "rank 0 (at %.60s:%d)", c->launch.host,
             c->launch.port);
    for (;;) {
        MX_TRY(call_once(c, deadline, &again, why));
        if (!again)
            break;
        if (mx_stop_signal())
            return mx_coord_stopped();
        if (mx_wait_is_over(&w))
            return mx_fail(MX_DEVICE, "nobody answers at %s:%d: %s; is rank 0 running there?",
                           c->launch.host, c->launch.port, why);
        say_waiting(c, begun, &next, why);
        mx_rendezvous_pause();
    }
    return MX_OK;
}

/* --- the round ------------------------------------------------------------------------------ */

static void lose(mx_coord *c, bool strange)
{
    mx_rank *root = &c->member[0];
    mx_socket_close(&root->link->fd);
    if (strange)
        mx_coord_judge_locked(
            c, MX_DEVICE, 0,
            "%s sends what rank 0 never sends: another program at its address, or "
            "a network that changes what it carries",
            root->who);
    else if (!c->started)
        mx_coord_judge_locked(c, MX_DEVICE, 0,
                              "%s left before all ranks had come; its output says why", root->who);
    else if (root->state != MX_RANK_LEFT)
        mx_coord_judge_locked(c, MX_DEVICE, 0,
                              "%s is gone: it crashed or was killed; its own output may say more",
                              root->who);
}

static void hear(mx_coord *c)
{
    mx_coord_link *l = c->member[0].link;
    for (;;) {
        mx_wire_state st = mx_wire_receive(l->fd, &l->in);
        if (st == MX_WIRE_MORE)
            return;
        if (st == MX_WIRE_WHOLE && take_frame(c, &l->in))
            continue;
        lose(c, st != MX_WIRE_CLOSED);
        return;
    }
}

/* Rank 0 may yet go on, and should then know why nobody else does. */
static void give_up_root(mx_coord *c, double silent)
{
    mx_wire_frame f;
    mx_rank *root = &c->member[0];
    if (c->why[0])
        return;
    mx_coord_judge_locked(c, MX_DEVICE, 0,
                          "nothing heard for %.0f s from %s: stopped, hung or cut off", silent,
                          root->who);
    mx_wire_begin(&f, MX_WIRE_BLAME);
    mx_wire_put_int(&f, 0, 4);
    mx_wire_put_text(&f, c->why);
    (void)mx_coord_link_queue(root->link, &f);
}

int mx_coord_member_polls_locked(mx_coord *c, struct pollfd *p, double now)
{
    const mx_coord_link *l = c->member[0].link;
    (void)now;
    bool sends = !mx_coord_link_is_idle(l);
    p[0] = (struct pollfd){l->fd, (short)(POLLIN | (sends ? POLLOUT : 0)), 0};
    return 1;
}

void mx_coord_member_step_locked(mx_coord *c, const struct pollfd *p, double now)
{
    mx_rank *root = &c->member[0];
    mx_coord_link *l = root->link;
    if (l->fd >= 0 && p[0].revents)
        hear(c);
    mx_coord_judge_left_locked(c);
    if (l->fd < 0)
        return;
    if (c->closing)
        mx_coord_queue_bye(c, l, now);
    else if (now - l->beat_at >= mx_coord_beat_s(c))
        mx_coord_queue_beat(c, l, now);
    double silent = now - l->heard_at;
    if (root->state != MX_RANK_LEFT && silent > c->o.heartbeat_timeout_s)
        give_up_root(c, silent);
    if (mx_coord_link_flush(l))
        return;
    hear(c); /* its last words, if there are any */
    if (l->fd >= 0)
        lose(c, false);
}

/* coord_root.c - rank 0's side of the coordinator: who is admitted, and what the others say. */
#include "dist/coord_impl.h"

#include "base/clock.h"
#include "base/str.h"
#include "dist/rendezvous.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* --- admission ------------------------------------------------------------------------------ */

/* To a connection that waits: its socket has room for the few bytes. */
static bool answer(mx_pending *p, mx_wire_frame *f)
{
    mx_wire_end(f, &p->keys);
    return send(p->fd, f->bytes, f->n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)f->n;
}

static void deny(mx_pending *p, mx_wire_reason why)
{
    mx_wire_frame f;
    mx_wire_begin(&f, MX_WIRE_DENIED);
    mx_wire_put_int(&f, why, 1);
    mx_wire_put_int(&f, MX_WIRE_VERSION, 2);
    (void)answer(p, &f);
}

static mx_pending_result challenge(mx_coord *c, mx_pending *p)
{
    mx_coord_nonces nonce;
    mx_wire_frame f;
    uint64_t version = mx_wire_get_int(&p->in, 2);
    mx_wire_get(&p->in, nonce.member, sizeof nonce.member);
    if (version != MX_WIRE_VERSION) {
        deny(p, MX_WIRE_ANOTHER_VERSION);
        return MX_PENDING_OTHER;
    }
    mx_status st = mx_auth_random(nonce.root, sizeof nonce.root);
    mx_status_free(st);
    if (st)
        return MX_PENDING_ALIEN;
    p->keys = mx_coord_agree(&c->secret, &nonce, true);
    mx_wire_begin(&f, MX_WIRE_CHALLENGE);
    mx_wire_put_int(&f, MX_WIRE_VERSION, 2);
    mx_wire_put_int(&f, c->from_file, 1);
    mx_wire_put(&f, c->file_id, sizeof c->file_id);
    mx_wire_put(&f, nonce.root, sizeof nonce.root);
    return answer(p, &f) ? MX_PENDING_WAITS : MX_PENDING_ALIEN;
}

static void begin_refusal(const mx_coord *c, mx_wire_frame *f, mx_wire_reason why, int n_different)
{
    mx_wire_begin(f, MX_WIRE_REFUSED);
    mx_wire_put_int(f, why, 1);
    mx_wire_put_int(f, (uint64_t)c->size, 4);
    mx_wire_put_int(f, (uint64_t)n_different, 2);
}

typedef struct {
    int64_t rank, size;
    int32_t pid;
    uint32_t job;
    char host[MX_COORD_HOST];
} card;

/* A rank of this run's secret that cannot be one of its ranks: a mistake of whoever started it,
 * which ends the start. One of another job of the launcher has only come to the wrong port. */
static bool suits(mx_coord *c, const card *k, mx_wire_reason *why)
{
    const mx_rank *m = k->rank < c->size ? &c->member[k->rank] : NULL;
    *why = k->job != c->job                                       ? MX_WIRE_ANOTHER_JOB
           : k->size != c->size || k->rank >= c->size || !k->rank ? MX_WIRE_ANOTHER_SIZE
           : m->state != MX_RANK_ABSENT                           ? MX_WIRE_TWICE
                                                                  : (mx_wire_reason)0;
    if (*why == MX_WIRE_ANOTHER_SIZE)
        mx_coord_judge_locked(c, MX_USAGE, -1,
                              "process %d on %s says it is rank %lld of %lld, and rank 0 was "
                              "started as one of %d; start all ranks with the same number, or "
                              "choose another MASTER_PORT when they belong to another run",
                              k->pid, k->host, (long long)k->rank, (long long)k->size, c->size);
    if (*why == MX_WIRE_TWICE)
        mx_coord_judge_locked(c, MX_USAGE, -1,
                              "rank %lld is there twice: process %d on %s and process %d on %s; "
                              "end the earlier one, or choose another MASTER_PORT",
                              (long long)k->rank, m->pid, m->host, k->pid, k->host);
    return !*why;
}

static mx_pending_result admit(mx_coord *c, mx_pending *p)
{
    card k = {.rank = (int64_t)mx_wire_get_int(&p->in, 4),
              .size = (int64_t)mx_wire_get_int(&p->in, 4),
              .pid = (int32_t)mx_wire_get_int(&p->in, 4),
              .job = (uint32_t)mx_wire_get_int(&p->in, 4)};
    mx_wire_reason why;
    mx_wire_get_text(&p->in, k.host, sizeof k.host);
    if (!mx_wire_is_read(&p->in))
        return MX_PENDING_ALIEN;
    if (!suits(c, &k, &why)) {
        mx_wire_frame f;
        begin_refusal(c, &f, why, 0);
        (void)answer(p, &f);
        return MX_PENDING_OTHER;
    }
    mx_rank *m = &c->member[k.rank];
    m->state = MX_RANK_ADMITTED;
    m->at = p->from;
    m->n_different = m->n_compared = m->n_told = 0;
    m->knows = false;
    mx_coord_name(c, (int)k.rank, k.host, k.pid);
    mx_coord_link *l = m->link;
    l->fd = p->fd;
    l->keys = p->keys;
    l->in = (mx_wire_frame){0};
    l->out_at = l->out_n = 0;
    l->heard_at = mx_clock_now();
    l->beat_at = 0;
    l->said_bye = false;
    return MX_PENDING_TAKEN;
}

mx_pending_result mx_coord_root_take(void *ctx, mx_pending *p)
{
    mx_coord *c = ctx;
    if (p->in.kind == MX_WIRE_HELLO && !p->keys.agreed)
        return challenge(c, p);
    if (p->in.kind != MX_WIRE_CARD || !p->keys.agreed)
        return MX_PENDING_ALIEN;
    if (!mx_wire_verify(&p->in, &p->keys)) {
        deny(p, MX_WIRE_SECRET);
        return MX_PENDING_FALSE;
    }
    return admit(c, p);
}

/* --- what it was started with --------------------------------------------------------------- */

static void refuse_parts(mx_coord *c, int r)
{
    mx_rank *m = &c->member[r];
    mx_str names = {0};
    mx_wire_frame f;
    int n = m->n_different < MX_COORD_DIFFERENT ? m->n_different : MX_COORD_DIFFERENT;
    n = m->different[0] == 0 ? 1 : n; /* another program: no wonder */
    begin_refusal(c, &f, MX_WIRE_OTHER_PARTS, n == 1 ? 1 : m->n_different);
    for (int i = 0; i < n; i++) {
        mx_wire_put_int(&f, (uint64_t)m->different[i], 2);
        mx_str_addf(&names, "%s%s", i ? ", " : "",
                    m->different[i] < c->o.n_parts ? c->o.parts[m->different[i]].name : "program");
    }
    if (m->n_different > n && n > 1)
        mx_str_addf(&names, " and %d more", m->n_different - n);
    (void)mx_coord_link_queue(m->link, &f);
    mx_coord_judge_locked(c, MX_USAGE, r,
                          "%s was started otherwise than rank 0: it differs in %s; give all ranks "
                          "the same program, command, files and MAXC_ variables",
                          m->who, mx_str_text(&names));
    mx_str_fini(&names);
}

/* PARTS: how many there are, then their hashes as far as they fit; the rest follows. */
static bool compare_parts(mx_coord *c, int r, mx_wire_frame *f)
{
    mx_rank *m = &c->member[r];
    int total = (int)mx_wire_get_int(f, 2), n = (int)mx_wire_get_int(f, 2);
    if (total > MX_COORD_PARTS || n > total - m->n_compared || (n == 0 && total))
        return false;
    for (int k = 0; k < n; k++) {
        int i = m->n_compared++;
        uint64_t hash = mx_wire_get_int(f, 4);
        if (i < c->o.n_parts && hash == c->o.parts[i].hash && total == c->o.n_parts)
            continue;
        if (m->n_different < MX_COORD_DIFFERENT)
            m->different[m->n_different] = i;
        m->n_different++;
    }
    if (!mx_wire_is_read(f))
        return false;
    if (m->n_compared < total)
        return true;
    if (total == 0 && c->o.n_parts) {
        m->different[0] = 0;
        m->n_different = 1;
    }
    m->state = MX_RANK_HERE;
    if (m->n_different)
        refuse_parts(c, r);
    return true;
}

/* --- what members say ----------------------------------------------------------------------- */

static bool take_complaint(mx_coord *c, int r, mx_wire_frame *f)
{
    char words[MX_COORD_WHY];
    int culprit = r;
    int64_t code = MX_DEVICE;
    if (f->kind == MX_WIRE_BLAME)
        culprit = (int32_t)mx_wire_get_int(f, 4);
    else
        code = (int64_t)mx_wire_get_int(f, 1);
    mx_wire_get_text(f, words, sizeof words);
    if (!mx_wire_is_read(f) || culprit < -1 || culprit >= c->size)
        return false;
    if (!c->why[0])
        c->alone = f->kind == MX_WIRE_ABORT;
    if (f->kind == MX_WIRE_BLAME)
        mx_coord_judge_locked(c, MX_DEVICE, culprit, "%s", words);
    else
        mx_coord_judge_locked(c, mx_coord_code(code), r, "%s has ended: %s", c->member[r].who,
                              words);
    return true;
}

/* False: it is not what a rank says now. */
static bool take_frame(mx_coord *c, int r, mx_wire_frame *f)
{
    mx_rank *m = &c->member[r];
    if (!mx_wire_is_signed(f->kind) || !mx_wire_verify(f, &m->link->keys))
        return false;
    m->link->heard_at = mx_clock_now();
    if (f->kind == MX_WIRE_BYE) {
        m->state = MX_RANK_LEFT;
        return true;
    }
    if (m->state == MX_RANK_ADMITTED)
        return f->kind == MX_WIRE_PARTS && compare_parts(c, r, f);
    if (f->kind == MX_WIRE_BEAT)
        return mx_coord_take_beat(m, f);
    if (f->kind == MX_WIRE_GATHER)
        return mx_coord_take_blob_locked(c, r, f);
    if (f->kind == MX_WIRE_ABORT || f->kind == MX_WIRE_BLAME)
        return take_complaint(c, r, f);
    return false;
}

/* The connection has closed, or cannot be trusted any more. Before all ranks are there the rank may
 * come again; later that is the end, unless it has said goodbye. */
static void lose(mx_coord *c, int r, bool strange)
{
    mx_rank *m = &c->member[r];
    mx_socket_close(&m->link->fd);
    if (!c->all_here) {
        if (!c->why[0])
            mx_coord_note_locked(c, "%s has left again before all ranks were there", m->who);
        m->state = MX_RANK_ABSENT;
    } else if (strange) {
        mx_coord_judge_locked(c, MX_DEVICE, r,
                              "%s sends what no rank sends: another program at its address, or a "
                              "network that changes what it carries",
                              m->who);
    } else if (m->state != MX_RANK_LEFT) {
        mx_coord_judge_locked(c, MX_DEVICE, r,
                              "%s is gone: it crashed or was killed; its own output may say more",
                              m->who);
    }
}

static void hear(mx_coord *c, int r)
{
    mx_coord_link *l = c->member[r].link;
    for (;;) {
        mx_wire_state st = mx_wire_receive(l->fd, &l->in);
        if (st == MX_WIRE_MORE)
            return;
        if (st == MX_WIRE_WHOLE && take_frame(c, r, &l->in))
            continue;
        lose(c, r, st != MX_WIRE_CLOSED);
        return;
    }
}

/* --- what members are sent ------------------------------------------------------------------- */

static void put_member(mx_coord *c, mx_wire_frame *f, int rank)
{
    const mx_rank *m = &c->member[rank];
    uint8_t address[MX_WIRE_ADDRESS] = {0};
    if (m->at.ss_family == AF_INET6)
        memcpy(address, &((const struct sockaddr_in6 *)&m->at)->sin6_addr, 16);
    else
        memcpy(address, &((const struct sockaddr_in *)&m->at)->sin_addr, 4);
    mx_wire_begin(f, MX_WIRE_MEMBER);
    mx_wire_put_int(f, (uint64_t)rank, 4);
    mx_wire_put_int(f, (uint64_t)(int64_t)m->pid, 4);
    mx_wire_put_int(f, m->at.ss_family == AF_INET6 ? 6 : 4, 2);
    mx_wire_put(f, address, sizeof address);
    mx_wire_put_text(f, m->host);
}

/* The table of ranks, frame by frame as there is room: WELCOME, a MEMBER for each, START. */
static void tell_table(mx_coord *c, int r)
{
    mx_rank *m = &c->member[r];
    while (m->n_told < c->size + 2) {
        mx_wire_frame f;
        if (m->n_told == 0) {
            mx_wire_begin(&f, MX_WIRE_WELCOME);
            mx_wire_put_int(&f, (uint64_t)c->size, 4);
            mx_wire_put(&f, c->session_nonce, sizeof c->session_nonce);
        } else if (m->n_told <= c->size) {
            put_member(c, &f, m->n_told - 1);
        } else {
            mx_wire_begin(&f, MX_WIRE_START);
        }
        if (!mx_coord_link_queue(m->link, &f))
            return;
        m->n_told++;
    }
}

void mx_coord_tell_verdict_locked(mx_coord *c)
{
    for (int r = 1; r < c->size; r++) {
        mx_rank *m = &c->member[r];
        mx_wire_frame f;
        if (m->link->fd < 0 || m->knows || m->state == MX_RANK_ADMITTED)
            continue;
        mx_wire_begin(&f, MX_WIRE_VERDICT);
        mx_wire_put_int(&f, (uint64_t)(int64_t)c->culprit, 4);
        mx_wire_put_int(&f, (uint64_t)c->code, 1);
        mx_wire_put_int(&f, c->alone || !c->all_here, 1);
        mx_wire_put_text(&f, c->why);
        m->knows = mx_coord_link_queue(m->link, &f);
    }
}

static void tell(mx_coord *c, int r, double now)
{
    mx_rank *m = &c->member[r];
    mx_coord_link *l = m->link;
    if (c->all_here && !c->why[0]) {
        tell_table(c, r);
        mx_coord_tell_blobs_locked(c, r);
    }
    bool knows_all =
        !c->all_here || (m->n_told == c->size + 2 && (!c->gathers || m->n_gathered == c->size));
    if (c->closing && knows_all)
        mx_coord_queue_bye(c, l, now);
    else if (now - l->beat_at >= mx_coord_beat_s(c))
        mx_coord_queue_beat(c, l, now);
    if (mx_coord_link_flush(l))
        return;
    hear(c, r); /* its last words, if there are any */
    if (l->fd >= 0)
        lose(c, r, false);
}

/* --- the round ------------------------------------------------------------------------------ */

int mx_coord_absent_locked(const mx_coord *c, char *list, size_t cap)
{
    int n = 0;
    size_t len = 0;
    *list = 0;
    for (int r = 1; r < c->size; r++)
        if (c->member[r].state != MX_RANK_HERE && ++n <= 16 && len < cap)
            len += (size_t)snprintf(list + len, cap - len, " %d", r);
    if (n > 16 && len < cap)
        snprintf(list + len, cap - len, "...");
    return n;
}

static void begin_when_all_are_here(mx_coord *c)
{
    for (int r = 1; r < c->size; r++)
        if (c->member[r].state != MX_RANK_HERE)
            return;
    if (c->all_here || c->why[0])
        return;
    if (c->acceptor.refused)
        mx_coord_note_locked(c, "%lld connections were refused while ranks joined; the last one %s",
                             (long long)c->acceptor.refused, c->acceptor.last);
    mx_status st = mx_auth_random(c->session_nonce, sizeof c->session_nonce);
    if (st)
        mx_coord_judge_locked(c, MX_DEVICE, 0, "%s", mx_status_text(st));
    else
        c->all_here = true;
    mx_status_free(st);
    c->session = mx_auth_derive(&c->secret, "data", c->session_nonce, sizeof c->session_nonce);
    mx_acceptor_close(&c->acceptor);
}

int mx_coord_root_polls_locked(mx_coord *c, struct pollfd *p, double now)
{
    int n = mx_acceptor_polls(&c->acceptor, p, now);
    for (int r = 0; r < c->size; r++) {
        const mx_coord_link *l = c->member[r].link;
        bool sends = l && !mx_coord_link_is_idle(l);
        p[n + r] = (struct pollfd){l ? l->fd : -1, (short)(POLLIN | (sends ? POLLOUT : 0)), 0};
    }
    return n + c->size;
}

void mx_coord_root_step_locked(mx_coord *c, const struct pollfd *p, double now)
{
    int n = c->acceptor.pending ? c->acceptor.n + 1 : 0;
    for (int r = 1; r < c->size; r++)
        if (c->member[r].link->fd >= 0 && p[n + r].revents)
            hear(c, r);
    mx_acceptor_serve(&c->acceptor, p, now);
    if (c->acceptor.refused && !c->has_said_refused && !c->why[0]) {
        mx_coord_note_locked(c, "a connection was refused; it came %s. Ranks are waited for",
                             c->acceptor.last);
        c->has_said_refused = true;
    }
    begin_when_all_are_here(c);
    if (c->why[0])
        mx_coord_tell_verdict_locked(c);
    for (int r = 1; r < c->size; r++)
        if (c->member[r].link->fd >= 0)
            tell(c, r, now);
    int n_know = 1;
    for (int r = 1; r < c->size; r++)
        n_know += c->member[r].n_told == c->size + 2;
    c->started |= c->all_here && n_know == c->size;
    mx_coord_judge_silence_locked(c, now);
}

mx_status mx_coord_root_listen(mx_coord *c)
{
    int fd;
    struct sockaddr_storage at;
    mx_wait w = {.deadline = mx_clock_now() + c->o.join_timeout_s, .alarm = -1, .stops = true};
    MX_TRY(mx_rendezvous_listen(&c->launch, c->size + MX_ACCEPTOR_PENDING, &w, &fd, &at));
    c->member[0].at = at;
    c->acceptor.take = mx_coord_root_take;
    c->acceptor.ctx = c;
    return mx_acceptor_open(&c->acceptor, fd);
}

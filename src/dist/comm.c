/* comm.c - one rank alone, and what every kind of communicator has in common. */
#include "dist/comm.h"

#include "base/arena.h"
#include "base/utf8.h"
#include "dist/mpi.h"
#include "dist/tcp.h"
#include <stdio.h>
#include <string.h>

/* --- one rank ------------------------------------------------------------------------------- */

static mx_status alone_exchange(mx_comm *c, const char *call, const mx_comm_move *moves, int n)
{
    (void)c, (void)moves;
    MX_ASSERT(n == 0, "%s with %d other ranks", call, n);
    return MX_OK;
}

static void alone_close(mx_comm *c)
{
    mx_comm_fini(c);
    mx_free(c);
}

static mx_status alone_open(mx_comm **out);

static mx_status alone_split_off(mx_comm *c, mx_comm **out)
{
    (void)c;
    return alone_open(out);
}

static const mx_comm_kind single = {.name = "single",
                                    .exchange = alone_exchange,
                                    .split_off = alone_split_off,
                                    .close = alone_close};

static mx_status alone_open(mx_comm **out)
{
    MX_TRY(mx_alloc((void **)out, sizeof **out, "a communicator"));
    mx_status st = mx_comm_init(*out, &single, NULL);
    if (st) {
        mx_free(*out);
        *out = NULL;
    }
    return st;
}

/* --- every kind ----------------------------------------------------------------------------- */

mx_status mx_comm_init(mx_comm *c, const mx_comm_kind *kind, mx_coord *coord)
{
    int size = coord ? mx_coord_size(coord) : 1;
    *c = (mx_comm){.kind = kind, .coord = coord, .size = size};
    c->rank = coord ? mx_coord_rank(coord) : 0;
    mx_status st = mx_alloc((void **)&c->small, (size_t)MX_COMM_SMALL * (size_t)size,
                            "a communicator");
    if (!st)
        st = mx_alloc((void **)&c->moves, sizeof *c->moves * (size_t)size, "a communicator");
    if (st)
        mx_comm_fini(c);
    return st;
}

void mx_comm_fini(mx_comm *c)
{
    mx_free(c->small);
    mx_free(c->moves);
    mx_free(c->stage);
    mx_free(c->arrived);
}

mx_status mx_comm_open(mx_comm **out, mx_coord *coord, mx_comm_choice *choice)
{
    *out = NULL;
    if (mx_coord_size(coord) == 1)
        return alone_open(out);
    if (strcmp(choice->how, "tcp") != 0)
        MX_TRY(mx_mpi_open(out, coord, choice));
    return *out ? MX_OK : mx_tcp_open(out, coord);
}

void mx_comm_close(mx_comm *c)
{
    if (c)
        c->kind->close(c);
}

mx_status mx_comm_exchange(mx_comm *c, const char *call, const mx_comm_move *moves, int n)
{
    return c->kind->exchange(c, call, moves, n);
}

mx_status mx_comm_gather(mx_comm *c, const void *mine, size_t bytes, void *all)
{
    int n = 0;
    char *at = all, *here = at + bytes * (size_t)c->rank;
    if (c->kind->gather)
        return c->kind->gather(c, mine, bytes, all);
    if (bytes && here != mine)
        memmove(here, mine, bytes);
    for (int r = 0; r < c->size; r++)
        if (r != c->rank)
            c->moves[n++] = (mx_comm_move){.rank = r, .out = mine, .out_bytes = bytes,
                                           .in = at + bytes * (size_t)r, .in_bytes = bytes};
    return mx_comm_exchange(c, bytes ? "gather" : "barrier", c->moves, n);
}

/* All ranks take part, so that one that is not there is missed at once. */
mx_status mx_comm_broadcast(mx_comm *c, void *data, size_t bytes, int root)
{
    int n = 0;
    if (c->kind->broadcast)
        return c->kind->broadcast(c, data, bytes, root);
    for (int r = 0; r < c->size; r++)
        if (r != c->rank)
            c->moves[n++] = (mx_comm_move){.rank = r, .out = data, .in = data,
                                           .out_bytes = c->rank == root ? bytes : 0,
                                           .in_bytes = r == root ? bytes : 0};
    return mx_comm_exchange(c, "broadcast", c->moves, n);
}

mx_status mx_comm_barrier(mx_comm *c)
{
    return mx_comm_gather(c, NULL, 0, NULL);
}

mx_status mx_comm_split_off(mx_comm *c, mx_comm **out)
{
    *out = NULL;
    return c->kind->split_off(c, out);
}

static mx_status gather_small(mx_comm *c, const void *mine, size_t bytes)
{
    MX_ASSERT(bytes <= MX_COMM_SMALL, "%zu bytes", bytes);
    return mx_comm_gather(c, mine, bytes, c->small);
}

mx_status mx_comm_sum_f64(mx_comm *c, double *v, int n)
{
    MX_TRY(gather_small(c, v, sizeof *v * (size_t)n));
    const double *all = (const double *)c->small;
    for (int i = 0; i < n; i++) {
        v[i] = all[i];
        for (int r = 1; r < c->size; r++)
            v[i] += all[r * n + i];
    }
    return MX_OK;
}

mx_status mx_comm_sum(mx_comm *c, int64_t *v, int n)
{
    MX_TRY(gather_small(c, v, sizeof *v * (size_t)n));
    const int64_t *all = (const int64_t *)c->small;
    for (int i = 0; i < n; i++) {
        v[i] = 0;
        for (int r = 0; r < c->size; r++)
            v[i] += all[r * n + i];
    }
    return MX_OK;
}

mx_status mx_comm_max(mx_comm *c, int64_t *v, int n)
{
    MX_TRY(gather_small(c, v, sizeof *v * (size_t)n));
    const int64_t *all = (const int64_t *)c->small;
    for (int i = 0; i < n; i++)
        for (int r = 0; r < c->size; r++)
            v[i] = all[r * n + i] > v[i] ? all[r * n + i] : v[i];
    return MX_OK;
}

/* What another rank says, with its lines. */
static void show_lines(char *out, size_t cap, const char *text, size_t n)
{
    const char *end = text + strnlen(text, n);
    size_t len = 0;
    for (const char *p = text;; p++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t line = (size_t)((stop ? stop : end) - p);
        mx_printable(out + len, cap - len, p, line);
        len += strlen(out + len);
        p += line;
        if (p >= end || len + 2 >= cap)
            return;
        out[len++] = '\n';
        out[len] = 0;
    }
}

mx_status mx_comm_agree(mx_comm *c, mx_status mine)
{
    struct {
        int32_t code;
        char text[MX_COMM_SMALL - 8];
    } note = {.code = (int32_t)mx_status_code(mine)}, *all;
    snprintf(note.text, sizeof note.text, "%s", mx_status_text(mine));
    mx_status st = gather_small(c, &note, sizeof note);
    if (mine) { /* its own message says it best, even where it could not be sent */
        mx_status_free(st);
        return mine;
    }
    MX_TRY(st);
    all = (void *)c->small;
    for (int r = 0; r < c->size; r++)
        if (all[r].code) {
            char text[sizeof note.text];
            show_lines(text, sizeof text, all[r].text, sizeof all[r].text);
            return mx_fail(mx_coord_code(all[r].code), "rank %d: %s", r, text);
        }
    return MX_OK;
}

/* --- paths ---------------------------------------------------------------------------------- */

enum { PATH_BYTES = 4096 };

static bool is_plain(const char *path)
{
    char shown[PATH_BYTES];
    return strcmp(mx_printable(shown, sizeof shown, path, PATH_BYTES), path) == 0;
}

mx_status mx_comm_share_path(mx_comm *c, mx_arena *a, const char **path)
{
    char buf[PATH_BYTES] = "", shown[256];
    bool mine = c->rank == 0 && *path;
    if (c->size == 1)
        return MX_OK;
    int64_t bad[] = {mine && strlen(*path) >= sizeof buf, 0};
    bad[1] = mine && !bad[0] && !is_plain(*path);
    MX_TRY(mx_comm_max(c, bad, 2));
    if (bad[0])
        return mx_fail(MX_USAGE, "a path of the run has more than %d bytes", PATH_BYTES - 1);
    if (bad[1])
        return mx_fail(MX_USAGE, "a path of the run has characters that cannot be printed, which "
                                 "runs of several ranks do not accept; choose another run_name or "
                                 "base_output_directory");
    if (mine)
        memcpy(buf, *path, strlen(*path) + 1);
    MX_TRY(mx_comm_broadcast(c, buf, sizeof buf, 0));
    if (!memchr(buf, 0, sizeof buf) || !is_plain(buf))
        return mx_fail(MX_DEVICE, "rank 0 has sent a path that is not valid: %s",
                       mx_printable(shown, sizeof shown, buf, sizeof buf));
    if (c->rank)
        *path = *buf ? mx_arena_strdup(a, buf) : NULL;
    return MX_OK;
}

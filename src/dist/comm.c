/* comm.c - one rank alone, and what every kind of communicator has in common. */
#include "dist/comm.h"

#include "base/arena.h"
#include "dist/place.h"
#include "dist/tcp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- one rank ------------------------------------------------------------------------------- */

static mx_status alone_gather(mx_comm *c, const void *mine, size_t bytes, void *all)
{
    (void)c;
    if (bytes && all != mine)
        memmove(all, mine, bytes);
    return MX_OK;
}

static mx_status alone_broadcast(mx_comm *c, void *data, size_t bytes, int root)
{
    (void)c, (void)data, (void)bytes, (void)root;
    return MX_OK;
}

static mx_status alone_sum(mx_comm *c, const mx_span *spans, int n)
{
    (void)c, (void)spans, (void)n;
    return MX_OK;
}

static void alone_abort(mx_comm *c, const char *why)
{
    (void)c, (void)why;
}

static void alone_close(mx_comm *c)
{
    mx_free(c->small);
    mx_free(c);
}

static mx_status alone_open(mx_comm **out);

static mx_status alone_split_off(mx_comm *c, mx_comm **out)
{
    (void)c;
    return alone_open(out);
}

static const mx_comm_kind single = {.name = "single",
                                    .gather = alone_gather,
                                    .broadcast = alone_broadcast,
                                    .sum_f32 = alone_sum,
                                    .split_off = alone_split_off,
                                    .abort = alone_abort,
                                    .close = alone_close};

static mx_status alone_open(mx_comm **out)
{
    MX_TRY(mx_alloc((void **)out, sizeof **out, "a communicator"));
    **out = (mx_comm){.kind = &single, .size = 1};
    mx_status st = mx_alloc((void **)&(*out)->small, MX_COMM_SMALL, "a communicator");
    if (st) {
        mx_free(*out);
        *out = NULL;
    }
    return st;
}

/* --- every kind ----------------------------------------------------------------------------- */

mx_status mx_comm_open(mx_comm **out, const mx_comm_options *o)
{
    mx_place p;
    *out = NULL;
    MX_TRY(mx_place_find(&p, getenv));
    return p.size == 1 ? alone_open(out) : mx_tcp_open(out, &p, o);
}

void mx_comm_close(mx_comm *c)
{
    if (c)
        c->kind->close(c);
}

void mx_comm_abort(mx_comm *c, const char *why)
{
    c->kind->abort(c, why);
}

mx_status mx_comm_gather(mx_comm *c, const void *mine, size_t bytes, void *all)
{
    return c->kind->gather(c, mine, bytes, all);
}

mx_status mx_comm_broadcast(mx_comm *c, void *data, size_t bytes, int root)
{
    return c->kind->broadcast(c, data, bytes, root);
}

mx_status mx_comm_barrier(mx_comm *c)
{
    return c->kind->gather(c, NULL, 0, NULL);
}

mx_status mx_comm_sum_f32(mx_comm *c, const mx_span *spans, int n)
{
    return c->kind->sum_f32(c, spans, n);
}

mx_status mx_comm_split_off(mx_comm *c, mx_comm **out)
{
    *out = NULL;
    return c->kind->split_off(c, out);
}

static mx_status gather_small(mx_comm *c, const void *mine, size_t bytes)
{
    MX_ASSERT(bytes <= MX_COMM_SMALL, "%zu bytes", bytes);
    return c->kind->gather(c, mine, bytes, c->small);
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

mx_status mx_comm_agree(mx_comm *c, mx_status mine)
{
    struct {
        int32_t code;
        char text[MX_COMM_SMALL - 8];
    } note = {.code = (int32_t)mx_status_code(mine)}, *all;
    snprintf(note.text, sizeof note.text, "%s", mx_status_text(mine));
    mx_status st = gather_small(c, &note, sizeof note);
    if (mine) { /* its own message says it best, also when nobody could be told */
        mx_status_free(st);
        return mine;
    }
    MX_TRY(st);
    all = (void *)c->small;
    for (int r = 0; r < c->size; r++)
        if (all[r].code) {
            all[r].text[sizeof all[r].text - 1] = 0;
            return mx_fail((mx_code)all[r].code, "rank %d: %s", r, all[r].text);
        }
    return MX_OK;
}

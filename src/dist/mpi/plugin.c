/* plugin.c - exchanges through MPI; see dist/mpi.h. Built with mpicc into libmaxc_mpi.so.
 *
 * Messages between two ranks arrive in the order in which they were sent, so one tag is enough:
 * what a rank sends in its i-th exchange with another one is what that one receives in its i-th.
 * Nothing waits inside MPI: requests are tested, and between tests the coordinator's alarm is
 * looked at, so a rank that died ends the others with a word about who it was. MPI cannot be left
 * in order after that; the process ends without MPI_Finalize, which mpirun notices.
 */
#include "mpi_impl.h"

#include "base/arena.h"
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { TESTS_BEFORE_SLEEP = 2000, SLEEP_NS = 20000, LOOKS_AT_WHO = 1000 };

mx_status mx_mpi_failed(mx_coord *coord, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    MPI_Error_string(code, text, &n);
    return mx_coord_fail(coord, -1, "MPI failed on %s in %s: %s",
                         mx_coord_who(coord, mx_coord_rank(coord)), what, text);
}

static mx_status start(mx_coord *coord, char *library, size_t cap)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int given, done, size, rank, n;
    MPI_Get_library_version(text, &n);
    text[strcspn(text, ",\n")] = 0;
    snprintf(library, cap, "%s", text);
    MPI_Finalized(&done);
    if (done)
        return mx_fail(MX_USAGE, "MPI can be used for one run of a process, and has been");
    MPI_Initialized(&done);
    if (!done)
        MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &given);
    MPI_Query_thread(&given);
    if (given < MPI_THREAD_MULTIPLE)
        return mx_fail(MX_DEVICE, "%s takes calls of one thread only; maxc makes them from two",
                       library);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (size == mx_coord_size(coord) && rank == mx_coord_rank(coord))
        return MX_OK;
    return mx_fail(MX_DEVICE,
                   "the launcher has started rank %d of %d, but the MPI plug-in (%s) is rank %d of "
                   "%d: its MPI is not the launcher's; build it with that one's compiler, `make "
                   "mpi MPICC=...`, or use collectives=tcp",
                   mx_coord_rank(coord), mx_coord_size(coord), library, rank, size);
}

/* Messages of more than 2^31 bytes are more than one: a count is an int. */
static int chunks(size_t bytes)
{
    return (int)((bytes + MX_MPI_CHUNK - 1) / MX_MPI_CHUNK);
}

static mx_status reserve(mx_mpi_comm *m, const mx_comm_move *moves, int n)
{
    int need = 0;
    for (int i = 0; i < n; i++)
        need += chunks(moves[i].in_bytes) + chunks(moves[i].out_bytes);
    if (need <= m->cap)
        return MX_OK;
    need = need > 2 * m->cap ? need : 2 * m->cap;
    mx_free(m->request);
    mx_free(m->status);
    m->cap = 0;
    MX_TRY(mx_alloc((void **)&m->request, sizeof *m->request * (size_t)need, "MPI requests"));
    MX_TRY(mx_alloc((void **)&m->status, sizeof *m->status * (size_t)need, "MPI requests"));
    m->cap = need;
    return MX_OK;
}

/* Both directions of one move; `in` says which. */
static int post(mx_mpi_comm *m, const mx_comm_move *v, bool in)
{
    size_t bytes = in ? v->in_bytes : v->out_bytes;
    int code = MPI_SUCCESS;
    for (size_t at = 0; at < bytes && code == MPI_SUCCESS; at += MX_MPI_CHUNK) {
        int k = (int)(bytes - at < MX_MPI_CHUNK ? bytes - at : MX_MPI_CHUNK);
        MPI_Request *r = &m->request[m->n++];
        code = in ? MPI_Irecv((char *)v->in + at, k, MPI_BYTE, v->rank, 0, m->world, r)
                  : MPI_Isend((const char *)v->out + at, k, MPI_BYTE, v->rank, 0, m->world, r);
    }
    return code;
}

static bool rings(const mx_coord *c)
{
    struct pollfd p = {mx_coord_alarm(c), POLLIN, 0};
    return poll(&p, 1, 0) > 0;
}

/* The rank of the first request that is not done; -1: none. */
static int owing(const mx_mpi_comm *m, const mx_comm_move *moves, int n)
{
    const MPI_Request *r = m->request;
    for (int i = 0; i < 2 * n; i++) {
        const mx_comm_move *v = &moves[i % n];
        for (int k = chunks(i < n ? v->in_bytes : v->out_bytes); k > 0; k--, r++) {
            int done = 0;
            if (MPI_Request_get_status(*r, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
                return v->rank;
        }
    }
    return -1;
}

static mx_status wait_all(mx_mpi_comm *m, const char *call, const mx_comm_move *moves, int n)
{
    mx_coord *c = m->base.coord;
    const struct timespec pause = {0, SLEEP_NS};
    int done = 0;
    for (int64_t i = 0; !done; i++) {
        int code = MPI_Testall(m->n, m->request, &done, m->status);
        if (code != MPI_SUCCESS)
            return mx_mpi_failed(c, call, code);
        if (done || i < TESTS_BEFORE_SLEEP)
            continue;
        if (rings(c))
            return mx_coord_check(c);
        if (i % LOOKS_AT_WHO == 0)
            mx_coord_waits_for(c, m->channel, owing(m, moves, n));
        nanosleep(&pause, NULL);
    }
    return MX_OK;
}

/* MPI takes a shorter message for a whole one. */
static mx_status check_sizes(mx_mpi_comm *m, const char *call, const mx_comm_move *moves, int n)
{
    const MPI_Status *s = m->status;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < chunks(moves[i].in_bytes); k++, s++) {
            size_t rest = moves[i].in_bytes - (size_t)k * MX_MPI_CHUNK;
            int want = (int)(rest < MX_MPI_CHUNK ? rest : MX_MPI_CHUNK), got = 0;
            MPI_Get_count(s, MPI_BYTE, &got);
            if (got != want)
                return mx_coord_fail(
                    m->base.coord, -1,
                    "rank %d has sent %d bytes to rank %d in %s, which expected "
                    "%d: the ranks are doing different things; were they started with one "
                    "command?",
                    moves[i].rank, got, m->base.rank, call, want);
        }
    return MX_OK;
}

static mx_status exchange(mx_comm *c, const char *call, const mx_comm_move *moves, int n)
{
    mx_mpi_comm *m = (mx_mpi_comm *)c;
    MX_TRY(mx_coord_check(c->coord));
    MX_TRY(reserve(m, moves, n));
    m->n = 0;
    m->calls++;
    int code = MPI_SUCCESS;
    mx_coord_enter(c->coord, m->channel, call, m->calls);
    for (int i = 0; i < n && code == MPI_SUCCESS; i++)
        code = post(m, &moves[i], true);
    for (int i = 0; i < n && code == MPI_SUCCESS; i++)
        code = post(m, &moves[i], false);
    mx_status st =
        code == MPI_SUCCESS ? wait_all(m, call, moves, n) : mx_mpi_failed(c->coord, call, code);
    mx_coord_leave(c->coord, m->channel);
    return st ? st : check_sizes(m, call, moves, n);
}

static void close_comm(mx_comm *c)
{
    mx_mpi_comm *m = (mx_mpi_comm *)c;
    mx_status verdict = mx_coord_check(c->coord);
    if (!verdict && m->world != MPI_COMM_NULL)
        MPI_Comm_free(&m->world);
    if (!verdict && m->first)
        MPI_Finalize();
    mx_status_free(verdict);
    mx_coord_channel_close(c->coord, m->channel);
    mx_comm_fini(c);
    mx_free(m->request);
    mx_free(m->status);
    mx_free(m);
}

static mx_status split_off(mx_comm *c, mx_comm **out);
static const mx_comm_kind kind = {.name = "mpi",
                                  .exchange = exchange,
                                  .split_off = split_off,
                                  .move = mx_mpi_move,
                                  .rest = mx_mpi_rest,
                                  .drop = mx_mpi_drop,
                                  .close = close_comm};

static mx_status open_as(mx_comm **out, mx_coord *coord, bool first)
{
    mx_mpi_comm *m;
    uint32_t number;
    *out = NULL;
    MX_TRY(mx_alloc((void **)&m, sizeof *m, "a communicator"));
    mx_status st = mx_comm_init(&m->base, &kind, coord);
    if (!st)
        st = mx_coord_channel_open(coord, &m->channel, &number);
    if (st) {
        mx_comm_fini(&m->base);
        mx_free(m);
        return st;
    }
    m->first = first;
    m->world = MPI_COMM_NULL;
    mx_coord_enter(coord, m->channel, "MPI_Comm_dup", ++m->calls);
    int code = MPI_Comm_dup(MPI_COMM_WORLD, &m->world);
    mx_coord_leave(coord, m->channel);
    if (code == MPI_SUCCESS)
        MPI_Comm_set_errhandler(m->world, MPI_ERRORS_RETURN);
    else
        st = mx_mpi_failed(coord, "a new communicator", code);
    if (st)
        close_comm(&m->base);
    else
        *out = &m->base;
    return st;
}

static mx_status split_off(mx_comm *c, mx_comm **out)
{
    return open_as(out, c->coord, false);
}

static mx_status open_first(mx_comm **out, mx_coord *coord)
{
    return open_as(out, coord, true);
}

extern mx_mpi_plugin_get mx_mpi_plugin_of;
const mx_mpi_plugin *mx_mpi_plugin_of(void)
{
    static const mx_mpi_plugin plugin = {MX_MPI_INTERFACE, start, open_first};
    return &plugin;
}

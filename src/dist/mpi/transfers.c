/* transfers.c - messages between two ranks through MPI, which matches them by tag.
 *
 * A transfer has one request at a time: what is longer than a request may be goes in parts, which
 * arrive in the order in which they were sent. MPI moves bytes only inside its own calls, so the
 * messenger's thread asks again and again while something is under way.
 */
#include "mpi_impl.h"

#include <poll.h>
#include <string.h>
#include <time.h>

enum { URGENT_NS = 20000, PATIENT_NS = 200000, TESTS_OF_A_CANCELLED = 1000 };

_Static_assert(sizeof(MPI_Request) <= sizeof((mx_transfer *)0)->request,
               "a transfer holds a request");

static MPI_Request request_of(const mx_transfer *l)
{
    MPI_Request r;
    memcpy(&r, l->request, sizeof r);
    return r;
}

static int part_of(const mx_transfer *l)
{
    size_t rest = l->m.bytes - l->moved;
    return (int)(rest < MX_MPI_CHUNK ? rest : MX_MPI_CHUNK);
}

/* Tags of MPI are not below 0, and have an end. */
static mx_status tag_of(const mx_mpi_comm *m, int64_t tag, int *out)
{
    int *most, found = 0;
    int64_t t = tag < 0 ? -2 * tag - 1 : 2 * tag;
    MPI_Comm_get_attr(m->world, MPI_TAG_UB, &most, &found);
    *out = (int)t;
    return !found || t <= *most ? MX_OK
                                : mx_coord_fail(m->base.coord, -1,
                                                "this MPI has tags up to %d, and the pipeline "
                                                "needs %lld; use fewer microbatches, or "
                                                "collectives=tcp",
                                                *most, (long long)t);
}

static mx_status begin(mx_mpi_comm *m, mx_transfer *l)
{
    MPI_Request r;
    int tag;
    char *at = (char *)l->m.data + l->moved;
    MX_TRY(tag_of(m, l->m.tag, &tag));
    int code = l->sends ? MPI_Isend(at, part_of(l), MPI_BYTE, l->m.peer, tag, m->world, &r)
                        : MPI_Irecv(at, part_of(l), MPI_BYTE, l->m.peer, tag, m->world, &r);
    if (code != MPI_SUCCESS)
        return mx_mpi_failed(m->base.coord, l->sends ? "send" : "receive", code);
    memcpy(l->request, &r, sizeof r);
    l->open = true;
    return MX_OK;
}

/* MPI takes a shorter message for a whole one. */
static mx_status check_size(mx_mpi_comm *m, const mx_transfer *l, const MPI_Status *s)
{
    int got = 0;
    MPI_Get_count(s, MPI_BYTE, &got);
    if (l->sends || got == part_of(l))
        return MX_OK;
    return mx_coord_fail(
        m->base.coord, -1,
        "rank %d has sent %d bytes in a message to rank %d, which expected %d: "
        "the ranks are doing different things; were they started with one command?",
        l->m.peer, got, m->base.rank, part_of(l));
}

static mx_status test(mx_mpi_comm *m, mx_transfer *l, bool *moved)
{
    MPI_Status s;
    MPI_Request r = request_of(l);
    int done = 0, code = MPI_Test(&r, &done, &s);
    if (code != MPI_SUCCESS)
        return mx_mpi_failed(m->base.coord, l->sends ? "send" : "receive", code);
    memcpy(l->request, &r, sizeof r);
    if (!done)
        return MX_OK;
    MX_TRY(check_size(m, l, &s));
    l->moved += (size_t)part_of(l);
    l->open = false;
    l->done = l->moved == l->m.bytes;
    *moved = true;
    return MX_OK;
}

mx_status mx_mpi_move(mx_comm *c, mx_transfer *transfers, bool *moved)
{
    mx_mpi_comm *m = (mx_mpi_comm *)c;
    m->busy = 0;
    for (mx_transfer *l = transfers; l; l = l->next) {
        if (l->done)
            continue;
        if (!l->open)
            MX_TRY(begin(m, l));
        MX_TRY(test(m, l, moved));
        m->busy += !l->done;
    }
    return MX_OK;
}

void mx_mpi_rest(mx_comm *c, int wake, bool urgent)
{
    const mx_mpi_comm *m = (const mx_mpi_comm *)c;
    struct pollfd p[] = {{wake, POLLIN, 0}, {mx_coord_alarm(c->coord), POLLIN, 0}};
    struct timespec pause = {0, urgent ? URGENT_NS : PATIENT_NS};
    ppoll(p, 2, m->busy ? &pause : NULL, NULL);
}

/* What is to be received is taken back; what is being sent is left to MPI. */
void mx_mpi_drop(mx_comm *c, mx_transfer *l)
{
    MPI_Request r = request_of(l);
    int done = 0;
    (void)c;
    if (!l->open || l->sends || MPI_Cancel(&r) != MPI_SUCCESS)
        return;
    for (int i = 0; i < TESTS_OF_A_CANCELLED && !done; i++)
        if (MPI_Test(&r, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return;
}

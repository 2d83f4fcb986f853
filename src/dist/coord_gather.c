/* coord_gather.c - a few bytes of every rank to every rank, by way of rank 0. */
#include "dist/coord_impl.h"

#include "base/clock.h"
#include <string.h>
#include <unistd.h>

enum { CHANNEL = 0 }; /* the first one is the coordinator's own */
enum { PER_FRAME_BYTES = MX_WIRE_BODY - 8 };

/* --- rank 0 --------------------------------------------------------------------------------- */

static void finish_when_all_have_come(mx_coord *c)
{
    size_t bytes = c->member[0].blob_bytes;
    for (int r = 0; r < c->size; r++)
        if (c->member[r].gathers != c->gathers + 1)
            return;
    for (int r = 1; r < c->size; r++)
        if (c->member[r].blob_bytes != bytes) {
            mx_coord_judge_locked(c, MX_DEVICE, -1,
                                  "%s brings %zu bytes and %s brings %zu: ranks do not do the "
                                  "same; were they started with one command?",
                                  c->member[0].who, bytes, c->member[r].who,
                                  c->member[r].blob_bytes);
            return;
        }
    for (int r = 0; r < c->size; r++) {
        memcpy(c->gathered + (size_t)r * bytes, c->member[r].blob, bytes);
        c->member[r].n_gathered = 0;
    }
    c->blob_bytes = bytes;
    c->gathers++;
}

bool mx_coord_take_blob_locked(mx_coord *c, int rank, mx_wire_frame *f)
{
    mx_rank *m = &c->member[rank];
    uint32_t number = (uint32_t)mx_wire_get_int(f, 4);
    size_t bytes = mx_wire_get_int(f, 2);
    if (number != m->gathers + 1 || m->gathers != c->gathers || !bytes || bytes > sizeof m->blob)
        return false;
    mx_wire_get(f, m->blob, bytes);
    if (!mx_wire_is_read(f))
        return false;
    m->gathers = number;
    m->blob_bytes = bytes;
    finish_when_all_have_come(c);
    return true;
}

void mx_coord_tell_blobs_locked(mx_coord *c, int rank)
{
    mx_rank *m = &c->member[rank];
    while (c->gathers && m->n_gathered < c->size) {
        mx_wire_frame f;
        int n = (int)(PER_FRAME_BYTES / c->blob_bytes);
        n = n < c->size - m->n_gathered ? n : c->size - m->n_gathered;
        mx_wire_begin(&f, MX_WIRE_GATHERED);
        mx_wire_put_int(&f, c->gathers, 4);
        mx_wire_put_int(&f, (uint64_t)m->n_gathered, 2);
        mx_wire_put_int(&f, (uint64_t)n, 2);
        mx_wire_put(&f, c->gathered + (size_t)m->n_gathered * c->blob_bytes,
                    (size_t)n * c->blob_bytes);
        if (!mx_coord_link_queue(m->link, &f))
            return;
        m->n_gathered += n;
    }
}

/* --- others --------------------------------------------------------------------------------- */

bool mx_coord_take_gathered_locked(mx_coord *c, mx_wire_frame *f)
{
    uint32_t number = (uint32_t)mx_wire_get_int(f, 4);
    int first = (int)mx_wire_get_int(f, 2), n = (int)mx_wire_get_int(f, 2);
    if (number != c->gathers || first != c->n_gathered || n > c->size - first)
        return false;
    mx_wire_get(f, c->gathered + (size_t)first * c->blob_bytes, (size_t)n * c->blob_bytes);
    c->n_gathered += n;
    return mx_wire_is_read(f);
}

/* --- every rank ----------------------------------------------------------------------------- */

/* False: rank 0 does not hear this rank any more. */
static bool bring(mx_coord *c, const void *mine, size_t bytes)
{
    mx_rank *m = &c->member[0];
    if (c->rank == 0) {
        memcpy(m->blob, mine, bytes);
        m->blob_bytes = bytes;
        m->gathers++;
        finish_when_all_have_come(c);
        return true;
    }
    mx_wire_frame f;
    c->gathers++;
    c->n_gathered = 0;
    c->blob_bytes = bytes;
    mx_wire_begin(&f, MX_WIRE_GATHER);
    mx_wire_put_int(&f, c->gathers, 4);
    mx_wire_put_int(&f, bytes, 2);
    mx_wire_put(&f, mine, bytes);
    return m->state == MX_RANK_HERE && mx_coord_link_queue(m->link, &f);
}

static bool is_there(const mx_coord *c)
{
    return c->rank ? c->n_gathered == c->size : c->gathers == c->member[0].gathers;
}

mx_status mx_coord_gather(mx_coord *c, const void *mine, size_t bytes, void *all)
{
    MX_ASSERT(bytes && bytes <= MX_COORD_BLOB, "%zu bytes", bytes);
    if (c->size == 1) {
        memmove(all, mine, bytes);
        return MX_OK;
    }
    pthread_mutex_lock(&c->lock);
    bool heard = bring(c, mine, bytes);
    mx_coord_enter(c, CHANNEL, "gather", c->gathers + (c->rank == 0 && !is_there(c)));
    mx_coord_wake(c);
    while (heard && !is_there(c) && !c->why[0] && c->member[0].state != MX_RANK_LEFT)
        pthread_cond_wait(&c->changed, &c->lock);
    mx_coord_leave(c, CHANNEL);
    if (!heard || (c->member[0].state == MX_RANK_LEFT && !is_there(c)))
        mx_coord_judge_locked(c, MX_DEVICE, 0, "%s has ended, and this rank needs it",
                              c->member[0].who);
    if (is_there(c) && !c->why[0])
        memcpy(all, c->gathered, (size_t)c->size * bytes);
    pthread_mutex_unlock(&c->lock);
    return mx_coord_check(c);
}

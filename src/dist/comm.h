/* comm.h - how ranks exchange data.
 *
 * A communicator connects `size` ranks. Every call is collective: all ranks make the same calls in
 * the same order. A call either succeeds or fails with a message that names the rank to blame: the
 * one that died, that is silent for longer than the limit, or that made another call. That is the
 * verdict of the coordinator (coord.h), which is the same on all ranks; after it every further call
 * fails with the same words.
 *
 *     mx_comm *c;
 *     MX_TRY(mx_comm_open(&c, coord));             alone, or with the other processes
 *     MX_TRY(mx_comm_sum_f32(c, spans, n));        gradients
 *     MX_TRY(mx_comm_max(c, &stop, 1));            flags
 *     st = mx_comm_agree(c, st);                   one failed: all failed, with its message
 *     mx_comm_close(c);
 *
 * Sums are taken in the order of ranks, whatever arrives first, so their bits repeat.
 *
 * Everything is made of one call, the exchange: some bytes to, and some from, each of some ranks.
 * A kind is a way to exchange: `single` (one rank), `tcp` (tcp.c) and `mpi` (a plug-in, mpi.h).
 * Ranks, their heartbeat and who is to blame are the coordinator's, whatever the kind: a kind that
 * talks to other processes marks its calls there and watches its alarm. One thread at a time may
 * use a communicator; a thread of its own has one of its own (mx_comm_split_off). Messages, which
 * two ranks exchange without the others, go through one that is used for nothing else
 * (messenger.h).
 */
#ifndef MX_DIST_COMM_H
#define MX_DIST_COMM_H

#include "base/arena.h"
#include "dist/coord.h"
#include "ir/process_group.h"
#include <stddef.h>
#include <stdint.h>

typedef struct mx_comm mx_comm;

/* Numbers that lie here; several of them are one long vector. */
typedef struct {
    float *data;
    int64_t n;
} mx_span;

/* What goes to another rank and what comes from it in one exchange. */
typedef struct {
    int rank;
    const void *out;
    void *in;
    size_t out_bytes, in_bytes;
} mx_comm_move;

/* A message under way (messenger.h): m.peer is a rank of the communicator. */
typedef struct mx_transfer {
    mx_message m;
    bool sends; /* else it is expected */
    bool done;  /* set by the kind */
    /* The kind's own: */
    bool open;  /* tcp: the receiver has room, and the sender knows; mpi: there is a request */
    size_t moved;
    uint64_t request[2];
    struct mx_transfer *next;
} mx_transfer;

typedef struct {
    const char *name;
    /* Each rank of a move has a move with this one in its own call; `call` is a literal. */
    mx_status (*exchange)(mx_comm *c, const char *call, const mx_comm_move *moves, int n);
    /* Optional: quicker ways than by exchanges. */
    mx_status (*gather)(mx_comm *c, const void *mine, size_t bytes, void *all);
    mx_status (*broadcast)(mx_comm *c, void *data, size_t bytes, int root);
    mx_status (*sum_f32)(mx_comm *c, const mx_span *spans, int n);
    mx_status (*split_off)(mx_comm *c, mx_comm **out);
    /* Of a communicator that carries messages and nothing else: moves what can be moved without
     * waiting; waits until that may have changed, or `wake` is readable; gives up a transfer. */
    mx_status (*move)(mx_comm *c, mx_transfer *transfers, bool *moved);
    void (*rest)(mx_comm *c, int wake, bool urgent);
    void (*drop)(mx_comm *c, mx_transfer *l);
    void (*close)(mx_comm *c);
} mx_comm_kind;

struct mx_comm {
    const mx_comm_kind *kind;
    mx_coord *coord; /* borrowed; NULL where there is one process */
    int rank, size;
    char *small;         /* owns: MX_COMM_SMALL bytes for each rank */
    mx_comm_move *moves; /* owns: one for each rank */
    float *stage, *arrived; /* own, for sums: size slices each */
    int64_t slice;          /* numbers */
};
enum { MX_COMM_SMALL = 1024 };

/* Of all ranks of the coordinator, which must be closed after it. `how`: auto, nccl, mpi or tcp;
 * auto, and what the host says where GPUs talk through NCCL, is MPI where its launcher started
 * these ranks and the plug-in is there, else TCP. *note, in the arena, says why auto is not what
 * one would expect; NULL: nothing to say. */
typedef struct {
    const char *how;
    mx_arena *arena;
    const char *note;
} mx_comm_choice;
mx_status mx_comm_open(mx_comm **out, mx_coord *coord, mx_comm_choice *choice) MX_MUST_USE;
/* Waits for no other rank. NULL is a no-op. */
void mx_comm_close(mx_comm *c);

/* With some of the ranks, each of which says so too; none twice, and not this one. */
mx_status mx_comm_exchange(mx_comm *c, const char *call, const mx_comm_move *moves,
                           int n) MX_MUST_USE;
mx_status mx_comm_gather(mx_comm *c, const void *mine, size_t bytes, void *all) MX_MUST_USE;
mx_status mx_comm_broadcast(mx_comm *c, void *data, size_t bytes, int root) MX_MUST_USE;
mx_status mx_comm_barrier(mx_comm *c) MX_MUST_USE;
/* In place, over all ranks. */
mx_status mx_comm_sum_f32(mx_comm *c, const mx_span *spans, int n) MX_MUST_USE;
/* A few numbers: at most MX_COMM_SMALL / 8. */
mx_status mx_comm_sum_f64(mx_comm *c, double *v, int n) MX_MUST_USE;
mx_status mx_comm_sum(mx_comm *c, int64_t *v, int n) MX_MUST_USE;
mx_status mx_comm_max(mx_comm *c, int64_t *v, int n) MX_MUST_USE;
/* Takes `mine`. OK when it is OK on every rank; else this rank's own error, or that of the first
 * rank that has one, with its number. Another rank chooses among the codes of failures (status.h)
 * and no others. */
mx_status mx_comm_agree(mx_comm *c, mx_status mine) MX_MUST_USE;
/* Rank 0's path for all, NULL included; the others' is in the arena. Paths that are too long, or
 * would not be printed as they are (utf8.h), are refused on all ranks. */
mx_status mx_comm_share_path(mx_comm *c, mx_arena *a, const char **path) MX_MUST_USE;
/* A second communicator of the same ranks, for another thread. */
mx_status mx_comm_split_off(mx_comm *c, mx_comm **out) MX_MUST_USE;

/* For kinds: what every communicator has, and its end. */
mx_status mx_comm_init(mx_comm *c, const mx_comm_kind *kind, mx_coord *coord) MX_MUST_USE;
void mx_comm_fini(mx_comm *c);

#endif

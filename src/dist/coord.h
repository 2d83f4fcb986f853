/* coord.h - the processes of one run: how they meet, whether they live, and why they end.
 *
 * Rank 0 coordinates. Every other rank has one connection to it, which a thread of its own serves
 * on either side and which carries nothing but small signed frames (wire.h):
 *
 *     rendezvous   A rank that shows that it knows the secret (auth.h), and was started with the
 *                  same program and configuration, is admitted; when all are, every rank learns who
 *                  and where the others are. What differs is named on both sides.
 *     heartbeat    Several times within the limit each rank tells rank 0 that it lives and in which
 *                  calls it waits, and rank 0 tells each that it lives. A process that is stopped,
 *                  killed or cut off is known by its silence or its closed connection; a hung one,
 *                  whose thread still answers, by a call that it does not come to.
 *     verdict      The first failure that rank 0 learns of is the run's: it names the rank to blame
 *                  and every rank ends with the same words; *rank0_reports says that rank 0 reports
 *                  them for all. It wakes the threads that wait (the alarm), and terminates a
 *                  process that does not end by itself.
 *
 * Nothing here depends on how data travels. A communicator (comm.h) of any kind marks its calls
 * (enter, progress, leave), watches the alarm where it waits and asks mx_coord_check what became
 * of the run.
 *
 *     mx_coord *c;
 *     MX_TRY(mx_launch_find(&launch, getenv));
 *     MX_TRY(mx_coord_open(&c, &launch, &options));    all ranks are there
 *     MX_TRY(mx_comm_open(&comm, c));                 and can talk
 *     ...
 *     mx_coord_abort(c, why);                         when this rank ends with an error
 *     mx_coord_close(c);
 */
#ifndef MX_DIST_COORD_H
#define MX_DIST_COORD_H

#include "dist/auth.h"
#include "dist/launch.h"
#include <sys/socket.h>

typedef struct mx_coord mx_coord;

/* Something that all ranks must have been started with: a name for messages, and a hash. */
typedef struct {
    const char *name;
    uint32_t hash;
} mx_coord_part;

#define MX_COORD_WAKE_S 0.25
enum { MX_COORD_CHANNELS = 16, MX_COORD_PARTS = 4096, MX_COORD_BLOB = 128 };

typedef struct {
    double join_timeout_s;      /* for all ranks to be there; 0: 300 */
    double heartbeat_timeout_s; /* for a process to be heard of; 0: 30 */
    double call_timeout_s;      /* for a rank to come to a call that others wait in; 0: 600 */
    const char *secret;         /* "" or NULL: rank 0 makes one and keeps it in `folder` */
    const char *folder;         /* that all ranks see */
    /* The same in number and names for the same program, which is the first of them. At most
     * MX_COORD_PARTS; borrowed until mx_coord_open returns. */
    const mx_coord_part *parts;
    int n_parts;
    /* On rank 0, while ranks join, by the thread that joins: whom it waits for, who was refused.
     * NULL: not wanted. */
    void (*say)(void *ctx, const char *text);
    /* The run has failed and this process has not closed the coordinator some seconds later: its
     * thread may be stuck in a call that nobody can end. Called by the coordinator's own thread; it
     * is expected to end the process. NULL: nothing is done. */
    void (*end)(void *ctx, const char *why);
    void *ctx;
    /* Set on other ranks when the run fails by something that rank 0 has to say: ranks that cannot
     * join, and a rank that has said why it ends. NULL: nobody asks. */
    bool *rank0_reports;
} mx_coord_options;

mx_status mx_coord_open(mx_coord **out, const mx_launch *p, const mx_coord_options *o) MX_MUST_USE;
/* Leaves in an orderly way: the others go on. NULL is a no-op. */
void mx_coord_close(mx_coord *c);

int mx_coord_rank(const mx_coord *c);
int mx_coord_size(const mx_coord *c);
const mx_launch *mx_coord_launch(const mx_coord *c);
double mx_coord_join_timeout(const mx_coord *c);
/* "rank 2 (host node7, process 4711)" */
const char *mx_coord_who(const mx_coord *c, int rank);
/* Where it was reached, or reaches this machine; the port is of no use. */
const struct sockaddr_storage *mx_coord_address(const mx_coord *c, int rank);
/* Of this run; no other run has it. */
mx_auth_key mx_coord_key(const mx_coord *c);

/* `bytes` of every rank into all[rank * bytes], at most MX_COORD_BLOB: what a communicator must
 * know of the others before it can talk to them. All ranks call it, in one thread, with the same
 * size. */
mx_status mx_coord_gather(mx_coord *c, const void *mine, size_t bytes, void *all) MX_MUST_USE;

/* OK while all is well; then the verdict, again and again. */
mx_status mx_coord_check(mx_coord *c) MX_MUST_USE;
/* What another rank says does not decide how this process ends, beyond that it failed. */
mx_code mx_coord_code(int64_t code);
/* Readable from the moment there is a verdict. */
int mx_coord_alarm(const mx_coord *c);
/* The rank the verdict blames; -1: none, or nobody alone. */
int mx_coord_culprit(mx_coord *c);
/* Asks for a verdict with these words (`culprit` -1: nobody alone) and gives the one that came of
 * it. */
mx_status mx_coord_fail(mx_coord *c, int culprit, const char *fmt, ...) MX_PRINTF(3, 4) MX_MUST_USE;
/* Tells the others why this rank ends. Does nothing when there is a verdict. */
void mx_coord_abort(mx_coord *c, mx_code code, const char *why);

/* A channel is one sequence of collective calls: a communicator has one, and all ranks open them in
 * the same order, so that *opened (how many were so far) is the same everywhere.
 *     enter     call `number` (1, 2, ...) begins and may wait for other ranks; `call` is a literal
 *     progress  something has arrived
 *     leave     it is over
 * A thread in a call runs at least every MX_COORD_WAKE_S, however long it waits: one that does not
 * run at all hangs, and that distinguishes it from those that wait for it.
 * Cheap; from any thread, one a channel. */
mx_status mx_coord_channel_open(mx_coord *c, int *channel, uint32_t *opened) MX_MUST_USE;
void mx_coord_channel_close(mx_coord *c, int channel);
void mx_coord_enter(mx_coord *c, int channel, const char *call, uint64_t number);
/* The same, of a call that waits for one rank, whatever the number of its own calls. */
void mx_coord_enter_with(mx_coord *c, int channel, const char *call, uint64_t number, int peer);
/* The call has come so far that it waits for this rank; -1: for all. */
void mx_coord_waits_for(mx_coord *c, int channel, int peer);
void mx_coord_progress(mx_coord *c, int channel);
void mx_coord_leave(mx_coord *c, int channel);

#endif

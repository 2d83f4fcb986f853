/* coord_impl.h - what the parts of the coordinator share; private to src/dist/coord*.c and the
 * fuzz targets. Functions named *_locked are called with the lock held. */
#ifndef MX_DIST_COORD_IMPL_H
#define MX_DIST_COORD_IMPL_H

#include "base/arena.h"
#include "dist/acceptor.h"
#include "dist/coord.h"
#include <pthread.h>
#include <stdatomic.h>

enum { MX_COORD_HOST = 64, MX_COORD_CALL = 16, MX_COORD_WHY = 640, MX_COORD_NOTE = 512 };
enum { MX_COORD_DIFFERENT = 8 }; /* parts that differ and are named */
enum { MX_COORD_OUT = 4 * MX_WIRE_FRAME };

/* --- one connection between rank 0 and another rank (coord_link.c) --- */

typedef struct {
    int fd; /* -1: none */
    mx_wire_keys keys;
    mx_wire_frame in;
    double heard_at, beat_at; /* of the last frame that came; of the last beat that went */
    bool said_bye;
    uint8_t out[MX_COORD_OUT];
    size_t out_at, out_n;
} mx_coord_link;

mx_coord_link *mx_coord_link_new(mx_arena *a);
/* Ends the frame and queues it. False: there is no room for it, and nothing was signed. */
bool mx_coord_link_queue(mx_coord_link *l, mx_wire_frame *f);
/* Sends what the socket takes. False: the other side is gone. */
bool mx_coord_link_flush(mx_coord_link *l);
bool mx_coord_link_is_idle(const mx_coord_link *l);
/* Everything queued has been received by the other machine. */
bool mx_coord_link_is_delivered(const mx_coord_link *l);

/* The random numbers of both sides, and the keys that follow from them and the secret. */
typedef struct {
    uint8_t member[MX_AUTH_NONCE], root[MX_AUTH_NONCE];
} mx_coord_nonces;
mx_wire_keys mx_coord_agree(const mx_auth_key *secret, const mx_coord_nonces *n, bool is_root);

/* --- one rank, as far as this one knows --- */

typedef struct {
    uint64_t number;
    double waits_s;  /* in a call, for so long; below 0: in none */
    double still_s;  /* in a call: for so long its thread has not run, so it hangs in there */
    int peer;        /* for which it waits; -1: for all that have not come to the call */
    bool is_message; /* between it and the peer: other ranks count other calls */
    char call[MX_COORD_CALL];
} mx_coord_channel_state;

typedef enum {
    MX_RANK_ABSENT,
    MX_RANK_ADMITTED, /* what it was started with is being compared */
    MX_RANK_HERE,
    MX_RANK_LEFT, /* in an orderly way */
} mx_rank_state;

typedef struct {
    char who[128], host[MX_COORD_HOST];
    int32_t pid;
    struct sockaddr_storage at;
    mx_rank_state state;
    mx_coord_link *link; /* rank 0: to each other rank; others: to rank 0 */
    int n_compared, n_different, different[MX_COORD_DIFFERENT]; /* parts, on rank 0 */
    uint32_t gathers;            /* it has taken part in, on rank 0 */
    uint8_t blob[MX_COORD_BLOB]; /* for the last of them */
    size_t blob_bytes;
    int n_gathered; /* blobs of it that were sent to it */
    int n_told;     /* frames of the table of ranks that were sent to it, on rank 0 */
    bool knows;     /* the verdict, on rank 0 */
    mx_coord_channel_state channel[MX_COORD_CHANNELS]; /* as of its last beat */
} mx_rank;

typedef struct {
    _Atomic uint64_t number;  /* which communicator this is in the upper bits, and the call */
    _Atomic int64_t since_ns; /* monotonic; 0: in no call */
    _Atomic(const char *) call;
    _Atomic int peer; /* -1: all */
    _Atomic bool is_message;
    _Atomic int clock;        /* clockid_t of the processor time of the thread in the call */
    double ran_for_s, ran_at; /* that time, and when it was last seen to grow: the coordinator's */
    bool open;
    uint32_t opened;
} mx_coord_channel;

struct mx_coord {
    int rank, size;
    mx_launch launch;
    mx_coord_options o; /* without zeros; parts are gone once ranks have joined */
    mx_arena arena;
    mx_rank *member; /* one for each rank */
    mx_coord_channel channel[MX_COORD_CHANNELS];
    uint32_t channels_opened;
    uint32_t job; /* of the launcher, as a hash */
    mx_auth_key secret, session;
    bool from_file;
    uint8_t file_id[MX_AUTH_ID], session_nonce[MX_AUTH_NONCE];
    char file[4096]; /* of the secret; "": none */
    mx_acceptor acceptor;
    /* The thread and who waits for it. */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int wake, alarm; /* eventfd; -1: none */
    struct pollfd *polls;
    double looked_at; /* when the thread last looked at everything */
    bool closing;
    bool started;   /* all ranks are there, and know it of each other */
    bool all_here;  /* on rank 0: the table is on its way */
    double done_at; /* when to stop waiting for what is not delivered */
    int n_listed;   /* entries of the table that have come, on other ranks; -1: none expected yet */
    uint32_t gathers;  /* this rank has begun; on rank 0: that are complete in `gathered` */
    uint8_t *gathered; /* size times MX_COORD_BLOB */
    size_t blob_bytes;
    int n_gathered; /* blobs that have come, on other ranks */
    /* The verdict. */
    char why[MX_COORD_WHY]; /* "": none */
    mx_code code;
    int culprit;
    double judged_at;
    bool alone; /* on rank 0: it is enough that this one says it */
    /* For the thread that waits for the others. */
    char note[MX_COORD_NOTE]; /* to be said; "": nothing */
    bool has_said_refused;
};

/* coord.c */
void *mx_coord_serve(void *coord);                      /* the thread */
void mx_coord_wait_locked(mx_coord *c, double seconds); /* for the thread to do something */
void mx_coord_judge_locked(mx_coord *c, mx_code code, int culprit, const char *fmt, ...)
    MX_PRINTF(4, 5);
void mx_coord_note_locked(mx_coord *c, const char *fmt, ...) MX_PRINTF(2, 3);
void mx_coord_wake(mx_coord *c); /* the thread */
void mx_coord_name(mx_coord *c, int rank, const char *host, int32_t pid);
double mx_coord_beat_s(const mx_coord *c);

/* coord_open.c: an object without sockets and thread; mx_coord_close takes it. */
mx_status mx_coord_new(mx_coord **out, const mx_launch *p, const mx_coord_options *o) MX_MUST_USE;
mx_status mx_coord_stopped(void) MX_MUST_USE; /* by a signal, before all ranks were there */

/* coord_channels.c */
mx_coord_channel_state mx_coord_own_channel(const mx_coord *c, int channel);
/* Which threads in calls have run since the last look. */
void mx_coord_look_at_channels(mx_coord *c, double now);
/* This process has stood still for so long. */
void mx_coord_forgive_waits(mx_coord *c, double seconds);
void mx_coord_queue_beat(mx_coord *c, mx_coord_link *l, double now);
/* Where this rank has been, and that it leaves; once. */
void mx_coord_queue_bye(mx_coord *c, mx_coord_link *l, double now);
bool mx_coord_take_beat(mx_rank *m, mx_wire_frame *f); /* false: it is none */

/* coord_root.c, on rank 0 */
mx_status mx_coord_root_listen(mx_coord *c) MX_MUST_USE;
int mx_coord_root_polls_locked(mx_coord *c, struct pollfd *p, double now);
void mx_coord_root_step_locked(mx_coord *c, const struct pollfd *p, double now);
void mx_coord_tell_verdict_locked(mx_coord *c);
/* The ranks that are not there, as a list. */
int mx_coord_absent_locked(const mx_coord *c, char *list, size_t cap);
mx_pending_result mx_coord_root_take(void *ctx, mx_pending *p);

/* coord_gather.c */
bool mx_coord_take_blob_locked(mx_coord *c, int rank, mx_wire_frame *f); /* on rank 0 */
void mx_coord_tell_blobs_locked(mx_coord *c, int rank);                  /* on rank 0 */
bool mx_coord_take_gathered_locked(mx_coord *c, mx_wire_frame *f);       /* on others */

/* coord_judge.c. On rank 0: has a rank fallen silent, or does one not come to a call? On all ranks:
 * does one wait for a rank that has left in an orderly way and will never come? */
void mx_coord_judge_silence_locked(mx_coord *c, double now);
void mx_coord_judge_left_locked(mx_coord *c);

/* coord_member.c, on every other rank */
mx_status mx_coord_member_connect(mx_coord *c, double deadline) MX_MUST_USE;
/* The handshake on a connection. *again: somebody else answered; rank 0 may come yet. */
mx_status mx_coord_member_greet(mx_coord *c, int fd, const mx_wait *w, bool *again) MX_MUST_USE;
int mx_coord_member_polls_locked(mx_coord *c, struct pollfd *p, double now);
void mx_coord_member_step_locked(mx_coord *c, const struct pollfd *p, double now);

#endif

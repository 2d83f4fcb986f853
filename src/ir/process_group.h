/* process_group.h - what collectives need of the ranks they connect; src/dist implements it.
 *
 * Every call but those for messages is made by all ranks of the group, in the same order. `bytes`
 * and `n` are those of one rank's piece. Input and output are different memory. Sums are made in
 * the order of ranks, in float64 for float64 and in float32 for everything else.
 */
#ifndef MX_IR_PROCESS_GROUP_H
#define MX_IR_PROCESS_GROUP_H

#include "ir/type.h"

typedef struct mx_process_group mx_process_group;

typedef enum { MX_REDUCE_SUM, MX_REDUCE_MAX } mx_reduction;

/* Numbers to be reduced: n elements of one dtype. */
typedef struct {
    const void *in;
    void *out;
    int64_t n;
    mx_dtype dtype;
    mx_reduction how;
} mx_reduce_args;

/* Pieces of any size: bytes [at[k], at[k] + bytes[k]) go to, or come from, rank k of the group. */
typedef struct {
    const void *in;
    void *out;
    const int64_t *in_at, *in_bytes, *out_at, *out_bytes;
} mx_exchange_args;

/* Bytes to, or from, another rank of the group. */
typedef struct {
    int peer;
    int64_t tag; /* of one message under way at most */
    void *data;
    size_t bytes;
} mx_message;

typedef struct {
    const char *name;
    bool threads; /* ranks are threads of one process: each can read the others' memory */
    /* out: every rank's piece, in order. */
    mx_status (*all_gather)(mx_process_group *g, const void *in, void *out, size_t bytes);
    /* in: n elements for every rank; out: n elements. */
    mx_status (*reduce_scatter)(mx_process_group *g, const mx_reduce_args *a);
    mx_status (*all_reduce)(mx_process_group *g, const mx_reduce_args *a);
    /* in and out: a piece of `bytes` for, and from, every rank. */
    mx_status (*all_to_all)(mx_process_group *g, const void *in, void *out, size_t bytes);
    mx_status (*exchange)(mx_process_group *g, const mx_exchange_args *a);
    /* To the rank `by` places further on; what the rank `by` places before sends arrives. */
    mx_status (*shift)(mx_process_group *g, const void *in, void *out, size_t bytes, int by);
    /* From one rank to another, in any order beside other calls; `tag` tells messages between the
     * same two ranks apart. `send` returns at once, and the memory must stay as it is until `sent`
     * returns. `receive` returns with the message; what was posted before arrives by itself, and
     * its sender does not wait. */
    mx_status (*send)(mx_process_group *g, const mx_message *m);
    mx_status (*sent)(mx_process_group *g, const mx_message *m);
    mx_status (*post)(mx_process_group *g, const mx_message *m);
    mx_status (*receive)(mx_process_group *g, const mx_message *m);
    /* This rank sends and receives no more: the memory of its messages under way may go. */
    void (*leave)(mx_process_group *g);
    /* Of threads that share a device: only one at a time is between take and give, so that what it
     * does there can be timed. NULL: there is nothing to share. */
    void (*turn)(mx_process_group *g, bool take);
    /* Of processes: the error that has ended the run, if one has. NULL: calls say it themselves. */
    mx_status (*check)(mx_process_group *g);
} mx_process_group_kind;

/* The calls of a kind whose functions have the names of these members (send: send_message). */
#define MX_PROCESS_GROUP_CALLS                                                                     \
    .all_gather = all_gather, .reduce_scatter = reduce_scatter, .all_reduce = all_reduce,          \
    .all_to_all = all_to_all, .exchange = exchange, .shift = shift, .send = send_message,          \
    .sent = sent, .post = post, .receive = receive, .leave = leave

struct mx_process_group {
    const mx_process_group_kind *kind;
    int rank, size; /* within the group */
    bool nccl; /* each has a GPU: what lies there goes through NCCL, where the device has it */
};

#endif
